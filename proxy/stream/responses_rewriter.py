"""Edits of the events of a Responses stream: blocks, calls of hidden tools, and the numbering of the remaining items.

Each event is passed on as soon as it is complete. It stays unchanged unless it holds hidden content, or a number that
an earlier edit has moved. A message waits until its first visible text. A message that consists of a block alone never
reaches the client. An answer of several rounds (see `proxy.stream.responses_relay`) has a `ResponsesRewriter` for each
round. The items and numbers that the client has seen are handed to the next round."""

from __future__ import annotations

from typing import Any, Final

from proxy.dialects.completions.stream import write_json
from proxy.dialects.responses import items as responses_items
from proxy.dialects.responses import stream as responses_stream
from proxy.dialects.usage import Usage, read_count, read_usage
from proxy.stream import responses_body
from proxy.stream.answer_relay import RelayOptions
from proxy.stream.block_filter import BlockFilter
from proxy.stream.responses_answer import ResponsesAnswer
from proxy.stream.sse import SseEvent, replace_data
from proxy.stream.tool_call_filter import HiddenCall

Changes = dict[str, Any]
"""New values of an event's members, by name; values of type bytes are JSON already."""

_OPEN, _SHOWN, _HIDDEN = range(3)
_ARGUMENTS: Final = ("response.function_call_arguments.delta", "response.custom_tool_call_input.delta")


class _TextPart:
    """A text part of a message. place: its position for the client, -1 while nothing of it is visible."""

    __slots__ = (
        "begun", "ends", "filter", "last", "logged", "notes", "original", "place", "sent_tokens", "shown", "unlogged",
    )  # fmt: skip

    def __init__(self, begun: SseEvent, headings: tuple[str, ...]) -> None:
        self.begun = begun
        self.filter = BlockFilter(headings)
        self.last = begun  # the delta that came last: the template of a delta of the proxy
        self.original: list[str] = []
        self.shown: list[str] = []
        self.logged: list[Any] = []
        self.sent_tokens = 0
        self.unlogged = ""  # shown text whose tokens have not come or were not whole
        self.notes: list[SseEvent] = []
        self.ends: list[SseEvent] = []
        self.place = -1

    def take_tokens(self, text: str) -> list[Any]:
        """The log probabilities of the tokens that are whole with this text. After a cut there are none."""
        begin = self.sent_tokens
        if self.logged and self.sent_tokens < len(self.logged):
            self.unlogged += text
            count, at = responses_body.count_shown_tokens(self.logged[begin:], self.unlogged)
            self.sent_tokens += count
            self.unlogged = self.unlogged[at:]
        return self.logged[begin : self.sent_tokens]

    @property
    def is_unchanged(self) -> bool:
        """True if all text so far was shown as received."""
        return "".join(self.original) == "".join(self.shown)


class _StreamItem:
    """One item of the round. out_index: its index for the client, -1 until its first event goes out."""

    __slots__ = ("held", "item", "out_index", "parts", "places", "raw", "state")

    def __init__(self, item: dict[str, Any]) -> None:
        self.item = item
        self.state = _OPEN
        self.held: list[SseEvent] = []
        self.out_index = -1
        self.parts: dict[int, _TextPart] = {}
        self.places = 0  # parts that the client has
        self.raw: bytes | None = None

    @property
    def is_message(self) -> bool:
        """True for a message."""
        return self.item.get("type") == "message"


Waiting = tuple[_StreamItem, SseEvent, Changes]


class ResponsesRewriter:
    """The events of one round.

    answer: what the client gets, over all rounds. round_answer: the answer of upstream in this round, as it wrote it.
    hidden_calls, goes_on: known at the end of the round. block_filters: of all text parts, in their order.
    """

    __slots__ = (
        "_current", "_echo", "_ending", "_final", "_head", "_hidden", "_hold", "_is_cut", "_items",
        "_next_index", "_number", "_previous_usages", "_sequence", "_shown_calls_before", "_waiting", "_withheld",
        "answer", "block_filters", "goes_on", "hidden_calls", "is_failed_round", "round_answer", "round_shown_calls",
    )  # fmt: skip

    def __init__(self, answer: ResponsesAnswer, options: RelayOptions, previous: ResponsesRewriter | None) -> None:
        instructions, hidden_tools = options.echo.instructions, options.hidden_tools
        self.answer = answer
        self.round_answer = ResponsesAnswer(options.limit)
        self.goes_on = False
        self.hidden_calls: list[HiddenCall] = []
        self.round_shown_calls = 0
        self.is_failed_round = False
        self.block_filters: list[BlockFilter] = []
        self._withheld = options.withheld
        self._hidden = hidden_tools
        self._echo = options.echo if instructions is not None or hidden_tools else None
        self._items: dict[int, _StreamItem] = {}
        self._ending: tuple[SseEvent, dict[str, Any]] | None = None
        self._number: int = previous._number + 1 if previous else 0
        self._next_index: int = previous._next_index if previous else 0
        self._sequence: int | None = previous._sequence if previous else None
        self._is_cut = False  # an item was left out or changed
        self._current: tuple[SseEvent | None, dict[str, Any]] = None, {}
        self._head: dict[str, bytes] = previous._head if previous else {}
        self._final: dict[int, bytes] = previous._final if previous else {}  # items that the client has
        self._previous_usages: list[Any] = previous._list_usages() if previous else []
        self._shown_calls_before: int = previous.shown_calls if previous else 0
        self._waiting: list[Waiting] = list(previous._waiting) if previous else []
        self._hold = bool(options.hold_text and (hidden_tools or previous))

    @property
    def shown_calls(self) -> int:
        """The number of calls that the client has got in this answer."""
        return self._shown_calls_before + self.round_shown_calls

    @property
    def round_usage(self) -> Usage | None:
        """The usage of this round alone."""
        usage = self._ending[1].get("usage") if self._ending else None
        return read_usage(usage)

    def build_round_message(self) -> bytes | None:
        """The canonical message of this round for upstream: with hidden calls, and the text as shown."""
        if any(one.blocks or one.other_blocks for one in self.block_filters):
            return responses_body.build_round_message(self.round_answer, self._withheld)
        return self.round_answer.build_message()

    def _list_usages(self) -> list[Any]:
        return [*self._previous_usages, self._ending[1].get("usage") if self._ending else None]

    def rewrite_event(self, event: SseEvent, data: dict[str, Any], out: list[bytes]) -> None:
        """Append the bytes to pass on for one event that does not end the answer."""
        self._current = event, data
        kind = str(data["type"])
        if kind in responses_stream.BEGINNINGS:
            self._begin_response(event, data, out)
            return
        index = read_count(data.get("output_index"))
        if index is not None:
            self._take_item_event(index, kind, event, data, out)
            return
        if kind == "error" or data.get("error"):
            self.answer.error = self.round_answer.error = (
                responses_stream.find_error(data) or "the upstream reported an error"
            )
        self._append_event(event, {}, out)

    def _read_data(self, event: SseEvent) -> dict[str, Any]:
        """The members of an event; most events are read once."""
        return self._current[1] if event is self._current[0] else responses_stream.read_event(event.data or b"") or {}

    def _begin_response(self, event: SseEvent, data: dict[str, Any], out: list[bytes]) -> None:
        response = data.get("response")
        response = response if isinstance(response, dict) else {}
        self.answer.note_response(response)
        self.round_answer.note_response(response)
        if self._number:
            return  # the client has the beginning of the first round
        raw = responses_stream.read_member(event.data or b"", "response", response)
        self._head = self._head or responses_body.read_head(raw)
        self._append_event(event, self._restore(raw), out)

    def _restore(self, response: bytes) -> Changes:
        if self._echo is None:
            return {}
        made = responses_body.restore_echo(response, self._hidden, self._echo)
        return {} if made is response else {"response": made}

    def _take_item_event(self, index: int, kind: str, event: SseEvent, data: dict[str, Any], out: list[bytes]) -> None:
        item = self._items.get(index)
        if kind == "response.output_item.added" and isinstance(data.get("item"), dict):
            if item is None:
                item = self._items[index] = _StreamItem(data["item"])
                self.round_answer.begin_item(index, data["item"])
                self._decide_visibility(item)
        elif item is None:
            item = self._items[index] = _StreamItem({})  # an event of an item that was not announced
        self._record(index, kind, data)
        if kind == "response.output_item.done":
            self._end_item(index, event, data, out)
        elif item.state == _HIDDEN:
            return
        elif item.is_message and self._withheld:
            self._take_message_event(item, kind, event, data, out)
        elif item.state == _OPEN:
            item.held.append(event)
        else:
            self._send_event(item, event, {}, out)

    def _decide_visibility(self, item: _StreamItem, *, is_ended: bool = False) -> None:
        """Decide if the client sees an item. A message is decided by its text, a call by its name."""
        if item.is_message and self._withheld:
            return
        if responses_body.is_hidden(item.item, self._hidden):
            item.state = _HIDDEN
        elif is_ended or not self._hidden or item.item.get("type") != "function_call" or item.item.get("name"):
            item.state = _SHOWN
            self.round_shown_calls += responses_items.find_call(item.item) is not None

    def _record(self, index: int, kind: str, data: dict[str, Any]) -> None:
        """Record what upstream wrote."""
        piece = data.get("delta")
        if not isinstance(piece, str):
            return
        if kind == "response.output_text.delta":
            self.round_answer.add_item_text(index, read_count(data.get("content_index")) or 0, piece)
        elif kind in _ARGUMENTS:
            self.round_answer.add_arguments(index, piece)

    def _take_message_event(
        self, item: _StreamItem, kind: str, event: SseEvent, data: dict[str, Any], out: list[bytes]
    ) -> None:
        """Take an event of a message whose text is filtered."""
        place = read_count(data.get("content_index"))
        part = item.parts.get(place) if place is not None else None
        if kind == "response.content_part.added" and place is not None:
            for other in item.parts.values():
                self._end_part(item, other, out, is_cut=False)
            inner = data.get("part")
            if isinstance(inner, dict) and inner.get("type") == "output_text":
                part = item.parts[place] = _TextPart(event, self._withheld)
                self.block_filters.append(part.filter)
                return
        if part is None:
            if item.state == _OPEN and kind == "response.output_item.added":
                item.held.append(event)
                return
            self._show_item(item, out)
            self._send_event(item, event, {} if place is None else {"content_index": item.places}, out)
            item.places += kind == "response.content_part.done"
        elif kind == "response.output_text.delta" and isinstance(data.get("delta"), str):
            part.original.append(data["delta"])
            part.logged += data.get("logprobs") or ()
            part.last = event
            self._send_text(item, part, part.filter.feed(data["delta"]), event, data["delta"], out)
        elif kind == "response.output_text.annotation.added" and not part.is_unchanged:
            part.notes.append(event)
        elif kind in ("response.output_text.done", "response.content_part.done"):
            part.ends.append(event)
        else:
            self._show_part(item, part, out)
            self._send_event(item, event, {"content_index": part.place}, out)

    def _show_item(self, item: _StreamItem, out: list[bytes]) -> None:
        if item.state != _OPEN:
            return
        item.state = _SHOWN
        for event in item.held:
            self._send_event(item, event, {}, out)
        item.held = []

    def _show_part(self, item: _StreamItem, part: _TextPart, out: list[bytes]) -> None:
        self._show_item(item, out)
        if part.place < 0:
            part.place = item.places
            item.places += 1
            self._send_event(item, part.begun, {"content_index": part.place}, out)

    def _send_text(
        self, item: _StreamItem, part: _TextPart, text: str, event: SseEvent, original: str | None, out: list[bytes]
    ) -> None:
        """Send visible text in an event like `event`. original: the text that the event had."""
        if not text:
            if original == "" and part.place >= 0:
                self._send_event(item, event, {"content_index": part.place}, out)
            return
        self._show_part(item, part, out)
        part.shown.append(text)
        changes: Changes = {"content_index": part.place}
        tokens = part.take_tokens(text)
        if text != original:
            changes["delta"] = text
        if part.logged or text != original:
            changes["logprobs"] = tokens
        self._send_event(item, event, changes, out)

    def _end_part(self, item: _StreamItem, part: _TextPart, out: list[bytes], *, is_cut: bool) -> None:
        """Send the rest of a part: held text, annotations, and the end events with the text that was shown."""
        self._send_text(item, part, part.filter.end(cut=is_cut), part.last, None, out)
        has_blocks = bool(part.filter.blocks or part.filter.other_blocks)
        if part.place < 0 and not has_blocks and part.ends:
            self._show_part(item, part, out)  # an empty text that was empty from the start
        if part.place < 0:
            return
        text, shown = "".join(part.original), "".join(part.shown)
        for event in part.notes:
            note = self._read_data(event).get("annotation")
            moved = responses_body.shift_note(note, text, self._withheld)
            if moved is not None:
                self._send_event(item, event, {"content_index": part.place, "annotation": moved}, out)
        for event in part.ends:
            changes: Changes = {"content_index": part.place}
            if text != shown:
                data = self._read_data(event)
                if "part" in data:
                    raw = responses_stream.read_member(event.data or b"", "part", data["part"])
                    changes["part"] = responses_body.cut_part(raw, shown, self._withheld)
                if "text" in data:
                    changes["text"] = shown
                if data.get("logprobs"):
                    changes["logprobs"] = data["logprobs"][: part.sent_tokens]
            self._send_event(item, event, changes, out)
        part.notes, part.ends = [], []

    def _end_item(self, index: int, event: SseEvent, data: dict[str, Any], out: list[bytes]) -> None:
        item = self._items[index]
        done_item = data.get("item")
        done_item = done_item if isinstance(done_item, dict) else {}
        raw = responses_stream.read_member(event.data or b"", "item", done_item)
        self.round_answer.put_item(index, raw)
        item.item = done_item or item.item
        if item.state == _OPEN:
            self._decide_visibility(item, is_ended=True)
        if item.state == _HIDDEN:
            item.raw, self._is_cut = raw, True
            return
        changes: Changes = {}
        if item.is_message and self._withheld:
            cut = self._end_message(item, raw, out)
            self._is_cut = self._is_cut or cut is not raw
            if cut is None:
                item.state, item.held = _HIDDEN, []
                return
            changes = {} if cut is raw else {"item": cut}
            raw = cut
        self._show_held(item, out)
        item.raw = raw
        self._send_event(item, event, changes, out)

    def _show_held(self, item: _StreamItem, out: list[bytes]) -> None:
        """Send the events of a call that waited for its name."""
        held, item.held = item.held, []
        for event in held:
            self._send_event(item, event, {}, out)

    def _end_message(self, item: _StreamItem, raw: bytes, out: list[bytes]) -> bytes | None:
        """End the parts of a message. Return the message as the client gets it, None if nothing of it is visible."""
        is_cut = item.item.get("status") == "incomplete"
        if not item.parts and item.state == _OPEN:  # its text came in no events
            visible, blocks = responses_body.cut_item(raw, self._withheld)
            self._add_blocks(blocks)
            if blocks:  # events of a message that was not announced may hold them
                item.held = [
                    one for one in item.held if self._read_data(one).get("type") == "response.output_item.added"
                ]
            if visible is not None:
                self._show_item(item, out)
            return visible
        for part in item.parts.values():
            self._end_part(item, part, out, is_cut=is_cut)
        changed = {n: "".join(part.shown) for n, part in item.parts.items() if not part.is_unchanged}
        visible = responses_body.cut_texts(raw, changed, self._withheld) if changed else raw
        if visible is None and item.state == _SHOWN:
            visible = responses_body.set_members(raw, {"content": b"[]"})
        elif visible is not None:
            self._show_item(item, out)
        return visible

    def _add_blocks(self, blocks: responses_body.Blocks) -> None:
        """Record blocks of a text that came whole."""
        block_filter = BlockFilter(self._withheld)
        for block in blocks:
            is_state = block.heading == responses_body.STATE_HEADING
            (block_filter.blocks if is_state else block_filter.other_blocks).append(block.body)
        self.block_filters.append(block_filter)

    def _send_event(self, item: _StreamItem, event: SseEvent, changes: Changes, out: list[bytes]) -> None:
        """Send an event of a visible item, or let it wait with the text before it."""
        if self._hold and (self._waiting or item.is_message):
            if responses_items.find_call(item.item) is None:
                self._waiting.append((item, event, changes))
                return
            self._release(out, has_calls=True)
        self._send_now(item, event, changes, out)

    def _send_now(self, item: _StreamItem, event: SseEvent, changes: Changes, out: list[bytes]) -> None:
        data = self._read_data(event)
        if item.out_index < 0:
            item.out_index = self._next_index
            self._next_index += 1
            self.answer.begin_item(item.out_index, item.item)
        kind = str(data.get("type"))
        piece = changes.get("delta", data.get("delta"))
        if isinstance(piece, str):
            if kind == "response.output_text.delta":
                place = changes.get("content_index", data.get("content_index"))
                self.answer.add_item_text(item.out_index, read_count(place) or 0, piece)
            elif kind in _ARGUMENTS:
                self.answer.add_arguments(item.out_index, piece)
        elif kind == "response.output_item.done":
            whole = changes.get("item")
            raw = (
                whole
                if isinstance(whole, bytes)
                else responses_stream.read_member(event.data or b"", "item", data.get("item"))
            )
            self._final[item.out_index] = raw
            self.answer.put_item(item.out_index, raw)
        self._append_event(event, {**changes, "output_index": item.out_index}, out)

    def _append_event(self, event: SseEvent, changes: Changes, out: list[bytes]) -> None:
        """Append an event with its number among the client's events, and with these changes."""
        data, value = event.data or b"", self._read_data(event)
        number = read_count(value.get("sequence_number"))
        new = {name: member for name, member in changes.items() if name in value and value[name] != member}
        if number is not None:
            self._sequence = number if self._sequence is None else self._sequence + 1
            if number != self._sequence:
                new["sequence_number"] = self._sequence
        if not new:
            out.append(event.raw)
            return
        raws = {name: member if isinstance(member, bytes) else write_json(member) for name, member in new.items()}
        out.append(replace_data(event, responses_body.set_members(data, raws)))

    def _release(self, out: list[bytes], *, has_calls: bool) -> None:
        """Send the events that wait. has_calls: the client's calls follow, and text of earlier rounds leaves."""
        self._hold = False
        waiting, self._waiting = self._waiting, []
        own = {id(item) for item in self._items.values()}
        for item, event, changes in waiting:
            if not (has_calls and item.is_message and id(item) not in own):
                self._send_now(item, event, changes, out)

    def drop_held_text(self) -> None:
        """Drop the text of earlier rounds that precedes their calls: it is not part of this answer."""
        own = {id(item) for item in self._items.values()}
        self._waiting = [one for one in self._waiting if not one[0].is_message or id(one[0]) in own]

    def finish(self, event: SseEvent, data: dict[str, Any], out: list[bytes]) -> bytes:
        """End the round with its last event. Return this event as the client gets it, b"" if the answer continues."""
        response = data.get("response")
        response = response if isinstance(response, dict) else {}
        self._ending = event, response
        raw = responses_stream.read_member(event.data or b"", "response", response)
        for index, item in enumerate(responses_stream.read_output(raw)):
            known = self._items.get(index)
            if known is None or (known.raw is None and known.state != _HIDDEN):
                self._take_whole_item(index, item, out)
        self._end_open_messages(out, is_cut=data["type"] != "response.completed")
        self.round_answer.finish(response)
        is_sound = data["type"] == "response.completed" and self.round_answer.error is None
        ours = [item.item for item in self._items.values() if responses_body.is_hidden(item.item, self._hidden)]
        if is_sound and not self.round_answer.is_capped:
            self.hidden_calls = responses_body.make_hidden_calls(ours)
        self.goes_on = bool(self.hidden_calls) and not self.round_shown_calls
        self.is_failed_round = bool(self._number) and data["type"] == "response.failed" and not self._next_index
        return b"" if self.goes_on or self.is_failed_round else self.end_answer(out)

    def _take_whole_item(self, index: int, raw: bytes, out: list[bytes]) -> None:
        """Take an item that only the end of the answer tells whole."""
        value = responses_stream.read_object(raw) or {}
        known = self._items.get(index)
        if known is None:
            known = self._items[index] = _StreamItem(value)
        self.round_answer.put_item(index, raw)
        known.item = value
        if known.state == _OPEN:
            self._decide_visibility(known, is_ended=True)
        visible: bytes | None = raw
        if known.is_message and self._withheld:
            visible = self._end_message(known, raw, out)
        self._is_cut = self._is_cut or visible is not raw or known.state == _HIDDEN
        if visible is None or known.state == _HIDDEN:
            known.state = _HIDDEN
            return
        self._show_held(known, out)
        known.raw = visible
        if known.out_index < 0:
            known.out_index = self._next_index
            self._next_index += 1
        self._final[known.out_index] = visible
        self.answer.put_item(known.out_index, visible)

    def end_answer(self, out: list[bytes]) -> bytes:
        """End the answer here: append the events that wait, and return the last event as the client gets it."""
        self.goes_on = False
        if self._hold:
            self._release(out, has_calls=False)
        if self._ending is None:
            return b""
        event, response = self._ending
        raw = responses_stream.read_member(event.data or b"", "response", response)
        changes = self._restore(raw)
        new: dict[str, bytes] = dict(self._head) if self._number else {}
        usage = responses_stream.add_spent_usage(response.get("usage"), self._previous_usages)
        if self._previous_usages and isinstance(usage, dict):
            new["usage"] = write_json(usage)
        if (self._is_cut or self._number) and response.get("output"):
            new["output"] = responses_body.join_items([self._final[n] for n in sorted(self._final)])
        if new:
            changes["response"] = responses_body.set_members(changes.get("response", raw), new)
        self.answer.finish(response, usage)
        last: list[bytes] = []
        self._append_event(event, changes, last)
        return b"".join(last)

    def break_off(self, out: list[bytes]) -> None:
        """End the round after the stream broke off. Held text is sent; calls without a known name are not."""
        self._end_open_messages(out, is_cut=True)
        if self._hold:
            self._release(out, has_calls=False)

    def _end_open_messages(self, out: list[bytes], *, is_cut: bool) -> None:
        """Send the held text of messages whose end did not come."""
        for item in self._items.values():
            if item.is_message and item.raw is None and item.state != _HIDDEN:
                for part in item.parts.values():
                    part.ends = []
                    self._send_text(item, part, part.filter.end(cut=is_cut), part.last, None, out)
