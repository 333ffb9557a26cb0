"""Telling the proxy's tool calls from the client's while they arrive in pieces.

A fragment of a call waits only until the call's name is known: a name that can no longer become one of ours is the
client's at once. Calls of the client that came before any of ours keep their index, later ones are counted on, so
that the client sees them contiguous from 0. Linear in the fragments; what is held is bounded.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from proxy.stream.chunk import count
from proxy.stream.sse import Event

CALLS_MAX = 4096
"""Calls that are told apart in one answer. Those beyond are given to nobody."""
RUNS = frozenset({"tool_calls", "stop", "function_call", "tool_use", "end_turn"})
"""Finish reasons of an answer whose calls are complete. With any other, calls of ours are not run."""
_CALLING = frozenset({"tool_calls", "function_call", "tool_use"})
_NAME_MAX = 512
"""So much of a name is looked at; ours are shorter."""
_OPEN, _OURS, _THEIRS = range(3)


class HiddenCall(msgspec.Struct, frozen=True):
    """One call of a tool of ours: what a model asked for that the client knows nothing of."""

    id: str
    name: str
    arguments: str


class Held(msgspec.Struct):
    """A fragment that waits for a name. bare: its event holds nothing else, and was held as a whole."""

    event: Event
    part: dict[str, Any]
    row: _Row
    bare: bool = False


class _Row:
    """One call. number: the index under which the client sees it."""

    __slots__ = ("argued", "closed", "held", "id", "index", "kind", "name", "number", "position", "said")

    def __init__(self, position: int, index: int | None) -> None:
        self.position = position
        self.index = index
        self.said = ""  # the id that upstream gives it
        self.id = ""  # the id that it goes by: another one where that is taken
        self.name = ""
        self.kind = _OPEN
        self.argued = False  # a part of its arguments was seen
        self.closed = False  # they end with a brace so far
        self.number = -1
        self.held: list[Held] = []


class Sorted(msgspec.Struct):
    """What came of the fragments of one choice of one chunk.

    recorded: all, as upstream should get them back, `index` being the position of the call in the round.
    kept: those that go on now: place in the list, and the index that it gets where that is not its own.
    seen: the same, as the client has them. late: fragments of earlier events that go on before these.
    waiting: what of this chunk is held.
    """

    recorded: list[dict[str, Any]] = []
    kept: list[tuple[int, int | None]] = []
    seen: list[Any] = []
    late: list[Held] = []
    waiting: list[Held] = []
    changed: bool = False


class CallFilter:
    """The tool calls of one choice in one round.

    names: of our tools. first: the index of the client's next call. ours, shown: how many calls there were so far of
    ours, and of the client's. capped: there was too much to look at, and something was given to nobody.
    """

    __slots__ = (
        "_by_index", "_ended", "_first", "_ids", "_names", "_next", "_room", "_rows", "_seed", "_top", "capped", "ours",
        "shown",
    )  # fmt: skip

    def __init__(self, names: frozenset[str], first: int, limit: int, seed: str) -> None:
        self.ours = 0
        self.shown = 0
        self.capped = False
        self._names = names
        self._first = first
        self._top = first - 1
        self._room = limit
        self._seed = seed
        self._rows: list[_Row] = []
        self._by_index: dict[int, _Row] = {}
        self._ids: dict[str, _Row] = {}
        self._next = 0  # the first row that is not numbered
        self._ended = False

    def feed(self, parts: list[Any], event: Event, *, ends: bool) -> Sorted:
        """Sorts the fragments of one chunk. ends: it has the finish reason, so all names are known."""
        found = Sorted()
        rows: list[_Row | None] = []
        for part in parts:
            row = self._row(part) if isinstance(part, dict) else None
            rows.append(row)
            if row is not None:
                found.recorded.append(self._learn(row, part))
        if ends:
            self._ended = True
        found.late = self._advance()
        for place, (part, row) in enumerate(zip(parts, rows, strict=True)):
            if not isinstance(part, dict):
                found.kept.append((place, None))
                found.seen.append(part)
            elif row is not None and row.number >= 0:
                own = count(part.get("index"))
                found.kept.append((place, None if own is None or own == row.number else row.number))
                found.seen.append({**part, "index": row.number})
            elif row is not None and row.kind != _OURS and self._room > 0:
                self._room -= len(event.raw)
                row.held.append(Held(event, part, row))
                found.waiting.append(row.held[-1])
        if self._room <= 0 and self._next < len(self._rows):
            found.late += self.drop()
        found.changed = len(found.kept) < len(parts) or any(index is not None for _, index in found.kept)
        return found

    def end(self) -> list[Held]:
        """No more fragments come: a name that is none of ours by now is the client's."""
        self._ended = True
        return self._advance()

    def drop(self) -> list[Held]:
        """The answer broke off, or too much waits: what might have become a call of ours is given to nobody."""
        for row in self._rows[self._next :]:
            if row.kind == _OPEN:
                row.kind = _OURS
        self.capped = True
        return self._advance()

    def mine(self, position: int) -> bool:
        """Whether the call at that position is one of ours."""
        return position < len(self._rows) and self._rows[position].kind == _OURS

    def unnamed(self) -> list[dict[str, Any]]:
        """Fragments that give those calls of ours an id that have none."""
        missing = [row for row in self._rows if row.kind == _OURS and not row.id]
        return [{"index": row.position, "id": mint(self._seed, row.position)} for row in missing]

    def _row(self, part: dict[str, Any]) -> _Row | None:
        """The call that a fragment belongs to.

        Fragments share the index of their call. Some servers give all calls the index 0 and different ids, others
        neither: there an id, or a name behind arguments, begins a call, and what has none continues the last.
        """
        index, known, name = count(part.get("index")), _text(part.get("id")), _name(part)
        row = self._ids.get(known) if known else None
        if row is None or (index is not None and row.index != index):
            row = self._by_index.get(index) if index is not None else (self._rows[-1] if self._rows else None)
        if row is not None and not _begins(row, index, known, name):
            return row
        self._room -= len(known)
        if len(self._rows) >= CALLS_MAX or self._room < 0:
            self.capped = True
            return None
        before = self._rows[-1] if self._rows else None
        if before is not None and before.kind == _OPEN and before.name in self._names:
            before.kind = _OURS
        row = _Row(len(self._rows), index)
        self._rows.append(row)
        if index is not None:
            self._by_index[index] = row
        return row

    def _learn(self, row: _Row, part: dict[str, Any]) -> dict[str, Any]:
        """Notes what a fragment tells of its call. Gives the fragment as upstream should have it back."""
        known, name, arguments = _text(part.get("id")), _name(part), _arguments(part)
        new = {**part, "index": row.position}
        if known and not row.said:
            row.said = row.id = known
            if self._ids.setdefault(known, row) is not row:  # two calls under one id: nobody could tell their results
                row.id = mint(self._seed, row.position)
        if known and known != row.id:
            new["id"] = row.id
        if name and row.kind != _THEIRS:
            piece = self._piece(row, name)
            row.name = (row.name + piece)[:_NAME_MAX]
            if piece != name:
                _rename(new, piece)
        if arguments:
            row.argued = True
            row.closed = arguments[-1] == "}"
        if row.kind == _OPEN and not any(one.startswith(row.name) for one in self._names):
            row.kind = _THEIRS
        elif row.kind == _OPEN and row.argued and row.name:
            row.kind = _OURS if row.name in self._names else _THEIRS
        return new

    def _piece(self, row: _Row, name: str) -> str:
        """What a fragment adds to the name: some servers say it whole again with every fragment."""
        if row.kind == _OURS:
            return ""
        longer = row.name + name
        if row.name and name.startswith(row.name) and not any(one.startswith(longer) for one in self._names):
            return name[len(row.name) :]
        return name

    def _advance(self) -> list[Held]:
        """Numbers the calls whose turn has come, in the order in which they were opened."""
        late: list[Held] = []
        while self._next < len(self._rows):
            row = self._rows[self._next]
            if row.kind == _OPEN:
                if not self._ended:
                    break
                row.kind = _OURS if row.name in self._names else _THEIRS
            self._next += 1
            if row.kind == _OURS:
                self.ours += 1
            else:
                own = row.index if not self.ours and not self._first else None
                row.number = self._top + 1 if own is None else own
                self._top = max(self._top, row.number)
                self.shown += 1
                late += row.held
            row.held = []
        return late


def mint(seed: str, position: int) -> str:
    """An id for a call that has none of its own: the same each time, nine letters as the strictest server wants."""
    digest = hashlib.blake2b(f"{seed} {position}".encode("utf-8", "replace"), digest_size=9).digest()
    return "".join("abcdefghijklmnopqrstuvwxyz"[byte % 26] for byte in digest)


def visible_reason(reason: str, shown: int) -> str:
    """The finish reason of an answer that ends with so many calls shown: with none it did not end to have any made."""
    return "stop" if not shown and reason in _CALLING else reason


def _begins(row: _Row, index: int | None, known: str, name: str) -> bool:
    """Whether a fragment begins another call than the one that it would continue. known: its id."""
    if name and row.kind == _THEIRS and not row.name:
        return True  # that one was given out without a name
    if known:
        other = row.said or (row.name if name else "")
        return known != row.said and bool(other or (index is None and (row.name or row.argued)))
    if not name or not (row.argued or (index is None and row.index is not None)):
        return False
    return name[:_NAME_MAX] != row.name or (index is None and row.closed)


def _inner(part: dict[str, Any]) -> dict[str, Any]:
    inner = part.get("function") or part.get("custom")
    return inner if isinstance(inner, dict) else {}


def _name(part: dict[str, Any]) -> str:
    return _text(_inner(part).get("name"))


def _arguments(part: dict[str, Any]) -> str:
    inner = _inner(part)
    value = inner.get("arguments", inner.get("input"))
    return value if isinstance(value, str) else ("}" if value is not None else "")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _rename(part: dict[str, Any], name: str) -> None:
    holder = "function" if part.get("function") else "custom"
    part[holder] = {**part[holder], "name": name}
