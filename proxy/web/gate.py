"""The outermost layer behind the checks of the head: nothing gets past it that it does not let in.

Raw ASGI, before any routing: what a request asks for is found once (`doors`), who asks is certain (`keys`), and no page
of another site is behind it (`browsers`). What is let in carries both in its scope; what is not ends here.
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
"""Where the scope has the Caller; not there where a request needs none."""
DOOR: Final = "context.door"
"""Where the scope has the Door."""


def gated(app: App, settings: Settings, doors: Doors) -> App:
    """Lets in who may. Raises Unauthorized, Forbidden, WrongHost and BadRequest for chat; `failures.answering` stands
    outside. For our own pages they are told here."""
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
            if door.planes:  # what is open to all is served to nobody in particular: it has no caller
                scope[CALLER] = keys.admit(scope, door.planes)
            if door.kind == "api":
                browsers.check_type(scope)
        except ProxyError as problem:  # told here, where the page that may ask is known: it has to be able to read it
            await send_error(send, problem, apart=True)
            return
        await app(scope, receive, send)

    return gate


def _check_local(scope: Scope) -> None:
    """Without keys loopback alone is served, whichever server runs us and wherever it listens."""
    client = scope.get("client")
    if client is None or client[0] in ("127.0.0.1", "::1"):
        return
    try:
        local = ipaddress.ip_address(client[0].partition("%")[0]).is_loopback
    except ValueError:
        return  # a socket that is no network's
    if not local:
        raise Forbidden(
            "no keys are configured, so only this machine itself is served", hint="`context-proxy key` makes one."
        )


async def _is_preflight(scope: Scope, keys: Keys, browsers: Browsers, send: Send) -> bool:
    """Whether a page of another site asks what it may do. Then it is told here: a preflight would go upstream with the
    operator's key. Raises Forbidden where the page may do nothing."""
    if scope["method"] != "OPTIONS" or not is_preflight(scope):
        return False
    page = browsers.check_origin(scope, near=brings_credential(scope) and not keys.lends)
    if page is None:
        return False  # our own page
    await send({"type": "http.response.start", "status": 204, "headers": [*asked_for(scope), *shared(page)]})
    await send({"type": "http.response.body", "body": b""})
    return True


def _has_credential(scope: Scope) -> bool:
    return any(name in BORROWED and value.strip() for name, value in scope["headers"])


def _hardened(send: Send, door: Door, page: bytes | None) -> Send:
    """A `send` that adds what browsers have to be told."""
    if door.kind != "api":
        return send
    added = [*HARDENED, *(shared(page) if page is not None else [])]

    async def adding(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], *added]}
        await send(message)

    return adding
