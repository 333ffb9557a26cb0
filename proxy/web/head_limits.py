"""Limits on every request: the bytes of its headers, and exactly one valid Host.

The fast HTTP parser accepts header blocks of megabytes and any number of Hosts (measured: 5 MB, 100,000 headers, two
Hosts). The proxy must therefore refuse them. No code here or behind it decides on a URL built from the Host header:
only `scope["path"]` gives the route of a request.
"""

from __future__ import annotations

import re
from typing import Final

from proxy.errors import BadRequest, HeadersTooLarge
from proxy.settings.load import Settings
from proxy.web.asgi import App, Receive, Scope, Send

LINE_OVERHEAD: Final = 4
"""Bytes of a header line in addition to its name and value: colon, space, CR, LF."""

_HOST: Final = re.compile(rb"(?:[A-Za-z0-9._~-]+|\[[0-9A-Fa-f:.%A-Za-z0-9]+\])(?::[0-9]{0,5})?")


def limit_heads(app: App, settings: Settings) -> App:
    """Refuse a bad request before `app` sees it. Raises HeadersTooLarge and BadRequest; `error_responses.answer_errors`
    stands outside."""
    limit = settings.limits.header_kb * 1024

    async def guard(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            check_head(scope, limit)
        await app(scope, receive, send)

    return guard


def check_head(scope: Scope, limit: int) -> None:
    """Raises HeadersTooLarge if request line and headers exceed `limit` bytes, BadRequest for a wrong Host."""
    size = len(scope.get("raw_path") or scope["path"]) + len(scope["query_string"])
    hosts = []
    for name, value in scope["headers"]:
        size += len(name) + len(value) + LINE_OVERHEAD
        if name == b"host":
            hosts.append(value)
    if size > limit:
        raise HeadersTooLarge(
            f"the request's head is {size} bytes long; {limit} are allowed", hint="See limits.header_kb."
        )
    if len(hosts) > 1:
        raise BadRequest("the request has more than one Host header")
    if not hosts and scope.get("http_version") != "1.0":  # RFC 9112 3.2; HTTP/1.0 had none
        raise BadRequest("the request has no Host header")
    if hosts and not _HOST.fullmatch(hosts[0]):
        raise BadRequest("the request's Host header is not a host")
