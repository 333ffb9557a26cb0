from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.stream.responses_echo import ResponseEcho
from tests.response_events import events, message, response, thinking

MADE = response(thinking(1, "Hm."), message(2, "Hello."), previous_response_id=None, store=False)
MEMBERS = {"previous_response_id": b'"resp_0"', "store": b"true"}


def wanted(value: dict[str, Any]) -> dict[str, Any]:
    items = [item | {"encrypted_content": None} if item["type"] == "reasoning" else item for item in value["output"]]
    return value | {"previous_response_id": "resp_0", "store": True, "output": items}


def test_a_body_says_what_the_client_has_asked_for() -> None:
    echo = ResponseEcho(MEMBERS, hides_tokens=True)
    assert json.loads(echo.rewrite_body(json.dumps(MADE).encode())) == wanted(MADE)
    assert echo.rewrite_body(b'{"error":{}}') == b'{"error":{}}'
    assert echo.rewrite_body(b"no JSON") == b"no JSON"


def test_a_stream_cut_anywhere_says_the_same() -> None:
    whole = b": hello\n\n" + b"".join(events(MADE)) + b"data: [DONE]\n\n"
    told = b": hello\n\n" + b"".join(events(wanted(MADE))) + b"data: [DONE]\n\n"
    for cut in range(1, len(whole), 7):
        echo = ResponseEcho(MEMBERS, hides_tokens=True)
        found = echo.feed(whole[:cut]) + echo.feed(whole[cut:]) + echo.flush()
        assert read(found) == read(told), cut
    assert b"gAAA" not in told


def read(stream: bytes) -> list[Any]:
    parts = [one.partition(b"data: ") for one in stream.split(b"\n\n")]
    return [(head, json.loads(data) if data[:1] == b"{" else data) for head, _, data in parts]


@pytest.mark.parametrize("cut", [50, 400])
def test_the_echo_changes_nothing_else(cut: int) -> None:
    whole = b"".join(events(response(message(2, "Hello."))))
    echo = ResponseEcho({}, hides_tokens=False)
    assert echo.feed(whole[:cut]) + echo.feed(whole[cut:]) + echo.flush() == whole
    echo = ResponseEcho(MEMBERS, hides_tokens=True)
    assert echo.feed(whole) + echo.flush() == whole, "what the provider does not repeat is not added"


def test_the_rest_of_a_stream_that_broke_off_is_passed_on() -> None:
    echo = ResponseEcho(MEMBERS, hides_tokens=True)
    assert echo.feed(b'data: {"type":"response.out') + echo.flush() == b'data: {"type":"response.out'


def test_a_token_that_the_client_has_asked_for_is_shown() -> None:
    echo = ResponseEcho(MEMBERS, hides_tokens=False)
    made = json.loads(echo.rewrite_body(json.dumps(MADE).encode()))
    assert made["output"] == MADE["output"]
    assert made["store"] is True
