"""An assembled answer: its message, its tool calls, its usage, and a flag that tells if it is complete.

An `AssembledAnswer` is fed chunk by chunk while the chunks go past, or made from a whole body at once. Its message is
the message that the client holds in the end and will send back. The next request can therefore be recognised by this
message. Unknown fields and reasoning are part of the message; text that was withheld from the client is not."""

from __future__ import annotations

from io import StringIO
from typing import Any

import msgspec
from msgspec import UNSET, Raw

from proxy.chat.json_spans import MAX_VALUES, has_more_values
from proxy.chat.message import Call
from proxy.dialects.base import ClearedResults
from proxy.dialects.completions.stream import (
    Choice,
    Chunk,
    find_answer_object,
    read_any_json,
    read_chunk,
    read_error_text,
    read_json,
    repair_surrogates,
    write_json,
)
from proxy.dialects.usage import Usage, read_count, read_usage

CAPTURE_LIMIT = 8 << 20
MAX_CHOICES = 128
"""The number of choices that OpenAI allows a request to ask for. Choices beyond it are passed on and not read."""

MAX_CALLS = 1024
"""Calls of one choice; providers allow 128. Calls beyond it are passed on and not read."""

THINKING_BLOCKS = "thinking_blocks"
"""The field for Claude's thinking in chat completions. LiteLLM streams a block in pieces, and its signature in the last
piece. Upstream takes whole blocks alone."""


class _BodyChoice(msgspec.Struct, frozen=True):
    index: int = 0
    message: Raw = Raw(b"null")
    finish_reason: str | None = None


class _Body(msgspec.Struct, frozen=True):
    id: str | None = None
    model: str | None = None
    choices: list[_BodyChoice] | None = None
    usage: Any = UNSET
    error: Any = UNSET
    object: str | None = None
    message: Any = None
    service_tier: Any = None


_BODY = msgspec.json.Decoder(_Body)


class _GrowingCall:
    """One tool call while it grows. Its name and arguments usually are members of `fields["function"]`."""

    __slots__ = ("fields", "index")

    def __init__(self, index: int) -> None:
        self.index = index
        self.fields: dict[str, Any] = {}


class _GrowingMessage:
    """One choice's message while it grows."""

    __slots__ = ("by_index", "calls", "fields", "has_text", "raw", "role", "text")

    def __init__(self) -> None:
        self.role = "assistant"
        self.text = StringIO()
        self.has_text = False  # there was a text, possibly an empty one
        self.fields: dict[str, Any] = {}
        self.calls: list[_GrowingCall] = []
        self.by_index: dict[int, _GrowingCall] = {}
        self.raw: bytes | None = None  # the message itself, if it came whole


class AssembledAnswer:
    """One answer of an upstream. id, model, usage, error: as upstream reports them, None where it does not."""

    __slots__ = (
        "_messages", "_room", "cleared_results", "dropped_reasoning", "error", "finish_reasons", "id", "is_capped",
        "is_done", "model", "unparsed", "usage",
    )  # fmt: skip

    def __init__(self, limit: int = CAPTURE_LIMIT) -> None:
        self.finish_reasons: dict[int, str] = {}
        """The finish reason of each choice."""
        self.usage: Usage | None = None
        self.id: str | None = None
        self.model: str | None = None
        self.error: str | None = None
        self.is_done = False
        """`[DONE]` was seen, or the body was a whole one."""
        self.is_capped = False
        """The answer was larger than the capture limit, so its message and its text are incomplete."""
        self.unparsed = 0
        """The number of events or bodies that held no chunk."""
        self.dropped_reasoning: tuple[str, ...] = ()
        self.cleared_results: ClearedResults | None = None
        self._messages: dict[int, _GrowingMessage] = {}
        self._room = CaptureLimit(limit)

    @classmethod
    def from_body(cls, body: bytes, limit: int = CAPTURE_LIMIT) -> AssembledAnswer:
        """Return the answer in a non-streaming body. The message is kept as its exact slice of the body."""
        answer = cls(limit)
        read = _read_body(body)
        if read is None:
            answer.unparsed = 1
            return answer
        chunk = Chunk(read.id, read.model, None, read.usage, read.error, read.object, read.message, read.service_tier)
        answer.add_chunk(chunk)
        choices = read.choices or []
        answer.is_capped = len(choices) > MAX_CHOICES
        for choice in choices[:MAX_CHOICES]:
            raw = bytes(choice.message)
            if has_more_values(raw, MAX_VALUES):
                answer.is_capped = True
            elif raw != b"null" and answer._reserve_chars(len(raw)):
                answer._find_growing(choice.index).raw = raw
            if choice.finish_reason:
                answer.finish_reasons[choice.index] = choice.finish_reason
        answer.is_done = bool(read.choices)
        return answer

    def add_event(self, data: bytes) -> None:
        if data.startswith(b"[DONE]"):
            self.is_done = True
            return
        chunk = read_chunk(data)
        if chunk is None:
            self.unparsed += 1
        else:
            self.add_chunk(chunk)

    def add_chunk(self, chunk: Chunk, visible_texts: dict[int, str] | None = None) -> None:
        """Add a chunk. visible_texts: by position in `choices`, the client's text in place of the chunk's."""
        if self.id is None and chunk.id:
            self.id = chunk.id
        if self.model is None and chunk.model:
            self.model = chunk.model
        if (chunk.error is not UNSET or chunk.object == "error") and chunk.has_failed:  # mostly without a call
            self.error = read_error_text(chunk)
        if chunk.usage is not UNSET and chunk.usage:
            self.usage = read_usage(chunk.usage, chunk.service_tier) or self.usage
        if chunk.choices:
            for position, choice in enumerate(chunk.choices):
                self._add_choice(choice, visible_texts.get(position) if visible_texts else None)

    def add_text(self, text: str, index: int = 0) -> None:
        """Add text that the client gets in a chunk of the proxy: the text was held back until its kind was known."""
        self._add_text(self._find_growing(index), text)

    def _find_growing(self, index: int) -> _GrowingMessage:
        growing = self._messages.get(index)
        if growing is None:
            growing = self._messages[index] = _GrowingMessage()
            self._reserve_chars(ENTRY_OVERHEAD)
        return growing

    def _reserve_chars(self, size: int) -> bool:
        if self._room.reserve_chars(size):
            return True
        self.is_capped = True
        return False

    def _add_text(self, growing: _GrowingMessage, text: str) -> None:
        growing.has_text = True
        if self._reserve_chars(len(text)):
            growing.text.write(text)

    def _add_choice(self, choice: Choice, shown: str | None) -> None:
        growing = self._messages.get(choice.index)
        if growing is None:
            if len(self._messages) >= MAX_CHOICES:
                self.is_capped = True
                return
            growing = self._find_growing(choice.index)
        if choice.finish_reason:
            self.finish_reasons[choice.index] = choice.finish_reason
        delta = choice.delta
        if not delta or self.is_capped:
            return
        for name, value in delta.items():
            if name == "content" and type(value) is str:  # as `_add_text`, without a call for each chunk
                text = value if shown is None else shown
                growing.has_text = True
                if self._room.reserve_chars(len(text)):
                    growing.text.write(text)
            elif value is None:
                continue
            elif name == "role":
                growing.role = value if isinstance(value, str) and value else growing.role
            elif name == "tool_calls" and isinstance(value, list):
                for part in value:
                    self._add_call(growing, part)
            elif name == THINKING_BLOCKS and isinstance(value, list):
                self._add_thinking(growing, value)
            else:
                merge_fields(growing.fields, {name: value}, self._room)
        if self._room.left < 0:
            self.is_capped = True

    def _add_thinking(self, growing: _GrowingMessage, pieces: list[Any]) -> None:
        """Add pieces of thinking blocks, which have no index. A block goes on up to the piece with its signature."""
        for piece in pieces:
            blocks = growing.fields.get(THINKING_BLOCKS)
            last = blocks.entries[-1] if isinstance(blocks, IndexedList) and blocks.entries else None
            if isinstance(last, dict) and isinstance(piece, dict) and _is_open_thinking(last, piece):
                merge_fields(last, piece, self._room)
            else:
                merge_fields(growing.fields, {THINKING_BLOCKS: [piece]}, self._room)

    def _add_call(self, growing: _GrowingMessage, part: Any) -> None:
        """Add a fragment of a tool call.

        Fragments of a call share its index. Gemini's compatible surface gives all calls of a turn the index 0 but
        different ids. Other servers give no index. In both cases an id begins a call, and a fragment without an id
        continues the last call.
        """
        if not isinstance(part, dict):
            return
        index, name = read_count(part.get("index")), part.get("id")
        call = growing.by_index.get(index) if index is not None else (growing.calls[-1] if growing.calls else None)
        if call is None or (name and call.fields.get("id") not in (None, name)):
            if len(growing.calls) >= MAX_CALLS:
                self.is_capped = True
            if self.is_capped or not self._reserve_chars(ENTRY_OVERHEAD):
                return
            call = _GrowingCall(len(growing.calls) if index is None else index)
            growing.calls.append(call)
            growing.by_index[call.index] = call
        merge_fields(call.fields, {k: v for k, v in part.items() if k != "index"}, self._room)

    def build_message(self, index: int = 0) -> bytes | None:
        """Return the message of a choice as JSON, as a client would send it back; None if there was none."""
        growing = self._messages.get(index)
        if growing is None:
            return None
        if growing.raw is not None:
            return growing.raw
        fields = {name: build_json_value(value) for name, value in growing.fields.items()}
        content = fields.pop("content", None)
        if growing.has_text:
            text = growing.text.getvalue()
            content = [*content, {"type": "text", "text": text}] if isinstance(content, list) else text
        message = {"role": growing.role, "content": content, **fields}
        if growing.calls:
            message["tool_calls"] = _build_calls(growing.calls)
        try:
            return write_json(message)
        except RecursionError:
            return None  # a single field nested to the reader's own limit: no client could send that back

    def _read_raw_message(self) -> dict[str, Any]:
        growing = self._messages.get(0)
        message = None if growing is None or growing.raw is None else read_any_json(growing.raw)
        return message if isinstance(message, dict) else {}

    @property
    def text(self) -> str:
        """The text of the first choice, without the withheld text."""
        growing = self._messages.get(0)
        if growing is None:
            return ""
        content = (
            self._read_raw_message().get("content")
            if growing.raw is not None
            else build_json_value(growing.fields.get("content"))
        )
        if isinstance(content, list):  # Mistral's reasoning models stream parts first, then strings
            texts = [part.get("text") for part in content if isinstance(part, dict)]
            content = "".join(text for text in texts if isinstance(text, str))
        return repair_surrogates((content if isinstance(content, str) else "") + growing.text.getvalue())

    @property
    def calls(self) -> tuple[Call, ...]:
        """The tool calls of the first choice."""
        growing = self._messages.get(0)
        if growing is None:
            return ()
        if growing.raw is not None:
            message = self._read_raw_message()
            found, old = message.get("tool_calls"), message.get("function_call")
        else:
            found, old = _build_calls(growing.calls), build_json_value(growing.fields.get("function_call"))
        calls = [_read_call(one) for one in found if isinstance(one, dict)] if isinstance(found, list) else []
        if isinstance(old, dict):
            calls.append(_read_call({"id": old.get("name"), "function": old}))
        return tuple(calls)

    @property
    def choice_count(self) -> int:
        """The number of choices."""
        return len(self._messages)

    @property
    def is_truncated(self) -> bool:
        """True if the answer broke off: neither `[DONE]` nor a finish reason for every choice came."""
        reasons = self.finish_reasons
        return not self.is_done and not (reasons and all(index in reasons for index in self._messages))


def _is_open_thinking(last: dict[str, Any], piece: dict[str, Any]) -> bool:
    """True if the last block of an answer has no signature yet, and the piece belongs to it."""
    is_thinking = last.get("type") == piece.get("type") == "thinking"
    return is_thinking and not build_json_value(last.get("signature"))


def _build_calls(growing_calls: list[_GrowingCall]) -> list[dict[str, Any]]:
    calls = []
    for growing in sorted(growing_calls, key=lambda one: one.index):
        call = {name: build_json_value(value) for name, value in growing.fields.items()}
        function = call.get("function")
        if isinstance(function, dict):
            call["function"] = {**function, "arguments": function.get("arguments", "")}
            call.setdefault("type", "function")
        calls.append(call)
    return calls


def _read_call(call: dict[str, Any]) -> Call:
    inner = call.get("function") or call.get("custom")
    inner = inner if isinstance(inner, dict) else {}
    return Call(
        _read_text(call.get("id")),
        _read_text(inner.get("name")),
        _read_text(inner.get("arguments", inner.get("input"))),
    )


def _read_text(value: Any) -> str:
    if value is None:
        return ""
    return repair_surrogates(value if isinstance(value, str) else write_json(value).decode())


def _read_body(body: bytes) -> _Body | None:
    try:
        return _BODY.decode(body)
    except (ValueError, RecursionError):
        value = find_answer_object(read_json(body))
    if value is None:
        return None
    choices = value.get("choices")
    body_choices = []
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, dict):
            reason = choice.get("finish_reason")
            reason = reason if isinstance(reason, str) else None
            body_choices.append(
                _BodyChoice(read_count(choice.get("index")) or 0, Raw(write_json(choice.get("message"))), reason)
            )
    names = [value.get(name) for name in ("id", "model", "object")]
    known = [name if isinstance(name, str) else None for name in names]
    usage, error = value.get("usage", UNSET), value.get("error", UNSET)
    return _Body(
        known[0], known[1], body_choices, usage, error, known[2], value.get("message"), value.get("service_tier")
    )


# Rules by which the fields of deltas add up to the fields of a message, unknown fields included.
#
# Strings are continued. Objects grow field by field. List entries with an `index` grow separately, and other
# entries are appended. Everything else is replaced. The SDKs do the same, so the client will send back the same
# fields. Growing strings are kept in buffers, because concatenating a long answer piece by piece would be
# quadratic.


REPLACED_FIELDS = frozenset({"id", "type", "role", "index", "object", "format"})
"""Strings that name something; a repeated value replaces the old one instead of continuing it."""
MAX_DEPTH = 16
"""Deeper values are replaced as a whole."""
ENTRY_OVERHEAD = 64
"""Characters charged for an entry in addition to its text, so that a million empty entries are bounded too."""


class CaptureLimit:
    """The number of characters that may still be captured."""

    __slots__ = ("left",)

    def __init__(self, room: int) -> None:
        self.left = room

    def reserve_chars(self, size: int) -> bool:
        """Tell if there is room for `size` characters; after a refusal there is no room for fewer characters either."""
        self.left = self.left - size if size <= self.left else -1
        return self.left >= 0


class IndexedList:
    """A list that grows: entries with an index are found by their index."""

    __slots__ = ("by_index", "entries")

    def __init__(self) -> None:
        self.entries: list[Any] = []
        self.by_index: dict[int, dict[str, Any]] = {}


def merge_value(old: Any, new: Any, capture_limit: CaptureLimit, depth: int = 0) -> Any:
    """Return `old` grown by `new`. old: an earlier result, None at first. Nothing is added without room."""
    if new is None:
        return old
    if isinstance(new, str):
        if not capture_limit.reserve_chars(len(new) + (0 if isinstance(old, StringIO) else ENTRY_OVERHEAD)):
            return old
        if not isinstance(old, StringIO):
            old = StringIO()
        old.write(new)
        return old
    if depth >= MAX_DEPTH or not isinstance(new, dict | list):
        return new if capture_limit.reserve_chars(ENTRY_OVERHEAD) else old
    if isinstance(new, dict):
        if not isinstance(old, dict) and not capture_limit.reserve_chars(ENTRY_OVERHEAD):
            return old
        fields: dict[str, Any] = old if isinstance(old, dict) else {}
        merge_fields(fields, new, capture_limit, depth + 1)
        return fields
    rows = old if isinstance(old, IndexedList) else IndexedList()
    for entry in new:
        _add_entry(rows, entry, capture_limit, depth + 1)
    return rows


def merge_fields(fields: dict[str, Any], new: dict[str, Any], capture_limit: CaptureLimit, depth: int = 0) -> None:
    """Add the fields of one delta to the fields of a message."""
    for name, value in new.items():
        if name in REPLACED_FIELDS and isinstance(value, str):
            if value and fields.get(name) != value and capture_limit.reserve_chars(len(value)):
                fields[name] = value
        else:
            grown = merge_value(fields.get(name), value, capture_limit, depth)
            if grown is not None:
                fields[name] = grown


def _add_entry(rows: IndexedList, entry: Any, room: CaptureLimit, depth: int) -> None:
    index = entry.get("index") if isinstance(entry, dict) else None
    known = rows.by_index.get(index) if isinstance(index, int) else None
    if known is not None:
        merge_fields(known, entry, room, depth + 1)
        return
    merged = merge_value(None, entry, room, depth)
    if merged is None:
        return
    rows.entries.append(merged)
    if isinstance(index, int) and isinstance(merged, dict):
        rows.by_index[index] = merged


def build_json_value(value: Any, depth: int = 0) -> Any:
    """Return the JSON value that a grown value stands for."""
    if isinstance(value, StringIO):
        return value.getvalue()
    if depth >= MAX_DEPTH:
        return value
    if isinstance(value, IndexedList):
        return [build_json_value(entry, depth + 1) for entry in value.entries]
    if isinstance(value, dict):
        return {name: build_json_value(entry, depth + 1) for name, entry in value.items()}
    return value
