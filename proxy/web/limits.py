"""Limits that keep one client from taking all: heads, concurrent requests, memory for bodies, and connections.

The fast HTTP parser accepts header blocks of megabytes and any number of Hosts (measured: 5 MB, 100,000 headers, two
Hosts). The proxy must therefore refuse them (`limit_heads`). No code here or behind it decides on a URL built from the
Host header: only `scope["path"]` gives the route of a request.

A request beyond `ConcurrencyLimit` or `BodyBudget` gets 503 with Retry-After immediately. The server closes or refuses
connections by `HalfOpenConnections` and `ConnectionLimit`, which count them by the address that they came from.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final, Protocol, Self, TypeVar

from proxy.errors import BadRequest, HeadersTooLarge, Unavailable
from proxy.metrics import Metrics
from proxy.settings.load import Settings
from proxy.web.asgi import App, Receive, Scope, Send

T = TypeVar("T")

LINE_OVERHEAD: Final = 4
"""Bytes of a header line in addition to its name and value: colon, space, CR, LF."""

_HOST: Final = re.compile(rb"(?:[A-Za-z0-9._~-]+|\[[0-9A-Fa-f:.%A-Za-z0-9]+\])(?::[0-9]{0,5})?")

MAX_LENGTH_DIGITS: Final = 19
"""Digits of a Content-Length. Thousands of zeros in front make no other length, but Python reads 4,300 digits."""
SLOW_S: Final = 5.0
"""Seconds after which an incomplete body is dropped if others need the room."""

SHARE_THRESHOLD: Final = 7 / 8
"""Fraction of all places above which the share of an address or of a tenant counts."""
PROBE_PLACES: Final = 16
"""Places beyond the limit, for probes."""
PROBE_PATHS: Final = frozenset({"/healthz", "/readyz"})
"""Paths that are answered at once, without a key and without a body."""
MAX_PIPELINED_BYTES: Final = 16 << 20
"""Bytes of bodies that may wait after the requests that are being answered, on all connections together."""

GRACE_S: Final = 0.5
"""Seconds in which no connection is closed for its address's share: clients may come in a burst."""
MAX_EVICTIONS: Final = 64
"""Connections that are closed for one new connection, at most."""


def limit_heads(app: App, settings: Settings) -> App:
    """Refuse a bad request before `app` sees it. Raises HeadersTooLarge and BadRequest for `answer_errors`."""
    limit = settings.limits.header_kb * 1024

    async def limit_requests(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            check_head(scope, limit)
        await app(scope, receive, send)

    return limit_requests


def check_head(scope: Scope, limit: int) -> None:
    """Raises HeadersTooLarge if request line and headers exceed `limit` bytes, BadRequest for a wrong Host and for a
    Content-Length of too many digits."""
    size = len(scope.get("raw_path") or scope["path"]) + len(scope["query_string"])
    hosts = []
    for name, value in scope["headers"]:
        size += len(name) + len(value) + LINE_OVERHEAD
        if name == b"host":
            hosts.append(value)
        elif name == b"content-length" and len(value) > MAX_LENGTH_DIGITS:
            raise BadRequest("the request's Content-Length is too long")
    if size > limit:
        raise HeadersTooLarge(
            f"the request's head is {size} bytes long; {limit} are allowed", hint="See limits.header_kb."
        )
    if len(hosts) > 1:
        raise BadRequest("the request has more than one Host header")
    if not hosts and scope.get("http_version") != "1.0":  # RFC 9112 3.2; HTTP/1.0 had none
        raise BadRequest("the request has no Host header")
    if hosts and not _HOST.fullmatch(hosts[0]):
        raise BadRequest("the request's Host header is not a host")


def _refuse(metrics: Metrics, message: str) -> Unavailable:
    metrics.refused_requests_total.inc()
    return Unavailable(message, hint="Try again in a moment.")


class ConcurrencyLimit:
    """A limit of `most` concurrent requests, each in a `with` block. An excess one gets 503 with Retry-After at once.

    More requests than the proxy can serve make all of them slow. A client that gets 503 with Retry-After tries again by
    itself. Once nearly all places are taken, a tenant that holds half of them gets no more, if there are several. So
    slow requests of one tenant leave places to others. The proxy's own pages are not counted: an operator gets in when
    the proxy is full.
    """

    __slots__ = ("_by_tenant", "_metrics", "_most", "_several", "broken_off", "taken")

    def __init__(self, most: int, metrics: Metrics, *, several: bool = False) -> None:
        """several: True if requests may be of several tenants."""
        self.taken = 0
        self.broken_off = 0
        """Requests that the server cancelled, because it stops and no longer waits."""
        self._most = most
        self._metrics = metrics
        self._several = several
        self._by_tenant: Counter[str] = Counter()

    @contextmanager
    def place(self, tenant: str = "") -> Iterator[None]:
        """Hold a place for the time of a request. Raises Unavailable if there is none."""
        if self.taken >= self._most:
            raise _refuse(self._metrics, f"{self._most} requests are being worked on")
        is_nearly_full = self._several and self.taken >= SHARE_THRESHOLD * self._most
        if is_nearly_full and self._by_tenant[tenant] >= self._most / 2:
            raise _refuse(self._metrics, "this tenant has half of all requests that may be worked on")
        self.taken += 1
        self._by_tenant[tenant] += 1
        try:
            yield
        except asyncio.CancelledError:
            self.broken_off += 1
            raise
        finally:
            self.taken -= 1
            self._by_tenant[tenant] -= 1
            if not self._by_tenant[tenant]:
                del self._by_tenant[tenant]


class BodyBudget:
    """Budget of memory for the bodies that requests hold: a body beyond it gets 503 with Retry-After.

    A body is counted by its received bytes, not by its declared length. So a client that only declares a length takes
    nothing from others. Two rules keep one client from holding the whole budget. A tenant gets half, if there are
    several. If there is no room, the body that has been arriving for longest is dropped, because a normal client sends
    its body at once. most: bytes for all bodies together. several: True if the bodies may be of several tenants."""

    __slots__ = ("_by_tenant", "_coming", "_metrics", "_most", "_several", "held")

    def __init__(self, most: int, metrics: Metrics, *, several: bool = False) -> None:
        self.held = 0
        self._by_tenant: Counter[str] = Counter()
        self._several = several
        self._most = most
        self._metrics = metrics
        self._coming: dict[BodyShare, float] = {}
        """Bodies that are being read, with the start time of each, the oldest first."""

    def share(self, tenant: str = "") -> BodyShare:
        """Return the share of one request, which is free at the end of its `with` block."""
        return BodyShare(self, tenant)

    def reserve(self, size: int, share: BodyShare) -> None:
        """Reserve `size` more bytes for a body. Raises Unavailable if there is no room. A body that is alone here is
        accepted at any length: another limit bounds it."""
        own, of_tenant = share.size, self._by_tenant[share.tenant]
        if self._several and of_tenant > own and of_tenant + size > self._most // 2:
            raise _refuse(self._metrics, "the bodies of this tenant take half of the memory")
        while self.held > own and self.held + size > self._most:
            if not self._make_room(share):
                raise _refuse(self._metrics, "the bodies of other requests take all the memory there is")
        self.held += size
        self._by_tenant[share.tenant] += size
        share.size += size

    def release(self, share: BodyShare, size: int | None = None) -> None:
        """Free `size` bytes of a share; None: all that it holds. It may be called again."""
        freed = share.size if size is None else size
        self.held -= freed
        self._by_tenant[share.tenant] -= freed
        if not self._by_tenant[share.tenant]:
            del self._by_tenant[share.tenant]
        share.size -= freed

    def begin_reading(self, share: BodyShare) -> None:
        """Record that the body of this share is being read."""
        self._coming[share] = asyncio.get_running_loop().time()

    def end_reading(self, share: BodyShare) -> None:
        """Record that the body of this share is read, or never will be."""
        self._coming.pop(share, None)

    def _make_room(self, wanted_by: BodyShare) -> bool:
        """Drop the body that has been arriving for longest; return False if none is slow."""
        slow = asyncio.get_running_loop().time() - SLOW_S
        for share, since in self._coming.items():
            if since > slow:
                return False
            if share.size and share is not wanted_by:
                self._metrics.refused_requests_total.inc()
                self.end_reading(share)
                self.release(share)
                share.give_way()
                return True
        return False


BODY_SHARE_KEY: Final = "context.body_share"
"""Key of the scope for the share of a request to the admin API."""


class BodyShare:
    """The part of the budget that one request holds."""

    __slots__ = ("_budget", "_gave_way", "_reading", "size", "tenant")

    def __init__(self, budget: BodyBudget, tenant: str) -> None:
        self.size = 0
        self.tenant = tenant
        self._budget = budget
        self._reading: asyncio.Task[Any] | None = None
        self._gave_way = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._budget.release(self)

    def reserve(self, size: int) -> None:
        """Reserve `size` more bytes, which have arrived. Raises Unavailable."""
        self._budget.reserve(size, self)

    def free(self, size: int | None = None) -> None:
        """Free `size` bytes; None: all of them."""
        self._budget.release(self, size)

    def give_way(self) -> None:
        """End the reading, because others need the room."""
        self._gave_way = True
        if self._reading is not None:
            self._reading.cancel()

    async def give_way_during(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of `work`, which reads or sends a body and calls `reserve`. Raises any error of `work`, and
        Unavailable if the body is dropped."""
        task = self._reading = asyncio.current_task()
        self._budget.begin_reading(self)
        try:
            return await work
        except asyncio.CancelledError as error:
            if task is None or not self._gave_way:
                raise  # the server cancels this request (shutdown)
            task.uncancel()
            raise Unavailable("the body came slowly, and others need its room", hint="Try again.") from error
        finally:
            self._reading = None
            self._budget.end_reading(self)


class ConnectionLimit:
    """Counts of connections that have sent a request, by the address that they came from.

    There are `most` places in all, and `share` of them for one address once nearly all are taken. While there is room,
    no connection is refused. One client therefore cannot keep all others out. Probes have a few reserved places: an
    orchestrator ends a process whose /healthz does not answer.
    """

    __slots__ = ("_by_address", "_most", "_share", "pipelined", "taken")

    def __init__(self, most: int, share: float) -> None:
        self._most = most
        self._share = max(1, int(most * share))
        self._by_address: Counter[str] = Counter()
        self.taken = 0
        self.pipelined = 0
        """Bytes of bodies that wait."""

    def has_room(self, address: str) -> bool:
        """True if there is a place for one more connection of this address. "" is no address."""
        if self.taken >= self._most:
            return False
        return not address or self.taken < SHARE_THRESHOLD * self._most or self._by_address[address] < self._share

    def has_room_for_probe(self) -> bool:
        """True if there is a place for a probe, whose connection ends with its answer."""
        return self.taken < self._most + PROBE_PLACES

    def add(self, address: str) -> None:
        """Count one more connection that has sent a request."""
        self.taken += 1
        self._by_address[address] += 1

    def remove(self, address: str) -> None:
        """Uncount a connection: it is closed, or must bring another request's head."""
        self.taken -= 1
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]


class EvictableConnection(Protocol):
    """Interface of a connection that `HalfOpenConnections` may close."""

    def evict(self) -> None:
        """Close the connection at once."""


class HalfOpenConnections:
    """Half-open connections, by address: connections that have not sent the head of a first or next request.

    One address may hold `most` of them. If an address exceeds that, or the server exceeds its total, the oldest
    connection is closed. A normal client sends its head at once, so the connection that has been silent for longest has
    the least use.
    """

    __slots__ = ("_by_address", "_count", "_most")

    def __init__(self, most: int) -> None:
        """Start empty. most: connections of one address."""
        self._most = most
        self._count = 0
        self._by_address: dict[str, dict[EvictableConnection, float]] = {}

    def __len__(self) -> int:
        return self._count

    def add(self, address: str, connection: EvictableConnection, now: float) -> None:
        """Add a connection that has sent no head yet. The address's oldest ones are closed if it has too many."""
        held = self._by_address.setdefault(address, {})
        if connection not in held:
            held[connection] = now
            self._count += 1
        for _ in range(MAX_EVICTIONS):
            oldest = next(iter(held))
            if len(held) <= self._most or now - held[oldest] < GRACE_S:
                break
            self._evict(address, oldest)

    def remove(self, address: str, connection: EvictableConnection) -> None:
        """Remove a connection that has sent a head, or is closed. It may be called again."""
        held = self._by_address.get(address)
        if held is not None and held.pop(connection, None) is not None:
            self._count -= 1
            if not held:
                del self._by_address[address]

    def make_room(self) -> bool:
        """Close the oldest connection of the address that has most; return False if there is none."""
        if not self._by_address:
            return False
        address = max(self._by_address, key=lambda each: len(self._by_address[each]))
        self._evict(address, next(iter(self._by_address[address])))
        return True

    def _evict(self, address: str, connection: EvictableConnection) -> None:
        self.remove(address, connection)
        connection.evict()


def find_client_address(client: tuple[str, int] | None) -> str:
    """Return the address whose share a connection counts for. It is an IPv4 address, or the network of an IPv6 address,
    because one host has 2^64 IPv6 addresses. A Unix socket has none."""
    host = client[0] if client else ""
    if ":" not in host:
        return host
    if "." in host:
        return host.rpartition(":")[2]  # IPv4 within IPv6
    return ":".join(host.partition("%")[0].partition("::")[0].split(":")[:4])
