from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from proxy.errors import StoreRefused
from proxy.store import maintenance, sqlite_files
from proxy.store.migrate import migrate
from proxy.store.schema import MIGRATIONS


def make_old_store(folder: Path, upto: int | None = None) -> Path:
    """A store of an earlier schema."""
    path = folder / "a.sqlite3"
    sqlite_files.prepare_files(path)
    asyncio.run(migrate(path, MIGRATIONS[:upto]))
    return path


def damage_page(path: Path) -> None:
    """Overwrite the first page of the messages."""
    with closing(sqlite3.connect(path)) as there:
        there.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        [[page]] = there.execute("SELECT rootpage FROM sqlite_master WHERE name = 'messages'").fetchall()
    with path.open("r+b") as file:
        file.seek((page - 1) * 4096)
        file.write(b"\xff" * 4096)


def test_a_damaged_page_is_found_as_a_start_finds_it(tmp_path: Path) -> None:
    path = make_old_store(tmp_path)
    maintenance.check_pages(path)
    damage_page(path)
    with pytest.raises(StoreRefused, match="is damaged"):
        maintenance.check_pages(path)
    with pytest.raises(StoreRefused, match="cannot be written anew") as caught:
        maintenance.vacuum(path)
    assert "backup" in caught.value.hint


def test_a_file_of_another_kind_is_called_that(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("These are notes, and no database. " * 200)
    with pytest.raises(StoreRefused, match="no SQLite database") as caught:
        asyncio.run(migrate(path, MIGRATIONS))
    assert caught.value.hint.startswith("Give another path with --db.")
    assert path.read_text().startswith("These are notes")


def test_missing_migrations_are_listed_and_not_run(tmp_path: Path) -> None:
    path = make_old_store(tmp_path, 2)
    before = path.read_bytes()
    found = maintenance.read_schema_status(path)
    assert (found.version, found.latest, found.missing) == (2, MIGRATIONS[-1].number, MIGRATIONS[2:])
    assert path.read_bytes() == before
    assert maintenance.migrate_file(path) == len(MIGRATIONS) - 2
    assert maintenance.read_schema_status(path).missing == ()
    assert maintenance.migrate_file(path) == 0


def test_free_space_is_given_back(tmp_path: Path) -> None:
    path = make_old_store(tmp_path)
    with closing(sqlite3.connect(path)) as there, there:
        there.execute("CREATE TABLE filler (x BLOB)")
        there.executemany("INSERT INTO filler VALUES (randomblob(4000))", [()] * 500)
    with closing(sqlite3.connect(path)) as there, there:
        there.execute("DROP TABLE filler")
    before, after = maintenance.vacuum(path)
    assert before > 2_000_000 > after
    assert path.stat().st_mode & 0o077 == 0
    assert maintenance.read_schema_status(path).missing == ()


def test_a_store_in_use_is_left_alone(tmp_path: Path) -> None:
    path = make_old_store(tmp_path, 2)
    lock = sqlite_files.FileLock(path)
    lock.acquire()
    try:
        for act in (maintenance.vacuum, maintenance.migrate_file):
            with pytest.raises(StoreRefused, match="in use"):
                act(path)
    finally:
        lock.release()
    assert maintenance.read_schema_status(path).version == 2


def test_a_file_that_is_not_a_store_of_the_proxy_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "b.db"
    with closing(sqlite3.connect(other)) as there, there:
        there.execute("CREATE TABLE a (b)")
    (tmp_path / "c.db").write_text("no database at all, but a text" * 40)
    for path in (other, tmp_path / "c.db", tmp_path / "none.db"):
        for act in (maintenance.read_schema_status, maintenance.vacuum, maintenance.migrate_file):
            with pytest.raises(StoreRefused):
                act(path)
    assert not (tmp_path / "none.db").exists()
