"""`connect`: the store that `db` names."""

from __future__ import annotations

from pathlib import Path

import pytest

from proxy.errors import StoreRefused
from proxy.store import connect
from proxy.store.memory import MemoryStore
from proxy.store.sqlite import SqliteStore


def test_a_path_is_a_sqlite_file_and_memory_forgets(tmp_path: Path) -> None:
    found = connect(str(tmp_path / "a.sqlite3"))
    assert isinstance(found, SqliteStore)
    assert found.path == tmp_path / "a.sqlite3"
    by_url = connect(f"sqlite:///{tmp_path / 'b.sqlite3'}")
    assert isinstance(by_url, SqliteStore)
    assert by_url.path == tmp_path / "b.sqlite3"
    assert isinstance(connect(":memory:"), MemoryStore)


def test_what_no_store_is_for_is_refused_without_its_password() -> None:
    with pytest.raises(StoreRefused) as refused:
        connect("mysql://user:secret@host/db")
    assert "mysql" in str(refused.value)
    assert "secret" not in str(refused.value)
