"""Relay of a Gemini stream through the proxy.

Each event is a whole response. It is passed on as soon as it is complete, and stays unchanged unless it holds hidden
content. Then its parts are written again. An event without any part left is not passed on. No mark ends a stream, so
the newest event with a finish reason is held: it is the end if no other event follows it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from proxy.dialects.completions.stream import read_json, set_json, write_json
from proxy.dialects.gemini.stream import (
    RUNNABLE_REASONS,
    add_spent_usage,
    cut_parts,
    drop_reason,
    find_candidate,
    list_parts,
    read_reason,
    read_response,
    set_parts,
    set_top,
)
from proxy.stream.answer_relay import NO_OPTIONS, RelayOptions
from proxy.stream.block_filter import BlockFilter
from proxy.stream.gemini_answer import GeminiAnswer
from proxy.stream.round_relay import RoundRelay
from proxy.stream.sse import SseEvent, replace_data
from proxy.stream.tool_call_filter import HiddenCall

_CALL = b"functionCall"
_REASON = b'"finishReason"'
_NO_TEXT = b'{"text":""}'


class _Piece:
    """One event for the client, with the parts that it gets. is_new: the parts are not those that came. spent: the
    usage of the rounds before its own; None in the first round."""

    __slots__ = ("event", "is_new", "parts", "reason", "response", "spent")

    def __init__(self, event: SseEvent, response: dict[str, Any], spent: dict[str, Any] | None) -> None:
        self.event = event
        self.response = response
        self.spent = spent
        self.parts: list[bytes] = []
        self.is_new = False
        self.reason = read_reason(response)

    @property
    def is_text(self) -> bool:
        """True if upstream wrote text in it, thoughts aside."""
        return any(_is_text(one) for one in list_parts(self.response))

    def drop_text(self) -> None:
        """Leave out the texts; thoughts stay."""
        kept = [part for part in self.parts if not _is_text(read_json(part))]
        self.is_new = self.is_new or len(kept) < len(self.parts)
        self.parts = kept

    @property
    def is_gone(self) -> bool:
        """True if nothing is left of what it said."""
        return self.is_new and not self.parts


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and isinstance(part.get("text"), str) and part.get("thought") is not True


class GeminiRelay(RoundRelay[GeminiAnswer, _Piece]):
    """The relay of one round. `drop_usage` is ignored, since every Gemini stream has usage."""

    __slots__ = ("_after_large", "_filter", "_has_hidden", "_last", "_spent", "end_events")

    def __init__(self, options: RelayOptions = NO_OPTIONS, previous: GeminiRelay | None = None) -> None:
        super().__init__(GeminiAnswer, options, previous)
        self.end_events: list[bytes] = []
        """The events in `terminal`."""
        self._after_large = b""
        self._filter: BlockFilter | None = None  # of the text that is being read
        self._has_hidden = False  # a call of the proxy was left out
        self._last: list[_Piece] = []  # the newest event with a finish reason, and those after it that say nothing
        self._spent: dict[str, Any] | None = (
            None if previous is None else add_spent_usage(previous.read_wire_usage(), previous._spent or {})
        )

    # Bytes in, bytes out.

    def feed(self, data: bytes) -> bytes:
        out: list[bytes] = []
        for event in self._parser.feed(data):
            self.take_event(event, out)
        self._note_overflow()
        return b"".join(out)

    def end(self) -> bytes:
        if self.has_ended:
            return b""
        out: list[bytes] = []
        unread = b""
        for event in self._parser.flush():
            self.is_unfinished = self._is_unedited
            data = _read_unfinished(event)
            if data is not None:
                whole = b"data: " + data.replace(b"\n", b"\ndata: ") + b"\n\n"
                self.take_event(SseEvent(event.raw if self._is_unedited else whole, data), out)
            elif self._is_unedited:
                out += [*(self._render(one) for one in self._last), event.raw]
                self._last = []
            else:
                unread = event.raw
        self.end_round(out)
        self._end_unread(unread, _CALL, out, may_pass=not (self._parser.overflowed or self.terminal))
        return b"".join(out)

    def take_event(self, event: SseEvent, out: list[bytes]) -> None:
        """Take one event of upstream, and put out the bytes that may go to the client now."""
        response = None if event.data is None else read_response(event.data)
        if response is None:
            self._pass_unread(event, out)
            return
        piece = _Piece(event, response, self._spent)
        if not self._is_unedited:
            self._edit_event(piece, out)
        if self._last and not piece.reason and not list_parts(response):
            self._last.append(piece)  # usage after the end
            return
        self._send_last(out)
        if piece.reason:
            self._last = [piece]
        else:
            self._put(piece, out)

    def _send_last(self, out: list[bytes]) -> None:
        """Send what looked like the end: more has followed it."""
        pieces, self._last = self._last, []
        for piece in pieces:
            self._put(piece, out)

    def _pass_unread(self, event: SseEvent, out: list[bytes]) -> None:
        """Pass on bytes that hold no response. They may be part of an event that was too large to be read."""
        self._note_overflow()
        is_part = self._parser.overflowed and event.raw[:1] not in (b":", b"\n", b"\r")
        if event.data is None and not is_part:  # a comment, as gateways send it to keep the connection
            out.append(event.raw)
            return
        if event.data is not None:
            self.answer.unparsed += 1
        if self._parser.overflowed and event.data is None:
            if _REASON in self._after_large + event.raw:
                self.answer.set_reason("STOP")
            self._after_large = event.raw[-len(_REASON) :]
        if self._round is not None and (_CALL in event.raw or self._is_changed()):
            self._round.is_capped = True
            return
        self._send_last(out)
        out.append(event.raw)

    def _is_changed(self) -> bool:
        """True if the answer is not the bytes that come, so that unknown bytes do not fit into it."""
        return self._previous is not None or bool(self._queue) or self._has_hidden

    # Parts.

    def _edit_event(self, piece: _Piece, out: list[bytes]) -> None:
        """Take out of an event the parts that the client must not see."""
        assert self._round is not None  # noqa: S101  # of a relay that edits
        self._round.add_response(piece.response)
        values = list_parts(piece.response)
        try:
            raws = cut_parts(piece.event.data or b"")
        except (ValueError, KeyError, IndexError):
            raws = []
        if len(raws) != len(values):
            raws = [write_json(one) for one in values]
        for value, raw in zip(values, raws, strict=True):
            self._edit_part(piece, value, raw, out)

    def _edit_part(self, piece: _Piece, value: Any, raw: bytes, out: list[bytes]) -> None:
        if _is_text(value):
            shown = self._read_text(value["text"])
            if shown == value["text"]:
                piece.parts.append(raw)
                return
            piece.is_new = True
            if shown or len(value) > 1:
                piece.parts.append(set_json(raw, "text", shown))
            return
        call = value.get("functionCall") if isinstance(value, dict) else None
        if isinstance(call, dict):
            self._end_text(piece, is_cut=False)
            if str(call.get("name")) in self._hidden:
                self._has_hidden = piece.is_new = True
                return
            self._shown += 1
            piece.parts.append(raw)
            self._release(out)
            return
        if not (isinstance(value, dict) and value.get("thought") is True):
            self._end_text(piece, is_cut=False)
        piece.parts.append(raw)

    def _read_text(self, text: str) -> str:
        """The part of a text that the client may see now."""
        if not self._withheld:
            return text
        if self._filter is None:
            self._filter = BlockFilter(self._withheld)
            self._filters.append(self._filter)
        return self._filter.feed(text)

    def _end_text(self, piece: _Piece, *, is_cut: bool) -> None:
        """End the text that is being read: the part of it that waited goes into this event."""
        if self._filter is None:
            return
        held_text = self._filter.end(cut=is_cut)
        self._filter = None
        if held_text:
            piece.is_new = True
            piece.parts.append(set_json(_NO_TEXT, "text", held_text))

    def _render(self, piece: _Piece, *, is_end: bool = False) -> bytes:
        event, data, response = piece.event, piece.event.data or b"", piece.response
        if self._is_unedited:
            self.answer.add_response(response)
            return event.raw
        for part in piece.parts:
            value = read_json(part)
            if isinstance(value, dict):
                self.answer.add_part(value)
        usage = response.get("usageMetadata")
        if piece.spent is not None and isinstance(usage, dict):
            usage = add_spent_usage(usage, piece.spent)
        self.answer.add_facts({**response, "usageMetadata": usage})
        if piece.is_new:
            data = set_parts(data, piece.parts)
        if not is_end and find_candidate(response).get("finishReason"):
            data = drop_reason(data)
        if piece.spent is not None:
            first = {"responseId": self.answer.id, "modelVersion": self.answer.model, "usageMetadata": usage}
            data = set_top(data, {name: one for name, one in first.items() if one and one != response.get(name)})
        return event.raw if data is event.data else replace_data(event, data)

    # The end.

    def end_round(self, out: list[bytes]) -> None:
        """End the round: decide if the answer goes on, and if not, send what has waited."""
        if self.has_ended:
            return
        self.has_ended = True
        of_round = self._round
        if of_round is None:
            self.end_events = [self._render(piece) for piece in self._last]
            self.terminal = b"".join(self.end_events)
            self.answer.is_done = bool(self.answer.finish_reasons) and self.answer.error is None
            return
        is_complete = bool(of_round.reason)
        is_cut = of_round.reason not in RUNNABLE_REASONS or not is_complete
        rest = self._last[0] if self._last else self._make_piece([])
        self._end_text(rest, is_cut=is_cut)
        if not self._last and rest.parts:
            self._put(rest, out)
        if self._has_hidden and not is_cut and of_round.error is None and not of_round.is_capped:
            calls = of_round.calls
            ids = {call.id for call in calls}
            if len(ids) == len(calls):  # else a result would not find its call
                ours = [call for call in calls if call.name in self._hidden]
                self.hidden_calls = [HiddenCall(call.id, call.name, call.arguments) for call in ours]
                self.goes_on = not self._shown
        if self.goes_on:
            self._put_before_end(out)
            return
        self._release(out)
        if is_complete:
            self._send_end()
            self.answer.is_done = True

    def _put_before_end(self, out: list[bytes]) -> None:
        """Send what the newest event says beside its end, which waits for the end of the answer."""
        ends = []
        for piece in self._last:
            if piece.parts:
                self._put(piece, out)
            end = _Piece(piece.event, piece.response, piece.spent)
            end.is_new = True
            ends.append(end)
        self._last = ends[:1]

    def _make_piece(self, parts: Sequence[bytes]) -> _Piece:
        """An event of the proxy with these parts."""
        data = set_parts(b'{"candidates":[{"finishReason":"STOP","index":0}]}', parts)
        piece = _Piece(SseEvent(b"data: " + data + b"\n\n", data), read_json(data), self._spent)
        piece.parts = list(parts)
        return piece

    def _send_end(self) -> None:
        if not self._last:
            self._last = [self._make_piece([_NO_TEXT])]
        for piece in self._last:
            if piece.is_gone:  # an event without parts would be taken for a failure
                piece.parts = [_NO_TEXT]
        self.end_events = [self._render(piece, is_end=True) for piece in self._last]
        self.terminal = b"".join(self.end_events)
        self.answer.set_reason(self._round.reason if self._round and self._round.reason else "STOP")


def _read_unfinished(event: SseEvent) -> bytes | None:
    """The response in the last bytes of a stream, whose event lacks its blank line; None if there is none."""
    raw = event.raw.strip()
    data = event.data if event.data is not None else raw[5:].strip() if raw.startswith(b"data:") else b""
    return data if read_response(data) is not None else None
