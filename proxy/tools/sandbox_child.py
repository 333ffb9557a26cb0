"""The process in which a model's SQL runs: `python -I -S sandbox_child.py` for one query, without an environment.

It imports no module of the proxy. Its first line of output says that it is ready. It first reads a line with a JSON
object; `search` in it is true if a word index is needed. Then it reads a JSON array for each row of the table, and an
empty line. After that, each line is a statement as a JSON string, and the child answers it with a line of JSON.

A statement is confined in layers, and each layer holds alone.

- The database is private and has this session's rows only.
- Statements begin with SELECT, WITH or VALUES.
- An authorizer allows the tables and functions listed here to be read and called, nothing else.
- SQLite's limits and the limits of the process apply.
- The parent ends the process when it takes too long.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import resource
import signal
import sqlite3
import sys
import time
from collections.abc import Iterator
from typing import Any

CPU_S = 1
"""Seconds of processor time for a statement, without the time for loading."""
LOAD_CPU = 5
"""Seconds of processor time for filling the table."""
MEMORY_BYTES = 512 << 20
MAX_FILES = 8
HEAP_BYTES = 256 << 20
"""Bytes that SQLite may use in all."""
OUTPUT_BYTES = 64 << 10
"""Bytes of a result."""
MAX_ROWS = 2000
MIN_CELL_CHARS = 200
"""Characters that a cell may have even if the result is full."""
INDEXED_CHARS = 16 << 20
"""Characters that are indexed for search, the newest first."""

TABLE = """CREATE TABLE messages (seq INTEGER, id TEXT, group_id TEXT, role TEXT, content TEXT, tool_call_id TEXT,
status TEXT, parsing_strategy TEXT, tokens INTEGER, created_at TEXT,
in_prompt INTEGER)"""
INDEX = """CREATE VIRTUAL TABLE messages_fts USING fts5 (seq UNINDEXED, id UNINDEXED, role UNINDEXED, content,
content = 'messages', tokenize = 'porter unicode61 remove_diacritics 2')"""
FILL = """INSERT INTO messages_fts (rowid, content) SELECT rowid, content FROM (
SELECT rowid, content, sum(length(content)) OVER (ORDER BY rowid DESC) AS upto FROM messages) WHERE upto <= ?"""

_NAMES = """abs avg bm25 coalesce count cume_dist date datetime dense_rank first_value glob group_concat hex highlight
ifnull iif instr julianday lag last_value lead length like lower ltrim match max min nth_value ntile nullif percent_rank
rank replace round row_number rtrim snippet strftime string_agg substr substring sum time total trim typeof unicode
unixepoch upper json json_array_length json_extract json_group_array json_type json_valid -> ->>"""
FUNCTIONS = frozenset(_NAMES.split())
TABLES = frozenset(
    (
        "messages",
        "json_each",
        "json_tree",
        *("messages_fts" + part for part in ("", "_data", "_idx", "_content", "_docsize", "_config")),
    )
)
STATEMENT = re.compile(r"\s*(?:select|with|values)\b", re.IGNORECASE)

LIMITS = (
    (sqlite3.SQLITE_LIMIT_ATTACHED, 0),
    (sqlite3.SQLITE_LIMIT_LENGTH, 1_000_000),
    (sqlite3.SQLITE_LIMIT_SQL_LENGTH, 10_000),
    (sqlite3.SQLITE_LIMIT_COLUMN, 100),
    (sqlite3.SQLITE_LIMIT_EXPR_DEPTH, 100),
    (sqlite3.SQLITE_LIMIT_COMPOUND_SELECT, 20),
    (sqlite3.SQLITE_LIMIT_FUNCTION_ARG, 20),
    (sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 500),
    (sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH, 1),
    (sqlite3.SQLITE_LIMIT_WORKER_THREADS, 0),
)


def confine() -> None:
    """Set the system's limits for this process. The time limit is set again once the table is filled."""
    _limit(resource.RLIMIT_CORE, 0)
    _limit_cpu(LOAD_CPU)
    _limit(resource.RLIMIT_FSIZE, 0)
    _limit(resource.RLIMIT_NOFILE, MAX_FILES)
    if sys.platform != "darwin":  # darwin has no such limit
        _limit(resource.RLIMIT_AS, MEMORY_BYTES)


def _limit(which: int, most: int) -> None:
    resource.setrlimit(which, (most, most))


def _limit_cpu(seconds: int) -> None:
    """Limit the processor time from now on: the system's limit to half a second, the timer exactly."""
    used = int(time.process_time() + 0.5)
    resource.setrlimit(resource.RLIMIT_CPU, (used + seconds, resource.getrlimit(resource.RLIMIT_CPU)[1]))
    signal.setitimer(signal.ITIMER_PROF, seconds)  # an unhandled signal ends the process, within an opcode too


def fill(lines: Iterator[bytes], *, search: bool) -> sqlite3.Connection:
    """Return the database with its rows: the lines up to the empty line."""
    database = sqlite3.connect(":memory:", isolation_level=None)
    database.text_factory = _decode_text
    database.execute(f"PRAGMA hard_heap_limit = {HEAP_BYTES}")
    database.execute("PRAGMA temp_store = MEMORY")
    database.execute(TABLE)
    database.execute("BEGIN")
    given = itertools.takewhile(lambda line: line.strip(), lines)
    database.executemany("INSERT INTO messages VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", map(json.loads, given))
    if search:
        database.execute(INDEX)
        database.execute(FILL, (INDEXED_CHARS,))
    database.execute("COMMIT")
    return database


def _decode_text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def guard(database: sqlite3.Connection) -> None:
    """Restrict the database: from here on it can only be read."""
    modules = {name for (name,) in database.execute("PRAGMA module_list")}
    database.execute(
        "SELECT 1 FROM json_each('[]'), json_tree('[]')"
    )  # made at their first use, which counts as a change
    database.set_authorizer(lambda *asked: _authorize_action(modules, *asked[:3]))
    for limit, most in LIMITS:
        database.setlimit(limit, most)
    if sys.version_info >= (3, 12):
        database.setconfig(sqlite3.SQLITE_DBCONFIG_DEFENSIVE, True)


def _authorize_action(modules: set[str], action: int, first: str | None, second: str | None) -> int:
    """Return SQLite's code that allows or denies one action of a statement."""
    if action in (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_RECURSIVE):
        return sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in FUNCTIONS:
        return sqlite3.SQLITE_OK
    name = (first or "").lower()
    if action == sqlite3.SQLITE_READ:
        # No column: rows are counted. A WITH is counted under its own name too.
        is_ours = name in TABLES or (not second and not name.startswith(("sqlite_", "pragma_")) and name not in modules)
        return sqlite3.SQLITE_OK if is_ours else sqlite3.SQLITE_DENY
    if action == sqlite3.SQLITE_PRAGMA and name == "data_version" and second is None:
        return sqlite3.SQLITE_OK  # the word index checks if its table has changed
    return sqlite3.SQLITE_DENY


def run_statement(database: sqlite3.Connection, statement: str) -> dict[str, Any]:
    """Return {columns, rows, more} or {error}. A cell without room is {cut, chars}: its beginning, its length."""
    if not STATEMENT.match(statement):
        return {"error": "one SELECT statement, please; it begins with SELECT or WITH"}
    try:
        cursor = database.execute(statement)
        columns = [str(column[0])[:200] for column in cursor.description or ()]
        rows, more = _fetch_rows(cursor)
    except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError, MemoryError) as problem:
        return {"error": str(problem)[:500] or type(problem).__name__}
    return {"columns": columns, "rows": rows, "more": more}


def _fetch_rows(cursor: sqlite3.Cursor) -> tuple[list[list[Any]], bool]:
    rows: list[list[Any]] = []
    room = OUTPUT_BYTES
    for row in cursor:
        if len(rows) == MAX_ROWS:
            return rows, True
        cells = []
        for value in row:
            cell = _shorten_cell(value, room)
            room -= len(json.dumps(cell)) + 1
            cells.append(cell)
            room = max(room, 0)
        if not room and rows:
            return rows, True
        rows.append(cells)
        if not room:
            return rows, next(cursor, None) is not None
    return rows, False


def _shorten_cell(value: Any, room: int) -> Any:
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if not isinstance(value, str) or len(json.dumps(value)) <= max(room, MIN_CELL_CHARS):
        return value
    part = value[: max(room, MIN_CELL_CHARS)]
    while len(part) > MIN_CELL_CHARS and len(json.dumps(part)) > room:
        part = part[: len(part) * 9 // 10]
    return {"cut": part, "chars": len(value)}


def main() -> None:
    """Answer statements until there are no more."""
    confine()
    lines = iter(sys.stdin.buffer)
    _print({"ready": True})
    given = json.loads(next(lines))
    try:
        database = fill(lines, search=given["search"])
    except (sqlite3.Error, MemoryError) as problem:
        _print({"error": f"the messages could not be loaded: {problem}"})
        return
    guard(database)
    for line in lines:
        _limit_cpu(CPU_S)
        _print(run_statement(database, json.loads(line)))


def _print(result: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(result) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
