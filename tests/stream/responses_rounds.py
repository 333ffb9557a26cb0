"""Responses answers of one or more rounds, and what a client makes of the events."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from openai import omit
from openai._models import construct_type_unchecked
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import Response, ResponseStreamEvent

from proxy.chat.message import Message
from proxy.dialects.completions.request import read_message, read_request
from proxy.dialects.responses.request import read_wire_request
from proxy.stream.answer_relay import RelayOptions
from proxy.stream.responses_relay import ResponsesRelay
from proxy.stream.sse import SseParser
from tests.response_events import Json, events

OURS = frozenset({"recall", "query_db"})
BLOCK = "### STATE\nGoal: go on\nContext: as before\nResolved: one more step\nTechnical Anchors: none"


def pieces(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


def relay_round(
    stream: Iterable[bytes], *, previous: ResponsesRelay | None = None, **options: Any
) -> tuple[bytes, ResponsesRelay]:
    """One round: the bytes for the client (with the end, if it ended), and the relay."""
    relay = ResponsesRelay(RelayOptions(**options), previous)
    out = b"".join([relay.feed(part) for part in stream])
    return out + relay.end() + relay.terminal, relay


def relay_rounds(rounds: Sequence[Json], *, size: int = 0, width: int = 7, **how: Any) -> tuple[bytes, ResponsesRelay]:
    """All rounds of one answer. size: of the pieces in which the bytes come; 0: an event each."""
    out, relay = b"", None
    for made in rounds:
        stream = events(made, width)
        parts = pieces(b"".join(stream), size) if size else stream
        data, relay = relay_round(parts, previous=relay, **{"hidden_tools": OURS, **how})
        out += data
        if not relay.goes_on:
            break
    assert relay is not None
    return out, relay


def read_events(data: bytes) -> list[Json]:
    found = []
    for event in SseParser().feed(data):
        if event.data is not None:
            value = json.loads(event.data)
            assert event.name == value["type"].encode()
            found.append(value)
    return found


def read_with_sdk(data: bytes) -> Response:
    """The response that openai-python makes of a stream. Raises as it does."""
    state: Any = ResponseStreamState(input_tools=omit, text_format=omit)
    found: Any = None
    kind: Any = ResponseStreamEvent
    for value in read_events(data):
        for one in state.handle_event(construct_type_unchecked(type_=kind, value=value)):
            found = one
    response: Response = found.response
    return response


def check_numbers(data: bytes) -> list[Json]:
    """The events, after the checks that any client may make of their numbers."""
    found = read_events(data)
    assert [one["sequence_number"] for one in found] == list(range(len(found)))
    added = [one["output_index"] for one in found if one["type"] == "response.output_item.added"]
    assert added == list(range(len(added)))
    for one in found:
        if "output_index" in one:
            assert one["output_index"] in added
    ids = {one["response"]["id"] for one in found if "response" in one}
    assert len(ids) == 1
    parts: dict[int, list[int]] = {}
    for one in found:
        if one["type"] == "response.content_part.added":
            parts.setdefault(one["output_index"], []).append(one["content_index"])
    assert all(places == list(range(len(places))) for places in parts.values())
    return found


def check_copies(found: Sequence[Json]) -> list[Json]:
    """The items of the last event, after checking that all copies of each agree."""
    output: list[Json] = found[-1]["response"]["output"]
    texts: dict[tuple[int, int], str] = {}
    tokens: dict[tuple[int, int], list[Any]] = {}
    for one in found:
        place = one.get("output_index", -1), one.get("content_index", -1)
        if one["type"] == "response.output_text.delta":
            texts[place] = texts.get(place, "") + one["delta"]
            tokens.setdefault(place, []).extend(one["logprobs"])
        elif one["type"] == "response.output_text.done":
            assert one["text"] == texts.get(place, "")
            assert one["logprobs"] == tokens.get(place, [])
        elif one["type"] == "response.content_part.done" and one["part"]["type"] == "output_text":
            assert one["part"]["text"] == texts.get(place, "")
            assert one["part"] == output[place[0]]["content"][place[1]]
        elif one["type"] == "response.output_item.done":
            assert one["item"] == output[place[0]]
    return output


def send_back(items: Sequence[Json]) -> Message:
    """The message that the proxy reads when a client sends these items back."""
    body = {"model": "m", "input": [{"role": "user", "content": "a"}, *items, {"role": "user", "content": "b"}]}
    chat = read_wire_request(json.dumps(body).encode()).chat_body
    return read_request(chat).messages[1]


def answer_of(relay: ResponsesRelay) -> Message:
    raw = relay.answer.build_message()
    assert raw is not None
    return read_message(raw)
