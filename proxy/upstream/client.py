"""Client that sends requests to upstreams: bytes in, bytes out, no second try except to connect.

Each upstream has its own transport (`transport.create_transport`). It is called directly for a client's requests,
because an `httpx2.AsyncClient` adds redirects, cookies and authentication. The proxy's own questions go through such a
client over the same transport (`UpstreamClient.create_http_client`). A `Reply` is an answer as it arrives: its bytes,
and the error for each kind of broken end.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from fnmatch import fnmatchcase
from typing import Final

import httpx2
import msgspec
from msgspec.structs import replace

from proxy.chat.json_spans import has_more_values
from proxy.dialects.cloud_paths import read_path_model
from proxy.errors import (
    AnswerTooLong,
    BadRequest,
    ProxyError,
    UpstreamBroken,
    UpstreamError,
    UpstreamTimeout,
    UpstreamUnreachable,
    describe_cause,
)
from proxy.metrics import Metrics
from proxy.settings.load import Settings
from proxy.stream.sse import begins_stream
from proxy.telemetry import Telemetry, UpstreamRound
from proxy.upstream.decompress import DecodedBody, Decoder, make_decoders
from proxy.upstream.headers import (
    AUTHORIZATION,
    HIDDEN_TEXT,
    MIN_SECRET_LENGTH,
    Headers,
    Redactor,
    build_request_headers,
    build_response_headers,
    find_header,
    list_key_encodings,
    remove_headers,
    remove_overrides,
)
from proxy.upstream.transport import (
    AiohttpTransport,
    Target,
    create_signer,
    create_transport,
    find_key_header,
    find_own_base_paths,
    parse_address,
    read_targets,
)

__all__ = ["Reply", "Target", "UpstreamClient", "UpstreamRequest"]

log = logging.getLogger(__name__)

BODILESS_STATUSES: Final = (204, 304)
"""Statuses without a body. Their Content-Length is that of another answer, but the server takes it for a promise of
bytes. It is left out, as RFC 9110 (8.6) allows."""
SUCCESS_STATUSES: Final = range(200, 300)
"""Statuses of success. An answer with any other status, a redirect too, may repeat the sent request in its body."""
ANSWER_VALUES: Final = 5
"""JSON values of an answer for each one that a request may have. Log probabilities of 20 candidates are 150 values a
token: 600,000 for an answer of 4,000 tokens."""
EVENT_STREAM: Final = "text/event-stream"
"""The media type of a stream of events."""
WITHHELD_BODY: Final = (
    b'{"error":{"message":"the upstream did not do what was asked; its answer is compressed, and unreadable",'
    b'"type":"upstream_error","param":null,"code":"upstream_error"}}'
)

SERVER_ERRORS_FROM: Final = 500
TOO_MANY_REQUESTS: Final = 429
UNAUTHORIZED: Final = 401
"""Statuses from 500 on, 429, and 401 to the operator's own key count as the upstream's failures. Other refusals are the
client's fault."""

_BODY_METHODS: Final = frozenset({"POST", "PUT", "PATCH"})


async def _yield_body(body: bytes) -> AsyncIterator[bytes]:
    yield body


class UpstreamRequest(msgspec.Struct, frozen=True, eq=False):
    """A request that is to be sent to an upstream."""

    method: str
    path: str
    """As received, percent-encoded."""
    query: bytes
    headers: Iterable[tuple[bytes, bytes]]
    """The client's, or those of a question of the proxy. `build_request` leaves out the ones of a connection."""
    body: bytes | AsyncIterator[bytes] | None


class Reply:
    """An answer whose head has arrived. Its body is read once; `close` is always called at the end."""

    __slots__ = (
        "_closed", "_held", "_metrics", "_parts", "_redactor", "_source", "_target",
        "content_type", "encoding", "headers", "is_readable", "is_stream", "status",
    )  # fmt: skip

    def __init__(
        self,
        target: Target,
        metrics: Metrics,
        status: int,
        received: Headers,
        source: httpx2.AsyncByteStream,
        *,
        decodes: bool = False,
    ) -> None:
        """decodes: decode a body that is compressed, because the proxy has asked for one that is not."""
        self.status = status
        self.headers: Headers = build_response_headers(received, target.key)
        """Headers for the client: without hop-by-hop ones. Content-Length is still that of the body as it comes."""
        if status in BODILESS_STATUSES:
            self.headers = remove_headers(self.headers, b"content-length")
        self.content_type = ""
        """In lower case: media types are case-insensitive (RFC 9110, 8.3.1)."""
        self.encoding = ""
        """The compression of the bytes ("gzip", "gzip, br"); "" if they are not compressed, or decoded here."""
        for name, value in reversed(self.headers):  # the first of each counts
            if name == b"content-type":
                self.content_type = value.decode("latin-1").strip().lower()
            elif name == b"content-encoding":
                encoding = value.decode("latin-1").strip().lower().replace("identity", "")
                self.encoding = f"{encoding},{self.encoding}".strip(", ")
        self._target = target
        self._metrics = metrics
        self._source = source
        self._parts = source.__aiter__()
        holds_key = status not in SUCCESS_STATUSES and target.key is not None and len(target.key) >= MIN_SECRET_LENGTH
        if self.encoding and (decodes or holds_key) and status not in BODILESS_STATUSES:
            self._decode_body()
        self.is_stream = self.content_type.startswith(EVENT_STREAM)
        """True for a stream of events."""
        self.is_readable = status in SUCCESS_STATUSES and not self.encoding
        """True for a success whose bytes are not compressed."""
        self._held: list[bytes] = []
        """Parts that were read and are to be given out again, the last part first."""
        self._closed = False
        self._redactor: Redactor | None = None
        if holds_key and target.key is not None:
            self._redactor = Redactor(list_key_encodings(target.key))
            if self.encoding and status not in BODILESS_STATUSES:
                self._withhold_body()

    def read_as_events(self, decoder: Decoder) -> None:
        """Read the body of an AWS event stream as server-sent events. decoder: that of its frames."""
        self._parts = DecodedBody(self._parts, [decoder])
        kept = remove_headers(self.headers, b"content-length", b"content-type")
        self.headers = [*kept, (b"content-type", EVENT_STREAM.encode())]
        self.content_type, self.is_stream = EVENT_STREAM, True

    def _decode_body(self) -> None:
        """Decode a body that is compressed against the proxy's request, if its coding is known."""
        decoders = make_decoders(self.encoding)
        if decoders is None:
            self._metrics.upstream_errors_total.labels(self._target.name, "encoding").inc()
            log.warning("upstream %s compressed an answer in a way that cannot be read", self._target.name)
            return
        self._parts = DecodedBody(self._parts, decoders)
        self.headers = remove_headers(self.headers, b"content-encoding", b"content-length")
        self.encoding = ""

    def _withhold_body(self) -> None:
        """Replace a body whose compression is not known: it cannot be searched for the key."""
        kept = remove_headers(self.headers, b"content-encoding", b"content-length", b"content-type")
        length = (b"content-length", b"%d" % len(WITHHELD_BODY))
        self.headers = [*kept, (b"content-type", b"application/json"), length]
        self.content_type, self.encoding = "application/json", ""
        self._parts = _yield_body(WITHHELD_BODY)

    def iter_bytes(self) -> AsyncIterator[bytes]:
        """Return the body's bytes as they come. Raises UpstreamBroken and UpstreamTimeout after the last ones."""
        return self

    async def read_body(self, limit: int) -> bytes:
        """Return the whole body. Raises AnswerTooLong over `limit` bytes; `iter_bytes` still gives all of it."""
        parts: list[bytes] = []
        size = 0
        async for part in self:
            parts.append(part)
            size += len(part)
            if size > limit:
                self._held = [*self._held, *reversed(parts)]
                raise AnswerTooLong(f"the answer of upstream {self._target.name!r} is over {limit} bytes")
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def read_answer(self, limit: int, max_values: int) -> bytes:
        """Do `read_body`, for a body that will be decoded. Raises AnswerTooLong also for JSON of more values than
        `ANSWER_VALUES` times `max_values`, which is what one request may have."""
        body = await self.read_body(limit)
        most = ANSWER_VALUES * max_values
        if len(body) > most and has_more_values(body, most) and not begins_stream(body):
            self.give_again(body)
            raise AnswerTooLong(f"the answer of upstream {self._target.name!r} has over {most} JSON values")
        return body

    async def peek_body(self, limit: int) -> bytes:
        """Return the whole body, which can be read again. Raises AnswerTooLong over `limit` bytes."""
        body = await self.read_body(limit)
        self.give_again(body)
        return body

    def give_again(self, body: bytes) -> None:
        """Let `iter_bytes` and `read_body` give out a body that was read whole."""
        self._held = [body] if body else []

    async def close(self) -> None:
        """Give the connection back, or close it if the body was not read. Never raises, never waits."""
        if self._closed:
            return
        self._closed = True
        try:
            await self._source.aclose()
        except Exception:  # the answer is over in both cases, and an error now would hide the first one
            self._metrics.internal_errors_total.labels(where="upstream_close").inc()
            log.warning("closing the connection to upstream %s failed", self._target.name, exc_info=True)

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        """Return the next bytes, never an empty piece. The reply is closed at its end, whatever the end is."""
        if self._held:
            return self._held.pop()
        try:
            part = await self._read_next()
        except httpx2.TransportError as error:
            try:  # the new error gets no name: with one, this frame and all bytes read so far would stay in memory
                raise self._convert_error(error) from error
            finally:
                await self.close()
        except BaseException:
            await self.close()
            raise
        return part

    async def _read_next(self) -> bytes:
        """Return the next bytes, with the key redacted. Raises StopAsyncIteration at the end."""
        redactor = self._redactor
        while True:
            try:
                part = await self._parts.__anext__()
            except StopAsyncIteration:
                if redactor is None or not (rest := redactor.end()):
                    raise
                return rest
            if redactor is not None:
                part = redactor.feed(part)
            if part:
                return part

    def _convert_error(self, error: httpx2.TransportError) -> UpstreamError:
        """Return the proxy's error for an error of the connection, and count it once."""
        name = self._target.name
        is_timeout = isinstance(error, httpx2.TimeoutException)
        if not self._closed:
            self._metrics.upstream_errors_total.labels(name, "timeout" if is_timeout else "broken").inc()
        if is_timeout:
            return UpstreamTimeout(f"upstream {name!r} was too slow: {error}")
        return UpstreamBroken(f"the answer of upstream {name!r} broke off: {error}")


class TargetTransport(httpx2.AsyncBaseTransport):
    """The state of one target: its transport, the number of open answers, and the counters of its failures."""

    def __init__(self, target: Target, settings: Settings, metrics: Metrics) -> None:
        self.target = target
        self.address = parse_address(target)
        self.url = httpx2.URL(f"{self.address.scheme.decode()}://{self.address.host_header.decode()}")
        self.open_responses = 0
        self.transport = create_transport(target, settings.pool)
        self._signer = create_signer(target, self.address)
        self._limits = settings.pool
        self._metrics = metrics

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send the request and count failures. Raises `httpx2.TransportError`."""
        self.open_responses += 1
        try:
            if self._signer is not None:
                request = await self._signer.sign_request(request)
            response = await self.transport.handle_async_request(request)
        except BaseException as error:
            self.open_responses -= 1
            pool_is_full = isinstance(error, httpx2.PoolTimeout) and isinstance(self.transport, AiohttpTransport)
            if pool_is_full and self.open_responses < self._limits.connections:
                await self._replace_transport()
            if isinstance(error, httpx2.TransportError) and not isinstance(error, httpx2.LocalProtocolError):
                self._metrics.upstream_errors_total.labels(self.target.name, classify_error(error)).inc()
                # The kind alone: an error's text may quote what the upstream said.
                log.warning("upstream %s failed: upstream_%s", self.target.name, classify_error(error))
            raise
        assert isinstance(response.stream, httpx2.AsyncByteStream)  # noqa: S101  # of an asynchronous transport
        response.stream = _CountedBody(response.stream, self)
        if HIDDEN_TEXT in request.extensions:
            response.extensions[HIDDEN_TEXT] = request.extensions[HIDDEN_TEXT]
        status = response.status_code
        is_key_refused = status == UNAUTHORIZED and self.target.key is not None
        if status >= SERVER_ERRORS_FROM or status == TOO_MANY_REQUESTS or is_key_refused:
            label = self._metrics.limit_label("upstream_status", status)
            self._metrics.upstream_errors_total.labels(self.target.name, label).inc()
            if status >= SERVER_ERRORS_FROM:
                log.warning("upstream %s answered %d", self.target.name, status)
            elif is_key_refused:  # the client takes it for a refusal of its own key
                log.warning("upstream %s refuses the key of its api_key_env", self.target.name)
        return response

    async def _replace_transport(self) -> None:
        """Replace a transport that has lost connections: it was full with fewer open answers than connections."""
        self._metrics.internal_errors_total.labels(where="upstream_pool").inc()
        log.error("the connections to upstream %s had leaked; a new pool was made", self.target.name)
        old, self.transport = self.transport, create_transport(self.target, self._limits)
        await old.aclose()


class _CountedBody(httpx2.AsyncByteStream):
    """A body that decrements the count of open answers when it is closed."""

    def __init__(self, stream: httpx2.AsyncByteStream, transport: TargetTransport) -> None:
        self._stream = stream
        self._transport: TargetTransport | None = transport

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._stream.__aiter__()

    async def aclose(self) -> None:
        if self._transport is not None:
            self._transport.open_responses -= 1
            self._transport = None
        await self._stream.aclose()


class _TracedBody(httpx2.AsyncByteStream):
    """A body whose end is the end of its round's span."""

    def __init__(self, stream: httpx2.AsyncByteStream, traced: UpstreamRound) -> None:
        self._stream = stream
        self._traced = traced

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for part in self._stream:
                yield part
        except httpx2.TransportError as error:
            self._traced.record_end(classify_error(error))
            raise

    async def aclose(self) -> None:
        await self._stream.aclose()
        self._traced.record_end()


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
        self._transports = {target.name: TargetTransport(target, settings, metrics) for target in self.targets}
        self.base_paths = find_own_base_paths(one.address.base_path for one in self._transports.values())
        """The paths that clients may name before a path of the proxy (`find_own_base_paths`)."""
        self.telemetry: Telemetry | None = None
        """The tracer; None where telemetry is off."""

    def replace_transport(self, name: str, transport: httpx2.AsyncBaseTransport) -> None:
        """Send the requests of a target by another transport from now on, for example by one that plays a recording."""
        self._transports[name].transport = transport

    def select_target(self, *models: str | None) -> Target:
        """Return the first target with a pattern for the first of these models that has one; the first of all if there
        is none, or no model."""
        for model in filter(None, models):
            for target in self.targets:
                if any(fnmatchcase(model, pattern) for pattern in target.models):
                    return target
        return self.targets[0]

    def is_same_place(self, one: str, other: str) -> bool:
        """True if two upstreams have the same scheme, host and port. False for a name that is no upstream."""
        if one not in self._transports or other not in self._transports:
            return False
        return self._transports[one].url == self._transports[other].url

    def route_request(self, path: str, model: str | None) -> Target:
        """Return the target of a request. The model that its path names counts before that of its body. path: decoded
        or not."""
        if len(self.targets) == 1:
            return self.targets[0]
        return self.select_target(read_path_model(path), model)

    async def send(self, target: Target, request: UpstreamRequest, *, identity: bool = True) -> Reply:
        """Send a request, and return when the head of the answer has arrived. identity: the answer is not to be
        compressed; what is compressed nevertheless is decoded.

        Raises UpstreamUnreachable, UpstreamTimeout, UpstreamBroken, BadRequest for headers that cannot be sent, and any
        error of the body.
        """
        if self.telemetry is not None:
            traced = self.telemetry.begin_round(request.method, target.base_url, target.strategy)
            request = replace(request, headers=traced.add_headers(request.headers))
        else:
            traced = None
        built = self.build_request(target, request, identity=identity)
        try:
            response = await self._transports[target.name].handle_async_request(built)
        except BaseException as error:
            if traced is not None:
                traced.record_end(classify_error(error) if isinstance(error, httpx2.TransportError) else "cancelled")
            if isinstance(error, httpx2.TransportError):
                raise self._convert_error(target.name, error) from error
            raise
        assert isinstance(response.stream, httpx2.AsyncByteStream)  # noqa: S101  # of an asynchronous transport
        if traced is not None:
            traced.record_answer(response.status_code)
            response.stream = _TracedBody(response.stream, traced)
        status, received = response.status_code, response.headers.raw
        if token := response.extensions.get(HIDDEN_TEXT):  # AWS repeats the headers of a signature that it refuses
            target = dataclasses.replace(target, key=token)
        return Reply(target, self._metrics, status, received, response.stream, decodes=identity)

    def build_request(
        self,
        target: Target,
        request: UpstreamRequest,
        *,
        identity: bool = True,
        proxy_headers: Iterable[tuple[bytes, bytes]] = (),
    ) -> httpx2.Request:
        """Return a request as it goes to a target. identity: as for `send`. proxy_headers: headers of the proxy, which
        are sent as they are.

        A body of unknown length is sent with the client's Content-Length if there is one, else in chunks.
        """
        transport, body = self._transports[target.name], request.body
        query = request.query if target.key is None else remove_overrides(request.query)
        received = request.headers if isinstance(request.headers, list) else list(request.headers)
        length = _choose_content_length(request.method, received, body)
        head = build_request_headers(
            received,
            host=transport.address.host_header,
            key=target.key,
            key_header=AUTHORIZATION
            if target.key is None
            else find_key_header(target, transport.address, request.path),
            length=length,
            chunked=length is None and body is not None,
            identity=identity or target.key is not None,  # or an error that repeats the key could not be read
        )
        head.extend(proxy_headers)
        stream = httpx2.ByteStream(body or b"") if body is None or isinstance(body, bytes) else _StreamedBody(body)
        return httpx2.Request(
            request.method,
            transport.url,
            headers=head,
            stream=stream,
            extensions={
                "target": transport.address.request_target(request.path, query),
                "timeout": self._times,
            },
        )

    def create_http_client(self, target: Target) -> httpx2.AsyncClient:
        """Return a client for one question of the proxy, over the target's transport. Its requests are those of
        `build_request`. The client is not closed, because that would close the transport. Its cookies end with it."""
        return httpx2.AsyncClient(transport=self._transports[target.name], trust_env=False)

    async def close(self) -> None:
        """Close every connection, including those in use."""
        for target_transport in self._transports.values():
            await target_transport.transport.aclose()

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
        cause = describe_cause(error)
        if isinstance(error, httpx2.ConnectError):
            return UpstreamUnreachable(f"upstream {name!r} cannot be reached: {cause}")
        return UpstreamUnreachable(f"upstream {name!r} closed the connection without an answer: {cause}")


def is_event_stream(status: int, headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """True for a success that is a stream of events, by the head of an answer."""
    return status in SUCCESS_STATUSES and find_header(headers, b"content-type").lower().startswith(EVENT_STREAM)


def classify_error(error: httpx2.TransportError) -> str:
    """Return the failure's name in metrics, if there is no answer."""
    if isinstance(error, httpx2.TimeoutException):
        return "timeout"
    return "broken" if isinstance(error, httpx2.RemoteProtocolError) else "unreachable"


def _choose_content_length(method: str, headers: Headers, body: bytes | AsyncIterator[bytes] | None) -> int | None:
    """Return the Content-Length to send; None to send none."""
    if isinstance(body, bytes) and (body or method in _BODY_METHODS):
        return len(body)
    declared = find_header(headers, b"content-length")
    if body is None or isinstance(body, bytes):
        return 0 if declared or method in _BODY_METHODS else None
    return int(declared) if declared.isascii() and declared.isdigit() else None
