"""The same migrations on PostgreSQL: its own type names, and its own keyword index.

All missing migrations run in one transaction under an advisory lock. Of replicas that start together one migrates while
the others wait, and a kill in the middle leaves the schema as it was. Text columns compare by bytes, as in SQLite,
which also makes an index on them cheap.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import Any

from proxy.errors import StoreRefused
from proxy.store import full_text_search, journal, postgres_index, postgres_partitions
from proxy.store.schema import BRANCH_MIGRATION, MIGRATIONS, PARTITION_MIGRATION, Migration, log_migration

MIGRATION_LOCK = 0x63747870
"""The advisory lock of migrations ("ctxp"); those of sessions are hashes of 64 bits."""

_VERSION = """
CREATE TABLE IF NOT EXISTS context_proxy_schema (one BOOLEAN PRIMARY KEY CHECK (one), version BIGINT NOT NULL)"""

_LAST = ("ALTER TABLE messages DROP CONSTRAINT messages_pkey, ADD PRIMARY KEY (tenant, session, key)",)
"""Makes the primary key the newest index: of indexes with equal estimated costs, as in a table without statistics,
PostgreSQL uses the newest."""

_TYPES = {"BLOB": "BYTEA", "TEXT": 'TEXT COLLATE "C"'}
_TYPE = re.compile(r"\b(BLOB|TEXT)\b")


def translate_statement(statement: str) -> str:
    """A statement of schema.py in PostgreSQL's form."""
    if re.match(r"\s*(CREATE|ALTER) TABLE\b", statement):
        return _TYPE.sub(lambda found: _TYPES[found.group(1)], statement)
    return statement


def list_statements(migration: Migration, partition_days: int) -> tuple[str, ...]:
    """The statements of a migration; the keyword index and the partitions have their own for PostgreSQL."""
    if migration.statements is full_text_search.MIGRATION:
        return postgres_index.MIGRATION
    if migration.statements is full_text_search.PAIRS_MIGRATION:
        return postgres_index.PAIRS_MIGRATION
    if migration.statements is journal.MIGRATION:
        return ()  # PostgreSQL writes a few rows at a time by itself
    if migration.number == PARTITION_MIGRATION:
        return postgres_partitions.list_migration_statements(time.time(), partition_days)
    if migration.statements is BRANCH_MIGRATION:
        return (*migration.statements, *postgres_index.BRANCH_MIGRATION)
    return (*map(translate_statement, migration.statements), *(_LAST if migration.number == 1 else ()))


async def migrate(connection: Any, migrations: Sequence[Migration] = MIGRATIONS, *, partition_days: int = 30) -> int:
    """Run the missing migrations and return their number. connection: asyncpg's. partition_days: days of one partition.
    Raises StoreRefused if the schema is newer than the code or the encoding is not UTF8, and asyncpg's errors."""
    latest = migrations[-1].number
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock($1)", MIGRATION_LOCK)
        if await connection.fetchval("SELECT current_setting('server_encoding')") != "UTF8":
            raise StoreRefused(
                "the PostgreSQL database does not have the encoding UTF8.",
                hint="Make one with CREATE DATABASE ... ENCODING 'UTF8' TEMPLATE template0.",
            )
        await connection.execute(_VERSION)
        version = await connection.fetchval("SELECT version FROM context_proxy_schema") or 0
        if version > latest:
            raise StoreRefused(
                f"the PostgreSQL database has schema {version}, and this version knows schemas up to {latest}.",
                hint="Install the version that wrote it, or a newer one.",
            )
        missing = [migration for migration in migrations if migration.number > version]
        if version and missing:
            log_migration("the PostgreSQL database", version, latest)
        for migration in missing:
            for statement in list_statements(migration, partition_days):
                await connection.execute(statement)
        if missing:
            await connection.execute(
                "INSERT INTO context_proxy_schema VALUES (true, $1) ON CONFLICT (one) DO UPDATE SET version = $1",
                latest,
            )
    return len(missing)
