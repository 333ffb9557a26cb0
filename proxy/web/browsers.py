"""What a page of another site must not do through a person's browser.

A proxy on loopback trusts whoever reaches it, and every page that the person opens can make their browser reach it. So
where no keys protect us, the Host must be a name that only we can have (a page whose own name was pointed at 127.0.0.1
brings its own), and a request that a page made must come from our own; and a state-changing call must say that it is
JSON, which no form can.
"""

from __future__ import annotations

import ipaddress
from typing import Final
from urllib.parse import urlsplit

from proxy.errors import Forbidden, WrongHost, WrongType
from proxy.settings import Settings
from proxy.upstream.headers import Headers, first
from proxy.web.keys import BORROWED
from proxy.web.listen import Scope, has_body

JSON: Final = ("application/json", "application/x-ndjson", "application/jsonl")
"""Types that a form cannot have and that a page may send to us only after asking (a CORS preflight)."""
METHODS: Final = b"GET, POST, PUT, PATCH, DELETE"
ALLOWED: Final = b"authorization, content-type, last-event-id, x-context-key"
"""What a page of an allowed origin may send."""
NO_PAGE: Final = ("none", "same-origin")
"""Sec-Fetch-Site where no other site has to do with it."""

HARDENED: Final[Headers] = [
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
]
"""On every answer of the admin API: JSON is never a page, never kept, never guessed at."""


class Browsers:
    """Whose pages may ask."""

    def __init__(self, settings: Settings) -> None:
        self._hosts = frozenset({"localhost", settings.host.lower(), *settings.dashboard.hosts})
        self._origins = frozenset(settings.dashboard.origins)

    def check_host(self, scope: Scope, *, short: bool = False) -> None:
        """Raises WrongHost unless the Host is an IP address, localhost or a name from the settings: any other name may
        be one that a page's owner has pointed at us. short: a name without a dot will do as well, since nobody can
        have such a one on the internet, and a machine's own name is one."""
        host = first(scope["headers"], b"host").lower()
        if host and not self._is_ours(host) and not (short and "." not in host):
            raise WrongHost(
                f"{host} is not a name of this proxy", hint="Use localhost, or put the name into dashboard.hosts."
            )

    def _is_ours(self, host: str) -> bool:
        name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
        if name in self._hosts or name.endswith(".localhost"):
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    def check_origin(self, scope: Scope, *, near: bool = False) -> bytes | None:
        """The origin of an allowed page of another site, None where no other site asks. Raises Forbidden for all
        others: what browsers say in Origin and Sec-Fetch-Site no page can change. near: a page that no site on the
        internet can be is allowed as well."""
        headers = scope["headers"]
        origin = first(headers, b"origin").lower()
        if origin in self._origins or (near and _is_near(origin)):
            return origin.encode("latin-1")
        site = first(headers, b"sec-fetch-site").lower()
        foreign = origin and _authority(origin) != first(headers, b"host").lower()
        if foreign or (site and site not in NO_PAGE):
            raise Forbidden("a page of another site asks", hint="An origin that may is to stand in dashboard.origins.")
        return None

    def check_type(self, scope: Scope) -> None:
        """Raises WrongType where a state-changing call does not say that it brings JSON."""
        method = scope["method"]
        if method in ("GET", "HEAD", "OPTIONS") or (method == "DELETE" and not has_body(scope)):
            return
        kind = first(scope["headers"], b"content-type").partition(";")[0].strip().lower()
        if kind not in JSON:
            raise WrongType(f"the content type is {kind or 'not told'}", hint="Send application/json.")


def _authority(origin: str) -> str | None:
    """Host and port of an origin; None where it has none, as "null" and what is no URL."""
    try:
        return urlsplit(origin).netloc or None
    except ValueError:
        return None


def _is_near(origin: str) -> bool:
    """Whether an origin is that of a page which this machine serves on loopback, or of an installed application, which
    has a scheme of its own (`app://obsidian.md`)."""
    try:
        parts = urlsplit(origin)
        name = parts.hostname
    except ValueError:
        return False
    if not name or parts.scheme in ("", "file"):  # a page that was saved; "null" is any page in a frame
        return False
    if parts.scheme not in ("http", "https"):
        return True
    try:
        return name == "localhost" or name.endswith(".localhost") or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def preflight() -> Headers:
    """The headers, beside those of `shared`, that allow a page to ask what it is about to."""
    allowed = [(b"access-control-allow-methods", METHODS), (b"access-control-allow-headers", ALLOWED)]
    return [*allowed, (b"access-control-max-age", b"600"), (b"content-length", b"0")]


def is_preflight(scope: Scope) -> bool:
    """Whether a browser asks for a page what that may do, as browsers do by themselves."""
    return bool(first(scope["headers"], b"origin") and first(scope["headers"], b"access-control-request-method"))


def brings_credential(scope: Scope) -> bool:
    """Whether the request that a preflight is for will bring a credential for the upstream."""
    wanted = first(scope["headers"], b"access-control-request-headers").lower()
    return any(name.strip().encode("latin-1") in BORROWED for name in wanted.split(","))


def asked_for(scope: Scope) -> Headers:
    """The headers, beside those of `shared`, that allow a page just what it asks for."""
    headers = scope["headers"]
    allowed = [(b"access-control-allow-methods", first(headers, b"access-control-request-method").encode("latin-1"))]
    if wanted := first(headers, b"access-control-request-headers"):
        allowed.append((b"access-control-allow-headers", wanted.encode("latin-1")))
    return [*allowed, (b"access-control-max-age", b"600"), (b"content-length", b"0")]


def shared(origin: bytes) -> Headers:
    """The headers with which a page of this origin may read the answer. No cookies: there are none."""
    return [(b"access-control-allow-origin", origin), (b"vary", b"origin")]
