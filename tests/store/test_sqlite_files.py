from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from proxy.errors import StoreRefused
from proxy.store import sqlite_files


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(params=[0o000, 0o022, 0o077])
def _umask(request: pytest.FixtureRequest) -> object:
    before = os.umask(request.param)
    yield
    os.umask(before)


@pytest.mark.usefixtures("_umask")
def test_folder_and_file_are_private_whatever_the_umask(tmp_path: Path) -> None:
    path = tmp_path / "data" / "deep" / "store.sqlite3"
    sqlite_files.prepare_files(path)
    assert mode(path) == 0o600
    assert mode(path.parent) == 0o700


def test_a_folder_that_was_there_keeps_its_rights(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    sqlite_files.prepare_files(tmp_path / "store.sqlite3")
    assert mode(tmp_path) == 0o755


def test_files_that_others_could_read_are_made_private(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite3"
    for file in (path, *sqlite_files.list_wal_files(path)):
        file.write_bytes(b"")
        file.chmod(0o666)
    sqlite_files.prepare_files(path)
    assert [mode(file) for file in (path, *sqlite_files.list_wal_files(path))] == [0o600] * 3


def test_a_path_that_is_a_folder_is_refused_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(StoreRefused, match="cannot be opened for writing") as caught:
        sqlite_files.prepare_files(tmp_path)
    assert caught.value.hint


def test_a_lock_is_held_by_one_and_names_its_holder(tmp_path: Path) -> None:
    first, second = sqlite_files.FileLock(tmp_path / "db"), sqlite_files.FileLock(tmp_path / "db")
    first.acquire()
    with pytest.raises(StoreRefused, match=rf"in use by another process \(pid {os.getpid()}\)"):
        second.acquire()
    first.release()
    second.acquire()
    second.release()
    second.release()


def test_a_lock_file_of_another_user_is_not_taken_for_a_process_that_holds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "db.lock").write_text("1\n")
    (tmp_path / "db.lock").chmod(0o660)

    def refuse(_descriptor: int, _mode: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "fchmod", refuse)
    with pytest.raises(StoreRefused, match=r"its lock file \S*db\.lock cannot be used \(Operation not permitted\)"):
        sqlite_files.FileLock(tmp_path / "db").acquire()
    (tmp_path / "db.lock").chmod(0o600)
    lock = sqlite_files.FileLock(tmp_path / "db")
    lock.acquire()
    lock.release()


def test_a_lock_file_is_private(tmp_path: Path) -> None:
    lock = sqlite_files.FileLock(tmp_path / "db")
    lock.acquire()
    assert mode(tmp_path / "db.lock") == 0o600
    lock.release()


def test_a_uri_opens_only_what_is_there_and_escapes_odd_names(tmp_path: Path) -> None:
    assert sqlite_files.build_uri(tmp_path / "a?b#c").endswith("/a%3Fb%23c?mode=rw")


def test_a_replaced_a_shortened_and_a_missing_file_are_noticed(tmp_path: Path) -> None:
    path = tmp_path / "db"
    path.write_bytes(b"x" * 100)
    path.chmod(0o600)
    identity = sqlite_files.FileIdentity.read(path)
    identity.check_unchanged(path)
    path.chmod(0o644)
    identity.check_unchanged(path)
    assert mode(path) == 0o600
    os.truncate(path, 50)
    with pytest.raises(OSError, match="truncated"):
        identity.check_unchanged(path)
    (tmp_path / "other").write_bytes(b"x" * 100)
    (tmp_path / "other").rename(path)
    with pytest.raises(OSError, match="replaced"):
        identity.check_unchanged(path)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        identity.check_unchanged(path)
