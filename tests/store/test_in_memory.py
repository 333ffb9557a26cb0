from __future__ import annotations

from pathlib import Path

import pytest

from proxy.errors import StoreRefused, StoreUnavailable
from proxy.store import create_store
from proxy.store.in_memory import InMemoryStore
from proxy.store.sqlite import SqliteStore
from tests.store.conftest import RowFactory
from tests.stores import count_rows


async def test_a_put_is_done_when_it_returns() -> None:
    store = InMemoryStore()
    await store.open()
    assert store.put(RowFactory().begin()).done()
    await store.close()


async def test_two_stores_in_memory_share_nothing() -> None:
    one, two = InMemoryStore(), InMemoryStore()
    await one.open()
    await two.open()
    await one.put(RowFactory().begin())
    assert (await count_rows(two))["sessions"] == 0
    await one.close()
    await two.close()


async def test_a_store_that_is_not_open_yet_is_unavailable() -> None:
    store = InMemoryStore()
    assert not store.healthy
    with pytest.raises(StoreUnavailable):
        await count_rows(store)


def test_connect_gives_the_store_that_is_named(tmp_path: Path) -> None:
    assert isinstance(create_store(":memory:"), InMemoryStore)
    plain = create_store(str(tmp_path / "a"))
    assert isinstance(plain, SqliteStore)
    url = create_store(f"sqlite:///{tmp_path}/a")
    assert isinstance(url, SqliteStore)
    assert url.path == plain.path
    assert create_store("sqlite:///data/a").path == Path("data/a")  # type: ignore[attr-defined]


def test_a_store_that_does_not_exist_is_refused() -> None:
    with pytest.raises(StoreRefused, match="mongodb"):
        create_store("mongodb://localhost/x")
