"""Probes: the process lives, the process can serve, and its metrics.

Chat works without the store, so an unreachable store is reported in the body of /readyz and does not make it fail. An
orchestrator that removed the proxy would turn a lost history into a lost service. /healthz uses no resource.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from proxy.metrics import CONTENT_TYPE, Metrics
from proxy.store.reads import Store
from proxy.web.asgi import App, Receive, Scope, Send


def create_probes(store: Store, metrics: Metrics, *, draining: Callable[[], bool] = lambda: False) -> App:
    """Return the app with /healthz, /readyz and /metrics. `draining`: returns True if the process is to stop."""

    async def answer_probe(scope: Scope, _: Receive, send: Send) -> None:
        path = scope["path"]
        if path not in ("/healthz", "/readyz", "/metrics"):
            await _send(send, 404, msgspec.json.encode({"detail": "Not Found"}))
        elif scope["method"] not in ("GET", "HEAD"):  # the server leaves the body of an answer to HEAD out
            await _send(send, 405, msgspec.json.encode({"detail": "Method Not Allowed"}), allow="GET, HEAD")
        elif path == "/healthz":
            await _send(send, 200, b'{"status":"ok"}')
        elif path == "/readyz":
            fields = _read_readiness(store, stopping=draining())
            await _send(send, 503 if fields["status"] == "draining" else 200, msgspec.json.encode(fields))
        else:
            await _send(send, 200, metrics.render_text(), content_type=CONTENT_TYPE)

    return answer_probe


def _read_readiness(store: Store, *, stopping: bool) -> dict[str, Any]:
    status = "draining" if stopping else "ok" if store.healthy else "degraded"
    fields = {"status": status, "store": "ok" if store.healthy else store.trouble, "queued": store.queued}
    return fields | {"dropped": store.dropped}


async def _send(send: Send, status: int, body: bytes, *, content_type: str = "application/json", **more: str) -> None:
    headers = {"content-length": str(len(body)), "content-type": content_type, **more}
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        }
    )
    await send({"type": "http.response.body", "body": body})
