from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from proxy.cli import sample
from proxy.errors import ConfigError, StoreRefused
from proxy.settings.load import Settings
from tests.cli.test_serve import served


def test_the_samples_are_whole_conversations() -> None:
    for one in sample.read_samples():
        called = [call["id"] for m in one["messages"] for call in m.get("tool_calls", ())]
        assert called == [m["tool_call_id"] for m in one["messages"] if m["role"] == "tool"]
        assert {"id", "messages", "tools"} == set(one)


@pytest.mark.slow
async def test_a_store_is_filled_with_requests_that_policies_have_edited(tmp_path: Path) -> None:
    file = tmp_path / "a.sqlite3"
    count = await sample.fill_store(Settings(db=str(file)))
    with closing(sqlite3.connect(file)) as there:
        rows = there.execute(
            "SELECT status, tokens_before, tokens_after, started_at, first_byte_ms, ended_at, session FROM exchanges"
        ).fetchall()
        edits = there.execute("SELECT count(*) FROM edits").fetchone()[0]
        names = [row[0] for row in there.execute("SELECT session FROM sessions")]
    assert len(rows) == count
    assert {row[0] for row in rows} == {"complete"}
    before, after = sum(row[1] for row in rows), sum(row[2] for row in rows)
    print(before, after, edits)
    assert after < 0.9 * before, "the dashboard has something to show"
    assert edits > 0
    assert sorted(names) == sorted(one["id"] for one in sample.read_samples())
    assert all(row[4] > 0 and row[5] > row[3] for row in rows), "each request has the time that it took"
    last = max(rows, key=lambda row: row[3])[6]
    assert last == max(sample.read_samples(), key=lambda one: len(one["messages"]))["id"], "`-` is the long session"
    spread = max(row[3] for row in rows) - min(row[3] for row in rows)
    assert spread > sample.STEP_S * (count - 2)


def test_only_an_empty_store_is_filled(tmp_path: Path) -> None:
    file = tmp_path / "a.sqlite3"
    sample.check_empty(str(file))
    with closing(sqlite3.connect(file)) as there:
        there.execute("CREATE TABLE sessions (session TEXT)")
        there.commit()
        sample.check_empty(str(file))
        there.execute("INSERT INTO sessions VALUES ('mine')")
        there.commit()
    with pytest.raises(ConfigError, match="this one has 1"):
        sample.check_empty(str(file))
    for db in ("postgresql://u:secret@h/d", ":memory:"):
        with pytest.raises(ConfigError) as refused:
            sample.check_empty(db)
        assert "secret" not in str(refused.value)
    with pytest.raises(ConfigError, match="a SQLite file"):
        sample.check_empty(str(tmp_path))
    file.write_bytes(b"x" * 100)
    with pytest.raises(StoreRefused):
        sample.check_empty(str(file))


@pytest.mark.slow
def test_serve_shows_the_samples(tmp_path: Path) -> None:
    with served(tmp_path, "--sample") as (_, printed):
        assert "recorded requests were played into" in printed
        with closing(sqlite3.connect(f"file:{tmp_path / 'a.sqlite3'}?mode=ro", uri=True)) as there:
            assert there.execute("SELECT count(*) FROM sessions").fetchone() == (2,)
