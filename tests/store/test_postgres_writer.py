from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest
from msgspec.structs import replace

from proxy.errors import StoreUnavailable
from proxy.store.base import Row
from proxy.store.derived import NO_CONVERSATION, SpendingRow
from proxy.store.postgres import PostgresStore
from proxy.store.postgres_writer import PostgresWriter, compute_lock_id, describe_error
from proxy.store.removal import RemovalStepRow
from tests.postgres import execute
from tests.raw_upstream import wait_until
from tests.store.conftest import RowFactory, digest
from tests.stores import count_rows, postgres_store

make = RowFactory()


@pytest.fixture
async def store(database: str) -> AsyncIterator[PostgresStore]:
    made = postgres_store(database, drain_s=0.5)
    await made.open()
    yield made
    await made.close()


@pytest.fixture
async def replica(store: PostgresStore, database: str) -> AsyncIterator[PostgresStore]:
    """A second one on the same database."""
    made = postgres_store(database, drain_s=0.5)
    await made.open()
    yield made
    await made.close()


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (TimeoutError(), "TimeoutError: the database did not answer in time"),
        (ConnectionRefusedError("Connection refused\nof row 7"), "ConnectionRefusedError: Connection refused"),
    ],
)
def test_an_error_is_reported_in_one_line(error: Exception, told: str) -> None:
    assert describe_error(error) == told


@pytest.mark.usefixtures("begun")
async def test_many_items_at_once_take_few_commits(store: PostgresStore) -> None:
    await asyncio.gather(*(store.put([make.form(b"%d" % number)]) for number in range(500)))
    assert store.commits < 50
    assert (await count_rows(store))["forms"] == 500


@pytest.mark.usefixtures("begun")
async def test_an_item_resolves_only_when_another_connection_can_read_it(store: PostgresStore, database: str) -> None:
    for number in range(5):
        await store.put([make.form(b"%d" % number)])
        assert await execute(database, "SELECT count(*) FROM forms") == [(number + 1,)]


@pytest.mark.usefixtures("begun")
async def test_a_row_that_cannot_be_stored_fails_its_own_item_and_leaves_a_gap(store: PostgresStore) -> None:
    bad: list[Row] = [make.form(b"lost"), replace(make.message(digest("bad")), position=1 << 80)]
    odd = [RowFactory(session="a\x00b").form(b"no session has such a name")]
    futures = [store.put(rows) for rows in ([make.form(b"one")], bad, odd, [make.form(b"two")])]
    results = await asyncio.gather(*futures, return_exceptions=True)
    assert [type(result) for result in results] == [type(None), StoreUnavailable, StoreUnavailable, type(None)]
    await wait_until(lambda: store.queued == 0)
    counts = await count_rows(store)
    assert (counts["forms"], counts["gaps"], counts["messages"]) == (2, 2, 0)
    assert store.healthy
    assert store.dropped == 2


@pytest.mark.parametrize("field", ["body", "tokens", "status"])
@pytest.mark.usefixtures("begun")
async def test_what_is_said_of_a_bad_row_quotes_nothing_of_it(
    store: PostgresStore, caplog: pytest.LogCaptureFixture, field: str
) -> None:
    """The server quotes the whole row where a column may not be null, the driver a value that is of another type."""
    values = {"body": "canary as text", "tokens": "canary", "status": None}
    row = replace(make.message(digest("k"), body=b"canary"), call_id="canary", **{field: values[field]})
    with pytest.raises(StoreUnavailable) as refused:
        await store.put([row])
    assert "canary" not in str(refused.value) + repr(refused.value.__cause__) + caplog.text + store.trouble
    assert "63616e617279" not in str(refused.value)


@pytest.mark.usefixtures("begun")
async def test_rows_of_a_batch_keep_their_order_where_it_matters(store: PostgresStore) -> None:
    """An outcome after its exchange, a removal between what stood before it and what came after it."""
    futures = [
        store.put([make.message(digest("before"))]),
        store.put([RemovalStepRow("t1", "s1", "messages")]),
        store.put([make.message(digest("after")), make.outcome("x1"), make.exchange("x1")]),
    ]
    await asyncio.gather(*futures)
    assert [row.key for row in await store.read_messages("t1", "s1")] == [digest("after")]
    record = await store.read_exchange("t1", "s1", "x1")
    assert record is not None
    assert record.status == "complete"


@pytest.mark.usefixtures("begun")
async def test_numbers_of_replicas_that_write_at_once_have_neither_gaps_nor_clashes(
    store: PostgresStore, replica: PostgresStore
) -> None:
    await store.put(make.begin())
    puts = []
    for number in range(150):
        for name, one in (("a", store), ("b", replica)):
            key = digest(name, number)
            puts.append(one.put([make.message(key), make.edit(key), make.state(key, "text")]))
            puts.append(
                one.put([RowFactory(session="s2").message(key), SpendingRow(*NO_CONVERSATION, 1, name, 1, 1, 1, 1.0)])
            )
            if number % 10 == 0:
                await asyncio.sleep(0.002)  # so that both commit many times
    await asyncio.gather(*puts)
    assert min(store.commits, replica.commits) > 3
    for session in ("s1", "s2"):
        rows = await store.read_messages("t1", session, limit=1000)
        assert [row.seq for row in rows] == list(range(1, 301))
    assert [number for _, number in await store.read_edits("t1", "s1", "main")] == list(range(1, 301))
    record = await replica.read_branch("t1", "s1", "main")
    assert record is not None
    assert len(record.states) == 300
    assert await store.sum_spending(1) == 300.0
    assert store.dropped == replica.dropped == 0


@pytest.mark.usefixtures("begun")
async def test_replicas_that_decide_the_same_at_once_agree(store: PostgresStore, replica: PostgresStore) -> None:
    for number in range(30):
        key = digest("m", number)
        await asyncio.gather(store.put([make.edit(key, text="one")]), replica.put([make.edit(key, text="other")]))
    edits = await store.read_edits("t1", "s1", "main")
    assert edits == await replica.read_edits("t1", "s1", "main")
    assert [number for _, number in edits] == list(range(1, 31))


async def test_what_another_transaction_holds_is_waited_for(store: PostgresStore, database: str) -> None:
    connection = await asyncpg.connect(database)
    transaction = connection.transaction()
    await transaction.start()
    await connection.execute("SELECT pg_advisory_xact_lock($1)", compute_lock_id("t1", "s1"))
    future = store.put([make.message(digest("m"))])
    _, waiting = await asyncio.wait([future], timeout=0.2)
    assert waiting
    await transaction.rollback()
    await future
    await connection.close()


@pytest.mark.usefixtures("begun")
async def test_without_locks_a_clash_is_tried_again(
    store: PostgresStore, replica: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a server that knows no advisory locks."""
    numbers = itertools.count(1)
    monkeypatch.setattr("proxy.store.postgres_writer.compute_lock_id", lambda *_: next(numbers))
    puts = []
    for number in range(40):
        puts += [store.put([make.message(digest("a", number))]), replica.put([make.message(digest("b", number))])]
        await asyncio.sleep(0.001)
    await asyncio.gather(*puts)
    assert [row.seq for row in await store.read_messages("t1", "s1")] == list(range(1, 81))


@pytest.mark.usefixtures("begun")
async def test_a_connection_that_the_server_ends_is_replaced_and_nothing_is_lost(
    store: PostgresStore, database: str
) -> None:
    for number in range(5):
        futures = [store.put([make.form(b"%d-%d" % (number, n))]) for n in range(100)]
        await asyncio.sleep(0.002)
        await execute(
            database, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'context-proxy'"
        )
        await asyncio.gather(*futures)
    assert (await count_rows(store))["forms"] == 500
    await wait_until(lambda: store.healthy)


async def test_a_fault_of_the_server_keeps_the_items_until_it_is_over(store: PostgresStore, database: str) -> None:
    await execute(database, "ALTER TABLE forms RENAME TO elsewhere")
    future = store.put([make.form(b"one")])
    await wait_until(lambda: bool(store.trouble))
    assert not future.done()
    assert "forms" in store.trouble
    before = store.writable
    await execute(database, "ALTER TABLE elsewhere RENAME TO forms")
    await future
    await wait_until(lambda: store.healthy)
    assert (before, store.writable) == (False, True)
    assert store.dropped == 0


@pytest.mark.usefixtures("begun")
async def test_closing_the_store_stores_all_queued_rows(database: str, store: PostgresStore) -> None:
    futures = [store.put([make.form(b"%d" % number)]) for number in range(300)]
    await store.close()
    await store.close()
    await asyncio.gather(*futures)
    assert await execute(database, "SELECT count(*) FROM forms") == [(300,)]
    with pytest.raises(StoreUnavailable):
        await store.put([make.form(b"late")])


@pytest.mark.timed
async def test_stopping_gives_up_what_the_server_does_not_take(store: PostgresStore, database: str) -> None:
    await execute(database, "ALTER TABLE forms RENAME TO elsewhere")
    future = store.put([make.form(b"one")])
    started = time.monotonic()
    await store.close()
    assert time.monotonic() - started < 0.5 * 4 + 2.0
    assert isinstance(future.exception(), StoreUnavailable)
    assert store.dropped == 1


async def test_a_full_spool_refuses_and_says_so_later(database: str) -> None:
    opened: list[Any] = []

    async def connect() -> Any:
        if not opened:
            opened.append(None)
            return await asyncpg.connect(database)
        raise OSError("unreachable")

    await (first := postgres_store(database)).open()
    await first.close()
    writer = PostgresWriter(connect, spool_bytes=10_000, drain_s=0.2)
    await writer.start()
    await writer._connection.close()
    futures = [writer.queue.put([make.form(b"x" * 3000)]) for _ in range(5)]
    await wait_until(lambda: bool(writer.trouble))
    assert sum(future.done() for future in futures) == 2
    assert writer.queue.dropped == 2
    await writer.stop()
    assert all(isinstance(future.exception(), StoreUnavailable) for future in futures)
    assert writer.queue.dropped == 6  # the record of the gap too


def test_locks_of_two_sessions_differ_even_where_their_names_run_together() -> None:
    assert (
        len(
            {
                compute_lock_id("a", "bc"),
                compute_lock_id("ab", "c"),
                compute_lock_id("abc", ""),
                compute_lock_id("a\ud800", ""),
            }
        )
        == 4
    )
    assert all(-(1 << 63) <= compute_lock_id("t", str(n)) < 1 << 63 for n in range(100))
