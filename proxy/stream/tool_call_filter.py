"""Filter that separates the proxy's tool calls from the client's while the calls arrive in pieces.

A fragment of a call waits only until the call's name is known. If a name can no longer become a hidden tool's name, the
call is the client's immediately. Calls of the client that came before any hidden call keep their index. Later calls of
the client are numbered on, so that the client sees indices contiguous from 0. The work is linear in the fragments, and
the held data is bounded.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from proxy.dialects.usage import read_count
from proxy.stream.sse import SseEvent

MAX_CALLS = 4096
"""Calls that are distinguished in one answer. Calls beyond this number go neither to the client nor to a tool."""
RUNNABLE_REASONS = frozenset({"tool_calls", "stop", "function_call", "tool_use", "end_turn"})
"""Finish reasons of an answer whose calls are complete. With any other, hidden calls are not run."""
_CALLING = frozenset({"tool_calls", "function_call", "tool_use"})
_NAME_MAX = 512
"""Characters of a name that are read; the names of the proxy's tools are shorter."""
_OPEN, _HIDDEN, _SHOWN = range(3)


class HiddenCall(msgspec.Struct, frozen=True):
    """One call of a hidden tool: the model made it, and the client does not see it."""

    id: str
    name: str
    arguments: str


class HeldFragment(msgspec.Struct):
    """A fragment that waits for a name. is_alone: its event holds nothing else, and was held as a whole."""

    event: SseEvent
    fragment: dict[str, Any]
    call_state: _CallState
    is_alone: bool = False


class _CallState:
    """One call. number: the index under which the client sees it."""

    __slots__ = (
        "ends_in_brace", "has_arguments", "held", "id", "index", "kind", "name", "number", "position", "upstream_id",
    )  # fmt: skip

    def __init__(self, position: int, index: int | None) -> None:
        self.position = position
        self.index = index
        self.upstream_id = ""
        """The id that upstream gives it."""
        self.id = ""
        """The id that it has here: another one if upstream's is taken."""
        self.name = ""
        self.kind = _OPEN
        self.has_arguments = False
        """True if a part of its arguments was seen."""
        self.ends_in_brace = False
        """True if its arguments end with a brace so far."""
        self.number = -1
        self.held: list[HeldFragment] = []


class SortedFragments(msgspec.Struct):
    """The sorted fragments of one choice of one chunk."""

    upstream_fragments: list[dict[str, Any]] = []
    """All fragments, as upstream should get them back, with the position of the call in the round as `index`."""
    kept_places: list[tuple[int, int | None]] = []
    """The fragments to pass on now: the place in the list, and the new index if the fragment's own index differs."""
    client_fragments: list[Any] = []
    """The same fragments, as the client has them."""
    released: list[HeldFragment] = []
    """Fragments of earlier events that are passed on before these."""
    waiting: list[HeldFragment] = []
    """The fragments of this chunk that are held."""
    changed: bool = False


class ToolCallFilter:
    """The tool calls of one choice in one round. first_index: the index of the client's next call."""

    __slots__ = (
        "_by_index", "_calls", "_ended", "_first_index", "_hidden_tools", "_ids", "_last_number", "_room_bytes",
        "_seed", "_undecided", "capped", "hidden_count", "shown_count",
    )  # fmt: skip

    def __init__(self, hidden_tools: frozenset[str], first_index: int, limit: int, seed: str) -> None:
        self.hidden_count = 0
        """The number of hidden calls so far."""
        self.shown_count = 0
        """The number of the client's calls so far."""
        self.capped = False
        """There was too much to read, and some calls went neither to the client nor to a tool."""
        self._hidden_tools = hidden_tools
        self._first_index = first_index
        self._last_number = first_index - 1
        self._room_bytes = limit
        """Bytes that may still be held."""
        self._seed = seed
        self._calls: list[_CallState] = []
        self._by_index: dict[int, _CallState] = {}
        self._ids: dict[str, _CallState] = {}
        self._undecided = 0
        """The position of the first call that is not numbered, since its name may still become a hidden one's."""
        self._ended = False

    def feed(self, parts: list[Any], event: SseEvent, *, ends: bool) -> SortedFragments:
        """Sort the fragments of one chunk. ends: it has the finish reason, so all names are known."""
        fragments = SortedFragments()
        calls: list[_CallState | None] = []
        for part in parts:
            call = self._find_call(part) if isinstance(part, dict) else None
            calls.append(call)
            if call is not None:
                fragments.upstream_fragments.append(self._record_fragment(call, part))
        if ends:
            self._ended = True
        fragments.released = self._number_calls()
        for place, (part, call) in enumerate(zip(parts, calls, strict=True)):
            if not isinstance(part, dict):
                fragments.kept_places.append((place, None))
                fragments.client_fragments.append(part)
            elif call is not None and call.number >= 0:
                own = read_count(part.get("index"))
                fragments.kept_places.append((place, None if own is None or own == call.number else call.number))
                fragments.client_fragments.append({**part, "index": call.number})
            elif call is not None and call.kind != _HIDDEN and self._room_bytes > 0:
                self._room_bytes -= len(event.raw)
                call.held.append(HeldFragment(event, part, call))
                fragments.waiting.append(call.held[-1])
        if self._room_bytes <= 0 and self._undecided < len(self._calls):
            fragments.released += self.withhold_open_calls()
        fragments.changed = len(fragments.kept_places) < len(parts) or any(
            index is not None for _, index in fragments.kept_places
        )
        return fragments

    def end(self) -> list[HeldFragment]:
        """End the calls: no more fragments come, so a call whose name is not a hidden tool's by now is the client's."""
        self._ended = True
        return self._number_calls()

    def withhold_open_calls(self) -> list[HeldFragment]:
        """Withhold every call that might still have become a hidden one: the answer broke off, or too much waits."""
        for call in self._calls[self._undecided :]:
            if call.kind == _OPEN:
                call.kind = _HIDDEN
        self.capped = True
        return self._number_calls()

    def is_hidden(self, position: int) -> bool:
        """True if the call at that position is a hidden one."""
        return position < len(self._calls) and self._calls[position].kind == _HIDDEN

    def build_id_fragments(self) -> list[dict[str, Any]]:
        """Return fragments that give an id to each hidden call without one."""
        missing = [call for call in self._calls if call.kind == _HIDDEN and not call.id]
        return [{"index": call.position, "id": make_call_id(self._seed, call.position)} for call in missing]

    def _find_call(self, part: dict[str, Any]) -> _CallState | None:
        """Return the call that a fragment belongs to; None if there are too many calls.

        Fragments share the index of their call. Some servers give all calls the index 0 and different ids, other
        servers give neither. With both kinds an id, or a name after arguments, begins a call. A fragment without these
        continues the last call.
        """
        index, known, name = read_count(part.get("index")), _read_text(part.get("id")), _read_name(part)
        call = self._ids.get(known) if known else None
        if call is None or (index is not None and call.index != index):
            call = self._by_index.get(index) if index is not None else (self._calls[-1] if self._calls else None)
        if call is not None and not _begins_call(call, index, known, name):
            return call
        self._room_bytes -= len(known)
        if len(self._calls) >= MAX_CALLS or self._room_bytes < 0:
            self.capped = True
            return None
        before = self._calls[-1] if self._calls else None
        if before is not None and before.kind == _OPEN and before.name in self._hidden_tools:
            before.kind = _HIDDEN
        call = _CallState(len(self._calls), index)
        self._calls.append(call)
        if index is not None:
            self._by_index[index] = call
        return call

    def _record_fragment(self, call: _CallState, part: dict[str, Any]) -> dict[str, Any]:
        """Record what a fragment adds to its call. Return the fragment as upstream should get it back."""
        known, name, arguments = _read_text(part.get("id")), _read_name(part), _read_arguments(part)
        new = {**part, "index": call.position}
        if known and not call.upstream_id:
            call.upstream_id = call.id = known
            if self._ids.setdefault(known, call) is not call:  # two calls with one id: results would be ambiguous
                call.id = make_call_id(self._seed, call.position)
        if known and known != call.id:
            new["id"] = call.id
        if name and call.kind != _SHOWN:
            piece = self._find_new_characters(call, name)
            call.name = (call.name + piece)[:_NAME_MAX]
            if piece != name:
                _rename(new, piece)
        if arguments:
            call.has_arguments = True
            call.ends_in_brace = arguments[-1] == "}"
        if call.kind == _OPEN and not any(one.startswith(call.name) for one in self._hidden_tools):
            call.kind = _SHOWN
        elif call.kind == _OPEN and call.has_arguments and call.name:
            call.kind = _HIDDEN if call.name in self._hidden_tools else _SHOWN
        return new

    def _find_new_characters(self, call: _CallState, name: str) -> str:
        """Return what a fragment adds to the name: some servers repeat the whole name in each."""
        if call.kind == _HIDDEN:
            return ""
        longer = call.name + name
        if call.name and name.startswith(call.name) and not any(one.startswith(longer) for one in self._hidden_tools):
            return name[len(call.name) :]
        return name

    def _number_calls(self) -> list[HeldFragment]:
        """Number the decided calls in the order in which they were opened. Return the fragments that waited."""
        late: list[HeldFragment] = []
        while self._undecided < len(self._calls):
            call = self._calls[self._undecided]
            if call.kind == _OPEN:
                if not self._ended:
                    break
                call.kind = _HIDDEN if call.name in self._hidden_tools else _SHOWN
            self._undecided += 1
            if call.kind == _HIDDEN:
                self.hidden_count += 1
            else:
                own = call.index if not self.hidden_count and not self._first_index else None
                call.number = self._last_number + 1 if own is None else own
                self._last_number = max(self._last_number, call.number)
                self.shown_count += 1
                late += call.held
            call.held = []
        return late


def make_call_id(seed: str, position: int) -> str:
    """Make an id for a call without one: deterministic, with nine letters as the strictest server requires."""
    digest = hashlib.blake2b(f"{seed} {position}".encode("utf-8", "replace"), digest_size=9).digest()
    return "".join("abcdefghijklmnopqrstuvwxyz"[byte % 26] for byte in digest)


def choose_finish_reason(reason: str, shown_calls: int) -> str:
    """Return the finish reason of an answer: "stop" if it asks for calls and shows none."""
    return "stop" if not shown_calls and reason in _CALLING else reason


def _begins_call(call: _CallState, index: int | None, known: str, name: str) -> bool:
    """True if a fragment begins a new call instead of continuing the call at its place. known: the fragment's id."""
    if name and call.kind == _SHOWN and not call.name:
        return True  # that call was sent without a name
    if known:
        other = call.upstream_id or (call.name if name else "")
        return known != call.upstream_id and bool(other or (index is None and (call.name or call.has_arguments)))
    if not name or not (call.has_arguments or (index is None and call.index is not None)):
        return False
    return name[:_NAME_MAX] != call.name or (index is None and call.ends_in_brace)


def _find_inner(part: dict[str, Any]) -> dict[str, Any]:
    inner = part.get("function") or part.get("custom")
    return inner if isinstance(inner, dict) else {}


def _read_name(part: dict[str, Any]) -> str:
    return _read_text(_find_inner(part).get("name"))


def _read_arguments(part: dict[str, Any]) -> str:
    inner = _find_inner(part)
    value = inner.get("arguments", inner.get("input"))
    return value if isinstance(value, str) else ("}" if value is not None else "")


def _read_text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _rename(part: dict[str, Any], name: str) -> None:
    holder = "function" if part.get("function") else "custom"
    part[holder] = {**part[holder], "name": name}
