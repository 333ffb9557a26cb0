"""The one thread that writes to SQLite, with a connection of its own, and commits all queued items in one transaction.

Group commit without waiting: a lone item is committed at once. Items that come while that commit waits for the disk go
into the next one. So the delay is one commit at most, and the number of syncs falls by itself as the load rises.

An item is taken from the queue only when it is durable. It is written, committed, and then dropped from `_pending`, so
that no fault in between loses it. Inserts are ignored where the row is there, and updates set the same values. So
writing an item twice after a fault of unclear outcome does no harm (a gap may be counted twice).

Errors are of two kinds. A row that cannot be stored fails its own item: the batch is rolled back and its items are
written one by one. Any other error comes from the disk or the file. The items stay, the connection is closed and opened
again with growing pauses, and nothing is acknowledged until it works.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from queue import Empty
from typing import Literal

from proxy.store import encode, full_text_search
from proxy.store.base import GapRow, Row
from proxy.store.database_file import KEPT_LOG_BYTES, DatabaseFile
from proxy.store.journal import MAX_AGE_S, Journal, execute_rows, is_erasing, pack
from proxy.store.write_queue import WriteItem, WriteQueue, count_bytes

log = logging.getLogger(__name__)

_BATCH_ITEMS = 64
_BATCH_S = 0.010
"""A group ends at `_BATCH_ITEMS` items, or after `_BATCH_S` seconds of writing, whichever comes first."""
_SYNC_S = 0.9
"""Seconds from the first unsynced commit to the sync of the log, with durability "normal": less than a second."""
_CHECK_S = 5.0
"""Seconds between two checks of the file when nothing is written: a lost or replaced file is noticed within 10 s."""
_IDLE_S = 1.0
"""After `_IDLE_S` seconds without a write, a log of over `KEPT_LOG_BYTES` bytes is copied and shortened."""
_WIPE_S = 60.0
"""Seconds within which erased content leaves the log and the keyword index, however much is written meanwhile. Also the
seconds until the next try if a reader holds the log."""
_VACUUM_S = 0.02
"""Seconds between two steps of `return_free_pages`, while there is nothing to write."""
_RETRY_PAUSES_S = (0.05, 0.1, 0.2, 0.4, 0.8, 1.0)

_BAD_ROW = (
    *(sqlite3.IntegrityError, sqlite3.DataError, sqlite3.ProgrammingError, sqlite3.InterfaceError),
    *(sqlite3.NotSupportedError, OverflowError, UnicodeError, TypeError, ValueError, KeyError, AttributeError),
)
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)

# Python looks for an adapter of each argument that is bytes or None. Without one it also asks their types for
# `__adapt__` and `__conform__`, in an eighth of this thread's time. Both adapters return their argument.
sqlite3.register_adapter(bytes, bytes)
sqlite3.register_adapter(type(None), lambda value: value)


class SqliteWriter:
    """The writer. `start` and `stop` are called on the event loop; methods with an underscore run in the thread."""

    def __init__(
        self, path: Path, *, durability: Literal["full", "normal"], spool_bytes: int, drain_s: float = 5.0
    ) -> None:
        self.commits = 0
        self.trouble = "not started"
        self.queue = WriteQueue(spool_bytes)
        self._file = DatabaseFile(path, syncs_later=durability == "normal")
        self._drain_s = drain_s
        self._pending: deque[WriteItem] = deque()
        self._journal = Journal()
        self._journal_since = 0.0
        self._failures = 0
        self._unsynced_since = 0.0
        """Time of the first commit that is not synced yet; 0 if all are."""
        self._last_write = 0.0
        """Time of the last commit; 0 once the idle work after it is done."""
        self._last_check = 0.0
        self._vacuuming = False
        self._wipe_at = 0.0
        """Time at which the next step of `_wipe_erased` is due; 0 if nothing was erased."""
        self._merging = False
        """True once such steps have begun to merge the keyword index."""
        self._stop_at: float | None = None
        """Time at which items that cannot be written are given up; None until the end mark is read."""
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._ended: asyncio.Future[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def start(self) -> None:
        """Start the thread and open the file. Raises sqlite3.Error or OSError if the file cannot be opened."""
        self._loop = asyncio.get_running_loop()
        self._ended = self._loop.create_future()
        started: asyncio.Future[None] = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, args=(started,), name="store-writer", daemon=True)
        self._thread.start()
        await started

    async def stop(self) -> None:
        """Write what waits, for `drain_s` at most if the disk hangs, and end the thread. Idempotent."""
        self.queue.close()
        self._stopping.set()
        if self._ended is not None and self._thread is not None:
            await asyncio.shield(self._ended)
            self._thread.join()

    def list_unapplied_rows(self) -> list[Row]:
        """The rows that are in the journal and not in the tables yet."""
        return [row for rows in tuple(self._journal.items) for row in rows]

    def has_unapplied(self, place: tuple[str, str] | None) -> bool:
        """True if the journal has rows of this tenant and session (None: of any) that the tables do not have yet."""
        places = self._journal.places
        return bool(places) if place is None else place in places

    @property
    def log_bytes(self) -> int:
        """Size of the write-ahead log: it grows while another process holds a snapshot of the database."""
        return self._file.log_bytes

    # From here on, methods run in the thread.

    def _run(self, started: asyncio.Future[None]) -> None:
        try:
            self._connect()
        except (sqlite3.Error, OSError) as error:
            self._call_on_loop(_succeed, self._ended)
            self._call_on_loop(_fail, started, error)
            return
        self.trouble = ""
        try:
            self._write_tables(())
        except Exception as error:  # noqa: BLE001  a full disk, for example: the loop below tries it again
            self._handle_failure(error)
        self._call_on_loop(_succeed, started)
        try:
            while not self._is_finished():
                self._run_cycle()
            self._end_journal()
            if self._unsynced_since:
                self._file.sync_log()
        except OSError as error:
            log.error("the last second of the log could not be synced: %s", error)
        finally:
            self._file.close()
            self._call_on_loop(_succeed, self._ended)

    def _end_journal(self) -> None:
        """Write the journal's rows to the tables before the file is closed. If the disk does not let it, the rows stay
        in the journal, and the next start applies them. What was erased is wiped, as long as there is time."""
        try:
            if self._file.is_open:
                self._write_tables(())
            while self._wipe_at and time.monotonic() < (self._stop_at or 0.0):
                self._wipe_erased(time.monotonic())
        except (sqlite3.Error, OSError) as error:
            log.warning("%d transactions stay in the journal: %s", len(self._journal.items), error)

    def _is_finished(self) -> bool:
        return self._stop_at is not None and not self._pending

    def _run_cycle(self) -> None:
        """Take the queued items, write them, maintain the file. A step that fails is tried again in the next cycle."""
        self._collect_items()
        try:
            if not self._file.is_open:
                self._reopen()
            if self._pending:
                self._write_batch()
            self._apply_due_journal()
            self._maintain()
        except Exception as error:  # noqa: BLE001  the thread must not end: logged, shown as `trouble`, tried again
            self._handle_failure(error)
            if self._stop_at is not None and time.monotonic() >= self._stop_at:
                self._give_up(error)
            else:
                self._pause_before_retry()
        else:
            self._note_recovery()

    def _note_recovery(self) -> None:
        """Clear `trouble`, before a caller learns that rows are durable: it may read at once."""
        if self.trouble:
            log.warning("the store works again after %d failures", self._failures)
            self.trouble = ""
            self._failures = 0

    def _collect_items(self) -> None:
        """Wait until there is something to write or to maintain, then take the items that are there without waiting."""
        inbox = self.queue.inbox
        if not self._pending and self._stop_at is None:
            try:
                self._accept_items(inbox.get(timeout=self._compute_wait()))
            except Empty:
                return
        # While stopping, all items are taken: else the end mark behind a full batch that cannot be written would never
        # be read.
        while (len(self._pending) < _BATCH_ITEMS or self._stopping.is_set()) and self._stop_at is None:
            if inbox.empty():  # this thread alone takes from it, so what is there stays there
                return
            self._accept_items(inbox.get_nowait())

    def _accept_items(self, items: list[WriteItem] | None) -> None:
        if items is None:
            self._stop_at = time.monotonic() + self._drain_s
        else:
            self._pending.extend(items)

    def _compute_wait(self) -> float:
        """Return the seconds until the next periodic work."""
        if self.trouble:
            return 0.0  # paused already
        if self._unsynced_since:
            return max(0.0, self._unsynced_since + _SYNC_S - time.monotonic())
        now, wait = time.monotonic(), _IDLE_S if self._last_write else _CHECK_S
        if self._journal.items and not self._last_write:
            wait = min(wait, max(0.0, self._journal_since + MAX_AGE_S - now))
        if self._wipe_at:
            wait = min(wait, max(_VACUUM_S, self._wipe_at - now))
        return _VACUUM_S if self._vacuuming else wait

    def _write_batch(self) -> None:
        """Write the first items in one transaction. If a row cannot be stored, write each item in its own."""
        batch = list(islice(self._pending, _BATCH_ITEMS))
        try:
            self._settle_first(self._commit(batch), None)
        except _BAD_ROW:
            for item in batch:
                try:
                    self._settle_first(self._commit([item]), None)
                except _BAD_ROW as error:
                    log.warning("rows that cannot be stored: %s", type(error).__name__)
                    self._settle_first(1, error)

    def _commit(self, batch: Sequence[WriteItem]) -> int:
        """Write the first items of the batch in one transaction; return their number once they are durable."""
        items = [item.rows for item in batch]
        record = None if self._journal.is_full or any(item.piece_of for item in batch) else pack(items)
        if record is None:
            count = self._write_tables(items)
        else:
            self._write_record(record)
            self._journal_since = self._journal_since if self._journal.items else time.monotonic()
            self._journal.commit(items, record)
            count = len(batch)
        self.commits += 1
        return count

    @contextlib.contextmanager
    def _begin_transaction(self) -> Iterator[sqlite3.Connection]:
        """Run one transaction. Raises OSError if the file was replaced or lost meanwhile."""
        with self._file.begin_transaction() as connection:
            yield connection
        self._note_commit()

    def _write_record(self, record: bytes) -> None:
        """Write a record to the journal. This is one statement, so it is a transaction without BEGIN and COMMIT, and
        waits for a locked file as BEGIN IMMEDIATE does. Raises OSError as `_begin_transaction` does."""
        self._journal.write(self._file.connection, record)
        self._file.check_unchanged()
        self._note_commit()

    def _note_commit(self) -> None:
        """Note the time of a commit."""
        self._last_write = time.monotonic()
        if self._file.syncs_later and not self._unsynced_since:
            self._unsynced_since = self._last_write

    def _write_tables(self, items: Sequence[Sequence[Row]]) -> int:
        """Write the journal's rows and then these items to the tables; return the number of these items."""
        if self._journal.is_empty and not any(items):
            return len(items)
        try:
            return self._write_rows(items)
        except _JournalFault:
            self._apply_items_singly()
            return self._write_rows(items)

    def _write_rows(self, items: Sequence[Sequence[Row]]) -> int:
        """Do the work of `_write_tables` in one transaction. Raises _JournalFault for a row of the journal."""
        erasing = any(map(is_erasing, items))
        with self._begin_transaction() as connection:
            tips: encode.BranchTips = {}
            try:
                self._journal.write_tables(connection, tips)
            except _BAD_ROW as error:
                raise _JournalFault from error
            started, count = time.monotonic(), 0
            for rows in items:
                execute_rows(connection, rows, tips)
                count += 1
                if time.monotonic() - started > _BATCH_S:
                    break
            execute_rows(connection, tuple(tips.values()))
            self._journal.void_records(connection, erasing=erasing)
        self._close_records(erased=erasing)
        if erasing:
            self._wipe_at = self._wipe_at or time.monotonic() + _WIPE_S
            self._merging = False
        return count

    def _close_records(self, *, erased: bool) -> None:
        """Note that the journal's records are applied; those that could not be read are recorded as a gap."""
        unreadable = self._journal.unreadable_bytes
        self._journal.mark_applied(erased=erased)
        if unreadable:
            self._call_on_loop(
                self.queue.record_loss, GapRow("", "", "", unreadable, "journal unreadable", time.time())
            )

    def _apply_items_singly(self) -> None:
        """Write the journal's rows item by item; an item that no table takes is lost and recorded as a gap."""
        lost: list[GapRow | None] = []
        with self._begin_transaction() as connection:
            for rows in self._journal.items:
                connection.execute("SAVEPOINT item")
                try:
                    execute_rows(connection, rows)
                except _BAD_ROW as error:
                    connection.execute("ROLLBACK TO item")
                    log.warning("journaled rows that cannot be stored: %s", type(error).__name__)
                    lost.append(encode.make_gap(rows, count_bytes(rows), type(error).__name__))
                connection.execute("RELEASE item")
            self._journal.void_records(connection, erasing=False)
        self._close_records(erased=False)
        for gap in filter(None, lost):
            self._call_on_loop(self.queue.record_loss, gap)

    def _settle_first(self, count: int, error: Exception | None) -> None:
        """Drop the first items, and report them as durable, or as lost because of `error`."""
        items = [self._pending.popleft() for _ in range(count)]
        if error is None:
            self._note_recovery()
        self._call_on_loop(self.queue.settle_items, items, error)

    def _apply_due_journal(self) -> None:
        """Write the journal's rows to the tables, if they are many or old."""
        journal = self._journal
        if journal.items and (journal.is_full or time.monotonic() - self._journal_since >= MAX_AGE_S):
            self._write_tables(())

    def _maintain(self) -> None:
        """Do the periodic work: sync the log (durability "normal"), check the file. When idle, return free pages and
        shorten the log. Wipe what is erased."""
        now = time.monotonic()
        if self._unsynced_since and now - self._unsynced_since >= _SYNC_S:
            self._file.sync_log()
            self._unsynced_since = 0.0
        if now - self._last_check >= _CHECK_S:
            self._last_check = now
            self._file.check_unchanged()
            self._file.note_size()
            self._file.save_removed_log()
        is_idle = bool(not self._pending and self._last_write and now - self._last_write >= _IDLE_S)
        if self._wipe_at and (is_idle or now >= self._wipe_at):
            self._wipe_erased(now)
        if is_idle or (self._vacuuming and not self._pending):
            self._last_write = 0.0
            self._vacuuming = self._file.return_free_pages()
            if self.log_bytes > KEPT_LOG_BYTES:
                self._file.shorten_log()

    def _wipe_erased(self, now: float) -> None:
        """Do one step of removing what erased content leaves: words in the keyword index, then pages in the log."""
        if not self._file.is_open:
            self._wipe_at = now + _WIPE_S
            return
        is_first, self._merging = not self._merging, True
        if full_text_search.merge_index(self._file.connection, begins=is_first):
            self._wipe_at = now
        else:
            self._wipe_at = 0.0 if self._file.checkpoint() else now + _WIPE_S

    def _connect(self) -> None:
        """Open the file, and read the journal's records that are not applied."""
        connection = self._file.open()
        try:
            self._journal.load(connection)
        except BaseException:
            self._file.close()
            raise

    def _reopen(self) -> None:
        self._connect()
        self._file.copy_suspect_log()

    def _handle_failure(self, error: Exception) -> None:
        """Report the fault, and close the connection unless the file is only locked. The items stay."""
        barriers = [item for item in self._pending if not item.rows]
        if barriers:  # a reader does not wait until the disk is back
            self._pending = deque(item for item in self._pending if item.rows)
            self._call_on_loop(self.queue.settle_items, barriers, error)
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        trouble = f"{type(error).__name__}: {error}"
        if not self.trouble:
            known = isinstance(error, (sqlite3.Error, OSError))
            waiting = len(self._pending)
            log.error("the store cannot write, %d items wait: %s", waiting, trouble, exc_info=None if known else error)
        self.trouble = trouble
        self._failures += 1
        self._file.is_log_suspect = self._file.is_log_suspect or code == sqlite3.SQLITE_IOERR
        if code not in _BUSY:
            self._file.close()

    def _pause_before_retry(self) -> None:
        pause = _RETRY_PAUSES_S[min(self._failures, len(_RETRY_PAUSES_S)) - 1]
        if self._stop_at is None and not self._stopping.is_set():
            self._stopping.wait(pause)
        else:
            time.sleep(min(pause, self._drain_s / 10))

    def _give_up(self, error: Exception) -> None:
        log.error("closing with %d items not stored", len(self._pending))
        self._settle_first(len(self._pending), error)

    def _call_on_loop(self, function: Callable[..., object], *args: object) -> None:
        """Call the function on the event loop, if there still is one."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(function, *args)


class _JournalFault(Exception):
    """Rows of the journal cannot be stored, although the check before journaling let them through."""


def _succeed(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _fail(future: asyncio.Future[None], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
