"""A store that is only read, beside the one that is written to."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from proxy.errors import StoreRefused, StoreUnavailable
from proxy.store.readonly import ReadOnlyStore
from proxy.store.reads import Store
from tests.store.conftest import RowFactory, digest
from tests.stores import count_rows, sqlite_store


async def test_sessions_are_listed_by_pages_in_the_order_of_their_names(store: Store) -> None:
    for tenant, session in (("t2", "b"), ("t1", "b"), ("t1", "a"), ("t2", "a")):
        await store.put(RowFactory(tenant, session).begin())
    assert await store.read_session_names() == [("t1", "a"), ("t1", "b"), ("t2", "a"), ("t2", "b")]
    assert await store.read_session_names(limit=1) == [("t1", "a")]
    assert await store.read_session_names(("t1", "b"), 2) == [("t2", "a"), ("t2", "b")]


async def test_a_read_only_store_reads_while_another_store_writes(tmp_path: Path, make: RowFactory) -> None:
    file = tmp_path / "store.sqlite3"
    serving = sqlite_store(file)
    await serving.open()
    await serving.put([*make.begin(), *make.line(2)])
    await count_rows(serving)  # what the serving one reads itself is in the tables from then on
    reading = ReadOnlyStore(file)
    await reading.open()
    try:
        assert reading.healthy
        assert len(await reading.read_chain("t1", "s1", digest("m", 1))) == 2
        await serving.put(make.line(3))
        await count_rows(serving)
        assert len(await reading.read_chain("t1", "s1", digest("m", 2))) == 3
    finally:
        await reading.close()
        await serving.close()


async def test_it_reads_what_a_proxy_that_has_stopped_left_behind(tmp_path: Path, make: RowFactory) -> None:
    file = tmp_path / "store.sqlite3"
    serving = sqlite_store(file)
    await serving.open()
    await serving.put(make.begin())
    await serving.close()
    reading = ReadOnlyStore(file)
    await reading.open()
    assert await reading.read_session_names() == [("t1", "s1")]
    await reading.close()
    await reading.close()
    assert reading.trouble == "closed"


async def test_a_read_only_store_refuses_rows(tmp_path: Path, make: RowFactory) -> None:
    file = tmp_path / "store.sqlite3"
    serving = sqlite_store(file)
    await serving.open()
    await serving.close()
    reading = ReadOnlyStore(file)
    await reading.open()
    with pytest.raises(StoreUnavailable, match="only read"):
        await reading.put(make.begin())
    assert reading.dropped == 1
    assert await reading.read_session_names() == []
    await reading.close()


async def test_it_is_unavailable_until_it_is_opened_and_for_what_cannot_be_asked(tmp_path: Path) -> None:
    file = tmp_path / "store.sqlite3"
    serving = sqlite_store(file)
    await serving.open()
    await serving.close()
    reading = ReadOnlyStore(file)
    with pytest.raises(StoreUnavailable, match="closed"):
        await reading.read_session_names()
    await reading.open()
    with pytest.raises(StoreUnavailable):
        await reading.read_branch("t1", "\ud800", "main")
    await reading.close()


def database(path: Path, mark: int, version: int) -> Path:
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA application_id = {mark}")
    connection.execute(f"PRAGMA user_version = {version}")
    connection.execute("CREATE TABLE x (y)")
    connection.commit()
    connection.close()
    return path


@pytest.mark.parametrize(
    ("mark", "version", "why"),
    [(1, 1, "another program"), (0x63747870, 0, "Start the proxy"), (0x63747870, 10_000, "Install the version")],
)
async def test_a_read_only_store_refuses_an_unknown_schema(tmp_path: Path, mark: int, version: int, why: str) -> None:
    with pytest.raises(StoreRefused, match=why):
        await ReadOnlyStore(database(tmp_path / "x.sqlite3", mark, version)).open()


async def test_no_database_and_no_database_at_all_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreRefused, match="there is no database"):
        await ReadOnlyStore(tmp_path / "none").open()
    (tmp_path / "text").write_text("this is no database, and long enough to be looked at as one " * 20)
    with pytest.raises(StoreRefused, match="cannot be read"):
        await ReadOnlyStore(tmp_path / "text").open()
