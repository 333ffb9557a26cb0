"""Services that an exchange works with: made once by the composition root and passed down, never looked up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import msgspec

from proxy.chat.tokens import TokenCounter
from proxy.context.models import Model
from proxy.context.policy import Policy
from proxy.events.bus import EventBus
from proxy.exchange.message_cache import MessageCache
from proxy.helper.budget import Budget, HelperCircuitBreaker
from proxy.helper.queue import HelperQueue
from proxy.metrics import Metrics
from proxy.sessions.agent_statistics import KnownAgents
from proxy.sessions.live import LiveSessions
from proxy.sessions.provider_chains import Chain, HistoryMemory, ItemMemory
from proxy.settings.load import Settings
from proxy.store.reads import Store
from proxy.stream.aws_event_stream import EventFrames
from proxy.tools.sandbox import Sandbox, TenantSlots
from proxy.tools.tool_context import make_read_slots
from proxy.upstream.client import UpstreamClient

Headers = list[tuple[bytes, bytes]]
ModelKey = tuple[str, str, str]
"""(tenant, upstream, model); see `turn.make_model_key`."""
MAX_MODEL_CHARS = 256
"""Characters of a model's name that are remembered. Clients choose the names, which may have megabytes."""

WORKERS = 2
"""Worker threads in which long requests are read and planned. More threads would not be faster, since Python runs one
at a time. Each of them runs before the event loop gets its next turn."""
PREPARED_AT_ONCE = 8
"""Requests that are prepared at once (`exchange.prepare_request`)."""
LARGE_BODY_BYTES = 256 * 1024
"""Bytes of a body from which it is read in a worker thread: the loop must not be held for 20 ms."""
ERROR_BODY_BYTES = 1 << 20
"""Bytes of an upstream's error that are read, so that the error can still be passed on."""
TURN_BYTES = 16 * 1024
"""Bytes of a stream that are read before other requests get their turn. An event may have only two bytes, and takes 1
to 5 us. A stream of 60 MB that came as one body held all requests for 80 s. Usual reads are shorter."""


class Incoming(msgspec.Struct, frozen=True):
    """A request as received."""

    method: str
    path: str
    """The path without the part that names a session."""
    query: bytes
    headers: Headers
    """The client's headers without the proxy's own keys."""
    body: bytes
    session: str | None
    """The session that the path names."""
    tenant: str | None = None
    """The tenant of the verified key. None if no keys are configured: the credential then tells tenants apart."""
    encoded: tuple[Headers, bytes] | None = None
    """Headers and body as received, where the body was decoded."""
    unmanaged_reason: str = ""
    """Reason for which the request is passed on as received, unread; "" where it is to be managed."""
    log_fields: dict[str, Any] = {}
    """Fields of the request log, filled in while the request is answered."""
    dialect: str = "completions"
    """The name of the wire format that the client speaks (`exchange.dialect`)."""
    chain: Chain | None = None
    """The place in a chain of responses, where the provider stores what the client may name later (`chains`)."""
    frames: EventFrames | None = None
    """The frames of the answer, where the client reads an AWS event stream (`bedrock_stream`)."""


class ResponseWriter(Protocol):
    """The way back to the client."""

    async def start(self, status: int, headers: Headers) -> None:
        """Send status and headers; once."""
        ...

    async def write(self, data: bytes) -> None:
        """Send more of the body. Waits while the client is slow."""
        ...

    async def end(self, data: bytes = b"") -> None:
        """Send the last of the body: only now does the answer look complete."""
        ...

    async def abort(self) -> None:
        """Close the connection, so that the answer does not look complete."""
        ...

    async def respond(self, status: int, headers: Headers, body: bytes) -> None:
        """Send a whole answer."""
        await self.start(status, headers)
        await self.end(body)


@dataclass(frozen=True, slots=True)
class WaitingTask:
    """A task that waits while a branch is idle, and the bytes that it holds: a compression, or pings."""

    task: asyncio.Task[None]
    size: int


@dataclass(slots=True, eq=False)
class CachePings:
    """Pings that keep a provider's prompt cache warm (`exchange.cache_keep_alive`)."""

    waiting: dict[tuple[str, str, str], WaitingTask] = field(default_factory=dict)
    """By branch, the oldest first."""
    sending: set[tuple[str, str]] = field(default_factory=set)
    """Sessions with a ping under way."""
    stopped: dict[tuple[str, str], None] = field(default_factory=dict)
    """Sessions that get no more pings; the last 1,000."""
    answering: set[ModelKey] = field(default_factory=set)
    """(tenant, upstream, model) of those that wrote an answer to a ping, which is as dear as any other answer."""
    is_closed: bool = False
    """True once the process is to stop."""

    def end(self, names: Iterable[tuple[str, str, str]]) -> None:
        """End the pings of these branches."""
        for name in list(names):
            if (found := self.waiting.pop(name, None)) is not None:
                found.task.cancel()

    def end_session(self, tenant: str, session: str) -> None:
        """End the pings of all branches of a session."""
        self.end([name for name in self.waiting if name[:2] == (tenant, session)])

    def close(self) -> None:
        """End all pings. None begins any more."""
        self.is_closed = True
        self.end(self.waiting)


@dataclass(frozen=True, slots=True)
class LearnedWindow:
    """A context window that an upstream has named, and when. ratio: its tokens for one of the proxy."""

    tokens: int
    seen_at: float
    ratio: float = 1.0


class CommandRunner(Protocol):
    """Runs an in-band command on a session. Returns the reply to it."""

    async def __call__(
        self,
        services: Services,
        tenant: str,
        session: str,
        line: str,
        *,
        branch: str | None = None,
        is_shared: bool = False,
    ) -> str: ...


@dataclass(slots=True, eq=False)
class Services:
    """Everything that one exchange needs in addition to the request."""

    settings: Settings
    store: Store
    client: UpstreamClient
    metrics: Metrics
    live_sessions: LiveSessions
    message_cache: MessageCache
    models: tuple[Model, ...]
    policies: Mapping[str, Policy]
    find_token_counter: Callable[[Model], TokenCounter]
    helper_budget: Budget
    """The budget in dollars of the helpers."""
    event_bus: EventBus
    """The bus on which events are published."""
    run_command: CommandRunner
    """Runs an in-band command of an operator; the composition root sets it, since operator actions stand above."""
    helper_queue: HelperQueue | None = None
    """Questions to the helper model; None where there is none."""
    embeddings_breaker: HelperCircuitBreaker = field(default_factory=HelperCircuitBreaker)
    """Circuit breaker of the embeddings."""
    sandbox: Sandbox = field(default_factory=Sandbox)
    """Sandbox for SQL of models; one for all, since it bounds the number of child processes."""
    read_slots: TenantSlots = field(default_factory=make_read_slots)
    """Places for reads of many stored messages; one set for all, since it bounds their memory."""
    workers: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(WORKERS, "plan"))
    """Worker threads for long work in pure Python, beside the event loop. Tokens are counted in them too."""
    preparing: asyncio.Semaphore = field(default_factory=partial(asyncio.Semaphore, PREPARED_AT_ONCE))
    """Places for requests that are prepared; others wait for their turn."""
    preparing_large: asyncio.Semaphore = field(default_factory=partial(asyncio.Semaphore, PREPARED_AT_ONCE))
    """The same for requests with `LARGE_BODY_BYTES`."""
    known_agents: KnownAgents = field(default_factory=KnownAgents)
    """Each agent's page faults and the lengths of its conversations."""
    now: Callable[[], float] = time.time
    learned_windows: dict[ModelKey, LearnedWindow] = field(default_factory=dict)
    """Context windows that upstreams have named, by tenant, upstream and model (`exchange.learned_windows`)."""
    models_by_name: dict[str, Model] = field(default_factory=dict)
    """Entries of `models` by the names that clients use; at most 1,000."""
    breakpoint_support: dict[ModelKey, bool] = field(default_factory=dict)
    """True if the upstream took a prompt with cache breakpoints of the proxy, False if it refused one."""
    usage_refused: set[ModelKey] = field(default_factory=set)
    """(tenant, upstream, model) of those that refused to be asked for the usage of a stream."""
    clearing_refused: set[ModelKey] = field(default_factory=set)
    """(tenant, upstream, model) of those that refused to clear tool results."""
    encrypted_refused: set[ModelKey] = field(default_factory=set)
    """(tenant, upstream, model) of those that refused to encrypt reasoning."""
    warm_counters: set[int] = field(default_factory=set)
    """Ids of the counters whose vocabulary has been read."""
    background_tasks: set[asyncio.Task[None]] = field(default_factory=set)
    """Background tasks without a waiting caller."""
    open_requests: int = 0
    """Chat requests that are being answered."""
    idle_compressions: dict[tuple[str, str, str], WaitingTask] = field(default_factory=dict)
    """Branches that wait to be compressed ahead of their next request; the oldest first."""
    cache_pings: CachePings = field(default_factory=CachePings)
    """Branches whose cache is kept warm."""
    conversations_with_edits: dict[tuple[str, int], None] = field(default_factory=dict)
    """(tenant, hash of the names of the client's tools) of conversations that have had edits, for
    `sessions.tool_offer`; the last 1,000."""
    histories: HistoryMemory = field(default_factory=HistoryMemory)
    """Histories that a request may name (`chains`)."""
    items: ItemMemory = field(default_factory=ItemMemory)
    """Items that a request may refer to (`item_references`)."""
    logged_warnings: set[str] = field(default_factory=set)
    """Warnings that the log has already given (`header_warnings`)."""

    def forget_session(self, tenant: str, session: str) -> None:
        """Forget a session whose rows were removed: its next request stores it whole."""
        self.histories.remove_session(tenant, session)
        self.items.remove_session(tenant, session)
        self.cache_pings.end_session(tenant, session)
        live_session = self.live_sessions.find_session(tenant, session)
        if live_session is not None:
            self.live_sessions.forget_session(live_session)
