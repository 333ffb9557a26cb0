"""Maintenance of a store while no proxy uses it: showing its schema, migrating it, returning free space.

A proxy migrates its store by itself when it starts. Here an operator sees the missing migrations beforehand, and runs
them at a chosen time. The lock that a running proxy holds keeps both out of a SQLite file that is in use.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from proxy.errors import StoreRefused
from proxy.store import sqlite_files
from proxy.store.migrate import APPLICATION_ID, CHECKED_SIZE, DAMAGE_HINT, make_damage_error, migrate
from proxy.store.schema import MIGRATIONS, Migration

SAY_WHICH = "Say which with --db."


@dataclass(frozen=True, slots=True)
class SchemaStatus:
    """The schema version of a store, the latest version in the code, and the migrations in between."""

    version: int
    latest: int
    missing: tuple[Migration, ...]


def read_schema_status(path: Path, hint: str = "") -> SchemaStatus:
    """The schema state of a SQLite file, read without changing the file. hint: what a person does about a file that is
    no readable store; empty: what its owner does. Raises StoreRefused if it is none."""
    with closing(_open_database(sqlite_files.build_read_uri(path, hint or SAY_WHICH))) as there:
        version = _read_version(path, there, hint or "Put a backup in its place, or name another file with --db.")
    missing = tuple(migration for migration in MIGRATIONS if migration.number > version)
    return SchemaStatus(version, MIGRATIONS[-1].number, missing)


def check_pages(path: Path) -> None:
    """Check a file as a start does: page by page up to 64 MiB. Raises DamagedDatabase if it is damaged."""
    if path.stat().st_size > CHECKED_SIZE:
        return
    try:
        with closing(_open_database(sqlite_files.build_read_uri(path, SAY_WHICH))) as there:
            verdict = there.execute("PRAGMA quick_check(1)").fetchone()[0]
    except sqlite3.DatabaseError as error:
        verdict = str(error)
    if verdict != "ok":
        raise make_damage_error(path, verdict)


def migrate_file(path: Path) -> int:
    """Run the missing migrations, all or none, and return their number. Raises StoreRefused."""
    read_schema_status(path)
    lock = sqlite_files.FileLock(path)
    lock.acquire()
    try:
        return asyncio.run(migrate(path))
    finally:
        lock.release()


def vacuum(path: Path, heartbeat: Callable[[], None] = lambda: None) -> tuple[int, int]:
    """Rewrite the file without its free pages; return its bytes before and after. heartbeat: called repeatedly
    meanwhile.

    Needs as much free space as the file is long. Raises StoreRefused, also if the file is in use.
    """

    def call_heartbeat() -> int:
        heartbeat()
        return 0

    read_schema_status(path)
    lock = sqlite_files.FileLock(path)
    lock.acquire()
    try:
        before = _measure_files(path)
        with closing(_open_database(sqlite_files.build_uri(path))) as there:
            there.set_progress_handler(call_heartbeat, 1_000_000)
            there.execute("VACUUM")
            there.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        sqlite_files.make_private(path)
        return before, _measure_files(path)
    except sqlite3.Error as error:
        damaged = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_CORRUPT
        hint = DAMAGE_HINT if damaged else "See that the disk has room for a second one."
        raise StoreRefused(f"the database {path} cannot be written anew: {error}.", hint=hint) from error
    finally:
        lock.release()


def _open_database(uri: str) -> sqlite3.Connection:
    return sqlite3.connect(uri, uri=True, isolation_level=None)


def _read_version(path: Path, there: sqlite3.Connection, hint: str) -> int:
    try:
        version = int(there.execute("PRAGMA user_version").fetchone()[0])
        mark = there.execute("PRAGMA application_id").fetchone()[0]
    except sqlite3.DatabaseError as error:
        raise StoreRefused(f"the database {path} cannot be read: {error}.", hint=hint) from error
    if mark != APPLICATION_ID:
        raise StoreRefused(f"{path} is a database of another program.", hint=hint)
    return version


def _measure_files(path: Path) -> int:
    return sum(file.stat().st_size for file in (path, *sqlite_files.list_wal_files(path)) if file.exists())
