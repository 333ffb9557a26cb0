"""Answers of the Messages dialect that are one body, with the result that `messages_relay` gives for a stream.

`remove_blocks` takes withheld text out of a body. `read_round` reads the calls of an answer. `join_rounds` makes one
body for the client from the bodies of all rounds. The last body is changed, at the spans in question."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from proxy.chat import json_spans
from proxy.dialects import spans
from proxy.dialects.completions.stream import read_any_json, set_json, write_json
from proxy.dialects.messages.stream import CUT_REASONS, RUNNABLE_REASONS, add_spent_usage, choose_stop_reason
from proxy.notes import state_block
from proxy.stream.completions_body import RoundContent
from proxy.stream.messages_answer import MessagesAnswer, read_call
from proxy.stream.tool_call_filter import HiddenCall


def remove_blocks(
    body: bytes, headings: tuple[str, ...] = state_block.HEADINGS
) -> tuple[bytes, list[state_block.NoteBlock]]:
    """Return (the body without such blocks, the blocks). A text that was nothing else leaves with its content block.

    A body that cannot be read is returned as it is.
    """
    if not state_block.may_have_blocks(body, headings):
        return body, []
    value = read_any_json(body)
    blocks: list[state_block.NoteBlock] = []
    texts: dict[int, str] = {}
    content = _list_blocks(value)
    is_cut = isinstance(value, dict) and value.get("stop_reason") in CUT_REASONS
    for n, block in enumerate(content):
        text = block.get("text")
        if block.get("type") != "text" or not isinstance(text, str):
            continue
        visible, blocks_of_text = state_block.split_blocks(text, headings, is_cut_off=is_cut and n == len(content) - 1)
        if blocks_of_text:
            texts[n] = visible
            blocks += blocks_of_text
    if not blocks:
        return body, []
    kept = [n for n in range(len(content)) if texts.get(n) != ""]
    return _with_content(body, value, kept, texts), blocks


def read_round(body: bytes, hidden_tools: frozenset[str], headings: tuple[str, ...] = ()) -> RoundContent:
    """Return what upstream says and asks for in one body. headings: as for `MessagesAnswer.build_round_message`."""
    answer = MessagesAnswer.from_body(body)
    calls = [read_call(block) for block in answer.blocks if block.kind == "tool_use"]
    ours = [call for call in calls if call.name in hidden_tools]
    shown = len(calls) - len(ours)
    message = answer.build_round_message(headings)
    ids = {call.id for call in calls}
    is_sound = answer.error is None and (not answer.stop_reason or answer.stop_reason in RUNNABLE_REASONS)
    if message is None or not ours or not is_sound or "" in ids or len(ids) < len(calls):
        return RoundContent(message, [], shown, goes_on=False, usage=answer.usage)
    hidden = [HiddenCall(call.id, call.name, call.arguments) for call in ours]
    return RoundContent(message, hidden, shown, not shown, answer.usage)


def join_rounds(bodies: Sequence[bytes], hidden_tools: frozenset[str]) -> bytes:
    """Return the one body for the client: the content of all rounds without hidden calls, and the first one's id.

    bodies: of the rounds in their order, with blocks already removed; at least one. Output tokens are those of all
    rounds, input tokens the last round's. A last body that cannot be read is returned as it is.
    """
    last = bodies[-1]
    values = [read_any_json(body) for body in bodies]
    value = values[-1]
    if not isinstance(value, dict) or not isinstance(value.get("content"), list):
        return last
    own = _list_blocks(value)
    kept = [n for n, block in enumerate(own) if not _is_hidden(block, hidden_tools)]
    before = [
        raw
        for earlier_body, earlier_value in zip(bodies[:-1], values[:-1], strict=True)
        for raw in _cut_shown(earlier_body, earlier_value, hidden_tools)
    ]
    if not before and len(kept) == len(own) and len(bodies) == 1:
        return last
    body = _with_content(last, value, kept, {}, before)
    reason = value.get("stop_reason")
    if isinstance(reason, str):
        shown = sum(own[n].get("type") == "tool_use" for n in kept)
        body = _set(body, "stop_reason", choose_stop_reason(reason, shown), reason)
    if len(bodies) == 1:
        return body
    spent: dict[str, Any] = {}
    for earlier in values[:-1]:
        usage = earlier.get("usage") if isinstance(earlier, dict) else None
        spent = add_spent_usage(usage if isinstance(usage, dict) else {}, spent)
    if isinstance(value.get("usage"), dict):
        body = _set(body, "usage", add_spent_usage(value["usage"], spent), value["usage"])
    first = values[0] if isinstance(values[0], dict) else {}
    for name in ("id", "model"):
        if isinstance(first.get(name), str):
            body = _set(body, name, first[name], value.get(name))
    return body


def _list_blocks(value: Any) -> list[dict[str, Any]]:
    """The content of a message; blocks that are no objects count as empty ones."""
    content = value.get("content") if isinstance(value, dict) else None
    return [one if isinstance(one, dict) else {} for one in content] if isinstance(content, list) else []


def _is_hidden(block: dict[str, Any], hidden_tools: frozenset[str]) -> bool:
    return block.get("type") == "tool_use" and str(block.get("name")) in hidden_tools


def _cut_shown(body: bytes, value: Any, hidden_tools: frozenset[str]) -> list[bytes]:
    """The blocks of one round that the client gets."""
    blocks = _list_blocks(value)
    try:
        elements = spans.read_elements(body, spans.read_members(body)["content"])
        raws = [body[start:end] for start, end in elements]
    except (ValueError, KeyError):
        raws = [write_json(block) for block in blocks]
    return [raw for raw, block in zip(raws, blocks, strict=True) if not _is_hidden(block, hidden_tools)]


def _with_content(
    body: bytes, value: Any, kept: Sequence[int], texts: dict[int, str], before: Sequence[bytes] = ()
) -> bytes:
    """The body with some of its blocks. texts: by place, new texts. before: blocks that come in front."""
    try:
        span = spans.read_members(body)["content"]
        elements = spans.read_elements(body, span)
        items: list[tuple[int | None, bytes]] = [(None, raw) for raw in before]
        for n in kept:
            raw = body[elements[n][0] : elements[n][1]]
            items.append((n, json_spans.set_member(raw, "text", write_json(texts[n])) if n in texts else raw))
        return body[: span[0]] + spans.rewrite_array(body, span, elements, items) + body[span[1] :]
    except (ValueError, KeyError):  # only Python's own reader accepts this body
        blocks = [{**value["content"][n], "text": texts[n]} if n in texts else value["content"][n] for n in kept]
        return write_json({**value, "content": [*(read_any_json(raw) for raw in before), *blocks]})


def _set(body: bytes, name: str, new: Any, old: Any) -> bytes:
    """The body with another value of one member; unchanged if it has that value."""
    return body if new == old else set_json(body, name, new)
