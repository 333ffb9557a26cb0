from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest

from proxy.errors import StoreUnavailable
from proxy.metrics import Metrics
from proxy.store.memory import MemoryStore
from proxy.web import probes as module
from proxy.web.probes import probes
from tests.faulty import ask, serving


async def get(
    path: str, store: MemoryStore, *, draining: Callable[[], bool] = lambda: False
) -> tuple[int, bytes, bytes]:
    async with serving(probes(store, Metrics(), draining=draining)) as port:
        raw = await ask(port, b"GET %b HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n" % path.encode())
    head, _, body = raw.partition(b"\r\n\r\n")
    return int(raw.split()[1]), head, body


async def test_readiness_tells_the_store_and_its_rows() -> None:
    store = MemoryStore()
    await store.open()
    status, _, body = await get("/readyz", store)
    told = json.loads(body)
    assert (status, told["status"], told["store"]) == (200, "ok", "ok")
    assert told["rows"]["messages"] == 0
    await store.close()


class Away(MemoryStore):
    """A store that fails or hangs when it is asked."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    async def count(self) -> dict[str, int]:
        if self.seconds:
            await asyncio.sleep(self.seconds)
        raise StoreUnavailable("away")


@pytest.mark.parametrize("seconds", [0, 10])
async def test_a_store_that_is_away_leaves_us_ready_and_is_told(
    seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PATIENCE_S", 0.05)
    store = Away(seconds)
    status, _, body = await get("/readyz", store)
    assert status == 200
    assert json.loads(body) == {"status": "degraded", "store": "away", "rows": None}
    assert (await get("/healthz", store))[0] == 200


async def test_while_draining_we_are_not_ready_but_alive() -> None:
    store = Away(0)
    assert (await get("/readyz", store, draining=lambda: True))[0] == 503
    assert (await get("/healthz", store, draining=lambda: True))[0] == 200


async def test_the_numbers_are_prometheus_text() -> None:
    status, head, body = await get("/metrics", Away(0))
    assert status == 200
    assert b"content-type: text/plain" in head
    assert b"context_proxy_client_gone_total 0.0" in body
