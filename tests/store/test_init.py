"""`create_store`: the store that `db` names."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from proxy.errors import StoreRefused
from proxy.store import create_store
from proxy.store.in_memory import InMemoryStore
from proxy.store.postgres import PostgresStore
from proxy.store.sqlite import SqliteStore


def test_a_path_is_a_sqlite_file_a_url_a_server_and_memory_forgets(tmp_path: Path) -> None:
    found = create_store(str(tmp_path / "a.sqlite3"))
    assert isinstance(found, SqliteStore)
    assert found.path == tmp_path / "a.sqlite3"
    by_url = create_store(f"sqlite:///{tmp_path / 'b.sqlite3'}")
    assert isinstance(by_url, SqliteStore)
    assert by_url.path == tmp_path / "b.sqlite3"
    assert isinstance(create_store(":memory:"), InMemoryStore)
    for scheme in ("postgresql", "postgres"):
        assert isinstance(create_store(f"{scheme}://me:secret@host/db"), PostgresStore)


def test_a_missing_driver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "proxy.store.postgres", None)
    with pytest.raises(StoreRefused, match="asyncpg") as refused:
        create_store("postgresql://me:secret@host/db")
    assert "agent-context-proxy[postgres]" in refused.value.hint
    assert "secret" not in str(refused.value)


def test_what_no_store_is_for_is_refused_without_its_password() -> None:
    with pytest.raises(StoreRefused) as refused:
        create_store("mysql://user:secret@host/db")
    assert "mysql" in str(refused.value)
    assert "secret" not in str(refused.value)
