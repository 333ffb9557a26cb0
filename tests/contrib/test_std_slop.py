from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from proxy.contrib.std_slop import is_sqlite, read_database
from proxy.errors import ConfigError

# As the program's own documentation describes them; columns that are not read are left out.
SCHEMA = """
CREATE TABLE messages (id INTEGER PRIMARY KEY AUTOINCREMENT, session_id TEXT, role TEXT, content TEXT,
    tool_call_id TEXT, status TEXT DEFAULT 'completed', created_at DATETIME DEFAULT CURRENT_TIMESTAMP, group_id TEXT,
    parsing_strategy TEXT, tokens INTEGER DEFAULT 0);
CREATE TABLE sessions (id TEXT PRIMARY KEY, context_size INTEGER DEFAULT 5, scratchpad TEXT);
CREATE TABLE session_state (session_id TEXT PRIMARY KEY, state_blob TEXT);
CREATE TABLE llm_memos (id INTEGER PRIMARY KEY AUTOINCREMENT, content TEXT NOT NULL, semantic_tags TEXT NOT NULL);
"""
MEMOS = [
    ("Builds need make 4 or newer, since make 3 lacks a function.", '["build"]'),
    ("Tests need a database of their own, since they empty all tables.", "tests, db"),
]
CALL = {"id": "c1", "type": "function", "function": {"name": "read_file", "arguments": '{"path": "a"}'}}


def slop_file(folder: Path, schema: str = SCHEMA) -> Path:
    """A database with a session of three groups, one of them Gemini's and one dropped."""
    file = folder / "slop.db"
    rows: list[tuple[Any, ...]] = [
        ("work", "system", "You are careful.", None, "completed", "g0", None),
        ("work", "user", "Read a.", None, "completed", "g1", "openai"),
        ("work", "assistant", json.dumps({"content": "I look.", "tool_calls": [CALL]}), None, "tool_call", "g1",
         "openai"),
        ("work", "tool", "what is in a", "c1|read_file", "completed", "g1", "openai"),
        ("work", "assistant", "It says so.", None, "completed", "g1", "openai"),
        ("work", "user", "Forget this.", None, "dropped", "g2", "openai"),
        ("work", "assistant", "I do.", None, "dropped", "g2", "openai"),
        ("work", "user", "And b?", None, "completed", "g3", "gemini"),
        ("work", "assistant", json.dumps({"functionCall": {"name": "read_file", "args": {"path": "b"}}}), "read_file",
         "tool_call", "g3", "gemini"),
        ("work", "tool", "what is in b", "read_file", "completed", "g3", "gemini"),
        ("work", "assistant", "The same.", None, "completed", "g3", "gemini"),
        ("other", "user", "Hello.", None, "completed", "g4", "openai"),
    ]  # fmt: skip
    with closing(sqlite3.connect(file)) as database, database:
        database.executescript(schema)
        database.executemany(
            "INSERT INTO messages (session_id, role, content, tool_call_id, status, group_id, parsing_strategy)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            rows,
        )
        database.execute("INSERT INTO sessions (id, context_size) VALUES ('work', 2)")
        if "session_state" in schema:
            database.execute("UPDATE sessions SET scratchpad = '- [ ] read c'")
            database.execute("INSERT INTO session_state VALUES ('work', 'Goal: read all')")
            database.executemany("INSERT INTO llm_memos (content, semantic_tags) VALUES (?, ?)", MEMOS)
    return file


def test_a_session_is_read_with_all_that_was_kept_of_it(tmp_path: Path) -> None:
    (work, other), memos = read_database(slop_file(tmp_path))
    assert (work.session, work.state, work.scratchpad, work.window) == ("work", "Goal: read all", "- [ ] read c", 2)
    assert [message["role"] for message in work.messages[:4]] == ["system", "user", "assistant", "tool"]
    assert work.messages[2] == {"role": "assistant", "content": "I look.", "tool_calls": [CALL]}
    assert work.messages[3]["tool_call_id"] == "c1"
    assert [work.messages[place]["content"] for place in work.dropped] == ["Forget this.", "I do."]
    assert other.messages == [{"role": "user", "content": "Hello."}]
    assert [(memo.content, memo.tags) for memo in memos] == [(MEMOS[0][0], ["build"]), (MEMOS[1][0], ["tests", "db"])]


def test_geminis_calls_get_ids_that_their_results_have(tmp_path: Path) -> None:
    (work, _), _ = read_database(slop_file(tmp_path))
    (call,) = work.messages[8]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"path": "b"}
    assert work.messages[9]["tool_call_id"] == call["id"] != "c1"


def test_a_file_of_an_older_version_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    (work, _), memos = read_database(slop_file(tmp_path, SCHEMA[: SCHEMA.index("CREATE TABLE session_state")]))
    assert (work.state, work.scratchpad, memos) == ("", "", [])


def test_the_file_is_read_and_not_written(tmp_path: Path) -> None:
    file = slop_file(tmp_path)
    before = file.read_bytes()
    read_database(file)
    assert file.read_bytes() == before
    assert [one.name for one in tmp_path.iterdir()] == ["slop.db"]


def test_other_databases_and_damaged_ones_are_reported(tmp_path: Path) -> None:
    file = tmp_path / "a.db"
    with closing(sqlite3.connect(file)) as database, database:
        database.execute("CREATE TABLE messages (id INTEGER)")
    with pytest.raises(ConfigError, match="std::slop's database"):
        read_database(file)
    file.write_bytes(b"SQLite format 3\0" + b"x" * 5000)
    assert is_sqlite(file)
    with pytest.raises(ConfigError, match="can be read"):
        read_database(file)
    with pytest.raises(ConfigError, match="can be read"):
        is_sqlite(tmp_path / "none")
