"""Relay of a Responses stream through the proxy.

If nothing must be removed, the incoming bytes go out at once and uncopied. The last event holds the whole response and
is kept back in both cases. The exchange sends it when the client's view of the answer is on disk. If the model calls
tools of the proxy, one answer to the client consists of several rounds. Each round has a relay, made after the relay of
the round before. All of them go under the id of the first round."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from proxy.dialects.responses import stream as responses_stream
from proxy.stream.answer_relay import NO_OPTIONS, RelayOptions
from proxy.stream.block_filter import BlockFilter
from proxy.stream.completions_relay import RewrittenStream
from proxy.stream.responses_answer import ResponsesAnswer
from proxy.stream.responses_rewriter import ResponsesRewriter
from proxy.stream.sse import SseEvent

_HEADS: Final = tuple(
    form % name.encode()
    for name in responses_stream.ENDINGS
    for form in (b"event: %b", b"event:%b", b'data: {"type":"%b"', b'data:{"type":"%b"', b'data: {"type": "%b"')
)
"""Beginnings of an event that ends an answer."""


class ResponsesRelay(RewrittenStream):
    """The relay of one round. `drop_usage` is ignored, since a response always has its usage. The events repeat the
    client's own instructions, and its `tools` without the definitions of hidden tools."""

    __slots__ = ("_is_unedited", "_rewriter", "answer")

    def __init__(self, options: RelayOptions = NO_OPTIONS, previous: ResponsesRelay | None = None) -> None:
        super().__init__(options.limit, previous)
        self.answer: ResponsesAnswer = ResponsesAnswer(options.limit) if previous is None else previous.answer
        self._is_unedited = not (
            options.withheld or options.hidden_tools or previous or options.echo.instructions is not None
        )
        self._rewriter: ResponsesRewriter = ResponsesRewriter(
            self.answer, options, previous._rewriter if previous else None
        )

    def _list_filters(self) -> Iterable[BlockFilter]:
        return self._rewriter.block_filters

    def build_round_message(self) -> bytes | None:
        return self._rewriter.build_round_message()

    def feed(self, data: bytes) -> bytes:
        if self.has_ended:
            self._take_rest(data)
            return b""
        events = self._parser.feed(data)
        if self._parser.overflowed:
            self.answer.is_capped = self._rewriter.round_answer.is_capped = True
        if self._is_unedited:
            return self._relay_unchanged(data, events)
        out: list[bytes] = []
        for position, event in enumerate(events):
            if self._take_event(event, out):
                for later in events[position + 1 :]:
                    self._keep_rest(later)
                break
        return b"".join(out)

    def _take_event(self, event: SseEvent, out: list[bytes]) -> bool:
        """Append the bytes to pass on for one event. Return True if it is the last one."""
        value = responses_stream.read_event(event.data) if event.data is not None else None
        if value is None:
            if event.data is not None:
                self.answer.unparsed += 1
            if not self._may_hide(event):
                out.append(event.raw)
            return False
        if value["type"] not in responses_stream.ENDINGS:
            self._rewriter.rewrite_event(event, value, out)
            return False
        self.has_ended = True
        self.terminal = self._rewriter.finish(event, value, out)
        return True

    def _may_hide(self, event: SseEvent) -> bool:
        """True if an event that cannot be read may hold text or calls which the client must not see."""
        if event.data is None:
            hides = self._parser.overflowed and event.raw[:1] not in (b":", b"\n", b"\r")
        else:
            hides = b"output" in event.raw
        self._rewriter.round_answer.is_capped |= hides
        return hides

    def _take_rest(self, data: bytes) -> None:
        if self._is_unedited:
            self.terminal += data[: max(self._limit - len(self.terminal), 0)]
            return
        for event in self._parser.feed(data):
            self._keep_rest(event)

    def _keep_rest(self, event: SseEvent) -> None:
        """Keep the end marker that some servers send after the last event."""
        if self.terminal and event.data is not None and event.data.startswith(b"[DONE]"):
            self.terminal += event.raw

    def end(self) -> bytes:
        if self.has_ended:
            return b""
        self.has_ended = True
        unfinished = self._parser.flush()
        if self._is_unedited:
            return self._end_unchanged(unfinished)
        out: list[bytes] = []
        event = unfinished[0] if unfinished else None
        if event is not None and event.data is not None and responses_stream.read_event(event.data) is not None:
            name = b"event: " + event.name + b"\n" if event.name else b""
            raw = name + b"data: " + event.data.replace(b"\n", b"\ndata: ") + b"\n\n"
            if self._take_event(SseEvent(raw, event.data, event.name), out):
                return b"".join(out)
        self._rewriter.break_off(out)
        if event is not None and event.data is None:
            self._end_unread(event.raw, b"output", out, may_pass=not self._parser.overflowed)
        return b"".join(out)

    def end_answer(self) -> bytes:
        out: list[bytes] = []
        self.terminal = self._rewriter.end_answer(out)
        self.answer.is_done = True
        return b"".join(out)

    def _relay_unchanged(self, data: bytes, events: list[SseEvent]) -> bytes:
        """Relay without edits: return everything except bytes that may be the beginning of the end."""
        dropped: list[bytes] = []
        for position, event in enumerate(events):
            if event.data is not None and self._take_event(event, dropped):
                ready = b"".join([one.raw for one in events[:position]])
                rest = b"".join([one.raw for one in events[position:]]) + bytes(self._parser.pending)
                self.terminal = rest[self._given :] if position == 0 else rest
                return ready[self._given :]
        return self._hold_possible_end(data, has_events=bool(events))

    def _may_be_end(self, begun: bytearray) -> bool:
        return any(head.startswith(begun[: len(head)]) for head in _HEADS)

    def _end_unchanged(self, unfinished: list[SseEvent]) -> bytes:
        kept, self._kept = self._kept, b""
        if not unfinished:
            return b""
        self.is_unfinished = True
        event = unfinished[0]
        if event.data is not None and self._take_event(event, []):
            self.terminal = kept and kept + b"\n"
            self.is_unfinished = not kept
            return b""
        return kept
