"""Replay of a conversation: the agent's history grows request by request, and policies plan each request as the server
would.

The replay uses the same `rewrite` and carries the same `BranchState` along. A model of the provider's cache replaces
the provider. The recorded answer is the next message, whatever the policy sent. Helper models are not asked: only
their stored answers are used.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import NamedTuple

from msgspec.structs import replace

from proxy.chat import chain
from proxy.chat.message import Message, Request
from proxy.chat.tokens import TokenCounter
from proxy.context.branch_state import BranchState, count_losses
from proxy.context.models import Model
from proxy.context.pipeline import rewrite
from proxy.context.plan import Plan, RewriteInputs
from proxy.context.policy import Policy
from proxy.dialects.completions.request import read_message, read_request
from proxy.replay.atoms import WireTokenCounter
from proxy.replay.baselines import BASELINES
from proxy.replay.bound import BOUNDS, BoundInput, compute_bound, find_removable
from proxy.replay.cache import ProviderCache, count_served_tokens
from proxy.replay.read import RecordedConversation
from proxy.replay.score import PriceScale, PromptScorer, ReplayTotals
from proxy.replay.wanted_references import RecordedRequest, WantedReferences
from proxy.sessions.agent_statistics import KnownAgents
from proxy.tokenizers import get_token_counter
from proxy.tools.registry import choose_tool_names, join_definitions

REQUEST_INTERVAL_S = 10.0
"""Seconds between two requests if no times were recorded: the cache stays warm."""
PLAYED_STATE = "Goal: go on as asked\nContext: as before\nResolved: one more step\nTechnical Anchors: none new"
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
class ReplaySettings:
    """The settings of a replay, the same for every conversation."""

    contenders: tuple[Contender, ...]
    model: Model
    """The model. Policies decide by its prices."""
    prices: tuple[tuple[float, float], ...]
    """The price pairs for which costs are reported."""
    play_state: bool = False
    """True if the model writes a STATE block when it is asked for one and makes no calls."""
    keep_alive_pings: int = 0
    """The most pings that keep the cache warm after an answer, with every policy (`cache.keep_alive_pings`)."""

    @property
    def policies(self) -> list[Policy]:
        """The policies of the participants that have one."""
        return [one.policy for one in self.contenders if one.policy is not None]

    @property
    def price_scale(self) -> PriceScale:
        """The prices by which costs are computed."""
        return PriceScale(self.prices, self.model.output_ratio)


@dataclass(frozen=True, slots=True)
class ConversationResult:
    source: str
    totals: tuple[ReplayTotals, ...]
    """The sums of each contender, in the order of the contenders."""
    bounds: dict[str, ReplayTotals]
    """The sums of each bound, by its name."""
    tool_names: tuple[str, ...] = ()
    """The names of the agent's tools."""
    early_totals: dict[int, ReplayTotals] = field(default_factory=dict)
    """By position, the sums of contenders that offer their tools `when_needed`, as if they offered them from the first
    request on. `totals` has their sums with tools from the first edit on."""
    edited: frozenset[int] = frozenset()
    """The positions of those contenders whose prompts came to edits."""


class OfferHistory:
    """The kinds of conversations that have had edits, for contenders that offer their tools `when_needed`."""

    def __init__(self) -> None:
        self._edited: set[tuple[int, tuple[str, ...]]] = set()

    def choose_totals(self, played: ConversationResult) -> ConversationResult:
        """Return the conversation as it is played after the conversations before it."""
        chosen = {at: totals for at, totals in played.early_totals.items() if (at, played.tool_names) in self._edited}
        self._edited.update((at, played.tool_names) for at in played.edited)
        if not chosen:
            return played
        return dataclasses.replace(
            played, totals=tuple(chosen.get(at, totals) for at, totals in enumerate(played.totals))
        )


class LengthHistory:
    """The lengths of the conversations that were played before, by agent: what the proxy would have seen of them."""

    def __init__(self) -> None:
        self._agents = KnownAgents()

    def list_earlier(self, conversation: RecordedConversation) -> tuple[int, ...]:
        """Return the lengths of earlier conversations of the same agent, in requests, and note that of this one."""
        agent = self._agents.find(conversation.tenant, _make_first_request(conversation, conversation.tools))
        earlier = agent.list_lengths()
        length = sum(read_message(raw).role == "assistant" for raw in conversation.messages)
        agent.note_length(f"{conversation.source}\n{conversation.id}", length)
        return earlier


def play_conversation(
    conversation: RecordedConversation, settings: ReplaySettings, lengths: Sequence[int] = ()
) -> ConversationResult:
    """Play a conversation for every contender. lengths: requests of earlier conversations of its agent."""
    settings = dataclasses.replace(
        settings, contenders=tuple(_lift_loss_limit(contender, lengths) for contender in settings.contenders)
    )
    wire_counter = WireTokenCounter(get_token_counter(settings.model.tokenizer))
    shared = _SharedInput(conversation, wire_counter, lengths)
    players = [_Player(contender, settings, shared) for contender in settings.contenders]
    totals = tuple(player.play() for player in players)
    needed = [n for n, c in enumerate(settings.contenders) if c.policy and c.policy.offer == "when_needed"]
    early = {
        n: _Player(settings.contenders[n], settings, shared, early=True).play()
        for n in needed
        if players[n].offered.offered_names and settings.model.cache != "none"
    }
    edited = frozenset(n for n in early if count_losses(players[n].state.edits))
    seen, pairs = shared.build_bound_inputs(settings.contenders), len(settings.prices)
    bounds = {
        name: compute_bound(shared.wanted, wire_counter, settings.model, seen[name], price_pairs=pairs)
        for name in BOUNDS
    }
    return ConversationResult(
        conversation.source, totals, bounds, tuple(sorted(shared.request.tool_names)), early, edited
    )


def _lift_loss_limit(contender: Contender, lengths: Sequence[int]) -> Contender:
    """The contender without a limit on losses, if its agent had conversations before: in these its cuts have saved
    enough. A replay has no page faults that would speak against it."""
    if contender.policy is None or not lengths:
        return contender
    return dataclasses.replace(contender, policy=dataclasses.replace(contender.policy, max_loss=0.0))


class EditPoint(NamedTuple):
    """A request whose plan has new edits: the messages as received, and as they are sent, each with its tools."""

    position: int
    full: Sequence[bytes]
    managed: Sequence[bytes]
    full_tools: bytes | None
    managed_tools: bytes | None


def find_edit_points(
    conversation: RecordedConversation, contender: Contender, settings: ReplaySettings, lengths: Sequence[int]
) -> list[EditPoint]:
    """Return the requests of a conversation at which the contender makes new edits, without those that the conversation
    shares with its parent. lengths: as for `play_conversation`."""
    wire_counter = WireTokenCounter(get_token_counter(settings.model.tokenizer))
    shared = _SharedInput(conversation, wire_counter, lengths)
    player = _Player(_lift_loss_limit(contender, lengths), settings, shared, edit_points=[])
    player.play()
    return [point for point in player.edit_points or () if point.position >= conversation.shared_messages]


class RequestWithTools(NamedTuple):
    """The part of a request before its messages."""

    request: Request
    offered_names: frozenset[str]
    """Names of the proxy's own tools in it."""
    tool_tokens: int
    """Tokens of the definitions of these tools."""


class _SharedInput:
    """The data of a conversation that all contenders share: messages, keys, times, and each step's wants."""

    def __init__(
        self, conversation: RecordedConversation, wire_counter: WireTokenCounter, lengths: Sequence[int]
    ) -> None:
        self.conversation = conversation
        self.lengths = lengths
        self.wire_counter = wire_counter
        self.token_counter = TokenCounter(wire_counter.count_text)
        self._read: dict[bytes, Message] = {}
        self.messages = tuple(map(self.read, conversation.messages))
        self.keys = chain.compute_keys(conversation.tenant, self.messages)
        self.wanted = WantedReferences(self.messages, conversation.tools)
        self.times = conversation.times or _compute_times(self.messages)
        self.tool_tokens = wire_counter.count_tools(conversation.tools)
        self.request = _make_first_request(conversation, conversation.tools)

    def offer_tools(self, policy: Policy | None) -> RequestWithTools:
        """Return the request with the tools that the policy offers, if the agent has tools itself."""
        tools = self.conversation.tools
        if policy is None or policy.mode != "rewrite" or policy.offer == "never" or not self.request.tools or not tools:
            return RequestWithTools(self.request, frozenset(), 0)
        # Memos as for a session that the client has named, which most agents do.
        names = choose_tool_names("policy", policy.tools, self.request.tool_names, memos=True)
        if not names:
            return RequestWithTools(self.request, frozenset(), 0)
        front, _, rest = tools.rpartition(b"]")
        array = front + (b"," if self.request.tool_names else b"") + join_definitions(names) + b"]" + rest
        more = self.wire_counter.count_tools(array) - self.tool_tokens
        return RequestWithTools(_make_first_request(self.conversation, array), frozenset(names), more)

    def build_bound_inputs(self, contenders: Sequence[Contender]) -> dict[str, BoundInput]:
        """Return the input of each bound, by its name."""
        patterns = [c.policy.observation for c in contenders if c.policy and c.policy.observation]
        shared_messages = self.conversation.shared_messages
        return {
            name: BoundInput(
                find_removable(name, self.messages, patterns), self.tool_tokens, self.times, shared_messages
            )
            for name in BOUNDS
        }

    def read(self, raw: bytes) -> Message:
        """Return the message in these bytes. The same bytes give the same object."""
        found = self._read.get(raw)
        if found is None:
            found = self._read[raw] = read_message(raw)
        return found


def _compute_times(messages: Sequence[Message]) -> tuple[float, ...]:
    times, now = [], 0.0
    for message in messages:
        times.append(now)
        if message.role == "assistant":
            now += REQUEST_INTERVAL_S
    return tuple(times)


def _make_first_request(conversation: RecordedConversation, tools: bytes | None) -> Request:
    """Return the conversation's first request. Later requests differ only in their messages."""
    array = b"" if tools is None else b',"tools":' + tools
    return read_request(b'{"model":"replay","messages":[' + conversation.messages[0] + b"]" + array + b"}")


@dataclass(slots=True)
class _Player:
    """One contender in one conversation."""

    contender: Contender
    settings: ReplaySettings
    shared: _SharedInput
    state: BranchState = field(default_factory=BranchState)
    asked: set[str] = field(default_factory=set)
    early: bool = False
    """True if tools are offered from the first request on, whatever the policy says."""
    offered: RequestWithTools = field(init=False)
    late: bool = False
    """True while the proxy's tools are not in the prompt yet. They come with the first edit."""
    edit_points: list[EditPoint] | None = None
    """The requests with new edits, where they are wanted."""

    def play(self) -> ReplayTotals:
        """Play the whole conversation, and return the sums."""
        shared, settings = self.shared, self.settings
        self.state = BranchState(helper_answers=dict(shared.conversation.answers))
        scorer = PromptScorer(shared.wanted, shared.wire_counter, settings.price_scale)
        policy = self.contender.policy
        self.offered = shared.offer_tools(policy)
        waits = policy is not None and policy.offer in ("first_edit", "when_needed") and not self.early
        self.late = waits and bool(self.offered.offered_names)
        cache = ProviderCache(
            settings.model, shared.wire_counter, shared.tool_tokens + (0 if self.late else self.offered.tool_tokens)
        )
        steps = shared.wanted.requests
        for step, following in zip_longest(steps, steps[1:]):
            now = shared.times[step.position - 1]
            plan, prompt = self._plan_request(step.position, now, scorer.totals)
            if self.late and plan and count_losses(plan.edits):
                self.late = False
                cache.change_tools(shared.tool_tokens + self.offered.tool_tokens)
            if self.edit_points is not None and plan and plan.new_edits and prompt is not None:
                self.edit_points.append(self._make_point(step.position, prompt))
            size, cached = cache.send_prompt(prompt or list(shared.messages[: step.position]), now)
            written = self._take_answer(plan, step, cached, now) if plan else 0
            is_counted = step.position >= shared.conversation.shared_messages
            scorer.score_request(step, prompt, size, cached, written=written, is_counted=is_counted)
            pings = self._send_pings(cache, following) if count_served_tokens(size, settings.model) else 0
            if is_counted:
                scorer.totals.pings += pings
                scorer.totals.pinged += pings * size
        scorer.totals.asks = len(self.asked)
        return scorer.totals

    def _send_pings(self, cache: ProviderCache, following: RecordedRequest | None) -> int:
        """Keep the cache warm up to the next request, and return the number of pings. Nobody knows that a request is
        the last one. Without recorded times there are no pauses."""
        most, conversation = self.settings.keep_alive_pings, self.shared.conversation
        if not most or self.contender.policy is None or not conversation.times:
            return 0
        until = math.inf if following is None else conversation.times[following.position - 1]
        count, used_at = cache.send_pings(until, most)
        if count and self.state.sent_at is not None:
            self.state = replace(self.state, sent_at=used_at)
        return count

    def _make_point(self, position: int, prompt: Sequence[Message]) -> EditPoint:
        """The two prompts of a request. The managed one has the proxy's tools where they are offered by now."""
        request = self.shared.request if self.late else self.offered.request
        span = request.spans.get("tools")
        tools = request.body[span[0] : span[1]] if span is not None else None
        full = [message.raw for message in self.shared.messages[:position]]
        return EditPoint(position, full, [message.raw for message in prompt], self.shared.conversation.tools, tools)

    def _plan_request(
        self, position: int, now: float, totals: ReplayTotals
    ) -> tuple[Plan | None, list[Message] | None]:
        """Return (the plan, or None if there is none; the messages that are sent, or None for the history as it is)."""
        policy, shared = self.contender.policy, self.shared
        messages = shared.messages[:position]
        if self.contender.baseline:
            return None, [
                shared.read(raw) for raw in BASELINES[self.contender.baseline](messages, shared.token_counter)
            ]
        if policy is None or policy.mode != "rewrite":
            return None, None
        request = replace(shared.request if self.late else self.offered.request, messages=messages)
        try:
            plan = rewrite(
                request, self.state, policy, self.settings.model, now,
                RewriteInputs(shared.token_counter, keys=shared.keys[:position], times=shared.times[:position],
                offered_tools=self.offered.offered_names, tool_tokens=self.offered.tool_tokens if self.late else 0,
                conversation_lengths=shared.lengths),
            )  # fmt: skip
        except Exception as problem:  # noqa: BLE001  # as the server does: counted, and the history goes out as it is
            totals.failed += 1
            totals.why[f"{type(problem).__name__}: {problem}"[:120]] += 1
            return None, None
        if plan.refusal:
            totals.refused += 1
            totals.why[f"rule {plan.refusal}"] += 1
        return plan, None if plan.messages is None else [shared.read(raw) for raw in plan.messages]

    def _take_answer(self, plan: Plan, step: RecordedRequest, cached: int, now: float) -> int:
        """Move the session past an answer. Return the tokens of the STATE block at the end of the answer."""
        self.asked.update(ask.id for ask in plan.asks)
        session = self.state.after_sending(plan, now)
        message = self.shared.messages[step.position]
        state = None
        if self.settings.play_state and plan.asks_for_state and not message.calls:
            state = self.shared.keys[step.position], PLAYED_STATE
        answered_tip = (
            self.shared.keys[step.position - 1] if plan.asks_for_state and (state or message.text.strip()) else None
        )
        self.state = session.after_answer(
            predicted=plan.predicted, cached=cached, state=state, answered_tip=answered_tip
        )
        return self.shared.wire_counter.count_text("### STATE\n" + PLAYED_STATE) if state else 0
