"""Row types, one per table, the records that are read back, and the `Store` protocol of every backend.

The rows are made above: ids and times come from the caller and are inserted as they are. So a store has no clock, and
two backends with the same rows hold the same data. The order of a row's fields is the order of its table's columns
(`sql.py`), so a row's tuple is the statement's arguments without any mapping.

Times are Unix seconds. Keys, forms and hashes are bytes. Text of a model or client is bytes, or is stored as bytes,
because text columns refuse lone surrogates (SQLite) and NUL (PostgreSQL). Both occur in JSON.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, Literal, Protocol, runtime_checkable

from msgspec import Struct

from proxy.store.bindings import BindingRow
from proxy.store.branch_positions import (
    BranchKind,
    BranchKindRow,
    BranchStore,
    ChainHit,
    KnownMessage,
    WorkingBranchRow,
)
from proxy.store.derived import (
    ContextWindowRow,
    EmbeddingRow,
    HelperAnswerRow,
    IterationRecord,
    IterationRow,
    SpendingRow,
)
from proxy.store.erasure import EraseFormRow, EraseMessageRow, EraseRoundRow
from proxy.store.expected_reads import ExpectedReadsStore
from proxy.store.full_text_search import IndexRow, SearchMatch
from proxy.store.removal import RemovalStepRow, RemovalStore
from proxy.store.response_names import ResponseNameRow, ResponseNameStore
from proxy.store.row_reader import MAX_PAGE_BYTES
from proxy.store.session_lists import MessageFilter, SessionListStore
from proxy.store.session_notes import NoteRow, SessionNotesRow, SessionNotesStore

ID_DIGITS: Final = "234567abcdefghijklmnopqrstuvwxyz"
"""Base32 in the order of its characters, so that ids sort as the numbers behind them."""
ID_TIME_BITS: Final = 40
"""Bits of the time, in milliseconds, that an id of a session, branch or exchange begins with."""

WHOLE_SESSION: Final = ""
"""Stands in the place of a branch's name for an operator's decisions on the whole session."""

EditAction = Literal["text", "gone", "text_only", "append", "arguments", "images", "withdrawn", "pin", "unpin", "strip"]
"""The effect of an edit on its message. `withdrawn`: an earlier version of the edit is taken back. `pin`: the message
stays unchanged until an `unpin`; both are counted apart from the edits that change something."""
ExchangeStatus = Literal["complete", "partial", "client_gone", "failed", "rejected", "deferred"]


class SessionRow(Struct, frozen=True, gc=False):
    """A conversation's name under a tenant. Inserted once; a later row of the same name is ignored."""

    tenant: str
    session: str
    explicit: bool
    """True if the client named the session (path, header, body field), False if the hash chain did."""
    created_at: float
    settings: str = "{}"
    """JSON object."""


class BranchRow(Struct, frozen=True, gc=False):
    """One line of history in a session. Inserted once; `BranchTipRow` updates its position."""

    tenant: str
    session: str
    branch: str
    parent: str | None
    fork_key: bytes | None
    kind: BranchKind
    system: bytes
    created_at: float


class BranchTipRow(Struct, frozen=True, gc=False):
    """The current position of a branch: updates the branch's row, and does nothing if there is none."""

    tenant: str
    session: str
    branch: str
    tip: bytes
    answer: bytes | None
    last_at: float
    stopped: str | None
    """The reason why rewriting stopped for this branch, or None."""
    asked: str | None = None
    """The last answered request that asked the model for its state; None if there was none. Text of: the number of
    edits that had removed something, the number of earlier states, and the request's tip."""


class MessageRow(Struct, frozen=True, gc=False):
    """A message, stored once however often it is resent: inserted or ignored on (tenant, session, key)."""

    tenant: str
    session: str
    key: bytes
    """The chain key: identifies the message together with its parents."""
    parent: bytes
    position: int
    branch: str
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
    """True if the message is an answer that the proxy itself delivered, or such an answer in the client's own words."""
    reached: bool
    """True if such an answer is the message itself, or one in front of it: by it a session is found without a name."""
    created_at: float


class FormRow(Struct, frozen=True, gc=False):
    """Bytes by their hash: other forms of a message, envelopes, inserts, whole bodies. Inserted or ignored."""

    tenant: str
    session: str
    form: bytes
    body: bytes


class EditRow(Struct, frozen=True, gc=False):
    """A decision about one message. The first row of a (branch, key, version) counts, also if another process decides
    the same. Read back the stored row before using it."""

    tenant: str
    session: str
    branch: str
    key: bytes
    version: int
    stage: str
    reason: str
    action: EditAction
    text: str | None
    before: int
    after: int
    """Tokens of the message before and after the edit."""
    exchange: str
    created_at: float


class StateRow(Struct, frozen=True, gc=False):
    """A STATE block, filed under the answer that contained it. Inserted or ignored on (branch, key)."""

    tenant: str
    session: str
    branch: str
    key: bytes
    text: str
    created_at: float


class ExchangeRow(Struct, frozen=True, gc=False):
    """The data from which a request's prompt can be built again. Inserted once, with status 'open'."""

    tenant: str
    session: str
    exchange: str
    branch: str
    tip: bytes
    messages: int
    envelope: bytes
    forms: bytes
    """JSON: messages received in another form than the one stored first."""
    edits: int
    """The highest number of the branch's edits in force."""
    inserts: bytes
    """JSON: the inserted texts and their places."""
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
    """The outcome of an exchange: updates the exchange's row, and does nothing if there is none."""

    tenant: str
    session: str
    exchange: str
    status: ExchangeStatus
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
    """JSON: the basis on which the exchange is billed; None if the upstream reported no usage."""


class GapRow(Struct, frozen=True, gc=False):
    """A record of rows that could not be stored. Added up for the same exchange and reason."""

    tenant: str
    session: str
    exchange: str
    bytes: int
    reason: str
    created_at: float
    items: int = 1
    """Number of lost calls of `put`."""


Row = (
    SessionRow | BranchRow | BranchTipRow | MessageRow | FormRow | EditRow | StateRow | ExchangeRow | OutcomeRow
    | GapRow | BranchKindRow | WorkingBranchRow | HelperAnswerRow | SpendingRow | ContextWindowRow | EmbeddingRow
    | IndexRow | IterationRow | SessionNotesRow | RemovalStepRow | EraseMessageRow | EraseFormRow | EraseRoundRow
    | ResponseNameRow | BindingRow
)  # fmt: skip


class BranchRecord(BranchRow, frozen=True, kw_only=True):
    """A branch with its position, and the edits and states in force on it."""

    tip: bytes
    answer: bytes | None
    last_at: float
    stopped: str | None
    edits: list[tuple[EditRow, int]]
    """The edits in force, each with its number, in the order of the numbers."""
    states: list[StateRow]
    """The states, oldest first."""
    helper_answers: dict[str, str]
    """Helpers' answers in this session, by the id of the Ask: the newest 1,000, oldest first."""
    asked: str | None = None
    """See `BranchTipRow`."""
    offer: str | None = None
    """The proxy's tools that the branch is offered: see `ToolOfferRow`; None while that is undecided."""
    lasting: list[tuple[EditRow, int]] | None = None
    """The edits that no literal policy made, if the edits in force are a literal policy's. None: the edits in force are
    these edits."""


class SessionRecord(SessionRow, frozen=True, kw_only=True):
    """A session with its branches, oldest first, and its number of rows in each table."""

    last_at: float
    policy: str
    """The policy of the newest request, "" before there is one."""
    branches: list[BranchRow]
    counts: dict[str, int]


class MessageRecord(MessageRow, frozen=True, kw_only=True):
    """A stored message; `seq` counts the messages of its session from 1, in the order in which they were stored."""

    seq: int


def is_last_page(page: Sequence[MessageRecord], limit: int) -> bool:
    """True if no message follows a page of `read_messages` that was asked for with this limit."""
    return len(page) < limit and sum(len(message.body) for message in page) < MAX_PAGE_BYTES


class LeftOutMessage(Struct, frozen=True, gc=False):
    """A stored message that is left out of its branch's prompt: the stage, the reason, the exchange and the time of
    that edit."""

    key: bytes
    seq: int
    stage: str
    reason: str
    exchange: str
    edited_at: float


class DecisionRows(Struct, frozen=True, gc=False):
    """The decisions for a session: see `SettingsRow`, `EditRow` and `NoteRow`."""

    settings: str
    edits: list[tuple[EditRow, int]]
    notes: list[NoteRow]


class ExchangeRecord(ExchangeRow, frozen=True, kw_only=True):
    """An exchange with its outcome. Before there is an outcome, `status` is 'open' and the outcome's other fields are
    None. `status` is 'lost' if there will be none: the process was killed, or could not store the outcome."""

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

    @property
    def total_ms(self) -> float | None:
        """Milliseconds from the request to the end of the answer."""
        return 1000 * (self.ended_at - self.started_at) if self.ended_at is not None else None


@runtime_checkable
class Store(
    SessionNotesStore, SessionListStore, RemovalStore, BranchStore, ResponseNameStore, ExpectedReadsStore, Protocol
):
    """The storage protocol. Reads raise StoreUnavailable if they fail or take too long; `open` raises StoreRefused."""

    longest_request_s: float
    """Seconds after which no process can be working on a request any more: one that is still open is read as lost."""

    @property
    def healthy(self) -> bool:
        """True if the last write and the last read succeeded."""
        ...

    @property
    def writable(self) -> bool:
        """True unless the last write failed."""
        ...

    @property
    def readable(self) -> bool:
        """True unless the last read failed. It is true again without a request: a failed read is repeated."""
        ...

    @property
    def stalled(self) -> bool:
        """True if rows wait to be written, and none has been written for seconds: another one is not worth a wait."""
        ...

    @property
    def trouble(self) -> str:
        """The fault if the store is not healthy, for /readyz and the log; never a message's content."""
        ...

    @property
    def queued(self) -> int:
        """Number of items that wait to be written."""
        ...

    @property
    def dropped(self) -> int:
        """Number of items that were refused or could not be stored, since the start."""
        ...

    async def open(self) -> None: ...
    async def close(self) -> None:
        """Write the queued items, then close. Idempotent."""
        ...

    def put(self, rows: Sequence[Row]) -> asyncio.Future[None]:
        """Queue one transaction: all of `rows` or none, in the order of the calls. Never raises and never waits.

        The future resolves when the rows are durable. It holds StoreUnavailable if they were refused (the spool is
        full, a value cannot be stored, the store is closed). Cancelling the future does not take the rows back.
        """
        ...

    def put_deferred(self, rows: Sequence[Row]) -> asyncio.Future[None]:
        """Queue as `put`, for rows whose future nobody awaits. They may share a transaction with the rows of the next
        `put`, and are written alone if none comes soon. They keep their place in the order of the calls."""
        ...

    def flush_deferred(self) -> None:
        """Write the rows put by `put_deferred` now, since a caller waits for them after all, or wants to read them."""
        ...

    async def find_chain_hits(self, tenant: str, keys: Sequence[bytes], session: str | None) -> list[ChainHit]:
        """The stored nodes among `keys`, which are in chain order, root first. At most 32: deepest first, then of the
        branch used last.

        `session` limits the search to one session. Without it only the proxy's answers are found, since thousands of
        sessions may share the first messages of others.
        """
        ...

    async def read_branch(self, tenant: str, session: str, branch: str) -> BranchRecord | None: ...

    async def read_newest_states(self, tenant: str, session: str, system: bytes, most: int) -> list[StateRow]:
        """The newest states of the session's branches with this system prompt, side calls excluded; newest first."""
        ...

    async def read_session(self, tenant: str, session: str) -> SessionRecord | None: ...

    async def read_session_names(self, after: tuple[str, str] = ("", ""), limit: int = 1000) -> list[tuple[str, str]]:
        """(tenant, session) of the sessions after `after`, in the order of their names: for reports, not for
        serving."""
        ...

    async def read_chain(self, tenant: str, session: str, key: bytes) -> list[MessageRecord]:
        """The messages from the root to this node, by the parent links; empty if the node is not stored."""
        ...

    async def find_known_messages(self, tenant: str, session: str, keys: Sequence[bytes]) -> dict[bytes, KnownMessage]:
        """The stored messages of this session among `keys`."""
        ...

    async def search(self, tenant: str, session: str, query: str, limit: int = 10) -> list[SearchMatch]:
        """Messages and summaries of the session that contain words of the query, best first. Texts are read until they
        have MAX_PAGE_BYTES. The search first brings the session's index up to date, which waits for the writer."""
        ...

    async def find_message(self, tenant: str, session: str, public_id: str) -> MessageRecord | None:
        """The message with this public id; None if there is none, or if the id is not valid."""
        ...

    async def find_returned_message(self, tenant: str, hash_prefix: bytes) -> MessageRecord | None:
        """The newest message of the tenant whose key begins with these bytes, None if there is none. Only messages that
        a gateway got back count, and only if they are not removed."""
        ...

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
        ...

    async def read_exchange(self, tenant: str, session: str, exchange: str) -> ExchangeRecord | None: ...

    async def read_exchanges(
        self, tenant: str, session: str, limit: int = 100, before: float | None = None
    ) -> list[ExchangeRecord]:
        """Exchanges, newest first, before `before` (exclusive, a `started_at`), which turns the page."""
        ...

    async def read_sessions_used_since(
        self, since: float, after: tuple[str, str] = ("", ""), limit: int = 1000
    ) -> list[tuple[str, str]]:
        """(tenant, session) of the sessions after `after` that were used at `since` or later, in the order of their
        names: for exports."""
        ...

    async def read_exchanges_after(
        self, tenant: str, session: str, after: tuple[float, str], until: float, limit: int = 100
    ) -> list[ExchangeRecord]:
        """Exchanges, oldest first, after `after` (exclusive, a `started_at` and an exchange), which turns the page, and
        before `until` (exclusive, a `started_at`)."""
        ...

    async def read_edits(
        self, tenant: str, session: str, branch: str, upto: int | None = None
    ) -> list[tuple[EditRow, int]]:
        """The latest version of each key's edit whose number is at most `upto`, in the order of the numbers."""
        ...

    async def read_decisions(self, tenant: str, session: str, branch: str) -> DecisionRows:
        """`settings` of the session, and `edits` and `notes` of the branch, all of one moment."""
        ...

    async def read_left_out(self, tenant: str, session: str, branch: str) -> list[LeftOutMessage]:
        """The messages that are left out of the branch's prompt now, in the order in which they were stored."""
        ...

    async def read_form(self, tenant: str, session: str, form: bytes) -> bytes | None: ...

    async def read_helper_answer(self, tenant: str, session: str, ask: str) -> str | None:
        """A helper's stored answer, or None."""
        ...

    async def read_iterations(self, tenant: str, session: str, branch: str) -> list[IterationRecord]:
        """The records of a branch's iterations, oldest first, each with its reflection."""
        ...

    async def read_embeddings(
        self, tenant: str, session: str, model: str, forms: Sequence[bytes]
    ) -> dict[bytes, bytes]:
        """The stored embeddings of these forms, as bytes, by form."""
        ...

    async def read_context_windows(self, since: float) -> list[ContextWindowRow]:
        """The context windows that upstreams have reported since `since`, the newest 1,000, oldest first."""
        ...

    async def read_bindings(self, tenant: str, session: str) -> list[BindingRow]:
        """The prompts that reasoning of a session is bound to, the newest 10,000, oldest first."""
        ...

    async def sum_spending(self, day: int, tenant: str = "") -> float:
        """Dollars that helpers cost on this day: of all tenants, or of one whose spending is stored."""
        ...
