"""Edits of one event when something must be kept from the client: blocks, usage, calls of the proxy's own tools.

Each event is passed on as soon as it is complete. It is unchanged unless it holds something that the client must not
see. The bytes are changed at the spans in question only.

An answer of several rounds (see `completions_relay`) has a `CompletionsRewriter` for each round. The record of the
bytes that the client has seen is handed to the next round."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from proxy.dialects.completions.stream import Choice, Chunk, read_chunk, set_json
from proxy.dialects.usage import Usage, read_count
from proxy.stream import completions_patch as patch
from proxy.stream.answer_relay import RelayOptions
from proxy.stream.block_filter import CUT_REASONS, BlockFilter
from proxy.stream.completions_answer import MAX_CHOICES, AssembledAnswer
from proxy.stream.sse import SseEvent, replace_data
from proxy.stream.tool_call_filter import (
    RUNNABLE_REASONS,
    HeldFragment,
    HiddenCall,
    SortedFragments,
    ToolCallFilter,
    choose_finish_reason,
)

_CALLS = b"tool_calls"


class CompletionsRewriter:
    """The events of one round. answer: what the client gets, over all rounds."""

    __slots__ = (
        "_calls", "_drop_usage", "_earlier_texts", "_held_finish", "_held_texts", "_held_usage", "_hidden",
        "_holds_text", "_limit", "_response_head", "_round_number", "_shown_before", "_spent", "_template",
        "_text_events", "_usage", "_waiting", "_with_role", "_with_role_before", "_withheld", "answer",
        "block_filters", "goes_on", "hidden_calls", "round_answer",
    )  # fmt: skip

    def __init__(self, answer: AssembledAnswer, options: RelayOptions, previous: CompletionsRewriter | None) -> None:
        self.answer = answer
        self.round_answer = AssembledAnswer(options.limit) if options.hidden_tools or previous else None
        """Upstream's answer in this round with its hidden calls; None if nothing is hidden in the first one."""
        self.goes_on = False
        """True if the round has ended with hidden calls alone: see `proxy.stream.completions_relay`."""
        self.hidden_calls: list[HiddenCall] = []
        """The hidden calls of the round, known at its end."""
        self.block_filters: dict[int, BlockFilter] = {}
        """By choice, the filter that keeps the blocks out of its text."""
        self._withheld = options.withheld
        self._drop_usage = options.drop_usage
        self._hidden = options.hidden_tools
        self._limit = options.limit
        self._text_events: dict[int, SseEvent] = dict(previous._text_events) if previous else {}
        """By choice, the event whose text was held back last."""
        self._holds_text = options.hold_text and self.round_answer is not None
        self._held_texts: dict[int, list[str]] = {}
        """By choice, the text of this round that waits, with `hold_text`."""
        self._earlier_texts: dict[int, list[str]] = previous._list_waiting_text() if previous else {}
        """By choice, the text of the rounds before that waits."""
        self._calls: dict[int, ToolCallFilter] = {}
        self._waiting: list[HeldFragment] = []
        """Fragments of the current event that wait for the name of their call."""
        self._template: SseEvent | None = None
        """The first chunk with a choice, a template for chunks of the proxy."""
        self._held_finish: tuple[SseEvent, str] | None = None
        """The end of a round that may go on, and its finish reason."""
        self._held_usage: SseEvent | None = None
        """The event with the usage after that end."""
        self._usage: Any = None
        """The usage of this round, as received."""
        self._with_role_before: frozenset[int] = frozenset(previous._with_role) if previous else frozenset()
        self._with_role: set[int] = set(self._with_role_before)
        """Choices whose role was sent to the client, in this round or an earlier one."""
        self._response_head: dict[str, bytes] = previous._response_head if previous else {}
        self._round_number: int = previous._round_number + 1 if previous else 0
        self._shown_before: int = previous.shown_calls if previous else 0
        self._spent: dict[str, Any] = patch.sum_spent_usage(previous._usage, previous._spent) if previous else {}
        """Completion tokens of the rounds before, which the last usage has to include."""

    @property
    def shown_calls(self) -> int:
        """The number of calls that the client has got in this answer."""
        calls = self._calls.get(0)
        return self._shown_before + (calls.shown_count if calls else 0)

    @property
    def round_usage(self) -> Usage | None:
        """The usage of this round alone."""
        return self.answer.usage if self.round_answer is None else self.round_answer.usage

    def rewrite_event(self, event: SseEvent, out: list[bytes], last: bool = False) -> bool:
        """Append the bytes to pass on for one event. Return True if they differ from the bytes of the event.

        last: the event lacks its blank line, and nothing may follow it.
        """
        data = event.data or b""
        chunk = read_chunk(data)
        if chunk is None:
            return self._pass_unread_event(event, out)
        before = len(out)
        shown: dict[int, str] = {}
        if self._withheld:
            if last:
                self.flush_texts(out, {choice.index for choice in chunk.choices or ()}, broken=True)
            shown = self._find_visible_texts(event, chunk, out, last)
        if self.round_answer is not None:
            return self._rewrite_round_chunk(self.round_answer, event, chunk, shown, out) or len(out) - before != 1
        self.answer.add_chunk(chunk, shown)
        late = len(out) > before
        if shown:
            if not last and self._is_empty(chunk, shown):
                return True
            data = patch.replace_visible_text(data, chunk.choices or [], shown)
        if self._withheld:
            self._record_roles(chunk)
        if self._drop_usage and chunk.usage is not UNSET and not chunk.has_failed:
            if chunk.usage is None:
                data = patch.remove_null_usage(data)
            elif not chunk.choices:
                return True
        if data is event.data:
            out.append(event.raw)
            return late
        out.append(replace_data(event, data))
        return True

    def drop_held_text(self) -> None:
        """Drop the text of earlier rounds that precedes their calls: it is not part of this answer."""
        self._earlier_texts.clear()

    def _list_waiting_text(self) -> dict[int, list[str]]:
        indices = self._earlier_texts.keys() | self._held_texts.keys()
        return {n: [*self._earlier_texts.get(n, ()), *self._held_texts.get(n, ())] for n in sorted(indices)}

    def flush_texts(
        self, out: list[bytes], except_choices: set[int] | frozenset[int] = frozenset(), *, broken: bool = False
    ) -> None:
        """Append the text that was held back, because the texts have ended.

        broken: upstream has not reported that the texts have ended.
        """
        for index, held in self.block_filters.items():
            if index not in except_choices:
                self._send_text(index, held.end(cut=broken), out)

    def end_round(self, out: list[bytes], *, complete: bool) -> None:
        """End the round. Decide if the answer continues; if not, append the held end of the round.

        complete: upstream has reported that this is all.
        """
        of_round = self.round_answer
        if of_round is None:
            return
        complete = complete or not of_round.is_truncated
        begin = len(out)
        for index, calls in self._calls.items():
            self._send_calls(index, calls.end() if complete else calls.withhold_open_calls(), out)
        call_filter = self._calls.get(0)
        reason = of_round.finish_reasons.get(0)
        sound = complete and of_round.error is None and not of_round.is_capped and of_round.choice_count == 1
        if (
            call_filter is not None
            and call_filter.hidden_count
            and sound
            and not call_filter.capped
            and (reason is None or reason in RUNNABLE_REASONS)
        ):
            of_round.add_chunk(Chunk(choices=[Choice(0, {"tool_calls": call_filter.build_id_fragments()})]))
            calls_made = [call for at, call in enumerate(of_round.calls) if call_filter.is_hidden(at)]
            self.hidden_calls = [HiddenCall(call.id, call.name, call.arguments) for call in calls_made]
            self.goes_on = not call_filter.shown_count
        if not self.goes_on:
            self._release_texts(out, begin)
        if not self.goes_on and complete and of_round.error is None:
            self._send_held_end(out)

    def end_answer(self, out: list[bytes]) -> None:
        """End the answer here although the model would continue. Append the end of a complete answer."""
        self.goes_on = False
        if self._held_finish is None and self._template is not None:
            self._held_finish = (self._template, "stop")
        self._release_texts(out, len(out))
        self._send_held_end(out)

    def _pass_unread_event(self, event: SseEvent, out: list[bytes]) -> bool:
        """Pass on an event that is not a chunk, unless it may be half of an event with tool calls."""
        self.answer.unparsed += 1
        if self.round_answer is not None and _CALLS in event.raw:
            self.round_answer.is_capped = True
            return True
        out.append(event.raw)
        return False

    def _record_roles(self, chunk: Chunk) -> None:
        for choice in chunk.choices or ():
            if choice.delta and "role" in choice.delta:
                self._with_role.add(choice.index)

    def _rewrite_round_chunk(
        self, of_round: AssembledAnswer, event: SseEvent, received: Chunk, shown: dict[int, str], out: list[bytes]
    ) -> bool:
        """Do the work of `rewrite_event` if calls are hidden or earlier rounds exist."""
        data = event.data or b""
        if received.has_failed:
            of_round.add_chunk(received)
            self.answer.add_chunk(received)
            out.append(event.raw)
            return False
        if received.usage:
            self._usage = received.usage
        if self._template is None and received.choices:
            self._template = event
            self._response_head = self._response_head or patch.read_response_head(data)
        if not received.choices and received.usage and self._may_go_on():
            of_round.add_chunk(received)
            self._held_usage = event
            return True
        self._waiting = []
        begin = len(out)
        chunk, changes = self._split_chunk(of_round, event, received, shown, out)
        if self._holds_text:
            shown = self._hold_texts(event, received, shown)
            if self._has_shown_calls() or any(choice.finish_reason for choice in chunk.choices or ()):
                self._release_texts(out, begin)
        self.answer.add_chunk(chunk, shown)
        if (changes or shown) and self._is_empty(chunk, shown):
            parts = [len((choice.delta or {}).get("tool_calls") or ()) for choice in received.choices or ()]
            if parts == [len(self._waiting)] == [1]:
                self._waiting[0].is_alone = True
            return True
        self._record_roles(chunk)
        if self._drop_usage and received.usage and not received.choices:
            return True
        if changes:
            for position, text in shown.items():
                changes.setdefault(position, patch.ChoicePatch()).text = text
            data = patch.patch_choices(data, "delta", changes)
        elif shown:
            data = patch.replace_visible_text(data, received.choices or [], shown)
        data = self._with_head_and_usage(data, received.usage, chunk.usage)
        out.append(event.raw if data is event.data else replace_data(event, data))
        return data is not event.data

    def _hold_texts(self, event: SseEvent, received: Chunk, shown: dict[int, str]) -> dict[int, str]:
        """Return, by position, the texts for the client while the texts of the round wait for the end of the round."""
        shown = dict(shown)
        for position, choice in enumerate(received.choices or ()):
            text = shown.get(position, (choice.delta or {}).get("content"))
            if isinstance(text, str) and text:
                self._held_texts.setdefault(choice.index, []).append(text)
                self._text_events[choice.index] = event
                shown[position] = ""
        return shown

    def _has_shown_calls(self) -> bool:
        """True if the client has got calls in this round."""
        return any(calls.shown_count for calls in self._calls.values())

    def _release_texts(self, out: list[bytes], at: int) -> None:
        """Insert the text that has waited before the bytes appended since `at`: the client sees this round. If the
        client's own calls follow, the text that earlier rounds put before hidden calls is left out."""
        if not self._holds_text:
            return
        self._holds_text = False
        waited = self._held_texts if self._has_shown_calls() else self._list_waiting_text()
        late: list[bytes] = []
        for index, texts in waited.items():
            text, event = "".join(texts), self._text_events.get(index) or self._template
            if text and event is not None:
                self.answer.add_text(text, index)
                choice = {"index": index, "delta": {"content": text}, "finish_reason": None}
                late.append(replace_data(event, self._with_choice(event.data or b"", choice)))
        out[at:at] = late

    def _split_chunk(
        self, of_round: AssembledAnswer, event: SseEvent, received: Chunk, shown: dict[int, str], out: list[bytes]
    ) -> tuple[Chunk, dict[int, patch.ChoicePatch]]:
        """Record a chunk as it is. Return the part of the chunk that the client gets, and the changes to its bytes."""
        changes: dict[int, patch.ChoicePatch] = {}
        recorded, visible = list(received.choices or ()), list(received.choices or ())
        for position, choice in enumerate(received.choices or ()):
            delta = choice.delta or {}
            parts = delta.get("tool_calls")
            parts = parts if isinstance(parts, list) else []
            again = "role" in delta and choice.index in self._with_role_before
            if not parts and not again and not choice.finish_reason:
                continue
            change = patch.ChoicePatch()
            fragments = self._filter_fragments(choice, parts, event)
            self._send_calls(choice.index, fragments.released, out)
            visible_delta = {name: value for name, value in delta.items() if not (again and name == "role")}
            if parts:
                recorded[position] = Choice(
                    choice.index, {**delta, "tool_calls": fragments.upstream_fragments}, choice.finish_reason
                )
                visible_delta["tool_calls"] = fragments.client_fragments or None
            change.kept_calls = fragments.kept_places if fragments.changed else None
            change.removes_role = again
            reason = choice.finish_reason
            if reason in RUNNABLE_REASONS and choice.index == 0 and self._may_go_on():
                self._held_finish = self._held_finish or (event, reason or "")
                change.finish_json, reason = b"null", None
            visible[position] = Choice(choice.index, visible_delta, reason)
            if change != patch.ChoicePatch():
                changes[position] = change
        tier = received.service_tier
        of_round.add_chunk(Chunk(received.id, received.model, recorded, received.usage, service_tier=tier), shown)
        held = any(change.finish_json for change in changes.values())
        usage = UNSET if held and received.usage else patch.add_spent_usage(received.usage, self._spent)
        return Chunk(received.id, received.model, visible, usage, service_tier=tier), changes

    def _filter_fragments(self, choice: Choice, parts: list[Any], event: SseEvent) -> SortedFragments:
        calls = self._calls.get(choice.index)
        if calls is None:
            if len(self._calls) >= MAX_CHOICES:
                return SortedFragments(changed=bool(parts))
            seed = f"{self._response_head} {self._round_number} {choice.index}"
            first = self._shown_before if choice.index == 0 else 0
            calls = self._calls[choice.index] = ToolCallFilter(self._hidden, first, self._limit, seed)
        fragments = calls.feed(parts, event, ends=bool(choice.finish_reason))
        self._waiting += fragments.waiting
        return fragments

    def _may_go_on(self) -> bool:
        calls = self._calls.get(0)
        return calls is not None and calls.hidden_count > 0 and not calls.shown_count

    def _with_head_and_usage(self, data: bytes, received: Any, sent: Any) -> bytes:
        """Return the chunk with the answer's head and usage. received, sent: the usage that it has, and must have."""
        if received is None and self._drop_usage:
            data = patch.remove_null_usage(data)
        elif sent is not received:
            data = patch.remove_usage(data) if sent is UNSET else set_json(data, "usage", sent)
        return patch.set_response_head(data, self._response_head) if self._round_number else data

    def _send_calls(self, index: int, held_fragments: list[HeldFragment], out: list[bytes]) -> None:
        """Append fragments that have waited for their name. Each is in a chunk like the chunk in which it came."""
        for held in held_fragments:
            number, own = held.call_state.number, read_count(held.fragment.get("index"))
            part = held.fragment if own is None or own == number else {**held.fragment, "index": number}
            self.answer.add_chunk(Chunk(choices=[Choice(index, {"tool_calls": [{**part, "index": number}]})]))
            data = held.event.data or b""
            if held.is_alone and part is held.fragment:
                data = self._with_head_and_usage(data, None if self._drop_usage else UNSET, UNSET)
            else:
                data = self._with_choice(data, {"index": index, "delta": {"tool_calls": [part]}, "finish_reason": None})
            out.append(held.event.raw if data is held.event.data else replace_data(held.event, data))

    def _send_held_end(self, out: list[bytes]) -> None:
        """Append the end that was held: the finish reason and the usage."""
        finish, tail = self._held_finish, self._held_usage
        self._held_finish = self._held_usage = None
        if finish is not None:
            event, reason = finish
            choice = Choice(0, {}, choose_finish_reason(reason, self.shown_calls))
            data = event.data or b""
            chunk = read_chunk(data) or Chunk()
            usage = patch.add_spent_usage(chunk.usage, self._spent) if chunk.usage else UNSET
            self.answer.add_chunk(Chunk(choices=[choice], usage=usage, service_tier=chunk.service_tier))
            data = self._with_choice(data, {"index": 0, "delta": {}, "finish_reason": choice.finish_reason})
            out.append(replace_data(event, data if usage is UNSET else set_json(data, "usage", usage)))
        if tail is not None:
            chunk = read_chunk(tail.data or b"") or Chunk()
            usage = patch.add_spent_usage(chunk.usage, self._spent)
            self.answer.add_chunk(Chunk(usage=usage, service_tier=chunk.service_tier))
            if not self._drop_usage:
                out.append(replace_data(tail, self._with_head_and_usage(tail.data or b"", chunk.usage, usage)))

    def _find_visible_texts(self, event: SseEvent, chunk: Chunk, out: list[bytes], last: bool) -> dict[int, str]:
        """Return, by position, the texts of this chunk that the client gets instead of upstream's.

        Held text that must come before the chunk is appended as a separate chunk.
        """
        shown: dict[int, str] = {}
        if chunk.has_failed:
            for index, each in self.block_filters.items():
                self._send_text(index, each.flush(), out)
            return shown
        for position, choice in enumerate(chunk.choices or ()):
            delta = choice.delta or {}
            index = choice.index
            held = self.block_filters.get(index)
            if held is None:
                if len(self.block_filters) >= MAX_CHOICES:
                    continue
                held = self.block_filters[index] = BlockFilter(self._withheld)
            content = delta.get("content")
            ends = last or bool(choice.finish_reason)  # some servers send "" with every chunk
            cut = choice.finish_reason in CUT_REASONS if choice.finish_reason else last
            calls = bool(delta.get("tool_calls") or delta.get("function_call"))
            if type(content) is str and (content or last):
                visible = held.feed(content)
                if ends or calls:
                    visible += held.end(cut=cut) if ends else held.flush(before_calls=True)
                if visible != content:
                    shown[position] = visible
                    self._text_events[index] = event
            elif ends or calls:
                self._send_text(index, held.end(cut=cut) if ends else held.flush(before_calls=True), out)
        return shown

    def _is_empty(self, chunk: Chunk, shown: dict[int, str]) -> bool:
        """True if nothing is left of a chunk that the client would miss."""
        if chunk.usage is not UNSET and chunk.usage is not None:
            return False
        for position, choice in enumerate(chunk.choices or ()):
            delta = choice.delta or {}
            text = shown.get(position, delta.get("content") if self.round_answer is not None else None)
            if choice.finish_reason or (text != "" if self.round_answer is None else text not in ("", None)):
                return False
            for name, value in delta.items():
                if name == "content" or value is None or (name == "role" and choice.index in self._with_role):
                    continue
                return False
        return True

    def _send_text(self, index: int, text: str, out: list[bytes]) -> None:
        """Append held text as a chunk: the chunk that the text came in, with this text as its only choice."""
        if not text:
            return
        if self.round_answer is not None:
            self.round_answer.add_text(text, index)
        if self._holds_text:
            self._held_texts.setdefault(index, []).append(text)
            return
        self.answer.add_text(text, index)
        event = self._text_events[index]
        data = self._with_choice(event.data or b"", {"index": index, "delta": {"content": text}, "finish_reason": None})
        out.append(replace_data(event, data))

    def _with_choice(self, data: bytes, choice: dict[str, Any]) -> bytes:
        data = patch.set_only_choice(data, choice, drop_usage=self._drop_usage)
        return patch.set_response_head(data, self._response_head) if self._round_number else data
