"""Hidden tool calls in answers of chat completions that are one body, with the result that `completions_relay` gives.

`read_round` reads what upstream asks for in one body. `join_rounds` makes one body for the client from the bodies of
all rounds. The last body is changed, at the spans in question. Text and other fields of earlier rounds come before its
own, as in a stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from proxy.chat import json_spans
from proxy.dialects.completions.stream import read_any_json, set_json, write_json
from proxy.dialects.usage import Usage
from proxy.stream import completions_patch as patch
from proxy.stream.block_filter import remove_blocks
from proxy.stream.completions_answer import (
    CAPTURE_LIMIT,
    AssembledAnswer,
    CaptureLimit,
    build_json_value,
    merge_fields,
)
from proxy.stream.tool_call_filter import RUNNABLE_REASONS, HiddenCall, choose_finish_reason, make_call_id


class RoundContent(msgspec.Struct, frozen=True):
    """The content of one body."""

    message: bytes | None
    """The message of the first choice, as upstream should get it back."""
    hidden_calls: list[HiddenCall]
    """The calls of the proxy's tools, none if the answer did not end well."""
    shown_calls: int
    """The number of calls of the client."""
    goes_on: bool
    """All calls are hidden ones."""
    usage: Usage | None
    """The usage of this body alone."""


def may_call(body: bytes, hidden_tools: frozenset[str]) -> bool:
    """True if a body can hold a call of these tools. False is certain; the search is over bytes."""
    return b"\\u" in body or any(name.encode() in body for name in hidden_tools)


def read_round(body: bytes, hidden_tools: frozenset[str], headings: tuple[str, ...] = ()) -> RoundContent:
    """Return what upstream says and asks for in one body. headings: blocks under them are left out of the message."""
    body = remove_blocks(body, headings)[0] if headings else body
    answer = AssembledAnswer.from_body(body, max(CAPTURE_LIMIT, len(body)))
    message, calls = answer.build_message(), answer.calls
    hidden_places = {place for place, call in enumerate(calls) if call.name in hidden_tools}
    shown_count = len(calls) - len(hidden_places)
    reason = answer.finish_reasons.get(0)
    is_runnable = answer.error is None and answer.choice_count == 1 and (reason is None or reason in RUNNABLE_REASONS)
    if message is None or not hidden_places or not is_runnable:
        return RoundContent(message, [], shown_count, goes_on=False, usage=answer.usage)
    ids = _make_call_ids(f"{answer.id} {answer.text}", [call.id for call in calls], hidden_places)
    hidden_calls = [
        HiddenCall(ids[place], calls[place].name, calls[place].arguments) for place in sorted(hidden_places)
    ]
    new_ids = {place: ids[place] for place in hidden_places if ids[place] != calls[place].id}
    return RoundContent(
        _set_call_ids(message, new_ids) if new_ids else message,
        hidden_calls,
        shown_count,
        not shown_count,
        answer.usage,
    )


def join_rounds(bodies: Sequence[bytes], hidden_tools: frozenset[str]) -> bytes:
    """Return the one body for the client: without hidden calls, with the text of earlier rounds and the first one's id.

    bodies: of the rounds in their order, with blocks already removed; at least one. Completion tokens are those of all
    rounds, prompt tokens the last round's. A last body that cannot be read is returned as it is.
    """
    last = bodies[-1]
    value = read_any_json(last)
    choices = value.get("choices") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(choices, list):
        return last
    changes: dict[int, patch.ChoicePatch] = {}
    for place, choice in enumerate(choices):
        change = _remove_hidden_calls(choice, hidden_tools) if isinstance(choice, dict) else None
        if change is not None:
            changes[place] = change
    body = patch.patch_choices(last, "message", changes)
    if len(bodies) == 1:
        return body
    earlier_usage: dict[str, Any] = {}
    earlier_messages: list[dict[str, Any]] = []
    for earlier_body in bodies[:-1]:
        earlier = read_any_json(earlier_body)
        earlier = earlier if isinstance(earlier, dict) else {}
        earlier_usage = patch.sum_spent_usage(earlier.get("usage"), earlier_usage)
        earlier_messages += _list_messages(earlier)[:1]
    body = _prepend_fields(body, earlier_messages)
    if isinstance(value.get("usage"), dict):
        body = set_json(body, "usage", patch.add_spent_usage(value["usage"], earlier_usage))
    return patch.set_response_head(body, patch.read_response_head(bodies[0]))


def _remove_hidden_calls(choice: dict[str, Any], hidden: frozenset[str]) -> patch.ChoicePatch | None:
    message = choice.get("message")
    calls = message.get("tool_calls") if isinstance(message, dict) else None
    if not isinstance(calls, list):
        return None
    kept = [place for place, call in enumerate(calls) if _read_call_name(call) not in hidden]
    if len(kept) == len(calls):
        return None
    change = patch.ChoicePatch(
        kept_calls=[(place, n if _has_index(calls[place]) else None) for n, place in enumerate(kept)]
    )
    reason = choice.get("finish_reason")
    shown_reason = choose_finish_reason(reason, len(kept)) if isinstance(reason, str) else reason
    if shown_reason != reason:
        change.finish_json = write_json(shown_reason)
    return change


def _has_index(call: Any) -> bool:
    return isinstance(call, dict) and "index" in call


def _read_call_name(call: Any) -> str:
    inner = (call.get("function") or call.get("custom")) if isinstance(call, dict) else None
    name = inner.get("name") if isinstance(inner, dict) else None
    return name if isinstance(name, str) else ""


def _list_messages(value: dict[str, Any]) -> list[dict[str, Any]]:
    choices = value.get("choices")
    found = [one.get("message") for one in choices if isinstance(one, dict)] if isinstance(choices, list) else []
    return [one for one in found if isinstance(one, dict)]


def _prepend_fields(body: bytes, earlier_messages: list[dict[str, Any]]) -> bytes:
    """Return the body with the fields of earlier messages before the fields of its own message."""
    value = read_any_json(body)
    own_messages = _list_messages(value)[:1] if isinstance(value, dict) else []
    if not own_messages:
        return body
    fields: dict[str, Any] = {}
    earlier_bytes = sum(len(write_json(message)) for message in earlier_messages)
    room = CaptureLimit(len(body) + earlier_bytes + CAPTURE_LIMIT)
    for message in [*earlier_messages, *own_messages]:
        merge_fields(fields, {k: v for k, v in message.items() if k not in ("content", "tool_calls")}, room)
    joined = {name: build_json_value(field_value) for name, field_value in fields.items()}
    joined["content"] = _join_contents([message.get("content") for message in [*earlier_messages, *own_messages]])
    new = {name: field_value for name, field_value in joined.items() if field_value != own_messages[0].get(name)}
    try:
        start, end = _find_first_message(body)
        raw = body[start:end]
        for name, field_value in new.items():
            raw = json_spans.set_member(raw, name, write_json(field_value))
        return body[:start] + raw + body[end:]
    except ValueError:
        own_messages[0].update(new)
        return write_json(value)


def _find_first_message(body: bytes) -> tuple[int, int]:
    """Return the span of the first choice's message. Raises ValueError if it cannot be found."""
    choices = json_spans.find_member(body, "choices")
    spans = json_spans.find_elements(body[choices.start : choices.end]) if choices else None
    if not choices or not spans:
        raise ValueError("no choices")
    start, end = (choices.start + at for at in spans[0])
    message = json_spans.find_member(body[start:end], "message")
    if message is None:
        raise ValueError("no message")
    return start + message.start, start + message.end


def _join_contents(contents: list[Any]) -> Any:
    """Join several contents into one: a text, or parts if one of them has parts; None if there is none at all."""
    present = [content for content in contents if content is not None]
    if all(isinstance(content, str) for content in present):
        return "".join(present) if present else None
    parts: list[Any] = []
    for content in present:
        if isinstance(content, list):
            parts += content
        elif content:
            parts.append({"type": "text", "text": content})
    return parts


def _make_call_ids(seed: str, ids: list[str], hidden_places: set[int]) -> list[str]:
    """Return the ids of all calls. A hidden call gets a new id if it has none, or if its id is taken."""
    taken = {call_id for place, call_id in enumerate(ids) if place not in hidden_places}
    unique_ids = list(ids)
    for place in sorted(hidden_places):
        if not unique_ids[place] or unique_ids[place] in taken:
            unique_ids[place] = make_call_id(seed, place)
        taken.add(unique_ids[place])
    return unique_ids


def _set_call_ids(message: bytes, ids: dict[int, str]) -> bytes:
    """Return the message with these ids, by the place of the call."""
    raw = json_spans.read_value(message, "tool_calls")
    spans = json_spans.find_elements(raw) if raw is not None else None
    try:
        if raw is None or spans is None:
            raise ValueError("no calls")
        calls = [raw[start:end] for start, end in spans]
        for place, new in ids.items():
            calls[place] = json_spans.set_member(calls[place], "id", write_json(new))
        return json_spans.set_member(message, "tool_calls", b"[" + b",".join(calls) + b"]")
    except ValueError:
        value = read_any_json(message)
        for place, new in ids.items():
            value["tool_calls"][place]["id"] = new
        return write_json(value)
