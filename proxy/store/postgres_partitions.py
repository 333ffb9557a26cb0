"""Tables that are partitioned by time in PostgreSQL: what is past its time leaves as a whole partition.

Exchanges are partitioned by their own id, and edits, states and iterations by the id of their branch. An id begins with
the time at which it was made (`sessions.locate.make_id`), and is part of the primary key already. So a row is unique
over all partitions, and a look-up by exchange or branch reads one of them. Messages and forms are named by their
content and stored once, whenever they come again. No time is part of their names, so they stay whole tables.

The first partition has what was stored before the tables were partitioned. The default partition has rows of sessions
that are still used while their partition has gone, and rows for whose time no partition was made.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import asyncpg

from proxy.store.base import ID_DIGITS, ID_TIME_BITS
from proxy.store.removal import SessionPlace

log = logging.getLogger(__name__)

DAY_S = 86400.0
_LOCK = 0x63747871
"""The advisory lock of whoever makes or drops partitions."""
_AHEAD = 3
"""Number of periods ahead of now for which partitions are made."""
_AHEAD_S = 7 * DAY_S
"""Seconds ahead of now for which they are made at least."""
_LOCK_WAIT = "SET LOCAL lock_timeout = '1s'"
"""A change of the partitions waits for requests, and requests that come meanwhile wait behind it: no longer than
this. The next round tries it again."""
_TOUCHED_S = 300.0
"""Seconds before a look for used sessions within which the clocks of replicas may differ."""


@dataclass(frozen=True, slots=True)
class PartitionedTable:
    """A table, the id that its partitions are made by, its primary key and its index."""

    name: str
    id: str
    key: str
    index: str = ""


TABLES = (
    PartitionedTable(
        "exchanges",
        "exchange",
        "tenant, session, exchange",
        "CREATE INDEX exchanges_by_start ON exchanges (tenant, session, started_at)",
    ),
    PartitionedTable(
        "edits",
        "branch",
        "tenant, session, branch, key, version",
        "CREATE UNIQUE INDEX edits_by_number ON edits (tenant, session, branch, number)",
    ),
    PartitionedTable(
        "states",
        "branch",
        "tenant, session, branch, key",
        "CREATE UNIQUE INDEX states_by_number ON states (tenant, session, branch, number)",
    ),
    PartitionedTable("iterations", "branch", "tenant, session, branch, key"),
)


def choose_days(retention_days: float) -> int:
    """Days of one partition: a table then has some 40 partitions at most, and what is past its time stays no longer
    than these days."""
    return 1 if 0 < retention_days <= 31 else 7 if 0 < retention_days <= 240 else 30


def find_id_start(seconds: float) -> str:
    """The beginning of the ids that are made at this time. Ids made earlier sort before it, later ones behind it."""
    number = int(seconds * 1000) & ((1 << ID_TIME_BITS) - 1)
    return "".join(ID_DIGITS[number >> shift & 31] for shift in range(ID_TIME_BITS - 5, -1, -5))


def read_id_start(start: str, near: float) -> float:
    """The time of the beginning of an id: of the times that it may stand for, the one closest to `near`."""
    number = 0
    for char in start[: ID_TIME_BITS // 5]:
        number = number << 5 | ID_DIGITS.index(char)
    turn = 1 << ID_TIME_BITS
    return (number + round((near * 1000 - number) / turn) * turn) / 1000


def find_next_bound(seconds: float, days: int) -> float:
    """The end of the period of `days` days that a time is in."""
    width = days * DAY_S
    return (math.floor(seconds / width) + 1) * width


_MOVE_LATE = """
WITH late AS (DELETE FROM {first} WHERE {id} >= '{bound}' RETURNING *) INSERT INTO {name} SELECT * FROM late"""


def list_migration_statements(now: float, days: int) -> tuple[str, ...]:
    """The statements that make partitioned tables of the plain ones. Each table is read once."""
    bound = find_id_start(find_next_bound(now, days))
    statements = ["DROP TRIGGER edits_out ON edits"]
    for table in TABLES:
        name, first = table.name, f"{table.name}_first"
        statements += [
            f"ALTER TABLE {name} RENAME TO {first}",
            f"ALTER INDEX {name}_pkey RENAME TO {first}_pkey",
            f"CREATE TABLE {name} (LIKE {first}) PARTITION BY RANGE ({table.id})",
        ]
        if table.index:
            index = re.findall(r"INDEX (\w+)", table.index)[0]
            statements += [f"ALTER INDEX {index} RENAME TO {index}_first", table.index]
        statements += [
            f"ALTER TABLE {name} ADD PRIMARY KEY ({table.key})",
            f"CREATE TABLE {name}_default PARTITION OF {name} DEFAULT",
            # An id that was not made from the time may sort behind the bound.
            _MOVE_LATE.format(name=name, first=first, id=table.id, bound=bound),
            f"ALTER TABLE {name} ATTACH PARTITION {first} FOR VALUES FROM (MINVALUE) TO ('{bound}')",
        ]
    statements.append(
        "CREATE TRIGGER edits_out AFTER DELETE ON edits FOR EACH ROW EXECUTE FUNCTION context_proxy_edits_out()"
    )
    return tuple(statements)


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition of a table. Its ids are below `end`, and not below `start`; "" for no such limit."""

    table: str
    name: str
    start: str
    end: str


_PARTITIONS = """
SELECT p.relname, c.relname, pg_get_expr(c.relpartbound, c.oid)
FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid JOIN pg_class p ON p.oid = i.inhparent
WHERE i.inhparent = ANY (ARRAY(SELECT to_regclass(name)::oid FROM unnest($1::text[]) name))
ORDER BY 1, 2"""

_BOUNDS = re.compile(r"FROM \((MINVALUE|'(\w+)')\) TO \('(\w+)'\)")


def parse_partitions(rows: Sequence[Sequence[str]]) -> list[Partition]:
    """The partitions in rows of _PARTITIONS, without the default ones."""
    found = ((table, name, _BOUNDS.search(bounds)) for table, name, bounds in rows)
    return [Partition(table, name, match.group(2) or "", match.group(3)) for table, name, match in found if match]


async def read_partitions(connection: Any) -> list[Partition]:
    """All partitions but the default ones. connection: asyncpg's."""
    return parse_partitions(await connection.fetch(_PARTITIONS, [table.name for table in TABLES]))


def round_down(partitions: Sequence[Partition], before: float) -> tuple[float, str]:
    """(the time up to which sessions are removed, the end of the partitions that leave with them; "" for none).

    The time is moved back to the last bound that is past, so that whole partitions are past their time. Where that is
    the first partition, the time stays, and its rows are removed one by one.
    """
    limit = find_id_start(before)
    # Not the ends of the partitions before it: these may have been dropped in an earlier round.
    start = max((one.start for one in partitions if one.start <= limit < one.end), default="")
    if start:
        return read_id_start(start, before), start
    return before, max((one.end for one in partitions if one.end <= limit), default="")


async def extend_partitions(connection: Any, now: float, days: int) -> int:
    """Make the partitions for the time ahead that are missing, and return their number. Of replicas that come together
    one makes them. connection: asyncpg's."""
    made_count = 0
    async with connection.transaction():
        await connection.execute(_LOCK_WAIT)
        if not await connection.fetchval("SELECT pg_try_advisory_xact_lock($1)", _LOCK):
            return 0
        ends = [one.end for one in await read_partitions(connection)]
        if not ends:
            return 0
        begin = read_id_start(max(ends), now)
        until = now + max(_AHEAD * days * DAY_S, _AHEAD_S)
        while begin < until:
            # After a long stop one partition has all of the time in which nothing was stored.
            end = find_next_bound(max(begin, now - days * DAY_S), days)
            made_count += await _make_partitions(connection, begin, end)
            begin = end
    return made_count


async def _make_partitions(connection: Any, begin: float, end: float) -> int:
    """Make the partition of each table, unless the default partition has rows of its ids: those stay where they are."""
    start, stop = find_id_start(begin), find_id_start(end)
    made_count = 0
    for table in TABLES:
        taken = f"SELECT 1 FROM {table.name}_default WHERE {table.id} >= $1 AND {table.id} < $2 LIMIT 1"  # noqa: S608  # names of ours
        if await connection.fetchval(taken, start, stop):
            continue
        name = f"{table.name}_{datetime.fromtimestamp(begin, UTC):%Y%m%d}"
        # Attached, and not made as a partition at once: that would keep all requests from the table.
        await connection.execute(f"CREATE TABLE {name} (LIKE {table.name})")
        await connection.execute(
            f"ALTER TABLE {table.name} ATTACH PARTITION {name} FOR VALUES FROM ('{start}') TO ('{stop}')"
        )
        made_count += 1
    return made_count


async def drop_partitions(connection: Any, end: str, now: float) -> int:
    """Drop the partitions whose ids are below `end`, and return their number. Rows of branches that are still there go
    to the default partition. connection: asyncpg's. now: the time, by which a session that is used meanwhile is
    found."""
    dropped = 0
    for partition in await read_partitions(connection):
        if not end or partition.end > end:
            continue
        try:
            await _drop_partition(connection, partition, now - _TOUCHED_S)
        except asyncpg.LockNotAvailableError:
            log.warning("the partition %s is in use and is dropped in a later round", partition.name)
            continue
        dropped += 1
    return dropped


async def _drop_partition(connection: Any, partition: Partition, touched_after: float) -> None:
    name, table = partition.name, partition.table
    # The look at all rows comes first, while requests go on. Under the lock only few rows are read.
    kept = await connection.fetch(
        f"SELECT DISTINCT p.tenant, p.session FROM {name} p "  # noqa: S608  names of ours
        "JOIN sessions s ON s.tenant = p.tenant AND s.session = p.session"
    )
    async with connection.transaction():
        await connection.execute(_LOCK_WAIT)
        await connection.execute("SELECT pg_advisory_xact_lock($1)", _LOCK)
        await connection.execute(f"ALTER TABLE {table} DETACH PARTITION {name}")
        await connection.execute(
            f"""
INSERT INTO {table}
SELECT p.* FROM (
    SELECT tenant, session FROM unnest($1::text[], $2::text[]) AS u (tenant, session)
    UNION SELECT tenant, session FROM sessions WHERE last_at >= $3
) k
JOIN {name} p ON p.tenant = k.tenant COLLATE "C" AND p.session = k.session COLLATE "C"
WHERE p.branch = '' OR EXISTS (
    SELECT 1 FROM branches b WHERE b.tenant = p.tenant AND b.session = p.session AND b.branch = p.branch)""",  # noqa: S608  # names of ours
            [row[0] for row in kept],
            [row[1] for row in kept],
            touched_after,
        )
        await connection.execute(f"DROP TABLE {name}")


_PLAIN_TABLES = (
    *("messages", "forms", "gaps", "helper_answers", "embeddings", "hidden_rounds", "bindings", "scratchpads"),
    *("notes", "response_names", "indexed", "branches", "sessions"),
)
"""Tables of a session that are not partitioned."""


_IDLE = """
WITH idle AS MATERIALIZED (
    SELECT s.tenant, s.session FROM unnest($1::text[], $2::text[]) AS u (tenant, session)
    JOIN LATERAL (SELECT x.tenant, x.session FROM sessions x
        WHERE x.tenant = u.tenant AND x.session = u.session AND x.last_at < $3 OFFSET 0) s ON true
), memos_out AS (
    UPDATE memos m SET source_session = '' FROM idle i
    WHERE m.tenant = i.tenant AND m.session = '' AND m.source_session = i.session
)"""
_REMOVAL = """, out_of_{table} AS (
    DELETE FROM {table} r USING idle i WHERE r.tenant = i.tenant AND r.session = i.session{only}
)"""

REMOVE_IDLE_SESSIONS = (
    _IDLE
    + "".join(_REMOVAL.format(table=table, only="") for table in _PLAIN_TABLES)
    + "".join(_REMOVAL.format(table=one.name, only=f" AND r.{one.id} >= $4") for one in TABLES)
    + "".join(_REMOVAL.format(table=f"{one.name}_default", only=f" AND r.{one.id} < $4") for one in TABLES)
    + "\nSELECT tenant, session FROM idle"
)
"""Removes sessions with all rows that do not leave with a partition; the ids in those are below $4."""


async def remove_sessions(
    connection: Any, names: Sequence[SessionPlace], locks: Sequence[int], before: float, end: str
) -> list[SessionPlace]:
    """Remove those of the sessions that were last used before this time, and return them. locks: the advisory locks of
    the sessions. connection: asyncpg's."""
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock(place) FROM unnest($1::bigint[]) AS place", locks)
        tenants, sessions = [name[0] for name in names], [name[1] for name in names]
        removed = await connection.fetch(REMOVE_IDLE_SESSIONS, tenants, sessions, before, end)
        return [(row[0], row[1]) for row in removed]
