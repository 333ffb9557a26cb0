"""OpenAI's Responses: reading a request into chat-completions messages, and writing a changed one back on its spans.

`instructions` is the first message, if the body has any. Every other message comes from the items of `input`: one item,
or the run of items that the model made. Members that chat completions cannot express (ids, encrypted reasoning, hosted
tools) are in no text, so no stage edits them. They go out as the client's own bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import msgspec

from proxy.chat import json_spans
from proxy.chat.json_spans import SizeLimits
from proxy.dialects import spans
from proxy.dialects.base import BOUND_SEPARATOR, check_grown_body
from proxy.dialects.completions.request import list_array_pieces, read_changed_arguments
from proxy.dialects.known_prefix import HistoryMemo
from proxy.dialects.responses import items as responses_items
from proxy.dialects.responses.text_changes import append_part, compare_messages, edit_item, read_text
from proxy.dialects.spans import Replacement, Span
from proxy.dialects.written_history import OutgoingMessage, WrittenElement, WrittenHistory, view_array, write_array
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
    messages: tuple[ItemMessage, ...]
    canonical: tuple[bytes, ...]
    """The messages of `chat_body`."""
    members: dict[str, Span]
    elements: tuple[Span, ...]
    """Spans of the items in the body; none if `input` is one text."""
    is_cut: bool = False
    """True if reasoning leads to nothing: the call behind it was withheld from the client."""
    value_count: int = 0
    """An upper bound of the number of JSON values in the body; 0 if it was not counted."""
    first_reasoning: int = -1
    """Offset at which the body first names reasoning; -1 if it has none."""
    memo: HistoryMemo = field(default_factory=HistoryMemo, compare=False, repr=False)
    """See `base.WireRequest.memo`."""
    tools: tuple[bytes, bytes] = (b"", b"")
    """The bytes of `tools`, and the same as chat definitions; b"" for none."""

    @property
    def prefix_end(self) -> int:
        """The end of the last item, up to which the next body is expected to be the same. 0 for one text."""
        return self.elements[-1][1] if self.elements else 0

    @property
    def frame_bytes(self) -> int:
        """Bytes of `tools`."""
        return sum(map(len, self.tools))

    @property
    def has_instructions(self) -> bool:
        """True if the first message is `instructions`."""
        return bool(self.messages) and self.messages[0].start == _INSTRUCTIONS

    def write(self, messages: Sequence[OutgoingMessage], *, tools: bytes = b"") -> bytes:
        """The wire body with these messages and tools: see `base.WireRequest.write`. Raises ValueError for a change
        that this dialect does not allow. It allows no change of assistant messages and of ids. A system message may
        only get a text at its end."""
        changes = _Changes(self)
        changes.take(messages)
        replacements, elements = changes.build()
        if tools:
            replacements.append(_add_tools(self, tools))
        if not replacements:
            return self.body
        written = spans.apply_replacements(self.body, replacements)
        if elements and self.elements:
            array = view_array(written, self.members["input"], replacements, elements)
            self.memo.written = WrittenHistory(array, messages, elements, len(self.elements))
        return written


def read_wire_request(
    body: bytes,
    limits: SizeLimits | None = None,
    before: ResponsesRequest | None = None,
    *,
    held: Sequence[bytes] | None = None,
) -> ResponsesRequest:
    """The request in this body. Raises NotManaged: `unreadable` or `shape` for a body that is not understood, `size`
    over the limits, `chain` if the provider holds the history, `compaction` for a compaction.

    before: an earlier request whose bytes up to its `prefix_end` this body begins with; only the rest is read.
    held: the canonical messages that the provider holds, as far as they are known. Then no `chain` is raised, and the
    request may be read but not changed.
    """
    count = check_grown_body(body, limits, before)
    longer = None
    if before is not None and before.elements and not before.is_cut and held is None:
        longer = spans.find_longer_history(body, "input", before.members, before.elements, limits)
    members = spans.find_body_members(body, limits) if longer is None else longer[0]
    plain = {name: _read_member(body, members, name) for name in members if name not in ("input", "tools")}
    tools = _convert_tools(body, members, before.tools if before is not None else (b"", b""))
    start, end = members.get("input", (0, 0))
    has_input = start < end and not (end - start <= len(b"null") and body[start:end] in (b"null", b"[]"))
    if held is None:
        _check_history_is_here(plain, has_input=has_input)
    items, memo = _ItemReader(body), HistoryMemo()
    if isinstance(plain.get("instructions"), str):
        items.add(ItemMessage(_make_chat_message("system", plain["instructions"]), _INSTRUCTIONS, 0))
    for raw in held or ():
        items.add(ItemMessage(raw, _HELD, 0))
    elements: tuple[Span, ...] = ()
    if not has_input:
        if not items.messages:
            raise NotManaged("shape", "no input, and nothing is known of the history")
    elif body[members["input"][0]] == _QUOTE:
        items.add(ItemMessage(_make_chat_message("user", _read_member(body, members, "input")), _TEXT_INPUT, 0))
    elif longer is not None and before is not None and before.has_instructions == bool(items.messages):
        elements = longer[1]
        items.continue_from(before, elements)
        memo = before.memo.copy(len(before.elements))
    else:
        problem = "input is neither a text nor a list, or an empty list"
        elements = spans.find_history(body, members["input"], limits, problem)
        items.read_elements(elements, is_chain=held is not None)
    read, bound, canonical = tuple(items.messages), tuple(items.bound), tuple(items.canonical)
    chat = _make_chat_body(plain, tools[1], canonical)
    prefix_end, first = (before.prefix_end, before.first_reasoning) if before is not None else (0, -1)
    first = spans.find_again(body, responses_items.REASONING_NAME, prefix_end, first)
    cut = items.is_cut
    return ResponsesRequest(body, chat, bound, read, canonical, members, elements, cut, count, first, memo, tools)


def _check_history_is_here(plain: Mapping[str, Any], *, has_input: bool) -> None:
    """Raise NotManaged if the provider holds the history, or a part of it. plain: the values beside input and tools."""
    for name in ("previous_response_id", "conversation"):
        if plain.get(name) is not None:
            raise NotManaged("chain", f"the provider holds the history: {name}")
    if not has_input and plain.get("prompt") is not None:
        raise NotManaged("chain", "a stored prompt")
    if not has_input:
        raise NotManaged("shape", "no input")


def _read_member(body: bytes, members: Mapping[str, Span], name: str) -> Any:
    start, end = members[name]
    try:
        return spans.read_any(body[start:end])
    except (ValueError, RecursionError) as problem:
        raise NotManaged("unreadable", f"{name} cannot be read: {problem}") from problem


def _make_chat_message(role: str, text: str) -> bytes:
    return msgspec.json.encode({"role": role, "content": text})


class _ItemReader:
    """Reads the items of `input` into messages."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self.messages: list[ItemMessage] = []
        self.bound: list[str | None] = []
        self.canonical: list[bytes] = []
        self.is_cut = False
        """True if reasoning leads to nothing."""

    def add(self, message: ItemMessage, bound: str | None = None) -> None:
        """Append a message with its tokens."""
        self.messages.append(message)
        self.bound.append(bound)
        self.canonical.append(message.canonical)

    def continue_from(self, before: ResponsesRequest, elements: Sequence[Span]) -> None:
        """Read the items behind those of an earlier request. If its last message is an answer of the model, that answer
        is read again: more items of it may have come."""
        own, end, first = len(self.messages), len(before.messages), len(before.elements)
        if before.messages[-1].canonical.startswith(b'{"role":"assistant"'):
            end, first = end - 1, before.messages[-1].start
        self.messages += before.messages[own:end]
        self.bound += before.bound[own:end]
        self.canonical += before.canonical[own:end]
        self.read_elements(elements, first, is_chain=True)

    def read_elements(self, elements: Sequence[Span], first: int = 0, *, is_chain: bool = False) -> None:
        """Append the messages of the items from an index on. elements: spans of all items. first: the index. is_chain:
        items in front of them are known. Raises NotManaged for an item that cannot be read, or that is not managed."""
        known: list[tuple[dict[str, Any], bytes]] = []
        for start, end in elements[first:]:
            raw = self._body[start:end]
            try:
                known.append((_OBJECT.decode(raw), raw))
            except (ValueError, RecursionError) as problem:
                raise NotManaged("unreadable", f"an item that cannot be read: {problem}") from problem
        _refuse_unmanaged([item for item, _ in known], is_chain=is_chain)
        at = 0
        while at < len(known):
            end = at + 1
            if responses_items.find_role(known[at][0]) == "model":
                while end < len(known) and responses_items.find_role(known[end][0]) == "model":
                    end += 1
            self._add_run(known[at:end], first + at)
            at = end

    def _add_run(self, run: Sequence[tuple[dict[str, Any], bytes]], start: int) -> None:
        """Append the message of the items of one answer, or of one other item. start: index of the first item."""
        if responses_items.find_role(run[0][0]) != "model":
            self.add(ItemMessage(responses_items.make_message(run[0][0]), start, start + 1))
            return
        canonical = responses_items.make_assistant(run)
        types = [*(responses_items.find_type(item) for item, _ in run), "reasoning"]
        self.is_cut |= ("reasoning", "reasoning") in pairwise(types)
        tokens = [token for item, _ in run if (token := responses_items.find_token(item)) is not None]
        self.add(ItemMessage(canonical, start, start + len(run)), BOUND_SEPARATOR.join(tokens) if tokens else None)


def _refuse_unmanaged(items: Sequence[Mapping[str, Any]], *, is_chain: bool) -> None:
    """Raise NotManaged for a compaction request, and for a history that is references alone."""
    types = [responses_items.find_type(item) for item in items]
    if "compaction_trigger" in types:
        raise NotManaged("compaction", "the request is a compaction")
    if "item_reference" in types and not is_chain:
        last = len(types) - 1 - types[::-1].index("item_reference")
        if all(kind == "item_reference" for kind in types[:last]):
            raise NotManaged("chain", "the provider holds the history: references alone")


def _convert_tools(body: bytes, members: Mapping[str, Span], known: tuple[bytes, bytes]) -> tuple[bytes, bytes]:
    """`ResponsesRequest.tools`; `known` if it has the same bytes: an agent sends 60 KB of them each time."""
    start, end = members.get("tools", (0, 0))
    if body[start:end] == known[0]:
        return known
    tools = _read_member(body, members, "tools") if start < end else None
    made = [responses_items.make_chat_tool(tool) for tool in tools] if isinstance(tools, list) else []
    return body[start:end], msgspec.json.encode(made) if made else b""


def _make_chat_body(plain: Mapping[str, Any], tools: bytes, messages: Sequence[bytes]) -> bytes:
    """The chat-completions body, whose members in front of `messages` stay the same. tools: chat definitions."""
    head = {"model": plain.get("model")} if isinstance(plain.get("model"), str) else {}
    tail: dict[str, Any] = {"stream": plain.get("stream") is True}
    if tail["stream"]:
        tail["stream_options"] = {"include_usage": True}
    if tools:
        tail["tools"] = msgspec.Raw(tools)
    choice = plain.get("tool_choice")
    if choice is not None:
        is_named = isinstance(choice, dict) and choice.get("type") in ("function", "custom")
        tail["tool_choice"] = responses_items.make_chat_tool(choice) if is_named else choice
    most = plain.get("max_output_tokens")
    if most is not None:
        tail["max_completion_tokens"] = most
    text, reasoning = plain.get("text"), plain.get("reasoning")
    format_ = text.get("format") if isinstance(text, dict) else None
    if isinstance(format_, dict):
        tail["response_format"] = _make_response_format(format_)
    if isinstance(reasoning, dict) and isinstance(reasoning.get("effort"), str):
        tail["reasoning_effort"] = reasoning["effort"]
    begin = msgspec.json.encode(head)[:-1] + (b"," if head else b"")
    return b"".join((begin, b'"messages":', *list_array_pieces(messages), b",", msgspec.json.encode(tail)[1:]))


def _make_response_format(format_: Mapping[str, Any]) -> dict[str, Any]:
    if format_.get("type") != "json_schema":
        return dict(format_)
    return {"type": "json_schema", "json_schema": {name: format_[name] for name in format_ if name != "type"}}


class _Changes:
    """The outgoing messages of one request, sorted into new elements of `input` and a new text of `instructions`."""

    def __init__(self, request: ResponsesRequest) -> None:
        self._request = request
        self._new: list[tuple[int | None, bytes]] = []
        self._firsts: list[int] = []
        """For each element of `_new` the index of its outgoing message."""
        self._known: WrittenHistory | None = None
        self._replacements: list[Replacement] = []
        self._last_user: int | None = None  # place in `_new` of a client's user message that is the last element
        self._is_same = True

    def take(self, messages: Sequence[OutgoingMessage]) -> None:
        """Sort the messages that are not written already. Raises ValueError for a change that is not allowed."""
        written = self._request.memo.written
        known = written.find_beginning(messages) if written is not None else None
        if known is None or _has_own_result(messages[len(known.outgoing) :]):
            self._take_all(messages, range(len(messages)), -1)
        else:
            self._known, self._is_same = known, False
            head = known.elements[0].first
            newest = self._take_all(messages, range(head), -1, is_cut=True)
            begin = len(known.outgoing)
            self._take_all(messages, range(begin, len(messages)), max(newest, known.newest_source))

    def _take_all(
        self, messages: Sequence[OutgoingMessage], indices: range, before: int, *, is_cut: bool = False
    ) -> int:
        """Sort the messages at these indices. before: the index of the client's message in front of them. is_cut: more
        follow. Return the index of the last of the client's messages."""
        request = self._request
        for n in indices:
            source, raw = messages[n]
            if source is None:
                self._insert(raw)
            elif not before < source < len(request.messages):
                raise ValueError("messages in another order, or of another request")
            else:
                self._remove(range(before + 1, source))
                before = source
                self._copy(request.messages[source], raw)
            self._firsts += [n] * (len(self._new) - len(self._firsts))
        if not is_cut:
            self._remove(range(before + 1, len(request.messages)))
        return before

    def build(self) -> tuple[list[Replacement], list[WrittenElement]]:
        """(the replacements in the body, the elements of `input` where they are written)."""
        if self._is_same:
            return self._replacements, []
        request, span = self._request, self._request.members["input"]
        items = [(first, index, raw) for first, (index, raw) in zip(self._firsts, self._new, strict=True)]
        array, elements = write_array(request.body, span, request.elements, items, self._known)
        return [*(one for one in self._replacements if one[:2] != span), (*span, array)], elements

    def _remove(self, removed: range) -> None:
        for n in removed:
            if self._request.messages[n].start == _INSTRUCTIONS:
                raise ValueError("the instructions cannot be removed")
            self._is_same = False

    def _copy(self, message: ItemMessage, raw: bytes) -> None:
        request = self._request
        if message.start == _HELD:
            raise ValueError("the provider holds a message of this request")
        is_answer = raw != message.canonical and message.canonical.startswith(b'{"role":"assistant"')
        arguments = read_changed_arguments(message.canonical, raw) if is_answer else None
        if arguments is not None:
            self._copy_calls(message, arguments)
            return
        change = None if raw == message.canonical else compare_messages(message.canonical, raw)
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
                item = edit_item(item, change)
                self._is_same = False
            self._new.append((n, item))
        is_user = message.canonical.startswith(b'{"role":"user"')
        self._last_user = len(self._new) - 1 if is_user else None

    def _copy_calls(self, message: ItemMessage, arguments: Sequence[str | None]) -> None:
        """Add the items of an answer with other arguments in its calls; None for a call that stays as it is."""
        request, new_arguments = self._request, list(arguments)
        for n in range(message.start, message.end):
            start, end = request.elements[n]
            item = request.body[start:end]
            fields = _OBJECT.decode(item)
            text = new_arguments.pop(0) if responses_items.find_call(fields) is not None else None
            if text is not None:
                if responses_items.find_type(fields) != "function_call":
                    raise ValueError("a call without arguments")
                item = json_spans.set_member(item, "arguments", msgspec.json.encode(text))
                self._is_same = False
            self._new.append((n, item))
        self._last_user = None

    def _insert(self, raw: bytes) -> None:
        """Add a message of the proxy: a text joins the client's user message in front of it, all else is an item."""
        self._is_same = False
        role = _ROLE.decode(raw).role
        if self._last_user is not None and role == "user":
            index, item = self._new[self._last_user]
            self._new[self._last_user] = index, append_part(item, read_text(raw))
            return
        types = responses_items.find_call_types(item for _, item in self._new) if role == "tool" else {}
        made = responses_items.make_items(raw, types)
        if role == "assistant" and self._request.body[slice(*self._request.members.get("store", (0, 0)))] == b"false":
            made = responses_items.leave_out_unstored_reasoning(made)
        self._new += [(None, item) for item in made]
        self._last_user = None


def _has_own_result(messages: Sequence[OutgoingMessage]) -> bool:
    """True if one of the messages is a result of a tool of the proxy: its item depends on that of the call."""
    return any(source is None and _ROLE.decode(raw).role == "tool" for source, raw in messages)


def _add_tools(request: ResponsesRequest, tools: bytes) -> Replacement:
    """The replacement that adds definitions, given in the form of chat completions, behind the client's own."""
    made = b",".join(
        [msgspec.json.encode(responses_items.make_tool(tool)) for tool in msgspec.json.decode(b"[" + tools + b"]")]
    )
    return spans.extend_array(request.body, request.members, "tools", made)


def find_session_names(headers: Mapping[str, str], request: ResponsesRequest) -> list[str]:
    """The names that the client gives its session, the most specific one first. headers: by lower-case name."""
    names = [headers.get(name, "").strip() for name in SESSION_HEADERS]
    for member, inner in (("conversation", "id"), ("client_metadata", "thread_id")):
        value = _read_member(request.body, request.members, member) if member in request.members else None
        if isinstance(value, dict):
            value = value.get(inner)
        names.append(value if isinstance(value, str) else "")
    return list(dict.fromkeys(one for one in names if one))
