"""Checks against pages of other sites that use a person's browser to reach the proxy.

A proxy on loopback trusts every client that reaches it. Any page that the person opens can make the browser reach it.
Three checks therefore apply if no keys protect the proxy. The Host must be a name that only this proxy can have: a page
whose own name points to 127.0.0.1 sends its own name. A request that a page made must come from the proxy's own pages.
A state-changing call must declare JSON, which no form can."""

from __future__ import annotations

import ipaddress
from typing import Final
from urllib.parse import urlsplit

from proxy.errors import Forbidden, WrongHost, WrongType
from proxy.settings.load import Settings
from proxy.upstream.headers import CREDENTIAL_HEADERS, Headers, find_header
from proxy.web.asgi import Scope, has_body

JSON_TYPES: Final = ("application/json", "application/x-ndjson", "application/jsonl")
"""Types that a form cannot have. A page may send them only after a CORS preflight."""
ALLOWED_METHODS: Final = b"GET, POST, PUT, PATCH, DELETE"
ALLOWED_HEADERS: Final = b"authorization, content-type, last-event-id, x-context-key"
"""Headers that a page of an allowed origin may send."""
TRUSTED_SITES: Final = ("none", "same-origin")
"""Values of Sec-Fetch-Site that involve no other site."""

SECURITY_HEADERS: Final[Headers] = [
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
]
"""Headers of every answer of the admin API: JSON is never shown as a page, never cached, never sniffed."""


class BrowserRules:
    """The rules for the hosts and origins that may send requests."""

    def __init__(self, settings: Settings) -> None:
        self._hosts = frozenset({"localhost", settings.host.lower(), *settings.dashboard.hosts})
        self._origins = frozenset(settings.dashboard.origins)

    def check_host(self, scope: Scope, *, allow_short: bool = False) -> None:
        """Raises WrongHost unless the Host is a plain IP address, localhost or a name from the settings. The owner of a
        page may have pointed any other name at the proxy. allow_short: a name without a dot is allowed too. Nobody can
        own such a name on the internet, and a machine's own name is one."""
        host = find_header(scope["headers"], b"host").lower()
        if host and not self._is_ours(host) and not (allow_short and not {".", "["} & set(host)):
            raise WrongHost(
                f"{host} is not a name of this proxy", hint="Use localhost, or put the name into dashboard.hosts."
            )

    def _is_ours(self, host: str) -> bool:
        name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
        if name in self._hosts or name.endswith(".localhost"):
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        # 0.0.0.0 and ::ffff:127.0.0.1 lead here too, but are no loopback address to browsers. Of a GET by a page of
        # another site, for example for a picture, they then send neither Origin nor Sec-Fetch-Site.
        return not address.is_unspecified and getattr(address, "ipv4_mapped", None) is None

    def check_origin(self, scope: Scope, *, allow_local: bool = False) -> bytes | None:
        """Return the origin of an allowed page of another site; None if no other site sends the request. Raises
        Forbidden for all other pages. No page can change the values that browsers send in Origin and Sec-Fetch-Site.
        allow_local: a page that cannot come from a site on the internet is allowed too."""
        headers = scope["headers"]
        origin = find_header(headers, b"origin").lower()
        if origin in self._origins or (allow_local and _is_local(origin)):
            return origin.encode("latin-1")
        site = find_header(headers, b"sec-fetch-site").lower()
        foreign = origin and _read_authority(origin) != find_header(headers, b"host").lower()
        if foreign or (site and site not in TRUSTED_SITES):
            raise Forbidden(
                "The request comes from a web page of another site",
                hint="To allow that site, add its origin to dashboard.origins.",
            )
        return None

    def check_content_type(self, scope: Scope) -> None:
        """Raises WrongType if a state-changing call does not declare JSON."""
        method = scope["method"]
        if method in ("GET", "HEAD", "OPTIONS") or (method == "DELETE" and not has_body(scope)):
            return
        kind = find_header(scope["headers"], b"content-type").partition(";")[0].strip().lower()
        if kind not in JSON_TYPES:
            raise WrongType(f"the content type is {kind or 'not told'}", hint="Send application/json.")


def _read_authority(origin: str) -> str | None:
    """Return host and port of an origin; None if it has none, for example "null" and text that is no URL."""
    try:
        return urlsplit(origin).netloc or None
    except ValueError:
        return None


def _is_local(origin: str) -> bool:
    """True if an origin is local: a page that this machine serves on loopback, or an installed application. Such an
    application has its own scheme (`app://obsidian.md`)."""
    try:
        parts = urlsplit(origin)
        name = parts.hostname
    except ValueError:
        return False
    if not name or parts.scheme in ("", "file"):  # a saved page; "null" is any page in a frame
        return False
    if parts.scheme not in ("http", "https"):
        return True
    try:
        return name == "localhost" or name.endswith(".localhost") or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def build_preflight_headers() -> Headers:
    """Return the headers beside those of `build_cors_headers` that allow a page its announced request."""
    allowed = [(b"access-control-allow-methods", ALLOWED_METHODS), (b"access-control-allow-headers", ALLOWED_HEADERS)]
    return [*allowed, (b"access-control-max-age", b"600"), (b"content-length", b"0")]


def is_preflight(scope: Scope) -> bool:
    """True if this is a CORS preflight, which browsers send by themselves."""
    return bool(
        find_header(scope["headers"], b"origin") and find_header(scope["headers"], b"access-control-request-method")
    )


def announces_credential(scope: Scope) -> bool:
    """True if the request that a preflight announces will bring a credential for the upstream."""
    wanted = find_header(scope["headers"], b"access-control-request-headers").lower()
    return any(name.strip().encode("latin-1") in CREDENTIAL_HEADERS for name in wanted.split(","))


def build_requested_headers(scope: Scope) -> Headers:
    """Return the headers, in addition to those of `build_cors_headers`, that allow a page exactly what it asks for."""
    headers = scope["headers"]
    allowed = [
        (b"access-control-allow-methods", find_header(headers, b"access-control-request-method").encode("latin-1"))
    ]
    if wanted := find_header(headers, b"access-control-request-headers"):
        allowed.append((b"access-control-allow-headers", wanted.encode("latin-1")))
    return [*allowed, (b"access-control-max-age", b"600"), (b"content-length", b"0")]


def build_cors_headers(origin: bytes) -> Headers:
    """Return the headers that allow a page of this origin to read the answer. No cookies: there are none."""
    return [(b"access-control-allow-origin", origin), (b"vary", b"origin")]
