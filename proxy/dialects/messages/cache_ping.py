"""The request that keeps the cache of a Messages prompt warm: the same body, without an answer.

Anthropic serves `max_tokens` 0 by reading the prompt alone, which renews the cache as any other use does. It refuses
such a request with a stream, a thinking budget, a forced tool or an output format. `stream` is no part of the cached
prefix and is changed. The others are part of it: a request with one of them has no ping
(platform.claude.com/docs/en/build-with-claude/prompt-caching).
"""

from __future__ import annotations

from typing import Any, Final

from proxy.dialects import spans

THINKING_TYPES: Final = (None, "adaptive", "disabled")
"""Kinds of thinking that go with `max_tokens` 0."""
TOOL_CHOICES: Final = (None, "auto", "none")
"""Choices of tools that go with it."""
COMPACTION: Final = "compact"
"""Beginning of the edits by which Anthropic would summarise the history again, at the price of an answer."""


def build_ping(body: bytes) -> bytes | None:
    """The body of a ping for a prompt that was sent; None for a prompt that cannot have one."""
    try:
        members = spans.read_members(body)

        def read(name: str) -> Any:
            return spans.read_any(body[slice(*members[name])]) if name in members else None

        if "max_tokens" not in members or not _may_be_pinged(read):
            return None
        changes = [(*members["max_tokens"], b"0")]
        if read("stream"):
            changes.append((*members["stream"], b"false"))
        return spans.apply_replacements(body, changes)
    except (ValueError, RecursionError):
        return None


def _may_be_pinged(read: Any) -> bool:
    """True if no member of the body speaks against `max_tokens` 0. read: returns the value of a member, or None."""
    if _read_type(read("thinking")) not in THINKING_TYPES or _read_type(read("tool_choice")) not in TOOL_CHOICES:
        return False
    output, managed = read("output_config"), read("context_management")
    if read("output_format") is not None or (isinstance(output, dict) and output.get("format") is not None):
        return False
    edits = (managed.get("edits") if isinstance(managed, dict) else managed) or []
    return isinstance(edits, list) and not any(str(_read_type(edit)).startswith(COMPACTION) for edit in edits)


def _read_type(value: Any) -> Any:
    return value.get("type", "") if isinstance(value, dict) else value
