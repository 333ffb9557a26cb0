"""`Store`, the contract of every backend, and all reads on top of one method: the rows of a statement.

So SQLite, PostgreSQL and memory read the same by construction. A read is one statement if possible, because with a
branch or a network in between, the trip costs more than the work.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import re
import time
from abc import abstractmethod
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

from msgspec.structs import replace

from proxy.errors import StoreUnavailable
from proxy.store import full_text_search, sql
from proxy.store.base import (
    BranchRecord,
    BranchRow,
    DecisionRows,
    EditRow,
    ExchangeRecord,
    ExchangeRow,
    LeftOutMessage,
    MessageRecord,
    Row,
    SessionRecord,
    StateRow,
    is_last_page,
)
from proxy.store.bindings import BINDINGS, MAX_BINDINGS, BindingRow
from proxy.store.branch_positions import BranchReads, ChainHit, KnownMessage
from proxy.store.derived import NO_CONVERSATION, NO_SESSION, ContextWindowRow, IterationRecord
from proxy.store.expected_reads import ImmediateReads
from proxy.store.full_text_search import SearchMatch
from proxy.store.removal import RemovalSteps
from proxy.store.response_names import ResponseNameReads
from proxy.store.row_reader import MAX_PAGE_BYTES, split_into_chunks
from proxy.store.session_lists import MessageFilter, SessionListReads, contains_text
from proxy.store.session_notes import NoteRow, SessionNotesReads
from proxy.store.texts import to_text

_ALL = 1 << 62
"""A number above any edit's number, within 64 bits."""

_LOOKED_THROUGH = 256
"""Number of messages that are read at a time while a text is searched in them."""

_INDEX_STEPS = 10_000
"""Steps in which one search brings an index up to date."""

_PUBLIC = re.compile(r"[a-z2-7]{10}")
KEY_BYTES = 16
"""Bytes of a chain key."""
_SPAN = 1 << 6
"""Number of values of a key's first seven bytes with the same public id: the id is the first 50 bits of the key."""


def _find_lowest_key(public_id: str) -> bytes | None:
    """The lowest key with this public id; None if the text is no public id."""
    if not _PUBLIC.fullmatch(public_id):
        return None
    return base64.b32decode(public_id.upper() + "A" * 6)[:7]


def _select_deepest_hits(hits: list[ChainHit]) -> list[ChainHit]:
    hits.sort(key=lambda hit: (-hit.position, -hit.last_at))
    return hits[: sql.MAX_HITS]


def _decode_hit(row: Sequence[Any]) -> ChainHit:
    return ChainHit(row[0], row[1], row[2], row[3], bool(row[4]), bool(row[5]), row[6], row[7] or b"")


def _decode_edit(row: Sequence[Any]) -> tuple[EditRow, int]:
    text = None if row[8] is None else to_text(row[8])
    return EditRow(*(*row[:8], text, *row[9:13])), row[13]


def _decode_message(row: Sequence[Any]) -> MessageRecord:
    return MessageRecord(*(*row[:14], bool(row[14]), bool(row[15]), row[16]), seq=row[17])


_STATUS = len(ExchangeRow.__struct_fields__)
"""The place of the status in the columns of an exchange; the outcome begins with it."""
_OUTCOME = ExchangeRecord.__struct_fields__[_STATUS:]


class Store(ImmediateReads, SessionNotesReads, SessionListReads, BranchReads, ResponseNameReads, RemovalSteps):
    """The store: reads, and the contract of a backend, which adds writing, opening and closing.

    Reads raise StoreUnavailable if they fail or take too long.
    """

    longest_request_s = 7200.0
    """Seconds after which no process can be working on a request any more: one that is still open is read as lost."""

    @property
    @abstractmethod
    def trouble(self) -> str:
        """The fault if the store is not healthy, for /readyz and the log; never a message's content."""

    @property
    @abstractmethod
    def queued(self) -> int:
        """Number of items that wait to be written."""

    @property
    @abstractmethod
    def dropped(self) -> int:
        """Number of items that were refused or could not be stored, since the start."""

    @property
    def healthy(self) -> bool:
        """True if the last write and the last read succeeded."""
        return not self.trouble

    @property
    def writable(self) -> bool:
        """True unless the last write failed."""
        return not self.trouble

    @property
    def readable(self) -> bool:
        """True unless the last read failed. It is true again without a request: a failed read is repeated."""
        return not self.trouble

    @property
    def stalled(self) -> bool:
        """True if rows wait to be written, and none has been written for seconds: another one is not worth a wait."""
        return False

    @abstractmethod
    async def open(self) -> None:
        """Open the store. Raises StoreRefused."""

    @abstractmethod
    async def close(self) -> None:
        """Write the queued items, then close. Idempotent."""

    @abstractmethod
    def put(self, rows: Sequence[Row]) -> asyncio.Future[None]:
        """Queue one transaction: all of `rows` or none, in the order of the calls. Never raises and never waits.

        The future resolves when the rows are durable. It holds StoreUnavailable if they were refused (the spool is
        full, a value cannot be stored, the store is closed). Cancelling the future does not take the rows back.
        """

    def _find_oldest_open(self) -> float:
        """The time (Unix seconds) of the oldest request that may still be worked on. Other replicas' requests look the
        same as a killed process's, so the age decides."""
        return time.time() - self.longest_request_s

    def _decode_exchange(self, row: Sequence[Any]) -> ExchangeRecord:
        """The exchange of a row. A killed process leaves its requests open: they are read as lost."""
        record = ExchangeRecord(*row[:_STATUS], **dict(zip(_OUTCOME, row[_STATUS:], strict=True)))
        is_lost = record.status == "open" and record.started_at < self._find_oldest_open()
        return replace(record, status="lost") if is_lost else record

    def put_deferred(self, rows: Sequence[Row]) -> asyncio.Future[None]:
        """Queue as `put`, for rows whose future nobody awaits. They may share a transaction with the rows of the next
        `put`, and are written alone if none comes soon. They keep their place in the order of the calls."""
        return self.put(rows)

    def flush_deferred(self) -> None:
        """Write the rows put by `put_deferred` now, since a caller waits for them after all, or wants to read them."""

    async def find_chain_hits(self, tenant: str, keys: Sequence[bytes], session: str | None) -> list[ChainHit]:
        """The stored nodes among `keys`, which are in chain order, root first. At most 32: deepest first, then of the
        branch used last.

        `session` limits the search to one session. Without it only the proxy's answers are found, since thousands of
        sessions may share the first messages of others.
        """
        hits: list[ChainHit] = []
        for chunk in split_into_chunks(keys):
            size = len(chunk)
            if session is not None:
                rows = await self._fetch(sql.FIND_IN_SESSION[size], (tenant, session, *chunk))
            else:
                rows = await self._fetch_answers(sql.FIND[size], (tenant, *chunk, 2 * size))
                if len(rows) == 2 * size:
                    rows = await self._find_newest(tenant, chunk)
            hits.extend(map(_decode_hit, rows))
            if len(hits) >= sql.MAX_HITS:
                break  # the remaining keys are all less deep
        return _select_deepest_hits(hits)

    async def _fetch_answers(self, text: str, args: Sequence[Any]) -> list[tuple[Any, ...]]:
        """`_fetch` for a statement that reads answers of the proxy by their keys, which are among `args`."""
        return await self._fetch(text, args)

    async def _find_newest(self, tenant: str, chunk: list[bytes]) -> list[tuple[Any, ...]]:
        """Find hits key by key, if so many sessions share keys that one statement would have to cut at random."""
        rows: list[tuple[Any, ...]] = []
        for key in dict.fromkeys(chunk):
            rows += await self._fetch(sql.FIND_NEWEST, (tenant, key, sql.MAX_HITS))
            if len(rows) >= sql.MAX_HITS:
                break
        return rows

    async def search(self, tenant: str, session: str, query: str, limit: int = 10) -> list[SearchMatch]:
        """Messages and summaries of the session that contain words of the query, best first. Texts are read until they
        have MAX_PAGE_BYTES. The search first brings the session's index up to date, which waits for the writer."""
        asked = full_text_search.build_query(tenant, session, query)
        if not asked:
            return []
        await self._update_index(tenant, session)
        rows = await self._fetch(full_text_search.SEARCH, (MAX_PAGE_BYTES, asked, limit, tenant, session))
        # A lone surrogate, which JSON can carry, comes out of SQLite as bytes that are no UTF-8.
        texts = [None if row[3] is None else row[3].decode("utf-8", "replace") for row in rows]
        return [
            SearchMatch(row[0], row[1], row[2], text or "", row[4], has_text=text is not None, branch=row[5])
            for row, text in zip(rows, texts, strict=True)
        ]

    async def _update_index(self, tenant: str, session: str) -> None:
        """Bring the index of a session up to date, in steps between which the writer serves others. An index that
        cannot be brought up to date is searched as it is."""
        place = (tenant, session)
        with contextlib.suppress(StoreUnavailable):
            for _ in range(_INDEX_STEPS):
                await self.put([full_text_search.IndexRow(*place)])
                if not await self._fetch(full_text_search.HAS_NEW_MESSAGES, place * 2):
                    return

    async def find_known_messages(self, tenant: str, session: str, keys: Sequence[bytes]) -> dict[bytes, KnownMessage]:
        """The stored messages of this session among `keys`."""
        found: dict[bytes, KnownMessage] = {}
        for chunk in split_into_chunks(keys):
            rows = await self._fetch(sql.KNOWN[len(chunk)], (tenant, session, *chunk))
            found.update((row[0], KnownMessage(row[1], row[2], bool(row[3]), row[4], row[5])) for row in rows)
        return found

    async def read_newest_states(self, tenant: str, session: str, system: bytes, most: int) -> list[StateRow]:
        """The newest states of the session's branches with this system prompt, side calls excluded; newest first."""
        rows = await self._fetch(sql.NEWEST_STATES, (tenant, session, system, most))
        return [StateRow(*(*row[:4], to_text(row[4]), row[5])) for row in rows]

    async def read_branch(self, tenant: str, session: str, branch: str) -> BranchRecord | None:
        place = (tenant, session, branch)
        rows = await self._fetch(sql.BRANCH, place)
        if not rows:
            return None
        row = rows[0]
        edits = await self.read_edits(*place)
        lasting = None
        if edits and await self._fetch(sql.IS_LITERAL, (tenant, session, edits[-1][0].exchange)):
            lasting = [_decode_edit(found) for found in await self._fetch(sql.NONLITERAL_EDITS, (*place, _ALL))]
        states = [StateRow(*(*s[:4], to_text(s[4]), s[5])) for s in await self._fetch(sql.STATES, place)]
        newest = await self._fetch(sql.HELPER_ANSWERS, (tenant, session, sql.MAX_HELPER_ANSWERS))
        answers = {ask: to_text(text) for ask, text in reversed(newest)}
        found = {"tip": row[8], "answer": row[9], "last_at": row[10], "stopped": row[11]}
        found |= {"offer": row[12], "asked": row[13]}
        return BranchRecord(*row[:8], **found, edits=edits, states=states, helper_answers=answers, lasting=lasting)

    async def read_session(self, tenant: str, session: str) -> SessionRecord | None:
        place = (tenant, session)
        rows = await self._fetch(sql.SESSION, place)
        if not rows:
            return None
        row = rows[0]
        branches = [BranchRow(*t) for t in await self._fetch(sql.BRANCHES, place)]
        (counted,) = await self._fetch(sql.SESSION_COUNTS, place * len(sql.COUNTED_TABLES))
        counts = dict(zip(sql.COUNTED_TABLES, counted, strict=True))
        counts["branches"] = len(branches)
        found = {"last_at": row[5], "policy": row[6], "branches": branches, "counts": counts}
        return SessionRecord(row[0], row[1], bool(row[2]), row[3], row[4], **found)

    async def read_session_names(self, after: tuple[str, str] = ("", ""), limit: int = 1000) -> list[tuple[str, str]]:
        """(tenant, session) of the sessions after `after`, in the order of their names: for reports."""
        return [(row[0], row[1]) for row in await self._fetch(sql.SESSIONS, (*after, limit))]

    async def read_chain(self, tenant: str, session: str, key: bytes) -> list[MessageRecord]:
        """The messages from the root to this node, by the parent links; empty if the node is not stored."""
        place = (tenant, session)
        return [_decode_message(row) for row in await self._fetch(sql.CHAIN, (*place, key, *place, *place))]

    async def find_message(self, tenant: str, session: str, public_id: str) -> MessageRecord | None:
        """The message with this public id; None if there is none, or if the id is not valid."""
        first = _find_lowest_key(public_id)
        if first is None:
            return None
        behind = (int.from_bytes(first[:7]) + _SPAN).to_bytes(8)
        last = behind[1:] if behind[0] == 0 else b"\xff" * 33
        rows = await self._fetch(sql.MESSAGES_BETWEEN, (tenant, session, first, last))
        return _decode_message(rows[0]) if rows else None

    async def find_returned_message(self, tenant: str, hash_prefix: bytes) -> MessageRecord | None:
        """The newest message of the tenant whose key begins with these bytes, None if there is none. Only messages that
        a gateway got back count, and only if they are not removed."""
        behind = hash_prefix + b"\xff" * (KEY_BYTES + 1 - len(hash_prefix))
        rows = await self._fetch(sql.RETURNED_BETWEEN, (tenant, hash_prefix, behind))
        return _decode_message(rows[0]) if rows else None

    async def read_messages(
        self,
        tenant: str,
        session: str,
        after: int = 0,
        limit: int = 100,
        only: MessageFilter | None = None,
        *,
        newest: bool = False,
    ) -> list[MessageRecord]:
        """Messages in the order in which they were stored, or newest first. The page begins after `after` (exclusive, a
        `seq`), in either direction. It has `limit` messages at most, and ends with the one that brings it to
        MAX_PAGE_BYTES (`is_last_page`)."""
        passes = only or MessageFilter()
        place = (tenant, session)
        wanted = (passes.role, passes.role, passes.group, passes.group)
        found: list[MessageRecord] = []
        at = after or (_ALL if newest else 0)
        size, found_bytes = _LOOKED_THROUGH if passes.text else limit, 0
        while True:
            if passes.branch:
                text = sql.NEWEST_BRANCH_MESSAGES if newest else sql.BRANCH_MESSAGES
                args: tuple[Any, ...] = (*place, passes.branch, *place, *place, at, *wanted, size, MAX_PAGE_BYTES)
            else:
                text = sql.NEWEST_MESSAGES if newest else sql.MESSAGES
                args = (*place, at, *wanted, size, MAX_PAGE_BYTES)
            page = [_decode_message(row) for row in await self._fetch(text, args)]
            if not passes.text:
                return page
            for message in page:
                if contains_text(message.body, passes.text):
                    found.append(message)
                    found_bytes += len(message.body)
                    if len(found) == limit or found_bytes >= MAX_PAGE_BYTES:
                        return found
            if is_last_page(page, size):
                return found
            at = page[-1].seq

    async def read_exchange(self, tenant: str, session: str, exchange: str) -> ExchangeRecord | None:
        rows = await self._fetch(sql.EXCHANGE, (tenant, session, exchange))
        return self._decode_exchange(rows[0]) if rows else None

    async def read_exchanges(
        self, tenant: str, session: str, limit: int = 100, before: float | None = None
    ) -> list[ExchangeRecord]:
        """Exchanges, newest first, before `before` (exclusive, a `started_at`), which turns the page."""
        end = 1e300 if before is None else before
        return [self._decode_exchange(row) for row in await self._fetch(sql.EXCHANGES, (tenant, session, end, limit))]

    async def read_sessions_used_since(
        self, since: float, after: tuple[str, str] = ("", ""), limit: int = 1000
    ) -> list[tuple[str, str]]:
        """(tenant, session) of the sessions after `after` that were used since then, by name: for exports."""
        return [(row[0], row[1]) for row in await self._fetch(sql.SESSIONS_USED_SINCE, (*after, since, limit))]

    async def read_exchanges_after(
        self, tenant: str, session: str, after: tuple[float, str], until: float, limit: int = 100
    ) -> list[ExchangeRecord]:
        """Exchanges, oldest first, after `after` (exclusive, a `started_at` and an exchange), which turns the page, and
        before `until` (exclusive, a `started_at`)."""
        return [
            self._decode_exchange(row)
            for row in await self._fetch(sql.EXCHANGES_AFTER, (tenant, session, *after, until, limit))
        ]

    async def read_edits(
        self, tenant: str, session: str, branch: str, upto: int | None = None
    ) -> list[tuple[EditRow, int]]:
        """The latest version of each key's edit whose number is at most `upto`, in the order of the numbers."""
        most = _ALL if upto is None else upto
        return [_decode_edit(row) for row in await self._fetch(sql.EDITS, (tenant, session, branch, most))]

    async def read_decisions(self, tenant: str, session: str, branch: str) -> DecisionRows:
        """`settings` of the session, and `edits` and `notes` of the branch, all of one moment."""
        place = (tenant, session, branch)
        rows = await self._fetch(sql.DECISIONS, (*place, _ALL, *place, tenant, session))
        edits = [_decode_edit((*place, *row[2:])) for row in rows if row[0] == "edit"]
        notes = [NoteRow(*place, row[1], row[4], to_text(row[7]), row[11]) for row in rows if row[0] == "note"]
        settings = next((str(row[1]) for row in rows if row[0] == "settings"), "{}")
        edits.sort(key=itemgetter(1))
        notes.sort(key=lambda note: (note.created_at, note.note))
        return DecisionRows(settings, edits, notes)

    async def read_left_out(self, tenant: str, session: str, branch: str) -> list[LeftOutMessage]:
        """The messages that are left out of the branch's prompt now, in the order in which they were stored."""
        rows = await self._fetch(sql.LEFT_OUT, (tenant, session, branch, _ALL))
        return [LeftOutMessage(*row) for row in rows]

    async def read_form(self, tenant: str, session: str, form: bytes) -> bytes | None:
        rows = await self._fetch(sql.FORM, (tenant, session, form))
        return rows[0][0] if rows else None

    async def read_helper_answer(self, tenant: str, session: str, ask: str) -> str | None:
        """A helper's stored answer, or None."""
        rows = await self._fetch(sql.HELPER_ANSWER, (tenant, session, ask))
        return to_text(rows[0][0]) if rows else None

    async def read_iterations(self, tenant: str, session: str, branch: str) -> list[IterationRecord]:
        """The records of a branch's iterations, oldest first, each with its reflection."""
        rows = await self._fetch(sql.ITERATIONS, (tenant, session, branch))
        return [IterationRecord(*row[:8], reflection=None if row[8] is None else to_text(row[8])) for row in rows]

    async def read_embeddings(
        self, tenant: str, session: str, model: str, forms: Sequence[bytes]
    ) -> dict[bytes, bytes]:
        """The stored embeddings of these forms, as bytes, by form."""
        found: dict[bytes, bytes] = {}
        for chunk in split_into_chunks(forms):
            found.update(await self._fetch(sql.VECTORS[len(chunk)], (tenant, session, model, *chunk)))
        return found

    async def read_context_windows(self, since: float) -> list[ContextWindowRow]:
        """The context windows that upstreams have reported since `since`, the newest 1,000, oldest first."""
        return [ContextWindowRow(*row) for row in (await self._fetch(sql.CONTEXT_WINDOWS, (since,)))[::-1]]

    async def read_bindings(self, tenant: str, session: str) -> list[BindingRow]:
        """The prompts that reasoning of a session is bound to, the newest 10,000, oldest first."""
        return [BindingRow(*row) for row in (await self._fetch(BINDINGS, (tenant, session, MAX_BINDINGS)))[::-1]]

    async def sum_spending(self, day: int, tenant: str = NO_CONVERSATION[0]) -> float:
        """Dollars that helpers cost on this day: of all tenants, or of one whose spending is stored."""
        return float((await self._fetch(sql.SUM_SPENDING, (tenant, NO_SESSION, day)))[0][0])
