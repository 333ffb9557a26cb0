"""Parts of `proxy.stream.responses_rewriter` that test_responses_relay.py does not show through a whole stream."""

from __future__ import annotations

import json
from typing import Any

from proxy.notes.state_block import HEADINGS
from proxy.stream.answer_relay import RelayOptions
from proxy.stream.responses_answer import ResponsesAnswer
from proxy.stream.responses_rewriter import ResponsesRewriter
from proxy.stream.sse import SseEvent
from tests.response_events import Json, event, message
from tests.stream.responses_rounds import BLOCK


def feed(rewriter: ResponsesRewriter, kind: str, number: int, **members: Any) -> list[Json]:
    raw = event(kind, number, **members)
    data = raw.split(b"data: ")[1].strip()
    out: list[bytes] = []
    rewriter.rewrite_event(SseEvent(raw, data, kind.encode()), json.loads(data), out)
    return [json.loads(one.split(b"data: ")[1]) for one in out]


def make(**how: Any) -> ResponsesRewriter:
    options: Json = {"withheld": HEADINGS, "limit": 1 << 20} | how
    return ResponsesRewriter(ResponsesAnswer(), RelayOptions(**options), None)


def test_text_of_a_message_that_was_not_announced_is_withheld_too() -> None:
    rewriter = make()
    stated = message(1, f"Hi.\n\n{BLOCK}")
    delta = {"output_index": 0, "item_id": "msg_1", "content_index": 0, "logprobs": []}
    assert feed(rewriter, "response.output_text.delta", 0, delta=BLOCK, **delta) == []
    found = feed(rewriter, "response.output_item.done", 1, output_index=0, item=stated)
    assert [one["item"]["content"][0]["text"] for one in found] == ["Hi."]
    assert [one["sequence_number"] for one in found] == [1]


def test_a_message_that_was_shown_before_its_text_ends_empty() -> None:
    rewriter = make()
    begun = message(1) | {"status": "in_progress"}
    assert feed(rewriter, "response.output_item.added", 5, output_index=0, item=begun) == []
    shown = feed(rewriter, "response.item_note", 6, output_index=0)
    assert [one["type"] for one in shown] == ["response.output_item.added", "response.item_note"]
    part = {"type": "output_text", "text": "", "annotations": []}
    assert feed(rewriter, "response.content_part.added", 7, output_index=0, content_index=0, part=part) == []
    delta = {"output_index": 0, "content_index": 0, "delta": BLOCK, "logprobs": []}
    assert feed(rewriter, "response.output_text.delta", 8, **delta) == []
    found = feed(rewriter, "response.output_item.done", 9, output_index=0, item=message(1, BLOCK))
    assert [(one["item"]["content"], one["sequence_number"]) for one in found] == [([], 7)]


def test_an_event_without_a_number_gets_none() -> None:
    raw = b'event: response.new\ndata: {"type":"response.new"}\n\n'
    out: list[bytes] = []
    make().rewrite_event(SseEvent(raw, b'{"type":"response.new"}'), {"type": "response.new"}, out)
    assert out == [raw]


def test_a_changed_number_leaves_the_other_bytes_of_an_event() -> None:
    data = (
        b'{"output_index" : %d, "type":"response.output_item.added","item":{"type":"reasoning"},"sequence_number": 0}'
    )
    out: list[bytes] = []
    rewriter = make()
    for index in (0, 4):
        sent = data % index
        rewriter.rewrite_event(SseEvent(b"data: " + sent + b"\n\n", sent), json.loads(sent), out)
    second = (data % 1).replace(b'"sequence_number": 0', b'"sequence_number": 1')
    assert out == [b"data: " + data % 0 + b"\n\n", b"data: " + second + b"\n\n"]
