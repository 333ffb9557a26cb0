"""The way of a stream through the proxy: bytes on to the client, what was learnt from them beside them.

Where nothing is to be taken out, the bytes that came are the bytes that go, at once and uncopied, and parsing them
only fills the `Answer`. Otherwise each event goes on as soon as it is complete, unchanged unless it holds what the
client must not see. Either way the end of the stream is kept back: whoever runs the exchange sends it when what the
client has seen is on disk.
"""

from __future__ import annotations

from msgspec import UNSET

from proxy.chat import slices
from proxy.memory import state
from proxy.stream.assemble import CHOICES_MAX, Answer
from proxy.stream.chunk import Choice, Chunk, read_chunk, read_json, write_json
from proxy.stream.sse import LIMIT, Event, Parser, with_data
from proxy.stream.withhold import StateFilter, with_texts

_PROBE = 64
"""So many bytes of an unfinished event may be kept back until it is known whether it is the last one."""
_JSON = (b"data: {", b"data:{")
_USAGE = b'"usage"'
_CONTENT = b'"content"'
_BACKSLASH = 0x5C


class Relay:
    """One stream. Feed it what upstream sends, send on what it gives, then `end`, then `terminal`.

    withhold_state: blocks are taken out of the text. headings: which, STATE blocks where none are named. drop_usage:
    the client did not ask for usage, we did.
    answer: what the client has got, added up (with usage, without what was withheld). terminal: the [DONE] event
    and whatever came after it, b"" if none came. unfinished: what was given out ends within an event; anything of
    our own that follows has to be preceded by a blank line.
    """

    __slots__ = (
        "_drop_usage", "_edits", "_filters", "_given", "_greeted", "_headings", "_kept", "_late", "_limit", "_parser",
        "_withhold", "answer", "terminal", "unfinished",
    )  # fmt: skip

    def __init__(
        self, *, withhold_state: bool, drop_usage: bool, limit: int = LIMIT, headings: tuple[str, ...] = state.HEADINGS
    ) -> None:
        self._headings = headings
        self.answer = Answer(limit)
        self.terminal = b""
        self.unfinished = False
        self._limit = limit
        self._withhold = withhold_state
        self._drop_usage = drop_usage
        self._edits = withhold_state or drop_usage
        self._parser = Parser(limit)
        self._given = 0  # bytes of the unfinished event that have gone out (without edits)
        self._kept = b""  # or, if none has, all of it
        self._filters: dict[int, StateFilter] = {}
        self._late: dict[int, Event] = {}  # by choice: the event whose text was held back last
        self._greeted: set[int] = set()  # choices whose role has gone out

    @property
    def blocks(self) -> list[str]:
        """The bodies of the STATE blocks withheld from the first choice, in their order."""
        held = self._filters.get(0)
        return held.blocks if held else []

    @property
    def others(self) -> list[str]:
        """The same of the blocks under all other headings."""
        held = self._filters.get(0)
        return held.others if held else []

    def feed(self, data: bytes) -> bytes:
        """What may go to the client now."""
        if self.answer.done:
            self.terminal += data[: max(self._limit - len(self.terminal), 0)]
            return b""
        before = len(self._parser.pending)
        events = self._parser.feed(data)
        self._note_overflow()
        if not self._edits:
            return self._straight(data, events)
        out: list[bytes] = []
        changed = before > 0
        for position, event in enumerate(events):
            if event.data is None:
                out.append(event.raw)
            elif _is_done(event):
                self._end_texts(out)
                self._close(events[position:])
                return b"".join(out)
            else:
                changed = self._pass(event, out) or changed
        if not changed and not self._parser.pending:
            return data
        return b"".join(out)

    def end(self) -> bytes:
        """What is left when upstream has closed: text that was held back, and the bytes of an unfinished event."""
        if self.answer.done:
            return b""
        rest = self._parser.flush()
        out = self._last_edited(rest) if self._edits else self._last_straight(rest)
        return b"".join(out)

    def _last_straight(self, rest: list[Event]) -> list[bytes]:
        if not rest:
            return []
        event, kept = rest[0], self._kept
        self._kept = b""
        self.unfinished = True
        if event.data is None:
            return [kept]
        self.answer.add(event.data)
        if not _is_done(event):
            return [kept]
        self.unfinished = not kept
        self.terminal = kept
        return []

    def _last_edited(self, rest: list[Event]) -> list[bytes]:
        out: list[bytes] = []
        event = rest[0] if rest else None
        if event is not None and event.data is not None and not _is_done(event):
            self._pass(event, out, last=True)  # it lacks its blank line, so nothing may follow: held text joins it
        else:
            self._end_texts(out)
            if event is not None and event.data is not None:
                self._close([event])
            elif event is not None:
                out.append(event.raw)
        self.unfinished = bool(out) and not out[-1].endswith((b"\n\n", b"\r\n\r\n", b"\r\r"))
        return out

    def _note_overflow(self) -> None:
        if self._parser.overflowed:
            self.answer.capped = True

    def _close(self, events: list[Event]) -> None:
        """The stream has said that it is over: the rest is kept for the exchange to send."""
        self.answer.done = True
        self.terminal = b"".join([event.raw for event in events]) + bytes(self._parser.pending)

    def _straight(self, data: bytes, events: list[Event]) -> bytes:
        """Without edits: everything goes, but for what may be the beginning of the end."""
        answer = self.answer
        for position, event in enumerate(events):
            if event.data is None:
                continue
            if _is_done(event):
                ready = b"".join([one.raw for one in events[:position]])
                self._close(events[position:])
                if position == 0:
                    self.terminal = self.terminal[self._given :]
                return ready[self._given :]
            chunk = read_chunk(event.data)
            if chunk is None:
                answer.unparsed += 1
            else:
                answer.take(chunk)
        pending = self._parser.pending
        if self._kept:
            data = self._kept + data
            self._kept = b""
        if not pending:
            self._given = 0
        elif (events or not self._given) and len(pending) < _PROBE and not pending.startswith(_JSON):
            self._given = 0
            self._kept = bytes(pending)
            return data[: len(data) - len(pending)]
        else:
            self._given = len(pending)
        return data

    def _pass(self, event: Event, out: list[bytes], last: bool = False) -> bool:
        """Appends what goes on of one event. Gives whether that is anything else than its bytes."""
        data = event.data or b""
        chunk = read_chunk(data)
        if chunk is None:
            self.answer.unparsed += 1
            out.append(event.raw)
            return False
        before = len(out)
        shown: dict[int, str] = {}
        if self._withhold:
            if last:
                self._end_texts(out, {choice.index for choice in chunk.choices or ()})
            shown = self._visible(event, chunk, out, last)
        self.answer.take(chunk, shown)
        late = len(out) > before
        if shown:
            if not last and self._empty(chunk, shown):
                return True
            data = _with_texts(data, chunk.choices or [], shown)
        if self._withhold:
            for choice in chunk.choices or ():
                if choice.delta and "role" in choice.delta:
                    self._greeted.add(choice.index)
        if self._drop_usage and chunk.usage is not UNSET and not chunk.failed:
            if chunk.usage is None:
                data = _without_usage(data)
            elif not chunk.choices:
                return True
        if data is event.data:
            out.append(event.raw)
            return late
        out.append(with_data(event, data))
        return True

    def _visible(self, event: Event, chunk: Chunk, out: list[bytes], last: bool) -> dict[int, str]:
        """By position, the texts of this chunk that the client gets instead of upstream's.

        Held text that has to come before the chunk is appended as a chunk of its own.
        """
        shown: dict[int, str] = {}
        if chunk.failed:
            for index, each in self._filters.items():
                self._send_late(index, each.flush(), out)
            return shown
        for position, choice in enumerate(chunk.choices or ()):
            delta = choice.delta or {}
            index = choice.index
            held = self._filters.get(index)
            if held is None:
                if len(self._filters) >= CHOICES_MAX:
                    continue
                held = self._filters[index] = StateFilter(self._headings)
            content = delta.get("content")
            ends = last or bool(choice.finish_reason)  # some servers send "" with every chunk
            calls = bool(delta.get("tool_calls") or delta.get("function_call"))
            if type(content) is str and (content or last):
                visible = held.feed(content)
                if ends or calls:
                    visible += held.end() if ends else held.flush()
                if visible != content:
                    shown[position] = visible
                    self._late[index] = event
            elif ends or calls:
                self._send_late(index, held.end() if ends else held.flush(), out)
        return shown

    def _empty(self, chunk: Chunk, shown: dict[int, str]) -> bool:
        """Whether nothing is left of a chunk that the client would miss."""
        if chunk.usage is not UNSET and chunk.usage is not None:
            return False
        for position, choice in enumerate(chunk.choices or ()):
            if shown.get(position) != "" or choice.finish_reason:
                return False
            for name, value in (choice.delta or {}).items():
                if name == "content" or value is None or (name == "role" and choice.index in self._greeted):
                    continue
                return False
        return True

    def _end_texts(self, out: list[bytes], besides: set[int] | frozenset[int] = frozenset()) -> None:
        for index, held in self._filters.items():
            if index not in besides:
                self._send_late(index, held.end(), out)

    def _send_late(self, index: int, text: str, out: list[bytes]) -> None:
        """Appends a chunk for text that was held back: the chunk that it came in, with this text as its only choice."""
        if not text:
            return
        self.answer.show(text, index)
        event = self._late[index]
        choice = write_json([{"index": index, "delta": {"content": text}, "finish_reason": None}])
        data = event.data or b""
        try:
            usage = slices.value(data, "usage")
            data = slices.with_member(data, "choices", choice)
            if usage is not None and (usage != b"null" or self._drop_usage):
                data = slices.without_member(data, "usage")
        except ValueError:
            data = b'{"object":"chat.completion.chunk","choices":' + choice + b"}"
        out.append(with_data(event, data))


def _is_done(event: Event) -> bool:
    return event.data is not None and event.data.startswith(b"[DONE]")


def _with_texts(data: bytes, choices: list[Choice], shown: dict[int, str]) -> bytes:
    """The chunk with other texts. Where `content` stands in it but once, it is found without walking through it."""
    at = data.find(_CONTENT)
    if len(choices) == 1 and at >= 0 and data.find(_CONTENT, at + 1) < 0:
        start = data.find(b'"', at + len(_CONTENT))
        if start >= 0 and not data[at + len(_CONTENT) : start].strip(b" :"):
            end = _string_end(data, start)
            if slices.string(data[start:end]) == (choices[0].delta or {}).get("content"):
                return data[:start] + write_json(shown[0]) + data[end:]
    return with_texts(data, "delta", shown)


def _string_end(data: bytes, start: int) -> int:
    """Where the JSON string ends that begins at `start`."""
    end = start
    while (end := data.find(b'"', end + 1)) >= 0:
        escape = end
        while data[escape - 1] == _BACKSLASH:
            escape -= 1
        if (end - escape) % 2 == 0:
            return end + 1
    return len(data)


def _without_usage(data: bytes) -> bytes:
    """The chunk without its member `usage`, which is null."""
    if data.count(_USAGE) == 1:  # so it is the chunk's own, and no member of something in it
        for form in (b',"usage":null', b', "usage": null', b',"usage": null'):
            at = data.find(form)
            if at >= 0:
                return data[:at] + data[at + len(form) :]
    try:
        return slices.without_member(data, "usage")
    except ValueError:
        value = read_json(data)
        value.pop("usage", None)
        return write_json(value)
