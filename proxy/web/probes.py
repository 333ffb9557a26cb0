"""Probes: the process lives, the process can serve, and its metrics.

Chat works without the store, so an unreachable store is reported in the body of /readyz and does not make it fail. An
orchestrator that removed the proxy would turn a lost history into a lost service. /healthz uses no resource.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from proxy.metrics import CONTENT_TYPE, Metrics
from proxy.store.base import Store


@dataclass(frozen=True, slots=True)
class _Probed:
    """The objects that the probes read. The framework keeps the functions behind its routes for the lifetime of the
    process. With these objects in a closure, no app would ever be freed, and its conversations in memory would stay
    too."""

    store: Store
    metrics: Metrics
    draining: Callable[[], bool]


async def _healthz() -> JSONResponse:
    return JSONResponse({"status": "ok"})


async def _readyz(request: Request) -> JSONResponse:
    asked: _Probed = request.app.state.probed
    store = asked.store
    status = "draining" if asked.draining() else "ok" if store.healthy else "degraded"
    fields = {"status": status, "store": "ok" if store.healthy else store.trouble, "queued": store.queued}
    return JSONResponse(fields | {"dropped": store.dropped}, status_code=503 if status == "draining" else 200)


async def _metrics(request: Request) -> Response:
    asked: _Probed = request.app.state.probed
    return Response(asked.metrics.render_text(), headers={"content-type": CONTENT_TYPE})


def create_probes(store: Store, metrics: Metrics, *, draining: Callable[[], bool] = lambda: False) -> FastAPI:
    """Return the app with /healthz, /readyz and /metrics. `draining`: returns True if the process is to stop."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    app.state.probed = _Probed(store, metrics, draining)
    for path, probe in (("/healthz", _healthz), ("/readyz", _readyz), ("/metrics", _metrics)):
        app.get(path)(probe)
    return app
