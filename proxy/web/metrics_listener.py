"""Second listener (`metrics_port`): /healthz, /readyz and /metrics, for a kubelet and for Prometheus.

A sidecar listens for its agent on the pod's loopback, where neither of the two can reach it. This listener may stand
on an address that others reach, since it opens nothing else. With keys configured, /metrics needs one here too. It
outlives the main listener while the proxy stops: probes are answered until the last answer has ended.
"""

from __future__ import annotations

import socket
from typing import Final

import uvicorn

from proxy.errors import NotFound, ProxyError
from proxy.metrics import Metrics
from proxy.settings.load import Settings
from proxy.web.asgi import App, Receive, Scope, Send
from proxy.web.auth import ApiKeys
from proxy.web.error_responses import answer_errors, send_error
from proxy.web.limits import limit_heads
from proxy.web.routes import HEALTH, METRICS, Route
from proxy.web.server import make_connection_class

ROUTES: Final[dict[str, Route]] = {"/healthz": HEALTH, "/readyz": HEALTH, "/metrics": METRICS}
STOP_S: Final = 1
"""Seconds in which probes that are being answered may end at the stop."""


def create_metrics_app(probes: App, settings: Settings, metrics: Metrics) -> App:
    """Return the application of this listener. `probes`: answers the three paths."""
    keys = ApiKeys(settings)

    async def guard(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        try:
            route = ROUTES.get(scope["path"])
            if route is None:
                raise NotFound("this port has /healthz, /readyz and /metrics", hint="The proxy listens on `port`.")
            if route.planes:
                keys.admit_caller(scope, route.planes)
        except ProxyError as problem:
            await send_error(send, problem, separate_hint=True)
            return
        await probes(scope, receive, send)

    return answer_errors(limit_heads(guard, settings), metrics)


class MetricsServer(uvicorn.Server):
    """The server of this listener, in the event loop of the main server."""

    def __init__(self, app: App, settings: Settings, metrics: Metrics, listener: socket.socket) -> None:
        """`app`: as `create_metrics_app` returns it."""
        self._listener = listener
        super().__init__(
            uvicorn.Config(
                app,
                http=make_connection_class(settings, metrics),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                date_header=False,
                timeout_graceful_shutdown=STOP_S,
            )
        )

    async def start(self) -> None:
        """Start to answer."""
        self.config.load()
        self.lifespan = self.config.lifespan_class(self.config)
        await self.startup(sockets=[self._listener])

    async def stop(self) -> None:
        """Close the listener and its connections."""
        await self.shutdown(sockets=[self._listener])
