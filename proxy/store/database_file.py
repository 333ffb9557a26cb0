"""The SQLite file that the writer has open: its connection, its transactions, its log and its free pages.

After an I/O error the log's contents are not trusted. A failed fsync may have marked pages clean that never reached the
disk. Writing the same rows again would find them "there" and sync nothing. So a whole checkpoint, which copies the log
into the database and syncs that, has to succeed first.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from proxy.store import full_text_search
from proxy.store.sqlite_files import FileIdentity, build_uri, list_wal_files, make_private

log = logging.getLogger(__name__)

_FREE_PAGES = 256
_FREE_SHARE = 10
"""Free pages are returned to the file system if there are more than `_FREE_PAGES`, and more than a tenth of all pages.
Fewer may stay, since traffic will fill them again soon."""
_VACUUM_PAGES = 64
"""Free pages that are returned in one step."""
_LOG_LIMIT_BYTES = 64 << 20
KEPT_LOG_BYTES = 1 << 20
"""Size of the log's file once it is opened or shortened; the removal of content empties it. A commit that writes over
bytes of the file leaves its size as it is. A sync then has no size to store in the file system's own journal, and waits
once, not two or three times."""


class DatabaseFile:
    """The file, for the one thread that writes to it."""

    def __init__(self, path: Path, *, syncs_later: bool) -> None:
        self.path = path
        self.syncs_later = syncs_later
        """True if a commit does not wait for the sync of the log: `sync_log` does it."""
        self._connection: sqlite3.Connection | None = None
        self._identity: FileIdentity | None = None
        """That of the file which was opened first: no other file may take its place."""
        self.is_log_suspect = False
        """True from an I/O error until a checkpoint has copied the whole log."""

    @property
    def is_open(self) -> bool:
        """True if there is a connection."""
        return self._connection is not None

    @property
    def connection(self) -> sqlite3.Connection:
        """The connection. Raises sqlite3.OperationalError if there is none."""
        if self._connection is None:
            raise sqlite3.OperationalError("not connected")
        return self._connection

    @property
    def log_bytes(self) -> int:
        """Size of the write-ahead log: it grows while another process holds a snapshot of the database."""
        with contextlib.suppress(OSError):
            return list_wal_files(self.path)[0].stat().st_size
        return 0

    def open(self) -> sqlite3.Connection:
        """Open the file. Raises sqlite3.Error, or OSError if it was replaced or lost since it was opened first."""
        self.check_unchanged()
        connection = _open_connection(self.path)
        try:
            connection.execute(f"PRAGMA synchronous = {'NORMAL' if self.syncs_later else 'FULL'}")
            connection.execute(f"PRAGMA journal_size_limit = {_LOG_LIMIT_BYTES}")
            connection.execute("PRAGMA temp_store = MEMORY")
            connection.execute("PRAGMA cache_size = -2000")  # KB: 8 MB saved no time and no write, at 100,000 rows
            full_text_search.register_functions(connection)
            connection.execute("PRAGMA secure_delete = ON")  # removed data is not left in the file
            connection.execute("BEGIN IMMEDIATE")  # so that -wal and -shm exist, and a lock is noticed now
            connection.execute("ROLLBACK")
            make_private(self.path)
            self._fill_log()
            self._identity = self._identity or FileIdentity.read(self.path)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return connection

    def close(self) -> None:
        """Close the connection, if there is one. Never raises sqlite3.Error."""
        if self._connection is not None:
            with contextlib.suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None

    @contextlib.contextmanager
    def begin_transaction(self) -> Iterator[sqlite3.Connection]:
        """Run one transaction. Raises OSError if the file was replaced or lost meanwhile."""
        connection = self.connection
        try:
            connection.execute("BEGIN IMMEDIATE")
            yield connection
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                with contextlib.suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
            raise
        self.check_unchanged()

    def check_unchanged(self) -> None:
        """Check that the path leads to the file, and that it is private. Raises OSError if it does not."""
        if self._identity is not None:
            self._identity.check_unchanged(self.path)

    def copy_suspect_log(self) -> None:
        """Copy a log that is not trusted into the database. Raises sqlite3.Error if not all of it could be copied."""
        if self.is_log_suspect:
            if not self.checkpoint():
                raise sqlite3.OperationalError("a reader keeps the log from being copied after an I/O error")
            self.is_log_suspect = False

    def checkpoint(self) -> bool:
        """Copy the log into the database and truncate it. True if all of it was copied, which readers may prevent."""
        if self._connection is None:
            return False
        _, frames, copied = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        return bool(frames == copied)

    def shorten_log(self) -> None:
        """Copy the log into the database, and shorten its file to `KEPT_LOG_BYTES`. Readers may prevent both.

        SQLite itself cuts what is beyond the limit, under its locks, with the first commit of a log that begins anew.
        So a commit follows that changes nothing."""
        connection = self.connection
        connection.execute(f"PRAGMA journal_size_limit = {KEPT_LOG_BYTES}")
        try:
            is_busy, _, _ = connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()
            if not is_busy:
                version = connection.execute("PRAGMA user_version").fetchone()[0]
                connection.execute(f"PRAGMA user_version = {version}")
        finally:
            connection.execute(f"PRAGMA journal_size_limit = {_LOG_LIMIT_BYTES}")

    def _fill_log(self) -> None:
        """Write zeros behind the log up to `KEPT_LOG_BYTES`. SQLite reads them as the end of the log.

        They are appended, so they never take the place of what another program writes meanwhile. SQLite locks other
        files than the log, so closing this descriptor drops no lock. A full disk only leaves the log shorter."""
        with contextlib.suppress(OSError):
            descriptor = os.open(list_wal_files(self.path)[0], os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            try:
                os.write(descriptor, bytes(max(0, KEPT_LOG_BYTES - os.fstat(descriptor).st_size)))
            finally:
                os.close(descriptor)

    def sync_log(self) -> None:
        """Sync the log by a descriptor of its own: a checkpoint would not sync while a reader holds an old snapshot.
        SQLite locks other files than the log, so closing this descriptor drops no lock."""
        descriptor = os.open(list_wal_files(self.path)[0], os.O_RDWR | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        except OSError:
            self.is_log_suspect = True
            raise
        finally:
            os.close(descriptor)

    def save_removed_log(self) -> None:
        """Copy the log into the database if another program has removed its file: only this process can still read it.
        SQLite goes on with the removed file until all its connections are closed."""
        if self._connection is not None and not list_wal_files(self.path)[0].exists():
            copied = self.checkpoint()
            log.error(
                "the log of the database %s was removed and is %s: restart the proxy, or a kill loses its last seconds",
                *(self.path, "saved" if copied else "not saved yet"),
            )

    def return_free_pages(self) -> bool:
        """Return some free pages to the file system, if there are many. The next checkpoint shortens the file, as
        intended. Return True if there may be more to return."""
        if self._connection is None:
            return False
        free, pages = (
            self._connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("freelist_count", "page_count")
        )
        has_many = bool(free > _FREE_PAGES and free * _FREE_SHARE > pages)
        if has_many:
            # As a script: `execute` stops after the first row, so it would return one page only.
            self._connection.executescript(f"PRAGMA incremental_vacuum({_VACUUM_PAGES})")
            self.note_size()
        return has_many

    def note_size(self) -> None:
        """Set the minimum size of the file for later checks: a checkpoint may still remove freed pages."""
        if self._connection is not None and self._identity is not None:
            pages, size = (self._connection.execute(f"PRAGMA page_{name}").fetchone()[0] for name in ("count", "size"))
            found = FileIdentity.read(self.path).size
            if found < min(self._identity.size, pages * size):  # since the check a moment ago
                raise OSError(f"the database {self.path} was truncated")
            self._identity = replace(self._identity, size=min(found, pages * size))


def _open_connection(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(build_uri(path), uri=True, isolation_level=None, timeout=1.0, cached_statements=128)
