"""One request on its way through the proxy."""

from __future__ import annotations

import hashlib
from asyncio import Future
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec.structs import force_setattr

from proxy.chat.message import PrefixCache, Request
from proxy.chat.tokens import TokenCounter
from proxy.context.models import Model
from proxy.context.plan import Plan
from proxy.context.policy import Policy
from proxy.dialects.base import NO_MARKS, Binding, BindingTrace, ClientMarks, WireRequest
from proxy.dialects.usage import Usage
from proxy.exchange.dialect import COMPLETIONS, Dialect, is_bound, repair_cut_answers, shows_reasoning
from proxy.exchange.services import MAX_MODEL_CHARS, ModelKey
from proxy.exchange.wire_messages import find_sources, list_uncleared
from proxy.sessions import tool_offer as offers
from proxy.sessions.hidden_rounds import HiddenRound, SplicedRequest
from proxy.sessions.locate import Located
from proxy.sessions.provider_chains import Chain
from proxy.sessions.tool_offer import ToolOffer
from proxy.store.base import OutcomeRow, Row

UNPLANNED = Plan(None, (), {}, (), (), (), (), (), (), 0, 0, 0, asks_for_state=False)
"""The plan of a turn that has not been planned yet."""

ORIGINAL_FALLBACKS = ("upstream_reject", "rounds")
"""Fallbacks in which the client's own bytes go out, whatever was planned."""


class Enriched(msgspec.Struct, frozen=True, eq=False):
    """The lookups that a plan uses in addition to the request."""

    policy: Policy
    spliced: SplicedRequest
    """The request that is planned: with its hidden rounds and our tools, or the client's own where it has neither."""
    tool_offer: ToolOffer = offers.NO_TOOLS
    """The tools of the proxy that are in `spliced`."""
    first_edit_offer: ToolOffer | None = None
    """The tools that are offered with the branch's first edit, until there is one."""
    arm: str = ""
    """The arm of the experiment that the session is in (`holdout`)."""
    relevance: Mapping[bytes, float] = msgspec.field(default_factory=dict)
    """Nearness of messages to the task, by form, as `RewriteInputs.relevance`."""
    cached_without_proxy: int = 0
    """Tokens of the client's own prompt that the provider's cache would hold without the proxy (`cost`)."""
    is_kept_warm: bool = False
    """True if the provider's cache holds the last prompt because of pings alone (`cache_keep_alive`)."""


class Prompt(msgspec.Struct, frozen=True, eq=False):
    """The prompt that goes upstream."""

    plan: Plan = UNPLANNED
    chat_body: bytes = b""
    """The request that is sent, as chat completions."""
    outgoing: bytes = b""
    """The bytes for upstream: `chat_body`, in the wire format that the client speaks."""
    unmarked: bytes = b""
    """`outgoing` without the cache breakpoints that the proxy has added; empty if it has added none."""
    usage_added: bool = False
    """True if the proxy asked upstream for usage."""
    fallback: str | None = None
    """Why the plan is not what goes out (`fallback`); None where it is."""
    observed: bool = False
    """True if the plan is only recorded."""
    left_out: int = 0
    """Pieces of reasoning that were left out of it because they are bound to another prompt."""
    is_simulated: bool = False
    """True if the request was planned in full and goes out without the plan (`observe`)."""
    is_original: bool = False
    """True if the client's own messages go out, whatever was planned. Set from the other values."""
    asks_for_state: bool = False
    """True if this prompt asks for a STATE block, and not the client itself. Set from the other values."""
    sent_tokens: int = 0
    """Tokens of the prompt that goes out, by our own count. Set from the other values."""
    over_budget: int = 0
    """Tokens by which this prompt is over its budget; 0 if not, or unknown. Set from the other values."""

    def __post_init__(self) -> None:
        plan = self.plan
        is_original = self.observed or self.fallback in ORIGINAL_FALLBACKS
        force_setattr(self, "is_original", is_original)
        force_setattr(self, "asks_for_state", plan.asks_for_state and not is_original)
        sent = plan.before if is_original else plan.after
        force_setattr(self, "sent_tokens", sent)
        force_setattr(self, "over_budget", max(0, sent - plan.limit) if plan.limit is not None else 0)


class AnswerRounds(msgspec.Struct, frozen=True, eq=False):
    """The rounds of one answer in which the model called tools of the proxy.

    A round is one request of the tool loop with its answer. The client gets the last round's answer, and the visible
    parts of those before it.
    """

    usage: tuple[Usage, ...] = ()
    """The usage of the rounds before the last one."""
    refusal: str = ""
    """Why a later round got no answer, with the provider's own words; "" if none was refused."""
    hidden: HiddenRound | None = None
    """The hidden round of the answer; its `key` is not known before the answer is."""
    bindings: Mapping[str, Binding] = {}
    """The prompts that the reasoning of the rounds is bound to, by its token, where there were several rounds."""


@dataclass(slots=True, eq=False)
class PendingRows:
    """Rows of a turn on their way to the store. All versions of a turn share them."""

    rows: list[Row] = field(default_factory=list)
    """The rows that are still to be given to the store."""
    write: Future[None] | None = None
    """Done when the rows that were last given to the store are there."""
    is_lost: bool = False
    """True if rows were given to the store and will not be there."""
    outcome: OutcomeRow | None = None
    """The row of the exchange's end, once there is one."""

    def take(self) -> list[Row]:
        """Return the rows; from now on others give them to the store."""
        taken, self.rows = self.rows, []
        return taken


def make_model_key(tenant: str, upstream: str, model: str) -> ModelKey:
    """The key of a model. A long name is represented by its hash."""
    if len(model) > MAX_MODEL_CHARS:
        model = "h-" + hashlib.blake2b(model.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return tenant, upstream, model


class Turn(msgspec.Struct, frozen=True, eq=False):
    """One request on its way: its branch, its lookups, its prompt, and the rounds of its answer.

    Each step returns a new turn; no step changes a value that an earlier step made. A request makes half a dozen, and
    a copy of a `Struct` costs a tenth of a dataclass's.
    """

    id: str
    """The name of the exchange; "" for a preview."""
    tenant: str
    located: Located
    request: Request
    """The client's request, as chat completions."""
    keys: Sequence[bytes]
    """The chain key of each of its messages."""
    model: Model
    upstream: str
    """The name of the upstream that answers."""
    strategy: str
    """The kind of provider that answers there (`upstreams.NAME.strategy`). The wire format is `dialect`."""
    token_counter: TokenCounter
    started_at: float
    """The time of the request, in seconds."""
    enriched: Enriched
    prompt: Prompt = msgspec.field(default_factory=Prompt)
    rounds: AnswerRounds = msgspec.field(default_factory=AnswerRounds)
    pending: PendingRows = msgspec.field(default_factory=PendingRows)
    prefix_cache: PrefixCache | None = None
    dialect: Dialect = COMPLETIONS
    wire_request: WireRequest | None = None
    """The request in the client's wire format; None for chat completions."""
    chain: Chain | None = None
    """The place in a chain of responses, as `Incoming.chain`."""
    client_marks: ClientMarks = NO_MARKS
    """The client's own cache breakpoints."""
    log_fields: dict[str, Any] = msgspec.field(default_factory=dict)
    """Fields of the request log, as `Incoming.log_fields`."""
    warnings: tuple[str, ...] = ()
    """Faults of the x-context-* headers (`header_warnings`)."""
    traces: dict[int, tuple[bytes, BindingTrace]] = msgspec.field(default_factory=dict)
    """Bodies whose bindings were read, with them, by `id` (`exchange.prefix_bindings`), for all versions."""
    options: Mapping[str, str] = msgspec.field(default_factory=dict)
    """The request's x-context-* headers, as `RewriteInputs.options`."""

    def with_values(self, **values: Any) -> Turn:
        """The turn with other values."""
        return msgspec.structs.replace(self, **values)

    def with_lookups(self, **lookups: Any) -> Turn:
        """The turn with other values in `enriched`."""
        return self.with_values(enriched=msgspec.structs.replace(self.enriched, **lookups))

    def with_prompt(self, **values: Any) -> Turn:
        """The turn with other values in `prompt`."""
        return self.with_values(prompt=msgspec.structs.replace(self.prompt, **values))

    def with_rounds(self, **values: Any) -> Turn:
        """The turn with other values in `rounds`."""
        return self.with_values(rounds=msgspec.structs.replace(self.rounds, **values))

    def without_tools(self) -> Turn:
        """The turn with the client's own request: nothing is hidden in it, and none of our tools is offered."""
        return self.with_lookups(spliced=SplicedRequest(self.request, self.keys), tool_offer=offers.NO_TOOLS)

    @property
    def tip_key(self) -> bytes:
        """The chain key of the request's end."""
        return self.keys[-1]

    @property
    def model_key(self) -> ModelKey:
        """The key of what the upstream has said about the model."""
        return make_model_key(self.tenant, self.upstream, self.request.model)

    @property
    def is_preview(self) -> bool:
        """True if the turn is planned to be shown. It has no id, and nothing of it goes out."""
        return not self.id

    @property
    def original(self) -> bytes:
        """The client's own bytes."""
        return self.request.body if self.wire_request is None else self.wire_request.body

    @property
    def is_prompt_changed(self) -> bool:
        """True if the model gets another prompt than the client's own. Cache breakpoints are no part of a prompt."""
        return (self.prompt.unmarked or self.prompt.outgoing) != self.original

    @property
    def is_kept_by_provider(self) -> bool:
        """True if the provider stores the answer: a client may go on from it past what the proxy has added."""
        if self.chain is not None and self.chain.is_ours:
            return False
        return self.wire_request is not None and self.dialect.keeps_answer(self.wire_request)

    @property
    def is_bound(self) -> bool:
        """True if reasoning of the model is bound to the prompts that it was made after."""
        request = self.request if self.wire_request is None else self.wire_request
        if self.is_kept_by_provider or self.has_bound_answers:
            return True
        return self.dialect.reasoning.is_wanted(request) and not self.request.find_indices("unbound", shows_reasoning)

    @property
    def has_bound_answers(self) -> bool:
        """True if an answer in the request bears reasoning that is bound to its prompt."""
        return bool(self.request.find_indices("bound", is_bound))

    def write_body(self, added_messages: Sequence[bytes] = (), *, with_tools: bool = True) -> bytes:
        """The bytes for upstream, with more chat messages at the end. with_tools: our tools are in them. Raises
        ValueError for a change that the dialect does not allow."""
        if self.wire_request is None:
            return self.prompt.chat_body
        messages = [
            *find_sources(self.enriched.spliced, self.request, self.prompt.plan),
            *((None, raw) for raw in added_messages),
        ]
        kept: int | None = None
        clearing = self.dialect.clearing
        if clearing is not None:
            messages, kept = list_uncleared(self.enriched.spliced, self.prompt.plan, messages)
        body = self.wire_request.write(messages, tools=self.enriched.spliced.added_tools if with_tools else b"")
        return clearing.ask(body, kept) if clearing is not None and kept is not None else body

    def repair_answers(self, body: bytes) -> bytes:
        """A body of this turn in which the client's answers can be sent again, although parts were withheld from it."""
        if self.enriched.policy.mode != "rewrite" or (self.wire_request is not None and not self.wire_request.is_cut):
            return body
        if self.wire_request is None and not self.prompt.fallback and body is self.prompt.outgoing:
            return body  # of a plan, with the hidden rounds in it
        mark = self.dialect.withheld_mark
        rounds = self.located.branch.live_session.hidden_rounds.values() if mark else ()
        if mark and not any(mark in raw for found in rounds for one in found for raw in one.replaces):
            return body
        return repair_cut_answers(self.dialect, body)
