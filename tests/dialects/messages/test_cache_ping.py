"""Bodies of pings: the same bytes but for two members, and none where it would be refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.dialects.messages.cache_ping import build_ping

MESSAGES = b'[{"role":"user","content":"hi \\u00e9"}]'
BODY = b'{ "model":"claude-opus-5-5",\n"max_tokens" : 4096 , "stream":true,"messages":' + MESSAGES + b"}"


def build(**more: Any) -> bytes | None:
    return build_ping(json.dumps({"model": "m", "max_tokens": 9, "messages": []} | more).encode())


def test_a_ping_changes_two_members_and_no_other_byte() -> None:
    assert build_ping(BODY) == BODY.replace(b"4096", b"0").replace(b"true", b"false")


def test_a_body_without_a_stream_changes_in_one_member() -> None:
    body = BODY.replace(b"true", b"false")
    assert build_ping(body) == body.replace(b"4096", b"0")


@pytest.mark.parametrize(
    "more",
    [
        {"thinking": {"type": "adaptive"}},
        {"thinking": {"type": "disabled"}, "tool_choice": {"type": "auto"}},
        {"tool_choice": {"type": "none"}, "output_config": {"effort": "high"}},
        {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}},
        {"thinking": None, "tool_choice": None, "output_config": None, "context_management": None},
    ],
)
def test_what_goes_with_an_empty_answer_is_pinged(more: dict[str, Any]) -> None:
    made = build(**more)
    assert made is not None
    assert json.loads(made) == {"model": "m", "max_tokens": 0, "messages": [], **more}


@pytest.mark.parametrize(
    "more",
    [
        {"thinking": {"type": "enabled", "budget_tokens": 1024}},
        {"thinking": {"type": "a kind of tomorrow"}},
        {"tool_choice": {"type": "any"}},
        {"tool_choice": {"type": "tool", "name": "read"}},
        {"output_config": {"format": {"type": "json_schema", "schema": {}}}},
        {"output_format": {"type": "json_schema"}},
        {"context_management": {"edits": [{"type": "compact_20260112"}]}},
        {"context_management": {"edits": 3}},
    ],
)
def test_what_is_refused_or_would_read_another_prompt_is_not_pinged(more: dict[str, Any]) -> None:
    assert build(**more) is None


@pytest.mark.parametrize(
    "body", [b"", b"[]", b'{"messages":[]}', b'{"max_tokens":1', b'{"max_tokens":1,"thinking":tru}']
)
def test_a_body_that_cannot_be_read_is_not_pinged(body: bytes) -> None:
    assert build_ping(body) is None
