from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest
from msgspec.structs import replace

from proxy.sessions.locate import make_id
from proxy.store import postgres_partitions as partitions
from proxy.store.base import Row
from proxy.store.postgres import PostgresStore
from proxy.store.postgres_partitions import DAY_S, Partition, find_id_start
from proxy.store.postgres_schema import migrate
from proxy.store.schema import LATEST_VERSION, MIGRATIONS, PARTITION_MIGRATION, Migration
from tests.postgres import execute
from tests.store.conftest import RowFactory, digest
from tests.stores import postgres_store

NOW = time.time()
PARTS = "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid WHERE c.relkind = 'r' ORDER BY 1"


@pytest.fixture
async def store(database: str) -> AsyncIterator[PostgresStore]:
    made = postgres_store(database, drain_s=0.5, partition_days=1)
    await made.open()
    yield made
    await made.close()


def make_rows(session: str, used: float) -> list[Row]:
    """Rows of one session in each partitioned table, and in others."""
    make, branch, key = RowFactory(session=session), make_id(), digest(session)
    rows: list[Any] = [
        *make.begin(used, branch), replace(make.message(key), branch=branch), make.form(b"form"),
        make.edit(key, branch=branch), make.state(key, "state", branch), make.edit(key, branch=""),
        replace(make.exchange(make_id(), used), branch=branch), make.tip(key, used, branch),
    ]  # fmt: skip
    return rows


async def count(url: str, session: str) -> dict[str, int]:
    tables = ("sessions", "branches", "messages", "forms", "edits", "states", "exchanges", "indexed")
    found = {}
    for table in tables:
        text = f"SELECT count(*) FROM {table} WHERE session = $1"
        found[table] = int(str((await execute(url, text, session))[0][0]))
    return found


def test_the_beginning_of_an_id_tells_when_it_was_made() -> None:
    before = time.time()
    made = make_id()
    assert find_id_start(before - 0.002) <= made < find_id_start(time.time() + 0.002)
    assert abs(partitions.read_id_start(made, NOW) - before) < 5
    for moment in (0.0, NOW, NOW + 40 * 365 * DAY_S):
        assert partitions.read_id_start(find_id_start(moment), moment + 100 * DAY_S) == int(moment * 1000) / 1000


def test_bounds_are_the_same_on_every_replica() -> None:
    assert partitions.find_next_bound(10 * DAY_S, 1) == 11 * DAY_S
    assert partitions.find_next_bound(10 * DAY_S + 1, 7) == 14 * DAY_S
    assert [partitions.choose_days(days) for days in (0, 0.5, 31, 32, 240, 365)] == [30, 1, 1, 7, 7, 30]


def test_time_is_moved_back_to_a_bound_where_partitions_are_past() -> None:
    bounds = [find_id_start(day * DAY_S) for day in (10, 11, 12)]
    found = [Partition("edits", "first", "", bounds[0])]
    found += [Partition("edits", f"p{n}", bounds[n], bounds[n + 1]) for n in (0, 1)]
    assert partitions.round_down(found, 9.5 * DAY_S) == (9.5 * DAY_S, "")
    assert partitions.round_down(found, 10.5 * DAY_S) == (10 * DAY_S, bounds[0])
    assert partitions.round_down(found, 11 * DAY_S) == (11 * DAY_S, bounds[1])
    assert partitions.round_down(found, 20.5 * DAY_S) == (20.5 * DAY_S, bounds[2]), "behind the last one"
    assert partitions.round_down([], 5.0) == (5.0, "")
    left = [one for one in found if one.end > bounds[0]]
    assert partitions.round_down(left, 10.5 * DAY_S) == (10 * DAY_S, bounds[0]), "those before it are dropped"


async def test_rows_of_the_schema_before_are_kept_where_they_are(database: str) -> None:
    connection = await asyncpg.connect(database)
    await migrate(connection, MIGRATIONS[: PARTITION_MIGRATION - 1])
    names = [make_id(), "an id of another kind", "zzzzzzzzzzzzzzzz", ""]
    for n, name in enumerate(names):
        await connection.execute(
            "INSERT INTO exchanges (tenant, session, exchange, branch, tip, messages, envelope, forms, edits, inserts,"
            " policy, schedule, model, upstream, strategy, tokens_before, tokens_after, started_at, status)"
            " VALUES ('t1', 's1', $1, 'main', '', 1, '', '[]', 0, '{}', 'p', 's', 'm', 'u', 'o', 1, 1, $2, 'open')",
            name, float(n),
        )  # fmt: skip
        await connection.execute("INSERT INTO states VALUES ('t1', 's1', $1, 'key', 'text', 1.0, $2)", name, n)
        await connection.execute(
            "INSERT INTO edits VALUES ('t1', 's1', $1, 'key', 1, 'compress_levels', 'r', 'text', 'words', 1, 1, 'x',"
            " 1.0, $2)",
            name, n,
        )  # fmt: skip
        await connection.execute("INSERT INTO iterations VALUES ('t1', 's1', $1, 'key', 1, '', 1.0, '{}')", name)
    await connection.execute(
        "INSERT INTO indexed VALUES ('t1', 's1', 'summary', 'zzzzzzzzzzzzzzzz', 2, 'key', to_tsvector('a'), 2)"
    )
    broken = Migration(LATEST_VERSION + 1, "a test", ("SELECT 1 / 0",))
    with pytest.raises(asyncpg.DivisionByZeroError):
        await migrate(connection, (*MIGRATIONS, broken))
    assert await execute(database, "SELECT version FROM context_proxy_schema") == [(PARTITION_MIGRATION - 1,)]
    assert await execute(database, PARTS) == []
    await connection.close()
    store = postgres_store(database)
    await store.open()
    for table in partitions.TABLES:
        held = f"SELECT tableoid::regclass::text, count(*) FROM {table.name} GROUP BY 1 ORDER BY 1"
        assert await execute(database, held) == [(f"{table.name}_default", 1), (f"{table.name}_first", 3)]
    found = await store.read_exchanges("t1", "s1")
    assert [one.exchange for one in found] == names[::-1]
    make = RowFactory()
    await store.put([make.exchange(names[0]), make.outcome(names[0]), make.outcome(names[2])])
    again = await store.read_exchanges("t1", "s1")
    assert [one.status for one in again] == ["lost", "complete", "lost", "complete"], "from 1970"
    assert await execute(database, "SELECT count(*) FROM indexed") == [(1,)], "an index row stays with its edit"
    await execute(database, "DELETE FROM edits WHERE branch = 'zzzzzzzzzzzzzzzz'")
    assert await execute(database, "SELECT count(*) FROM indexed") == [(0,)], "and leaves with it"
    await store.close()


async def test_partitions_are_there_ahead_of_time_and_made_once(store: PostgresStore, database: str) -> None:
    names = {name for (name,) in await execute(database, PARTS)}
    assert {"exchanges_first", "exchanges_default"} < names
    assert len([name for name in names if str(name).startswith("edits_2")]) in (7, 8)
    await store.put(make_rows("s1", NOW))
    assert await execute(database, "SELECT count(*) FROM exchanges_default") == [(0,)]
    replicas = [await asyncpg.connect(database) for _ in range(4)]
    later = NOW + 20 * DAY_S
    made = await asyncio.gather(*(partitions.extend_partitions(one, later, 1) for one in replicas))
    assert sum(made) % len(partitions.TABLES) == 0
    assert sum(count > 0 for count in made) == 1, "one replica made them all"
    found = await partitions.read_partitions(replicas[0])
    edits = sorted(one.start for one in found if one.table == "edits")
    ends = sorted(one.end for one in found if one.table == "edits")
    assert edits[1:] == ends[:-1], "without a gap"
    assert await partitions.extend_partitions(replicas[1], later, 1) == 0
    for one in replicas:
        await one.close()


async def test_after_a_long_stop_one_partition_has_the_time_between(store: PostgresStore, database: str) -> None:
    connection = await asyncpg.connect(database)
    await partitions.extend_partitions(connection, NOW + 1000 * DAY_S, 1)
    assert len(await partitions.read_partitions(connection)) < 4 * 25
    await connection.close()


async def test_rows_in_the_default_partition_do_not_prevent_new_partitions(store: PostgresStore, database: str) -> None:
    late = find_id_start(NOW + 15 * DAY_S) + "22222222"
    await store.put([*RowFactory().begin(), RowFactory().exchange(late)])
    assert await execute(database, "SELECT count(*) FROM exchanges_default") == [(1,)]
    connection = await asyncpg.connect(database)
    assert await partitions.extend_partitions(connection, NOW + 20 * DAY_S, 1) > 0
    await connection.close()
    await store.put([RowFactory().outcome(late)])
    record = await store.read_exchange("t1", "s1", late)
    assert record is not None
    assert record.status == "complete"


async def test_what_is_past_its_time_leaves_with_its_partition_and_what_is_used_stays(
    store: PostgresStore, database: str
) -> None:
    before = NOW + 2.5 * DAY_S
    await store.put(make_rows("old", NOW))
    await store.put(make_rows("used", before + 10))
    await store.search("t1", "used", "short")
    assert len(await store.remove_expired(before)) == 1
    assert sum((await count(database, "old")).values()) > 0, "its rows in partitions leave with them"
    kept = await count(database, "used")
    assert len(await store.remove_expired(before)) == 0
    assert await count(database, "used") == kept
    assert set((await count(database, "old")).values()) == {0}
    names = {name for (name,) in await execute(database, PARTS)}
    assert not {"exchanges_first", "edits_first", "states_first", "iterations_first"} & names
    assert await execute(database, "SELECT count(*) FROM exchanges_default") == [(1,)]
    # The session goes on, and is removed like any other when its time has come.
    (branch,) = [row[0] for row in await execute(database, "SELECT branch FROM branches WHERE session = 'used'")]
    make = RowFactory(session="used")
    await store.put([make.edit(digest("more"), branch=str(branch)), make.exchange(make_id())])
    assert [number for _, number in await store.read_edits("t1", "used", str(branch))] == [1, 2]
    assert len(await store.remove_expired(before + DAY_S)) == 1
    assert set((await count(database, "used")).values()) == {0}


async def test_one_that_comes_back_after_its_removal_has_nothing_of_before(store: PostgresStore, database: str) -> None:
    before = NOW + 2.5 * DAY_S
    await store.put(make_rows("again", NOW))
    assert len(await store.remove_expired(before)) == 1
    await store.put(make_rows("again", before + 10))
    assert len(await store.remove_expired(before)) == 0
    assert (await count(database, "again"))["states"] == 1
    assert (await count(database, "again"))["exchanges"] == 1


async def test_a_partition_in_use_is_dropped_in_a_later_round(
    store: PostgresStore, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitions, "_LOCK_WAIT", "SET LOCAL lock_timeout = '50ms'")
    await store.put(make_rows("old", NOW))
    reader = await asyncpg.connect(database)
    async with reader.transaction():
        await reader.execute("SELECT count(*) FROM exchanges")
        assert len(await store.remove_expired(NOW + 2.5 * DAY_S)) == 1
        assert len(await store.remove_expired(NOW + 2.5 * DAY_S)) == 0
        assert await reader.fetchval("SELECT to_regclass('exchanges_first')::text") == "exchanges_first"
    await reader.close()
    assert len(await store.remove_expired(NOW + 2.5 * DAY_S)) == 0
    assert await execute(database, "SELECT to_regclass('exchanges_first')::text") == [(None,)]


async def test_sessions_with_too_many_rows_for_one_statement_are_removed_in_steps(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def too_long(*_: Any) -> int:
        raise asyncpg.QueryCanceledError("too long")

    monkeypatch.setattr("proxy.store.postgres.remove_sessions", too_long)
    store = postgres_store(database, partition_days=1)
    await store.open()
    await store.put(make_rows("old", NOW))
    assert len(await store.remove_expired(NOW + 2.5 * DAY_S)) == 1
    assert set((await count(database, "old")).values()) == {0}
    await store.close()


async def test_the_steps_of_a_round_share_a_connection(database: str) -> None:
    """A new connection plans the statement of the removal again: 41 ms of the server for 20 sessions, not 8."""
    store = postgres_store(database, partition_days=1)
    await store.open()
    for n in range(4):
        await store.put(make_rows(f"old{n}", NOW))
    seen = set()
    while await store.remove_expired(NOW + 2.5 * DAY_S, 1):
        assert store._removal is not None
        seen.add(store._removal)
    assert len(seen) == 1
    assert all(connection.is_closed() for connection in seen)
    await store.put(make_rows("last", NOW))
    assert await store.remove_expired(NOW + 2.5 * DAY_S) == [("t1", "last")]
    (left,) = [store._removal]
    await store.close()
    assert left.is_closed(), "a round that was broken off leaves none"
