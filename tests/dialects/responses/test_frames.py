from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.dialects import spans
from proxy.dialects.responses import frames
from proxy.dialects.responses.frames import AnswerItems, Carried, read_create

FIRST = {"type": "message", "role": "user", "content": "Hello"}
SECOND = {"type": "function_call_output", "call_id": "call_1", "output": "x"}


MOST = 10_000
"""JSON values of a frame."""


def frame(**members: Any) -> bytes:
    return json.dumps({"type": "response.create", "model": "m", "store": False, **members}).encode()


def read(raw: bytes, carried: Carried | None = None) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(read_create(raw, [carried or Carried()], MOST).body)
    return made


def test_a_frame_is_the_body_of_a_request_that_streams() -> None:
    found = read_create(frame(input=[FIRST], tools=[], generate=True), [Carried()], MOST)
    assert json.loads(found.body) == {"model": "m", "store": False, "tools": [], "input": [FIRST], "stream": True}
    assert json.loads(found.items) == FIRST
    assert (found.generates, found.model) == (True, "m")


def test_the_bytes_of_items_are_those_that_came() -> None:
    odd = b'{"role" :"user","content":"caf\\u00e9 1.0e1","x":1.50,"x":2}'
    raw = b'{"type":"response.create","input":[ ' + odd + b" , " + odd + b' ],"top_p":1.0}'
    found = read_create(raw, [Carried("resp_0", b"{}")], MOST)
    assert found.items == odd + b" , " + odd
    assert found.body == b'{"top_p":1.0,"input":[' + found.items + b'],"stream":true}'


def test_a_response_of_the_connection_is_continued_with_all_that_went_over_it() -> None:
    carried = Carried("resp_1", json.dumps(FIRST).encode())
    found = read_create(frame(input=[SECOND], previous_response_id="resp_1"), [carried], MOST)
    body = json.loads(found.body)
    assert body["input"] == [FIRST, SECOND]
    assert "previous_response_id" not in body
    assert json.loads(b"[" + found.items + b"]") == [FIRST, SECOND]
    again = read(frame(input=[], previous_response_id="resp_1"), carried)
    assert again["input"] == [FIRST]


def test_another_response_is_unknown_or_the_providers() -> None:
    with pytest.raises(frames.UnknownResponse, match="resp_9"):
        read(frame(input=[], previous_response_id="resp_9"), Carried("resp_1", b"{}"))
    stored = read(frame(input=[SECOND], previous_response_id="resp_9", store=True))
    assert stored["previous_response_id"] == "resp_9"
    assert stored["input"] == [SECOND]


def test_a_text_and_no_input_are_items_too() -> None:
    assert read(frame(input='He said "hi"'))["input"] == [
        {"type": "message", "role": "user", "content": 'He said "hi"'}
    ]
    assert read(frame())["input"] == read(frame(input=None))["input"] == []


@pytest.mark.parametrize(
    "raw", [b"", b"[]", b"{", b'{"type":"response.cancel"}', b'{"model":"m"}', frame(input={"a": 1}), b'{"type":' * 9]
)
def test_what_is_not_a_frame_is_refused(raw: bytes) -> None:
    with pytest.raises((ValueError, RecursionError)):
        read(raw)


def test_headers_that_a_frame_may_set_are_those_of_codex_and_of_tracing() -> None:
    start = "ws_request_header_"
    metadata = {
        f"{start}x_openai_internal_codex_responses_lite": "true", f"{start}traceparent": "00-1\r\nx: y", "thread": "a",
        f"{start}authorization": "Bearer other", f"{start}x_context_key": "other", f"{start}x_codex_n": 1,
    }  # fmt: skip
    found = read_create(frame(input=[], client_metadata=metadata), [Carried()], MOST).headers
    assert found == [(b"x-openai-internal-codex-responses-lite", b"true"), (b"traceparent", b"00-1x: y")]
    assert read_create(frame(input=[], client_metadata="x"), [Carried()], MOST).headers == []


def event(kind: str, **members: Any) -> bytes:
    return json.dumps({"type": kind, **members}).encode()


def test_items_of_an_answer_are_those_of_its_events() -> None:
    answer, asked = AnswerItems(), read_create(frame(input=[FIRST]), [Carried()], MOST)
    answer.add(event("response.created", response={"id": "resp_1", "output": []}))
    answer.add(event("response.output_item.added", item={"id": "x"}))
    answer.add(event("response.output_text.delta", delta='"response.output_item.done","item":{}'))
    assert answer.carry(asked) is None
    answer.add(event("response.output_item.done", item={"id": "msg_1"}))
    answer.add(event("response.completed", response={"id": "resp_1", "output": [{"id": "msg_1"}]}))
    answer.add(b"{")
    carried = answer.carry(asked)
    assert carried is not None
    assert carried.response_id == "resp_1"
    assert json.loads(b"[" + carried.items + b"]") == [FIRST, {"id": "msg_1"}]


def test_items_of_an_answer_in_one_body_are_its_output() -> None:
    body = json.dumps({"id": "resp_1", "output": [{"id": "a"}, {"id": "b"}]}).encode()
    answer = AnswerItems()
    for one in frames.make_events(body):
        answer.add(one)
    carried = answer.carry(read_create(frame(), [Carried()], MOST))
    assert carried == Carried("resp_1", b'{"id": "a"},{"id": "b"}')


def test_a_failed_answer_is_continued_by_nobody() -> None:
    answer = AnswerItems()
    answer.add(event("response.output_item.done", item={"id": "msg_1"}))
    answer.add(event("response.failed", response={"id": "resp_1", "output": []}))
    assert answer.carry(read_create(frame(), [Carried()], MOST)) is None


def test_items_of_an_answer_are_forgotten_where_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    answer, asked = AnswerItems(), read_create(frame(input=[FIRST]), [Carried()], MOST)
    for _ in range(frames.MAX_ITEM_BYTES // 1_000_000 + 1):
        answer.add(event("response.output_item.done", item={"text": "a" * 1_000_000}))
        assert sum(map(len, answer.items)) <= frames.MAX_ITEM_BYTES
    answer.add(event("response.completed", response={"id": "resp_1", "output": [{"id": "msg_1"}]}))
    assert (answer.items, answer.carry(asked)) == ([], Carried())
    monkeypatch.setattr(frames, "MAX_OUTPUT_VALUES", 10)
    for count, kept in ((3, "resp_1"), (30, "")):
        answer = AnswerItems()
        answer.add(event("response.completed", response={"id": "resp_1", "output": [{}] * count}))
        carried = answer.carry(asked)
        assert carried is not None
        assert carried.response_id == kept


def test_a_warm_up_is_a_response_without_output() -> None:
    created, completed = (json.loads(one) for one in frames.make_warm_up("resp_w", "m", 1))
    assert (created["type"], completed["type"]) == ("response.created", "response.completed")
    assert (created["sequence_number"], completed["sequence_number"]) == (0, 1)
    assert created["response"]["id"] == completed["response"]["id"] == "resp_w"
    assert completed["response"]["output"] == []
    assert completed["response"]["usage"]["total_tokens"] == 0


@pytest.mark.parametrize(
    ("body", "message", "kind"),
    [
        (b'{"error":{"message":"No.","type":"t","code":"c"}}', "No.", "t"),
        (b'{"error":"No."}', "No.", "server_error"),
        (b"<html>No.", "<html>No.", "server_error"),
        (b"[1]", "[1]", "server_error"),
    ],
)
def test_an_error_over_http_becomes_a_frame(body: bytes, message: str, kind: str) -> None:
    found = json.loads(frames.make_error_frame(503, body, {"retry-after": "1"}))
    assert (found["type"], found["status"], found["headers"]) == ("error", 503, {"retry-after": "1"})
    assert (found["error"]["message"], found["error"]["type"]) == (message, kind)


def test_a_code_that_is_a_number_is_given_as_a_text() -> None:
    """A gateway's code is a number. Codex reads no frame with it, and waited for five minutes."""
    found = json.loads(frames.make_error_frame(503, b'{"error":{"message":"No.","code":503,"type":null}}'))
    assert found["error"] == {"message": "No.", "code": "503", "type": None, "param": None}
    found = json.loads(frames.convert_event(b'{"error":{"code":429,"message":"No."}}'))
    assert (found["type"], found["status"], found["error"]["code"]) == ("error", 429, "429")


@pytest.mark.parametrize(
    "event",
    [
        b'{"type":"response.created","response":{"id":"r","error":null}}',
        b'{"type":"response.failed","response":{"id":"r","error":{"code":"server_error"}}}',
        b'{"error":null}', b'"error"', b'{"error"',
    ],
)  # fmt: skip
def test_an_event_that_is_not_an_error_is_its_own_frame(event: bytes) -> None:
    assert frames.convert_event(event) is event


def test_the_code_at_which_a_client_sends_its_whole_history() -> None:
    found = json.loads(frames.make_unknown_response_frame("resp_1"))
    assert (found["type"], found["error"]["code"]) == ("error", "previous_response_not_found")


@pytest.mark.parametrize(
    "member", [b'"input":[%b]', b'"input":[],"model":[%b]', b'"input":[],"client_metadata":{"a":[%b]}', b'"type":[%b]']
)
def test_a_frame_with_too_many_values_is_refused_before_any_of_them_is_decoded(
    member: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """20 million numbers in an input took 55 s and 5.7 GB."""
    raw = b'{"type":"response.create",%b}' % member
    monkeypatch.setattr(spans, "read_any", None)
    with pytest.raises(ValueError, match="more than 10 JSON values"):
        read_create(raw % b",".join([b"1"] * 11), [Carried()], 10)


def test_commas_in_texts_do_not_count_as_values() -> None:
    read_create(frame(input=[{"type": "message", "role": "user", "content": ",[{" * 100}]), [Carried()], 20)
