"""Relay of a Messages stream through the proxy.

If nothing must be removed, the incoming bytes go out at once. Otherwise each event is passed on as soon as it is
complete. It stays unchanged unless it holds hidden content. Blocks of the proxy's own calls, and blocks that hold
nothing but withheld text, are removed whole. Clients address blocks by index, so the blocks that stay are numbered
without gaps, over all rounds of an answer. The end of the stream (`message_delta`, `message_stop`) is kept back in both
cases.
"""

from __future__ import annotations

from typing import Any

from proxy.dialects.messages.context_management import FIELD
from proxy.dialects.messages.stream import (
    CUT_REASONS,
    RUNNABLE_REASONS,
    MessagesEvent,
    add_spent_usage,
    choose_stop_reason,
    make_event,
    read_event,
)
from proxy.stream.answer_relay import NO_OPTIONS, RelayOptions
from proxy.stream.block_filter import BlockFilter
from proxy.stream.messages_answer import MessagesAnswer, read_call
from proxy.stream.messages_patch import patch_index, patch_tail, patch_text, remove_hidden_member
from proxy.stream.round_relay import RoundRelay
from proxy.stream.sse import SseEvent, replace_data
from proxy.stream.tool_call_filter import HiddenCall

_PASSING = (b"event: content_block_", b"event:content_block_")
"""Beginnings of events that are not the last ones: without edits, they need not wait until they are complete."""
_CALL = b"tool_use"
_STOP = make_event("message_stop", {})
_DELTA_DATA = b'{"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{}}'
_DELTA = b"event: message_delta\ndata: " + _DELTA_DATA + b"\n\n"


class _Block:
    """One block of upstream.

    number: its index for the client, -1 while it has none. is_open: the client gets it, now or when it is released.
    last_text: its newest delta with text, a template for text that comes later.
    """

    __slots__ = ("block_filter", "fields", "is_hidden", "is_open", "is_settled", "kind", "last_text", "number", "start")

    def __init__(self, start: SseEvent, fields: dict[str, Any]) -> None:
        self.start = start
        self.fields = fields
        self.kind = str(fields.get("type"))
        self.number = -1
        self.is_hidden = False
        self.is_open = False
        self.is_settled = False
        self.block_filter: BlockFilter | None = None
        self.last_text: SseEvent | None = None


class _Piece:
    """Something that the client gets: the start of a block, text of it, another delta of it, or its stop.

    event: the event that it came in. delta: of a delta that is no text.
    """

    __slots__ = ("block", "delta", "event", "is_gone", "kind", "text")

    def __init__(
        self, kind: str, block: _Block, event: SseEvent | None, text: str = "", delta: dict[str, Any] | None = None
    ) -> None:
        self.kind = kind
        self.block = block
        self.event = event
        self.text = text
        self.delta = delta or {}
        self.is_gone = False

    @property
    def is_text(self) -> bool:
        """True if it belongs to a block of text."""
        return self.block.kind == "text"

    def drop_text(self) -> None:
        """Leave it out, if it belongs to a block of text."""
        self.is_gone = self.is_text


class MessagesRelay(RoundRelay[MessagesAnswer, _Piece]):
    """The relay of one round. `drop_usage` is ignored, since every Messages stream has usage."""

    __slots__ = (
        "_by_index", "_ending", "_given", "_hidden_member", "_hidden_places", "_limit", "_next", "_spent", "_tail",
    )  # fmt: skip

    def __init__(self, options: RelayOptions = NO_OPTIONS, previous: MessagesRelay | None = None) -> None:
        super().__init__(MessagesAnswer, options, previous)
        self._hidden_member = options.echo.hidden_member
        self._limit = options.limit
        self._given = 0  # bytes of the unfinished event that were sent
        self._by_index: dict[int, _Block] = {}
        self._ending: tuple[_Block, SseEvent] | None = None  # a text whose stop waits for the next event
        self._hidden_places: list[int] = []  # of the hidden calls among the round's blocks
        self._tail: list[SseEvent] = []
        self._next: int = 0 if previous is None else previous._next
        self._spent: dict[str, Any] = (
            {} if previous is None else add_spent_usage(previous.read_wire_usage(), previous._spent)
        )

    # Bytes in, bytes out.

    def feed(self, data: bytes) -> bytes:
        if self.has_ended:
            if self._is_unedited:
                self.terminal += data[: max(self._limit - len(self.terminal), 0)]
            return b""
        out: list[bytes] = []
        for event in self._parser.feed(data):
            self._take_event(event, out)
        self._note_overflow()
        pending = self._parser.pending
        if self._is_unedited and self._tail:
            if self.answer.is_done:  # closed: nothing after the end is read
                self.terminal += bytes(pending)
        elif self._is_unedited and pending.startswith(_PASSING):
            out.append(bytes(pending[self._given :]))
            self._given = len(pending)
        return b"".join(out)

    def end(self) -> bytes:
        if self.has_ended:
            return b""
        out: list[bytes] = []
        unread = b""
        for event in self._parser.flush():
            if self._is_unedited:
                self._take_event(event, out)
                self.is_unfinished = not self._tail
            elif event.data is None:
                unread = event.raw
            else:
                name = b"" if event.name is None else b"event: " + event.name + b"\n"
                data = b"data: " + event.data.replace(b"\n", b"\ndata: ") + b"\n\n"
                self._take_event(SseEvent(name + data, event.data, event.name), out)
        if not self.has_ended:
            self.has_ended = True
            self._end_round(out, is_complete=bool(self._tail))
        self._end_unread(unread, _CALL, out, may_pass=not (self._parser.overflowed or self.terminal))
        return b"".join(out)

    def end_answer(self) -> bytes:
        if not self._tail:
            self._tail = [SseEvent(_DELTA, _DELTA_DATA), SseEvent(_STOP, b'{"type":"message_stop"}')]
        return super().end_answer()

    # One event.

    def _take_event(self, event: SseEvent, out: list[bytes]) -> None:
        raw = event.raw[self._given :] if self._given else event.raw
        self._given = 0
        if self.has_ended:
            if self._is_unedited:
                self.terminal += raw
            return
        parsed = None if event.data is None else read_event(event.data)
        if event.data is None or parsed is None:
            self._pass_unread(event, raw, out)
        elif parsed.type == "message_stop":
            self._tail.append(event)
            self.has_ended = True
            self._end_round(out, is_complete=True)
            self.answer.is_done = not self.goes_on
        elif parsed.type == "message_delta":
            self._take_tail(event, parsed)
        elif self._is_unedited:
            if self._tail and parsed.type.startswith("content_block"):  # it goes on after what looked like its end
                out += [one.raw for one in self._tail]
                self._tail = []
            self.answer.add_parsed_event(parsed)
            (self._tail.append(event) if self._tail else out.append(raw))
        else:
            self._edit_event(event, parsed, out)

    def _pass_unread(self, event: SseEvent, raw: bytes, out: list[bytes]) -> None:
        """Pass on bytes that hold no event. They may be part of an event that was too large to be read."""
        self._note_overflow()
        is_large = event.data is None and self._parser.overflowed and not raw.startswith(b":") and raw.strip()
        if event.data is not None:
            self.answer.unparsed += 1
        if self._round is not None and (_CALL in raw or (is_large and self._is_changed())):
            self._round.is_capped = True
            return
        if self._tail:
            self._tail.append(event)
        else:
            out.append(raw)

    def _is_changed(self) -> bool:
        """True if blocks of this answer have other indexes than upstream's, or wait."""
        held = any(block.is_hidden or block.number < 0 for block in self._by_index.values())
        return held or self._previous is not None or bool(self._queue)

    def _take_tail(self, event: SseEvent, parsed: MessagesEvent) -> None:
        self.answer.add_cleared({FIELD: parsed.context_management})
        if self._round is None:
            self.answer.add_parsed_event(parsed)
        else:
            self._round.add_parsed_event(parsed)
            self._tail = []  # the newest one reports all
        self._tail.append(event)

    def _edit_event(self, event: SseEvent, parsed: MessagesEvent, out: list[bytes]) -> None:
        if self._round is not None:
            self._round.add_parsed_event(parsed)
        if parsed.type in ("content_block_delta", "content_block_stop"):
            block = self._by_index.get(parsed.index or 0)
            if block is None:
                out.append(event.raw)
            elif not block.is_hidden:
                self._continue_block(block, event, parsed, out)
        elif parsed.type == "content_block_start":
            self._settle_text(out)
            self._begin_block(event, parsed, out)
        elif self._previous is None or parsed.type not in ("message_start", "ping"):  # else the client has had one
            self.answer.add_parsed_event(parsed)
            self._pass_event(event, out)

    def _pass_event(self, event: SseEvent, out: list[bytes]) -> None:
        if self._tail:
            self._tail.append(event)
        else:
            out.append(event.raw)

    # Blocks.

    def _begin_block(self, event: SseEvent, parsed: MessagesEvent, out: list[bytes]) -> None:
        block = self._by_index[parsed.index or 0] = _Block(event, parsed.content_block or {})
        if block.kind == "text" and self._withheld:
            block.block_filter = BlockFilter(self._withheld)
            self._filters.append(block.block_filter)
            text = block.fields.get("text")
            block.fields = {**block.fields, "text": ""}
            self._add_text(block, text if isinstance(text, str) else "", None, out)
            return
        if block.kind == "tool_use":
            block.is_hidden = str(block.fields.get("name")) in self._hidden
            if block.is_hidden:
                self._hidden_places.append(len(self._round.blocks) - 1 if self._round else 0)
                return
            self._shown += 1
            self._release(out)
        self._open_block(block, out)

    def _continue_block(self, block: _Block, event: SseEvent, parsed: MessagesEvent, out: list[bytes]) -> None:
        delta = parsed.delta or {}
        text = delta.get("text")
        if parsed.type == "content_block_stop":
            if block.block_filter is not None:
                self._ending = (block, event)
            else:
                self._put(_Piece("stop", block, event), out)
        elif delta.get("type") == "text_delta" and isinstance(text, str):
            block.last_text = event
            self._add_text(block, text, event, out)
        else:
            self._open_block(block, out)
            self._put(_Piece("delta", block, event, delta=delta), out)

    def _open_block(self, block: _Block, out: list[bytes]) -> None:
        if not block.is_open:
            block.is_open = True
            self._put(_Piece("start", block, block.start), out)

    def _add_text(self, block: _Block, text: str, event: SseEvent | None, out: list[bytes]) -> None:
        """Put the part of a text that the client may see now."""
        visible = text if block.block_filter is None else block.block_filter.feed(text)
        if visible or block.block_filter is None:
            self._open_block(block, out)
            self._put(_Piece("text", block, event, visible), out)

    def _settle_text(self, out: list[bytes], *, is_cut: bool = False) -> None:
        """End the text that waits: it is now known if the answer was cut off there. is_cut: it was."""
        if self._ending is None:
            return
        block, event = self._ending
        self._ending = None
        self._flush_filter(block, out, is_cut=is_cut)
        if block.is_open:
            self._put(_Piece("stop", block, event), out)

    def _flush_filter(self, block: _Block, out: list[bytes], *, is_cut: bool) -> None:
        block.is_settled = True
        visible = "" if block.block_filter is None else block.block_filter.end(cut=is_cut)
        if visible:
            self._open_block(block, out)
            self._put(_Piece("text", block, block.last_text, visible), out)

    def _render(self, piece: _Piece) -> bytes:
        block, event = piece.block, piece.event
        if piece.kind == "start":
            block.number = self._next
            self._next += 1
            self.answer.begin_block(block.number, block.fields)
        elif piece.kind == "text":
            self.answer.extend_block(block.number, {"type": "text_delta", "text": piece.text})
        else:
            self.answer.extend_block(block.number, piece.delta)
        if event is None:
            delta = {"type": "text_delta", "text": piece.text}
            return make_event("content_block_delta", {"index": block.number, "delta": delta})
        data = event.data or b""
        parsed = read_event(data) or MessagesEvent()
        if parsed.index != block.number:
            data = patch_index(data, block.number)
        if piece.kind == "text" and (parsed.delta or {}).get("text") != piece.text:
            data = patch_text(data, piece.text)
        elif piece.kind == "start" and (parsed.content_block or {}).get("text") != block.fields.get("text"):
            data = patch_text(data, "", is_start=True)
        return event.raw if data is event.data else replace_data(event, data)

    # The end.

    def _end_round(self, out: list[bytes], *, is_complete: bool) -> None:
        """End the round. Decide if the answer continues; if not, send the events that have waited."""
        of_round = self._round
        if of_round is None:
            self.terminal = b"".join([event.raw for event in self._tail])
            return
        reason = of_round.stop_reason
        is_cut = not is_complete or reason in CUT_REASONS
        self._settle_text(out, is_cut=is_cut)
        for block in self._by_index.values():
            if block.block_filter is not None and not block.is_settled:
                self._flush_filter(block, out, is_cut=True)
        is_sound = is_complete and of_round.error is None and not of_round.is_capped
        if self._hidden_places and is_sound and (not reason or reason in RUNNABLE_REASONS):
            calls = [read_call(of_round.blocks[place]) for place in self._hidden_places]
            ids = {call.id for call in of_round.calls}
            if "" not in ids and len(ids) == len(of_round.calls):  # else a result would not find its call
                self.hidden_calls = [HiddenCall(call.id, call.name, call.arguments) for call in calls]
                self.goes_on = not self._shown
        if not self.goes_on:
            self._release(out)
            self._send_end()

    def _send_end(self) -> None:
        of_round = self._round
        if of_round is None or not self._tail:
            return
        is_changed = bool(self._hidden_places) or self._previous is not None
        reason = choose_stop_reason(of_round.stop_reason or "end_turn", self.shown_calls if is_changed else 1)
        usage = add_spent_usage(of_round.wire_usage, self._spent)
        self.answer.add_tail({"stop_reason": reason}, usage)
        pieces = []
        for event in self._tail:
            data = event.data or b""
            found = read_event(data)
            if found is not None and found.type == "message_delta":
                is_other = (found.delta or {}).get("stop_reason") != reason
                data = patch_tail(data, reason if is_changed and is_other else None, usage if self._spent else None)
                data = remove_hidden_member(data, self._hidden_member)
            pieces.append(event.raw if data is event.data or event.data is None else replace_data(event, data))
        self.terminal = b"".join(pieces)
