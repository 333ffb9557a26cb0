"""One client's connection after a WebSocket handshake: uvicorn's own protocol, within the limits of this proxy.

A frame may be as long as a body. A client that does not answer a ping, also in the middle of a slow frame, is gone. A
server that stops lets a response end.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

from uvicorn.config import Config
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState

from proxy.web.limits import ConnectionLimit, find_client_address
from proxy.web.response_socket import BUSY_KEY

PING_S: Final = 20.0
"""Seconds between two pings, and for the answer to one."""


class WebSocketConnection(WebSocketsSansIOProtocol):
    """A connection. `make_websocket_class` makes a subclass that has the limits."""

    frame_bytes = 64 << 20
    connection_limit: ConnectionLimit

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

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvicorn's own
        super().connection_made(transport)
        self._address = find_client_address(self.client)
        self.connection_limit.add(self._address)

    def connection_lost(self, exc: Exception | None) -> None:
        self.connection_limit.remove(self._address)
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """Close the connection, or leave that to the application once the response that it makes has ended."""
        if not getattr(self, "scope", {}).get(BUSY_KEY):
            super().shutdown()


def make_websocket_class(frame_bytes: int, connection_limit: ConnectionLimit) -> type[WebSocketConnection]:
    """The class of an application's WebSocket connections."""
    return type(
        "WebSocketConnection",
        (WebSocketConnection,),
        {"frame_bytes": frame_bytes, "connection_limit": connection_limit},
    )
