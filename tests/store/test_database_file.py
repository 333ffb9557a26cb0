"""The file of the writer: nothing is reported as stored that is not in it."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from proxy.store.database_file import KEPT_LOG_BYTES, DatabaseFile

INSERT = "INSERT INTO forms (tenant, session, form, body) VALUES ('t1', 's1', ?, ?)"


@pytest.fixture
async def file(path: Path) -> AsyncIterator[DatabaseFile]:
    made = DatabaseFile(path, syncs_later=True)
    made.open()
    yield made
    made.close()


def write(file: DatabaseFile, *bodies: bytes | None) -> None:
    with file.begin_transaction() as connection:
        connection.executemany(INSERT, [(os.urandom(16), body) for body in bodies])


def delete_all(file: DatabaseFile) -> None:
    with file.begin_transaction() as connection:
        connection.execute("DELETE FROM forms")


def count(path: Path) -> int:
    reader = sqlite3.connect(path)
    try:
        return int(reader.execute("SELECT count(*) FROM forms").fetchone()[0])
    finally:
        reader.close()


def test_a_transaction_that_fails_leaves_nothing(file: DatabaseFile, path: Path) -> None:
    with pytest.raises(sqlite3.IntegrityError):
        write(file, b"x", None)
    write(file, b"y")
    assert count(path) == 1


def test_a_commit_to_a_file_that_was_replaced_is_an_error(file: DatabaseFile, path: Path) -> None:
    path.rename(path.with_name("moved"))
    path.touch()
    with pytest.raises(OSError, match="replaced"):
        write(file, b"x")
    file.close()
    with pytest.raises(OSError, match="replaced"):
        file.open()
    assert not file.is_open


def test_a_log_that_is_not_trusted_is_copied_as_a_whole(file: DatabaseFile, path: Path) -> None:
    write(file, b"x")
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM forms").fetchone()
    write(file, b"y")
    file.is_log_suspect = True
    with pytest.raises(sqlite3.OperationalError, match="a reader keeps the log"):
        file.copy_suspect_log()
    assert file.is_log_suspect
    reader.close()
    file.copy_suspect_log()
    assert (file.is_log_suspect, file.log_bytes) == (False, 0)


def test_small_commits_write_over_bytes_that_the_log_has_and_leave_its_size(file: DatabaseFile, path: Path) -> None:
    assert file.log_bytes == KEPT_LOG_BYTES
    for _ in range(20):
        write(file, b"x")
    assert file.log_bytes == KEPT_LOG_BYTES
    assert count(path) == 20


def test_rows_of_a_process_that_ended_suddenly_are_read_from_a_log_with_zeros_behind_them(
    file: DatabaseFile, path: Path, tmp_path: Path
) -> None:
    write(file, b"x", b"y")
    copy = tmp_path / "copy"
    for end in ("", "-wal"):
        copy.with_name(f"copy{end}").write_bytes(path.with_name(f"{path.name}{end}").read_bytes())
    again = DatabaseFile(copy, syncs_later=False)
    again.open()
    write(again, b"z")
    again.close()
    assert count(copy) == 3


def test_a_log_longer_than_that_is_shortened_once_no_reader_needs_it(file: DatabaseFile, path: Path) -> None:
    write(file, b"x")
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM forms").fetchone()
    write(file, *[b"y" * 4000] * 400)
    assert (held := file.log_bytes) > KEPT_LOG_BYTES
    file.shorten_log()
    assert file.log_bytes == held
    reader.close()
    file.shorten_log()
    assert file.log_bytes == KEPT_LOG_BYTES
    write(file, b"z")
    assert (file.log_bytes, count(path)) == (KEPT_LOG_BYTES, 402)


def test_a_log_that_cannot_be_synced_is_not_trusted(file: DatabaseFile, monkeypatch: pytest.MonkeyPatch) -> None:
    file.sync_log()
    assert file.is_log_suspect is False

    def fail(_: int) -> None:
        raise OSError("I/O error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="I/O error"):
        file.sync_log()
    assert file.is_log_suspect


def test_many_free_pages_are_returned_in_steps_and_few_stay(file: DatabaseFile, path: Path) -> None:
    write(file, *[b"x" * 4000] * 200)
    delete_all(file)
    assert not file.return_free_pages()
    write(file, *[b"x" * 4000] * 1000)
    file.checkpoint()
    full = path.stat().st_size
    delete_all(file)
    steps = 0
    while file.return_free_pages():
        steps += 1
    file.checkpoint()
    file.check_unchanged()
    assert steps > 5
    assert path.stat().st_size < full / 2
    assert not file.return_free_pages()


def test_without_a_connection_nothing_is_done(path: Path) -> None:
    file = DatabaseFile(path, syncs_later=False)
    assert (file.is_open, file.checkpoint(), file.return_free_pages(), file.log_bytes) == (False, False, False, 0)
    with pytest.raises(sqlite3.OperationalError, match="not connected"):
        write(file, b"x")
