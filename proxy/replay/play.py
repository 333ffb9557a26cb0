"""Replay of a conversation: the agent's history grows request by request, and policies plan each request as the server
would.

The replay uses the same `rewrite` and carries the same `Session` along. A model of the provider's cache replaces the
provider. The recorded answer is the next message, whatever the policy sent. Helper models are not asked: only their
stored answers are used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from proxy.chat import key
from proxy.chat.dialects.completions import read_message, read_request
from proxy.chat.message import Message, Request
from proxy.chat.tokens import Weigh
from proxy.context.pipeline import rewrite
from proxy.context.plan import Plan
from proxy.context.policy import Policy
from proxy.context.prices import Model
from proxy.context.session import Session, cuts
from proxy.replay.baselines import BASELINES
from proxy.replay.bound import BOUNDS, Hindsight, bound, leaving
from proxy.replay.cache import PrefixCache
from proxy.replay.read import Conversation
from proxy.replay.score import Judge, Scale, Tally
from proxy.replay.wants import Step, Wants
from proxy.replay.words import Ruler
from proxy.tools.catalog import chosen, definitions
from proxy.vocabulary import counter

PACE = 10.0
"""Seconds between two requests if no times were recorded: the cache stays warm."""
STATE = "Goal: go on as asked\nContext: as before\nResolved: one more step\nTechnical Anchors: none new"
"""The text that the played model writes if it is asked for its state."""


@dataclass(frozen=True, slots=True)
class Contender:
    """A participant of the comparison."""

    label: str
    policy: Policy | None = None
    """The policy, None for doing nothing or for a baseline."""
    baseline: str = ""
    """The name of a baseline (see `baselines`); empty: none."""


@dataclass(frozen=True, slots=True)
class Match:
    """The settings of a replay, the same for every conversation."""

    contenders: tuple[Contender, ...]
    model: Model
    """The model. Policies decide by its prices."""
    prices: tuple[tuple[float, float], ...]
    """The price pairs for which costs are reported."""
    play_state: bool = False
    """True if the model writes a STATE block when it is asked for one and makes no calls."""

    @property
    def scale(self) -> Scale:
        """The prices by which costs are computed."""
        return Scale(self.prices, self.model.output_ratio)


@dataclass(frozen=True, slots=True)
class Played:
    """The result of one conversation."""

    source: str
    tallies: tuple[Tally, ...]
    """The sums of each contender, in the order of the contenders."""
    bounds: dict[str, Tally]
    """The sums of each bound, by its name."""
    kind: tuple[str, ...] = ()
    """The names of the agent's tools."""
    early: dict[int, Tally] = field(default_factory=dict)
    """By position, the sums of contenders that offer their tools `when_needed`, as if they offered them from the first
    request on. `tallies` has their sums with tools from the first edit on."""
    edited: frozenset[int] = frozenset()
    """The positions of those contenders whose prompts came to edits."""


class Habits:
    """The kinds of conversations that came to edits, for contenders that offer their tools `when_needed`."""

    def __init__(self) -> None:
        self._edited: set[tuple[int, tuple[str, ...]]] = set()

    def settle(self, played: Played) -> Played:
        """Return the conversation as it is played after the conversations before it."""
        chosen = {at: tally for at, tally in played.early.items() if (at, played.kind) in self._edited}
        self._edited.update((at, played.kind) for at in played.edited)
        if not chosen:
            return played
        return replace(played, tallies=tuple(chosen.get(at, tally) for at, tally in enumerate(played.tallies)))


def play(conversation: Conversation, match: Match) -> Played:
    """Play a conversation for every contender."""
    ruler = Ruler(counter(match.model.tokenizer))
    table = _Table(conversation, ruler)
    players = [_Player(contender, match, table) for contender in match.contenders]
    tallies = tuple(player.play() for player in players)
    needed = [n for n, c in enumerate(match.contenders) if c.policy and c.policy.offer == "when_needed"]
    early = {n: _Player(match.contenders[n], match, table, early=True).play() for n in needed if players[n].front.names}
    edited = frozenset(n for n in early if cuts(players[n].session.edits))
    seen, pairs = table.hindsight(match.contenders), len(match.prices)
    bounds = {name: bound(table.wants, ruler, match.model, seen[name], pairs=pairs) for name in BOUNDS}
    return Played(conversation.source, tallies, bounds, tuple(sorted(table.request.tool_names)), early, edited)


class Front(NamedTuple):
    """The part of a request in front of its messages."""

    request: Request
    names: frozenset[str]
    """Names of the proxy's own tools in it."""
    more: int
    """Tokens of the definitions of these tools."""


class _Table:
    """The data of a conversation that all contenders share: messages, their keys and times, and the wants of each
    step."""

    def __init__(self, conversation: Conversation, ruler: Ruler) -> None:
        self.conversation = conversation
        self.ruler = ruler
        self.weigh = Weigh(ruler.text)
        self._read: dict[bytes, Message] = {}
        self.messages = tuple(map(self.read, conversation.messages))
        self.keys = key.chain(conversation.tenant, self.messages)
        self.wants = Wants(self.messages, conversation.tools)
        self.times = conversation.times or _paced(self.messages)
        self.head = ruler.tools(conversation.tools)
        self.request = _request(conversation, conversation.tools)

    def offering(self, policy: Policy | None) -> Front:
        """Return the request with the proxy's tools that the policy offers. They are offered only if the agent has
        tools itself."""
        tools = self.conversation.tools
        if policy is None or policy.mode != "rewrite" or policy.offer == "never" or not self.request.tools or not tools:
            return Front(self.request, frozenset(), 0)
        # Memos as for a session that the client has named, which most agents do.
        names = chosen("policy", policy.tools, self.request.tool_names, memos=True)
        if not names:
            return Front(self.request, frozenset(), 0)
        front, _, rest = tools.rpartition(b"]")
        array = front + (b"," if self.request.tool_names else b"") + definitions(names) + b"]" + rest
        more = self.ruler.tools(array) - self.head
        return Front(_request(self.conversation, array), frozenset(names), more)

    def hindsight(self, contenders: Sequence[Contender]) -> dict[str, Hindsight]:
        """Return the input of each bound, by its name."""
        patterns = [c.policy.observation for c in contenders if c.policy and c.policy.observation]
        shared = self.conversation.shared
        return {
            name: Hindsight(leaving(name, self.messages, patterns), self.head, self.times, shared) for name in BOUNDS
        }

    def read(self, raw: bytes) -> Message:
        """Return the message in these bytes. The same bytes give the same object."""
        found = self._read.get(raw)
        if found is None:
            found = self._read[raw] = read_message(raw)
        return found


def _paced(messages: Sequence[Message]) -> tuple[float, ...]:
    times, now = [], 0.0
    for message in messages:
        times.append(now)
        if message.role == "assistant":
            now += PACE
    return tuple(times)


def _request(conversation: Conversation, tools: bytes | None) -> Request:
    """Return the conversation's first request as an agent would send it. Later requests differ only in their
    messages."""
    array = b"" if tools is None else b',"tools":' + tools
    return read_request(b'{"model":"replay","messages":[' + conversation.messages[0] + b"]" + array + b"}")


@dataclass(slots=True)
class _Player:
    """One contender in one conversation."""

    contender: Contender
    match: Match
    table: _Table
    session: Session = field(default_factory=Session)
    asked: set[str] = field(default_factory=set)
    early: bool = False
    """True if tools are offered from the first request on, whatever the policy says."""
    front: Front = field(init=False)
    late: bool = False
    """True while the proxy's tools are not in the prompt yet. They come with the first edit."""

    def play(self) -> Tally:
        """Play the whole conversation, and return the sums."""
        table, match = self.table, self.match
        self.session = Session(answers=dict(table.conversation.answers))
        judge = Judge(table.wants, table.ruler, match.scale)
        policy = self.contender.policy
        self.front = table.offering(policy)
        waits = policy is not None and policy.offer in ("first_edit", "when_needed") and not self.early
        self.late = waits and bool(self.front.names)
        cache = PrefixCache(match.model, table.ruler, table.head + (0 if self.late else self.front.more))
        for step in table.wants.steps:
            now = table.times[step.position - 1]
            plan, prompt = self._plan(step.position, now, judge.tally)
            if self.late and plan and cuts(plan.edits):
                self.late = False
                cache.moved(table.head + self.front.more)
            size, cached = cache.send(prompt or list(table.messages[: step.position]), now)
            written = self._answered(plan, step, cached, now) if plan else 0
            judge.see(step, prompt, size, cached, written=written, counts=step.position >= table.conversation.shared)
        judge.tally.asks = len(self.asked)
        return judge.tally

    def _plan(self, position: int, now: float, tally: Tally) -> tuple[Plan | None, list[Message] | None]:
        """Return (the plan, or None if there is none; the messages that are sent, or None for the history as it is)."""
        policy, table = self.contender.policy, self.table
        messages = table.messages[:position]
        if self.contender.baseline:
            return None, [table.read(raw) for raw in BASELINES[self.contender.baseline](messages, table.weigh)]
        if policy is None or policy.mode != "rewrite":
            return None, None
        request = replace(table.request if self.late else self.front.request, messages=messages)
        try:
            plan = rewrite(
                request, self.session, policy, self.match.model, now,
                weigh=table.weigh, keys=table.keys[:position], times=table.times[:position],
                offered=self.front.names, toll=self.front.more if self.late else 0,
            )  # fmt: skip
        except Exception as problem:  # noqa: BLE001  # as the server does: counted, and the history goes out as it is
            tally.failed += 1
            tally.why[f"{type(problem).__name__}: {problem}"[:120]] += 1
            return None, None
        if plan.refused:
            tally.refused += 1
            tally.why[f"rule {plan.refused}"] += 1
        return plan, None if plan.messages is None else [table.read(raw) for raw in plan.messages]

    def _answered(self, plan: Plan, step: Step, cached: int, now: float) -> int:
        """Move the session past an answer. Return the tokens of the STATE block at the end of the answer."""
        self.asked.update(ask.id for ask in plan.asks)
        session = self.session.after_sending(plan, now)
        said = self.table.messages[step.position]
        state = None
        if self.match.play_state and plan.asked and not said.calls:
            state = self.table.keys[step.position], STATE
        settled = self.table.keys[step.position - 1] if plan.asked and (state or said.text.strip()) else None
        self.session = session.after_answer(predicted=plan.predicted, cached=cached, state=state, settled=settled)
        return self.table.ruler.text("### STATE\n" + STATE) if state else 0
