"""Migration of a SQLite file to the code's schema, before anything else opens the file.

All missing migrations run in one transaction together with the new version number, so a kill in the middle leaves the
file as it was. A file that is newer than the code, of another program, or damaged is refused, untouched.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiosqlite

from proxy.errors import StoreRefused
from proxy.store.new_schema import fold_renames
from proxy.store.schema import LATEST_VERSION, MIGRATIONS, Migration, log_migration
from proxy.store.sqlite_files import FileIdentity, build_uri

APPLICATION_ID = 0x63747870
"""Mark of the proxy's files among other SQLite files ("ctxp")."""

CHECKED_SIZE = 64 << 20
"""Bytes up to which a file is checked page by page at the start (some 0.1 s); larger ones take too long."""
NOT_A_DATABASE = "file is not a database"
"""SQLite's words for a file that does not begin as a database does. The file may belong to another program."""
DAMAGE_HINT = "Put a backup in its place, or move it away to start with an empty one."


class DamagedDatabase(StoreRefused):
    """Error: the content of the file is not what SQLite wrote."""


async def migrate(path: Path, migrations: Sequence[Migration] = MIGRATIONS) -> int:
    """Run the missing migrations, return their number. Raises StoreRefused, or DamagedDatabase for the file."""
    connection = await aiosqlite.connect(build_uri(path), uri=True, isolation_level=None, timeout=1.0)
    try:
        return await _run_migrations(connection, path, migrations)
    except sqlite3.DatabaseError as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise make_damage_error(path, str(error)) from error
        raise StoreRefused(
            f"the database {path} cannot be opened: {error}.", hint="See that no other program holds it."
        ) from error
    finally:
        await connection.close()


async def _run_migrations(connection: aiosqlite.Connection, path: Path, migrations: Sequence[Migration]) -> int:
    version = await _fetch_number(connection, "PRAGMA user_version")
    mark = await _fetch_number(connection, "PRAGMA application_id")
    tables = await _fetch_number(connection, "SELECT count(*) FROM sqlite_master")
    latest = migrations[-1].number if migrations else LATEST_VERSION
    if tables and mark != APPLICATION_ID:
        raise StoreRefused(f"{path} is a database of another program.", hint="Give another path with --db.")
    if version > latest:
        raise StoreRefused(
            f"{path} has schema {version}, and this version knows schemas up to {latest}.",
            hint="Install the version that wrote it, or a newer one.",
        )
    if FileIdentity.read(path).size <= CHECKED_SIZE:
        found = (await _fetch_rows(connection, "PRAGMA quick_check(1)"))[0][0]
        if found != "ok":
            raise make_damage_error(path, str(found))
    # This setting only takes effect while the file has no table. Freed pages can then be returned in small steps.
    await connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    mode = (await _fetch_rows(connection, "PRAGMA journal_mode = WAL"))[0][0]
    if mode != "wal":
        raise StoreRefused(
            f"{path} cannot have a write-ahead log (journal mode {mode}).", hint="Put it on a local file system."
        )
    await connection.execute("PRAGMA synchronous = FULL")
    missing = [migration for migration in migrations if migration.number > version]
    if missing:
        if tables:
            log_migration(str(path), version, latest)
        statements = [statement for migration in missing for statement in migration.statements]
        await connection.execute("BEGIN IMMEDIATE")
        for statement in statements if tables else fold_renames(statements):
            await connection.execute(statement)
        await connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        await connection.execute(f"PRAGMA user_version = {latest}")
        await connection.execute("COMMIT")
    return len(missing)


def make_damage_error(path: Path, fault: str) -> DamagedDatabase:
    """Return the error for a damaged file, or for one that never was a database. fault: the fault in SQLite's words."""
    if fault == NOT_A_DATABASE:
        hint = "Give another path with --db. If it was the store, put a backup in its place."
        return DamagedDatabase(f"the file {path} is no SQLite database.", hint=hint)
    return DamagedDatabase(f"the database {path} is damaged: {fault}.", hint=DAMAGE_HINT)


async def _fetch_rows(connection: aiosqlite.Connection, text: str) -> list[Any]:
    return list(await connection.execute_fetchall(text))


async def _fetch_number(connection: aiosqlite.Connection, text: str) -> int:
    return int((await _fetch_rows(connection, text))[0][0])
