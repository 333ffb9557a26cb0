"""Writing canonical messages back into a Messages body: client messages keep their bytes wherever nothing changed.

Tool results of one step stand in one user message, in front of any text (rules M8 and M9 of `rules`). So a message of
the proxy joins the client's message at its place; it stands alone only if there is none.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec

from proxy.chat import json_spans
from proxy.dialects import spans
from proxy.dialects.completions.request import read_changed_arguments, read_tool_function
from proxy.dialects.known_prefix import HistoryMemo
from proxy.dialects.messages.blocks import (
    MessageUnit,
    make_answer_blocks,
    make_result_block,
)
from proxy.dialects.part_edits import (
    check_same_place,
    clear_text,
    edit_parts,
    make_text_part,
    read_parts,
    rewrite_parts,
)
from proxy.dialects.written_history import OutgoingMessage, WrittenHistory, find_units, view_array, write_array

SYSTEM_PLACE = -1
"""Place of the canonical message that was read from `system`."""

_ROLE = re.compile(rb'\{"role":"(\w+)"')

Units = Sequence[tuple[int, MessageUnit]]
"""All canonical messages of a request, each with the index of the wire message that it was read from."""


class WireBody(NamedTuple):
    """A body as the client wrote it, and the places of its contents."""

    raw: bytes
    members: dict[str, spans.Span]
    """Spans of the top-level values."""
    places: Sequence[spans.Span]
    """Spans of the wire messages."""
    units: Units

    def cut_message(self, place: int) -> bytes:
        """The bytes of a wire message."""
        start, end = self.places[place]
        return self.raw[start:end]


@dataclass(slots=True)
class _Draft:
    """One wire message to send."""

    place: int | None
    """The index of the client's message, None for one of the proxy."""
    role: str
    first: int
    """Index of the first outgoing message in it."""
    messages: dict[int, bytes] = field(default_factory=dict)
    """The canonical messages of the client that it has, by the index of the unit."""
    results: list[tuple[int, bytes]] = field(default_factory=list)
    """Result blocks to insert, each with the index of the block that it follows (-1: none)."""
    texts: list[tuple[int, bytes]] = field(default_factory=list)
    """Other blocks to insert, in the same way."""
    content: bytes = b""
    """The content of a message of the proxy that cannot be joined."""
    extra_members: bytes = b""
    """Further members of a message of the proxy."""
    last_result: int = -1
    last_block: int = -1
    has_edit: bool = False
    """True if one of the messages has other bytes than the client's."""


def write_body(
    wire: WireBody,
    outgoing: Sequence[OutgoingMessage],
    tools: bytes = b"",
    *,
    memo: HistoryMemo | None = None,
    stable: int = 0,
) -> bytes:
    """The body with these messages. tools: definitions to add, in the form of chat completions, with commas between.

    memo: the beginning of the history as it was written before is not written again; what is written now is noted in
    it. stable: the number of wire messages that the next body of the history begins with. Raises ValueError for a
    change that may not be made: of `system`, of an answer, of anything but text.
    """
    replacements: list[spans.Replacement] = []
    if tools:
        replacements.append(_add_tools(wire, tools))
    body, units = wire.raw, wire.units
    is_unchanged = len(outgoing) == len(units) and all(
        source == n and raw == units[n][1].chat for n, (source, raw) in enumerate(outgoing)
    )
    if is_unchanged:
        return spans.apply_replacements(body, replacements) if replacements else body
    known = memo.written.find_beginning(outgoing) if memo is not None and memo.written is not None else None
    drafts, system = _draft_messages(units, outgoing, known)
    replacements += _write_system(wire, system)
    begin = find_unit(units, units[known.newest_source][0]) if known is not None and known.newest_source >= 0 else 0
    counts = Counter(place for place, _ in units[begin:])
    new_messages = [
        (draft.first, draft.place, _read_whole(wire, counts, draft) or _write_draft(wire, draft)) for draft in drafts
    ]
    span = wire.members["messages"]
    array, elements = write_array(body, span, wire.places, [one for one in new_messages if one[2]], known)
    replacements.append((*span, array))
    written = spans.apply_replacements(body, replacements)
    if memo is not None:
        memo.written = WrittenHistory(view_array(written, span, replacements, elements), outgoing, elements, stable)
    return written


# The outgoing messages, sorted into wire messages.


def _draft_messages(
    units: Units, outgoing: Sequence[OutgoingMessage], known: WrittenHistory | None
) -> tuple[list[_Draft], list[OutgoingMessage]]:
    """(the wire messages to send behind those that are written already, the changes of `system`)."""
    drafts: list[_Draft] = []
    system: list[OutgoingMessage] = []
    last_source, indices = -1, [*range(len(outgoing))]
    begin = len(known.outgoing) if known is not None else 0
    if known is not None:
        indices = [*range(known.elements[0].first), *range(begin, len(outgoing))]
    for at in indices:
        source, raw = outgoing[at]
        if at == begin and known is not None:
            last_source = known.newest_source
        if source is None:
            role = _read_role(raw)
            if role in ("system", "developer") and not drafts and (known is None or at < begin):
                system.append((None, raw))
            else:
                _draft_proxy_message(drafts, units, outgoing, at, role)
            continue
        if source <= last_source:
            raise ValueError("the client's messages are out of order")
        last_source = source
        place, unit = units[source]
        is_edited = raw != unit.chat
        if is_edited:
            check_same_place(unit.chat, raw)
        if place == SYSTEM_PLACE:
            system.append((source, raw))
            continue
        if not drafts or drafts[-1].place != place:
            drafts.append(_Draft(place, _read_role(unit.chat), at))
        draft = drafts[-1]
        draft.role = "user" if draft.role == "tool" else draft.role
        draft.messages[source] = raw
        draft.has_edit = draft.has_edit or is_edited
        draft.last_block = max(draft.last_block, *unit.blocks, 0)
        if unit.is_result:
            draft.last_result = max(draft.last_result, *unit.blocks)
    return drafts, system


def _read_role(chat: bytes) -> str:
    written = _ROLE.match(chat)  # as the proxy writes its canonical messages
    if written is not None:
        return written[1].decode()
    return json_spans.decode_string(json_spans.read_value(chat, "role") or b"") or ""


def _draft_proxy_message(
    drafts: list[_Draft], units: Units, outgoing: Sequence[OutgoingMessage], at: int, role: str
) -> None:
    """Give a message of the proxy its place."""
    raw = outgoing[at][1]
    current = drafts[-1] if drafts else None
    if role == "assistant":
        drafts.append(_Draft(None, role, at, content=make_answer_blocks(raw)))
    elif role == "tool":
        if current is None or current.role != "user":
            current = _Draft(_find_results_place(units, outgoing, at), "user", at)
            drafts.append(current)
        current.results.append((current.last_result, make_result_block(raw)))
    elif role == "user":
        if current is None or current.role not in ("user", "system"):
            current = _Draft(None, "user", at)
            drafts.append(current)
        current.texts += [(current.last_block, block) for block in read_parts(raw)]
    elif role in ("system", "developer"):
        clear_mark = json_spans.read_value(raw, "clear_at")
        extra_members = b"" if clear_mark is None else b',"clear_at":' + clear_mark
        drafts.append(
            _Draft(None, "system", at, content=b"[" + b",".join(read_parts(raw)) + b"]", extra_members=extra_members)
        )
    else:
        raise ValueError(f"a message of the role {role!r}")


def _find_results_place(units: Units, outgoing: Sequence[OutgoingMessage], at: int) -> int | None:
    """The place of the client's results message that a result of the proxy comes before; None if none follows."""
    for source, raw in outgoing[at + 1 :]:
        if source is not None:
            place, unit = units[source]
            return place if unit.is_result else None
        if _read_role(raw) != "tool":
            return None
    return None


# One wire message.


def _read_whole(wire: WireBody, counts: Mapping[int, int], draft: _Draft) -> bytes:
    """The client's bytes of a wire message to which nothing happens; b"" for any other.

    Most messages of a long prompt are of this kind. counts: the number of canonical messages of each wire message.
    """
    if draft.place is None or draft.has_edit or draft.results or draft.texts:
        return b""
    return wire.cut_message(draft.place) if len(draft.messages) == counts[draft.place] else b""


def _write_draft(wire: WireBody, draft: _Draft) -> bytes:
    """The bytes of one wire message; b"" if nothing of it is left."""
    if draft.place is None:
        blocks = [block for _, block in (*draft.results, *draft.texts)]
        content = draft.content or b"[" + b",".join(blocks) + b"]"
        return b'{"role":"' + draft.role.encode() + b'","content":' + content + draft.extra_members + b"}"
    raw = wire.cut_message(draft.place)
    units = {n: unit for n, (place, unit) in find_units(wire.units, draft.place, itemgetter(0))}
    span = spans.read_members(raw)["content"]
    content = raw[span[0] : span[1]]
    if draft.role == "assistant":
        new_content = _write_answer(draft, units, content)
    elif content[:1] == b'"':
        new_content = _write_string(draft, units, content)
    else:
        new_content = _write_blocks(draft, units, content)
    return raw[: span[0]] + new_content + raw[span[1] :] if new_content else b""


def find_unit(units: Units, place: int) -> int:
    """The index of the first canonical message of this wire message or a later one. Places only grow."""
    return bisect_left(units, place, key=itemgetter(0))


def _write_answer(draft: _Draft, units: dict[int, MessageUnit], content: bytes) -> bytes:
    ((index, edited),) = draft.messages.items()
    if edited == units[index].chat:
        return content
    if json_spans.find_member(edited, "wire") is None:
        arguments = read_changed_arguments(units[index].chat, edited)
        if arguments is None:
            raise ValueError("an answer of the model is never edited, but for the arguments of its calls")
        return _write_arguments(content, arguments)
    return make_answer_blocks(edited)


def _write_arguments(content: bytes, arguments: Sequence[str | None]) -> bytes:
    """The blocks of an answer with other arguments in its calls; None in `arguments` for a call that stays."""
    elements = spans.read_elements(content)
    blocks = [content[start:end] for start, end in elements]
    calls = [n for n, block in enumerate(blocks) if json_spans.read_value(block, "type") == b'"tool_use"']
    for n, text in zip(calls, arguments, strict=True):
        if text is not None:
            if not isinstance(spans.read_any(text.encode()), dict):
                raise ValueError("the arguments of a tool call are no object")
            blocks[n] = json_spans.set_member(blocks[n], "input", text.encode())
    return spans.rewrite_array(content, (0, len(content)), elements, list(enumerate(blocks)))


def _write_string(draft: _Draft, units: dict[int, MessageUnit], content: bytes) -> bytes:
    """The content of a message that is a string: a list where blocks are inserted, or text behind a system message.

    The client may write that system message as a list in another request, for its cache mark. The same blocks have to
    stand behind both, since reasoning is bound to them.
    """
    ((index, unit),) = units.items()
    blocks: list[bytes] = []
    edited = draft.messages.get(index)
    if edited is not None:
        text = (
            content
            if edited == unit.chat
            else _read_new_string(edited, is_appended=draft.role == "system", old=content)
        )
        blocks = _split_appended(content, text) if draft.role == "system" else [make_text_part(text)]
        if len(blocks) == 1 and not draft.results and not draft.texts:
            return text
    inserted = [block for _, block in draft.results], [block for _, block in draft.texts]
    return b"[" + b",".join((*inserted[0], *blocks, *inserted[1])) + b"]" if blocks or any(inserted) else b""


def _split_appended(old: bytes, new: bytes) -> list[bytes]:
    """The text blocks of a string: the client's own, and one for text that was appended to it."""
    before, after = json_spans.decode_string(old) or "", json_spans.decode_string(new) or ""
    if not before.strip() or before == after or not after.startswith(before):
        return [make_text_part(new)]
    return [make_text_part(old), make_text_part(spans.encode_visible(after[len(before) :]))]


def _read_new_string(chat: bytes, *, is_appended: bool, old: bytes) -> bytes:
    """The JSON string that takes the place of a string. is_appended: the text may only have become longer."""
    content = json_spans.read_value(chat, "content") or b""
    text = json_spans.decode_string(content) if content[:1] == b'"' else None
    if text is None:
        raise ValueError("text has become something else")
    if is_appended and not text.startswith(json_spans.decode_string(old) or ""):
        raise ValueError("a system message is never edited")
    return content if text.strip() else spans.encode_visible(text)


def _write_blocks(draft: _Draft, units: dict[int, MessageUnit], content: bytes) -> bytes:
    """The content of a message that is a list of blocks; b"" if no block is left."""
    elements = spans.read_elements(content)
    blocks: list[bytes | None] = [content[start:end] for start, end in elements]
    texts = list(draft.texts)
    for n, unit in units.items():
        edited_message, old_blocks = draft.messages.get(n), [content[slice(*elements[index])] for index in unit.blocks]
        if edited_message == unit.chat:
            continue
        edited: Sequence[bytes | None] = [None] * len(old_blocks)
        if edited_message is not None and unit.is_result:
            edited = [_edit_result(old_blocks[0], unit.chat, edited_message)]
        elif edited_message is not None:
            edited, appended = edit_parts(old_blocks, edited_message, is_appended=draft.role == "system")
            texts[:0] = [(max(unit.blocks, default=-1), block) for block in appended]
        for index, block in zip(unit.blocks, edited, strict=True):
            blocks[index] = block
    return rewrite_parts(content, (0, len(content)), elements, blocks, [*draft.results, *texts])


def _edit_result(block: bytes, old: bytes, new: bytes) -> bytes:
    """A result block with another text. The number of blocks in it stays, and so do its id, marks and images."""
    members = spans.read_members(block)
    content = json_spans.read_value(new, "content") or b""
    if content[:1] == b'"':  # also in place of a list: the whole content was replaced
        text = _read_new_string(new, is_appended=False, old=b"")
    else:
        parts = read_parts(old) if "content" in members else []
        edited, appended = edit_parts(parts, new, is_appended=False)
        new_parts = [
            clear_text(part) if edited_part is None else edited_part
            for part, edited_part in zip(parts, edited, strict=True)
        ]
        text = b"[" + b",".join((*new_parts, *appended)) + b"]"
    if "content" not in members:
        return spans.apply_replacements(block, [spans.append_member(block, (0, len(block)), "content", text)])
    start, end = members["content"]
    return block[:start] + text + block[end:]


# `system` and `tools`.


def _write_system(wire: WireBody, system: Sequence[OutgoingMessage]) -> list[spans.Replacement]:
    """The changes of `system`: text is appended, nothing else."""
    body, members, units = wire.raw, wire.members, wire.units
    has_system = bool(units) and units[0][0] == SYSTEM_PLACE
    if has_system and not any(source is not None for source, _ in system):
        raise ValueError("the system prompt is never removed")
    span = members.get("system") if has_system else None
    prompt = body[span[0] : span[1]] if span else b""
    new_prompt = prompt
    for source, raw in system:
        if source is None:
            added = b",".join(read_parts(raw))
            if not new_prompt:
                new_prompt = b"[" + added + b"]"
            elif new_prompt[:1] == b'"':
                new_prompt = b"[" + make_text_part(new_prompt) + b"," + added + b"]"
            else:
                new_prompt = spans.apply_replacements(
                    new_prompt, [spans.append_element(new_prompt, (0, len(new_prompt)), added)]
                )
        elif raw != units[0][1].chat:
            new_prompt = _append_to_system(prompt, raw)
    if new_prompt == prompt:
        return []
    if span is not None:
        return [(*span, new_prompt)]
    if "system" in members:  # null, or an empty list
        return [(*members["system"], new_prompt)]
    return [spans.append_member(body, (0, len(body)), "system", new_prompt)]


def _append_to_system(old: bytes, chat: bytes) -> bytes:
    if old[:1] == b'"':
        return _read_new_string(chat, is_appended=True, old=old)
    parts = [old[start:end] for start, end in spans.read_elements(old)]
    _, appended = edit_parts(parts, chat, is_appended=True)
    return spans.apply_replacements(old, [spans.append_element(old, (0, len(old)), b",".join(appended))])


def _add_tools(wire: WireBody, tools: bytes) -> spans.Replacement:
    made = b",".join(_convert_tool(one) for one in msgspec.json.decode(b"[" + tools + b"]"))
    return spans.extend_array(wire.raw, wire.members, "tools", made)


def _convert_tool(tool: Any) -> bytes:
    """A chat definition as this wire format has it. Raises ValueError if it is none of a function."""
    function = read_tool_function(tool)
    definition = {"name": function["name"]}
    if "description" in function:
        definition["description"] = function["description"]
    return msgspec.json.encode({**definition, "input_schema": function.get("parameters") or {"type": "object"}})
