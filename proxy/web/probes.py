"""Whether the process lives, whether it can serve, and its numbers.

Chat works without the store, so a store that is away is told in the body of /readyz and does not make it fail: an
orchestrator that took the proxy out would turn a lost history into a lost service. /healthz touches nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from fastapi import FastAPI, Response
from fastapi.responses import JSONResponse

from proxy.errors import StoreError
from proxy.metrics import CONTENT_TYPE, Metrics
from proxy.store.base import Store

PATIENCE_S: Final = 1.0
"""How long the store may take to count its rows before that counts as away."""


def probes(store: Store, metrics: Metrics, *, draining: Callable[[], bool] = lambda: False) -> FastAPI:
    """The app with /healthz, /readyz and /metrics. `draining`: whether we have been told to stop."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)

    @app.get("/healthz")
    async def healthz() -> JSONResponse:
        return JSONResponse({"status": "ok"})

    @app.get("/readyz")
    async def readyz() -> JSONResponse:
        rows = await _rows(store)
        status = "draining" if draining() else "ok" if rows is not None and store.healthy else "degraded"
        told = {"status": status, "store": "ok" if rows is not None and store.healthy else "away", "rows": rows}
        return JSONResponse(told, status_code=503 if status == "draining" else 200)

    @app.get("/metrics")
    async def numbers() -> Response:
        return Response(metrics.text(), headers={"content-type": CONTENT_TYPE})

    return app


async def _rows(store: Store) -> dict[str, int] | None:
    try:
        async with asyncio.timeout(PATIENCE_S):
            return await store.count()
    except (StoreError, TimeoutError):
        return None
