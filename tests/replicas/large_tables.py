"""Measure the cost of a large store in PostgreSQL: the figures in docs/deploy/postgres-and-replicas.md.

    python -m tests.replicas.large_tables [--rows 1000000 5000000]

Rows are made by the server itself. Processor time is that of its processes, which means something on a busy machine.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from proxy.store import postgres_partitions as partitions
from proxy.store.expected_reads import ExpectedReads
from proxy.store.postgres import PostgresStore
from proxy.store.postgres_partitions import DAY_S, find_id_start
from tests.postgres import Server, drop_database, execute, new_database, server
from tests.replicas.sizing import of_server
from tests.store.conftest import RowFactory, digest
from tests.stores import postgres_store

DAYS = 10
PER_SESSION = 10
"""Exchanges of a session, each with two messages; every fifth has an edit."""
MAKE = """
INSERT INTO sessions (tenant, session, explicit, created_at, settings, last_at, policy)
SELECT 't1', 's' || n, true, $1::double precision, '{}', $1, 'thrifty' FROM generate_series($2::bigint, $3::bigint) n;
INSERT INTO branches (tenant, session, branch, kind, system, created_at, tip, last_at)
SELECT 't1', 's' || n, $4::text || lpad(to_hex(n), 8, '2'), 'main', '\\x00', $1, '\\x00', $1
FROM generate_series($2::bigint, $3::bigint) n;
INSERT INTO messages (tenant, session, key, parent, position, branch, role, group_id, body, form, status, strategy,
    tokens, answer, reached, created_at, seq)
SELECT 't1', 's' || n, decode(md5(n || '.' || k), 'hex'), decode(md5(n || '.' || k - 1), 'hex'), k,
    $4::text || lpad(to_hex(n), 8, '2'), 'user', 'g', convert_to(repeat(md5(n || '.' || k), 7), 'UTF8'),
    decode(md5('f' || n || '.' || k), 'hex'), 'completed', 'openai', 60, k % 2 = 1, true, $1::double precision, k
FROM generate_series($2::bigint, $3::bigint) n, generate_series(1, $5::bigint * 2) k;
INSERT INTO exchanges (tenant, session, exchange, branch, tip, messages, envelope, forms, edits, inserts, policy,
    schedule, model, upstream, strategy, tokens_before, tokens_after, predicted, started_at, status, http_status,
    finish, prompt_tokens, completion_tokens, cached_tokens, answer, first_byte_ms, ended_at, meter)
SELECT 't1', 's' || n, $4::text || lpad(to_hex(n * $5::bigint + k), 8, '2'), $4::text || lpad(to_hex(n), 8, '2'),
    decode(md5(n || '.' || k), 'hex'), k, decode(md5('e' || n), 'hex'), '[]', 0, '{"limit":128000}', 'thrifty',
    'when_it_pays', 'gpt-5', 'default', 'openai', 1000, 900, 800, $1, 'complete', 200, 'stop', 900, 50, 800,
    decode(md5(n || '.' || k), 'hex'), 500.0, $1::double precision + 1,
    '{"rounds":[[900,800]],"completion":50,"before":1000,"held":900,"sent":900,"expected":800}'
FROM generate_series($2::bigint, $3::bigint) n, generate_series(1, $5::bigint) k;
INSERT INTO edits (tenant, session, branch, key, version, stage, reason, action, text, before, after, exchange,
    created_at, number)
SELECT 't1', 's' || n, $4::text || lpad(to_hex(n), 8, '2'), decode(md5(n || '.' || k), 'hex'), 1, 'mask', 'old', 'text',
    convert_to(repeat('short ', 20), 'UTF8'), 500, 40, 'x', $1, k
FROM generate_series($2::bigint, $3::bigint) n, generate_series(1, $5::bigint / 5) k"""


class Clock:
    """Processor seconds of the server, and those by the clock."""

    def __init__(self, postgres: Server) -> None:
        self._pid = postgres.process.pid

    async def time(self, work: Callable[[], Awaitable[Any]]) -> tuple[float, float]:
        """(processor seconds, seconds) of this work."""
        there, began = of_server(self._pid), time.perf_counter()
        await work()
        took = time.perf_counter() - began
        await asyncio.sleep(0.2)  # a process that has ended is counted when its parent has noticed
        return of_server(self._pid) - there, took


@asynccontextmanager
async def filled(postgres: Server, exchanges: int, now: float) -> AsyncIterator[tuple[str, PostgresStore]]:
    """A store with so many exchanges, the same number on each of the last days."""
    url = await new_database(postgres.url)
    real, begun = time.time, now - (DAYS + 1) * DAY_S
    time.time = lambda: begun  # the first partition ends where the rows begin
    try:
        store = postgres_store(url, partition_days=1, write_s=600.0)
        await store.open()
    finally:
        time.time = real
    connection = await asyncpg.connect(url)
    await partitions.extend_partitions(connection, now, 1)
    sessions = exchanges // PER_SESSION // DAYS
    for day in range(DAYS):
        at = (now // DAY_S - DAYS + day + 0.5) * DAY_S
        for statement in MAKE.split(";"):
            values = (at, day * sessions, (day + 1) * sessions - 1, find_id_start(at), PER_SESSION)
            used = sorted({int(n) for n in "12345" if f"${n}" in statement})
            for place, number in enumerate(used, 1):
                statement = statement.replace(f"${number}", f"${place}")  # noqa: PLW2901
            await connection.execute(statement, *(values[number - 1] for number in used))
    await connection.execute("VACUUM ANALYZE")
    await connection.close()
    try:
        yield url, store
    finally:
        await store.close()
        await drop_database(url)


SIZES = """
SELECT coalesce(p.relname, c.relname), sum(pg_table_size(c.oid))::bigint, sum(pg_indexes_size(c.oid))::bigint,
    sum(greatest(c.reltuples, 0))::bigint
FROM pg_class c LEFT JOIN pg_inherits i ON i.inhrelid = c.oid LEFT JOIN pg_class p ON p.oid = i.inhparent
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind = 'r' AND n.nspname = 'public' GROUP BY 1 HAVING sum(c.reltuples) > 1000 ORDER BY 2 DESC"""


async def write(store: PostgresStore, count: int, name: str) -> None:
    """So many small exchanges, one commit each."""
    for n in range(count):
        make, exchange = (
            RowFactory(session=f"{name}{n}"),
            find_id_start(time.time()) + f"{n:08}".replace("0", "a").replace("1", "b"),
        )
        key, answer = digest(name, n), digest(name, n, "answer")
        rows: list[Any] = [*make.begin(), make.message(key), make.message(answer, key, 1, answer=True)]
        await store.put(
            [*rows, make.exchange(exchange, time.time()), make.outcome(exchange), make.tip(key, time.time())]
        )


async def read(store: PostgresStore, count: int, sessions: int) -> None:
    """So many cold sessions, all that their next request needs."""
    for n in range(count):
        session = f"s{n * 7919 % sessions}"
        store.expect_reads(ExpectedReads("t1", session, [digest("new")], [], is_new=True, system=b"x"))
        await store.find_known_messages("t1", session, [digest("new")])


async def measure(postgres: Server, exchanges: int) -> None:
    clock, now = Clock(postgres), time.time()
    async with filled(postgres, exchanges, now) as (url, store):
        print(f"\n{exchanges:,} exchanges in {DAYS} days")
        for name, table, index, rows in await execute(url, SIZES):
            print(f"  {name}: {rows:,} rows, {int(str(table)) / 1e6:,.0f} MB, indexes {int(str(index)) / 1e6:,.0f} MB")
        sessions = exchanges // PER_SESSION
        await write(store, 50, "warm")
        used, took = await clock.time(lambda: write(store, 500, "new"))
        print(f"  write: {used / 500 * 1000:.2f} ms processor an exchange, {took / 500 * 1000:.2f} ms")
        await read(store, 50, sessions)
        used, took = await clock.time(lambda: read(store, 500, sessions))
        print(f"  read of a cold session: {used / 500 * 1000:.2f} ms processor, {took / 500 * 1000:.2f} ms")
        day = now // DAY_S * DAY_S
        for label, days in (("one day, whole partitions", DAYS - 1), ("one day again", DAYS - 2)):
            removed = 0

            async def expire(before: float) -> None:
                nonlocal removed
                while places := await store.remove_expired(before, 500):
                    removed += len(places)

            used, took = await clock.time(lambda: expire(day - days * DAY_S + 60))  # noqa: B023
            print(f"  retention, {label}: {removed:,} sessions, {used:.1f} s processor, {took:.1f} s by the clock")
        connection = await asyncpg.connect(url)
        at = find_id_start(day - (DAYS - 3) * DAY_S)
        end = find_id_start(day - (DAYS - 4) * DAY_S)
        for table, column in (("exchanges", "exchange"), ("edits", "branch")):
            (count,) = await connection.fetchrow(
                f"SELECT count(*) FROM {table} WHERE {column} >= $1 AND {column} < $2",
                at,
                end,
            )
            used, took = await clock.time(
                lambda: connection.execute(f"DELETE FROM {table} WHERE {column} >= $1 AND {column} < $2", at, end)  # noqa: B023
            )
            vacuum, waited = await clock.time(lambda: connection.execute(f"VACUUM {table}"))  # noqa: B023
            took += waited
            print(f"  {table}, {count:,} rows: DELETE {used:.2f} s, VACUUM {vacuum:.2f} s processor, {took:.1f} s")
            (name,) = [
                one.name for one in await partitions.read_partitions(connection)
                if one.table == table and one.start == end
            ]  # fmt: skip
            await connection.execute(f"ALTER TABLE {table} DETACH PARTITION {name}")
            used, took = await clock.time(lambda: connection.execute(f"DROP TABLE {name}"))  # noqa: B023
            print(f"  {table}, the next day's partition: DROP {used:.3f} s processor, {took:.3f} s")
        await connection.close()


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 5_000_000])
    with server() as postgres:
        for exchanges in parser.parse_args().rows:
            await measure(postgres, exchanges)


if __name__ == "__main__":
    asyncio.run(main())
