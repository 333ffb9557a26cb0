"""The data that flows through a rewrite: RewriteInputs, Proposal, Edit, Insert, Ask, Note, Plan.

Stages read a `view.View` and return Proposals (content that could go). A schedule turns some proposals into Edits
(content that goes, from now on and byte for byte). Inserts are texts of the proxy that are no part of the history. The
caller sends and remembers the Plan. All of these are data and do nothing by themselves."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from proxy.chat.tokens import TokenCounter
from proxy.dialects.base import NO_BREAKPOINTS, Breakpoints
from proxy.notes.memo_matching import Memo

Action = Literal["text", "gone", "text_only", "append", "arguments", "images"]
"""text: another text. gone: left out. text_only: an assistant message without its calls. append: text at its end.
arguments: calls with shorter arguments; the text of the edit is a JSON list with one entry for each call, null if the
call stays as it is. images: the text of the edit stands in for each image of a tool result; its own text stays."""

ContentKind = Literal["view", "other", "unknown"]
"""Kind of content of a tool result.

view: the text of a file, or an edit's echo; an agent still quotes it in edits long after. other: searches, listings,
command output, from which an agent takes names. unknown: any other tool (an API's answer, a page, a sub-agent's
report).
"""

ACTION_STRENGTH: dict[Action, int] = {"append": 0, "text": 1, "arguments": 1, "images": 1, "text_only": 2, "gone": 3}
"""Strength of each action. An edit is superseded only by a stronger one, or by a shorter text."""

SHORTENING_ACTIONS = frozenset({"text", "text_only", "arguments", "images"})
"""Actions after which a message is there with less than it had."""
WHOLE_TEXT_ACTIONS = frozenset({"append", "images"})
"""Actions that leave the message's own text whole."""

REFERENCE_STAGES = frozenset({"refer_repeats"})
"""Stages whose edits say where in the prompt the same text is."""
SUMMARY_STAGES = frozenset({"summarize_old", "compress_levels"})
"""Stages whose texts stand for more messages than the one that bears them."""
REWORDING_STAGES = SUMMARY_STAGES | {"distil_results"}
"""Stages that replace messages by their own words, which the API lists as summaries."""
SILENT_STAGES = frozenset({"close_window", "fit_budget", "operator"})
"""Stages that remove whole groups or steps and do not report the removal themselves: the gap gets a remark."""
THINNED = "every tenth line number"
"""The reason of an edit of such a stage that takes nothing but line numbers out of a listing, and refers to nothing."""


class Edit(msgspec.Struct, frozen=True):
    """A decision about one message, made once and repeated byte for byte ever after."""

    key: bytes
    """The message's chain key."""
    action: Action
    text: str | None
    """The new or the appended text; None if the message is gone or only loses its calls."""
    stage: str
    reason: str
    before: int
    """Tokens of the message as received."""
    after: int
    """Tokens of the message as it goes out."""

    def __hash__(self) -> int:
        """The hash of the key alone: it tells edits apart well enough, and Python remembers it. Values derived from an
        edit are stored under the edit."""
        return hash(self.key)

    @property
    def is_lossy(self) -> bool:
        """True if the edit takes out something that is nowhere else in the prompt."""
        return self.action != "append" and self.stage not in REFERENCE_STAGES


class LossLimit(msgspec.Struct, frozen=True):
    """The cost that a batch of edits may lose, in input tokens."""

    most: float
    chance: float = 1.0
    """Share of the cut text that is taken to be fetched again."""


class Proposal(msgspec.Struct, frozen=True):
    """A change that a stage would make to messages[index]."""

    index: int
    action: Action
    stage: str
    reason: str
    after: int
    """Tokens that would be left. It is an estimate if `write_text` makes the text later."""
    text: str | None = None
    since: int = 0
    """The index of the message with which the proposal became possible: its rent counts from there."""
    write_text: Callable[[frozenset[int]], str | None] | None = None
    """Function that makes the text when the proposal is taken, for texts that depend on the rest of the prompt at that
    time.

    Its argument is the indexes of all messages that are cut together. It returns None if nothing is left to do.
    """
    rider: bool = False
    """True if the proposal is not worth moving the prefix, but is taken along after a batch that moves it anyway."""
    needs_index: int | None = None
    """The index of a message whose edit has to be there too, because that edit says what this one takes away. The edit
    may be proposed as well, or in force."""
    joint: bool = False
    """True if it is made with all joint proposals of its stage or not at all: they were chosen together."""
    content: ContentKind | None = None
    """The content of a tool result. None: made for another reason, and no page faults count against it."""
    lossless: bool = False
    """True if the edit loses no information."""
    refers_to_view: bool = False
    """True if the edit only takes out lines of a file view that are elsewhere in the prompt. A model that wants them
    again reads the file, so it needs no tool of the proxy."""
    waits_for_rent: bool = False
    """True if an eager policy makes no exception for it: the agent is likely to continue with this result."""


class Insert(msgspec.Struct, frozen=True):
    """A text of the proxy at the tail or after the system prompt."""

    place: Literal["tail", "system"]
    source: str
    text: str
    persistent: bool = False
    """True if the text stays where it is put, as an `append` edit."""
    note_count: tuple[str, int] | None = None
    """(kind of note, count), remembered after it has gone out (`BranchState.note_counts`). Such a note comes again only
    when its count has doubled."""
    quoted_keys: tuple[bytes, ...] = ()
    """Chain keys of the messages that the text quotes."""
    may_stand_alone: bool = False
    """True if the text may be in its own user message after an answer of the assistant's."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A question that only a model can answer. Pure code never asks: the caller asks and calls again, or does not."""

    kind: str
    """summary or reflection."""
    prompt: str
    """The whole question."""
    message_keys: tuple[bytes, ...] = ()
    """Chain keys of the messages that the question is about. With the kind they make the `id`."""
    required_names: tuple[str, ...] = ()
    """Names that an answer must hold, all of them."""
    max_chars: int = 0
    """Characters above which an answer is no summary."""
    urgent: bool = False
    """True if the plan is of little use without the answer."""

    @property
    def id(self) -> str:
        """The name of the question: the same on every replica."""
        return hashlib.blake2b(self.kind.encode() + b"".join(self.message_keys), digest_size=10).hexdigest()


@dataclass(frozen=True, slots=True)
class Note:
    """An entry for the record and the operator. The model never sees it."""

    kind: str
    text: str
    figures: Mapping[str, float] = field(default_factory=dict)
    """Numbers of the note, by name."""


@dataclass(frozen=True, slots=True)
class RetrievedText:
    """A stored text that a search has found."""

    key: bytes
    """The key of the message, or of the message that was summarised."""
    kind: Literal["message", "summary"]
    role: str
    text: str


class RewriteInputs(msgspec.Struct, frozen=True):
    """Inputs of a rewrite in addition to the conversation, its branch, the policy and the model.

    `times` and `strategies` have one entry for each message; if they are empty, `now` and `strategy` hold for all."""

    token_counter: TokenCounter
    """The counter of tokens."""
    keys: Sequence[bytes] | None = None
    """The messages' chain keys, if the caller has them."""
    strategy: str = "openai"
    """The kind of provider that the request goes to (`upstreams.NAME.strategy`); no dialect."""
    strategies: Sequence[str] = ()
    """The kind of provider that each message was made for."""
    times: Sequence[float] = ()
    """Time at which each message was first seen, in seconds."""
    retrieved_texts: Sequence[RetrievedText] = ()
    """Texts that a search of the store has found for this request."""
    relevance: Mapping[bytes, float] = {}
    """Nearness of messages to the current task, 0 to 1, by form."""
    options: Mapping[str, str] = {}
    """Values of the request's x-context-* headers, by the rest of the header's name in small letters."""
    offered_tools: frozenset[str] = frozenset()
    """Names of the proxy's tools that the model has, or will have if the plan makes a first edit."""
    tool_tokens: int = 0
    """Tokens of these tools that come before the messages with a first edit."""
    guarded_keys: frozenset[bytes] = frozenset()
    """Chain keys of messages that stay as they are."""
    hidden_keys: Collection[bytes] = ()
    """Chain keys of messages that the client does not have (`proxy.sessions.hidden_rounds`)."""
    scratchpad: str = ""
    """The session's scratchpad."""
    memos: Sequence[Memo] = ()
    """The memos that fit the last user message."""
    agent_faults: Mapping[str, tuple[int, int]] = {}
    """Page faults of the agent's other sessions (`FaultCounts.of_agent`)."""
    conversation_lengths: Sequence[int] = ()
    """Requests of the tenant's last conversations of the same agent, in any order."""
    frozen: bool = False
    """True to make no new edits, because the store cannot take them."""
    sent_count: int = 0
    """Number of messages at the front that were sent before, with this request's history or an earlier one. The
    schedule `append_only` edits none of them."""


class Plan(msgspec.Struct, frozen=True, eq=False):
    """The bytes to send, and the facts to remember about them."""

    messages: tuple[bytes, ...] | None
    """The bytes of each message to send, None if the client's own array goes out as it is."""
    new_edits: tuple[Edit, ...]
    """Edits to be stored before the bytes go out."""
    edits: Mapping[bytes, Edit]
    """All edits that are in force then."""
    placed_inserts: tuple[tuple[int, Insert], ...]
    """Inserts, each with the index of the message that it is appended to; -1 for a message of the proxy at the end."""
    asks: tuple[Ask, ...]
    notes: tuple[Note, ...]
    marks: tuple[bytes, ...]
    """A 16-byte mark of each outgoing message (see `BranchState.sent_marks`)."""
    sizes: tuple[int, ...]
    """Tokens of each outgoing message."""
    keys: Sequence[bytes]
    before: int
    """Tokens of the prompt as received, without tools and hidden rounds of the proxy."""
    after: int
    """Tokens of the prompt as it goes out."""
    predicted: int
    """Tokens of the prefix that the provider's cache should serve."""
    asks_for_state: bool
    """True if a STATE block was asked for."""
    sources: tuple[int, ...] = ()
    """For each outgoing message the index of the message that it is made from. A message of the proxy has an index
    after the last message."""
    refusal: str | None = None
    """The rule or reason for which the original goes out instead."""
    deferred_inserts: tuple[Insert, ...] = ()
    """Notes that are given once and had no place in this prompt."""
    literal: bool = False
    """True if its edits hold for literal policies alone: see `BranchState.lasting_edits`."""
    limit: int | None = None
    """Tokens above which the prompt is over its budget; None where there is no budget."""
    refetched: Mapping[str, int] = {}
    """Cut results that were fetched again in this session, by sort, those of this request included."""
    refetched_keys: frozenset[bytes] = frozenset()
    """Chain keys of the results that fetched a cut result again (`FaultCounts.refetched_keys`), new ones too."""
    exposed: Mapping[str, int] = {}
    """Cut results in the session's requests, summed over these requests, by sort, this request included."""
    request_count: int = 1
    """Number of the branch's requests, this one included."""
    breakpoints: Breakpoints = NO_BREAKPOINTS
    """Places at which the proxy wants the provider's cache to end an entry."""
    breakpoint_positions: frozenset[int] = frozenset()
    """The outgoing messages at which these places are, without the end of the prompt."""
    boundary: bytes = b""
    """The chain key of the last message that the newest batch of edits has changed."""
