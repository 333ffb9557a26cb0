"""Return types of this package: the JSON of the admin API, and the data that the command line and commands print."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from msgspec import Struct

PromptStatus = Literal["in", "changed", "out", "dropped", "removed"]
"""Status of a message in the next prompt. in: as received. changed: with another text. out: left out by the policy.
dropped: left out by the operator. removed: removed permanently."""

StateAuthor = Literal["model", "operator", ""]
RebuildMethod = Literal["helper", "upstream", "next_request"]


class EditReason(Struct, frozen=True, omit_defaults=True):
    """Reason why a message is left out or shortened, the first exchange that had it so, and the call that gives its
    whole text."""

    stage: str
    reason: str
    action: str
    tokens_before: int
    tokens_after: int
    exchange: str = ""
    """The first exchange that went out with the edit; "" where the edit comes with the next request."""
    since: float | None = None
    find: str = ""
    """The call by which the model, or any other reader, gets the whole text; "" where the text is gone."""


class PromptMessage(Struct, frozen=True, omit_defaults=True):
    """A message of a prompt. id: "" for a message that the proxy inserted, or a stand-in for the client's next message.
    content: the whole message as it went out, as JSON. whole: the message as the client sent it, where that differs."""

    index: int
    id: str
    group: str
    role: str
    status: PromptStatus
    tokens: int
    pinned: bool = False
    why: EditReason | None = None
    content: Any = None
    whole: Any = None
    source: Literal["client", "proxy", "next"] = "client"


class PromptInsert(Struct, frozen=True):
    """A text of the proxy in a prompt. index: that of the message that the text is appended to, -1 for a message of its
    own."""

    index: int
    source: str
    text: str


class PromptDetails(Struct, frozen=True):
    """A prompt as it went out, or would go out now. exchange: "" for the next one. body: the body sent, as JSON text.
    original: the body as the client sent it. refused: why the original went out instead. In a page of it `messages` and
    `inserts` are those of the page, and both bodies are empty."""

    session: str
    branch: str
    exchange: str
    policy: str
    model: str
    tokens_before: int
    tokens_after: int
    messages: list[PromptMessage]
    inserts: list[PromptInsert]
    body: str
    original: str
    refused: str = ""
    count: int = 0
    """Messages of the whole prompt."""
    changes: int = 0
    """Places of the whole prompt that differ from what the client sent: messages, and inserts of their own."""
    next: int | None = None
    """The index with which the next page begins; None on the last page."""


class GroupListItem(Struct, frozen=True):
    """A user prompt with all messages that it caused. status: in the next prompt; `changed` where it differs in part.
    tokens: as received. sent: tokens as it would go out. snapshot: tokens of prompt and answer that the provider
    reported last in the group."""

    id: str
    first: int
    messages: int
    tokens: int
    sent: int
    status: PromptStatus
    pinned: bool
    snapshot: int | None
    title: str


class DecisionResult(Struct, frozen=True):
    """Result of an operator's decision. messages, groups: public ids, including those that had to go along. tokens: of
    the messages as received."""

    session: str
    branch: str
    action: str
    messages: list[str]
    groups: list[str]
    tokens: int
    note: str = ""


class StateDetails(Struct, frozen=True):
    """The state that a branch's prompts are given. by: the model, or the operator (set or rebuilt)."""

    branch: str
    text: str | None
    by: StateAuthor
    versions: int


class RebuildResult(Struct, frozen=True):
    """Result of a rebuild of a state. how: by the helper, by the upstream, or with the next request."""

    branch: str
    how: RebuildMethod
    text: str | None
    outcome: str


class NoteDetails(Struct, frozen=True):
    """Feedback or a note of an operator."""

    id: str
    kind: str
    text: str
    created_at: float


class WithdrawnNote(Struct, frozen=True):
    """The withdrawn note."""

    note: str


class ScratchpadDetails(Struct, frozen=True):
    """A session's scratchpad. number: its version, 0 for none yet."""

    text: str
    number: int
    author: str
    created_at: float | None


class RemovalResult(Struct, frozen=True):
    """The result of a removal. verified: true if no row of it was found in any table afterwards."""

    removed: int
    verified: bool


class MemoDetails(Struct, frozen=True):
    """A memo. session: the session that wrote it last, "" if that session was deleted."""

    memo: str
    project: str
    content: str
    tags: list[str]
    session: str
    created_at: float
    updated_at: float

    EXAMPLES: ClassVar[list[dict[str, Any]]] = [
        {
            "memo": "mfzwizltoq", "project": "", "content": "The tests need PostgreSQL 14 or newer.",
            "tags": ["tests", "postgresql"], "session": "fix-the-build", "created_at": 1767225600.0,
            "updated_at": 1767225600.0,
        }
    ]  # fmt: skip
    """For the OpenAPI document."""


class DeletedMemo(Struct, frozen=True):
    """The deleted memo."""

    memo: str


class SessionStats(Struct, frozen=True):
    """Statistics of a session. Tokens by our own count unless stated.

    items: messages. tokens: those of the next prompt as the client sends it. sent: tokens as it would go out. limit:
    the model's window, or the smaller budget that the policy has of its own. utilisation: sent divided by limit, 0 to
    1. over_budget: tokens by which the next prompt is over its budget. cost: dollars so far. cost_without: dollars
    without the proxy; both None where the model's prices are not known, or no answer reported its usage. cost_planned:
    dollars if the observed plans had gone out, None where none was observed. planned_as: the policy whose plans they
    are. cached_reported, cached_predicted: cached tokens so far. ratio: tokens before divided by tokens after, of all
    exchanges. levels: tokens of each level, where the policy has levels. level_budgets: the budgets of these levels.
    """

    session: str
    branch: str
    policy: str
    model: str
    items: int
    messages_stored: int
    groups: int
    tokens: int
    sent: int
    limit: int | None
    utilisation: float | None
    needs_pruning: bool
    left_out: int
    shortened: int
    exchanges: int
    prompt_tokens: int
    completion_tokens: int
    cost: float | None
    cost_without: float | None
    cost_planned: float | None
    cached_predicted: int
    cached_reported: int
    summaries: int
    ratio: float
    last_compression: float | None
    levels: dict[str, int] = {}
    level_budgets: dict[str, int] = {}
    over_budget: int = 0
    retrieved: int = 0
    planned_as: str = ""
    refetched: dict[str, int] = {}
    """Cut results that the model fetched again, by kind: repeat, reread, recall, excerpt."""
    prunable: bool = False
    """True if pruning would make the next prompt smaller."""
    more: bool = False
    """True if the session has older exchanges than those that are added up."""
    unbilled: int = 0
    """Exchanges whose answer reported no usage: what they cost is in no sum of dollars."""
    pings: int = 0
    """Pings that kept the provider's cache warm. They are no exchanges."""
    pings_cost: float = 0.0
    """Dollars of these pings, which are in `cost` too."""
