"""Anthropic's own clearing of tool results: the request for it, and what an answer says of it."""

from __future__ import annotations

import json

from proxy.dialects.base import ClearedResults
from proxy.dialects.messages.context_management import clear_results, may_clear, read_cleared

OURS = {
    "type": "clear_tool_uses_20250919",
    "trigger": {"type": "tool_uses", "value": 1},
    "keep": {"type": "tool_uses", "value": 7},
}


def test_the_request_is_added_after_the_clients_own() -> None:
    assert clear_results(b'{"model":"m"}', 7) == (
        b'{"model":"m","context_management":{"edits":[' + json.dumps(OURS, separators=(",", ":")).encode() + b"]}}"
    )
    for empty in (b"null", b"{}", b'{"edits":null}', b'{"edits":[]}'):
        body = b'{ "model": "m", "context_management":' + empty + b"}"
        assert json.loads(clear_results(body, 7))["context_management"]["edits"] == [OURS]
    thinking = {"type": "clear_thinking_20251015", "keep": "all"}
    own = {"edits": [thinking], "more": 1}
    made = clear_results(json.dumps({"context_management": own, "model": "m"}).encode(), 7)
    assert json.loads(made)["context_management"] == {"edits": [thinking, OURS], "more": 1}


def test_a_client_that_clears_by_itself_is_left_alone() -> None:
    assert may_clear(b'{"model":"m"}')
    assert may_clear(b'{"context_management":null}')
    assert may_clear(b'{"context_management":{"edits":[{"type":"clear_thinking_20251015"}]}}')
    assert not may_clear(b'{"context_management":{"edits":[{"type":"clear_tool_uses_20250919"}]}}')
    assert not may_clear(b'{"context_management":{"edits":[{"type":"compact_20260112"}]}}')
    assert not may_clear(b'{"context_management":7}')
    assert not may_clear(b'{"messages":[{"content":[{"type":"server_tool_use"}]}]}')


def test_what_was_cleared_is_read_from_the_answer() -> None:
    edit = {"type": "clear_tool_uses_20250919", "cleared_tool_uses": 4, "cleared_input_tokens": 900}
    other = {"type": "clear_thinking_20251015", "cleared_input_tokens": 5}
    assert read_cleared({"context_management": {"applied_edits": [other, edit]}}) == ClearedResults(4, 900)
    for told in (None, 7, {}, {"applied_edits": None}, {"applied_edits": [7, other]}):
        assert read_cleared({"context_management": told}) is None
    assert read_cleared({}) is None
