"""An event changes at one span, and data of a form that spans cannot be found in are written anew."""

from __future__ import annotations

import json

from proxy.stream.messages_patch import patch_index, patch_tail, patch_text

DELTA = b'{"type" : "content_block_delta", "index":2,"delta":{"type":"text_delta","text":"abc", "x":1.50}}'


def test_one_value_changes_and_all_other_bytes_stay() -> None:
    assert patch_index(DELTA, 11) == DELTA.replace(b":2,", b":11,")
    assert patch_text(DELTA, 'a"é') == DELTA.replace(b'"abc"', '"a\\"é"'.encode())
    start = b'{"type":"content_block_start","index":0,"content_block":{"type":"text", "text":"x"}}'
    assert patch_text(start, "", is_start=True) == start.replace(b'"x"', b'""')


def test_the_end_gets_another_reason_and_usage() -> None:
    data = (
        b'{"type":"message_delta","delta":{"stop_reason":"tool_use","stop_sequence":null},"usage":{"output_tokens":1}}'
    )
    assert patch_tail(data, None, None) == data
    made = json.loads(patch_tail(data, "end_turn", {"input_tokens": 7, "output_tokens": 9, "service_tier": "x"}))
    assert made["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert made["usage"] == {"output_tokens": 9, "input_tokens": 7}
    bare = json.loads(patch_tail(b'{"type":"message_delta"}', "end_turn", {"output_tokens": 9}))
    assert (bare["delta"], bare["usage"]) == ({"stop_reason": "end_turn"}, {"output_tokens": 9})


def test_data_whose_spans_are_not_certain_are_rewritten() -> None:
    odd = b'{"type":"content_block_delta","index":1,"index":2,"delta":{"text":"\\ud83d"}}'
    assert json.loads(patch_index(odd, 5))["index"] == 5
    assert json.loads(patch_text(odd, "x"))["delta"]["text"] == "x"
    assert patch_index(b"[1]", 5) == b"[1]"
