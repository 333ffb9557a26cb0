from __future__ import annotations

import json
from collections.abc import Callable

from proxy.metrics import Metrics
from proxy.store.in_memory import InMemoryStore
from proxy.web.probes import create_probes
from tests.raw_upstream import send_raw, serve_app


async def get(
    path: str, store: InMemoryStore, *, draining: Callable[[], bool] = lambda: False, method: bytes = b"GET"
) -> tuple[int, bytes, bytes]:
    async with serve_app(create_probes(store, Metrics(), draining=draining)) as port:
        head = b"%b %b HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n" % (method, path.encode())
        raw = await send_raw(port, head)
    head, _, body = raw.partition(b"\r\n\r\n")
    return int(raw.split()[1]), head, body


async def test_readiness_tells_how_the_store_is_without_asking_it() -> None:
    store = InMemoryStore()
    await store.open()
    status, _, body = await get("/readyz", store)
    assert (status, json.loads(body)) == (200, {"status": "ok", "store": "ok", "queued": 0, "dropped": 0})
    await store.close()


async def test_a_store_that_is_away_leaves_the_proxy_ready_and_is_reported() -> None:
    store = InMemoryStore()  # never opened
    status, _, body = await get("/readyz", store)
    assert status == 200, "a proxy that is taken out for its store turns a lost history into a lost service"
    told = json.loads(body)
    assert (told["status"], told["store"]) == ("degraded", "not open")
    assert (await get("/healthz", store))[0] == 200


async def test_while_draining_we_are_not_ready_but_alive() -> None:
    store = InMemoryStore()
    assert (await get("/readyz", store, draining=lambda: True))[0] == 503
    assert (await get("/healthz", store, draining=lambda: True))[0] == 200


async def test_a_probe_may_ask_for_the_head_alone() -> None:
    store = InMemoryStore()
    for path in ("/healthz", "/readyz", "/metrics"):
        status, head, body = await get(path, store, method=b"HEAD")
        assert (status, body) == (200, b"")
        assert b"content-length: 0" not in head
    assert (await get("/readyz", store, method=b"HEAD", draining=lambda: True))[0] == 503
    assert (await get("/healthz", store, method=b"POST"))[0] == 405


async def test_the_numbers_are_prometheus_text() -> None:
    status, head, body = await get("/metrics", InMemoryStore())
    assert status == 200
    assert b"content-type: text/plain" in head
    assert b"context_proxy_client_gone_total 0.0" in body
