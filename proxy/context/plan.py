"""The data that flows through a rewrite: View, Proposal, Edit, Insert, Ask, Note, Plan.

Stages look at a View and return Proposals (what could go); a schedule turns some into Edits (what goes, from
now on and byte for byte); Inserts are texts of ours that are no part of the history; the Plan is what the
caller sends and remembers. All of it is data: nothing here does anything by itself.
"""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Literal, TypeVar

from proxy.chat.group import Group, Step
from proxy.chat.message import Message, Request
from proxy.chat.tokens import Weigh
from proxy.context.prices import Model
from proxy.memory.memos import Memo

T = TypeVar("T")
Facts = dict[str, tuple[int, object, Any]]
"""What was found out about messages, by name: (of how many at the front, for whom, what)."""

Action = Literal["text", "gone", "text_only", "append"]
"""text: another text. gone: left out. text_only: an assistant message without its calls. append: text at its end."""

Content = Literal["view", "other", "unknown"]
"""view: the text of a file, an edit's echo, which an agent quotes when it edits, long after. other: searches, listings,
command output, from which it takes names. unknown: any other tool (an API's answer, a page, a sub-agent's report)."""

STRENGTH: dict[Action, int] = {"append": 0, "text": 1, "text_only": 2, "gone": 3}
"""An edit is superseded only by a stronger one, or by a shorter text."""

REFERRING = frozenset({"refer_repeats"})
"""Stages whose edits say where in the prompt the same text stands."""


@dataclass(frozen=True, slots=True)
class Edit:
    """A decision about one message, made once and repeated byte for byte ever after.

    key: the message's chain key. text: the new or the appended text; None where it is gone or only loses its
    calls. before, after: its tokens as it came and as it goes out.
    """

    key: bytes
    action: Action
    text: str | None
    stage: str
    reason: str
    before: int
    after: int

    def __hash__(self) -> int:
        """The key tells edits apart well enough, and its hash is remembered: edits name what is derived from them."""
        return hash(self.key)

    @property
    def loses(self) -> bool:
        """Whether it takes out something that stands nowhere else in the prompt."""
        return self.action != "append" and self.stage not in REFERRING


@dataclass(frozen=True, slots=True)
class Proposal:
    """What a stage would do to messages[index].

    after: tokens that would be left (an estimate where `write` makes the text late). since: the index of the message
    with which it became possible; the rent of carrying the message is counted from there. write: makes the text when
    the proposal is taken, for texts that depend on what else stands in the prompt then; from the indexes of all that
    are cut with it, and None where there is nothing to do any more. whole: nothing that is said leaves. rider: not
    worth moving the prefix for, but taken along behind a batch that moves it anyway. needs: the index of a message
    whose edit (proposed too, or in force) has to be there as well, since it says what this one takes away. joint:
    made with all other joint proposals of its stage or not at all, since they were chosen together. content: what a
    tool result shows, None where the proposal is not made for that: then page faults are not counted against it.
    """

    index: int
    action: Action
    stage: str
    reason: str
    after: int
    text: str | None = None
    since: int = 0
    write: Callable[[frozenset[int]], str | None] | None = None
    rider: bool = False
    needs: int | None = None
    joint: bool = False
    content: Content | None = None
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Insert:
    """A text of ours at the tail or behind the system prompt.

    kept: it stays where it is put, as an `append` edit. said: (kind of note, count) that is remembered once it has
    gone out (`Session.said`), for notes that come again only when their count has doubled. about: chain keys of the
    messages that it quotes.
    """

    place: Literal["tail", "system"]
    source: str
    text: str
    kept: bool = False
    said: tuple[str, int] | None = None
    about: tuple[bytes, ...] = ()
    alone: bool = False
    """Behind an answer of the assistant's it may stand in a user message of its own."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A question that only a model can answer. Pure code never asks: the caller does, and calls again, or does not.

    kind: summary, reflection, state. prompt: the whole question. about: chain keys of the messages that it is about;
    with the kind they name the Ask (`id`), so that its answer is found again. keep: names of which an answer must
    hold all. longest: characters above which an answer is no summary. now: the plan is of little use without the
    answer.
    """

    kind: str
    prompt: str
    about: tuple[bytes, ...] = ()
    keep: tuple[str, ...] = ()
    longest: int = 0
    now: bool = False

    @property
    def id(self) -> str:
        """Names the question: the same on every replica."""
        return hashlib.blake2b(self.kind.encode() + b"".join(self.about), digest_size=10).hexdigest()


@dataclass(frozen=True, slots=True)
class Note:
    """Something for the record and the operator: never seen by the model. figures: numbers in it, by name."""

    kind: str
    text: str
    figures: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Found:
    """A stored text that a search has brought up. key: the message's, or that of the message that was summarised."""

    key: bytes
    kind: Literal["message", "summary"]
    role: str
    text: str


@dataclass(slots=True, eq=False)
class Ground:
    """What the messages of a request say by themselves, found out for its front when that was the last request.

    whole: tokens of each. requests: how many answers there are up to each. answers: which are the assistant's. marked:
    which bear a cache mark of the client's. prompt: which is the user's last one, -1 for none. applied: these messages,
    or a front of them, with the edits that were in force then. Nothing in it is changed once it was handed out.
    """

    messages: tuple[Message, ...]
    keys: tuple[bytes, ...]
    weigh: Weigh
    observation: re.Pattern[str] | None
    whole: list[int]
    requests: list[int]
    is_result: list[bool]
    answers: list[int]
    marked: list[int]
    prompt: int
    steps: list[Step]
    groups: list[Group]
    facts: Facts
    applied: Applied | None = None


@dataclass(slots=True, eq=False)
class Applied:
    """The first `count` messages with the edits that the thread has (`given`, of which there were `number`).

    edits: those in force here. tokens: of each as it goes out. marks, sizes: of each that does go out. losses: how
    many edits take something out. whole: none takes away a message or its calls. stages: who has made them.
    """

    count: int
    given: Mapping[bytes, Edit]
    number: int
    edits: dict[bytes, Edit]
    tokens: list[int]
    marks: list[bytes]
    sizes: list[int]
    losses: int
    whole: bool
    stages: frozenset[str]
    facts: Facts


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """The conversation as it would go out now, old edits applied.

    messages, keys, tokens (as each would go out, 0 where gone), whole (tokens as each came): one entry a message.
    edits: those in force. head: tokens in front of the messages (tools). active: the index at which the active group
    begins. cached: tokens at the front that the provider's cache is expected to hold; warm: those that it would hold
    had it not expired. requests: how many requests the thread has had up to each message (its assistant messages):
    differences of it are ages.
    budget: the most tokens the prompt should have, None where no limit is known. strategies: for which wire format each
    message was made; strategy: which one it goes to now. is_result: tool results, and user messages that are really
    tool output. literal: edits are made anew with every request.
    offered: names of the proxy's tools that the model has in this request. guarded: chain keys of messages that no
    stage may edit. toll: tokens of tool definitions that come into the head with the first edit, and move all of it.
    scratchpad: the session's. memos: those that fit the last user message.
    now: seconds. times: when each message was first seen, in seconds. state, answers, said, pins: as `Session` has
    them. found: what a search of the store has brought up for this request. relevance: how near messages are to
    the current task, 0 to 1, by form, where somebody knows better than by their words. ground, applied: what is known
    from the request before.
    """

    request: Request
    messages: tuple[Message, ...]
    keys: Sequence[bytes]
    tokens: Sequence[int]
    whole: Sequence[int]
    edits: Mapping[bytes, Edit]
    steps: Sequence[Step]
    groups: Sequence[Group]
    active: int
    head: int
    cached: int
    warm: int
    requests: Sequence[int]
    model: Model
    budget: int | None
    weigh: Weigh
    strategies: Sequence[str]
    strategy: str
    is_result: Sequence[bool]
    literal: bool
    ground: Ground
    applied: Applied
    now: float = 0.0
    times: Sequence[float] = ()
    state: str | None = None
    answers: Mapping[str, str] = field(default_factory=dict)
    said: Mapping[str, int] = field(default_factory=dict)
    pins: frozenset[bytes] = frozenset()
    options: Mapping[str, str] = field(default_factory=dict)
    """What the request asks for by its x-context-* headers: values by the rest of the name, in small letters."""
    found: Sequence[Found] = ()
    relevance: Mapping[bytes, float] = field(default_factory=dict)
    offered: frozenset[str] = frozenset()
    guarded: frozenset[bytes] = frozenset()
    toll: int = 0
    scratchpad: str = ""
    memos: Sequence[Memo] = ()
    limit: int | None = None
    """Tokens that the prompt must not pass: the window less the room for the answer. None where no window is known."""
    extra: int = 0
    """Tokens of the inserts that go out with it."""
    refetched: Mapping[str, int] = field(default_factory=dict)
    """Cut results that were fetched again in this session, by sort (see `page_faults`)."""
    exposed: Mapping[str, int] = field(default_factory=dict)
    """Cut results in the session's requests, added up over these, by sort."""
    elsewhere: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """The same two, `exposed` and `refetched`, of the tenant's other sessions together, by sort."""
    _made: dict[object, Any] = field(default_factory=dict, init=False, repr=False)

    def once(self, name: object, make: Callable[[], T]) -> T:
        """What `make` returns, made once a View: what a stage and its asks and notes all need. name: hashable."""
        if name not in self._made:
            self._made[name] = make()
        made: T = self._made[name]
        return made

    def grown(self, name: str, make: Callable[[int, T | None], T], owner: object = None) -> T:
        """What `make` finds in the messages alone. make: called with the number of messages at the front for which it
        is known from an earlier request, and with what is known of them; it returns that of all of them, and leaves
        what it was given as it is. owner: who asks, where another would find something else."""
        return _grown(self.ground.facts, name, len(self.messages), make, owner)

    def settled(self, name: str, make: Callable[[int, T | None], T], owner: object = None) -> T:
        """The same for what depends on the edits in force too: known as long as no other edit comes into force."""
        applied = self.applied
        if applied.edits is self.edits and applied.tokens is self.tokens:
            return _grown(applied.facts, name, len(self.messages), make, owner)
        return make(0, None)

    @property
    def total(self) -> int:
        """Tokens of the whole prompt as it would go out."""
        return self.head + self.extra + sum(self.tokens)

    def served(self) -> list[int]:
        """For each message: the cached tokens that are still served when it is edited.

        All in front of it where any prefix is found; where a cache ends at explicit breakpoints, only what ends
        with a message that the client has marked (OpenAI's and Anthropic's caching pages). Nothing but the head where
        tool definitions come with the edit.
        """
        if self.toll:
            return [min(self.cached, self.head)] * len(self.messages)
        at = found = self.head
        if self.model.cache != "breakpoint":
            ends = list(accumulate(self.tokens[:-1], initial=at))
            within = bisect_right(ends, self.cached)
            return [*ends[:within], *[self.cached] * (len(ends) - within)]
        fronts = []
        for message, size in zip(self.messages, self.tokens, strict=True):
            fronts.append(found if found >= self.model.min else 0)
            at += size
            if message.marked and at <= self.cached:
                found = at
        return fronts

    def edit(self, index: int) -> Edit | None:
        """The edit in force on messages[index]. System messages bear none: they share their neighbour's key."""
        return None if self.messages[index].is_system else self.edits.get(self.keys[index])


def _grown(facts: Facts, name: str, count: int, make: Callable[[int, T | None], T], owner: object) -> T:
    begin, whose, found = facts.get(name, (0, owner, None))
    if whose is not owner:
        begin, found = 0, None
    if begin < count or found is None:
        found = make(begin, found)
        facts[name] = (count, owner, found)
    made: T = found
    return made


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """What to send, and what to remember of it.

    messages: the bytes of each message to send, None where the client's own array goes as it is. new: edits to be
    stored before the bytes go out. edits: all that are in force then. placed: inserts, each with the index of the
    message that it is appended to, -1 for a message of ours at the end. marks: a 16-byte mark of each outgoing
    message (see `Session.sent`). before, after, predicted: tokens of the prompt as it came, as it goes, and of its
    cached front. asked: a STATE block was asked for. refused: the rule or reason for which the original goes out
    instead.
    """

    messages: tuple[bytes, ...] | None
    new: tuple[Edit, ...]
    edits: Mapping[bytes, Edit]
    placed: tuple[tuple[int, Insert], ...]
    asks: tuple[Ask, ...]
    notes: tuple[Note, ...]
    marks: tuple[bytes, ...]
    sizes: tuple[int, ...]
    keys: Sequence[bytes]
    before: int
    after: int
    predicted: int
    asked: bool
    refused: str | None = None
    owed: tuple[Insert, ...] = ()
    """Notes that are told once and had no place in this prompt."""
    literal: bool = False
    """Its edits hold for literal policies alone: see `Session.lasting`."""
    limit: int | None = None
    """Tokens above which the prompt is over its budget; None where there is no budget."""
    refetched: Mapping[str, int] = field(default_factory=dict)
    """Cut results that were fetched again in this session, by sort, those of this request included."""
    exposed: Mapping[str, int] = field(default_factory=dict)
    """Cut results in its requests, added up over these, by sort, this one included."""
