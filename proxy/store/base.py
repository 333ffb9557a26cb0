"""Row types, one per table, and the records that are read back.

The rows are made above: ids and times come from the caller and are inserted as they are. So a store has no clock, and
two backends with the same rows hold the same data. The order of a row's fields is the order of its table's columns
(`sql.py`), so a row's tuple is the statement's arguments without any mapping.

Times are Unix seconds. Keys, forms and hashes are bytes. Text of a model or client is bytes, or is stored as bytes,
because text columns refuse lone surrogates (SQLite) and NUL (PostgreSQL). Both occur in JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from msgspec import Struct

from proxy.store.bindings import BindingRow
from proxy.store.branch_positions import (
    BranchKind,
    BranchKindRow,
    WorkingBranchRow,
)
from proxy.store.derived import (
    ContextWindowRow,
    EmbeddingRow,
    HelperAnswerRow,
    IterationRow,
    SpendingRow,
)
from proxy.store.erasure import EraseFormRow, EraseMessageRow, EraseRoundRow
from proxy.store.full_text_search import IndexRow
from proxy.store.removal import RemovalStepRow
from proxy.store.response_names import ResponseNameRow
from proxy.store.row_reader import MAX_PAGE_BYTES
from proxy.store.session_notes import NoteRow, SessionNotesRow

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
    """The edits that no literal policy made, if a literal policy's are in force. None: those in force."""


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
    """A message left out of its branch's prompt: the stage, reason, exchange and time of that edit."""

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
