"""One request on its way through the proxy."""

from __future__ import annotations

import re
from asyncio import Future
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from proxy.chat import group
from proxy.chat.group import Group
from proxy.chat.message import Message, PrefixCache, Request
from proxy.chat.tokens import TokenCounter
from proxy.context.models import Model
from proxy.context.plan import Plan
from proxy.context.policy import Policy
from proxy.dialects.base import WireRequest
from proxy.dialects.usage import Usage
from proxy.exchange.dialect import COMPLETIONS, Dialect, find_sources, is_bound
from proxy.sessions import tool_offer as offers
from proxy.sessions.hidden_rounds import HiddenRound, SplicedRequest
from proxy.sessions.locate import Located
from proxy.sessions.tool_offer import ToolOffer
from proxy.store.base import Row

UNPLANNED = Plan(None, (), {}, (), (), (), (), (), (), 0, 0, 0, asks_for_state=False)
"""The plan of a turn that has not been planned yet."""

ORIGINAL_FALLBACKS = ("upstream_reject", "rounds")
"""Fallbacks in which the client's own bytes go out, whatever was planned."""


@dataclass(slots=True, eq=False)
class Turn:
    """One request on its way: its session, its plan, and the bytes that were sent.

    fallback: why the original went out. usage_added: the proxy asked upstream for usage. sent_body: the request that
    was sent, as chat completions.
    observed: the plan was only recorded. rows: the rows that are still to be stored.
    """

    id: str
    tenant: str
    located: Located
    request: Request
    keys: Sequence[bytes]
    policy: Policy
    model: Model
    upstream: str
    strategy: str
    weigh: TokenCounter
    started_at: float
    prefix_cache: PrefixCache | None = None
    plan: Plan = UNPLANNED
    sent_body: bytes = b""
    outgoing: bytes = b""
    """The bytes for upstream: `sent_body`, in the wire format that the client speaks."""
    dialect: Dialect = COMPLETIONS
    wire: WireRequest | None = None
    """The request in the client's wire format; None for chat completions."""
    usage_added: bool = False
    fallback: str | None = None
    observed: bool = False
    is_simulated: bool = False
    """True if the request was planned in full and went out without the plan (`observe`)."""
    rows: list[Row] = field(default_factory=list)
    relevance: Mapping[bytes, float] = field(default_factory=dict)
    """Nearness of messages to the task, by form, as `View.relevance`."""
    log_fields: dict[str, Any] = field(default_factory=dict)
    """Fields of the request log, as `Incoming.log_fields`."""
    warnings: tuple[str, ...] = ()
    """Faults of the x-context-* headers (`header_warnings`)."""
    options: Mapping[str, str] = field(default_factory=dict)
    """The request's x-context-* headers, as `View.options`."""
    cached_without_proxy: int = 0
    """Tokens of the client's own prompt that the provider's cache would hold without the proxy (`money`)."""

    spliced: SplicedRequest = field(init=False)
    """The request as upstream should see it, which is planned: the client's own where nothing is hidden."""
    tool_offer: ToolOffer = offers.NO_TOOLS
    """The tools of ours that are in the bytes that are sent."""
    pending_tool_offer: ToolOffer | None = None
    """The tools that are added with the thread's first edit, until there is one."""
    earlier_usage: list[Usage] = field(default_factory=list)
    """The usage of the rounds before the last one."""
    hidden_round: HiddenRound | None = None
    """The hidden round behind the answer; its `key` is not known before the answer is."""
    task_cache: tuple[re.Pattern[str] | None, tuple[int, Message] | None] | None = None
    """The task of the request, and the pattern with which it was found (`lookups.find_task`)."""
    chain_length: int = 0
    """Number of the request's messages beside system messages."""
    groups: Sequence[Group] | None = None
    """The groups of the request's messages, once one of them was asked for."""
    pending_write: Future[None] | None = None
    """Done when the rows that were last given to the store are there."""
    has_lost_rows: bool = False
    """True if rows of the turn were given to the store and will not be there."""

    def __post_init__(self) -> None:
        self.spliced = SplicedRequest(self.request, self.keys)

    @property
    def sent_tokens(self) -> int:
        """Tokens of the prompt that went out, by our own count."""
        as_it_came = self.observed or self.plan.messages is None or self.fallback in ORIGINAL_FALLBACKS
        return self.plan.before if as_it_came else self.plan.after

    @property
    def original(self) -> bytes:
        """The client's own bytes."""
        return self.request.body if self.wire is None else self.wire.body

    @property
    def is_bound(self) -> bool:
        """True if reasoning of the model is bound to the prompts that it was made behind."""
        if self.wire is not None and self.dialect.is_thinking(self.wire):
            return True
        return bool(self.request.find_indices("bound", is_bound))

    @property
    def over_budget(self) -> int:
        """Tokens by which the prompt that went out is over its budget; 0 where it is not, or no budget is known."""
        return max(0, self.sent_tokens - self.plan.limit) if self.plan.limit is not None else 0

    @property
    def tip_key(self) -> bytes:
        """The chain key of the request's end."""
        return self.keys[-1]

    def write_wire(self, more: Sequence[bytes] = (), *, with_tools: bool = True) -> bytes:
        """The bytes for upstream, with more chat messages at the end. with_tools: our tools are in them. Raises
        ValueError for a change that the dialect does not allow."""
        if self.wire is None:
            return self.sent_body
        messages = [*find_sources(self.spliced, self.request, self.plan), *((None, raw) for raw in more)]
        return self.wire.write(messages, tools=self.spliced.added_tools if with_tools else b"")

    def find_group_id(self, n: int) -> str:
        """The id of the group that the request's n-th message belongs to. Groups that an earlier request of the same
        history has found for its prefix are reused."""
        if self.groups is None:
            self.groups = group.split_request_groups(self.request, self.keys, self.policy.observation)
        found = self.groups
        return found[bisect_right(found, n, key=attrgetter("start")) - 1].id
