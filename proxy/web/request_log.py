"""Request log: one line for each request, when its answer has ended.

The line holds the method, the path without its query, the status and the milliseconds. For a managed request it also
holds the session, the policy, the prompt's tokens before and after, and the cached tokens. It never holds a header, a
body, a query or an error's text, because these may contain credentials and messages.

The exchange writes its facts into the scope; this layer adds the facts of the connection. Probes are logged at debug
level, because they come every few seconds.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable
from typing import Any, Final

from proxy.web.asgi import App, Message, Receive, Scope, Send

log = logging.getLogger("proxy.requests")

FACTS_KEY: Final = "context.facts"
"""Key of a request's scope for the dictionary that the exchange fills."""
MAX_PATH_CHARS: Final = 200
"""Characters of a path that are logged."""
QUIET_PATHS: Final = frozenset({"/healthz", "/readyz", "/metrics"})
CLIENT_GONE_STATUS: Final = 499
"""The status of a request whose client left before the answer began."""


def log_requests(app: App) -> App:
    """Return the outermost layer: it logs a line for each request that `app` has answered."""

    async def logging_app(scope: Scope, receive: Receive, send: Send) -> None:
        level = logging.DEBUG if scope.get("path") in QUIET_PATHS else logging.INFO
        if scope["type"] != "http" or not log.isEnabledFor(level):
            await app(scope, receive, send)
            return
        began = time.perf_counter()
        facts: dict[str, Any] = {}
        scope[FACTS_KEY] = facts
        status, whole = CLIENT_GONE_STATUS, False

        def noting(message: Message) -> Awaitable[None]:
            nonlocal status, whole
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                whole = not message.get("more_body", False)
            return send(message)

        try:
            await app(scope, receive, noting)
        finally:
            line = {"method": scope["method"], "path": render_path(scope), "status": status, **facts}
            if not whole:
                line["broken_off"] = True
            line["ms"] = round((time.perf_counter() - began) * 1000, 1)
            log.log(level, "request", extra=line)

    return logging_app


def render_path(scope: Scope) -> str:
    """Return the path as it came, without its query; cut, and without control characters that a terminal would obey."""
    raw: bytes = scope.get("raw_path") or str(scope["path"]).encode("utf-8", "surrogateescape")
    text = raw.partition(b"?")[0].decode("ascii", "replace")
    return "".join(one if one.isprintable() else "?" for one in text[:MAX_PATH_CHARS])
