"""Anthropic's own editing of a prompt: old tool results are cleared on its side, at the request of the body.

`context_management` has a list of edits, with the beta header `context-management-2025-06-27`. The edit for tool
results clears the oldest ones and keeps as many tool uses as it names (platform.claude.com/docs, context editing). The
answer says what was cleared. `clear_thinking_20251015` has to stand in front of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from proxy.chat import json_spans
from proxy.dialects import spans
from proxy.dialects.base import ClearedResults
from proxy.dialects.usage import read_count

FIELD: Final = "context_management"
BETA: Final = "context-management-2025-06-27"
"""Value of the header `anthropic-beta` that allows the field."""
BODY_BETAS: Final = "anthropic_beta"
"""The member of Bedrock's bodies that lists what the header does elsewhere."""
CLEAR_TOOLS: Final = "clear_tool_uses_20250919"
_CLEAR_THINKING: Final = "clear_thinking_20251015"
_SERVER_TOOLS: Final = (b'"server_tool_use"', b'"mcp_tool_use"')


def may_clear(body: bytes) -> bool:
    """True if results of this body can be cleared at our request.

    Not if the client asks for such an edit itself. Not with calls of the provider's own tools either: how these are
    counted is not documented."""
    value = json_spans.read_value(body, FIELD)
    if value not in (None, b"null"):
        try:
            edits = spans.read_any(value or b"").get("edits", [])
            if any(one.get("type") != _CLEAR_THINKING for one in edits):
                return False
        except (ValueError, AttributeError, TypeError, RecursionError):
            return False
    return not any(name in body for name in _SERVER_TOOLS)


def clear_results(body: bytes, kept: int) -> bytes:
    """The body with a request to clear all but the newest `kept` tool uses. Raises ValueError if unreadable."""
    edit = {"type": CLEAR_TOOLS, "trigger": {"type": "tool_uses", "value": 1}}
    new_edit = msgspec.json.encode({**edit, "keep": {"type": "tool_uses", "value": kept}})
    value = json_spans.read_value(body, FIELD)
    edits = None if value in (None, b"null") else json_spans.read_value(value or b"", "edits")
    if edits in (None, b"null", b"[]"):
        return json_spans.set_member(body, FIELD, b'{"edits":[' + new_edit + b"]}")
    longer = spans.apply_replacements(
        edits or b"", [spans.append_element(edits or b"", (0, len(edits or b"")), new_edit)]
    )
    return json_spans.set_member(body, FIELD, json_spans.set_member(value or b"", "edits", longer))


def add_body_beta(body: bytes) -> bytes:
    """The body with the beta in its `anthropic_beta`, which stands for the header on Bedrock. Raises ValueError if
    unreadable."""
    beta, listed = msgspec.json.encode(BETA), json_spans.read_value(body, BODY_BETAS) or b"null"
    if listed == b"null":
        return json_spans.set_member(body, BODY_BETAS, b"[" + beta + b"]")
    if beta in listed or not listed.startswith(b"["):
        return body
    longer = spans.apply_replacements(listed, [spans.append_element(listed, (0, len(listed)), beta)])
    return json_spans.set_member(body, BODY_BETAS, longer)


def read_cleared(message: Mapping[str, Any]) -> ClearedResults | None:
    """The tool results that the provider has cleared, by an answer or the event at its end; None for none."""
    told = message.get(FIELD)
    edits = told.get("applied_edits") if isinstance(told, dict) else None
    clearings = [
        one
        for one in (edits if isinstance(edits, list) else ())
        if isinstance(one, dict) and one.get("type") == CLEAR_TOOLS
    ]
    uses, tokens = (
        sum(read_count(one.get(name)) or 0 for one in clearings)
        for name in ("cleared_tool_uses", "cleared_input_tokens")
    )
    return ClearedResults(uses, tokens) if uses or tokens else None
