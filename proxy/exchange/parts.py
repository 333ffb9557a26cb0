"""What an exchange works with: made once by the composition root, handed down, never reached for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

from proxy.chat.tokens import Weigh
from proxy.context.policy import Policy
from proxy.context.prices import Model
from proxy.exchange.asking import Asking
from proxy.exchange.bounds import Patience, Purse
from proxy.exchange.news import News
from proxy.exchange.reading import MessageCache
from proxy.exchange.tenant_faults import TenantFaults
from proxy.exchange.threads import Threads
from proxy.metrics import Metrics
from proxy.settings import Settings
from proxy.store.base import Store
from proxy.tools.sandbox import Sandbox
from proxy.upstream.client import Client

Headers = list[tuple[bytes, bytes]]

WORKERS = 2
"""Threads in which long requests are read and planned. More would not be faster, since Python runs one at a time, and
each has its turn before the event loop gets the next."""


@dataclass(frozen=True, slots=True)
class Incoming:
    """A request as it came. path: without the session's part. session: the one that the path names. tenant: the
    verified key's; None where no keys are configured, and the credential tells tenants apart. Keys of ours are not
    among the headers."""

    method: str
    path: str
    query: bytes
    headers: Headers
    body: bytes
    session: str | None
    tenant: str | None = None
    encoded: tuple[Headers, bytes] | None = None
    """Headers and body as they came, where the body was decoded."""
    unmanaged: str = ""
    """Why it goes on as it came without being looked at; "" where it is to be managed."""
    facts: dict[str, Any] = field(default_factory=dict)
    """What the request log says of it, filled in while it is answered."""


class Outgoing(Protocol):
    """The way back to the client."""

    async def start(self, status: int, headers: Headers) -> None:
        """Status and headers; once."""
        ...

    async def write(self, data: bytes) -> None:
        """More of the body. Waits while the client is slow."""
        ...

    async def end(self, data: bytes = b"") -> None:
        """The last of the body: only now does the answer look complete."""
        ...

    async def abort(self) -> None:
        """Close the connection, so that the answer does not look complete."""
        ...


@dataclass(frozen=True, slots=True)
class Waiting:
    """A thread that waits to be compressed ahead (see `ahead`), and the bytes of the request that it holds."""

    task: asyncio.Task[None]
    size: int


@dataclass(frozen=True, slots=True)
class Named:
    """A context window that an upstream has named, and when. ratio: tokens that the upstream counts for one of ours."""

    tokens: int
    seen_at: float
    ratio: float = 1.0


@dataclass(slots=True, eq=False)
class Parts:
    """Everything that one exchange needs beside the request."""

    settings: Settings
    store: Store
    client: Client
    metrics: Metrics
    threads: Threads
    messages: MessageCache
    models: tuple[Model, ...]
    policies: Mapping[str, Policy]
    weigh: Callable[[Model], Weigh]
    purse: Purse
    """What helpers may cost."""
    news: News
    """Where what happens is told."""
    asking: Asking | None = None
    """Questions to the helper model; None where there is none."""
    patience: Patience = field(default_factory=Patience)
    """Whether embeddings are worth asking for."""
    sandbox: Sandbox = field(default_factory=Sandbox)
    """Where SQL of models runs; one for all, since it bounds how many children there are."""
    workers: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(WORKERS, "plan"))
    """Where what takes long, and is pure Python, is done beside the event loop."""
    faults: TenantFaults = field(default_factory=TenantFaults)
    """Which tools' results the sessions of each tenant have fetched again."""
    now: Callable[[], float] = time.time
    limits: dict[tuple[str, str], Named] = field(default_factory=dict)
    """Context windows that upstreams have named, by upstream and model (`windows`)."""
    found: dict[str, Model] = field(default_factory=dict)
    """Entries of `models` by the names that clients use; the last 1,000."""
    warm: set[int] = field(default_factory=set)
    """Counters whose vocabulary has been read."""
    running: set[asyncio.Task[None]] = field(default_factory=set)
    """What is done beside requests and nobody waits for."""
    open: int = 0
    """Chat requests that are being answered."""
    ahead: dict[tuple[str, str, str], Waiting] = field(default_factory=dict)
    """Threads that are compressed ahead of their next request once something comes due; the oldest first."""
    edited: dict[tuple[str, tuple[str, ...]], None] = field(default_factory=dict)
    """(tenant, names of the client's tools) of conversations that came to edits, for `tools.offer`; the last 1,000."""
    told: set[str] = field(default_factory=set)
    """Warnings that the log has given once (`header_warnings`)."""
