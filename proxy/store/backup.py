"""Backup of a SQLite store while a proxy serves from it, and its restoration.

SQLite's online backup copies the pages of one read transaction. The copy is therefore the store at one moment, with the
journal: an exchange that was acknowledged before is in it. The proxy writes on meanwhile. Its log cannot be cut until
the copy is made, since the transaction still reads from there.

The copy appears under its name only when it is complete, checked and on disk. A store that is replaced is moved aside
and never removed.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

from proxy.errors import StoreRefused
from proxy.store import sqlite_files
from proxy.store.gap_file import GapFile
from proxy.store.maintenance import read_schema_status

PAGES: Final = 4096
"""Pages that are copied between two calls of `heartbeat`."""
Heartbeat = Callable[[int, int], None]
"""Called with the number of pages that are copied, and of all pages."""


def backup_file(path: Path, target: Path, heartbeat: Heartbeat = lambda _done, _all: None) -> int:
    """Write the store at `path` to the new file `target` and return its bytes. Raises StoreRefused if the store cannot
    be read, or if `target` exists or cannot be written."""
    read_schema_status(path)
    if target.exists():
        raise StoreRefused(f"{target} is there already.", hint="Give another name, or move it away.")
    _copy(path, target, heartbeat)
    return target.stat().st_size


def restore_file(source: Path, path: Path, heartbeat: Heartbeat = lambda _done, _all: None) -> Path | None:
    """Put a copy of the backup `source` in the place of the store at `path`. Return the new name of the store that was
    there, None if there was none. Raises StoreRefused, also if a proxy uses `path` or the backup is newer than the
    code."""
    status = read_schema_status(source, "Name a file that `context-proxy backup` has written.")
    if status.version > status.latest:
        raise StoreRefused(
            f"{source} has schema {status.version}, newer than this version of context-proxy knows ({status.latest}).",
            hint="Restore it with the version that wrote it.",
        )
    if source.resolve() == path.resolve():
        raise StoreRefused(f"{source} is the store itself.", hint="Say with --db where the backup is to go.")
    path = path.resolve()  # a link stays, and leads to the store that is restored
    try:
        sqlite_files.prepare_folder(path)
    except OSError as error:
        raise StoreRefused(f"the folder of {path} cannot be made: {error.strerror}.") from error
    lock = sqlite_files.FileLock(path)
    lock.acquire()
    try:
        fresh = path.with_name(f".{path.name}.{os.getpid()}")
        _copy(source, fresh, heartbeat)
        aside = _set_aside(path)
        fresh.rename(path)
        _sync_folder(path)
        return aside
    finally:
        lock.release()


def _copy(source: Path, target: Path, heartbeat: Heartbeat) -> None:
    """Copy one database to a new file, check the copy, and put it on disk. Raises StoreRefused."""
    unfinished = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        os.close(os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        uri = sqlite_files.build_read_uri(source, "Say which with --db.")
        with (
            closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as original,
            closing(sqlite3.connect(unfinished, isolation_level=None)) as copy,
        ):
            original.execute("BEGIN")
            original.execute(
                "SELECT count(*) FROM sqlite_master"
            ).fetchone()  # the transaction begins with the first read
            original.backup(copy, pages=PAGES, progress=lambda _status, left, total: heartbeat(total - left, total))
            copy.execute("PRAGMA journal_mode = DELETE")  # one file without a log beside it
            [first, *_] = copy.execute("PRAGMA quick_check(1)").fetchall()
        if first[0] != "ok":
            raise StoreRefused(f"the copy of {source} is damaged: {first[0]}.", hint="Check the disk, and try again.")
        with unfinished.open("rb") as written:
            os.fsync(written.fileno())
        unfinished.rename(target)
        _sync_folder(target)
    except (OSError, sqlite3.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise StoreRefused(f"{source} cannot be copied to {target}: {reason}.") from error
    finally:
        for ending in ("", "-journal", "-wal", "-shm"):
            unfinished.with_name(unfinished.name + ending).unlink(missing_ok=True)


def _set_aside(path: Path) -> Path | None:
    """Move a store with the files beside it to the first free name. Return that name, None if there is no database."""
    number = 1
    while (target := path.with_name(f"{path.name}.replaced-{number}")).exists():
        number += 1
    if path.exists():
        # With an empty log, a kill between two of these moves parts nothing. A damaged store is moved as it is.
        with suppress(sqlite3.Error), closing(sqlite3.connect(path, isolation_level=None)) as database:
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    is_there = path.exists()
    for file in (path, *sqlite_files.list_wal_files(path), GapFile(path).path):
        with suppress(FileNotFoundError):
            file.rename(target.with_name(target.name + file.name.removeprefix(path.name)))
    return target if is_there else None


def _sync_folder(file: Path) -> None:
    """Make a new name durable."""
    folder = os.open(file.absolute().parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
