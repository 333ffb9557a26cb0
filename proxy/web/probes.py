"""Whether the process lives, whether it can serve, and its numbers.

Chat works without the store, so a store that is away is told in the body of /readyz and does not make it fail: an
orchestrator that took the proxy out would turn a lost history into a lost service. /healthz touches nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from fastapi import FastAPI, Response
from fastapi.responses import JSONResponse

from proxy.metrics import CONTENT_TYPE, Metrics
from proxy.store.base import Store


def probes(store: Store, metrics: Metrics, *, draining: Callable[[], bool] = lambda: False) -> FastAPI:
    """The app with /healthz, /readyz and /metrics. `draining`: whether we have been told to stop."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)

    @app.get("/healthz")
    async def healthz() -> JSONResponse:
        return JSONResponse({"status": "ok"})

    @app.get("/readyz")
    async def readyz() -> JSONResponse:
        status = "draining" if draining() else "ok" if store.healthy else "degraded"
        told = {"status": status, "store": "ok" if store.healthy else store.trouble, "queued": store.queued}
        return JSONResponse(told | {"dropped": store.dropped}, status_code=503 if status == "draining" else 200)

    @app.get("/metrics")
    async def numbers() -> Response:
        return Response(metrics.text(), headers={"content-type": CONTENT_TYPE})

    return app
