"""Serve the dashboard's files as they are, under a policy that blocks content from any other origin.

The pages hold no data: their scripts fetch it from /api with a key. Strangers wrote the text that the pages then show,
so only the proxy's own files may run. There is no inline script or style, no other origin, and no frame around the
page. No text becomes markup (Trusted Types, without any policy that could create some).
"""

from __future__ import annotations

from hashlib import blake2b
from importlib.resources import files
from typing import Final

from proxy.settings.load import Settings
from proxy.upstream.headers import Headers, find_header
from proxy.web.asgi import App, Receive, Scope, Send

ROOT_PATH: Final = "/dashboard/"
START_PAGE: Final = "index.html"
WIDGET_FILE: Final = "widget.js"
"""The one file that pages of other origins may load."""

CSP_RULES: Final = (
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "img-src 'self'",
    "connect-src 'self'",
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
    "require-trusted-types-for 'script'",
    "trusted-types 'none'",
)
CSP: Final = "; ".join(CSP_RULES)

PAGE_HEADERS: Final[Headers] = [
    (b"content-security-policy", CSP.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=(), payment=(), usb=()"),
    # Cached, but revalidated each time: a page and its modules are always of one version.
    (b"cache-control", b"no-cache"),
]

CONTENT_TYPES: Final = {
    ".html": b"text/html; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".svg": b"image/svg+xml",
    ".txt": b"text/plain; charset=utf-8",
}


class DashboardFiles:
    """All files with their tags, read once."""

    def __init__(self) -> None:
        self.contents = {
            item.name: item.read_bytes()
            for item in files("proxy.web.dashboard").joinpath("static").iterdir()
            if item.name[item.name.rfind(".") :] in CONTENT_TYPES
        }
        self.tags = {
            name: b'"' + blake2b(body, digest_size=12).hexdigest().encode() + b'"'
            for name, body in self.contents.items()
        }


def create_dashboard(settings: Settings) -> App:
    """Return the app behind /dashboard, and behind / for browsers."""
    dashboard = DashboardFiles()
    origins = frozenset(settings.dashboard.origins)

    async def serve(scope: Scope, _: Receive, send: Send) -> None:
        path: str = scope["path"]
        if scope["method"] not in ("GET", "HEAD"):
            await _send_answer(send, 405, [*PAGE_HEADERS, (b"allow", b"GET, HEAD")])
        elif path == "/":
            # Not for good: a browser that remembers it would ask another server at this address for the dashboard.
            await _send_answer(send, 307, [*PAGE_HEADERS, (b"location", b"dashboard/")])
        elif path == ROOT_PATH.rstrip("/"):
            # Relative: a reverse proxy may serve this below a path of its own.
            await _send_answer(send, 308, [*PAGE_HEADERS, (b"location", b"dashboard/")])
        else:
            name = path.removeprefix(ROOT_PATH) or START_PAGE
            if name in dashboard.contents:
                await _send_file(scope, send, dashboard, name, origins)
            else:
                await _send_answer(
                    send, 404, PAGE_HEADERS, b"There is no such file. The dashboard is at /dashboard/.\n"
                )

    return serve


async def _send_file(
    scope: Scope, send: Send, dashboard_files: DashboardFiles, name: str, origins: frozenset[str]
) -> None:
    body, tag = dashboard_files.contents[name], dashboard_files.tags[name]
    headers = [*PAGE_HEADERS, (b"etag", tag), *_build_sharing_headers(scope, name, origins)]
    known = [one.strip().removeprefix("W/") for one in find_header(scope["headers"], b"if-none-match").split(",")]
    if tag.decode() in known or known == ["*"]:
        await _send_answer(send, 304, headers)
        return
    kind = CONTENT_TYPES[name[name.rfind(".") :]]
    await _send_answer(send, 200, [*headers, (b"content-type", kind)], body, head=scope["method"] == "HEAD")


def _build_sharing_headers(scope: Scope, name: str, origins: frozenset[str]) -> Headers:
    """Return the headers that allow the use of a file. The widget: pages of the origins in `dashboard.origins`. The
    rest: the proxy's own pages alone."""
    if name != WIDGET_FILE:
        return [(b"cross-origin-resource-policy", b"same-origin")]
    origin = find_header(scope["headers"], b"origin").lower()
    shared: Headers = [(b"cross-origin-resource-policy", b"cross-origin"), (b"vary", b"origin")]
    if origin in origins:
        shared.append((b"access-control-allow-origin", origin.encode("latin-1")))
    return shared


async def _send_answer(send: Send, status: int, headers: Headers, body: bytes = b"", *, head: bool = False) -> None:
    kind = [] if any(name == b"content-type" for name, _ in headers) else [(b"content-type", b"text/plain")]
    length = [] if status == 304 else [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": [*headers, *kind, *length]})
    await send({"type": "http.response.body", "body": b"" if head else body})
