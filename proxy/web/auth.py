"""The access check behind the checks of the head: only a request that it admits gets past it.

Raw ASGI, before any routing. It finds the target of a request once (`routes`), identifies the caller (`keys`), and
rejects pages of other sites (`browsers`). An admitted request carries target and caller in its scope. Any other request
ends here.
"""

from __future__ import annotations

import ipaddress
from typing import Final

from proxy.errors import Forbidden, ProxyError
from proxy.settings.load import Settings
from proxy.web.api_keys import CREDENTIAL_HEADERS, ApiKeys
from proxy.web.asgi import App, Message, Receive, Scope, Send
from proxy.web.cors import (
    SECURITY_HEADERS,
    BrowserRules,
    announces_credential,
    build_cors_headers,
    build_preflight_headers,
    build_requested_headers,
    is_preflight,
)
from proxy.web.error_responses import send_error
from proxy.web.path_rules import check_path
from proxy.web.routes import Route, RouteTable

CALLER_KEY: Final = "context.caller"
"""Key of the scope for the Caller; absent if a request needs none."""
ROUTE_KEY: Final = "context.door"
"""Key of the scope for the Door."""


def require_access(app: App, settings: Settings, routes: RouteTable) -> App:
    """Admit allowed requests only. Raises Unauthorized, Forbidden, WrongHost and BadRequest for chat;
    `error_responses.answer_errors` stands outside. For the proxy's own pages these errors are answered here."""
    keys, browsers = ApiKeys(settings), BrowserRules(settings)

    async def gate(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        door = routes.find_route(scope["method"], scope["path"])
        if not keys:
            _check_local(scope)
        scope[ROUTE_KEY] = door
        if door.kind == "data":
            scope[CALLER_KEY] = keys.admit_caller(scope, door.planes, from_authorization=False)
            if not keys:
                # A credential that came proves nothing: an upstream on this machine may need none.
                browsers.check_host(scope, allow_short=True)
                if await _answer_preflight(scope, keys, browsers, send):
                    return
                browsers.check_origin(scope, allow_local=_has_credential(scope) and not keys.lends_credentials)
            check_path(scope)
            await app(scope, receive, send)
            return
        page: bytes | None = None
        try:
            if not keys and door.kind != "health":
                browsers.check_host(scope)
            if door.planes:
                page = browsers.check_origin(scope)
            send = _add_security_headers(send, door, page)
            if page is not None and scope["method"] == "OPTIONS":
                await send({"type": "http.response.start", "status": 204, "headers": build_preflight_headers()})
                await send({"type": "http.response.body", "body": b""})
                return
            if door.planes:  # an open route serves everybody: it has no caller
                scope[CALLER_KEY] = keys.admit_caller(scope, door.planes)
            if door.kind == "api":
                browsers.check_content_type(scope)
        except ProxyError as problem:  # answered here, where the page is known that must read the error
            await send_error(send, problem, separate_hint=True)
            return
        await app(scope, receive, send)

    return gate


def _check_local(scope: Scope) -> None:
    """Check that the client is on loopback. Without keys only loopback is served, whichever server runs the app and
    wherever it listens. Raises Forbidden."""
    client = scope.get("client")
    if client is None or client[0] in ("127.0.0.1", "::1"):
        return
    try:
        local = ipaddress.ip_address(client[0].partition("%")[0]).is_loopback
    except ValueError:
        return  # a socket without a network address
    if not local:
        raise Forbidden(
            "no keys are configured, so only this machine itself is served", hint="`context-proxy key` makes one."
        )


async def _answer_preflight(scope: Scope, keys: ApiKeys, browsers: BrowserRules, send: Send) -> bool:
    """Answer a preflight of a page of another site here and return True; return False for other requests. Upstream, a
    preflight would carry the operator's key. Raises Forbidden if the page may do nothing."""
    if scope["method"] != "OPTIONS" or not is_preflight(scope):
        return False
    page = browsers.check_origin(scope, allow_local=announces_credential(scope) and not keys.lends_credentials)
    if page is None:
        return False  # the proxy's own page
    await send(
        {
            "type": "http.response.start",
            "status": 204,
            "headers": [*build_requested_headers(scope), *build_cors_headers(page)],
        }
    )
    await send({"type": "http.response.body", "body": b""})
    return True


def _has_credential(scope: Scope) -> bool:
    return any(name in CREDENTIAL_HEADERS and value.strip() for name, value in scope["headers"])


def _add_security_headers(send: Send, route: Route, page: bytes | None) -> Send:
    """Return a `send` that adds the headers for browsers."""
    if route.kind != "api":
        return send
    added = [*SECURITY_HEADERS, *(build_cors_headers(page) if page is not None else [])]

    async def adding(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], *added]}
        await send(message)

    return adding
