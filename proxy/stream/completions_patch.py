"""Changes to the bytes of a chunk or a body, at the spans that change; every other byte stays.

If the bytes cannot be cut with certainty (a key that comes twice, a lone surrogate), the JSON is serialised again.
"""

from __future__ import annotations

from typing import Any

import msgspec

from proxy.chat import json_spans
from proxy.dialects.completions.stream import Choice, read_json, write_json
from proxy.dialects.usage import read_count

RESPONSE_HEAD_FIELDS = ("id", "created", "model", "system_fingerprint")
"""Members that must be the same on all chunks of an answer."""
_USAGE = b'"usage"'
_CONTENT = b'"content"'
_BACKSLASH = 0x5C
_NOTHING = b'{"object":"chat.completion.chunk","choices":[{"index":0,"delta":{},"finish_reason":null}]}'


class ChoicePatch(msgspec.Struct):
    """The changes to one choice."""

    text: str | None = None
    """The text that replaces the content."""
    kept_calls: list[tuple[int, int | None]] | None = None
    """The tool calls that stay, by their place in the list, each with its new index (None: unchanged)."""
    removes_role: bool = False
    """True if the role is removed."""
    finish_json: bytes | None = None
    """The JSON that replaces the finish reason."""


def patch_choices(raw: bytes, member_name: str, patches: dict[int, ChoicePatch]) -> bytes:
    """Return a chunk or a body with its choices changed, by their position. member_name: `delta` or `message`."""
    if not patches:
        return raw
    try:
        return _splice(raw, member_name, patches)
    except (ValueError, LookupError, TypeError, RecursionError):
        value = read_json(raw)
    try:
        for position, change in patches.items():
            _rewrite(value["choices"][position], member_name, change)
        return write_json(value)
    except (LookupError, TypeError, RecursionError):
        return _NOTHING  # nested to the reader's limit, and with keys that come twice: unreadable


def replace_texts(raw: bytes, member_name: str, texts: dict[int, str]) -> bytes:
    """Return a chunk or a body with other texts in its choices, every other byte as it was.

    texts: by position in `choices`. member_name: the member of a choice that has the text (`delta` or `message`).
    Raises LookupError and TypeError if there is no such choice."""
    try:
        return _splice(raw, member_name, {position: ChoicePatch(text) for position, text in texts.items()})
    except (ValueError, LookupError, TypeError, RecursionError):
        value = read_json(raw)
        for position, text in texts.items():
            value["choices"][position][member_name]["content"] = text
        return write_json(value)


def _splice(raw: bytes, holder: str, changes: dict[int, ChoicePatch]) -> bytes:
    choices = json_spans.find_member(raw, "choices")
    if choices is None:
        raise ValueError("no choices")
    spans = json_spans.find_elements(raw[choices.start : choices.end]) or []
    for position in sorted(changes, reverse=True):  # from the end on, so that the earlier spans stay right
        start, end = (choices.start + at for at in spans[position])
        raw = raw[:start] + _render_change(raw[start:end], holder, changes[position]) + raw[end:]
    return raw


def _render_change(choice: bytes, holder: str, change: ChoicePatch) -> bytes:
    inner = json_spans.read_value(choice, holder)
    if inner is None:
        raise ValueError(f"no {holder}")
    if change.text is not None:
        inner = json_spans.set_member(inner, "content", write_json(change.text))
    if change.kept_calls is not None:
        inner = _with_calls(inner, change.kept_calls)
        logged = json_spans.read_value(choice, "logprobs")
        if logged is not None and logged != b"null":  # the tokens of a call may be among them
            choice = json_spans.set_member(choice, "logprobs", b"null")
    if change.removes_role:
        inner = json_spans.remove_member(inner, "role")
    choice = json_spans.set_member(choice, holder, inner)
    if change.finish_json is not None:
        choice = json_spans.set_member(choice, "finish_reason", change.finish_json)
    return choice


def _with_calls(inner: bytes, calls: list[tuple[int, int | None]]) -> bytes:
    if not calls:
        return json_spans.remove_member(inner, "tool_calls")
    raw = json_spans.read_value(inner, "tool_calls")
    spans = None if raw is None else json_spans.find_elements(raw)
    if raw is None or spans is None:
        raise ValueError("no tool calls")
    kept = []
    for place, index in calls:
        part = raw[slice(*spans[place])]
        kept.append(part if index is None else json_spans.set_member(part, "index", b"%d" % index))
    return json_spans.set_member(inner, "tool_calls", b"[" + b",".join(kept) + b"]")


def _rewrite(choice: dict[str, Any], holder: str, change: ChoicePatch) -> None:
    inner = choice[holder]
    if change.text is not None:
        inner["content"] = change.text
    if change.kept_calls is not None:
        parts = inner.pop("tool_calls")
        kept = [
            parts[place] if index is None else {**parts[place], "index": index} for place, index in change.kept_calls
        ]
        if kept:
            inner["tool_calls"] = kept
        if choice.get("logprobs"):
            choice["logprobs"] = None
    if change.removes_role:
        inner.pop("role", None)
    if change.finish_json is not None:
        choice["finish_reason"] = read_json(change.finish_json)


def replace_visible_text(data: bytes, choices: list[Choice], visible_texts: dict[int, str]) -> bytes:
    """Return the chunk with other texts. If `content` occurs only once in it, the member is found by a byte search."""
    at = data.find(_CONTENT)
    if len(choices) == 1 and at >= 0 and data.find(_CONTENT, at + 1) < 0:
        start = data.find(b'"', at + len(_CONTENT))
        if start >= 0 and not data[at + len(_CONTENT) : start].strip(b" :"):
            end = _find_string_end(data, start)
            if json_spans.decode_string(data[start:end]) == (choices[0].delta or {}).get("content"):
                return data[:start] + write_json(visible_texts[0]) + data[end:]
    return replace_texts(data, "delta", visible_texts)


def _find_string_end(data: bytes, start: int) -> int:
    """Return the position after the JSON string that begins at `start`."""
    end = start
    while (end := data.find(b'"', end + 1)) >= 0:
        escape = end
        while data[escape - 1] == _BACKSLASH:
            escape -= 1
        if (end - escape) % 2 == 0:
            return end + 1
    return len(data)


def remove_null_usage(data: bytes) -> bytes:
    """Return the chunk without its member `usage`, which is null."""
    if data.count(_USAGE) == 1:  # then it is the chunk's own member, not a nested one
        for form in (b',"usage":null', b', "usage": null', b',"usage": null'):
            at = data.find(form)
            if at >= 0:
                return data[:at] + data[at + len(form) :]
    return remove_usage(data)


def remove_usage(data: bytes) -> bytes:
    """Return the chunk without its member `usage`."""
    try:
        return json_spans.remove_member(data, "usage")
    except ValueError:
        value = read_json(data)
        value.pop("usage", None)
        return write_json(value)


def read_response_head(data: bytes) -> dict[str, bytes]:
    """Return the members that must be the same on all chunks of an answer, as JSON; {} if this chunk has none."""
    return {
        one.key: data[one.start : one.end]
        for one in json_spans.find_members(data) or ()
        if one.key in RESPONSE_HEAD_FIELDS
    }


def set_response_head(data: bytes, head: dict[str, bytes]) -> bytes:
    """Return the chunk or body with the members of another chunk (`read_response_head`), where it has them."""
    members = json_spans.find_members(data)
    if members is None:
        value = read_json(data)
        if not isinstance(value, dict):
            return data
        return write_json({key: read_json(head[key]) if key in head else member for key, member in value.items()})
    for member in reversed(members):
        new = head.get(member.key)
        if new is not None:
            data = data[: member.start] + new + data[member.end :]
    return data


def set_only_choice(data: bytes, choice: dict[str, Any], *, drop_usage: bool) -> bytes:
    """Return the chunk with this as its only choice and without its usage, because the rest of the chunk goes out
    later.

    drop_usage: a `usage` of null is removed too.
    """
    choices = write_json([choice])
    try:
        usage = json_spans.read_value(data, "usage")
        data = json_spans.set_member(data, "choices", choices)
        if usage is not None and (usage != b"null" or drop_usage):
            data = json_spans.remove_member(data, "usage")
    except ValueError:
        return b'{"object":"chat.completion.chunk","choices":' + choices + b"}"
    return data


def add_spent_usage(usage: Any, spent: dict[str, Any]) -> Any:
    """Return a usage object plus the completion tokens of earlier rounds; the rest is the last round's."""
    if not isinstance(usage, dict) or not spent:
        return usage
    total = dict(usage)
    before = spent.get("completion_tokens", 0)
    for name in ("completion_tokens", "total_tokens"):
        own = read_count(total.get(name))
        if own is not None:
            total[name] = own + before
    details = spent.get("completion_tokens_details")
    if details:
        known = total.get("completion_tokens_details")
        known = known if isinstance(known, dict) else {}
        sums = {name: (read_count(known.get(name)) or 0) + size for name, size in details.items()}
        total["completion_tokens_details"] = {**known, **sums}
    return total


def sum_spent_usage(usage: Any, spent: dict[str, Any]) -> dict[str, Any]:
    """Return what `add_spent_usage` has to add after a round with this usage. spent: the same before it."""
    if not isinstance(usage, dict):
        return spent
    details = usage.get("completion_tokens_details")
    sums = dict(spent.get("completion_tokens_details") or {})
    for name, size in (details if isinstance(details, dict) else {}).items():
        sums[name] = sums.get(name, 0) + (read_count(size) or 0)
    own = read_count(usage.get("completion_tokens")) or 0
    return {"completion_tokens": spent.get("completion_tokens", 0) + own, "completion_tokens_details": sums}
