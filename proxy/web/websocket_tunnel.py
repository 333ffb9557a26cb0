"""WebSockets that are passed on: any path but `/v1/responses`, where the upstream serves it.

A handshake goes through the whole application as a GET, so that keys, allowed pages, paths, limits, log and counters
are those of any other request. The route connects to the upstream first. If the upstream takes the handshake, the
client's is accepted, with the subprotocol that the upstream has chosen, and messages and closes go both ways. Otherwise
the client gets 426 and goes to HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qs

from proxy.errors import UpgradeRequired
from proxy.settings.load import Settings
from proxy.upstream.client import UpstreamClient
from proxy.web.asgi import App, Message, Receive, Scope, Send
from proxy.web.passthrough import select_passthrough_target
from proxy.web.responses_websocket import make_http_scope, receive_empty_body
from proxy.web.routes import PathRules

TUNNEL_KEY: Final = "context.tunnel"
"""Key of the scope for the client's end of a tunnel."""
NOT_SERVED: Final = "WebSocket is not served here; use HTTP."
IDLE_REASON: Final = "no message for too long"
LIFE_REASON: Final = "connect again"
_GOING_AWAY, _RESTART, _NO_STATUS, _ABNORMAL = 1001, 1012, 1005, 1006


@dataclass(frozen=True, slots=True)
class TunnelEnd:
    """The client's end."""

    receive: Receive
    send: Send
    subprotocols: tuple[str, ...]


class _Handshake:
    """The answer to a client's handshake, from the answer that the application gives to the GET."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._status = 0
        self._headers: list[tuple[bytes, bytes]] = []

    async def take(self, message: Message) -> None:
        """Take in one message of the application."""
        if message["type"] == "http.response.start":
            self._status, headers = message["status"], list(message["headers"])
            if self._status == 101:
                await self._send({"type": "websocket.accept", "headers": headers,
                                  "subprotocol": message.get("subprotocol")})  # fmt: skip
                return
            self._headers = [(name, value) for name, value in headers if name != b"connection"]
            start = {"type": "websocket.http.response.start", "status": self._status, "headers": self._headers}
            await self._send(start)
        elif self._status != 101:
            more = bool(message.get("more_body", False))
            body = {"type": "websocket.http.response.body", "body": message.get("body", b""), "more_body": more}
            await self._send(body)


async def serve_tunnel(scope: Scope, receive: Receive, send: Send, app: App) -> None:
    """Serve one connection until its end. app: the whole application."""
    await receive()  # websocket.connect
    get_scope = make_http_scope(scope, method="GET")
    get_scope[TUNNEL_KEY] = TunnelEnd(receive, send, tuple(scope.get("subprotocols") or ()))

    await app(get_scope, receive_empty_body, _Handshake(send).take)


async def relay_tunnel(
    scope: Scope,
    send: Send,
    client: UpstreamClient,
    settings: Settings,
    *,
    path: str,
    rules: PathRules,
    on_allowed: Callable[[], None],
) -> None:
    """Connect to the upstream that the query's model names, else as any other request, and pass on what both sides say.

    path: percent-encoded, as received. Raises Forbidden, UpgradeRequired and the errors of `open_websocket` before the
    client's handshake is answered.
    """
    from proxy.upstream.websocket_client import HandshakeRefused, open_websocket  # noqa: PLC0415  # an extra

    end: TunnelEnd = scope[TUNNEL_KEY]
    named = parse_qs(scope["query_string"].decode("latin-1")).get("model", [None])[0]
    target = select_passthrough_target(client, path, scope["headers"], named)
    if target.key is not None:
        rules.check("GET", path)
    on_allowed()
    times = settings.timeouts
    try:
        upstream = await open_websocket(
            target, path, scope["query_string"], scope["headers"], end.subprotocols,
            connect_s=times.connect_s, most_bytes=settings.limits.body_mb << 20,
        )  # fmt: skip
    except HandshakeRefused as refused:
        if not refused.is_final:
            raise UpgradeRequired(NOT_SERVED) from refused
        kept = [(name, value) for name, value in refused.headers if name != b"content-length"]
        length = (b"content-length", b"%d" % len(refused.body))
        await send({"type": "http.response.start", "status": refused.status, "headers": [*kept, length]})
        await send({"type": "http.response.body", "body": refused.body})
        return
    relay = _Relay(end, upstream, times.idle_s)
    try:
        start = {"type": "http.response.start", "status": 101, "headers": upstream.headers}
        await send({**start, "subprotocol": upstream.subprotocol})
        await relay.run(times.total_s)
    finally:
        await upstream.close(*relay.client_close)
    await send({"type": "http.response.body", "body": b""})


class _Relay:
    """The messages of an open tunnel in both directions."""

    def __init__(self, end: TunnelEnd, upstream: Any, idle_s: float) -> None:
        self._end = end
        self._upstream = upstream
        self._idle_s = idle_s
        self._idle = asyncio.timeout(None)
        self.client_close: tuple[int, str] = _GOING_AWAY, ""
        """The code and the reason with which the upstream's side is closed."""

    async def run(self, life_s: float) -> None:
        """Pass messages on until one side closes, nothing has come for too long, or the time is over."""
        tasks = [asyncio.create_task(self._relay_from_client()), asyncio.create_task(self._relay_from_upstream())]
        try:
            async with asyncio.timeout(self._idle_s) as self._idle:
                done, _ = await asyncio.wait(tasks, timeout=life_s, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                await self._close(_RESTART, LIFE_REASON)
            for task in done:
                task.result()
        except TimeoutError:
            await self._close(_GOING_AWAY, IDLE_REASON)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _relay_from_client(self) -> None:
        from proxy.upstream.websocket_client import Closed  # noqa: PLC0415  # as above

        while True:
            message = await self._end.receive()
            self._restart_idle_time()
            if message["type"] == "websocket.disconnect":
                code = message.get("code") or _NO_STATUS
                if code == _ABNORMAL or "reason" not in message:  # so uvicorn reports a connection that was lost
                    code = _GOING_AWAY
                self.client_close = 1000 if code == _NO_STATUS else code, message.get("reason") or ""
                return
            text = message.get("text")
            with suppress(Closed):  # the other direction tells how
                async with asyncio.timeout(self._idle_s):
                    await self._upstream.send(text if text is not None else message.get("bytes") or b"")

    async def _relay_from_upstream(self) -> None:
        from proxy.upstream.websocket_client import Closed  # noqa: PLC0415  # as above

        while True:
            try:
                message = await self._upstream.receive()
            except Closed as closed:
                await self._close(closed.code, closed.reason)
                return
            self._restart_idle_time()
            name = "text" if isinstance(message, str) else "bytes"
            with suppress(OSError):  # uvicorn's error for a client that has left, which the other direction tells
                async with asyncio.timeout(self._idle_s):
                    await self._end.send({"type": "websocket.send", name: message})

    def _restart_idle_time(self) -> None:
        """Postpone the end of a silent tunnel: a message has come."""
        if not self._idle.expired():
            self._idle.reschedule(asyncio.get_running_loop().time() + self._idle_s)

    async def _close(self, code: int, reason: str) -> None:
        self.client_close = code, reason
        with suppress(OSError):
            await self._end.send({"type": "websocket.close", "code": code, "reason": reason})
