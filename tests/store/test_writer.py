from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from proxy.errors import StoreUnavailable
from proxy.store import database_file
from proxy.store import writer as module
from proxy.store.base import Row
from proxy.store.database_file import KEPT_LOG_BYTES, DatabaseFile
from proxy.store.erasure import EraseMessageRow
from proxy.store.full_text_search import IndexRow
from proxy.store.journal import MAX_ITEM_BYTES
from proxy.store.removal import RemovalStepRow
from proxy.store.write_queue import WriteItem
from proxy.store.writer import SqliteWriter
from tests.raw_upstream import wait_until
from tests.snapshot import snapshot
from tests.store.conftest import RowFactory, digest

make = RowFactory()


@pytest.fixture
async def writer(path: Path) -> AsyncIterator[SqliteWriter]:
    made = SqliteWriter(path, durability="full", spool_bytes=1 << 20, drain_s=0.2)
    await made.start()
    yield made
    await made.stop()


def count(path: Path, table: str) -> int:
    connection = snapshot(path)
    try:
        return int(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0])
    finally:
        connection.close()


@pytest.mark.timed
async def test_a_lone_item_is_committed_at_once(writer: SqliteWriter, path: Path) -> None:
    await writer.queue.put(make.begin())
    started = time.monotonic()
    for number in range(20):
        await writer.queue.put([make.form(b"%d" % number)])
    assert (time.monotonic() - started) / 20 < 0.1
    assert writer.commits == 21
    assert count(path, "forms") == 20


async def test_many_items_at_once_take_few_commits(writer: SqliteWriter, path: Path) -> None:
    await writer.queue.put(make.begin())
    futures = [writer.queue.put([make.form(b"%d" % number)]) for number in range(500)]
    await asyncio.gather(*futures)
    assert writer.commits < 50
    assert count(path, "forms") == 500


async def test_what_a_group_has_no_time_for_is_written_with_the_next(
    writer: SqliteWriter, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await writer.queue.put(make.begin())
    monkeypatch.setattr(module, "_BATCH_S", -1.0)  # each group has time for one item alone
    long = b"." * MAX_ITEM_BYTES  # not for the journal, which takes a group whole
    items = [writer.queue.put([make.form(b"%d" % number + long)], waited=False) for number in range(4)]
    await asyncio.wait_for(writer.queue.put([make.form(b"last" + long)]), 30)
    assert all(one.done() for one in items)
    assert count(path, "forms") == writer.commits - 1 == 5


async def test_an_item_resolves_only_when_another_connection_can_read_it(writer: SqliteWriter, path: Path) -> None:
    await writer.queue.put(make.begin())
    for number in range(20):
        await writer.queue.put([make.form(b"%d" % number)])
        assert count(path, "forms") == number + 1


async def test_the_loop_is_called_once_a_batch(writer: SqliteWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    settle = writer.queue.settle_items

    def counted(items: Sequence[WriteItem], error: Exception | None) -> None:
        calls.append(len(items))
        settle(items, error)

    monkeypatch.setattr(writer.queue, "settle_items", counted)
    await asyncio.gather(*(writer.queue.put([make.form(b"%d" % number)]) for number in range(200)))
    assert sum(calls) == 200
    assert len(calls) == writer.commits


async def test_stopping_the_writer_stores_all_queued_rows(path: Path) -> None:
    writer = SqliteWriter(path, durability="normal", spool_bytes=1 << 20)
    await writer.start()
    await writer.queue.put(make.begin())
    futures = [writer.queue.put([make.form(b"%d" % number)]) for number in range(300)]
    await writer.stop()
    await writer.stop()
    assert all(future.done() and future.exception() is None for future in futures)
    assert count(path, "forms") == 300


async def test_stop_gives_up_where_the_disk_does_not_come_back(path: Path) -> None:
    writer = SqliteWriter(path, durability="full", spool_bytes=1 << 20, drain_s=0.3)
    await writer.start()
    path.rename(path.with_name("moved"))
    future = writer.queue.put([make.form(b"lost")])
    await asyncio.sleep(0.05)
    await asyncio.wait_for(writer.stop(), 30)
    with pytest.raises(StoreUnavailable):
        await future
    assert writer.queue.dropped == 1


async def test_while_another_process_holds_the_lock_items_wait_and_are_written_after(
    writer: SqliteWriter, path: Path
) -> None:
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    future = writer.queue.put([*make.begin(), make.form(b"waits")])
    await wait_until(lambda: "locked" in writer.trouble)
    assert not future.done()
    other.execute("ROLLBACK")
    other.close()
    await asyncio.wait_for(future, 30)
    await wait_until(lambda: not writer.trouble)
    assert count(path, "forms") == 1


async def test_a_reader_with_an_old_snapshot_does_not_stop_writing_and_the_log_shrinks_after(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_IDLE_S", 0.1)
    writer = SqliteWriter(path, durability="full", spool_bytes=64 << 20)
    await writer.start()
    await writer.queue.put([*make.begin(), make.form(b"first")])
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM forms").fetchone()
    for number in range(60):
        await writer.queue.put([make.form(b"%d" % number * 50_000)])
    held = writer.log_bytes
    assert held > 2 << 20
    reader.execute("COMMIT")
    reader.close()
    await writer.queue.put([make.form(b"last")])
    await wait_until(lambda: writer.log_bytes == KEPT_LOG_BYTES)
    await writer.stop()


async def test_a_deleted_file_is_noticed_and_nothing_is_acknowledged_until_it_is_back(
    writer: SqliteWriter, path: Path
) -> None:
    await writer.queue.put([*make.begin(), make.form(b"before")])
    path.rename(path.with_name("moved"))
    future = writer.queue.put([make.form(b"after")])
    await wait_until(lambda: "No such file" in writer.trouble)
    assert not future.done()
    assert not path.exists()
    path.with_name("moved").rename(path)
    await asyncio.wait_for(future, 30)
    await wait_until(lambda: not writer.trouble)
    assert count(path, "forms") == 2


async def test_a_lost_file_is_noticed_without_a_write_too(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHECK_S", 0.1)
    writer = SqliteWriter(path, durability="full", spool_bytes=1 << 20)
    await writer.start()
    assert writer.trouble == ""
    path.rename(path.with_name("moved"))
    await wait_until(lambda: bool(writer.trouble))
    path.with_name("moved").rename(path)
    await wait_until(lambda: not writer.trouble)
    await writer.stop()


async def test_a_truncated_file_is_noticed(writer: SqliteWriter, path: Path) -> None:
    await writer.queue.put([make.form(b"before")])
    with path.open("r+b") as file:
        file.truncate(1000)
    future = writer.queue.put([make.form(b"after")])
    await wait_until(lambda: bool(writer.trouble))
    assert not future.done()


async def test_rights_that_were_opened_are_taken_back(writer: SqliteWriter, path: Path) -> None:
    path.chmod(0o644)
    await writer.queue.put([make.form(b"x")])
    assert path.stat().st_mode & 0o777 == 0o600


async def test_after_an_io_error_the_log_is_copied_before_anything_is_acknowledged(
    writer: SqliteWriter, path: Path
) -> None:
    await writer.queue.put([make.form(b"before")])
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM forms").fetchone()
    await writer.queue.put([make.form(b"in the log, and not copied while the reader is there")])
    writer._file.is_log_suspect = True
    path.rename(path.with_name("moved"))
    future = writer.queue.put([make.form(b"after")])
    await wait_until(lambda: "No such file" in writer.trouble)
    path.with_name("moved").rename(path)
    await wait_until(lambda: "I/O error" in writer.trouble)
    assert not future.done()
    reader.execute("COMMIT")
    reader.close()
    await asyncio.wait_for(future, 30)
    assert not writer._file.is_log_suspect


async def test_normal_durability_syncs_the_log_within_a_second(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[float] = []
    real = DatabaseFile.sync_log
    monkeypatch.setattr(module, "_SYNC_S", 0.1)

    def counted(self: DatabaseFile) -> None:
        synced.append(time.monotonic())
        real(self)

    monkeypatch.setattr(DatabaseFile, "sync_log", counted)
    writer = SqliteWriter(path, durability="normal", spool_bytes=1 << 20)
    await writer.start()
    try:
        commits = 0
        async with asyncio.timeout(30):
            while len(synced) < 4:
                await writer.queue.put([make.form(b"%f" % time.monotonic())])
                commits += 1
        # Not with every commit, and never sooner than the second (a tenth of one here) is over.
        assert commits > len(synced)
        assert all(later - earlier > 0.09 for earlier, later in pairwise(synced))
        await asyncio.sleep(0.3)
        quiet = len(synced)
        assert quiet <= 6, "once more for what was written last"
        await asyncio.sleep(0.3)
        assert len(synced) == quiet, "nothing is synced where nothing was written"
    finally:
        await writer.stop()


async def test_the_thread_ends_with_the_writer(path: Path) -> None:
    writer = SqliteWriter(path, durability="full", spool_bytes=1 << 20)
    before = set(threading.enumerate())  # a server of another test may have one of its own
    await writer.start()
    (mine,) = set(threading.enumerate()) - before
    assert mine.name == "store-writer"
    await writer.stop()
    assert not mine.is_alive()


async def test_a_file_that_is_not_there_stops_the_start(tmp_path: Path) -> None:
    writer = SqliteWriter(tmp_path / "missing", durability="full", spool_bytes=1 << 20)
    with pytest.raises(sqlite3.OperationalError):
        await writer.start()
    await asyncio.wait_for(writer.stop(), 30)


async def test_what_was_removed_is_given_back_in_steps_and_leaves_no_trace(
    writer: SqliteWriter, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_IDLE_S", 0.05)
    monkeypatch.setattr(module, "_CHECK_S", 0.05)
    monkeypatch.setattr(module, "KEPT_LOG_BYTES", 0)
    monkeypatch.setattr(database_file, "KEPT_LOG_BYTES", 0)
    await writer.queue.put(make.begin())
    secret = b"canary-%d"
    for start in range(0, 400, 50):
        await asyncio.gather(*(writer.queue.put([make.form((secret % n) * 800)]) for n in range(start, start + 50)))
    await wait_until(lambda: writer.log_bytes < 10_000)
    full = path.stat().st_size
    assert full > 3 << 20
    assert b"canary-7" in path.read_bytes()
    for _ in range(3):
        await writer.queue.put([RemovalStepRow("t1", "s1", "forms")])
    await wait_until(lambda: path.stat().st_size < full / 2)
    await wait_until(lambda: writer.log_bytes < 10_000)
    assert b"canary-7" not in path.read_bytes()
    await writer.queue.put(make.begin())
    assert writer.trouble == ""
    assert writer.queue.dropped == 0
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


async def test_a_few_free_pages_stay(writer: SqliteWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_IDLE_S", 0.02)
    await asyncio.gather(*(writer.queue.put([make.form(b"%d" % n * 500)]) for n in range(100)))
    await writer.queue.put([RemovalStepRow("t1", "s1", "forms")])
    await asyncio.sleep(0.2)
    assert not writer._vacuuming
    assert writer.trouble == ""


SECRET = make.message(digest("secret"), body=b'{"role":"user","content":"the zanzibar of it"}')
ERASED = EraseMessageRow("t1", "s1", SECRET.key, b'{"role":"user","content":"gone"}')


def is_written(path: Path) -> bool:
    """True if a file of the database has the secret word anywhere."""
    return any(b"zanzibar" in file.read_bytes() for file in path.parent.iterdir())


async def store_secret(writer: SqliteWriter, path: Path, *rows: Row) -> None:
    """Store the secret, and have its session searched."""
    await writer.queue.put([*make.begin(), SECRET, *rows])
    await writer.queue.put([IndexRow("t1", "s1")])
    assert is_written(path)


async def test_what_was_erased_soon_leaves_the_log_and_the_keyword_index(writer: SqliteWriter, path: Path) -> None:
    await store_secret(writer, path, make.message(digest("b"), SECRET.key, 1, body=b'{"content":"of stays"}'))
    await writer.queue.put([ERASED])
    await wait_until(lambda: not is_written(path))
    connection = snapshot(path)
    found = connection.execute("SELECT count(*) FROM keywords WHERE keywords MATCH 'stays'").fetchone()[0]
    connection.close()
    assert found == 1, "other words are still found"


@pytest.mark.parametrize("removal", [ERASED, RemovalStepRow("t1", "s1", "messages")])
async def test_what_was_erased_is_in_no_file_after_a_stop(writer: SqliteWriter, path: Path, removal: Row) -> None:
    await store_secret(writer, path)
    await writer.queue.put([removal])
    await writer.stop()
    assert not is_written(path)


async def test_what_was_erased_leaves_the_files_although_the_store_is_never_idle(
    writer: SqliteWriter, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_IDLE_S", 1000.0)
    monkeypatch.setattr(module, "_WIPE_S", 0.1)
    await store_secret(writer, path)
    await writer.queue.put([ERASED])
    await wait_until(lambda: not is_written(path))


async def test_a_reader_that_holds_the_log_delays_what_was_erased(
    writer: SqliteWriter, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_WIPE_S", 0.1)
    await store_secret(writer, path)
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM messages").fetchone()
    await writer.queue.put([ERASED])
    await asyncio.sleep(0.5)
    assert is_written(path)
    reader.close()
    await wait_until(lambda: not is_written(path))
