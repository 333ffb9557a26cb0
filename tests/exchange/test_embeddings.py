"""Vectors of messages: off by default, made once, paid from the helper's budget, and never in anybody's way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from proxy.errors import StoreUnavailable
from proxy.exchange.embeddings import MAX_CHARS, load_vectors
from proxy.store.base import SessionRow
from proxy.store.circuit_breaker import DOWN_AFTER
from tests.failing_store import FailingStore, use_store
from tests.proxy_server import RunningProxy, run_proxy
from tests.raw_upstream import Connection, RawRequest, run_upstream, wait_until
from tests.scripted_model import send_reply

BEARER = [(b"authorization", b"Bearer sk-one"), (b"cookie", b"c")]


class Embedder:
    """An upstream whose vectors say how long a text is. status: of its answers. hold: it waits until it is set."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.requests: list[RawRequest] = []
        self.status = b"200 OK"
        self.hold: asyncio.Event | None = None

    async def __call__(self, request: RawRequest, connection: Connection) -> None:
        self.requests.append(request)
        if self.hold is not None:
            await self.hold.wait()
        texts = json.loads(request.body)["input"]
        self.batches.append(texts)
        rows = [{"index": n, "embedding": [len(text), 0.1]} for n, text in enumerate(texts)]
        body = {"data": rows, "usage": {"prompt_tokens": 10 * len(texts), "total_tokens": 0}}
        await send_reply(connection, self.status, json.dumps(body).encode(), b"content-type: application/json")


@asynccontextmanager
async def embedding(
    model: Embedder, *, dollars: float = 1.0, store: FailingStore | None = None, **more: Any
) -> AsyncIterator[RunningProxy]:
    async with run_upstream(model) as upstream:
        tree: dict[str, Any] = {
            "upstreams": {"main": {"base_url": f"http://127.0.0.1:{upstream.port}/v1"}},
            "helper": {"dollars_a_day": dollars, "concurrency": 1, "timeout_s": 2.0},
            "embeddings": {"enabled": True, "upstream": "main", "model": "demo", "batch": 3, **more},
        }
        async with run_proxy(0, **tree, before=use_store(store) if store else None) as proxy:
            yield proxy


async def ask(
    proxy: RunningProxy, *texts: str, tenant: str = "t", session: str = "s"
) -> dict[bytes, tuple[float, ...]]:
    with suppress(StoreUnavailable):  # vectors are stored only where their session is
        await proxy.app.services.store.put([SessionRow(tenant, session, True, 0.0)])
    return await load_vectors(proxy.app.services, tenant, session, {text.encode(): text for text in texts}, BEARER)


def count_outcomes(proxy: RunningProxy, outcome: str) -> float:
    return proxy.count("helper_total", kind="embedding", outcome=outcome)


async def test_vectors_are_made_in_batches_and_once_each() -> None:
    model = Embedder()
    async with embedding(model) as proxy:
        made = await ask(proxy, *("x" * n for n in range(1, 8)))
        assert {form: round(vector[0]) for form, vector in made.items()} == {b"x" * n: n for n in range(1, 8)}
        assert [len(batch) for batch in model.batches] == [3, 3, 1]
        assert proxy.count("helper_dollars_total", kind="embedding") == pytest.approx(70 / 1e6)
        assert proxy.count("helper_tokens_total", kind="embedding") == 70
        await proxy.rows("SELECT 1")
        again = await ask(proxy, "x", "xx", "new text")
        assert (again[b"x"], again[b"xx"]) == (made[b"x"], made[b"xx"]), "the same to the last bit, whoever made it"
        assert model.batches[3:] == [["new text"]]
        assert count_outcomes(proxy, "kept") == 4
        assert await proxy.rows("SELECT sum(asked), sum(prompt_tokens) FROM spending") == [(4, 80)]


async def test_embeddings_never_cross_a_session_or_a_tenant() -> None:
    model = Embedder()
    async with embedding(model) as proxy:
        for tenant, session in (("t", "s"), ("t", "u"), ("v", "s")):
            await ask(proxy, "the same", tenant=tenant, session=session)
            await proxy.rows("SELECT 1")
        assert model.batches == [["the same"]] * 3


async def test_no_vectors_are_made_where_they_are_off_or_there_is_no_text() -> None:
    model = Embedder()
    async with embedding(model, enabled=False) as proxy:
        assert await ask(proxy, "text") == {}
    async with embedding(model) as proxy:
        assert await ask(proxy) == {}
        assert await ask(proxy, "", " \n") == {}
    assert model.requests == []


async def test_a_long_text_is_reported_by_its_beginning_and_the_request_carries_the_credential_alone() -> None:
    model = Embedder()
    async with embedding(model) as proxy:
        await ask(proxy, "x" * (MAX_CHARS + 5))
    assert [len(text) for text in model.batches[0]] == [MAX_CHARS]
    (request,) = model.requests
    assert request.all(b"authorization") == [b"Bearer sk-one"]
    assert request.all(b"cookie") == []


async def test_a_failure_ends_the_round_is_counted_and_gives_what_there_is() -> None:
    model = Embedder()
    async with embedding(model) as proxy:
        await ask(proxy, "known")
        await proxy.rows("SELECT 1")
        model.status = b"500 No"
        assert set(await ask(proxy, "known", *("x" * n for n in range(1, 8)))) == {b"known"}
        assert count_outcomes(proxy, "failed") == 1
        for _ in range(4):
            assert set(await ask(proxy, "known", "x")) == {b"known"}
        assert count_outcomes(proxy, "failed") == DOWN_AFTER
        assert count_outcomes(proxy, "resting") == 5 - DOWN_AFTER


async def test_no_embeddings_are_made_without_a_budget() -> None:
    model = Embedder()
    async with embedding(model, dollars=0.0) as proxy:
        assert await ask(proxy, "text") == {}
        assert count_outcomes(proxy, "over_budget") == 1
    assert model.requests == []


async def test_no_more_are_made_at_once_than_the_settings_allow() -> None:
    model = Embedder()
    model.hold = asyncio.Event()
    async with embedding(model) as proxy:
        first = asyncio.create_task(ask(proxy, "one"))
        await wait_until(lambda: len(model.requests) == 1)
        assert await ask(proxy, "two") == {}
        assert count_outcomes(proxy, "queue_full") == 1
        model.hold.set()
        assert set(await first) == {b"one"}
        assert set(await ask(proxy, "two")) == {b"two"}


async def test_a_store_that_is_away_means_none() -> None:
    model, store = Embedder(), FailingStore()
    async with embedding(model, store=store) as proxy:
        store.reads = False
        assert await ask(proxy, "text") == {}
        assert count_outcomes(proxy, "store") == 1
    assert model.requests == []
