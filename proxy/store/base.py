"""What is remembered: one row type a table, what is read back, and the `Store` that every backend is.

The rows are made above: ids and times come from the caller and are inserted as they are, so that a store
has no clock and two backends given the same rows hold the same. The order of a row's fields is the order of
its table's columns (`sql.py`), which makes a row's tuple the statement's arguments without any mapping.

Times are Unix seconds. Keys, forms and hashes are bytes; whatever a model or client wrote is bytes, or is stored as
bytes, because text columns refuse lone surrogates (SQLite) and NUL (PostgreSQL), and both occur in JSON.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Literal, Protocol, runtime_checkable

from msgspec import Struct

from proxy.store.blanking import BlankFormRow, BlankRoundRow, BlankRow
from proxy.store.derived import AnswerRow, IterationRecord, IterationRow, SpendingRow, VectorRow, WindowRow
from proxy.store.keywords import IndexRow, Match
from proxy.store.listing import ListingStore, MessageFilter
from proxy.store.removal import EraseRow, RemovalStore
from proxy.store.standing import Hit, Kind, KindRow, Known, StandingStore, WorkRow
from proxy.store.written import NoteRow, WrittenRow, WrittenStore

Action = Literal["text", "gone", "text_only", "append", "withdrawn", "pin", "unpin"]
"""What an edit does to its message; `withdrawn`: an earlier version of it is taken back. `pin`: the message is to stay
as it is, until an `unpin`; both are counted apart from the edits that change something."""
Outcome = Literal["complete", "partial", "client_gone", "failed", "rejected", "deferred"]


class SessionRow(Struct, frozen=True, gc=False):
    """A conversation's name under a tenant. Inserted once; later ones of the same name are ignored."""

    tenant: str
    session: str
    explicit: bool
    """Whether the client named it (path, header, body field) or the hash chain did."""
    created_at: float
    settings: str = "{}"
    """JSON object."""


class ThreadRow(Struct, frozen=True, gc=False):
    """One line of history in a session. Inserted once; `HeadRow` moves it on."""

    tenant: str
    session: str
    thread: str
    parent: str | None
    fork_key: bytes | None
    kind: Kind
    system: bytes
    created_at: float


class HeadRow(Struct, frozen=True, gc=False):
    """Where a thread stands now: updates the thread's row, and does nothing if there is none."""

    tenant: str
    session: str
    thread: str
    head: bytes
    answer: bytes | None
    last_at: float
    stopped: str | None
    """Why rewriting stopped for this thread, if it did."""
    asked: str | None = None
    """The last request that asked the model for its state and was answered: how many edits had taken something out, how
    many states there were before, and its head, in words; None where there was none."""


class MessageRow(Struct, frozen=True, gc=False):
    """A message, once, however often it is resent: inserted or ignored on (tenant, session, key)."""

    tenant: str
    session: str
    key: bytes
    """The chain key: which message this is, its parents included."""
    parent: bytes
    position: int
    thread: str
    role: str
    group_id: str
    body: bytes
    form: bytes
    """blake2b (16 bytes) of `body`."""
    call_id: str | None
    status: Literal["completed", "tool_call", "dropped", "removed"]
    strategy: str
    tokens: int
    answer: bool
    """The proxy itself gave this answer."""
    reached: bool
    created_at: float


class FormRow(Struct, frozen=True, gc=False):
    """Bytes by their hash: other forms of a message, envelopes, inserts, whole bodies. Inserted or ignored."""

    tenant: str
    session: str
    form: bytes
    body: bytes


class EditRow(Struct, frozen=True, gc=False):
    """A decision about one message. The first of a (thread, key, version) stands, whoever else decides the same:
    read back what was stored before using it."""

    tenant: str
    session: str
    thread: str
    key: bytes
    version: int
    stage: str
    reason: str
    action: Action
    text: str | None
    before: int
    after: int
    """Tokens of the message before and after."""
    exchange: str
    created_at: float


class StateRow(Struct, frozen=True, gc=False):
    """A STATE block, filed under the answer that it stood in. Inserted or ignored on (thread, key)."""

    tenant: str
    session: str
    thread: str
    key: bytes
    text: str
    created_at: float


class ExchangeRow(Struct, frozen=True, gc=False):
    """What is needed to build a request's prompt again. Inserted once, with status 'open'."""

    tenant: str
    session: str
    exchange: str
    thread: str
    head: bytes
    messages: int
    envelope: bytes
    forms: bytes
    """JSON: messages that came in another form than the one stored first."""
    edits: int
    """The highest edit number of the thread in force."""
    inserts: bytes
    """JSON: what was inserted where."""
    policy: str
    schedule: str
    model: str
    upstream: str
    strategy: str
    tokens_before: int
    tokens_after: int
    predicted: int | None
    started_at: float


class OutcomeRow(Struct, frozen=True, gc=False):
    """How an exchange ended: updates its row, and does nothing if there is none."""

    tenant: str
    session: str
    exchange: str
    status: Outcome
    http_status: int
    finish: str | None
    prompt_tokens: int | None
    completion_tokens: int | None
    cached_tokens: int | None
    answer: bytes | None
    fallback: str | None
    first_byte_ms: float | None
    ended_at: float
    note: str | None
    meter: str | None = None
    """JSON: what the exchange is billed by; None where the upstream reported no usage."""


class GapRow(Struct, frozen=True, gc=False):
    """What could not be stored. Added up for the same exchange and reason."""

    tenant: str
    session: str
    exchange: str
    bytes: int
    reason: str
    created_at: float
    items: int = 1
    """How many calls of `put` were lost."""


Row = (
    SessionRow | ThreadRow | HeadRow | MessageRow | FormRow | EditRow | StateRow | ExchangeRow | OutcomeRow | GapRow
    | KindRow | WorkRow | AnswerRow | SpendingRow | WindowRow | VectorRow | IndexRow | IterationRow
    | WrittenRow | EraseRow | BlankRow | BlankFormRow | BlankRoundRow
)  # fmt: skip


class ThreadRecord(ThreadRow, frozen=True, kw_only=True):
    """A thread with where it stands and what is in force on it."""

    head: bytes
    answer: bytes | None
    last_at: float
    stopped: str | None
    edits: list[tuple[EditRow, int]]
    """In force, each with its number, in the order of the numbers."""
    states: list[StateRow]
    """Oldest first."""
    answers: dict[str, str]
    """What helpers have answered in this session, by the id of the Ask: the newest 1,000, oldest first."""
    asked: str | None = None
    """See `HeadRow`."""
    offer: str | None = None
    """Which of our tools it is offered: see `OfferRow`; None while that is undecided."""
    lasting: list[tuple[EditRow, int]] | None = None
    """Where the edits in force are a literal policy's: those that no literal policy has made. None: they are in force
    themselves."""


class SessionRecord(SessionRow, frozen=True, kw_only=True):
    """A session with its threads, oldest first, and how many rows it has in each table."""

    last_at: float
    policy: str
    """Of the request that came last, "" before there is one."""
    threads: list[ThreadRow]
    counts: dict[str, int]


class MessageRecord(MessageRow, frozen=True, kw_only=True):
    """A stored message; `seq` counts the messages of its session from 1, in the order they were stored."""

    seq: int


class LeftOut(MessageRecord, frozen=True, kw_only=True):
    """A stored message that is out of its thread's prompt: by which stage, why, since which exchange and when."""

    stage: str
    reason: str
    exchange: str
    edited_at: float


class Decided(Struct, frozen=True, gc=False):
    """What was decided for a session: see `SettingsRow`, `EditRow` and `NoteRow`."""

    settings: str
    edits: list[tuple[EditRow, int]]
    notes: list[NoteRow]


class ExchangeRecord(ExchangeRow, frozen=True, kw_only=True):
    """An exchange with its outcome; `status` is 'open' and the rest None until there is one."""

    status: str
    http_status: int | None
    finish: str | None
    prompt_tokens: int | None
    completion_tokens: int | None
    cached_tokens: int | None
    answer: bytes | None
    fallback: str | None
    first_byte_ms: float | None
    ended_at: float | None
    note: str | None
    meter: str | None = None


@runtime_checkable
class Store(WrittenStore, ListingStore, RemovalStore, StandingStore, Protocol):
    """Reads raise StoreUnavailable when they fail or take too long; `open` raises StoreRefused."""

    @property
    def healthy(self) -> bool:
        """Whether the last write and the last read went well."""
        ...

    @property
    def trouble(self) -> str:
        """What is wrong when it is not healthy, for /readyz and the log; never a message's content."""
        ...

    @property
    def queued(self) -> int:
        """Items that wait to be written."""
        ...

    @property
    def dropped(self) -> int:
        """Items that were refused or could not be stored, since the start."""
        ...

    async def open(self) -> None: ...
    async def close(self) -> None:
        """Writes what is queued, then closes. Idempotent."""
        ...

    def put(self, rows: Sequence[Row]) -> asyncio.Future[None]:
        """One transaction: all of `rows` or none, in the order of the calls. Never raises and never waits. The future
        resolves when the rows are durable, and holds StoreUnavailable if they were refused (the spool is full, a
        value cannot be stored, the store closed). Cancelling the future does not take the rows back."""
        ...

    def later(self, rows: Sequence[Row]) -> asyncio.Future[None]:
        """As `put`, for rows that nobody waits for: they may go into one transaction with those of the next `put`, and
        are written by themselves where none comes soon. They keep their place in the order of the calls."""
        ...

    def hurry(self) -> None:
        """Has what was put by `later` written now: somebody waits for it after all, or wants to read it."""
        ...

    async def find(self, tenant: str, keys: Sequence[bytes], session: str | None) -> list[Hit]:
        """The stored nodes among `keys`, which are in chain order, root first. At most 32: deepest first, then of the
        thread used last. `session` keeps the search inside one; over all sessions only the proxy's answers are found,
        since what others say first may stand in thousands of them."""
        ...

    async def thread(self, tenant: str, session: str, thread: str) -> ThreadRecord | None: ...

    async def newest_states(self, tenant: str, session: str, system: bytes, most: int) -> list[StateRow]:
        """The newest states of the session's threads with this system prompt, side calls apart; newest first."""
        ...

    async def session(self, tenant: str, session: str) -> SessionRecord | None: ...

    async def sessions(self, after: tuple[str, str] = ("", ""), limit: int = 1000) -> list[tuple[str, str]]:
        """(tenant, session) of those behind `after`, in the order of their names: for reports, not for serving."""
        ...

    async def chain(self, tenant: str, session: str, key: bytes) -> list[MessageRecord]:
        """From the root to this node, by the parent links; empty if the node is not stored."""
        ...

    async def known(self, tenant: str, session: str, keys: Sequence[bytes]) -> dict[bytes, Known]:
        """Those of `keys` that are stored in this session."""
        ...

    async def search(self, tenant: str, session: str, query: str, limit: int = 10) -> list[Match]:
        """Messages and summaries of the session that have words of the query, best first. Brings the session's index up
        to date first, which waits for the writer."""
        ...

    async def message(self, tenant: str, session: str, public_id: str) -> MessageRecord | None:
        """By the id that people and models see; None where there is none, or the id is none."""
        ...

    async def messages(
        self,
        tenant: str,
        session: str,
        after: int = 0,
        limit: int = 100,
        only: MessageFilter | None = None,
        *,
        newest: bool = False,
    ) -> list[MessageRecord]:
        """In the order they were stored, or newest first; `after` (exclusive, a `seq`) turns the page either way."""
        ...

    async def exchange(self, tenant: str, session: str, exchange: str) -> ExchangeRecord | None: ...

    async def exchanges(
        self, tenant: str, session: str, limit: int = 100, before: float | None = None
    ) -> list[ExchangeRecord]:
        """Newest first; `before` (exclusive, a `started_at`) turns the page."""
        ...

    async def edits(self, tenant: str, session: str, thread: str, upto: int | None = None) -> list[tuple[EditRow, int]]:
        """The latest version of each key whose number is at most `upto`, in the order of the numbers."""
        ...

    async def decided(self, tenant: str, session: str, thread: str) -> Decided:
        """What `settings` says of the session, and `edits` and `notes` of the thread, all of one moment."""
        ...

    async def left_out(self, tenant: str, session: str, thread: str) -> list[LeftOut]:
        """The messages that are out of the thread's prompt now, in the order they were stored."""
        ...

    async def form(self, tenant: str, session: str, form: bytes) -> bytes | None: ...

    async def answer(self, tenant: str, session: str, ask: str) -> str | None:
        """A helper's stored answer."""
        ...

    async def iterations(self, tenant: str, session: str, thread: str) -> list[IterationRecord]:
        """The records of a thread's iterations, oldest first, each with what was reflected on it."""
        ...

    async def vectors(self, tenant: str, session: str, model: str, forms: Sequence[bytes]) -> dict[bytes, bytes]:
        """The stored embeddings of these forms, as they were put."""
        ...

    async def windows(self, since: float) -> list[WindowRow]:
        """The context windows that upstreams have named since then, the newest 1,000, oldest first."""
        ...

    async def spent(self, day: int) -> float:
        """Dollars that helpers have cost on this day."""
        ...

    async def count(self) -> dict[str, int]:
        """Rows a table."""
        ...
