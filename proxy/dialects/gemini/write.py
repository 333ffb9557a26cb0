"""Writing canonical messages back into a Gemini body: the client's parts keep their bytes wherever nothing changed.

Results of one step stand behind their calls, as many as there are calls. So a message of the proxy joins the client's
content at its place; it stands alone only if there is none.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final, Literal

import msgspec

from proxy.chat import json_spans
from proxy.dialects import spans
from proxy.dialects.completions.request import read_changed_arguments, read_message, read_tool_function
from proxy.dialects.gemini.contents import (
    convert_part,
    find_span,
    find_wire_id,
    make_answer_parts,
    make_result_part,
    make_wire_text,
    read_field,
    read_result_text,
)
from proxy.dialects.part_edits import check_same_place, edit_parts, read_part_text, read_parts, rewrite_parts
from proxy.dialects.written_history import OutgoingMessage, find_units

SYSTEM: Final = -1
"""Place of the canonical message that was read from `systemInstruction`."""
_SIGNATURES: Final = (b'"thoughtSignature"', b'"thought_signature"')
_SPOKEN: Final = frozenset({"error", "output", "result"})
"""Members of a tool's answer that are a text for the model. A remark must not follow another one, as an address."""
_LEFT_OUT: Final = "left_out"
"""Member of a tool's answer that says which media it has no more."""
_UNKNOWN_TO_SCHEMAS: Final = frozenset({"additionalProperties", "$schema", "strict"})
"""Keywords that the `parameters` of a declaration do not take; `parametersJsonSchema` takes them."""


@dataclass(frozen=True, slots=True)
class Unit:
    """One canonical message, and where it was read from.

    place: the index of its content, `SYSTEM` for the system instruction. parts: the indices of its parts in it; empty
    for an answer, and for a system instruction that is a string. places: of an answer, the indices of its contents.
    """

    chat: bytes
    place: int
    parts: tuple[int, ...]
    places: tuple[int, ...]
    kind: Literal["system", "answer", "result", "user"]


@dataclass(slots=True)
class _Draft:
    """One content to send."""

    place: int | None
    """The index of the client's content, None for one of the proxy."""
    is_answer: bool
    messages: dict[int, bytes] = field(default_factory=dict)
    """The canonical messages of the client that it has, by the index of the unit."""
    added_parts: list[tuple[int, bytes]] = field(default_factory=list)
    """Parts of the proxy, each with the index of the client's part that it stands behind (-1: in front of all)."""
    last_part: int = -1
    """The index of the last part of the client's so far."""


def write_body(
    body: bytes,
    members: dict[str, spans.Span],
    units: Sequence[Unit],
    outgoing: Sequence[OutgoingMessage],
    tools: bytes,
) -> bytes:
    """The body with these messages. members: spans of the values beside the contents.

    Raises ValueError for a change that may not be made: of the system instruction, of an answer, of anything but text.
    """
    replacements: list[spans.Replacement] = []
    if tools:
        replacements += _add_tools(body, members, tools)
    if [raw for _, raw in outgoing] != [unit.chat for unit in units] or None in [source for source, _ in outgoing]:
        writer = _Writer(body, members, units)
        for at in range(len(outgoing)):
            writer.add(outgoing, at)
        replacements += writer.finish()
    return spans.apply_replacements(body, replacements) if replacements else body


class _Writer:
    """Sorts outgoing messages into contents, and writes these."""

    def __init__(self, body: bytes, members: dict[str, spans.Span], units: Sequence[Unit]) -> None:
        self._body = body
        self._units = units
        self._members = members
        span = find_span(members, "contents")
        if span is None:
            raise ValueError("no contents")
        self._span = span
        self._places = spans.read_elements(body, span)
        self._is_signed = any(mark in body for mark in _SIGNATURES)
        self._drafts: list[_Draft] = []
        self._system: list[OutgoingMessage] = []
        self._call_names: dict[str, str] = {}
        self._answer = b""
        """The last answer that was given a place."""
        self._last_source = -1

    def add(self, outgoing: Sequence[OutgoingMessage], at: int) -> None:
        """Give an outgoing message its place. outgoing: all of them. at: its index. Raises ValueError for a change that
        the dialect does not allow."""
        source, raw = outgoing[at]
        if source is None:
            self._add_proxy_message(outgoing, at)
            return
        if source <= self._last_source:
            raise ValueError("the client's messages are out of order")
        self._last_source = source
        unit = self._units[source]
        if raw != unit.chat:
            check_same_place(unit.chat, raw)
        if unit.kind == "system":
            self._system.append((source, raw))
            return
        if unit.kind == "answer":
            self._start_answer(raw)
            self._drafts.append(_Draft(unit.place, is_answer=True, messages={source: raw}))
            return
        if not self._drafts or self._drafts[-1].place != unit.place:
            self._drafts.append(_Draft(unit.place, is_answer=False))
        draft = self._drafts[-1]
        draft.messages[source] = raw
        draft.last_part = max(draft.last_part, *unit.parts, -1)

    def _start_answer(self, chat: bytes) -> None:
        """Take an answer as the last one, and remember the names of its calls: results have to repeat them."""
        self._answer = chat
        for call in read_message(chat).calls:
            self._call_names[call.id] = call.name

    def _add_proxy_message(self, outgoing: Sequence[OutgoingMessage], at: int) -> None:
        """Give a message of the proxy its place: in a content of the client's where roles have to take turns."""
        raw = outgoing[at][1]
        message = read_message(raw)
        current = self._drafts[-1] if self._drafts and not self._drafts[-1].is_answer else None
        if message.role in ("system", "developer"):
            if self._drafts:
                raise ValueError("a system message among the contents")
            self._system.append((None, raw))
        elif message.role == "assistant":
            self._start_answer(raw)
            parts = make_answer_parts(raw, is_signed=self._is_signed)
            self._drafts.append(_Draft(None, is_answer=True, added_parts=[(-1, part) for part in parts]))
        elif message.role == "tool":
            if current is None:
                current = _Draft(self._find_results_place(outgoing, at), is_answer=False)
                self._drafts.append(current)
            name = self._call_names.get(message.call_id or "")
            if name is None:
                raise ValueError("a result without its call")
            wire_id = find_wire_id(self._answer, message.call_id or "")
            current.added_parts.append((current.last_part, make_result_part(raw, name, wire_id)))
        elif message.role == "user":
            if current is None:
                current = _Draft(None, is_answer=False)
                self._drafts.append(current)
            place = current.place
            behind = current.last_part if place is None else self._count_parts(place)
            current.added_parts += [(behind, _to_wire_text(part)) for part in read_parts(raw)]
        else:
            raise ValueError(f"a message of the role {message.role!r}")

    def _find_results_place(self, outgoing: Sequence[OutgoingMessage], at: int) -> int | None:
        """The place of the client's results that a result of the proxy comes before; None if none follows."""
        for source, raw in outgoing[at + 1 :]:
            if source is not None:
                unit = self._units[source]
                return unit.place if unit.kind == "result" else None
            if read_message(raw).role != "tool":
                return None
        return None

    def _count_parts(self, place: int) -> int:
        start, end = self._places[place]
        span = spans.read_members(self._body, (start, end)).get("parts")
        return len(spans.read_elements(self._body, span)) if span is not None else 0

    def finish(self) -> list[spans.Replacement]:
        """The changes of the body. Raises ValueError if no content is left."""
        items: list[tuple[int | None, bytes]] = []
        for draft in self._drafts:
            if draft.place is None:
                role = b"model" if draft.is_answer else b"user"
                parts = b",".join(part for _, part in draft.added_parts)
                items.append((None, b'{"role":"' + role + b'","parts":[' + parts + b"]}"))
            elif draft.is_answer:
                items += self._write_answer(draft)
            elif new := self._write_user(draft, draft.place):
                items.append((draft.place, new))
        if not items:
            raise ValueError("no content is left")
        made = spans.rewrite_array(self._body, self._span, self._places, items)
        return [*self._write_system(), (*self._span, made)]

    def _write_answer(self, draft: _Draft) -> list[tuple[int | None, bytes]]:
        ((index, edited),) = draft.messages.items()
        unit = self._units[index]
        if edited == unit.chat:
            return [(place, self._body[slice(*self._places[place])]) for place in unit.places]
        is_plain = json_spans.find_member(edited, "wire") is None
        if is_plain and read_changed_arguments(unit.chat, edited) is None:
            raise ValueError("an answer of the model is never edited, but for the arguments of its calls")
        parts = b",".join(make_answer_parts(edited, is_signed=self._is_signed and not is_plain))
        return [(unit.place, b'{"role":"model","parts":[' + parts + b"]}")]

    def _write_user(self, draft: _Draft, place: int) -> bytes:
        """One content of the user's; b"" if nothing of it is left."""
        start, end = self._places[place]
        raw = self._body[start:end]
        units = dict(find_units(self._units, place, attrgetter("place")))
        if draft.messages == {n: unit.chat for n, unit in units.items()} and not draft.added_parts:
            return raw
        span = spans.read_members(raw).get("parts")
        if span is None or raw[span[0] : span[0] + 1] != b"[":
            raise ValueError("a content without parts")
        elements = spans.read_elements(raw, span)
        parts: list[bytes | None] = [raw[start:end] for start, end in elements]
        added = list(draft.added_parts)
        for n, unit in units.items():
            edited_message, old_parts = draft.messages.get(n), [raw[slice(*elements[index])] for index in unit.parts]
            if edited_message == unit.chat:
                continue
            edited: Sequence[bytes | None] = [None] * len(old_parts)
            if edited_message is not None and unit.kind == "result":
                edited = [_edit_result(old_parts[0], unit.chat, edited_message)]
            elif edited_message is not None:
                edited, appended = _edit_texts(old_parts, edited_message)
                added[:0] = [(len(elements), part) for part in appended]
            for index, part in zip(unit.parts, edited, strict=True):
                parts[index] = part
        new_parts = rewrite_parts(raw, span, elements, parts, added)
        return raw[: span[0]] + new_parts + raw[span[1] :] if new_parts else b""

    def _write_system(self) -> list[spans.Replacement]:
        """The changes of the system instruction: text is appended, nothing else."""
        has_system = bool(self._units) and self._units[0].kind == "system"
        if has_system and not any(source is not None for source, _ in self._system):
            raise ValueError("the system instruction is never removed")
        added = [_to_wire_text(part) for source, raw in self._system if source is None for part in read_parts(raw)]
        span = find_span(self._members, "systemInstruction")
        instruction = self._body[slice(*span)] if span is not None and has_system else b""
        changed = next((raw for source, raw in self._system if source is not None), b"")
        if has_system and changed != self._units[0].chat:
            if instruction[:1] == b'"':
                return self._change_system(span, _grow_string(instruction, changed), added)
            parts = instruction[slice(*spans.read_members(instruction)["parts"])]
            _, appended = _edit_texts([parts[a:b] for a, b in spans.read_elements(parts)], changed, is_appended=True)
            added = [*appended, *added]
        return self._change_system(span, instruction, added)

    def _change_system(
        self, span: spans.Span | None, instruction: bytes, added: Sequence[bytes]
    ) -> list[spans.Replacement]:
        new = instruction
        if added and instruction[:1] == b"{":
            parts = spans.read_members(instruction).get("parts")
            joined = b",".join(added)
            change = (
                spans.append_member(instruction, (0, len(instruction)), "parts", b"[" + joined + b"]")
                if parts is None
                else spans.append_element(instruction, parts, joined)
            )
            new = spans.apply_replacements(instruction, [change])
        elif added:
            first = [make_wire_text(instruction)] if instruction else []
            new = b'{"parts":[' + b",".join([*first, *added]) + b"]}"
        if span is not None:
            return [(*span, new)] if new and new != self._body[slice(*span)] else []
        if not new:
            return []
        first_key = min(self._members.values())[0]
        at = self._body.rindex(b"{", 0, first_key)
        return [(at + 1, at + 1, b'"systemInstruction":' + new + b",")]


def _grow_string(old: bytes, chat: bytes) -> bytes:
    """The JSON string of a system instruction that was a string and has become longer."""
    content = json_spans.read_value(chat, "content") or b""
    text = json_spans.decode_string(content) if content[:1] == b'"' else None
    if text is None or not text.startswith(json_spans.decode_string(old) or ""):
        raise ValueError("the system instruction is never edited")
    return content


def _to_wire_text(part: bytes) -> bytes:
    """A canonical text part as the wire has it. Raises ValueError if it is no text."""
    text = read_part_text(part)
    if text is None:
        raise ValueError("a part of the proxy's that is no text")
    return make_wire_text(spans.encode_visible(text))


def _edit_texts(
    parts: Sequence[bytes], chat: bytes, *, is_appended: bool = False
) -> tuple[list[bytes | None], list[bytes]]:
    """(for each wire part its new bytes, None if it was removed; the wire parts that were appended)."""
    chat_parts = [convert_part(part) for part in parts]
    edited, appended = edit_parts(chat_parts, chat, is_appended=is_appended)
    wire_parts: list[bytes | None] = []
    for part, before, after in zip(parts, chat_parts, edited, strict=True):
        if after is None or after == before:
            wire_parts.append(None if after is None else part)
        elif read_part_text(before) is None:
            raise ValueError("a part that is no text has changed")
        else:
            wire_parts.append(json_spans.set_member(part, "text", json_spans.read_value(after, "text") or b'""'))
    return wire_parts, [_to_wire_text(part) for part in appended]


def _edit_result(part: bytes, old: bytes, new: bytes) -> bytes:
    """A `functionResponse` part with another text or fewer images. Its id, name and the rest stay."""
    response = read_field(part, "functionResponse") or b""
    content = json_spans.read_value(new, "content") or b""
    remarks: dict[int, str] = {}
    is_same_text = False
    if content[:1] == b"[":
        before = read_parts(old)
        after, appended = edit_parts(before, new, is_appended=False)
        if after[0] is None:
            raise ValueError("a result without its text")
        remarks = {n: read_part_text(one or b"") or "" for n, one in enumerate(after[1:]) if one != before[n + 1]}
        is_same_text = after[0] == before[0] and not appended
        texts = [read_part_text(after[0]), *remarks.values(), *map(read_part_text, appended)]
        content = spans.encode_text("\n".join(text for text in texts if text))
    text = json_spans.decode_string(content)
    if text is None:
        raise ValueError("text has become something else")
    literal = content if text.strip() else spans.encode_visible(text)
    span, _ = read_result_text(response)
    answer = json_spans.read_value(response, "response") or b"{}"
    if remarks and is_same_text and not (span is not None and _SPOKEN & spans.read_members(answer).keys()):
        answer = json_spans.set_member(answer, _LEFT_OUT, spans.encode_text("\n".join(remarks.values())))
        changed = json_spans.set_member(response, "response", answer)
    elif span is not None:
        changed = response[: span[0]] + literal + response[span[1] :]
    else:
        changed = json_spans.set_member(response, "response", b'{"output":' + literal + b"}")
    name = "functionResponse" if json_spans.find_member(part, "functionResponse") else "function_response"
    return json_spans.set_member(part, name, _remove_media(changed, remarks) if remarks else changed)


def _remove_media(response: bytes, indexes: Collection[int]) -> bytes:
    """A `functionResponse` without the media at these indexes of its `parts`."""
    parts = json_spans.read_value(response, "parts") or b"[]"
    kept = [parts[start:end] for n, (start, end) in enumerate(spans.read_elements(parts)) if n not in indexes]
    if not kept:
        return json_spans.remove_member(response, "parts")
    return json_spans.set_member(response, "parts", b"[" + b",".join(kept) + b"]")


def _add_tools(body: bytes, members: dict[str, spans.Span], tools: bytes) -> list[spans.Replacement]:
    """The change that declares more functions: behind the client's own, in its last list of functions."""
    span = find_span(members, "tools")
    if span is None:
        raise ValueError("the client has no tools")
    declared: spans.Span | None = None
    for element in spans.read_elements(body, span):
        declared = find_span(spans.read_members(body, element), "functionDeclarations") or declared
    if declared is None:
        raise ValueError("the client declares no functions")
    is_json_schema = b'"parametersJsonSchema"' in body[slice(*declared)]
    made = [_convert_tool(one, is_json_schema=is_json_schema) for one in msgspec.json.decode(b"[" + tools + b"]")]
    return [spans.append_element(body, declared, b",".join(made))]


def _convert_tool(tool: Any, *, is_json_schema: bool) -> bytes:
    """A chat definition as a function declaration. Raises ValueError if it is none of a function."""
    function = read_tool_function(tool)
    declaration: dict[str, Any] = {"name": function["name"], "description": function.get("description") or ""}
    schema = function.get("parameters") or {"type": "object"}
    declaration["parametersJsonSchema" if is_json_schema else "parameters"] = (
        schema if is_json_schema else _simplify_schema(schema)
    )
    return msgspec.json.encode(declaration)


def _simplify_schema(schema: Any) -> Any:
    """The schema without keywords that `parameters` does not take; properties may have their names."""
    if not isinstance(schema, dict):
        return [_simplify_schema(one) for one in schema] if isinstance(schema, list) else schema
    return {
        name: {key: _simplify_schema(value) for key, value in one.items()}
        if name == "properties" and isinstance(one, dict)
        else _simplify_schema(one)
        for name, one in schema.items()
        if name not in _UNKNOWN_TO_SCHEMAS
    }
