"""The access check behind the checks of the head: only a request that it admits gets past it.

Raw ASGI, before any routing. It finds the target of a request once (`doors`), identifies the caller (`keys`), and
rejects pages of other sites (`browsers`). An admitted request carries target and caller in its scope. Any other request
ends here.
"""

from __future__ import annotations

import ipaddress
from typing import Final

from proxy.errors import Forbidden, ProxyError
from proxy.settings import Settings
from proxy.web.browsers import (
    HARDENED,
    Browsers,
    asked_for,
    brings_credential,
    is_preflight,
    preflight,
    shared,
)
from proxy.web.doors import Door, Doors
from proxy.web.failures import send_error
from proxy.web.keys import BORROWED, Keys
from proxy.web.listen import App, Message, Receive, Scope, Send
from proxy.web.path_rules import check_path

CALLER: Final = "context.caller"
"""Key of the scope for the Caller; absent if a request needs none."""
DOOR: Final = "context.door"
"""Key of the scope for the Door."""


def gated(app: App, settings: Settings, doors: Doors) -> App:
    """Admit allowed requests only. Raises Unauthorized, Forbidden, WrongHost and BadRequest for chat;
    `failures.answering` stands outside. For the proxy's own pages these errors are answered here."""
    keys, browsers = Keys(settings), Browsers(settings)

    async def gate(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        door = doors.find(scope["method"], scope["path"])
        if not keys:
            _check_local(scope)
        scope[DOOR] = door
        if door.kind == "data":
            scope[CALLER] = keys.admit(scope, door.planes, borrowed=False)
            if not keys:
                # A credential that came proves nothing: an upstream on this machine may need none.
                browsers.check_host(scope, short=True)
                if await _is_preflight(scope, keys, browsers, send):
                    return
                browsers.check_origin(scope, near=_has_credential(scope) and not keys.lends)
            check_path(scope)
            await app(scope, receive, send)
            return
        page: bytes | None = None
        try:
            if not keys and door.kind != "health":
                browsers.check_host(scope)
            if door.planes:
                page = browsers.check_origin(scope)
            send = _hardened(send, door, page)
            if page is not None and scope["method"] == "OPTIONS":
                await send({"type": "http.response.start", "status": 204, "headers": preflight()})
                await send({"type": "http.response.body", "body": b""})
                return
            if door.planes:  # an open route serves everybody: it has no caller
                scope[CALLER] = keys.admit(scope, door.planes)
            if door.kind == "api":
                browsers.check_type(scope)
        except ProxyError as problem:  # answered here, where the page is known that must read the error
            await send_error(send, problem, apart=True)
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


async def _is_preflight(scope: Scope, keys: Keys, browsers: Browsers, send: Send) -> bool:
    """Answer a preflight of a page of another site here and return True; return False for other requests. Upstream, a
    preflight would carry the operator's key. Raises Forbidden if the page may do nothing."""
    if scope["method"] != "OPTIONS" or not is_preflight(scope):
        return False
    page = browsers.check_origin(scope, near=brings_credential(scope) and not keys.lends)
    if page is None:
        return False  # the proxy's own page
    await send({"type": "http.response.start", "status": 204, "headers": [*asked_for(scope), *shared(page)]})
    await send({"type": "http.response.body", "body": b""})
    return True


def _has_credential(scope: Scope) -> bool:
    return any(name in BORROWED and value.strip() for name, value in scope["headers"])


def _hardened(send: Send, door: Door, page: bytes | None) -> Send:
    """Return a `send` that adds the headers for browsers."""
    if door.kind != "api":
        return send
    added = [*HARDENED, *(shared(page) if page is not None else [])]

    async def adding(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], *added]}
        await send(message)

    return adding
