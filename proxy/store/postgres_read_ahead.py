"""All reads of one request as one statement: one round trip instead of four to ten.

The statements are those of `sql.py` and its neighbours, each an array of rows in one row. The statement finds the
branch of the request by itself, since that depends on the messages that are stored. A branch that memory has as it is
stored is not read again: its rows come only if another process has moved it on.

The rows are kept for the request that asked for them, and each read but the look-up of messages takes its own once.
They are dropped when the request writes something.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from typing import Any

from proxy.store import branch_positions, session_notes, sql
from proxy.store.base import WHOLE_SESSION
from proxy.store.branch_positions import KnownMessage
from proxy.store.expected_reads import MAX_STORED_STATES, ExpectedReads
from proxy.store.session_notes import HiddenRoundRow

Rows = list[tuple[Any, ...]]
Fetch = Callable[[str, Sequence[Any]], Awaitable[Rows]]

ALL_NUMBERS = 1 << 62
"""A number above any edit's and any version's, as the reads pass it."""

_PLACE = ("tenant", "session", "branch")
_SESSION = ("tenant", "session")

_SHARED: dict[str, tuple[str, tuple[str, ...]]] = {
    "position": (branch_positions.BRANCH_POSITION, _PLACE * 3),
    "decisions": (sql.DECISIONS, (*_SESSION, "whole", "all", *_SESSION, "whole", *_SESSION)),
    "branch": (sql.BRANCH, (*_SESSION, "moved")),
    "edits": (sql.EDITS, (*_SESSION, "moved", "all")),
    "states": (sql.STATES, (*_SESSION, "moved")),
    "answers": (sql.HELPER_ANSWERS, (*_SESSION, "answers")),
    "scratchpad": (session_notes.SCRATCHPADS, (*_SESSION, "all", "one")),
    "memos": (session_notes.PROJECT_MEMOS, ("tenant", "start", "project", "memos")),
    "kinds": (branch_positions.BRANCH_KINDS, _SESSION),
    "newest_states": (sql.NEWEST_STATES, (*_SESSION, "system", "sixteen")),
}
"""The statements that a read has by itself too, each with the names of its arguments."""

_IF_MOVED = ("answers",)
"""Statements that name no branch, and whose rows are read with a branch only."""

_OWN = {
    "place": "SELECT branch FROM place",
    "known": """
SELECT m.key, m.form, m.branch, m.reached, m.strategy, m.created_at FROM messages m
WHERE m.tenant = {tenant} AND m.session = {session} AND m.key = ANY ({keys})""",
    "offer": """
SELECT f.body FROM forms f WHERE f.tenant = {tenant} AND f.session = {session} AND f.form = (
    SELECT decode(b.offer, 'hex') FROM branches b
    WHERE b.tenant = {tenant} AND b.session = {session} AND b.branch = {moved})""",
    "literal": """
SELECT e.exchange, x.found FROM (
    SELECT n.exchange FROM edits n WHERE n.tenant = {tenant} AND n.session = {session} AND n.branch = {moved}
    ORDER BY n.number DESC LIMIT 1) e
LEFT JOIN LATERAL (
    SELECT 1 AS found FROM exchanges y WHERE y.tenant = {tenant} AND y.session = {session} AND y.exchange = e.exchange
        AND y.schedule = 'always' OFFSET 0) x ON true""",
    "rounds": """
SELECT r.tenant, r.session, r.key, r.tip, r.exchange, r.body, r.created_at FROM hidden_rounds r
WHERE r.tenant = {tenant} AND r.session = {session} AND (r.key = ANY ({rounds}) OR r.tip = ANY ({rounds}))""",
}
"""The statements that depend on what others of them find, or that take a list of any length."""

_UNMOVED = ("position", "decisions")
"""The statements of a request that goes on with what memory has."""
_ALWAYS = ("place", "known", "position", "decisions", "branch", "edits", "states", "answers", "offer", "literal")

_WITH = """WITH place AS MATERIALIZED (
    SELECT coalesce((
        SELECT m.branch FROM unnest({keys}) WITH ORDINALITY k (key, n)
        JOIN LATERAL (
            SELECT x.branch FROM messages x WHERE x.tenant = {tenant} AND x.session = {session} AND x.key = k.key
            OFFSET 0) m ON true
        ORDER BY k.n DESC LIMIT 1), {guess}) AS branch
), moved AS MATERIALIZED (
    SELECT p.branch FROM place p WHERE NOT EXISTS (
        SELECT 1 FROM branches b WHERE b.tenant = {tenant} AND b.session = {session} AND b.branch = p.branch
            AND p.branch = {guess} AND b.last_at = ANY ({moves})
            AND {edits} >= (SELECT coalesce(max(e.number), 0) FROM edits e
                WHERE e.tenant = {tenant} AND e.session = {session} AND e.branch = {guess})
            AND {states} >= (SELECT coalesce(max(s.number), 0) FROM states s
                WHERE s.tenant = {tenant} AND s.session = {session} AND s.branch = {guess}))
)
"""

_CASTS = {
    "keys": "bytea[]",
    "rounds": "bytea[]",
    "moves": "double precision[]",
    "system": "bytea",
    **dict.fromkeys(("all", "one", "answers", "memos", "sixteen", "edits", "states"), "bigint"),
}
_FOUND = {"branch": "(SELECT branch FROM place)", "moved": "(SELECT branch FROM moved)"}
"""Arguments that the statement finds itself, unless the branch is known."""
_NAME = re.compile(r"\{(\w+)\}")
_PLACEHOLDER = re.compile(r"\$(\d+)")


@cache
def build_statement(sections: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """(the statement, the names of its arguments in their order)."""
    names: list[str] = []
    found = _FOUND if "place" in sections else {}

    def place(name: str) -> str:
        if name in found:
            return found[name]
        if name not in names:
            names.append(name)
        return f"${names.index(name) + 1}::{_CASTS.get(name, 'text')}"

    def fill(text: str) -> str:
        return _NAME.sub(lambda found: place(found.group(1)), text)

    arrays = []
    head = fill(_WITH) if found else ""
    for section in sections:
        if section in _OWN:
            text = fill(_OWN[section])
        else:
            shared, arguments = _SHARED[section]
            text = _PLACEHOLDER.sub(lambda found: place(arguments[int(found.group(1)) - 1]), sql.for_postgres(shared))  # noqa: B023  # called at once
        if section in _IF_MOVED:
            text = f"SELECT a.* FROM moved CROSS JOIN LATERAL ({text}) a"  # noqa: S608  put together from constants
        arrays.append(f"ARRAY(SELECT q FROM ({text}) q)")  # noqa: S608  # SQL of ours
    return f"{head}SELECT {', '.join(arrays)}", tuple(names)


class ReadAhead:
    """The reads of one request. Made when they are announced; the first of them reads all."""

    def __init__(self, expected: ExpectedReads) -> None:
        self._wanted = expected
        self._is_open = True
        """True until the statement runs. If it fails or is too late, each read is made by itself."""
        self._rows: dict[tuple[str, tuple[Any, ...]], Rows] = {}
        self._known: dict[bytes, KnownMessage] | None = None
        self._rounds: list[HiddenRoundRow] | None = None
        sections = [*(_ALWAYS if expected.is_moved else _UNMOVED)]
        if expected.rounds:
            sections.append("rounds")
        if expected.is_new:
            sections += ["kinds", "newest_states"]
        if expected.scratchpad:
            sections.append("scratchpad")
        if expected.memos:
            sections.append("memos")
        self._sections = tuple(sections)
        self._values: dict[str, Any] = {
            "tenant": expected.tenant, "session": expected.session, "whole": WHOLE_SESSION, "guess": expected.branch,
            "branch": expected.branch,
            "keys": expected.keys, "rounds": expected.rounds, "moves": expected.moves, "system": expected.system,
            "edits": expected.edits, "states": expected.states, "all": ALL_NUMBERS, "one": 1, "start": "",
            "answers": sql.MAX_HELPER_ANSWERS, "sixteen": MAX_STORED_STATES,
            "project": expected.project, "memos": expected.memos,
        }  # fmt: skip

    def drop(self) -> None:
        """Forget what was read: the task has written something since."""
        self._is_open = False
        self._rows = {}
        self._known = self._rounds = None

    async def take(self, text: str, args: Sequence[Any], fetch: Fetch) -> Rows | None:
        """The rows of a read, once; None if it has to be made by itself."""
        if self._is_open and self._is_expected(text, args):
            await self._load(fetch)
        return self._rows.pop((text, tuple(args)), None) if self._rows else None

    async def take_known(
        self, tenant: str, session: str, keys: Sequence[bytes], fetch: Fetch
    ) -> dict[bytes, KnownMessage] | None:
        """The stored messages among `keys`; None if they have to be read by themselves."""
        wanted = self._wanted
        if (tenant, session) != (wanted.tenant, wanted.session) or not set(wanted.keys).issuperset(keys):
            return None
        if self._is_open:
            await self._load(fetch)
        found = self._known
        return None if found is None else {key: found[key] for key in keys if key in found}

    async def take_rounds(
        self, tenant: str, session: str, keys: Sequence[bytes], fetch: Fetch
    ) -> list[HiddenRoundRow] | None:
        """The hidden rounds whose key or tip is among `keys`, once, oldest first; None as above."""
        wanted = self._wanted
        if (tenant, session) != (wanted.tenant, wanted.session) or not set(wanted.rounds).issuperset(keys):
            return None
        if self._is_open:
            await self._load(fetch)
        found, self._rounds = self._rounds, None
        asked = set(keys)
        return None if found is None else [row for row in found if row.key in asked or row.tip in asked]

    def _is_expected(self, text: str, args: Sequence[Any]) -> bool:
        """True for a read that may come first, when the branch is not known yet but from memory."""
        values = self._values
        return any(
            name in self._sections
            and text == _SHARED[name][0]
            and tuple(args) == tuple(values[argument] for argument in _SHARED[name][1])
            for name in ("position", "decisions", "kinds")
        )

    async def _load(self, fetch: Fetch) -> None:
        self._is_open = False
        text, names = build_statement(self._sections)
        (arrays,) = await fetch(text, [self._values[name] for name in names])
        rows_by_section = {
            name: [tuple(row) for row in rows] for name, rows in zip(self._sections, arrays, strict=True)
        }
        branch = rows_by_section["place"][0][0] if self._wanted.is_moved else self._wanted.branch
        values = {**self._values, "branch": branch, "moved": branch}
        if self._wanted.is_moved and not rows_by_section["branch"] and branch == self._wanted.branch:
            for name in ("branch", "edits", "states", "answers"):  # memory has the branch, or there is none
                del rows_by_section[name]
        for name, rows in rows_by_section.items():
            if name in _SHARED:
                self._rows[_SHARED[name][0], tuple(values[argument] for argument in _SHARED[name][1])] = rows
        for exchange, is_literal in rows_by_section.get("literal", ()):
            place = (self._wanted.tenant, self._wanted.session, exchange)
            self._rows[sql.IS_LITERAL, place] = [] if is_literal is None else [(1,)]
        for (body,) in rows_by_section.get("offer", ()):
            offer = rows_by_section["branch"][0][12]
            place = (self._wanted.tenant, self._wanted.session, bytes.fromhex(offer))
            self._rows[sql.FORM, place] = [(body,)]
        if "known" in rows_by_section:
            self._known = {
                row[0]: KnownMessage(row[1], row[2], bool(row[3]), row[4], row[5]) for row in rows_by_section["known"]
            }
        rounds = [HiddenRoundRow(*row) for row in rows_by_section.get("rounds", ())]
        self._rounds = sorted(rounds, key=lambda row: (row.created_at, row.key))
