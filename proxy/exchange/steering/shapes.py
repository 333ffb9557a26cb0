"""What the functions of this room return: the JSON of the admin API, and what the command line and commands print."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

Status = Literal["in", "changed", "out", "dropped", "removed"]
"""Of a message in the next prompt: as it came; with another text; left out by the policy; by the operator; for good."""

By = Literal["model", "operator", ""]
How = Literal["helper", "upstream", "next_request"]


class Why(Struct, frozen=True, omit_defaults=True):
    """Why a message is left out or shortened, since which exchange, and where its whole text is found."""

    stage: str
    reason: str
    action: str
    tokens_before: int
    tokens_after: int
    exchange: str = ""
    """The first that went out with it; "" where it comes with the next request."""
    since: float | None = None
    find: str = ""
    """How the model, and anybody else, gets the whole text; "" where nobody can."""


class ShownMessage(Struct, frozen=True, omit_defaults=True):
    """A message of a prompt. id: "" for one that the proxy inserted or that only stands for what the client will
    send. content: as it went out, the whole message as JSON. whole: the message as the client sent it, where that
    differs."""

    index: int
    id: str
    group: str
    role: str
    status: Status
    tokens: int
    pinned: bool = False
    why: Why | None = None
    content: Any = None
    whole: Any = None
    source: Literal["client", "proxy", "next"] = "client"


class ShownInsert(Struct, frozen=True):
    """A text of ours in a prompt. index: of the message that it is appended to, -1 for one of its own."""

    index: int
    source: str
    text: str


class ShownPrompt(Struct, frozen=True):
    """A prompt as it went out, or would go out now. exchange: "" for the next one. body, original: the bodies, as JSON
    texts, sent and as the client sent it. refused: why the original went out instead."""

    session: str
    thread: str
    exchange: str
    policy: str
    model: str
    tokens_before: int
    tokens_after: int
    messages: list[ShownMessage]
    inserts: list[ShownInsert]
    body: str
    original: str
    refused: str = ""


class GroupLine(Struct, frozen=True):
    """A user prompt with all that it caused. status: in the next prompt; `changed` where it differs in part. tokens: as
    it came; sent: as it would go out. snapshot: tokens of prompt and answer that the provider reported last in it."""

    id: str
    first: int
    messages: int
    tokens: int
    sent: int
    status: Status
    pinned: bool
    snapshot: int | None
    title: str


class Changed(Struct, frozen=True):
    """What an operator's decision was about. messages, groups: public ids, with those that had to go along. tokens: of
    the messages as they came."""

    session: str
    thread: str
    action: str
    messages: list[str]
    groups: list[str]
    tokens: int
    note: str = ""


class SessionSettings(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What is set for a session, stored as its row's JSON; what is not set is as the policy says.

    policy, schedule: "" for the usual one. window: groups that stay, 0 for all, -1 for the policy's again. force: what
    the next request does. ask: it asks the model for its state. withdrawn: ids of notes that are to leave the prompt.
    """

    policy: str = ""
    schedule: str = ""
    window: int | None = None
    max_iterations: int | None = None
    urgency: str = ""
    force: Literal["", "prune", "compress"] = ""
    ask: bool = False
    withdrawn: list[str] = []


class ShownState(Struct, frozen=True):
    """The state of a thread that prompts are told. by: the model, or the operator (set or rebuilt)."""

    thread: str
    text: str | None
    by: By
    versions: int


class Rebuilt(Struct, frozen=True):
    """How a state came to be written anew: by the helper, by the upstream, or with the next request."""

    thread: str
    how: How
    text: str | None
    outcome: str


class ShownNote(Struct, frozen=True):
    """Feedback or a note of an operator."""

    id: str
    kind: str
    text: str
    created_at: float


class ShownScratchpad(Struct, frozen=True):
    """A session's scratchpad. number: its version, 0 for none yet."""

    text: str
    number: int
    author: str
    created_at: float | None


class SessionStats(Struct, frozen=True):
    """Where a session stands. Tokens by our own count where nothing else is said.

    items: messages. tokens: of the next prompt as the client sends it; sent: as it would go out; limit: the model's
    window, or the smaller budget that the policy has of its own; utilisation: sent of limit, 0 to 1. over_budget:
    tokens by which the next prompt is over its budget. cost: dollars so far; cost_without: had the proxy not been
    there; both None where the model's prices are not known. cost_planned: had the plans gone out that were only
    observed, None where none was; planned_as: the policy whose plans they are. reported, predicted: cached tokens so
    far. ratio: tokens before by tokens after of all exchanges. levels: tokens a level, where the policy has levels;
    level_budgets: those that it may have.
    """

    session: str
    thread: str
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
    """Cut results that the model fetched again, by kind: repeat, reread, recall."""
    prunable: bool = False
    """Pruning would make the next prompt smaller."""
