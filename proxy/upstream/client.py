"""Asks an upstream: bytes in, bytes out, no second try but to connect.

httpx2's engine (httpcore2) is used without its client: redirects, cookies, authentication, environment proxies and
URL normalising are what a proxy must not do, and cost a third of a request (335 to 225 us measured, 168 us with
the sockets of network.py). No floor but this one imports either of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from fnmatch import fnmatchcase
from typing import Final, cast

import httpcore2

from proxy.errors import BadRequest, UpstreamBroken, UpstreamError, UpstreamTimeout, UpstreamUnreachable
from proxy.metrics import Metrics
from proxy.settings import DEMO, Settings
from proxy.upstream.demo import Demo
from proxy.upstream.headers import Headers, first, outgoing
from proxy.upstream.network import Stream, new_pool
from proxy.upstream.reply import Clock, Reply, Source
from proxy.upstream.target import Target, locate, read_targets

__all__ = ["Client", "Reply", "Target"]

log = logging.getLogger(__name__)

RETRY_AFTER_S: Final = 0.02
"""Before the one further try to connect; a refused connection is told within 100 ms."""

FAILING: Final = 500
TOO_MANY: Final = 429
"""Statuses from the one on, and the other, count as the upstream's failures; what else it refuses is the client's."""

_BODY_METHODS: Final = frozenset({"POST", "PUT", "PATCH"})


class _Line:
    """The way to one target: its address, its connections, and how many requests are under way on them."""

    __slots__ = ("address", "demo", "open", "pool", "settings", "target")

    def __init__(self, target: Target, settings: Settings) -> None:
        self.target = target
        self.settings = settings
        self.open = 0
        self.demo = Demo() if target.base_url == DEMO else None
        self.address = locate(target)
        self.pool = new_pool(target, settings.pool)

    def released(self) -> None:
        self.open -= 1

    def renew(self) -> httpcore2.AsyncConnectionPool:
        """A new pool in place of one whose slots have leaked; returns the old one, to be closed."""
        old, self.pool = self.pool, new_pool(self.target, self.settings.pool)
        return old


class Client:
    """All upstreams. Made once, inside the running loop or before it."""

    def __init__(self, settings: Settings, metrics: Metrics, targets: Iterable[Target] | None = None) -> None:
        """targets: others than the configured upstreams."""
        self._metrics = metrics
        self._timeouts = settings.timeouts
        self._connections = settings.pool.connections
        self.targets = tuple(read_targets(settings) if targets is None else targets)
        self._lines = {target.name: _Line(target, settings) for target in self.targets}

    @property
    def idle_s(self) -> float:
        """How long one side may be silent; what streams to a client uses it for the client too."""
        return self._timeouts.idle_s

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
        came = list(headers)
        length = _length(method, came, body)
        head = outgoing(
            came,
            host=line.address.host_header,
            key=target.key,
            length=length,
            chunked=length is None and body is not None,
            identity=identity,
        )
        head.extend(ours)
        where = line.address.request_target(path, query)
        line.open += 1
        try:
            if line.demo is not None:
                return await self._ask_demo(line, line.demo, method, where, body)
            reply = await self._ask(line, method, where, head, body)
        except BaseException as error:
            line.open -= 1
            if isinstance(error, UpstreamError):
                kind = error.code.removeprefix("upstream_")
                self._metrics.upstream_errors_total.labels(target.name, kind).inc()
            raise
        if reply.status >= FAILING or reply.status == TOO_MANY:
            status = self._metrics.label("upstream_status", reply.status)
            self._metrics.upstream_errors_total.labels(target.name, status).inc()
        return reply

    async def close(self) -> None:
        """Close every connection, those in use too."""
        for line in self._lines.values():
            await line.pool.aclose()

    async def _ask(
        self, line: _Line, method: str, where: bytes, head: Headers, body: bytes | AsyncIterator[bytes] | None
    ) -> Reply:
        name = line.target.name
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeouts.total_s
        idle = self._timeouts.idle_s
        connect = self._timeouts.connect_s
        try:
            async with asyncio.timeout_at(min(deadline, loop.time() + idle)) as silence:
                content = body
                if body is not None and not isinstance(body, bytes):
                    content = _attended(body, silence, idle, deadline)
                to = line.address
                url = httpcore2.URL(scheme=to.scheme, host=to.host, port=to.port, target=where)
                request = httpcore2.Request(
                    method,
                    url,
                    headers=head,
                    content=content,
                    extensions={"timeout": {"connect": connect, "pool": connect}},
                )
                try:
                    response = await line.pool.handle_async_request(request)
                except httpcore2.ConnectError:  # nothing has been sent yet, so once more harms nobody
                    await asyncio.sleep(RETRY_AFTER_S)
                    response = await line.pool.handle_async_request(request)
        except TimeoutError as error:
            raise UpstreamTimeout(f"upstream {name!r} did not begin to answer within {idle:g} s") from error
        except httpcore2.PoolTimeout as error:
            await self._look_for_a_leak(line)
            raise UpstreamTimeout(
                f"all {self._connections} connections to upstream {name!r} are in use", hint="See pool.connections."
            ) from error
        except httpcore2.TimeoutException as error:
            raise UpstreamTimeout(f"upstream {name!r}: {error}") from error
        except (httpcore2.NetworkError, httpcore2.ProxyError) as error:
            raise UpstreamUnreachable(f"upstream {name!r} cannot be reached: {error}") from error
        except httpcore2.LocalProtocolError as error:
            raise BadRequest(f"the request cannot be passed on: {error}") from error
        except httpcore2.ProtocolError as error:
            if "without sending a response" in str(error):
                raise UpstreamUnreachable(f"upstream {name!r} closed the connection without an answer") from error
            raise UpstreamBroken(f"upstream {name!r} answered with something that is not HTTP: {error}") from error
        stream = response.extensions.get("network_stream")
        if 200 <= response.status <= 599:
            clock = Clock(idle, deadline, stream if isinstance(stream, Stream) else None)
            source = cast("Source", response.stream)
            return Reply(line.target, self._metrics, response.status, response.headers, source, clock, line.released)
        await response.aclose()
        raise UpstreamBroken(f"upstream {name!r} answered with status {response.status}, which cannot be passed on")

    async def _ask_demo(
        self, line: _Line, demo: Demo, method: str, where: bytes, body: bytes | AsyncIterator[bytes] | None
    ) -> Reply:
        whole = body if isinstance(body, bytes) else b"".join([part async for part in body]) if body else b""
        answer = demo.answer(method, where.partition(b"?")[0].decode(), whole)
        deadline = asyncio.get_running_loop().time() + self._timeouts.total_s
        clock = Clock(self._timeouts.idle_s, deadline, None)
        return Reply(line.target, self._metrics, answer.status, answer.headers, answer.body, clock, line.released)

    async def _look_for_a_leak(self, line: _Line) -> None:
        """With no more requests under way than there are connections nobody should have had to wait: start anew."""
        if line.open > self._connections:
            return
        self._metrics.swallowed_total.labels(where="upstream_pool").inc()
        log.error("the connections to upstream %s had leaked; a new pool was made", line.target.name)
        await line.renew().aclose()


def _length(method: str, headers: Headers, body: bytes | AsyncIterator[bytes] | None) -> int | None:
    """The Content-Length to send, None for none."""
    declared = first(headers, b"content-length")
    if isinstance(body, bytes):
        return len(body) if body or declared or method in _BODY_METHODS else None
    if body is None:
        return 0 if declared or method in _BODY_METHODS else None
    return int(declared) if declared.isascii() and declared.isdigit() else None


async def _attended(
    body: AsyncIterator[bytes], silence: asyncio.Timeout, idle: float, deadline: float
) -> AsyncGenerator[bytes]:
    """A body that comes piece by piece: each piece shows that somebody is there."""
    loop = asyncio.get_running_loop()
    async for part in body:
        silence.reschedule(min(deadline, loop.time() + idle))
        yield part
