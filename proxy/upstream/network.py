"""Sockets for httpcore2, straight on asyncio's transports.

Its own backend goes through anyio: a cancel scope, a checkpoint and an exception map for every read, half of a
request's processor time here (measured: 225 to 168 us a request, 2,300 to 1,400 us for a stream of 50 events).
Closing, too, never waits: a task that is cancelled a second time while it still closes after the first (which cost
httpx 0.28 its pool slots, and whoever came next a timeout) has no `await` in which that could strike. And a read can
be ended from outside (`fail`), so that time limits need no cancellation at all.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable
from typing import Any, Final, cast
from urllib.parse import unquote, urlsplit

import httpcore2
import httpx2

from proxy.errors import ConfigError
from proxy.settings import Pool
from proxy.upstream.target import Target

HIGH_WATER: Final = 256 * 1024
"""Bytes received and not yet asked for, above which the socket is no longer read: back-pressure."""

KEPT_S: Final = 4.0
"""How long an idle connection is kept: less than the 5 s after which uvicorn (so vLLM and LiteLLM) and Node close
theirs, since a request that crosses such a close is lost, and must not be sent twice. Clients' own pools do not keep
theirs longer (httpx: 5 s). One that the upstream has closed already is not used again."""


class Stream(httpcore2.AsyncNetworkStream, asyncio.Protocol):
    """One connection. What has arrived before a reset is still given out; then the reset is told."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._received: list[bytes] = []
        self._size = 0
        self._ended = False
        self._error: Exception | None = None
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None
        self._paused = False

    # What the event loop tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._received.append(data)
        self._size += len(data)
        if self._size > HIGH_WATER and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> None:
        self._ended = True
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended = True
        if exc is not None and self._error is None:
            self._error = httpcore2.ReadError(str(exc) or type(exc).__name__)
        self._wake()
        self.resume_writing()

    def pause_writing(self) -> None:
        self._writer = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        if self._writer is not None and not self._writer.done():
            self._writer.set_result(None)
        self._writer = None

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    # What httpcore2 asks for

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109  # httpcore2's
        """The next bytes, b"" at the end. May be more than `max_bytes`: what one receive of the loop brought."""
        if timeout is not None:
            try:
                async with asyncio.timeout(timeout):
                    return await self.read(max_bytes)
            except TimeoutError as error:
                raise httpcore2.ReadTimeout("no byte in time") from error
        while not self._received:
            if self._error is not None:
                raise self._error
            if self._ended:
                return b""
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        data = self._received[0] if len(self._received) == 1 else b"".join(self._received)
        self._received.clear()
        self._size = 0
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109  # httpcore2's
        if self._transport is None or self._ended or self._transport.is_closing():
            raise httpcore2.WriteError("the connection is closed")
        self._transport.write(buffer)
        if self._writer is not None:
            async with asyncio.timeout(timeout):
                await self._writer

    async def aclose(self) -> None:
        self.abort()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109  # httpcore2's
    ) -> httpcore2.AsyncNetworkStream:
        """The same connection, encrypted. Raises ConnectError or ConnectTimeout and closes it."""
        if self._transport is None:
            raise httpcore2.ConnectError("the connection is closed")
        inner = Stream()
        try:
            async with asyncio.timeout(timeout):
                encrypted = await asyncio.get_running_loop().start_tls(
                    self._transport, inner, ssl_context, server_hostname=server_hostname
                )
            if encrypted is None:
                raise httpcore2.ConnectError("the connection closed during the TLS handshake")
        except BaseException as error:
            self.abort()
            if isinstance(error, TimeoutError):
                raise httpcore2.ConnectTimeout("no TLS handshake in time") from error
            if isinstance(error, OSError):  # ssl.SSLError is one
                raise httpcore2.ConnectError(str(error) or type(error).__name__) from error
            raise
        inner.connection_made(encrypted)
        return inner

    def get_extra_info(self, info: str) -> Any:
        if info == "is_readable":  # of an idle connection: bytes or an end that nobody asked for; not to be used again
            return self._ended or bool(self._received)
        return None if self._transport is None else self._transport.get_extra_info(info)

    # What we ask for

    def fail(self, error: Exception) -> None:
        """End the read in progress, and every later one, with this error; what has arrived is forgotten."""
        self._received.clear()
        self._error = error
        self._wake()

    def abort(self) -> None:
        """Close at once. Nothing of use can be unsent: a request is only left alone when its answer is not wanted."""
        self._ended = True
        if self._transport is not None:
            self._transport.abort()


class Sockets(httpcore2.AsyncNetworkBackend):
    """Opens connections on the running loop."""

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109  # httpcore2's, as the two that follow
        local_address: str | None = None,  # noqa: ARG002
        socket_options: Iterable[Any] | None = None,  # noqa: ARG002
    ) -> httpcore2.AsyncNetworkStream:
        """Raises ConnectTimeout, or ConnectError with the system's words."""
        try:
            async with asyncio.timeout(timeout):
                _, stream = await asyncio.get_running_loop().create_connection(Stream, host, port)
        except TimeoutError as error:
            raise httpcore2.ConnectTimeout(f"no connection to {host}:{port} in time") from error
        except (OSError, UnicodeError) as error:  # UnicodeError: a host name that cannot be one
            raise httpcore2.ConnectError(str(error) or type(error).__name__) from error
        return stream

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def new_pool(target: Target, limits: Pool) -> httpcore2.AsyncConnectionPool:
    """Connections to one target, through its own outbound proxy and with its own authorities, never the environment's.

    Raises ConfigError for a bundle that cannot be read and for a proxy that is none.
    """
    context = _trusted(target) if target.base_url.startswith("https://") else None
    if not target.proxy:
        return httpcore2.AsyncConnectionPool(
            ssl_context=context,
            max_connections=limits.connections,
            max_keepalive_connections=limits.keepalive,
            keepalive_expiry=KEPT_S,
            network_backend=Sockets(),
        )
    url = urlsplit(target.proxy)
    if url.scheme not in ("http", "https") or not url.hostname:
        raise ConfigError(f"upstreams.{target.name}.proxy", "(not shown)", "an http:// or https:// URL")
    return httpcore2.AsyncHTTPProxy(
        proxy_url=httpcore2.URL(scheme=url.scheme, host=url.hostname, port=url.port, target="/"),
        proxy_auth=(unquote(url.username), unquote(url.password or "")) if url.username else None,
        ssl_context=context,
        max_connections=limits.connections,
        max_keepalive_connections=limits.keepalive,
        keepalive_expiry=KEPT_S,
        network_backend=Sockets(),
    )


def _trusted(target: Target) -> ssl.SSLContext:
    try:
        own = ssl.create_default_context(cafile=target.ca_bundle) if target.ca_bundle else True
    except OSError as error:  # ssl.SSLError is one
        allowed = f"a readable PEM file ({error})"
        raise ConfigError(f"upstreams.{target.name}.ca_bundle", target.ca_bundle, allowed) from error
    return httpx2.create_ssl_context(verify=own, trust_env=False)
