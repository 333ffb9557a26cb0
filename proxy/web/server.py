"""One client's connection: uvicorn's own protocol, with a deadline for every wait and a bound for all data that it
holds.

ASGI begins when a request's head is complete, so an incomplete head can only be seen here. Measured: uvicorn keeps
these open for ever: a socket that sends nothing, half a head, one byte a second of head or body. The class adds
deadlines and these rules:

- Fields after a chunked body (trailers) are dropped. They would end up among the headers, after every check of them.
- Requests after the current request (pipelining) wait in a short queue, and no more is read. Bytes that cannot be
  parsed there end the connection after the answer, and never write into it. A client that leaves is noticed in this
  state too.
- A request may be answered before its body has come (no key, no room). Then the client has a moment to send the rest.
  After that its connection is closed: an unread body must not hold a place.
- A connection that is not read, because enough data waits, would not report that the client has left. So the socket is
  polled. Only Linux reports it. Elsewhere it is noticed at the next read.
- An offer to change the protocol (`Upgrade: h2c`, as Java sends it) is declined: the exchange goes on in HTTP/1.1.
  A WebSocket handshake is left to the application (`websocket_connection.py`). Without the package for it every
  handshake gets 426, since no exchange in HTTP/1.1 could take its place.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import select
import socket
import struct
from collections.abc import Callable
from functools import cache, partial
from importlib.util import find_spec
from typing import Any, Final

import httptools
from uvicorn._types import ASGI3Application, ASGIReceiveCallable, ASGISendCallable, ASGISendEvent, Scope
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from proxy.errors import BadRequest, HeadersTooLarge, RequestError, TooSlow, Unavailable, UpgradeRequired
from proxy.metrics import Metrics
from proxy.settings.load import Settings
from proxy.web.asgi import DISCONNECT_KEY, HOLD_HEAD_KEY, Disconnect, HeldHead, has_body
from proxy.web.error_responses import LINGER_S, build_error_headers, render_error, send_error
from proxy.web.limits import (
    MAX_PIPELINED_BYTES,
    PROBE_PATHS,
    BodyBudget,
    ConnectionLimit,
    HalfOpenConnections,
    find_client_address,
)

log = logging.getLogger(__name__)

MIN_BYTES_PER_SECOND: Final = 500
"""Bytes a second that a body must bring on average over `timeouts.body_s`."""
MIN_AVERAGE_RATE: Final = 32 * 1024
"""Bytes a second that a body must bring on average, from its beginning."""
BODY_TIME_FACTOR: Final = 4
"""Times `timeouts.body_s` that a body may take in addition to that: a short body may come slowly."""
MAX_PIPELINED_REQUESTS: Final = 16
"""Requests that may wait on a connection after the current request."""
RECEIVE_BYTES: Final = 256 * 1024
"""Bytes that one receive may bring; a head is checked between two receives."""
CHECKS_PER_DEADLINE: Final = 4
"""Checks of each connection within the shorter deadline. A quarter of the deadline is the longest delay of a check."""

STOP_GRACE_S: Final = 0.5
"""Seconds for which a connection without an open answer may still bring a request once the server stops."""
SOCKET_CHECK_S: Final = 0.2
"""Seconds between two checks of the socket of a connection that is not read."""
POLL_HANGUP: Final = getattr(select, "POLLRDHUP", 0)
"""The poll flag for a client that sends nothing more; 0 if the system has none."""

HEAD: Final = 0
"""The client has to send a head, or the rest of one."""
BODY: Final = 1
"""The client has to send the rest of a body."""
DONE: Final = 2
"""The whole request has come: nothing is due from the client until the answer has ended."""


async def refuse_connection(_scope: Scope, _receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
    """Answer as the whole application for connections beyond `limits.connections`."""
    error = Unavailable("too many connections are open", hint="Try again in a moment.")
    await send_error(send, error, [(b"connection", b"close")])  # type: ignore[arg-type]  # uvicorn's names for the same


def _delimit_by_close(cycle: RequestResponseCycle) -> ASGISendCallable:
    """Return the `send` of an answer to HTTP/1.0, which has no chunks: the close of the connection ends a body without
    a length (RFC 9112, 6.3)."""
    has_length = True

    async def send(message: ASGISendEvent) -> None:
        nonlocal has_length
        if message["type"] == "http.response.start":
            has_length = any(name.lower() == b"content-length" for name, _ in message.get("headers", ()))
            if not has_length:
                cycle.chunked_encoding = False
        elif message["type"] == "http.response.body" and not has_length:
            cycle.expected_content_length = len(message.get("body", b""))
        await cycle.send(message)

    return send


class Connection(HttpToolsProtocol):
    """A connection of a client, of a subclass from `make_connection_class` that has the settings."""

    header_s = 10.0
    keep_alive_s = 75.0
    body_s = 30.0
    header_bytes = 64 * 1024
    max_connections = 4096
    metrics: Metrics
    half_open: HalfOpenConnections
    """All connections of the application that have not sent the head of a request."""
    connection_limit: ConnectionLimit
    """Counts all connections of the application that have sent a request."""
    load_websocket_class: Callable[[], Any] | None = None
    """Returns the class of connections after a WebSocket handshake; None if the package for it is not installed."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.timeout_keep_alive = self.keep_alive_s  # type: ignore[assignment]  # a timer takes parts of a second
        self._phase = HEAD
        """HEAD, BODY or DONE: the part of a request that the client has to send."""
        self._phase_since = self.loop.time()
        """Time from which the current deadline counts."""
        self._phase_bytes = 0
        """Bytes that have come since then."""
        self._ignores_input = False
        """True once the connection is to end: further bytes of the client are dropped."""
        self._closing_since: float | None = None
        self._address = ""
        self._holds_place = False
        """True while the connection counts in `connection_limit`."""
        self._pipelined_bytes = 0
        """Bytes of bodies that wait here after the request that is being answered."""
        self._body_bytes = 0
        """Bytes of the newest request's body."""
        self._body_seconds = 0.0
        """Seconds that this body has taken, without the time in which it waited for the proxy."""
        self._checked_at = self._phase_since
        self._running: RequestResponseCycle | None = None
        """The request that is being answered, or was last. uvicorn's `cycle` is the newest one that has come."""
        self._check_timer: asyncio.TimerHandle | None = None
        self._hangup_timer: asyncio.TimerHandle | None = None
        self._linger_timer: asyncio.TimerHandle | None = None
        self._stop_timer: asyncio.TimerHandle | None = None
        """Runs once the server stops, as long as the connection waits for a last request."""
        self._check_interval_s = min(self.header_s, self.body_s) / CHECKS_PER_DEADLINE

    # Called by the event loop

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvicorn's own
        super().connection_made(transport)
        self._address = find_client_address(self.client)
        if len(self.connections) > 2 * self.max_connections and not self.half_open.make_room():
            self.metrics.refused_connections_total.labels(why="crowded").inc()
            transport.abort()
            return
        self.half_open.add(self._address, self, self.loop.time())
        self._check_timer = self.loop.call_later(self._check_interval_s, self._check_deadlines)

    def connection_lost(self, exc: Exception | None) -> None:
        self._unset_keepalive_if_required()  # uvicorn leaves the timer of a connection that was reset
        self._cancel_timers()
        self.half_open.remove(self._address, self)
        self._leave_place()
        self.connection_limit.pipelined -= self._pipelined_bytes
        self._pipelined_bytes = 0
        running = self._running
        if running is not None and not running.response_complete:
            # uvicorn tells only the newest request, which may wait after this one.
            self._report_disconnect(running)
        self.pipeline.clear()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._ignores_input:
            return
        self._unset_keepalive_if_required()
        self._phase_bytes += len(data)
        if self._phase == DONE:
            self._expect_head()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            self._decline_upgrade(data[offer.args[0] :])
        except httptools.HttpParserError:
            log.warning("a request could not be read as HTTP")
            self.send_400_response("Invalid HTTP request received.")
        if self._phase == HEAD and self._phase_bytes > self.header_bytes + RECEIVE_BYTES:
            self._close_with_error(HeadersTooLarge("the request's head is too long", hint="See limits.header_kb."))
        elif self._phase == HEAD and not self._is_answering() and not self.transport.is_closing():
            self._leave_place()
            # Half a head, on a connection that has sent a request before.
            self.half_open.add(self._address, self, self.loop.time())
        if self.flow.read_paused and self._hangup_timer is None and POLL_HANGUP:
            self._hangup_timer = self.loop.call_later(SOCKET_CHECK_S, self._check_hangup)

    # Called by the parser

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= MAX_PIPELINED_REQUESTS:
            raise ValueError("too many requests wait on one connection")
        super().on_message_begin()
        self.scope[DISCONNECT_KEY] = Disconnect()  # type: ignore[typeddict-unknown-key]  # a key of the proxy
        if self._phase == DONE:
            self._expect_head()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._phase == HEAD:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            return  # the parser stops here, before any body, and raises in `data_received`
        super().on_headers_complete()
        if self._stop_timer is not None:
            self.cycle.keep_alive = False
        self.half_open.remove(self._address, self)
        self._body_bytes, self._body_seconds = 0, 0.0
        self._checked_at = self.loop.time()
        self._phase = BODY
        self._phase_since = self.loop.time()
        self._phase_bytes = 0
        if self.pipeline and not POLL_HANGUP:
            self.flow.resume_reading()  # without the poll flag, only a read notices that a client has left

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        cycle: Any = self.cycle
        if cycle is not self._running:
            self._pipelined_bytes += len(body)
            self.connection_limit.pipelined += len(body)
            if self.connection_limit.pipelined > MAX_PIPELINED_BYTES:
                raise ValueError("the bodies of requests that wait on connections take too much memory")
        if not cycle.body and not cycle.response_complete and not self.parser.should_upgrade():
            # A body in one piece is passed on as it is. uvicorn would copy it twice, and it may be a long history.
            cycle.body = body
            body = b""
        elif isinstance(cycle.body, bytes):
            cycle.body = bytearray(cycle.body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        super().on_message_complete()
        self._phase = DONE
        if self.cycle is self._running:
            self.flow.resume_reading()  # a long body has paused it, and the application may never ask for more
        if self.cycle.response_complete:  # answered before the body had come: no other code starts this deadline
            self._expect_head()

    # Overridden methods of uvicorn, and their helpers

    def on_response_complete(self) -> None:
        answered = self._running
        super().on_response_complete()
        if self.pipeline:
            self.flow.pause_reading()
        if self.timeout_keep_alive_task is not None and self._phase == DONE:
            self._leave_place()
            self.half_open.add(self._address, self, self.loop.time())  # idle, until the next head
        if answered is not None and answered is self.cycle and self._phase == BODY and not self.transport.is_closing():
            self._linger_timer = self.loop.call_later(LINGER_S, self._close_unread, answered)

    def shutdown(self) -> None:
        """End the connection with its newest answer. Without one, wait `STOP_GRACE_S` for a request that is on its
        way, since a close would reset it, and end with its answer."""
        if self._stop_timer is None and not self._is_answering():
            self._stop_timer = self.loop.call_later(STOP_GRACE_S, self.shutdown)
        else:
            super().shutdown()

    def _close_unread(self, answered: RequestResponseCycle) -> None:
        """Close the connection if the body of a request that was answered has still not come."""
        if answered is self.cycle and self._phase == BODY:
            self._close_silently()

    def _take_place(self, cycle: RequestResponseCycle) -> bool:
        """Count this connection in `connection_limit`. Return False if there is no room: then it is refused."""
        self._leave_place()
        has_room = self.connection_limit.has_room(self._address)
        if not has_room and cycle.scope["path"] in PROBE_PATHS and not has_body(cycle.scope):  # type: ignore[arg-type]
            has_room = self.connection_limit.has_room_for_probe()
            cycle.keep_alive = False
        if has_room:
            self._holds_place = True
            self.connection_limit.add(self._address)
        return has_room

    def _leave_place(self) -> None:
        if self._holds_place:
            self._holds_place = False
            self.connection_limit.remove(self._address)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        cycle.scope[HOLD_HEAD_KEY] = partial(HeldHead, cycle)  # type: ignore[typeddict-unknown-key]  # as above
        if self._pipelined_bytes:
            self._pipelined_bytes -= len(cycle.body)
            self.connection_limit.pipelined -= len(cycle.body)
        if not self._take_place(cycle):
            self.metrics.refused_connections_total.labels(why="crowded").inc()
            app = refuse_connection
        super()._start_asgi_task(cycle, self._close_unfinished(cycle, app))

    def _close_unfinished(self, cycle: RequestResponseCycle, app: ASGI3Application) -> ASGI3Application:
        """Return an application that runs `app`, and closes the connection if its answer is unfinished. `app` leaves an
        answer unfinished on purpose; uvicorn would take that for a mistake and log an error."""

        async def run_and_close(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
            if cycle.scope["http_version"] == "1.0":
                cycle.waiting_for_100_continue = False  # it would take 100 for the answer (RFC 9110, 10.1.1)
                send = _delimit_by_close(cycle)
            try:
                await app(scope, receive, send)
            finally:
                # It refers to the cycle, which refers to its scope: only a full collection would free them.
                del cycle.scope[HOLD_HEAD_KEY]  # type: ignore[typeddict-item]
            if cycle.response_started and not cycle.response_complete and not cycle.disconnected:
                cycle.disconnected = True
                if cycle.scope["http_version"] == "1.0" and not cycle.expected_content_length:
                    self._reset_at_close()  # a plain close would make the answer look complete
                self.transport.close()

        return run_and_close

    def _reset_at_close(self) -> None:
        """Let the close of the connection be a reset, which no client takes for the end of an answer."""
        connection: socket.socket | None = self.transport.get_extra_info("socket")
        if connection is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def send_400_response(self, msg: str) -> None:
        running = self._running
        if running is None or running.response_complete or (running is self.cycle and running.more_body):
            self._close_with_error(BadRequest(msg))
            return
        # An answer is being sent, and unreadable bytes came after its request: nothing more is read.
        self._ignores_input = True
        if self.pipeline and self.pipeline[0][0].more_body:
            self.pipeline.popleft()
        last = self.pipeline[0][0] if self.pipeline else running
        last.keep_alive = False

    @staticmethod
    def _report_disconnect(running: RequestResponseCycle) -> None:
        """Tell the request that is being answered that its client has left."""
        running.disconnected = True
        running.message_event.set()
        running.scope[DISCONNECT_KEY].report_left()  # type: ignore[typeddict-item]

    def _is_answering(self) -> bool:
        return self._running is not None and not self._running.response_complete

    def evict(self) -> None:
        """Close the connection, because others need the place."""
        self.metrics.refused_connections_total.labels(why="half_open").inc()
        self._ignores_input = True
        self.transport.abort()

    def _close_with_error(self, error: RequestError) -> None:
        """Close the connection, with an error answer if no answer has begun."""
        self._ignores_input = True
        running = self._running
        self.metrics.refused_connections_total.labels(why=str(error.status)).inc()
        if running is None or running.response_complete or not running.response_started:
            if running is not None:
                self._report_disconnect(running)  # later bytes of the client are ignored
            body = render_error(error)
            fields = b"".join(b"%b: %b\r\n" % field for field in build_error_headers(error, len(body)))
            self.transport.write(b"HTTP/1.1 %d \r\n%bconnection: close\r\n\r\n%b" % (error.status, fields, body))
        self.transport.close()

    def _decline_upgrade(self, unread: bytes) -> None:
        """Decline a protocol change. The parser has stopped after a head that offers another protocol, and would take
        the body for that protocol. A new parser therefore reads the same head without the offer, and all that
        follows."""
        method = self.parser.get_method()
        connection = [
            token.strip() for name, value in self.headers if name == b"connection" for token in value.split(b",")
        ]
        kept = [(name, value) for name, value in self.headers if name not in (b"connection", b"upgrade")]
        kept += [(b"connection", token) for token in connection if token.lower() != b"upgrade"]
        offered = len(kept) < len(self.headers) or any(token.lower() == b"upgrade" for token in connection)
        if method == b"CONNECT" or not offered:
            self._close_with_error(BadRequest("tunnels are not made here"))
            return
        if method == b"GET" and any(name == b"sec-websocket-key" for name, _ in self.headers):
            if self.load_websocket_class is not None and not self._is_answering():
                self._switch_to_websocket(unread)
                return
            # Codex goes to HTTP at once on this status, and tries for seven seconds on any other.
            self._close_with_error(UpgradeRequired("WebSocket is not served here; use HTTP."))
            return
        line = b"%b %b HTTP/%b\r\n" % (method, self.url, self.parser.get_http_version().encode())
        self.parser = httptools.HttpRequestParser(self)
        self.data_received(line + b"".join(b"%b: %b\r\n" % field for field in kept) + b"\r\n" + unread)

    def _switch_to_websocket(self, unread: bytes) -> None:
        """Give the connection to the class that speaks WebSocket. unread: the bytes after the handshake."""
        if not self.connection_limit.has_room(self._address):
            self._close_with_error(Unavailable("too many connections are open", hint="Try again in a moment."))
            return
        assert self.load_websocket_class is not None  # noqa: S101  # or the handshake was refused
        websocket_class = self.load_websocket_class()
        self._cancel_timers()
        self.half_open.remove(self._address, self)
        self._leave_place()
        self.connections.discard(self)
        protocol = websocket_class(self.config, self.server_state, self.app_state, self.loop)
        protocol.connection_made(self.transport)
        self.transport.set_protocol(protocol)
        head = b"GET %b HTTP/1.1\r\n" % self.url
        protocol.data_received(head + b"".join(b"%b: %b\r\n" % field for field in self.headers) + b"\r\n" + unread)

    def _cancel_timers(self) -> None:
        for timer in (self._check_timer, self._hangup_timer, self._linger_timer, self._stop_timer):
            if timer is not None:
                timer.cancel()

    def _expect_head(self) -> None:
        """Start the deadline of the next request's head."""
        self._phase = HEAD
        self._phase_since = self.loop.time()
        self._phase_bytes = 0

    def _check_deadlines(self) -> None:
        """Check the deadlines of the client and close the connection if one has passed. Schedule the next check."""
        now = self.loop.time()
        self._check_timer = self.loop.call_later(self._check_interval_s, self._check_deadlines)
        if self.transport.is_closing():
            self._closing_since = self._closing_since or now
            if now - self._closing_since >= self.body_s:
                self.transport.abort()  # the client does not read the rest of the answer
            return
        running = self._running
        since_check, self._checked_at = now - self._checked_at, now
        if self._phase == DONE or self.flow.read_paused:
            self._phase_since, self._phase_bytes = now, 0  # the client waits for the proxy
        elif self._phase == HEAD:
            late = now - self._phase_since >= self.header_s
            if late and not self._is_answering() and self.timeout_keep_alive_task is None:
                if self._phase_bytes:
                    self._close_with_error(TooSlow("the request's head did not come in time"))
                else:
                    self._close_silently()
        elif running is self.cycle and running.waiting_for_100_continue:
            self._phase_since = now
        else:
            self._body_seconds += since_check
            if self._body_seconds >= BODY_TIME_FACTOR * self.body_s + self._body_bytes / MIN_AVERAGE_RATE:
                self._close_with_error(TooSlow("the request's body took too long"))
            elif now - self._phase_since >= self.body_s:
                if self._phase_bytes < self.body_s * MIN_BYTES_PER_SECOND:
                    self._close_with_error(TooSlow("the request's body came too slowly"))
                self._phase_since, self._phase_bytes = now, 0

    def _check_hangup(self) -> None:
        """Close the connection once the client has left. Schedule the next check as long as nothing is read."""
        self._hangup_timer = None
        if not self.flow.read_paused or self.transport.is_closing():
            return
        if has_ended(self.transport.get_extra_info("socket").fileno()):
            self.transport.close()
        else:
            self._hangup_timer = self.loop.call_later(SOCKET_CHECK_S, self._check_hangup)

    def _close_silently(self) -> None:
        """Close the connection without an error answer: the client waits for none."""
        self.metrics.refused_connections_total.labels(why="silent").inc()
        self._ignores_input = True
        self.transport.close()


def has_ended(file_descriptor: int) -> bool:
    """True if the other side of this socket has closed or reset it, with or without unread bytes before that."""
    poll = select.poll()
    poll.register(file_descriptor, POLL_HANGUP)
    return bool(poll.poll(0))


def make_connection_class(settings: Settings, metrics: Metrics) -> type[Connection]:
    """Return the class of an application's connections, for uvicorn's `http`."""
    connection_limit = ConnectionLimit(settings.limits.connections, settings.limits.address_share)
    known: dict[str, Any] = {
        "header_s": settings.timeouts.header_s,
        "keep_alive_s": settings.timeouts.keep_alive_s,
        "body_s": settings.timeouts.body_s,
        "header_bytes": settings.limits.header_kb * 1024,
        "max_connections": settings.limits.connections,
        "metrics": metrics,
        "half_open": HalfOpenConnections(settings.limits.half_open),
        "connection_limit": connection_limit,
    }
    if find_spec("websockets") is not None:
        # Imported at the first handshake, in 10 ms: most proxies never see one.
        @cache
        def load_websocket_class() -> Any:
            websocket = importlib.import_module("proxy.web.websocket_connection")
            budget = BodyBudget(settings.limits.bodies_mb << 20, metrics, several=True)
            return websocket.make_websocket_class(settings.limits.body_mb << 20, connection_limit, budget)

        known["load_websocket_class"] = staticmethod(load_websocket_class)
    return type("Connection", (Connection,), known)
