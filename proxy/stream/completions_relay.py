"""Relay of a stream of chat completions: bytes are passed on, and facts read from them fill an `AssembledAnswer`.

If nothing must be removed, the incoming bytes go out at once and uncopied, and parsing them only fills the
`AssembledAnswer`. Otherwise each event is passed on as soon as it is complete. It stays unchanged unless it holds
hidden content. In both cases the end of the stream is kept back. The exchange sends the end when the client's view of
the answer is on disk.

A model may call tools of the proxy. Then one answer to the client consists of several answers of upstream, called
rounds. Each round has a relay, made with the relay of the round before as `previous`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable

from proxy.dialects.completions.stream import read_chunk
from proxy.dialects.usage import Usage
from proxy.stream.answer_relay import NO_OPTIONS, AnswerRelay, RelayOptions
from proxy.stream.block_filter import BlockFilter
from proxy.stream.completions_answer import AssembledAnswer
from proxy.stream.completions_rewriter import CompletionsRewriter
from proxy.stream.responses_rewriter import ResponsesRewriter
from proxy.stream.sse import SseEvent
from proxy.stream.tool_call_filter import HiddenCall

_PROBE = 64
"""Bytes of an unfinished event that may be kept back until it is known if the event is the last one."""
_JSON = (b"data: {", b"data:{")
_CALLS = b'"tool_calls"'
_END = b"data: [DONE]\n\n"
_DONE = b"[DONE]"
"""The beginning of the data of the event that ends a stream."""


class RewrittenStream(AnswerRelay):
    """The part that the relays of chat completions and of Responses share.

    It has the facts about a round that the rewriter of its events finds, and the bytes of a stream that goes out
    unedited."""

    __slots__ = ("_given", "_kept", "_limit")
    _rewriter: CompletionsRewriter | ResponsesRewriter

    def __init__(self, limit: int, previous: AnswerRelay | None) -> None:
        super().__init__(limit, previous)
        self._limit = limit
        self._given = 0
        """Bytes of the unfinished event that were sent, in a stream without edits."""
        self._kept = b""
        """All bytes of that event, if none were sent."""

    @property
    def hidden_calls(self) -> list[HiddenCall]:
        return self._rewriter.hidden_calls

    @property
    def shown_calls(self) -> int:
        return self._rewriter.shown_calls

    @property
    def goes_on(self) -> bool:
        return self._rewriter.goes_on

    @property
    def round_usage(self) -> Usage | None:
        return self._rewriter.round_usage

    def drop_held_text(self) -> None:
        self._rewriter.drop_held_text()

    @abstractmethod
    def _may_be_end(self, begun: bytearray) -> bool:
        """True if an unfinished event may be the last one. begun: its bytes so far."""

    def _hold_possible_end(self, data: bytes, *, has_events: bool) -> bytes:
        """Return the bytes that go out of an unedited stream: all but an unfinished event that may be the last one.
        has_events: these bytes have ended an event."""
        pending = self._parser.pending
        if self._kept:
            data = self._kept + data
            self._kept = b""
        if not pending:
            self._given = 0
        elif (has_events or not self._given) and self._may_be_end(pending):
            self._given = 0
            self._kept = bytes(pending)
            return data[: len(data) - len(pending)]
        else:
            self._given = len(pending)
        return data


class CompletionsRelay(RewrittenStream):
    """The relay of a stream of chat completions.

    Chunks of a later round get the id, created, model and system_fingerprint of the first one. They get no second role,
    and the usage counts the completions of all rounds. `terminal` is the [DONE] event and, if no calls are hidden,
    everything that came after it.
    """

    __slots__ = ("_cutting", "_is_unedited", "_rewriter", "answer")

    def __init__(self, options: RelayOptions = NO_OPTIONS, previous: CompletionsRelay | None = None) -> None:
        super().__init__(options.limit, previous)
        self.answer: AssembledAnswer = AssembledAnswer(options.limit) if previous is None else previous.answer
        self._is_unedited = not (options.withheld or options.drop_usage or options.hidden_tools or previous)
        self._cutting = False  # within an event that is too large and may hold hidden calls
        self._rewriter: CompletionsRewriter = CompletionsRewriter(
            self.answer, options, previous._rewriter if previous else None
        )

    def _list_filters(self) -> Iterable[BlockFilter]:
        held = self._rewriter.block_filters.get(0)  # of the first choice
        return () if held is None else (held,)

    def build_round_message(self) -> bytes | None:
        of_round = self._rewriter.round_answer
        return (self.answer if of_round is None else of_round).build_message()

    def feed(self, data: bytes) -> bytes:
        if self.has_ended:
            if self._rewriter.round_answer is None:
                self.terminal += data[: max(self._limit - len(self.terminal), 0)]
            return b""
        before = len(self._parser.pending)
        events = self._parser.feed(data)
        self._note_overflow()
        if self._is_unedited:
            return self._relay_unchanged(data, events)
        out: list[bytes] = []
        rewrite = self._rewriter.rewrite_event
        changed = before > 0
        for position, event in enumerate(events):
            if event.data is None:
                if self._may_pass(event):
                    out.append(event.raw)
                else:
                    changed = True
            elif event.data.startswith(_DONE):
                self._rewriter.flush_texts(out)
                self._rewriter.end_round(out, complete=True)
                self._close(events[position:])
                return b"".join(out)
            else:
                self._cutting = False
                changed = rewrite(event, out) or changed
        if not changed and not self._parser.pending:
            return data
        return b"".join(out)

    def end(self) -> bytes:
        if self.has_ended:
            return b""
        self.has_ended = True
        unfinished = self._parser.flush()
        if self._is_unedited:
            out = self._end_unchanged(unfinished)
        elif self._rewriter.round_answer is None:
            out = self._end_edited(unfinished)
        else:
            out = self._end_round(unfinished)
        return b"".join(out)

    def end_answer(self) -> bytes:
        out: list[bytes] = []
        self._rewriter.end_answer(out)
        self.answer.is_done = True
        self.terminal = _END
        return b"".join(out)

    def _end_unchanged(self, unfinished: list[SseEvent]) -> list[bytes]:
        if not unfinished:
            return []
        event, kept = unfinished[0], self._kept
        self._kept = b""
        self.is_unfinished = True
        if event.data is None:
            return [kept]
        self.answer.add_event(event.data)
        if not _is_done(event):
            return [kept]
        self.is_unfinished = not kept
        self.terminal = kept
        return []

    def _end_edited(self, unfinished: list[SseEvent]) -> list[bytes]:
        out: list[bytes] = []
        event = unfinished[0] if unfinished else None
        if event is not None and event.data is not None and not _is_done(event):
            self._rewriter.rewrite_event(event, out, last=True)  # no blank line: nothing may follow, held text joins it
        else:
            self._rewriter.flush_texts(out, broken=event is None or not _is_done(event))
            if event is not None and event.data is not None:
                self._close([event])
            elif event is not None:
                out.append(event.raw)
        self.is_unfinished = bool(out) and not out[-1].endswith((b"\n\n", b"\r\n\r\n", b"\r\r"))
        return out

    def _end_round(self, unfinished: list[SseEvent]) -> list[bytes]:
        """Return the last bytes of a round. Half an event is not sent, because a hidden call may be in it."""
        out: list[bytes] = []
        event = unfinished[0] if unfinished else None
        done = event is not None and _is_done(event)
        if event is not None and event.data is not None and not done:
            raw = b"data: " + event.data.replace(b"\n", b"\ndata: ") + b"\n\n"
            self._rewriter.rewrite_event(SseEvent(raw, event.data), out)
        self._rewriter.flush_texts(out, broken=not done)
        self._rewriter.end_round(out, complete=done)
        if event is not None and event.data is None:
            self._end_unread(event.raw, _CALLS, out, may_pass=not self._cutting)
        if event is not None and done:
            self._close([event])
        return out

    def _note_overflow(self) -> None:
        if self._parser.overflowed:
            self.answer.is_capped = True
            if self._rewriter.round_answer is not None:
                self._rewriter.round_answer.is_capped = True

    def _may_pass(self, event: SseEvent) -> bool:
        """True if bytes without data may pass. They may be a piece of an event that was too large to be read."""
        if self._parser.overflowed and self._rewriter.round_answer is not None:
            self._cutting = self._cutting or _CALLS in event.raw
        return not self._cutting

    def _close(self, events: list[SseEvent]) -> None:
        """Close the stream after its end marker: the rest is kept for the exchange to send."""
        self.has_ended = True
        if self.goes_on:
            return
        self.answer.is_done = True
        if self._rewriter.round_answer is not None:
            self.terminal = events[0].raw  # what follows is not read: it may be anything, hidden calls too
        else:
            self.terminal = b"".join([event.raw for event in events]) + bytes(self._parser.pending)

    def _relay_unchanged(self, data: bytes, events: list[SseEvent]) -> bytes:
        """Relay without edits: return everything except bytes that may be the beginning of the end."""
        answer = self.answer
        for position, event in enumerate(events):
            if event.data is None:
                continue
            if event.data.startswith(_DONE):
                ready = b"".join([one.raw for one in events[:position]])
                self._close(events[position:])
                if position == 0:
                    self.terminal = self.terminal[self._given :]
                return ready[self._given :]
            chunk = read_chunk(event.data)
            if chunk is None:
                answer.unparsed += 1
            else:
                answer.add_chunk(chunk)
        return self._hold_possible_end(data, has_events=bool(events))

    def _may_be_end(self, begun: bytearray) -> bool:
        return len(begun) < _PROBE and not begun.startswith(_JSON)


def _is_done(event: SseEvent) -> bool:
    return event.data is not None and event.data.startswith(_DONE)
