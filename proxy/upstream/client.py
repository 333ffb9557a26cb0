"""Asks an upstream: bytes in, bytes out, no second try but to connect.

With an engine of its own (connection.py, pool.py), since redirects, cookies, authentication, environment proxies and
URL normalising are what a proxy must not do, and since the general ones cost several times as much: 225 us of
processor time a request with httpx2, 168 with its httpcore2 on sockets of ours, 26 with this.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable
from fnmatch import fnmatchcase
from typing import Final

from proxy.errors import BadRequest, ProxyError, UpstreamBroken, UpstreamError, UpstreamTimeout, UpstreamUnreachable
from proxy.metrics import Metrics
from proxy.settings import DEMO, Settings
from proxy.upstream.connection import Connection, Lost, Slow, Trip
from proxy.upstream.demo import Demo
from proxy.upstream.framing import Malformed, Unsendable, write_head
from proxy.upstream.headers import Headers, first, outgoing
from proxy.upstream.network import Unconnected, Way
from proxy.upstream.pool import Full, Pool
from proxy.upstream.reply import Reply
from proxy.upstream.target import Target, read_targets

__all__ = ["Client", "Reply", "Target"]

log = logging.getLogger(__name__)

RETRY_AFTER_S: Final = 0.02
"""Before the one further try to connect; a refused connection is told within 100 ms."""

FAILING: Final = 500
TOO_MANY: Final = 429
"""Statuses from the one on, and the other, count as the upstream's failures; what else it refuses is the client's."""

_BODY_METHODS: Final = frozenset({"POST", "PUT", "PATCH"})


class _Line:
    """The way to one target, its connections, and how many requests are under way on them."""

    __slots__ = ("_limits", "address", "demo", "open", "pool", "target", "way")

    def __init__(self, target: Target, settings: Settings) -> None:
        self.target = target
        self.open = 0
        self.demo = Demo() if target.base_url == DEMO else None
        self.way = Way(target, settings.timeouts.connect_s)
        self.address = self.way.address
        self._limits = settings.pool
        self.pool = self._new_pool()

    def _new_pool(self) -> Pool:
        return Pool(self.way.connect, self._limits.connections, self._limits.keepalive)

    def released(self) -> None:
        self.open -= 1

    def renew(self) -> Pool:
        """A new pool in place of one whose connections have leaked; returns the old one, to be closed."""
        old, self.pool = self.pool, self._new_pool()
        return old


class Client:
    """All upstreams. Made once, inside the running loop or before it."""

    def __init__(self, settings: Settings, metrics: Metrics, targets: Iterable[Target] | None = None) -> None:
        """targets: others than the configured upstreams."""
        self._metrics = metrics
        self.idle_s = settings.timeouts.idle_s
        """How long one side may be silent; what streams to a client uses it for the client too."""
        self._total_s = settings.timeouts.total_s
        self._connect_s = settings.timeouts.connect_s
        self._connections = settings.pool.connections
        self.targets = tuple(read_targets(settings) if targets is None else targets)
        self._lines = {target.name: _Line(target, settings) for target in self.targets}

    def route(self, model: str | None) -> Target:
        """The first target with a pattern for this model; the first of all where there is none, or no model."""
        if model is not None:
            for target in self.targets:
                if any(fnmatchcase(model, pattern) for pattern in target.models):
                    return target
        return self.targets[0]

    async def send(
        self,
        target: Target,
        method: str,
        path: str,
        query: bytes,
        headers: Iterable[tuple[bytes, bytes]],
        body: bytes | AsyncIterator[bytes] | None,
        *,
        identity: bool = True,
        ours: Iterable[tuple[bytes, bytes]] = (),
    ) -> Reply:
        """Ask, and return once the head of the answer is there. ours: headers that we say ourselves, sent as they are.

        `path` as it came, percent-encoded. A body whose length is not known beforehand is sent in the length that
        the client's Content-Length names, else in chunks. Raises UpstreamUnreachable, UpstreamTimeout, UpstreamBroken,
        BadRequest for headers that cannot be sent, and what `body` raises.
        """
        line = self._lines[target.name]
        came = headers if isinstance(headers, list) else list(headers)
        length = _length(method, came, body)
        head = outgoing(
            came,
            host=line.address.host_header,
            key=target.key,
            length=length,
            chunked=length is None and body is not None,
            identity=identity or target.key is not None,  # or an error that repeats the key could not be read
        )
        head.extend(ours)
        where = line.address.request_target(path, query)
        line.open += 1
        try:
            if line.demo is not None:
                return await self._ask_demo(line, line.demo, method, where, body)
            reply = await self._ask(line, method, where, head, body, length)
        except BaseException as error:
            line.open -= 1
            if isinstance(error, UpstreamError):
                kind = error.code.removeprefix("upstream_")
                self._metrics.upstream_errors_total.labels(target.name, kind).inc()
                # The code alone: an error's text may quote what the upstream said.
                log.warning("upstream %s failed: %s", target.name, error.code)
            raise
        if reply.status >= FAILING or reply.status == TOO_MANY:
            status = self._metrics.label("upstream_status", reply.status)
            self._metrics.upstream_errors_total.labels(target.name, status).inc()
            if reply.status >= FAILING:
                log.warning("upstream %s answered %d", target.name, reply.status)
        return reply

    async def close(self) -> None:
        """Close every connection, those in use too."""
        for line in self._lines.values():
            line.pool.close()

    async def _ask(
        self,
        line: _Line,
        method: str,
        where: bytes,
        headers: Headers,
        body: bytes | AsyncIterator[bytes] | None,
        length: int | None,
    ) -> Reply:
        name = line.target.name
        deadline = asyncio.get_running_loop().time() + self._total_s
        trip: Trip | None = None
        try:
            head = write_head(method, line.way.before + where, [*headers, *line.way.headers])
            connection = line.pool.ready() or await self._connected(line, deadline)
            trip = connection.begin(method, head, body if isinstance(body, bytes) else None, self.idle_s, deadline)
            if body is not None and not isinstance(body, bytes):
                await trip.upload(body, length)
            await trip.head()
            if trip.status < 200 or trip.status > 599:
                trip.keeps = False
                raise Malformed(f"status {trip.status} cannot be passed on")
        except BaseException as error:
            if trip is not None:
                trip.close()
            if isinstance(error, (Lost, Malformed, Slow, Unconnected, Unsendable)):
                raise self._told(name, error) from error
            raise
        return Reply(line.target, self._metrics, trip.status, trip.headers, trip, line.released)

    def _told(self, name: str, error: Exception) -> ProxyError:
        """Why there is no answer, as others know it."""
        if isinstance(error, Slow):
            return UpstreamTimeout(f"upstream {name!r} did not begin to answer: {error}")
        if isinstance(error, Malformed):
            return UpstreamBroken(f"upstream {name!r} answered with something that cannot be passed on: {error}")
        if isinstance(error, Unsendable):
            return BadRequest(f"the request cannot be passed on: {error}")
        if isinstance(error, Unconnected):
            return UpstreamUnreachable(f"upstream {name!r} cannot be reached: {error}")
        return UpstreamUnreachable(f"upstream {name!r} closed the connection without an answer: {error}")

    async def _connected(self, line: _Line, deadline: float) -> Connection:
        """A connection, from others or new. Raises Slow, Unconnected and, where all are in use, UpstreamTimeout."""
        loop = asyncio.get_running_loop()
        limit = asyncio.timeout_at(min(deadline, loop.time() + self.idle_s))
        try:
            async with limit:
                try:
                    return await line.pool.open(self._connect_s)
                except Unconnected:  # nothing has been sent yet, so once more harms nobody
                    await asyncio.sleep(RETRY_AFTER_S)
                    return await line.pool.open(self._connect_s)
        except Full as error:
            self._look_for_a_leak(line)
            raise UpstreamTimeout(
                f"all {self._connections} connections to upstream {line.target.name!r} are in use",
                hint="See pool.connections.",
            ) from error
        except TimeoutError as error:
            raise Slow(f"no connection within {self.idle_s:g} s") from error

    async def _ask_demo(
        self, line: _Line, demo: Demo, method: str, where: bytes, body: bytes | AsyncIterator[bytes] | None
    ) -> Reply:
        whole = body if isinstance(body, bytes) else b"".join([part async for part in body]) if body else b""
        answer = demo.answer(method, where.partition(b"?")[0].decode(), whole)
        return Reply(line.target, self._metrics, answer.status, answer.headers, answer.body, line.released)

    def _look_for_a_leak(self, line: _Line) -> None:
        """With no more requests under way than there are connections nobody should have had to wait: start anew."""
        if line.open > self._connections:
            return
        self._metrics.swallowed_total.labels(where="upstream_pool").inc()
        log.error("the connections to upstream %s had leaked; a new pool was made", line.target.name)
        line.renew().close()


def _length(method: str, headers: Headers, body: bytes | AsyncIterator[bytes] | None) -> int | None:
    """The Content-Length to send, None for none."""
    declared = first(headers, b"content-length")
    if isinstance(body, bytes):
        return len(body) if body or declared or method in _BODY_METHODS else None
    if body is None:
        return 0 if declared or method in _BODY_METHODS else None
    return int(declared) if declared.isascii() and declared.isdigit() else None
