"""One client's connection after a WebSocket handshake: uvicorn's own protocol, within the limits of this proxy.

A frame may be as long as a body. All frames that have not come whole, or were not taken yet, have a budget. A client
that does not answer a ping, also in the middle of a slow frame, is gone. A server that stops lets a response end.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from uvicorn.config import Config
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.frames import CloseCode, Frame

from proxy.errors import Unavailable
from proxy.web.limits import BodyBudget, BodyShare, ConnectionLimit, find_client_address
from proxy.web.responses_websocket import BUSY_KEY, TRY_AGAIN_LATER

PING_S: Final = 20.0
"""Seconds between two pings, and for the answer to one."""
PIECE_BYTES: Final = 16 * 1024
"""Bytes that are read in one go, since compressed ones may stand for a thousand times as many."""
FRAGMENT_BYTES: Final = 100
"""Memory of a fragment of a message in addition to its bytes, which may be none."""


class WebSocketConnection(WebSocketsSansIOProtocol):
    """A connection. `make_websocket_class` makes a subclass that has the limits."""

    frame_bytes = 64 << 20
    connection_limit: ConnectionLimit
    frame_budget: BodyBudget
    """Budget of the messages that are not complete or not taken yet, by address."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.logger = logging.getLogger("proxy.websocket")  # uvicorn logs each handshake with its path and query
        self.logger.setLevel(logging.ERROR)
        self.conn.logger = self.logger
        self.conn.max_message_size = self.conn.max_fragment_size = self.frame_bytes
        self.ping_interval = self.ping_timeout = PING_S
        self._address = ""
        self._share: BodyShare
        self._fragment_bytes = 0
        self._message_bytes: deque[int] = deque()
        """Sizes of the messages that wait."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvicorn's own
        super().connection_made(transport)
        self._address = find_client_address(self.client)
        self.connection_limit.add(self._address)
        self._share = self.frame_budget.share(self._address)

    def connection_lost(self, exc: Exception | None) -> None:
        self.connection_limit.remove(self._address)
        self._share.free()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        for begin in range(0, len(data), PIECE_BYTES):
            if self.transport.is_closing():
                return
            super().data_received(data[begin : begin + PIECE_BYTES])
            self._count_bytes()

    def handle_text(self, event: Frame) -> None:
        self._handle_frame(event, super().handle_text)

    def handle_bytes(self, event: Frame) -> None:
        self._handle_frame(event, super().handle_bytes)

    def handle_cont(self, event: Frame) -> None:
        self._handle_frame(event, super().handle_cont)

    def _handle_frame(self, event: Frame, handle: Callable[[Frame], None]) -> None:
        self._fragment_bytes += len(event.data) + FRAGMENT_BYTES
        handle(event)
        event.data = b""  # the parser of `websockets` keeps the last frame of each connection

    def send_receive_event_to_app(self) -> None:
        self._message_bytes.append(self._fragment_bytes)
        self._fragment_bytes = 0
        super().send_receive_event_to_app()

    async def receive(self) -> Any:
        """Return the next message, which the application counts from now on."""
        message = await super().receive()
        if message["type"] == "websocket.receive" and self._message_bytes:
            self._message_bytes.popleft()
            self._count_bytes()
        return message

    def _count_bytes(self) -> None:
        """Reserve what the connection holds. It ends where there is no room."""
        if self.transport.is_closing():
            return
        size = len(self.conn.reader.buffer) + self._fragment_bytes + sum(self._message_bytes)
        if size <= self._share.size:
            self._share.free(self._share.size - size)
            return
        try:
            self._share.reserve(size - self._share.size)
        except Unavailable:
            self._end(TRY_AGAIN_LATER, "other frames take all the room")
        if size > 2 * self.frame_bytes:  # millions of fragments; a share that is alone has no limit
            self._end(CloseCode.MESSAGE_TOO_BIG, "too many fragments")

    def _end(self, code: int, reason: str) -> None:
        if not self.transport.is_closing():
            self.conn.fail(code, reason)
            self.handle_parser_exception()

    def shutdown(self) -> None:
        """Close the connection, or leave that to the application once the response that it makes has ended."""
        if not getattr(self, "scope", {}).get(BUSY_KEY):
            super().shutdown()


def make_websocket_class(
    frame_bytes: int, connection_limit: ConnectionLimit, frame_budget: BodyBudget
) -> type[WebSocketConnection]:
    """The class of an application's WebSocket connections."""
    known = {"frame_bytes": frame_bytes, "connection_limit": connection_limit, "frame_budget": frame_budget}
    return type("WebSocketConnection", (WebSocketConnection,), known)
