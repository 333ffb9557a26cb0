"""Server-sent events: bytes in, events out, and every byte accounted for.

The raw bytes of all events, put together, are exactly the bytes that were fed. A relay can therefore pass on the bytes
and read them too. Line ends may be LF, CRLF or CR. Providers send streams of LF lines, which are cut with `bytes.find`
alone. The work is linear in the bytes fed, however they are cut. At most `limit` bytes of one event are held.
"""

from __future__ import annotations

import re

import msgspec

from proxy.chat.json_spans import has_more_values

EVENT_LIMIT = 8 << 20
MAX_VALUES = 100_000
"""JSON values of one event. They are decoded in one call and walked in Python: three million numbers in one event held
every other request for 100 s."""
MAX_LINES = 10_000
"""Lines of one event. Providers write one or two. A line costs a third of a microsecond, however few bytes it has."""
_BOM = b"\xef\xbb\xbf"
_FIELDS = (b"data:", b"event:", b"id:", b"retry:", b":")
"""Beginnings of a line of a stream. No JSON begins like one of them."""
_DONE = (b"data: [DONE]", b"data:[DONE]")
# The end of a line and a blank line after it, in a stream with carriage returns.
_BLANK = re.compile(rb"\n\n|\n\r\n?|\r\r\n?")
_LINE_ENDS = re.compile(rb"[\r\n]+")
_COLON, _LF, _CR = b":\n\r"
# A byte is looked for as a number: for `b"\r" in data` Python raises and drops an error first.


class SseEvent(msgspec.Struct, frozen=True, gc=False):
    raw: bytes
    """The bytes of the event, blank line included."""
    data: bytes | None = None
    """The values of its data lines joined by newlines; None if it has none. Comments, blank lines, and events that were
    too large or broke off have none."""
    name: bytes | None = None
    """The value of the `event` line."""


class SseParser:
    """Cut a stream into events. `feed` returns the events that are complete, `flush` the rest when the stream has
    ended.

    drops_mark: a byte order mark at the beginning is left out, since the stream goes on after another one. pending:
    the bytes of the event that is not complete yet. overflowed: an event was larger than `limit`, or had more than
    MAX_VALUES values or MAX_LINES lines; it was passed on in raw pieces without data.
    """

    __slots__ = ("_after", "_drops_mark", "_limit", "_returns", "_short", "_skipping", "overflowed", "pending")

    def __init__(self, limit: int = EVENT_LIMIT, *, drops_mark: bool = False) -> None:
        self._drops_mark = drops_mark
        self.pending = bytearray()
        self.overflowed = False
        self._limit = limit
        self._short = min(limit, MAX_LINES)
        """Bytes up to which an event is read without a look at its bounds."""
        self._returns = False  # a carriage return was seen
        self._skipping = False  # inside an event that is too large
        self._after = b""  # its last bytes, in which its end may begin

    def feed(self, data: bytes) -> list[SseEvent]:
        """Return the events that these bytes complete."""
        events: list[SseEvent] = []
        if not self._returns and _CR in data:
            self._returns = True
        if self._skipping:
            data = self._skip(data, events)
        old = len(self.pending)
        if old:
            self.pending += data
            scan = max(old - 2, 0)
            if self._find_event_end(self.pending, scan) is not None:
                whole = bytes(self.pending)
                self.pending = bytearray(whole[self._cut_events(whole, scan, events) :])
                old = 0
        else:
            start = self._cut_events(data, 0, events)
            if start < len(data):
                self.pending += data[start:] if start else data
        if self.pending:
            self._shed(old, events)
            if len(self.pending) > self._limit:
                self._overflow(events)
        if self._drops_mark and events:
            self._drop_mark(events)
        return events

    def flush(self) -> list[SseEvent]:
        """Return the rest as an event with the data of its complete lines; a line that broke off counts if [DONE]."""
        unfinished = bytes(self.pending)
        self.pending = bytearray()
        if not unfinished:
            return []
        if self._drops_mark:
            unfinished = unfinished.removeprefix(_BOM)
        cut = max(unfinished.rfind(b"\n"), unfinished.rfind(b"\r")) + 1
        event = self._read_bounded(unfinished[:cut])
        if event.data is None and unfinished[cut:].rstrip() in _DONE:
            return [SseEvent(unfinished, b"[DONE]", event.name)]
        return [SseEvent(unfinished, event.data, event.name)]

    def _drop_mark(self, events: list[SseEvent]) -> None:
        """Leave the byte order mark out of the first event of the stream."""
        self._drops_mark = False
        events[0] = msgspec.structs.replace(events[0], raw=events[0].raw.removeprefix(_BOM))

    def _find_event_end(self, text: bytes | bytearray, scan: int) -> int | None:
        """Return the end of the first event that ends after `scan`; None if there is none."""
        if not self._returns:
            found = text.find(b"\n\n", scan)
            return found + 2 if found >= 0 else None
        match = _BLANK.search(text, scan)
        if match is None or (match.end() == len(text) and match[0] == b"\n\r"):
            return None  # a newline that belongs to this return may follow
        return match.end()

    def _cut_events(self, text: bytes, scan: int, events: list[SseEvent]) -> int:
        """Append the complete events of `text` and return the position of the rest."""
        start = 0
        while True:
            # Without carriage returns as `_find_event_end` does it, but without a call for each event.
            end = (self._find_event_end(text, scan) or 0) if self._returns else text.find(b"\n\n", scan) + 2
            if end < 2:
                return start
            if end - start <= 4 and (blank := _LINE_ENDS.match(text, start)) is not None:
                end = blank.end()  # megabytes of blank lines were a million events
            raw = text[start:end]
            events.append(_read_event(raw) if len(raw) <= self._short else self._read_bounded(raw))
            start = scan = end

    def _read_bounded(self, raw: bytes) -> SseEvent:
        """Return the event in these bytes, without its data if it is too large to be read."""
        is_large = len(raw) > self._limit or max(raw.count(b"\n"), raw.count(b"\r")) > MAX_LINES
        if is_large or has_more_values(raw, MAX_VALUES):
            self.overflowed = True
            return SseEvent(raw)
        return _read_event(raw)

    def _shed(self, old: int, events: list[SseEvent]) -> None:
        """Release comments and blank lines at the beginning at once: a keep-alive that is late has no use.

        old: the number of pending bytes that were searched before.
        """
        pending, start = self.pending, 0
        while start < len(pending) and pending[start] in (_COLON, _LF, _CR):
            end = pending.find(b"\n", max(start, old)) + 1
            if not end or (self._returns and pending.find(b"\r", start, max(end - 2, start)) >= 0):
                break
            start = end
        if start:
            events.append(SseEvent(bytes(pending[:start])))
            del pending[:start]

    def _overflow(self, events: list[SseEvent]) -> None:
        raw = bytes(self.pending)
        self.overflowed = self._skipping = True
        self.pending = bytearray()
        self._after = raw[-2:]
        events.append(SseEvent(raw))

    def _skip(self, data: bytes, events: list[SseEvent]) -> bytes:
        """Pass the bytes of an event that is too large; return the bytes after its end."""
        seen = self._after + data
        end = self._find_event_end(seen, 0)
        cut = len(data) if end is None else max(end - len(self._after), 0)
        if cut:
            events.append(SseEvent(data[:cut]))
        self._after = seen[-2:]
        self._skipping = end is None
        return data[cut:]


def _read_event(raw: bytes) -> SseEvent:
    """Return the event in these bytes."""
    if raw.startswith(b"data:") and raw.find(b"\n") == len(raw) - 2 and raw.endswith(b"\n\n") and _CR not in raw:
        return SseEvent(raw, raw[6:-2] if raw[5] == 0x20 else raw[5:-2])
    if raw.startswith(b"event: ") and raw.endswith(b"\n\n") and _CR not in raw:  # as Messages and Responses have it
        end = raw.find(b"\n")
        if raw.startswith(b"data: ", end + 1) and raw.find(b"\n", end + 1) == len(raw) - 2:
            return SseEvent(raw, raw[end + 7 : -2], raw[7:end])
    text = raw.removeprefix(_BOM)
    if b"\r" in text:
        text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    values: list[bytes] = []
    name = None
    at = 0
    while at < len(text):
        end = text.find(b"\n", at)
        end = len(text) if end < 0 else end
        if text.startswith(b"data:", at):
            values.append(_strip_space(text[at + 5 : end]))
        elif text.startswith(b"event:", at):
            name = _strip_space(text[at + 6 : end])
        elif end - at == 4 and text.startswith(b"data", at):
            values.append(b"")
        at = end + 1
    return SseEvent(raw, b"\n".join(values) if values else None, name)


def _strip_space(text: bytes) -> bytes:
    return text[1:] if text.startswith(b" ") else text


def begins_stream(body: bytes | bytearray) -> bool:
    """True if these bytes are a stream of events, whatever their media type says."""
    return body.lstrip().startswith(_FIELDS)


def is_loose_text(rest: bytes) -> bool:
    """True if the last bytes of a stream are text beside its events: an error page, or an error as bare JSON. Half an
    event is none, because it may hold anything."""
    begun = rest.lstrip()[:6]
    return bool(begun) and not any(field.startswith(begun[: len(field)]) for field in _FIELDS)


def replace_data(event: SseEvent, data: bytes) -> bytes:
    """Return the event's bytes with other data; its other lines, its line ends and its format stay."""
    raw = event.raw
    at = 6 if raw[5:6] == b" " else 5
    if event.data is not None and raw.startswith(b"data:") and raw.startswith(event.data, at):
        rest = raw[at + len(event.data) :]
        if not rest.strip(b"\r\n"):
            return raw[:at] + data + rest
    lines: list[bytes] = []
    written = False
    old = raw.splitlines(keepends=True)
    if len({line[len(line.rstrip(b"\r\n")) :] for line in old}) > 1:
        # Of mixed ends, one that moves before another would make one end of two.
        old = [line.rstrip(b"\r\n") + b"\n" for line in old]
    for line in old:
        bare = line.removeprefix(_BOM)
        if not bare.startswith(b"data:"):
            lines.append(line)
        elif not written:
            end = line[len(line.rstrip(b"\r\n")) :]
            mark = line[: len(line) - len(bare)]
            lines += [mark + b"data: " + part + end for part in data.split(b"\n")]
            written = True
    return b"".join(lines)
