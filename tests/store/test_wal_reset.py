from __future__ import annotations

import logging
import sqlite3
from pathlib import Path

import pytest

from proxy.store import wal_reset
from proxy.store.wal_reset import Version, describe_bug, describe_bug_briefly, has_bug
from tests.stores import sqlite_store


@pytest.mark.parametrize("version", [(3, 7, 0), (3, 40, 1), (3, 44, 5), (3, 45, 0), (3, 50, 6), (3, 51, 2)])
def test_versions_with_the_bug_are_named_with_what_to_do(version: Version) -> None:
    assert has_bug(version)
    told = describe_bug(version)
    assert told.startswith("SQLite " + ".".join(map(str, version)))
    assert "3.51.3" in told


@pytest.mark.parametrize("version", [(3, 44, 6), (3, 44, 9), (3, 50, 7), (3, 51, 3), (3, 52, 0), (3, 53, 1), (4, 0, 0)])
def test_sqlite_versions_without_the_wal_reset_bug_get_no_warning(version: Version) -> None:
    assert not has_bug(version)
    assert describe_bug(version) == describe_bug_briefly(version) == ""


async def test_s7_the_start_names_it_without_a_warning_and_the_readers_can_neither_write_nor_checkpoint(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(wal_reset.describe_bug_briefly, "__defaults__", ((3, 40, 1),))
    store = sqlite_store(tmp_path / "a.sqlite3")
    await store.open()
    try:
        [line] = [r for r in caplog.records if "WAL-reset" in r.getMessage()]
        assert (line.levelname, "cannot strike here" in line.getMessage()) == ("INFO", True)
        assert len(line.getMessage()) < 120, "nobody is frightened by the first line of a start"
        for reader in store._readers:
            assert reader._connection is not None
            async with reader._connection.execute("PRAGMA wal_autocheckpoint") as found:
                assert await found.fetchone() == (0,)
            with pytest.raises(sqlite3.OperationalError, match="readonly"):
                await reader._connection.execute("CREATE TABLE x (y)")
    finally:
        await store.close()
