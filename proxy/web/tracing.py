"""The span of a request: a layer around the routes, there only where telemetry is on."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

from proxy.telemetry import CURRENT_TRACE, Telemetry
from proxy.web.asgi import LOG_FIELDS_KEY, App, Message, Receive, Scope, Send
from proxy.web.auth import ROUTE_KEY
from proxy.web.routes import Route, find_route_name

TRACED: Final = ("data", "gateway")
"""Kinds of routes that are traced. Probes, pages and the admin API are not."""


def trace_requests(app: App, telemetry: Telemetry) -> App:
    """Return `app` with a span around each request of a client."""

    async def trace_request(scope: Scope, receive: Receive, send: Send) -> None:
        route: Route = scope[ROUTE_KEY]
        if route.kind not in TRACED:
            await app(scope, receive, send)
            return
        status = 0

        def note_status(message: Message) -> Awaitable[None]:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            return send(message)

        trace = telemetry.begin_request(scope["method"], find_route_name(scope["path"]), scope["headers"])
        token = CURRENT_TRACE.set(trace)
        problem: BaseException | None = None
        try:
            await app(scope, receive, note_status)
        except BaseException as error:
            problem = error
            raise
        finally:
            CURRENT_TRACE.reset(token)
            trace.end(status, scope.get(LOG_FIELDS_KEY, {}), problem)

    return trace_request
