"""Client that sends requests to upstreams: bytes in, bytes out, no second try except to connect.

Each upstream has its own transport (`transport.create_transport`). It is called directly for a client's requests,
because an `httpx2.AsyncClient` adds redirects, cookies and authentication. The proxy's own questions go through such a
client over the same transport (`UpstreamClient.create_http_client`)."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from fnmatch import fnmatchcase
from typing import Final

import httpx2

from proxy.errors import BadRequest, ProxyError, UpstreamBroken, UpstreamTimeout, UpstreamUnreachable
from proxy.metrics import Metrics
from proxy.settings.load import Settings
from proxy.upstream.headers import Headers, build_request_headers, find_header
from proxy.upstream.reply import Reply
from proxy.upstream.target import Target, parse_address, read_targets
from proxy.upstream.transport import AiohttpTransport, create_transport

__all__ = ["Reply", "Target", "UpstreamClient"]

log = logging.getLogger(__name__)

SERVER_ERRORS_FROM: Final = 500
TOO_MANY_REQUESTS: Final = 429
"""Statuses from 500 on, and 429, count as the upstream's failures; other refusals are the client's fault."""

_BODY_METHODS: Final = frozenset({"POST", "PUT", "PATCH"})


class TargetTransport(httpx2.AsyncBaseTransport):
    """The state of one target: its transport, the number of open answers, and the counters of its failures."""

    def __init__(self, target: Target, settings: Settings, metrics: Metrics) -> None:
        self.target = target
        self.address = parse_address(target)
        self.url = httpx2.URL(f"{self.address.scheme.decode()}://{self.address.host_header.decode()}")
        self.open_responses = 0
        self.transport = create_transport(target, settings.pool)
        self._limits = settings.pool
        self._metrics = metrics

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send the request and count failures. Raises `httpx2.TransportError`."""
        self.open_responses += 1
        try:
            response = await self.transport.handle_async_request(request)
        except BaseException as error:
            self.open_responses -= 1
            full = isinstance(error, httpx2.PoolTimeout) and isinstance(self.transport, AiohttpTransport)
            if full and self.open_responses < self._limits.connections:
                await self._renew()
            if isinstance(error, httpx2.TransportError) and not isinstance(error, httpx2.LocalProtocolError):
                self._metrics.upstream_errors_total.labels(self.target.name, classify_error(error)).inc()
                # The kind alone: an error's text may quote what the upstream said.
                log.warning("upstream %s failed: upstream_%s", self.target.name, classify_error(error))
            raise
        assert isinstance(response.stream, httpx2.AsyncByteStream)  # noqa: S101  # of an asynchronous transport
        response.stream = _CountedBody(response.stream, self)
        status = response.status_code
        if status >= SERVER_ERRORS_FROM or status == TOO_MANY_REQUESTS:
            label = self._metrics.limit_label("upstream_status", status)
            self._metrics.upstream_errors_total.labels(self.target.name, label).inc()
            if status >= SERVER_ERRORS_FROM:
                log.warning("upstream %s answered %d", self.target.name, status)
        return response

    async def _renew(self) -> None:
        """Replace the transport. There were fewer open requests than connections, so no request should have had to
        wait."""
        self._metrics.internal_errors_total.labels(where="upstream_pool").inc()
        log.error("the connections to upstream %s had leaked; a new pool was made", self.target.name)
        old, self.transport = self.transport, create_transport(self.target, self._limits)
        await old.aclose()


class _CountedBody(httpx2.AsyncByteStream):
    """A body that decrements the count of open answers when it is closed."""

    def __init__(self, stream: httpx2.AsyncByteStream, line: TargetTransport) -> None:
        self._stream = stream
        self._line: TargetTransport | None = line

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._stream.__aiter__()

    async def aclose(self) -> None:
        if self._line is not None:
            self._line.open_responses -= 1
            self._line = None
        await self._stream.aclose()


class _StreamedBody(httpx2.AsyncByteStream):
    """A request's body as it comes."""

    def __init__(self, parts: AsyncIterator[bytes]) -> None:
        self._parts = parts

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._parts

    async def aclose(self) -> None:
        if isinstance(self._parts, AsyncGenerator):
            await self._parts.aclose()


class UpstreamClient:
    """Client for all upstreams. Made once, inside the running loop or before it."""

    def __init__(self, settings: Settings, metrics: Metrics, targets: Iterable[Target] | None = None) -> None:
        """Make a transport for each target. targets: used instead of the configured upstreams."""
        self._metrics = metrics
        times = settings.timeouts
        self.idle_s = times.idle_s
        """Seconds for which one side may be silent; the code that streams to a client also uses it for the client."""
        self._times = {"total": times.total_s, "read": times.idle_s, "write": times.idle_s}
        self._times["connect"] = self._times["pool"] = min(times.connect_s, times.idle_s, times.total_s)
        self._connections = settings.pool.connections
        self.targets = tuple(read_targets(settings) if targets is None else targets)
        self._lines = {target.name: TargetTransport(target, settings, metrics) for target in self.targets}

    def select_target(self, model: str | None) -> Target:
        """Return the first target with a pattern for this model; the first of all if there is none, or no model."""
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
    ) -> Reply:
        """Send a request, and return when the head of the answer has arrived.

        Raises UpstreamUnreachable, UpstreamTimeout, UpstreamBroken, BadRequest for headers that cannot be sent, and any
        error of `body`.
        """
        request = self.build_request(target, method, path, query, headers, body, identity=identity)
        try:
            response = await self._lines[target.name].handle_async_request(request)
        except httpx2.TransportError as error:
            raise self._convert_error(target.name, error) from error
        assert isinstance(response.stream, httpx2.AsyncByteStream)  # noqa: S101  # of an asynchronous transport
        return Reply(target, self._metrics, response.status_code, response.headers.raw, response.stream)

    def build_request(
        self,
        target: Target,
        method: str,
        path: str,
        query: bytes,
        headers: Iterable[tuple[bytes, bytes]],
        body: bytes | AsyncIterator[bytes] | None,
        *,
        identity: bool = True,
        proxy_headers: Iterable[tuple[bytes, bytes]] = (),
    ) -> httpx2.Request:
        """Return a request as it goes to a target. proxy_headers: headers of the proxy, sent as they are.

        `path` as it came, percent-encoded. A body of unknown length is sent with the client's Content-Length if there
        is one, else in chunks.
        """
        line = self._lines[target.name]
        came = headers if isinstance(headers, list) else list(headers)
        length = _length(method, came, body)
        head = build_request_headers(
            came,
            host=line.address.host_header,
            key=target.key,
            length=length,
            chunked=length is None and body is not None,
            identity=identity or target.key is not None,  # or an error that repeats the key could not be read
        )
        head.extend(proxy_headers)
        stream = httpx2.ByteStream(body or b"") if body is None or isinstance(body, bytes) else _StreamedBody(body)
        return httpx2.Request(
            method,
            line.url,
            headers=head,
            stream=stream,
            extensions={"target": line.address.request_target(path, query), "timeout": self._times},
        )

    def create_http_client(self, target: Target) -> httpx2.AsyncClient:
        """Return a client for one question of the proxy, over the target's transport. Its requests are those of
        `request`. The client is not closed, because that would close the transport. Its cookies end with it."""
        return httpx2.AsyncClient(transport=self._lines[target.name], trust_env=False)

    async def close(self) -> None:
        """Close every connection, including those in use."""
        for line in self._lines.values():
            await line.transport.aclose()

    def _convert_error(self, name: str, error: httpx2.TransportError) -> ProxyError:
        """Return the proxy's error for a failed request."""
        if isinstance(error, httpx2.LocalProtocolError):
            return BadRequest(f"the request cannot be passed on: {error}")
        if isinstance(error, httpx2.PoolTimeout):
            return UpstreamTimeout(
                f"all {self._connections} connections to upstream {name!r} are in use", hint="See pool.connections."
            )
        if isinstance(error, httpx2.TimeoutException):
            return UpstreamTimeout(f"upstream {name!r} did not begin to answer: {error}")
        if isinstance(error, httpx2.RemoteProtocolError):
            return UpstreamBroken(f"upstream {name!r} answered with something that cannot be passed on: {error}")
        if isinstance(error, httpx2.ConnectError):
            return UpstreamUnreachable(f"upstream {name!r} cannot be reached: {error}")
        return UpstreamUnreachable(f"upstream {name!r} closed the connection without an answer: {error}")


def classify_error(error: httpx2.TransportError) -> str:
    """Return the failure's name in metrics, if there is no answer."""
    if isinstance(error, httpx2.TimeoutException):
        return "timeout"
    return "broken" if isinstance(error, httpx2.RemoteProtocolError) else "unreachable"


def _length(method: str, headers: Headers, body: bytes | AsyncIterator[bytes] | None) -> int | None:
    """Return the Content-Length to send; None for none."""
    declared = find_header(headers, b"content-length")
    if isinstance(body, bytes):
        return len(body) if body or declared or method in _BODY_METHODS else None
    if body is None:
        return 0 if declared or method in _BODY_METHODS else None
    return int(declared) if declared.isascii() and declared.isdigit() else None
