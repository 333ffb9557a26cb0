from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from itertools import pairwise
from pathlib import Path

import pytest

from proxy.errors import StoreRefused, StoreUnavailable
from proxy.store import sql, writer
from proxy.store.journal import MAX_SLOTS
from proxy.store.readonly import ReadOnlyStore
from proxy.store.sqlite import SqliteStore
from tests.raw_upstream import wait_until
from tests.store.conftest import RowFactory, digest
from tests.stores import count_rows, sqlite_store

make = RowFactory()


async def opened(path: Path, **settings: object) -> SqliteStore:
    store = sqlite_store(path, **settings)
    await store.open()
    return store


async def test_what_was_put_is_there_after_it_is_opened_again(tmp_path: Path) -> None:
    rows = make.line(10)
    store = await opened(tmp_path / "db")
    await store.put([*make.begin(), *rows])
    await store.close()
    store = await opened(tmp_path / "db")
    assert [r.body for r in await store.read_chain("t1", "s1", rows[-1].key)] == [row.body for row in rows]
    more = make.message(digest("more"), rows[-1].key, 10)
    await store.put([more])
    assert (await store.read_chain("t1", "s1", more.key))[-1].seq == 11
    await store.close()


async def test_close_leaves_one_file_and_its_lock(tmp_path: Path) -> None:
    store = await opened(tmp_path / "db")
    await store.put(make.line(3))
    await store.close()
    await store.close()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["db", "db.lock"]


async def test_a_second_store_of_this_process_is_refused_too(tmp_path: Path) -> None:
    store = await opened(tmp_path / "db")
    with pytest.raises(StoreRefused, match="in use"):
        await opened(tmp_path / "db")
    await store.put(make.begin())
    assert (await count_rows(store))["sessions"] == 1
    await store.close()


async def test_a_file_and_a_link_to_it_are_one_store(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real/db")
    store = await opened(tmp_path / "link", durability="normal")
    with pytest.raises(StoreRefused, match="in use"):
        await opened(tmp_path / "real" / "db")
    await store.put(make.line(3))
    assert store.log_bytes > 0
    await asyncio.to_thread(store._writer._file.sync_log)
    assert store.healthy
    await store.close()
    assert sorted(file.name for file in tmp_path.glob("**/*")) == ["db", "db.lock", "link", "real"]


async def test_a_log_that_was_removed_is_saved_while_it_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(writer, "_CHECK_S", 0.01)
    store = await opened(tmp_path / "db")
    (tmp_path / "db-wal").unlink()
    await store.put([*make.begin(), *make.line(3)])
    caplog.clear()  # a check before this put has saved the log without it
    async with asyncio.timeout(60):
        while "was removed and is saved" not in caplog.text:
            await asyncio.sleep(0.01)
            await store.put(make.begin())
    killed = tmp_path / "killed"
    killed.write_bytes((tmp_path / "db").read_bytes())
    await store.close()
    again = await opened(killed)
    assert (await count_rows(again))["messages"] == 3
    await again.close()


async def test_a_path_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreRefused):
        await opened(tmp_path)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreRefused) as caught:
        await opened(tmp_path / "file" / "db")
    assert "Give a path" in caught.value.hint


async def test_a_damaged_file_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "db"
    path.write_bytes(b"no database at all, but long enough to have a header" * 100)
    with pytest.raises(StoreRefused, match="damaged"):
        await opened(path)
    assert path.read_bytes().startswith(b"no database")


async def test_reader_connections_cannot_write(tmp_path: Path) -> None:
    store = await opened(tmp_path / "db")
    with pytest.raises(StoreUnavailable):
        await store._fetch(sql.INSERT_FORM, ("t", "s", b"f", b"b"))
    assert store.trouble
    assert (await count_rows(store))["forms"] == 0
    assert store.healthy
    await store.close()


async def test_the_fault_of_one_reader_is_over_without_a_request_that_needs_it(tmp_path: Path) -> None:
    store = await opened(tmp_path / "db")
    with pytest.raises(StoreUnavailable):
        await store._readers[1].fetch("DELETE FROM sessions", ())
    await count_rows(store)  # by the first one, as all reads that come one by one
    assert not store.readable
    await wait_until(lambda: store.healthy)
    await store.close()


@pytest.mark.timed
async def test_a_read_that_takes_too_long_is_ended_and_the_next_one_works(tmp_path: Path) -> None:
    store = await opened(tmp_path / "db", read_s=0.2, readers=1)
    endless = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n WHERE i < 0"
    started = time.monotonic()
    with pytest.raises(StoreUnavailable, match="longer than"):
        await store._fetch(endless, ())
    assert store.trouble
    await count_rows(store)
    assert store.healthy
    assert time.monotonic() - started < 2
    await store.close()


@pytest.mark.timed
async def test_a_slow_read_does_not_hold_up_the_others(tmp_path: Path) -> None:
    store = await opened(tmp_path / "db", read_s=1.0)
    endless = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n WHERE i < 0"
    slow = asyncio.ensure_future(store._fetch(endless, ()))
    await asyncio.sleep(0.05)
    started = time.monotonic()
    for _ in range(5):
        await count_rows(store)
        await store.put(make.begin())
    assert time.monotonic() - started < 0.9
    with pytest.raises(StoreUnavailable):
        await slow
    await store.close()


async def test_a_read_that_fails_opens_its_connection_again(tmp_path: Path) -> None:
    path = tmp_path / "db"
    store = await opened(path, readers=1)
    await store.put(make.begin())
    with pytest.raises(StoreUnavailable):
        await store._fetch("SELECT * FROM missing", ())
    assert (await count_rows(store))["sessions"] == 1
    await store.close()


async def test_cancelling_reads_and_writes_leaves_nothing_behind(tmp_path: Path) -> None:
    store = await opened(tmp_path / "db")
    await store.put(make.begin())
    rows = make.line(50)
    for row in rows:
        work = asyncio.ensure_future(store.read_chain("t1", "s1", row.key))
        write = asyncio.ensure_future(asyncio.wait_for(store.put([row]), 5))
        await asyncio.sleep(0)
        work.cancel()
        write.cancel()
        await asyncio.gather(work, write, return_exceptions=True)
    await store.put(make.begin())
    assert [r.seq for r in await store.read_chain("t1", "s1", rows[-1].key)] == list(range(1, 51))
    assert store.queued == 0
    await store.close()


async def test_the_file_grows_with_what_is_new_and_not_with_what_is_resent(tmp_path: Path) -> None:
    path = tmp_path / "db"
    sizes = []
    rows = [row for n in range(8) for row in make.line(100, f"line {n}")]
    rows = [
        make.message(row.key, row.parent, row.position, body=(b"%d " % n) * 200, at=float(n))
        for n, row in enumerate(rows)
    ]
    for part in range(8):
        store = await opened(path, durability="normal")
        await store.put(make.begin())
        for upto in range(part * 100 + 10, part * 100 + 101, 10):
            await store.put(rows[part * 100 : upto])
        await store.close()
        sizes.append(path.stat().st_size)
    steps = [after - before for before, after in pairwise(sizes)]
    assert max(steps) < 1.5 * min(steps)
    assert sizes[-1] - MAX_SLOTS * 4096 < 2 * sum(len(row.body) for row in rows)


async def test_opening_keeps_aiosqlite_from_logging_what_users_wrote(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    store = await opened(tmp_path / "db")
    await store.put([make.edit(digest("k"), text="a canary")])
    await store.find_chain_hits("t1", [b"canary canary 16"], "session canary")
    await store.close()
    assert "canary" not in caplog.text


@pytest.mark.timed
async def test_searches_stay_quick_with_many_sessions(tmp_path: Path) -> None:
    store = await opened(tmp_path / "db", durability="normal")
    root = digest("the same first answer")
    futures = []
    for number in range(3000):
        one = RowFactory(session=f"s{number}")
        own = digest("own", number)
        futures.append(
            store.put(
                [
                    *one.begin(),
                    one.message(root, at=float(number), answer=True),
                    one.message(own, root, 1, at=float(number), answer=True),
                ]
            )
        )
    await asyncio.gather(*futures)
    started = time.monotonic()
    for number in range(0, 3000, 100):
        hits = await store.find_chain_hits("t1", [root, digest("own", number)], None)
        assert hits[0].session == f"s{number}"
    assert (time.monotonic() - started) / 30 < 0.02
    await store.close()


async def test_every_file_uses_the_settings_that_the_promises_rest_on(tmp_path: Path) -> None:
    store = await opened(tmp_path / "db")
    connection = sqlite3.connect(tmp_path / "db")
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert connection.execute("PRAGMA auto_vacuum").fetchone() == (2,)
    connection.close()
    reader = store._readers[0]._connection
    assert reader is not None
    assert list(await reader.execute_fetchall("PRAGMA query_only")) == [(1,)]
    assert list(await reader.execute_fetchall("PRAGMA wal_autocheckpoint")) == [(0,)]
    await store.close()


async def test_what_was_open_when_the_last_process_ended_is_lost_also_for_reports(tmp_path: Path) -> None:
    store = await opened(tmp_path / "db")
    await store.put([*make.begin(), make.exchange("killed", time.time())])
    assert [one.status for one in await store.read_exchanges("t1", "s1")] == ["open"]
    await store.close()
    store = await opened(tmp_path / "db")
    await store.put([make.exchange("new", time.time() + 1)])
    found = [(one.exchange, one.status) for one in await store.read_exchanges("t1", "s1")]
    reading = ReadOnlyStore(tmp_path / "db")
    await reading.open()
    assert [(one.exchange, one.status) for one in await reading.read_exchanges("t1", "s1")] == found
    assert found == [("new", "open"), ("killed", "lost")]
    await reading.close()
    await store.close()
