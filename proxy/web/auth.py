"""Access control: the API keys, and the check that every request passes before it is routed.

A key is looked up by its SHA-256 and compared as bytes in constant time. The result is a Caller with a name and a
tenant, or an error. There is no empty Caller that a failed check could fall back to. The proxy's keys are removed from
the request here, before any code forwards, stores or logs it.

The check (`require_access`) is raw ASGI, after the check of the head. It finds the route of a request once
(`RouteTable`), identifies the caller (`ApiKeys`), and rejects pages of other sites (`BrowserRules`). An admitted
request carries route and caller in its scope. Any other request ends here.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from hmac import compare_digest
from typing import Final
from urllib.parse import unquote_to_bytes

from proxy.errors import Forbidden, ProxyError, Unauthorized
from proxy.settings.load import Settings
from proxy.settings.model import ALL_TENANTS, DEMO, ApiKeySettings
from proxy.upstream.headers import CREDENTIAL_HEADERS, GOOGLE_KEY, find_header
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
from proxy.web.routes import PAGES, ROOT, UNREAD, Route, RouteTable, check_path

_KEYED_PATH: Final = re.compile(r":(?:generateContent|streamGenerateContent|countTokens)/?$")
KEY_HEADER: Final = b"x-context-key"
"""The header that is only for keys of the proxy."""
ANY_PLANE: Final = "any"
"""The plane of a caller on this machine's own address while no keys are configured."""


@dataclass(frozen=True, slots=True)
class Caller:
    """An identified caller."""

    name: str
    """The name of the key."""
    tenant: str
    """The tenant of the caller's sessions; `*` for every tenant."""
    plane: str
    """The purpose of the key, or `any`."""

    def __post_init__(self) -> None:
        if not (self.name and self.tenant and self.plane):
            raise ValueError("a caller is somebody")

    @property
    def one_tenant(self) -> str | None:
        """The tenant; None if the caller is bound to none."""
        return None if self.tenant == ALL_TENANTS else self.tenant


LOCAL_CALLER: Final = Caller("loopback", ALL_TENANTS, ANY_PLANE)
"""The caller if no keys are configured."""


class ApiKeys:
    """The configured keys, by their hash."""

    def __init__(self, settings: Settings) -> None:
        self._by_digest = {bytes.fromhex(key.sha256): key for key in settings.keys}
        self.lends_credentials = any(
            target.lends_credential or target.base_url == DEMO for target in settings.active_upstreams.values()
        )
        """True if a request to an upstream may carry another credential than the received one."""
        self._has_tenants = len({key.tenant for key in settings.keys} - {ALL_TENANTS}) > 1
        """True if there are keys of several tenants."""

    def __bool__(self) -> bool:
        return bool(self._by_digest)

    def find_key(self, presented: bytes) -> ApiKeySettings | None:
        """Return the configured key that was presented; None if it is none."""
        digest = sha256(presented).digest()
        key = self._by_digest.get(digest)
        # A lookup by the hash alone would admit an attacker who can make dictionaries lie. The second check costs
        # nothing.
        if key is None or not compare_digest(digest, bytes.fromhex(key.sha256)):
            return None
        return key

    def admit_caller(self, scope: Scope, planes: frozenset[str], *, from_authorization: bool = True) -> Caller:
        """Return the caller of something that is open to these planes. from_authorization: True if Authorization may
        hold a key of the proxy. For chat that holds only if an upstream has its own key; else it is the client's
        credential there.

        Removes the proxy's keys from the request's headers and its query. Raises Unauthorized and Forbidden.
        """
        if not self._by_digest:
            return LOCAL_CALLER
        presented, lent = self._take_keys(scope)
        if presented is None and (from_authorization or self.lends_credentials):
            presented = lent
        if presented is None and lent is not None:
            raise Unauthorized(
                "a key of this proxy came in Authorization, which is for the upstream's key",
                hint="Send it as x-context-key.",
            )
        if presented is None:
            raise Unauthorized("no key of this proxy came with the request", hint="Send it as x-context-key.")
        key = self.find_key(presented)
        if key is None:
            raise Unauthorized("the key is not one of this proxy's", hint="`context-proxy key` makes one.")
        if key.plane not in planes:
            wanted = " or ".join(sorted(planes))
            raise Forbidden(f"the key {key.name} is for {key.plane}", hint=f"This needs one for {wanted}.")
        if "metrics" in planes and self._has_tenants and key.tenant != ALL_TENANTS:
            raise Forbidden(
                f"the key {key.name} is for the tenant {key.tenant}, and the metrics count all tenants together",
                hint="Make one with --tenant '*'. GET /api/money has the figures of one tenant.",
            )
        return Caller(key.name, key.tenant, key.plane)

    def _take_keys(self, scope: Scope) -> tuple[bytes | None, bytes | None]:
        """Return (the key in x-context-key, a proxy key in another header), both removed from the headers."""
        own: bytes | None = None
        lent: bytes | None = None
        kept: list[tuple[bytes, bytes]] = []
        for name, value in scope["headers"]:
            if name == KEY_HEADER:
                # Two different keys count as none: the choice must not depend on the order of reading.
                own = value.strip() if own is None or own == value.strip() else b""
                continue
            ours = self._find_key_in(value) if name in CREDENTIAL_HEADERS else None
            if ours is None:
                kept.append((name, value))
            else:
                lent = ours
        scope["headers"] = kept
        if scope.get("query_string"):
            scope["query_string"] = self._remove_keys(scope["query_string"])
        return own, lent

    def _find_key_in(self, value: bytes) -> bytes | None:
        """Return the key of the proxy that a credential header holds; None if it holds none."""
        return next((each for each in _find_possible_keys(value) if self.find_key(each)), None)

    def _remove_keys(self, query: bytes) -> bytes:
        """Return a query without the values that are keys of the proxy. They let nobody in, and go to no upstream."""
        pairs = query.split(b"&")
        kept = [pair for pair in pairs if not self.find_key(unquote_to_bytes(pair.partition(b"=")[2]))]
        return query if len(kept) == len(pairs) else b"&".join(kept)


def _find_possible_keys(value: bytes) -> Iterable[bytes]:
    """Yield the possible keys in a credential header: the whole value, and the part after its scheme."""
    value = value.strip()
    yield value
    _, space, rest = value.partition(b" ")
    if space:
        yield rest.strip()


CALLER_KEY: Final = "context.caller"
"""Key of the scope for the Caller; absent if a request needs none."""
ROUTE_KEY: Final = "context.route"
"""Key of the scope for the Route."""


def require_access(app: App, settings: Settings, routes: RouteTable) -> App:
    """Admit allowed requests only. Raises Unauthorized, Forbidden, WrongHost and BadRequest for chat;
    `error_responses.answer_errors` is outside. For the proxy's own pages these errors are answered here."""
    keys, browsers = ApiKeys(settings), BrowserRules(settings)

    async def check_access(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        route = routes.find_route(scope["method"], scope["path"])
        if route is UNREAD:
            await routes.load()
            route = routes.find_route(scope["method"], scope["path"])
        # Of those that ask for `/`, browsers alone name HTML.
        route = PAGES if route is ROOT and "text/html" in find_header(scope["headers"], b"accept") else route
        if not keys:
            _check_local(scope)
        scope[ROUTE_KEY] = route
        if route.kind == "data":
            move_query_key(scope)
            scope[CALLER_KEY] = keys.admit_caller(scope, route.planes, from_authorization=False)
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
            if not keys and route.kind != "health":
                browsers.check_host(scope, allow_short=route.kind == "gateway")
            if route.planes:
                page = browsers.check_origin(scope)
            send = _add_security_headers(send, route, page)
            if page is not None and scope["method"] == "OPTIONS":
                await send({"type": "http.response.start", "status": 204, "headers": build_preflight_headers()})
                await send({"type": "http.response.body", "body": b""})
                return
            if route.planes:  # an open route serves everybody: it has no caller
                scope[CALLER_KEY] = keys.admit_caller(scope, route.planes)
            if route.kind == "api" or (route.kind == "gateway" and scope["method"] == "POST"):
                browsers.check_content_type(scope)
        except ProxyError as problem:  # answered here, where the page is known that must read the error
            await send_error(send, problem, separate_hint=True)
            return
        await app(scope, receive, send)

    return check_access


def move_query_key(scope: Scope) -> None:
    """Move a key in the query of a Gemini request into the header of such keys. It is a credential like any other, and
    an upstream may log the address."""
    query = scope.get("query_string", b"")
    if b"key=" not in query or not _KEYED_PATH.search(scope["path"]):
        return
    pairs = [pair.partition(b"=") for pair in query.split(b"&")]
    keys = [value for name, _, value in pairs if name == b"key" and value]
    if not keys:
        return
    scope["query_string"] = b"&".join(name + sign + value for name, sign, value in pairs if name != b"key")
    if not any(name == GOOGLE_KEY for name, _ in scope["headers"]):
        scope["headers"] = [*scope["headers"], (GOOGLE_KEY, unquote_to_bytes(keys[0]))]


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

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], *added]}
        await send(message)

    return send_with_headers
