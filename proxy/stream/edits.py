"""Edits of one event when something must be kept from the client: blocks, usage, calls of the proxy's own tools.

Each event goes on as soon as it is complete. It is unchanged unless it holds something that the client must not see.
The bytes are changed at the spans in question only.

An answer of several rounds (see `proxy.stream.relay`) has an `Edits` for each round. The record of what the client has
already seen passes from one round to the next.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from proxy.stream import splice
from proxy.stream.assemble import CHOICES_MAX, Answer
from proxy.stream.chunk import Choice, Chunk, Usage, count, read_chunk
from proxy.stream.hidden import RUNS, CallFilter, Held, HiddenCall, Sorted, visible_reason
from proxy.stream.sse import Event, with_data
from proxy.stream.withhold import CUT, StateFilter

_CALLS = b"tool_calls"


class Edits:
    """The events of one round.

    answer: what the client gets, over all rounds. round: the answer of upstream in this round, calls of hidden tools
    included; None if nothing is hidden and no round went before. goes_on, hidden_calls: see `proxy.stream.relay`, known
    at the end. filters: by choice, the filter that keeps the blocks out of its text.
    """

    __slots__ = (
        "_before", "_calls", "_drop_usage", "_earlier", "_finish", "_greeted", "_head", "_headings", "_hidden",
        "_hold", "_late", "_limit", "_number", "_said", "_shown_before", "_source", "_spent", "_tail", "_usage",
        "_waiting", "_withhold", "answer", "filters", "goes_on", "hidden_calls", "round",
    )  # fmt: skip

    def __init__(
        self,
        answer: Answer,
        *,
        withhold: bool,
        headings: tuple[str, ...],
        drop_usage: bool,
        hidden: frozenset[str],
        before: Edits | None,
        limit: int,
        hold: bool = False,
    ) -> None:
        self.answer = answer
        self.round = Answer(limit) if hidden or before else None
        self.goes_on = False
        self.hidden_calls: list[HiddenCall] = []
        self.filters: dict[int, StateFilter] = {}
        self._withhold = withhold
        self._headings = headings
        self._drop_usage = drop_usage
        self._hidden = hidden
        self._limit = limit
        self._late: dict[int, Event] = dict(before._late) if before else {}
        # By choice: the event whose text was held back last.
        self._hold = hold and self.round is not None
        self._said: dict[int, list[str]] = {}  # text of this round that waits, with `hold`
        self._earlier: dict[int, list[str]] = before._waited() if before else {}  # and text of the rounds before
        self._calls: dict[int, CallFilter] = {}
        self._waiting: list[Held] = []  # fragments of the current event that wait for a name
        self._source: Event | None = None  # the first chunk, a template for chunks of the proxy
        self._finish: tuple[Event, str] | None = None  # the end of a round that may go on, and its finish reason
        self._tail: Event | None = None  # and the usage behind that end
        self._usage: Any = None  # usage of this round, as it came
        self._before: frozenset[int] = frozenset(before._greeted) if before else frozenset()
        self._greeted: set[int] = set(self._before)  # choices whose role was sent
        self._head: dict[str, bytes] = before._head if before else {}
        self._number: int = before._number + 1 if before else 0
        self._shown_before: int = before.shown_calls if before else 0
        self._spent: dict[str, Any] = splice.spent_so_far(before._usage, before._spent) if before else {}

    @property
    def shown_calls(self) -> int:
        """The number of calls that the client has got in this answer."""
        calls = self._calls.get(0)
        return self._shown_before + (calls.shown if calls else 0)

    @property
    def usage(self) -> Usage | None:
        """The usage of this round alone."""
        return self.answer.usage if self.round is None else self.round.usage

    def take(self, event: Event, out: list[bytes], last: bool = False) -> bool:
        """Append the bytes that go on for one event. Return True if they differ from the bytes of the event.

        last: the event lacks its blank line, and nothing may follow it.
        """
        data = event.data or b""
        chunk = read_chunk(data)
        if chunk is None:
            return self._unread(event, out)
        before = len(out)
        shown: dict[int, str] = {}
        if self._withhold:
            if last:
                self.end_texts(out, {choice.index for choice in chunk.choices or ()}, broken=True)
            shown = self._visible(event, chunk, out, last)
        if self.round is not None:
            return self._take_round(self.round, event, chunk, shown, out) or len(out) - before != 1
        self.answer.take(chunk, shown)
        late = len(out) > before
        if shown:
            if not last and self._empty(chunk, shown):
                return True
            data = splice.with_visible(data, chunk.choices or [], shown)
        if self._withhold:
            self._greet(chunk)
        if self._drop_usage and chunk.usage is not UNSET and not chunk.failed:
            if chunk.usage is None:
                data = splice.without_null_usage(data)
            elif not chunk.choices:
                return True
        if data is event.data:
            out.append(event.raw)
            return late
        out.append(with_data(event, data))
        return True

    def drop_held(self) -> None:
        """Drop the text of earlier rounds that precedes their calls: it is not part of this answer."""
        self._earlier.clear()

    def _waited(self) -> dict[int, list[str]]:
        indices = self._earlier.keys() | self._said.keys()
        return {n: [*self._earlier.get(n, ()), *self._said.get(n, ())] for n in sorted(indices)}

    def end_texts(
        self, out: list[bytes], besides: set[int] | frozenset[int] = frozenset(), *, broken: bool = False
    ) -> None:
        """Append the text that was held back, because the texts have ended.

        broken: upstream has not reported that the texts have ended.
        """
        for index, held in self.filters.items():
            if index not in besides:
                self._send_text(index, held.end(cut=broken), out)

    def close(self, out: list[bytes], *, complete: bool) -> None:
        """End the round: decide if the answer goes on, and if not, append the held end of the round.

        complete: upstream has reported that this is all.
        """
        of_round = self.round
        if of_round is None:
            return
        complete = complete or not of_round.truncated
        begin = len(out)
        for index, calls in self._calls.items():
            self._send_calls(index, calls.end() if complete else calls.drop(), out)
        found = self._calls.get(0)
        reason = of_round.finish.get(0)
        sound = complete and of_round.error is None and not of_round.capped and of_round.choices == 1
        if found is not None and found.ours and sound and not found.capped and (reason is None or reason in RUNS):
            of_round.take(Chunk(choices=[Choice(0, {"tool_calls": found.unnamed()})]))
            calls_made = [call for at, call in enumerate(of_round.calls) if found.mine(at)]
            self.hidden_calls = [HiddenCall(call.id, call.name, call.arguments) for call in calls_made]
            self.goes_on = not found.shown
        if not self.goes_on:
            self._release(out, begin)
        if not self.goes_on and complete and of_round.error is None:
            self._send_tail(out)

    def stop(self, out: list[bytes]) -> None:
        """End the answer here although the round would go on: append its end, with the finish reason of a complete
        answer."""
        self.goes_on = False
        if self._finish is None and self._source is not None:
            self._finish = (self._source, "stop")
        self._release(out, len(out))
        self._send_tail(out)

    def _unread(self, event: Event, out: list[bytes]) -> bool:
        """Pass on an event that is not a chunk, unless it may be half of an event with tool calls."""
        self.answer.unparsed += 1
        if self.round is not None and _CALLS in event.raw:
            self.round.capped = True
            return True
        out.append(event.raw)
        return False

    def _greet(self, chunk: Chunk) -> None:
        for choice in chunk.choices or ():
            if choice.delta and "role" in choice.delta:
                self._greeted.add(choice.index)

    def _take_round(
        self, of_round: Answer, event: Event, whole: Chunk, shown: dict[int, str], out: list[bytes]
    ) -> bool:
        """Do the work of `take` if calls are hidden or earlier rounds exist."""
        data = event.data or b""
        if whole.failed:
            of_round.take(whole)
            self.answer.take(whole)
            out.append(event.raw)
            return False
        if whole.usage:
            self._usage = whole.usage
        if self._source is None and whole.choices:
            self._source = event
            self._head = self._head or splice.read_head(data)
        if not whole.choices and whole.usage and self._may_go_on():
            of_round.take(whole)
            self._tail = event
            return True
        self._waiting = []
        begin = len(out)
        chunk, changes = self._sort(of_round, event, whole, shown, out)
        if self._hold:
            shown = self._keep_back(event, whole, shown)
            if self._calls_now() or any(choice.finish_reason for choice in chunk.choices or ()):
                self._release(out, begin)
        self.answer.take(chunk, shown)
        if (changes or shown) and self._empty(chunk, shown):
            parts = [len((choice.delta or {}).get("tool_calls") or ()) for choice in whole.choices or ()]
            if parts == [len(self._waiting)] == [1]:
                self._waiting[0].bare = True
            return True
        self._greet(chunk)
        if self._drop_usage and whole.usage and not whole.choices:
            return True
        if changes:
            for position, text in shown.items():
                changes.setdefault(position, splice.Change()).text = text
            data = splice.with_changes(data, "delta", changes)
        elif shown:
            data = splice.with_visible(data, whole.choices or [], shown)
        data = self._dressed(data, whole.usage, chunk.usage)
        out.append(event.raw if data is event.data else with_data(event, data))
        return data is not event.data

    def _keep_back(self, event: Event, whole: Chunk, shown: dict[int, str]) -> dict[int, str]:
        """Return, by position, the texts for the client while the texts of the round wait for the end of the round."""
        shown = dict(shown)
        for position, choice in enumerate(whole.choices or ()):
            text = shown.get(position, (choice.delta or {}).get("content"))
            if isinstance(text, str) and text:
                self._said.setdefault(choice.index, []).append(text)
                self._late[choice.index] = event
                shown[position] = ""
        return shown

    def _calls_now(self) -> bool:
        """True if the client has got calls in this round."""
        return any(calls.shown for calls in self._calls.values())

    def _release(self, out: list[bytes], at: int) -> None:
        """Insert the text that has waited before the bytes appended since `at`: the client sees this round. If the
        client's own calls follow, the text that earlier rounds put before hidden calls is left out."""
        if not self._hold:
            return
        self._hold = False
        waited = self._said if self._calls_now() else self._waited()
        late: list[bytes] = []
        for index, texts in waited.items():
            text, event = "".join(texts), self._late.get(index) or self._source
            if text and event is not None:
                self.answer.show(text, index)
                choice = {"index": index, "delta": {"content": text}, "finish_reason": None}
                late.append(with_data(event, self._like(event.data or b"", choice)))
        out[at:at] = late

    def _sort(
        self, of_round: Answer, event: Event, whole: Chunk, shown: dict[int, str], out: list[bytes]
    ) -> tuple[Chunk, dict[int, splice.Change]]:
        """Record a chunk as it is. Return the part of the chunk that the client gets, and the changes to its bytes."""
        changes: dict[int, splice.Change] = {}
        recorded, visible = list(whole.choices or ()), list(whole.choices or ())
        for position, choice in enumerate(whole.choices or ()):
            delta = choice.delta or {}
            parts = delta.get("tool_calls")
            parts = parts if isinstance(parts, list) else []
            again = "role" in delta and choice.index in self._before
            if not parts and not again and not choice.finish_reason:
                continue
            change = splice.Change()
            found = self._sorted(choice, parts, event)
            self._send_calls(choice.index, found.late, out)
            left = {name: value for name, value in delta.items() if not (again and name == "role")}
            if parts:
                recorded[position] = Choice(choice.index, {**delta, "tool_calls": found.recorded}, choice.finish_reason)
                left["tool_calls"] = found.seen or None
            change.calls = found.kept if found.changed else None
            change.role = again
            reason = choice.finish_reason
            if reason in RUNS and choice.index == 0 and self._may_go_on():
                self._finish = self._finish or (event, reason or "")
                change.finish, reason = b"null", None
            visible[position] = Choice(choice.index, left, reason)
            if change != splice.Change():
                changes[position] = change
        of_round.take(Chunk(whole.id, whole.model, recorded, whole.usage), shown)
        held = any(change.finish for change in changes.values())
        usage = UNSET if held and whole.usage else splice.added(whole.usage, self._spent)
        return Chunk(whole.id, whole.model, visible, usage), changes

    def _sorted(self, choice: Choice, parts: list[Any], event: Event) -> Sorted:
        calls = self._calls.get(choice.index)
        if calls is None:
            if len(self._calls) >= CHOICES_MAX:
                return Sorted(changed=bool(parts))
            seed = f"{self._head} {self._number} {choice.index}"
            first = self._shown_before if choice.index == 0 else 0
            calls = self._calls[choice.index] = CallFilter(self._hidden, first, self._limit, seed)
        found = calls.feed(parts, event, ends=bool(choice.finish_reason))
        self._waiting += found.waiting
        return found

    def _may_go_on(self) -> bool:
        calls = self._calls.get(0)
        return calls is not None and calls.ours > 0 and not calls.shown

    def _dressed(self, data: bytes, came: Any, goes: Any) -> bytes:
        """Return the chunk with the answer's head and usage. came, goes: the usage that it had, and must have."""
        if came is None and self._drop_usage:
            data = splice.without_null_usage(data)
        elif goes is not came:
            data = splice.without_usage(data) if goes is UNSET else splice.with_usage(data, goes)
        return splice.with_head(data, self._head) if self._number else data

    def _send_calls(self, index: int, late: list[Held], out: list[bytes]) -> None:
        """Append fragments that have waited for their name, each in a chunk like the one that it came in."""
        for held in late:
            number, own = held.row.number, count(held.part.get("index"))
            part = held.part if own is None or own == number else {**held.part, "index": number}
            self.answer.take(Chunk(choices=[Choice(index, {"tool_calls": [{**part, "index": number}]})]))
            data = held.event.data or b""
            if held.bare and part is held.part:
                data = self._dressed(data, None if self._drop_usage else UNSET, UNSET)
            else:
                data = self._like(data, {"index": index, "delta": {"tool_calls": [part]}, "finish_reason": None})
            out.append(held.event.raw if data is held.event.data else with_data(held.event, data))

    def _send_tail(self, out: list[bytes]) -> None:
        """Append the end that was held: the finish reason and the usage."""
        finish, tail = self._finish, self._tail
        self._finish = self._tail = None
        if finish is not None:
            event, reason = finish
            choice = Choice(0, {}, visible_reason(reason, self.shown_calls))
            data = event.data or b""
            chunk = read_chunk(data)
            usage = splice.added(chunk.usage, self._spent) if chunk is not None and chunk.usage else UNSET
            self.answer.take(Chunk(choices=[choice], usage=usage))
            data = self._like(data, {"index": 0, "delta": {}, "finish_reason": choice.finish_reason})
            out.append(with_data(event, data if usage is UNSET else splice.with_usage(data, usage)))
        if tail is not None:
            chunk = read_chunk(tail.data or b"") or Chunk()
            usage = splice.added(chunk.usage, self._spent)
            self.answer.take(Chunk(usage=usage))
            if not self._drop_usage:
                out.append(with_data(tail, self._dressed(tail.data or b"", chunk.usage, usage)))

    def _visible(self, event: Event, chunk: Chunk, out: list[bytes], last: bool) -> dict[int, str]:
        """Return, by position, the texts of this chunk that the client gets instead of upstream's.

        Held text that must come before the chunk is appended as a separate chunk.
        """
        shown: dict[int, str] = {}
        if chunk.failed:
            for index, each in self.filters.items():
                self._send_text(index, each.flush(), out)
            return shown
        for position, choice in enumerate(chunk.choices or ()):
            delta = choice.delta or {}
            index = choice.index
            held = self.filters.get(index)
            if held is None:
                if len(self.filters) >= CHOICES_MAX:
                    continue
                held = self.filters[index] = StateFilter(self._headings)
            content = delta.get("content")
            ends = last or bool(choice.finish_reason)  # some servers send "" with every chunk
            cut = choice.finish_reason in CUT if choice.finish_reason else last
            calls = bool(delta.get("tool_calls") or delta.get("function_call"))
            if type(content) is str and (content or last):
                visible = held.feed(content)
                if ends or calls:
                    visible += held.end(cut=cut) if ends else held.flush(calls=True)
                if visible != content:
                    shown[position] = visible
                    self._late[index] = event
            elif ends or calls:
                self._send_text(index, held.end(cut=cut) if ends else held.flush(calls=True), out)
        return shown

    def _empty(self, chunk: Chunk, shown: dict[int, str]) -> bool:
        """True if nothing is left of a chunk that the client would miss."""
        if chunk.usage is not UNSET and chunk.usage is not None:
            return False
        for position, choice in enumerate(chunk.choices or ()):
            delta = choice.delta or {}
            text = shown.get(position, delta.get("content") if self.round is not None else None)
            if choice.finish_reason or (text != "" if self.round is None else text not in ("", None)):
                return False
            for name, value in delta.items():
                if name == "content" or value is None or (name == "role" and choice.index in self._greeted):
                    continue
                return False
        return True

    def _send_text(self, index: int, text: str, out: list[bytes]) -> None:
        """Append held text as a chunk: the chunk that the text came in, with this text as its only choice."""
        if not text:
            return
        if self.round is not None:
            self.round.show(text, index)
        if self._hold:
            self._said.setdefault(index, []).append(text)
            return
        self.answer.show(text, index)
        event = self._late[index]
        data = self._like(event.data or b"", {"index": index, "delta": {"content": text}, "finish_reason": None})
        out.append(with_data(event, data))

    def _like(self, data: bytes, choice: dict[str, Any]) -> bytes:
        data = splice.with_choice(data, choice, drop_usage=self._drop_usage)
        return splice.with_head(data, self._head) if self._number else data
