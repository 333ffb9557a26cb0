"""OpenAI's Responses: reading a request into chat-completions messages, and writing a changed one back on its spans.

`instructions` is the first message, if the body has any. Every other message comes from the items of `input`: one item,
or the run of items that the model made. Members that chat completions cannot express (ids, encrypted reasoning, hosted
tools) are in no text, so no stage edits them. They go out as the client's own bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import msgspec

from proxy.chat import json_spans
from proxy.chat.json_spans import MAX_TOP_LEVEL_KEYS, SizeLimits
from proxy.dialects import spans
from proxy.dialects.base import BOUND_SEPARATOR, OutgoingMessage
from proxy.dialects.responses import items as wire
from proxy.dialects.spans import Replacement, Span
from proxy.errors import NotManaged

SESSION_HEADERS: Final = ("thread-id", "session-id", "session_id", "x-session-id", "x-session-affinity")
"""Headers in which clients name their session, the most specific one first."""

_OBJECT = msgspec.json.Decoder(dict[str, Any])
_QUOTE = ord('"')
_HELD, _INSTRUCTIONS, _TEXT_INPUT = -3, -2, -1


class _Role(msgspec.Struct, frozen=True):
    role: str


_ROLE = msgspec.json.Decoder(_Role)


@dataclass(frozen=True, slots=True)
class ItemMessage:
    """One canonical message and the items that it stands for: items[start:end].

    A start below zero is no item: it is `instructions`, an `input` that is one text, or a message that the provider
    holds.
    """

    canonical: bytes
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class ResponsesRequest:
    """A request in the Responses wire format: see `base.WireRequest`."""

    body: bytes
    chat_body: bytes
    bound: tuple[str | None, ...]
    first_editable: int
    """Index of the first canonical message that may be changed or removed: those before it stand in front of a
    compaction item."""
    messages: tuple[ItemMessage, ...]
    members: dict[str, Span]
    elements: tuple[Span, ...]
    """Spans of the items in the body; none if `input` is one text."""
    is_cut: bool = False
    """True if reasoning leads to nothing: the call behind it was withheld from the client."""

    @property
    def has_instructions(self) -> bool:
        """True if the first message is `instructions`."""
        return bool(self.messages) and self.messages[0].start == _INSTRUCTIONS

    def write(self, messages: Sequence[OutgoingMessage], *, tools: bytes = b"") -> bytes:
        """The wire body with these messages and tools: see `base.WireRequest.write`. Raises ValueError for a change
        that this dialect does not allow. It allows no change of assistant messages, of ids, and of anything in front of
        a compaction item. A system message may only get a text at its end."""
        changes = _Changes(self)
        changes.take(messages)
        replacements = changes.build()
        if tools:
            replacements.append(_add_tools(self, tools))
        return spans.apply_replacements(self.body, replacements) if replacements else self.body


def read_wire_request(
    body: bytes, limits: SizeLimits | None = None, held: Sequence[bytes] | None = None
) -> ResponsesRequest:
    """The request in this body. Raises NotManaged: `unreadable` or `shape` for a body that is not understood, `size`
    over the limits, `chain` if the provider holds the history, `compaction` for a compaction.

    held: the canonical messages that the provider holds, as far as they are known. Then no `chain` is raised, and the
    request may be read but not changed.
    """
    found = json_spans.find_members(body, None if limits is None else MAX_TOP_LEVEL_KEYS)
    if found is None:
        raise NotManaged("unreadable", "the body's members cannot be told apart")
    members = {one.key: (one.start, one.end) for one in found}
    plain = {name: _read(body, members, name) for name in members if name != "input"}
    for name in ("previous_response_id", "conversation"):
        if plain.get(name) is not None and held is None:
            raise NotManaged("chain", f"the provider holds the history: {name}")
    has_input = "input" in members and body[slice(*members["input"])] not in (b"null", b"[]")
    if not has_input and held is None:
        raise NotManaged("shape", "no input") if plain.get("prompt") is None else NotManaged("chain", "a stored prompt")
    read: list[ItemMessage] = []
    bound: list[str | None] = []
    if isinstance(plain.get("instructions"), str):
        read.append(ItemMessage(_message("system", plain["instructions"]), _INSTRUCTIONS, 0))
        bound.append(None)
    read += [ItemMessage(raw, _HELD, 0) for raw in held or ()]
    bound += [None] * len(held or ())
    elements: tuple[Span, ...] = ()
    barrier = 0
    is_cut = False
    if not has_input:
        if not read:
            raise NotManaged("shape", "no input, and nothing is known of the history")
    elif body[members["input"][0]] == _QUOTE:
        read.append(ItemMessage(_message("user", _read(body, members, "input")), _TEXT_INPUT, 0))
        bound.append(None)
    else:
        elements = _find_elements(body, members["input"], limits)
        barrier, is_cut = _read_items(body, elements, read, bound, is_chain=held is not None)
    chat = _make_chat_body(plain, [one.canonical for one in read])
    return ResponsesRequest(body, chat, tuple(bound), barrier, tuple(read), members, elements, is_cut)


def _read(body: bytes, members: Mapping[str, Span], name: str) -> Any:
    start, end = members[name]
    try:
        return spans.read_any(body[start:end])
    except (ValueError, RecursionError) as problem:
        raise NotManaged("unreadable", f"{name} cannot be read: {problem}") from problem


def _message(role: str, text: str) -> bytes:
    return msgspec.json.encode({"role": role, "content": text})


def _find_elements(body: bytes, span: Span, limits: SizeLimits | None) -> tuple[Span, ...]:
    found = json_spans.find_elements(body[span[0] : span[1]], None if limits is None else limits.messages)
    if not found:
        raise NotManaged("shape", "input is neither a text nor a list, or an empty list")
    return tuple((span[0] + start, span[0] + end) for start, end in found)


def _read_items(
    body: bytes,
    elements: Sequence[Span],
    read: list[ItemMessage],
    bound: list[str | None],
    *,
    is_chain: bool = False,
) -> tuple[int, bool]:
    """Append the messages of these items and their tokens. Return the index of the first message behind the last
    compaction, and True if reasoning leads to nothing. is_chain: the provider holds what is in front."""
    known: list[tuple[dict[str, Any], bytes]] = []
    for start, end in elements:
        raw = body[start:end]
        try:
            known.append((_OBJECT.decode(raw), raw))
        except (ValueError, RecursionError) as problem:
            raise NotManaged("unreadable", f"an item that cannot be read: {problem}") from problem
    _refuse_unmanaged([item for item, _ in known], is_chain=is_chain)
    barrier = at = 0
    is_cut = False
    while at < len(known):
        end = at + 1
        if wire.find_role(known[at][0]) == "model":
            while end < len(known) and wire.find_role(known[end][0]) == "model":
                end += 1
            run = known[at:end]
            canonical = wire.make_assistant(run)
            types = [*(wire.find_type(item) for item, _ in run), "reasoning"]
            is_cut |= ("reasoning", "reasoning") in pairwise(types)
            tokens = [token for item, _ in run if (token := wire.find_token(item)) is not None]
            if any(wire.find_type(item) in wire.COMPACTIONS for item, _ in run):
                barrier = len(read) + 1
        else:
            canonical, tokens = wire.make_message(known[at][0]), []
        read.append(ItemMessage(canonical, at, end))
        bound.append(BOUND_SEPARATOR.join(tokens) if tokens else None)
        at = end
    return barrier, is_cut


def _refuse_unmanaged(items: Sequence[Mapping[str, Any]], *, is_chain: bool) -> None:
    """Raise NotManaged for a compaction request, and for a history that is references alone."""
    types = [wire.find_type(item) for item in items]
    if "compaction_trigger" in types:
        raise NotManaged("compaction", "the request is a compaction")
    if "item_reference" in types and not is_chain:
        last = len(types) - 1 - types[::-1].index("item_reference")
        if all(kind == "item_reference" for kind in types[:last]):
            raise NotManaged("chain", "the provider holds the history: references alone")


def _make_chat_body(plain: Mapping[str, Any], messages: Sequence[bytes]) -> bytes:
    """The chat-completions body. The members in front of `messages` do not change as a conversation grows."""
    head = {"model": plain.get("model")} if isinstance(plain.get("model"), str) else {}
    rest: dict[str, Any] = {"stream": plain.get("stream") is True}
    if rest["stream"]:
        rest["stream_options"] = {"include_usage": True}
    tools = plain.get("tools")
    if isinstance(tools, list) and tools:
        rest["tools"] = [wire.make_chat_tool(tool) for tool in tools]
    choice = plain.get("tool_choice")
    if choice is not None:
        is_named = isinstance(choice, dict) and choice.get("type") in ("function", "custom")
        rest["tool_choice"] = wire.make_chat_tool(choice) if is_named else choice
    most = plain.get("max_output_tokens")
    if most is not None:
        rest["max_completion_tokens"] = most
    text, reasoning = plain.get("text"), plain.get("reasoning")
    format_ = text.get("format") if isinstance(text, dict) else None
    if isinstance(format_, dict):
        rest["response_format"] = _make_response_format(format_)
    if isinstance(reasoning, dict) and isinstance(reasoning.get("effort"), str):
        rest["reasoning_effort"] = reasoning["effort"]
    begin = msgspec.json.encode(head)[:-1] + (b"," if head else b"")
    return b"".join([begin, b'"messages":[', b",".join(messages), b"],", msgspec.json.encode(rest)[1:]])


def _make_response_format(format_: Mapping[str, Any]) -> dict[str, Any]:
    if format_.get("type") != "json_schema":
        return dict(format_)
    return {"type": "json_schema", "json_schema": {name: format_[name] for name in format_ if name != "type"}}


class _Changes:
    """The outgoing messages of one request, sorted into new elements of `input` and a new text of `instructions`."""

    def __init__(self, request: ResponsesRequest) -> None:
        self._request = request
        self._new: list[tuple[int | None, bytes]] = []
        self._replacements: list[Replacement] = []
        self._last_user: int | None = None  # place in `_new` of a client's user message that is the last element
        self._is_same = True

    def take(self, messages: Sequence[OutgoingMessage]) -> None:
        """Sort all messages. Raises ValueError for a change that is not allowed."""
        request = self._request
        before = -1
        for source, raw in messages:
            if source is None:
                self._insert(raw)
                continue
            if not before < source < len(request.messages):
                raise ValueError("messages in another order, or of another request")
            self._remove(range(before + 1, source))
            before = source
            self._copy(request.messages[source], raw, is_fixed=source < request.first_editable)
        self._remove(range(before + 1, len(request.messages)))

    def build(self) -> list[Replacement]:
        """The replacements in the body."""
        if self._is_same:
            return self._replacements
        request, span = self._request, self._request.members["input"]
        if not self._new:
            raise ValueError("no item is left")
        array = spans.rewrite_array(request.body, span, request.elements, self._new)
        return [*(one for one in self._replacements if one[:2] != span), (*span, array)]

    def _remove(self, gone: range) -> None:
        for n in gone:
            if n < self._request.first_editable:
                raise ValueError("a message in front of a compaction cannot be removed")
            if self._request.messages[n].start == _INSTRUCTIONS:
                raise ValueError("the instructions cannot be removed")
            self._is_same = False

    def _copy(self, message: ItemMessage, raw: bytes, *, is_fixed: bool) -> None:
        request = self._request
        if message.start == _HELD:
            raise ValueError("the provider holds a message of this request")
        if raw != message.canonical and is_fixed:
            raise ValueError("a message in front of a compaction cannot be changed")
        change = None if raw == message.canonical else _compare(message.canonical, raw)
        if message.start == _INSTRUCTIONS:
            if change is not None:
                self._replacements += change.apply(request.body, [request.members["instructions"]], None)
            return
        if message.start == _TEXT_INPUT:
            start, end = request.members["input"]
            literal = request.body[start:end]
            if change is not None:
                literal = spans.apply_replacements(literal, change.apply(literal, [(0, len(literal))], None))
                self._replacements.append((start, end, literal))
            self._new.append((None, b'{"type":"message","role":"user","content":' + literal + b"}"))
            self._last_user = len(self._new) - 1
            return
        for n in range(message.start, message.end):
            start, end = request.elements[n]
            item = request.body[start:end]
            if change is not None:
                item = _edit_item(item, change)
                self._is_same = False
            self._new.append((n, item))
        is_user = message.canonical.startswith(b'{"role":"user"')
        self._last_user = len(self._new) - 1 if is_user else None

    def _insert(self, raw: bytes) -> None:
        """Add a message of the proxy: a text joins the client's user message in front of it, all else is an item."""
        self._is_same = False
        role = _ROLE.decode(raw).role
        if self._last_user is not None and role == "user":
            index, item = self._new[self._last_user]
            self._new[self._last_user] = index, append_part(item, read_text(raw))
            return
        types = _find_call_types([item for _, item in self._new]) if role == "tool" else {}
        self._new += [(None, item) for item in wire.make_items(raw, types)]
        self._last_user = None


def read_text(message: bytes) -> str:
    """The text of a message of the proxy. Raises ValueError if its content is no text."""
    content = msgspec.json.decode(message).get("content")
    if isinstance(content, list) and all(isinstance(part.get("text"), str) for part in content):
        return "".join(part["text"] for part in content)
    if not isinstance(content, str):
        raise ValueError("a message of ours without a text")
    return content


def _find_call_types(items: Sequence[bytes]) -> dict[str, str]:
    found: dict[str, str] = {}
    for raw in items:
        if b'"call_id"' in raw and b"_call" in raw:
            item = _OBJECT.decode(raw)
            call_id = wire.find_call(item)
            if call_id:
                found[call_id] = wire.find_type(item)
    return found


@dataclass(frozen=True, slots=True)
class _TextChange:
    """The change of a message's text."""

    text: str | None
    kept: int
    """The index of the text that is replaced by `text`; the other texts stand aside."""
    added: tuple[str, ...]
    """Texts that are appended. With `text` None, texts are only appended."""

    def apply(self, raw: bytes, texts: Sequence[Span], list_end: int | None) -> list[Replacement]:
        """The replacements in an item whose texts stand at these spans. list_end: the end of its list of parts."""
        made: list[Replacement] = []
        if self.text is not None:
            if self.kept >= len(texts):
                raise ValueError("a message without this text")
            for n, (start, end) in enumerate(texts):
                if n == self.kept:
                    made.append((start, end, spans.encode_visible(self.text)))
                elif raw[start + 1 : end - 1].strip():
                    made.append((start, end, spans.encode_text(spans.EMPTY_STAND_IN)))
        if not self.added:
            return made
        if list_end is not None:
            parts = b",".join([_make_input_part(text) for text in self.added])
            is_empty = raw[:list_end].endswith(b"[")
            return [*made, (list_end, list_end, parts if is_empty else b"," + parts)]
        if not texts:
            raise ValueError("a message that takes no text")
        start, end = texts[-1]
        ending = spans.encode_text("".join(self.added))[1:]  # the end of one string and the start of the other meet
        if made and made[-1][:2] == (start, end):
            return [*made[:-1], (start, end, made[-1][2][:-1] + ending)]
        return [*made, (end - 1, end, ending)]


def _make_input_part(text: str) -> bytes:
    return b'{"type":"input_text","text":' + spans.encode_visible(text) + b"}"


def append_part(item: bytes, text: str) -> bytes:
    """The user's message item with one more text part at its end. A content that is one text becomes a list."""
    start, end = spans.read_members(item)["content"]
    part = _make_input_part(text)
    if item[start : start + 1] == b'"':
        first = b'{"type":"input_text","text":' + item[start:end] + b"}"
        return item[:start] + b"[" + first + b"," + part + b"]" + item[end:]
    return spans.apply_replacements(item, [spans.append_element(item, (start, end), part)])


def _compare(original: bytes, changed: bytes) -> _TextChange:
    """The change of a canonical message. Raises ValueError if anything but its text changes, or if its text may not."""
    before, after = msgspec.json.decode(original), msgspec.json.decode(changed)
    role, old, new = before.get("role"), before.pop("content", None), after.pop("content", None)
    if before != after:
        raise ValueError("a change of more than the text")
    if role == "assistant":
        raise ValueError("an assistant message cannot be changed")
    change = _compare_contents(old, new)
    if role in ("system", "developer") and change.text is not None:
        raise ValueError("the text of a system message cannot be replaced")
    return change


def _compare_contents(old: Any, new: Any) -> _TextChange:
    if isinstance(old, str) and isinstance(new, str):
        is_longer = bool(old) and new.startswith(old)
        return _TextChange(None, 0, (new[len(old) :],)) if is_longer else _TextChange(new, 0, ())
    if not isinstance(old, list) or not isinstance(new, list):
        raise ValueError("content of another shape")
    if [one for one in old if one["type"] != "text"] != [one for one in new if one.get("type") != "text"]:
        raise ValueError("a change of a part that is no text")
    holders = [one for one in old if one["type"] == "text"]
    texts = [str(one["text"]) for one in new if one.get("type") == "text"]
    if texts[: len(holders)] == [one["text"] for one in holders]:
        return _TextChange(None, 0, tuple(texts[len(holders) :]))
    if not holders or not texts:
        raise ValueError("content that holds no text")
    # The part that stays is the one that `completions.replace_text` keeps: the last with a mark, or else the first.
    marked = [n for n, one in enumerate(holders) if wire.CACHE_MARK in one]
    return _TextChange(texts[0], marked[-1] if marked else 0, tuple(texts[1:]))


def _edit_item(raw: bytes, change: _TextChange) -> bytes:
    texts, list_end = wire.find_texts(raw, _OBJECT.decode(raw))
    return spans.apply_replacements(raw, change.apply(raw, texts, list_end))


def _add_tools(request: ResponsesRequest, tools: bytes) -> Replacement:
    """The replacement that adds definitions, given in the form of chat completions, behind the client's own."""
    made = b",".join([msgspec.json.encode(wire.make_tool(tool)) for tool in msgspec.json.decode(b"[" + tools + b"]")])
    span = request.members.get("tools")
    if span is None:
        return spans.append_member(request.body, (0, len(request.body)), "tools", b"[" + made + b"]")
    if request.body[span[0] : span[1]] == b"null":
        return *span, b"[" + made + b"]"
    return spans.append_element(request.body, span, made)


def append_instructions(body: bytes, text: str) -> bytes:
    """The body with text at the end of `instructions`, which is made if the body has none.

    From GPT-6.2 on, `instructions` stands behind the input and is no part of the prefix: a note for one turn.
    """
    members = spans.read_members(body)
    span = members.get("instructions")
    if span is None:
        change = spans.append_member(body, (0, len(body)), "instructions", spans.encode_text(text))
        return spans.apply_replacements(body, [change])
    start, end = span
    if body[start : start + 1] != b'"':
        return body[:start] + spans.encode_text(text) + body[end:]
    return body[: end - 1] + spans.encode_text("\n\n" + text)[1:] + body[end:]


def find_session_names(headers: Mapping[str, str], body: bytes) -> list[str]:
    """The names that the client gives its session, the most specific one first. headers: by lower-case name."""
    found = [headers.get(name, "").strip() for name in SESSION_HEADERS]
    for member, inner in (("conversation", "id"), ("client_metadata", "thread_id")):
        raw = json_spans.read_value(body, member)
        try:
            value = None if raw is None else spans.read_any(raw)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            value = value.get(inner)
        found.append(value if isinstance(value, str) else "")
    return list(dict.fromkeys(one for one in found if one))
