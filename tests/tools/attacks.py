"""Statements that try to read, write or hold what is not theirs, a child that answers many, and a grammar for more."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from proxy.tools.sandbox import CHILD_FILE, RowLoader

ALLOWED = 4 * 1.5
"""Seconds that a statement may take in a test: four times what is promised."""
RESULT = 64 * 1024


def make_row(n: int, content: str) -> bytes:
    """A message as the child of the sandbox reads it."""
    row = [n, f"id{n}", "g1", "user", content, None, "completed", "openai", 3, "2026-01-01 00:00:00", 1]
    return json.dumps(row).encode()


def given(rows: Sequence[bytes]) -> RowLoader:
    """Loads rows that are there."""

    async def load_rows() -> Sequence[bytes]:
        return rows

    return load_rows


ESCAPES = {
    "a CTE under a view's name (M1)": "WITH my_messages AS (SELECT * FROM main.messages) SELECT * FROM my_messages",
    "a CTE in the table's place": "WITH messages AS (SELECT * FROM main.messages) SELECT * FROM messages",
    "pragma": "PRAGMA database_list",
    "pragma that lifts a guard (M2)": "PRAGMA query_only = 0",
    "writable schema": "PRAGMA writable_schema = 1",
    "table-valued pragma": "SELECT * FROM pragma_database_list",
    "table-valued pragma, counted": "SELECT count(*) FROM pragma_database_list",
    "table-valued pragma with an argument": "SELECT * FROM pragma_table_info('messages')",
    "vacuum": "VACUUM",
    "WITH and DELETE": "WITH x AS (SELECT 1) DELETE FROM messages",
    "WITH and INSERT": "WITH x AS (SELECT 1) INSERT INTO messages (id) SELECT 'x' FROM x",
    "WITH and UPDATE, RETURNING": "WITH x AS (SELECT 1) UPDATE messages SET content = '' RETURNING *",
    "replace": "REPLACE INTO messages (id) VALUES ('x')",
    "create": "CREATE TABLE t (a)",
    "a temporary table": "CREATE TEMP TABLE t AS SELECT * FROM messages",
    "a trigger": "CREATE TRIGGER t AFTER INSERT ON messages BEGIN SELECT 1; END",
    "a virtual table": "CREATE VIRTUAL TABLE t USING fts5(a)",
    "drop": "DROP TABLE messages",
    "begin": "BEGIN IMMEDIATE",
    "reindex": "REINDEX",
    "analyze": "ANALYZE",
    "schema": "SELECT * FROM sqlite_master",
    "schema by its other name": "SELECT sql FROM sqlite_schema",
    "schema, counted": "SELECT count(*) FROM main.sqlite_master",
    "temporary schema": "SELECT * FROM sqlite_temp_master",
    "dbstat": "SELECT * FROM dbstat",
    "sqlite_stmt": "SELECT * FROM sqlite_stmt",
    "extension": "SELECT load_extension('/lib/x86_64-linux-gnu/libc.so.6')",
    "a file's text": "SELECT readfile('/etc/passwd')",
    "edit": "SELECT edit('x', 'touch /tmp/x')",
    "a JSON function that is not listed": "SELECT json_patch('{}', '{}')",
    "a JSON table of the schema": "SELECT j.value FROM sqlite_master s, json_each('[\"' || s.name || '\"]') j",
    "series": "SELECT * FROM generate_series(1, 10)",
    "tokenizer": "SELECT fts3_tokenizer('simple')",
    "FTS command": "INSERT INTO messages_fts (messages_fts) VALUES ('rebuild')",
    "FTS pointer": "SELECT fts5(1)",
    "FTS vocabulary": "SELECT * FROM fts5vocab",
    "FTS rank function": "SELECT id FROM messages_fts('a') WHERE rank MATCH 'evil(1)' ORDER BY rank",
    "version": "SELECT sqlite_version(), sqlite_source_id()",
    "compile options": "SELECT sqlite_compileoption_get(1)",
    "random": "SELECT random(), hex(randomblob(16))",
    "changes": "SELECT changes(), total_changes(), last_insert_rowid()",
    "explain": "EXPLAIN SELECT * FROM messages",
    "explain, with": "EXPLAIN QUERY PLAN SELECT * FROM messages",
    "null byte": "SELECT 1 \x00 ; ATTACH 'x' AS y",
    "a parameter": "SELECT ?1, :a, @b",
    "nothing": "",
    "no SQL": "what did the user say?",
    "deep": "SELECT " + "(" * 4000 + "1" + ")" * 4000,
    "many columns": "SELECT " + ",".join("1" for _ in range(4000)),
    "many selects": " UNION ALL ".join("SELECT 1" for _ in range(600)),
}
"""Attempts to read others, or to change something, by name."""


def escapes(store: Path, target: Path) -> dict[str, str]:
    """Those and the ones that name files. store: the file that holds all sessions. target: to be written."""
    return ESCAPES | {
        "attach the store": f"ATTACH '{store}' AS other",
        "attach read-only by URI": f"ATTACH 'file:{store}?mode=ro&immutable=1' AS other",
        "attach a new file": f"ATTACH '{target}' AS other",
        "vacuum into a file": f"VACUUM INTO '{target}'",
        "a second statement": f"SELECT 1; ATTACH '{target}' AS other",
        "a second statement behind a comment": f"SELECT 1 -- ;\n; ATTACH '{target}' AS other",
        "a comment in front": f"/* SELECT */ ATTACH '{target}' AS other",
        "a comment between": f"SELECT 1 /*; */; VACUUM INTO '{target}'",
        "a file written": f"SELECT writefile('{target}', 'x')",
    }


BOMBS = {
    "recursion": "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT count(*) FROM c",
    "cross join": "SELECT count(*) FROM messages a, messages b, messages c, messages d, messages e",
    "printf (M3)": "SELECT length(printf('%.*c', 2147483647, 'x'))",
    "zeroblob": "SELECT length(hex(zeroblob(1000000000)))",
    "instr (M3)": "WITH RECURSIVE s(t, n) AS (SELECT 'a', 0 UNION ALL SELECT t || t, n + 1 FROM s WHERE n < 18),"
    " p AS (SELECT max(t) AS t FROM s) SELECT sum(instr(t || t, t || 'b' || a.seq)) FROM p, messages a, messages b",
    "like": "SELECT count(*) FROM messages a, messages b, messages c, messages d"
    " WHERE a.id || b.content || c.id || d.content LIKE '%e%e%e%e%e%z'",
    "a big sort": "SELECT a.content || b.id AS x FROM messages a, messages b, messages c, messages d ORDER BY x",
    "group_concat": "SELECT length(group_concat(a.content || b.content)) FROM messages a, messages b, messages c",
    "doubling": "WITH RECURSIVE d(x) AS (SELECT 'aaaaaaaa' UNION ALL SELECT x || x FROM d) SELECT max(x) FROM d",
    "a large result": "SELECT a.content, b.content FROM messages a, messages b",
    "JSON doubling": "WITH RECURSIVE d(x) AS (SELECT '[1,1]' UNION ALL SELECT '[' || x || ',' || x || ']' FROM d)"
    " SELECT sum(json_array_length(x)) FROM d",
    "a JSON join": "SELECT count(*) FROM messages a, messages b, messages c, json_tree('[1,[2,[3,[4]]]]') d,"
    " json_each('[1,2,3,4,5,6,7,8]') e, json_each('[1,2,3,4,5,6,7,8]') f",
    "JSON collected": "SELECT length(json_group_array(a.content || b.content)) FROM messages a, messages b, messages c",
    "deep JSON": "WITH RECURSIVE d(x, n) AS (SELECT '1', 0 UNION ALL SELECT '[' || x || ']', n + 1 FROM d"
    " WHERE n < 5000) SELECT count(*) FROM d, json_tree(d.x)",
    "windows": "SELECT sum(a.seq) OVER (ORDER BY b.seq) FROM messages a, messages b, messages c, messages d",
}
"""Queries that would hold a processor, the memory or the pipe."""


class Many:
    """A child that answers one statement after the other; a new one where it died or was ended."""

    def __init__(self, rows: Sequence[bytes], child: Path = CHILD_FILE, wall: float = 1.5) -> None:
        self._rows = b"\n".join([b'{"search": true}', *rows, b"", b""])
        self._child = child
        self._wall = wall
        self._process: subprocess.Popen[bytes] | None = None
        self.started = 0

    def ask(self, statement: str) -> dict[str, Any] | None:
        """Its answer; None where it died of the statement."""
        if self._process is None:
            self._process = self._start()
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        clock = threading.Timer(self._wall, process.kill)
        clock.start()
        try:
            process.stdin.write(json.dumps(statement).encode() + b"\n")
            process.stdin.flush()
            reply = process.stdout.readline()
        except BrokenPipeError:
            reply = b""
        finally:
            clock.cancel()
        if not reply:
            self.close()
            return None
        found: dict[str, Any] = json.loads(reply)
        return found

    def _start(self) -> subprocess.Popen[bytes]:
        self.started += 1
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(self._child)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={}, cwd="/",
        )  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        assert json.loads(process.stdout.readline()) == {"ready": True}
        process.stdin.write(self._rows)
        process.stdin.flush()
        return process

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


NAMES = (
    *("messages_fts", "messages_fts_data", "sqlite_master", "pragma_table_list", "dbstat", "json_each('[1,2]')"),
    *("temp.messages", "other.messages", "fts5vocab", "(SELECT * FROM messages)", "c", "main.messages"),
)
COLUMNS = ("seq", "id", "content", "role", "status", "tokens", "created_at", "rowid")
STRANGE = ("rank", "sql", "name", "x", "messages_fts", "other.content", "*")
FUNCTIONS = (
    *(
        "length({0})",
        "substr({0}, 1, 5)",
        "upper({0})",
        "hex({0})",
        "max({0})",
        "min({0}, {1})",
        "count(*)",
        "sum({0})",
    ),
    *(
        "group_concat({0})",
        "coalesce({0}, {1})",
        "instr({0}, {1})",
        "replace({0}, {1}, 'b')",
        "typeof({0})",
        "date({0})",
    ),
    *(
        "iif({0}, {1}, 2)",
        "total({0})",
        "trim({0})",
        "round({0})",
        "like({0}, {1})",
        "glob({0}, {1})",
        "nullif({0}, 1)",
    ),
)
DENIED = (
    *(
        "printf('%s', {0})",
        "randomblob(8)",
        "zeroblob(1e9)",
        "load_extension({0})",
        "json_extract({0}, '$')",
        "quote({0})",
    ),
    *(
        "char({0})",
        "snippet(messages_fts, -1, '', '', '', 9)",
        "bm25(messages_fts)",
        "readfile({0})",
        "sqlite_version()",
    ),
    *("fts3_tokenizer({0})", "abs()", "substr()", "load_extension({0}, {1})", "edit({0})", "last_insert_rowid()"),
)
LITERALS = (
    *("1", "-9223372036854775808", "9e999", "NULL", "'a'", "''", "x'00ff'", "'%a%'", "'user'", "2147483647", "1.5"),
)
STARTS = (
    *("PRAGMA ", "ATTACH ", "VACUUM INTO ", "DELETE FROM ", "INSERT INTO ", "UPDATE ", "CREATE TEMP TABLE ", "DROP "),
    *("EXPLAIN ", "REPLACE INTO ", "; ", "-- x\n", "/* x */ ", "DETACH ", "SAVEPOINT ", "ALTER TABLE "),
)


class Grammar:
    """Statements by a grammar of what is allowed and what is not, the same for the same seed."""

    def __init__(self, seed: int, target: Path) -> None:
        self._random = random.Random(seed)
        self._target = target

    def statement(self) -> str:
        pick = self._random.random()
        text = self._select(2)
        if pick < 0.05:
            text = self._one(STARTS) + self._one((f"'{self._target}'", self._one(NAMES), text))
        elif pick < 0.1:
            text = f"{text}; {self._one(STARTS)}{self._one((repr(str(self._target)), self._one(NAMES)))}"
        elif pick < 0.15:
            at = self._random.randrange(len(text))
            text = text[:at] + self._one(("'", '"', ")", "--", "/*", "\x00", ";", "`", "é")) + text[at:]
        elif pick < 0.152:
            text = self._one(tuple(BOMBS.values())[:4])
        return text

    def _one(self, among: Sequence[str]) -> str:
        return self._random.choice(among)

    def _select(self, depth: int) -> str:
        parts = [f"SELECT {self._one(('', 'DISTINCT '))}{self._list(depth)} FROM {self._source(depth)}"]
        if self._random.random() < 0.5:
            how = self._one(("=", "<", "LIKE", "GLOB", "IS NOT") * 4 + ("MATCH",))
            parts.append(f"WHERE {self._value(depth)} {how} {self._value(1)}")
        if self._random.random() < 0.2:
            parts.append(f"GROUP BY {self._one(COLUMNS)}")
        if self._random.random() < 0.3:
            parts.append(f"ORDER BY {self._one(COLUMNS)} DESC")
        if self._random.random() < 0.5:
            parts.append(f"LIMIT {self._one(('1', '10', '-1', '1000000'))}")
        text = " ".join(parts)
        if depth and self._random.random() < 0.15:
            text = f"{text} {self._one(('UNION', 'UNION ALL', 'EXCEPT'))} {self._select(depth - 1)}"
        if self._random.random() < 0.15:
            text = (
                f"WITH {self._one(('c', 'messages', 'my_messages'))}(x) AS ({self._select(max(0, depth - 1))}) {text}"
            )
        return text

    def _list(self, depth: int) -> str:
        return ", ".join(self._value(depth) for _ in range(self._random.randint(1, 3)))

    def _source(self, depth: int) -> str:
        pick = self._random.random()
        if depth and pick < 0.1:
            return f"({self._select(depth - 1)})"
        if pick < 0.15:
            return f"messages a JOIN {self._one(NAMES)} b"
        return self._one(NAMES) if pick < 0.3 else "messages"

    def _value(self, depth: int) -> str:
        pick = self._random.random()
        if not depth or pick < 0.4:
            return self._one(STRANGE if pick < 0.02 else COLUMNS)
        if pick < 0.6:
            return self._one(LITERALS)
        if pick < 0.85:
            form = self._one(DENIED if pick < 0.62 else FUNCTIONS)
            return form.format(self._value(depth - 1), self._value(depth - 1))
        if pick < 0.88:
            return f"({self._select(depth - 1)})"
        return f"{self._value(depth - 1)} {self._one(('||', '+', '*', '%', 'AND'))} {self._value(depth - 1)}"


def changed(folder: Path, *changes: tuple[str, str]) -> Path:
    """The child with a layer taken out. Each text must be there once, or nothing would be taken out."""
    text = CHILD_FILE.read_text("utf-8")
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    made = folder / "child.py"
    made.write_text(text, "utf-8")
    return made


@asynccontextmanager
async def lag() -> AsyncIterator[Callable[[], float]]:
    """The longest hold of the event loop in seconds while the block ran."""
    loop, worst = asyncio.get_running_loop(), [0.0]

    async def watch() -> None:
        while True:
            before = loop.time()
            await asyncio.sleep(0.002)
            worst[0] = max(worst[0], loop.time() - before - 0.002)

    watching = asyncio.ensure_future(watch())
    try:
        yield lambda: worst[0]
    finally:
        watching.cancel()
