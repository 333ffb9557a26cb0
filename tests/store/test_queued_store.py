from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from proxy.store import write_queue
from proxy.store.postgres import PostgresStore
from proxy.store.reads import Store
from proxy.store.removal import RemovalStepRow
from proxy.store.sqlite import SqliteStore
from tests.postgres import drop_database, new_store_database
from tests.snapshot import snapshot
from tests.store.conftest import RowFactory, digest
from tests.stores import postgres_store, sqlite_store

make = RowFactory()
Either = SqliteStore | PostgresStore


@pytest.fixture(params=["sqlite", "postgres"])
async def spooled(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Either]:
    database = await new_store_database(request.getfixturevalue("postgres")) if request.param == "postgres" else ""
    made = postgres_store(database) if database else sqlite_store(tmp_path / "store.sqlite3")
    await made.open()
    yield made
    await made.close()
    if database:
        await drop_database(database)


async def test_a_request_and_its_answer_are_one_transaction(spooled: Either) -> None:
    await spooled.put(make.begin())
    before = spooled.commits
    asked = spooled.put_deferred([make.message(digest("asked")), make.exchange("x1")])
    await spooled.put([make.message(digest("answer"), digest("asked"), 1, answer=True), make.outcome("x1")])
    assert asked.done()
    assert asked.exception() is None
    assert spooled.commits == before + 1
    found = await spooled.read_exchange("t1", "s1", "x1")
    assert found is not None
    assert found.status == "complete"


@pytest.mark.timed
async def test_rows_that_nobody_waits_for_are_written_after_the_hold_time(spooled: Either) -> None:
    await spooled.put(make.begin())
    began = time.monotonic()
    await asyncio.wait_for(spooled.put_deferred([make.message(digest("m"))]), 5)
    assert write_queue.HOLD_S * 0.9 < time.monotonic() - began < write_queue.HOLD_S + 1.0


async def test_a_read_has_what_waits_written(spooled: Either, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_queue, "HOLD_S", 60.0)
    await spooled.put(make.begin())
    written = spooled.put_deferred([make.message(digest("m"))])
    await spooled.find_known_messages("t1", "s1", [digest("m")])
    await asyncio.wait_for(written, 30)
    assert set(await spooled.find_known_messages("t1", "s1", [digest("m")])) == {digest("m")}


async def test_closing_writes_what_nobody_waits_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_queue, "HOLD_S", 60.0)
    store = sqlite_store(tmp_path / "store.sqlite3")
    await store.open()
    written = store.put_deferred([*make.begin(), make.message(digest("m"))])
    await store.close()
    assert written.exception() is None
    again = sqlite_store(tmp_path / "store.sqlite3")
    await again.open()
    assert await again.find_known_messages("t1", "s1", [digest("m")])
    await again.close()


async def test_rows_that_cannot_be_stored_fail_alone_among_those_held_back(
    spooled: Either, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_queue, "HOLD_S", 60.0)
    good = spooled.put_deferred(make.begin())
    bad = spooled.put_deferred([make.message(digest("bad"), position=1 << 80)])
    await spooled.put([make.message(digest("good"))])
    assert good.exception() is None
    assert bad.exception() is not None
    assert spooled.dropped == 1
    assert set(await spooled.find_known_messages("t1", "s1", [digest("bad"), digest("good")])) == {digest("good")}


async def test_deferred_rows_are_there_after_the_next_put(store: Store) -> None:
    """Whatever the backend: what was put later, in which order, is there after the next put."""
    store.put_deferred(make.begin())
    store.put_deferred([make.edit(digest("m"), 1, "first")])
    store.put_deferred([make.edit(digest("m"), 2, "second")])
    store.flush_deferred()
    await store.put([make.state(digest("m"), "told")])
    found = await store.read_edits("t1", "s1", "main")
    assert [(row.text, number) for row, number in found] == [("second", 2)]


async def test_a_queued_store_reports_its_health_and_queue_length(
    spooled: Either, caplog: pytest.LogCaptureFixture
) -> None:
    assert (spooled.healthy, spooled.trouble, spooled.queued) == (True, "", 0)
    written = spooled.put_deferred(make.begin())
    assert spooled.queued == 1
    spooled.flush_deferred()
    await written
    assert spooled.queued == 0
    with caplog.at_level("INFO"):
        await spooled.close()
    assert "0 items dropped" in caplog.text


async def test_a_process_that_dies_loses_only_rows_that_were_not_acknowledged(tmp_path: Path) -> None:
    """The copy of the files in the middle is what a process that is killed there leaves."""
    store = sqlite_store(tmp_path / "store.sqlite3")
    await store.open()
    await store.put(make.begin())
    await store.put([make.form(b"told")])
    held = store.put_deferred([make.form(b"held back")])
    dead = tmp_path / "dead.sqlite3"
    for end in ("", "-wal"):
        (tmp_path / f"dead.sqlite3{end}").write_bytes((tmp_path / f"store.sqlite3{end}").read_bytes())
    assert not held.done()
    with closing(snapshot(dead)) as left:
        assert [row[0] for row in left.execute("SELECT body FROM forms")] == [b"told"]
    await store.close()


async def test_of_many_moves_of_a_branch_in_one_transaction_the_last_one_stands(spooled: Either) -> None:
    """Also where the branch begins, or ends, in the same transaction."""
    spooled.put_deferred(make.begin())
    for number in range(5):
        spooled.put_deferred([make.tip(b"%d" % number, float(number)), make.tip(b"fork", 9.0, "fork")])
    spooled.put_deferred([make.branch("fork", 1.0, "main")])
    await spooled.put([make.tip(b"last", 7.0, stopped="why"), make.branch("gone", 1.0, "main")])
    found = await spooled.read_branch("t1", "s1", "main")
    assert found is not None
    assert (found.tip, found.last_at, found.stopped) == (b"last", 7.0, "why")
    session = await spooled.read_session("t1", "s1")
    assert session is not None
    assert session.last_at == 9.0
    spooled.put_deferred([make.tip(b"late", 11.0, "gone")])
    await spooled.put([RemovalStepRow("t1", "s1", "branches", "gone")])
    assert await spooled.read_branch("t1", "s1", "gone") is None
