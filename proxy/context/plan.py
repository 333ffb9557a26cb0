"""The data that flows through a rewrite: View, Proposal, Edit, Insert, Ask, Note, Plan.

Stages read a View and return Proposals (content that could go). A schedule turns some proposals into Edits (content
that goes, from now on and byte for byte). Inserts are texts of the proxy that are no part of the history. The caller
sends and remembers the Plan. All of these are data and do nothing by themselves."""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Literal, TypeVar

import msgspec
from msgspec.structs import force_setattr

from proxy.chat.group import Group, Step
from proxy.chat.message import Message, Request
from proxy.chat.tokens import TokenCounter
from proxy.context.models import Model
from proxy.dialects.base import NO_BREAKPOINTS, Breakpoints
from proxy.notes.memo_matching import Memo

T = TypeVar("T")
MemoValues = dict[str, tuple[int, object, Any]]
"""Facts about messages, by name: (number of messages at the front that it covers, owner, value)."""

Action = Literal["text", "gone", "text_only", "append", "arguments"]
"""text: another text. gone: left out. text_only: an assistant message without its calls. append: text at its end.
arguments: calls with shorter arguments; the text of the edit is a JSON list with one entry for each call, null if the
call stays as it is."""

ContentKind = Literal["view", "other", "unknown"]
"""Kind of content of a tool result.

view: the text of a file, or an edit's echo; an agent still quotes it in edits long after. other: searches, listings,
command output, from which an agent takes names. unknown: any other tool (an API's answer, a page, a sub-agent's
report).
"""

ACTION_STRENGTH: dict[Action, int] = {"append": 0, "text": 1, "arguments": 1, "text_only": 2, "gone": 3}
"""Strength of each action. An edit is superseded only by a stronger one, or by a shorter text."""

REFERENCE_STAGES = frozenset({"refer_repeats"})
"""Stages whose edits say where in the prompt the same text is."""
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
    """The index of the message with which the proposal became possible. The rent of carrying the message counts from
    there."""
    write_text: Callable[[frozenset[int]], str | None] | None = None
    """Function that makes the text when the proposal is taken, for texts that depend on the rest of the prompt at that
    time.

    Its argument is the indexes of all messages that are cut together. It returns None if nothing is left to do.
    """
    rider: bool = False
    """True if the proposal is not worth moving the prefix, but is taken along behind a batch that moves it anyway."""
    needs_index: int | None = None
    """The index of a message whose edit has to be there too, because that edit says what this one takes away. The edit
    may be proposed as well, or in force."""
    joint: bool = False
    """True if it is made with all other joint proposals of its stage or not at all, because they were chosen
    together."""
    content: ContentKind | None = None
    """The content of a tool result. None if the proposal is made for another reason: then page faults do not count
    against it."""
    lossless: bool = False
    """True if the edit loses no information."""
    refers_to_view: bool = False
    """True if the edit only takes out lines of a file view that stand elsewhere in the prompt. A model that wants them
    again reads the file, so it needs no tool of the proxy."""
    waits_for_rent: bool = False
    """True if an eager policy makes no exception for it: the agent is likely to go on with this result."""


class Insert(msgspec.Struct, frozen=True):
    """A text of the proxy at the tail or behind the system prompt."""

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
    """True if the text may stand in its own user message behind an answer of the assistant's."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A question that only a model can answer. Pure code never asks: the caller asks and calls again, or does not."""

    kind: str
    """summary or reflection."""
    prompt: str
    """The whole question."""
    message_keys: tuple[bytes, ...] = ()
    """Chain keys of the messages that the question is about. Together with the kind they make the `id`, by which the
    answer is found again."""
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


class History(msgspec.Struct, eq=False):
    """Facts that the messages of a request give by themselves. They are taken over from the last request for a shared
    prefix.

    Nothing in a History changes once handed out, except that `memo_values` and `edited_history` are filled.
    """

    messages: tuple[Message, ...]
    keys: tuple[bytes, ...]
    token_counter: TokenCounter
    observation: re.Pattern[str] | None
    original_tokens: list[int]
    """Tokens of each message."""
    request_counts: list[int]
    """Number of assistant messages up to and including each message."""
    is_result: list[bool]
    assistant_indexes: list[int]
    """Indexes of the assistant messages."""
    marked_indexes: list[int]
    """Indexes of the messages that bear a cache mark of the client's."""
    last_user_index: int
    """Index of the last user message, -1 for none."""
    steps: list[Step]
    groups: list[Group]
    memo_values: MemoValues
    edited_history: EditedHistory | None = None
    """These messages, or a prefix of them, with the edits that were in force then."""


class EditedHistory(msgspec.Struct, eq=False):
    """The first `message_count` messages with the branch's edits applied."""

    message_count: int
    branch_edits: Mapping[bytes, Edit]
    """The edits that the branch has."""
    branch_edit_count: int
    """Number of edits in `branch_edits` when this was made."""
    edits: Mapping[bytes, Edit]
    """The edits in force on these messages."""
    tokens: list[int]
    """Tokens of each message as it goes out."""
    marks: list[bytes]
    """The mark of each message that goes out."""
    sizes: list[int]
    """Tokens of each message that goes out; messages that are gone have no entry."""
    lossy_edit_count: int
    """Number of edits that take out something that is nowhere else in the prompt."""
    is_complete: bool
    """True if no edit takes away a message or its calls."""
    stages: frozenset[str]
    """Stages that made the edits in force."""
    memo_values: MemoValues


class RewriteInputs(msgspec.Struct, frozen=True):
    """Inputs of a rewrite in addition to the conversation, its branch, the policy and the model.

    `times` and `strategies` have one entry for each message; if they are empty, `now` and `strategy` hold for all."""

    token_counter: TokenCounter
    """The counter of tokens."""
    keys: Sequence[bytes] | None = None
    """The messages' chain keys, if the caller has them."""
    strategy: str = "openai"
    """The wire format of the upstream that the request goes to."""
    strategies: Sequence[str] = ()
    """The wire format that each message was made for."""
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
    """Tokens of these tools that come in front of the messages with a first edit."""
    guarded_keys: frozenset[bytes] = frozenset()
    """Chain keys of messages that stay as they are."""
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


class BranchMemory(msgspec.Struct, frozen=True):
    """The part of a `BranchState` that stages and injections read."""

    state: str | None = None
    """The newest STATE block."""
    helper_answers: Mapping[str, str] = {}
    """Answers of a helper model, by the id of the Ask."""
    note_counts: Mapping[str, int] = {}
    """Count of each kind of note when it was last given."""
    pins: frozenset[bytes] = frozenset()
    """Chain keys of messages that must stay."""
    breakpoints: frozenset[int] = frozenset()
    """The positions in the last prompt at which a breakpoint of the proxy stood."""


class FaultCounts(msgspec.Struct, frozen=True):
    """Counts of cut results, and of those that were fetched again, by sort (see `page_faults`)."""

    exposed: Mapping[str, int] = {}
    """Cut results in the session's requests, summed over these requests."""
    refetched: Mapping[str, int] = {}
    """Cut results that were fetched again in this session."""
    of_agent: Mapping[str, tuple[int, int]] = {}
    """(`exposed`, `refetched`) of the agent's other sessions together."""
    refetched_keys: frozenset[bytes] = frozenset()
    """Chain keys of the results that fetched a cut result again, and of the calls that fetched nothing else."""


class View(msgspec.Struct, frozen=True, eq=False):
    """The conversation as it would go out now, old edits applied.

    `messages`, `keys`, `tokens`, `original_tokens`, `request_counts` and `is_result` have one entry for each message.
    The fields are in five groups: the conversation, the prompt's size, the policy and model, what came with the
    request (`inputs`), and what earlier requests have left (`branch`, `faults`)."""

    request: Request
    messages: tuple[Message, ...]
    keys: Sequence[bytes]
    original_tokens: Sequence[int]
    """Tokens of each message as received."""
    request_counts: Sequence[int]
    """Number of requests of the branch up to each message (its assistant messages). Differences of these numbers are
    ages."""
    is_result: Sequence[bool]
    """True for tool results, and for user messages that are really tool output."""
    steps: Sequence[Step]
    groups: Sequence[Group]
    active_start: int
    """The index at which the active group begins."""
    history: History
    """Facts about the messages alone, taken over from the request before."""
    edits: Mapping[bytes, Edit]
    """The edits in force."""
    tokens: Sequence[int]
    """Tokens of each message as it would go out, 0 if it is gone."""
    edited_history: EditedHistory
    """Facts about the messages with the edits in force, taken over from the request before."""
    guarded_keys: frozenset[bytes]
    """Chain keys of messages that no stage may edit."""

    prefix_tokens: int
    """Tokens in front of the messages (tools)."""
    tool_tokens: int
    """Tokens of tool definitions that come in front of the messages with the first edit, and move the whole prefix."""
    insert_tokens: int
    """Tokens of the inserts that go out with the prompt."""
    cached_tokens: int
    """Tokens at the front that the provider's cache is expected to hold."""
    warm_tokens: int
    """Tokens at the front that the cache would hold if it had not expired."""
    budget: int | None
    """The most tokens that the prompt should have, None if no limit is known."""
    limit: int | None
    """Tokens that the prompt must not pass: the window less the room for the answer. None if no window is known."""

    model: Model
    token_counter: TokenCounter
    literal: bool
    """True if edits are made again with every request."""
    now: float
    """Time of the request, in seconds."""
    inputs: RewriteInputs
    """The things that came with the request. `times` and `strategies` have one entry for each message."""
    branch: BranchMemory
    faults: FaultCounts
    _made: dict[object, Any] = {}

    def __post_init__(self) -> None:
        force_setattr(self, "_made", {})  # a changed copy of a View computes its own

    def compute_once(self, name: object, compute: Callable[[], T]) -> T:
        """Return the value of `compute`, computed once for a View. A stage and its asks and notes share it. The value
        does not refer to the View, which would make a cycle. name: hashable."""
        if name not in self._made:
            self._made[name] = compute()
        made: T = self._made[name]
        return made

    def memo(self, name: str, compute: Callable[[int, T | None], T], owner: object = None) -> T:
        """Return a value that `compute` computes from the messages alone, incrementally.

        compute: called with the number of messages at the front that an earlier request covered, and with the value for
        them. It returns the value for all messages, and does not change the value it was given. owner: the asker, if
        another asker would get another value.
        """
        return _extend_memo(self.history.memo_values, name, len(self.messages), compute, owner)

    def memo_edited(self, name: str, compute: Callable[[int, T | None], T], owner: object = None) -> T:
        """Return a value that also depends on the edits in force; else as `memo`. It is kept until another edit comes
        into force."""
        applied = self.edited_history
        if applied.edits is self.edits and applied.tokens is self.tokens:
            return _extend_memo(applied.memo_values, name, len(self.messages), compute, owner)
        return compute(0, None)

    @property
    def total(self) -> int:
        """Tokens of the whole prompt as it would go out."""
        return self.prefix_tokens + self.insert_tokens + sum(self.tokens)

    def count_served_tokens(self) -> list[int]:
        """The cached tokens that are still served if a message is edited, for each message.

        If any prefix matches, these are all tokens in front of the message. If a cache ends at explicit breakpoints,
        only a prefix that ends with a marked message counts (OpenAI's and Anthropic's caching pages).
        Behind the cached tokens an edit costs none of them. If tool definitions come with the edit, only the tokens in
        front of the messages count. Nothing is served of a prefix below the provider's minimum.
        """
        least = self.model.min if self.model.cache != "none" else 0
        if self.tool_tokens:
            front = min(self.cached_tokens, self.prefix_tokens)
            return [front if front >= least else 0] * len(self.messages)
        at = found = self.prefix_tokens
        if self.model.cache != "breakpoint":
            ends = list(accumulate(self.tokens[:-1], initial=at))
            within = bisect_right(ends, self.cached_tokens)
            fronts = [end if end >= least else 0 for end in ends[:within]]
            return [*fronts, *[self.cached_tokens] * (len(ends) - within)]
        fronts = []
        position = 0
        for n, (message, size) in enumerate(zip(self.messages, self.tokens, strict=True)):
            behind = at >= self.cached_tokens  # the result ends in front of the message, and is not changed
            fronts.append(self.cached_tokens if behind else found if found >= self.model.min else 0)
            at += size
            if (message.has_cache_mark or position in self.branch.breakpoints) and at <= self.cached_tokens:
                found = at
            edit = self.find_edit(n)
            position += edit is None or edit.action != "gone"
        return fronts

    def find_edit(self, index: int) -> Edit | None:
        """The edit in force on messages[index]. System messages have none, because they share their neighbour's key."""
        return None if self.messages[index].is_system else self.edits.get(self.keys[index])


def _extend_memo(facts: MemoValues, name: str, count: int, make: Callable[[int, T | None], T], owner: object) -> T:
    begin, whose, found = facts.get(name, (0, owner, None))
    if whose is not owner:
        begin, found = 0, None
    if begin < count or found is None:
        found = make(begin, found)
        facts[name] = (count, owner, found)
    made: T = found
    return made


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
    behind the last message."""
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
    """Chain keys of the results that fetched a cut result again, as `FaultCounts.refetched_keys`, those of this request
    included."""
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
