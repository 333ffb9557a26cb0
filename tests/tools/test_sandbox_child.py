"""The program in which SQL runs, taken by itself: what it answers, and that each of its layers is there."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy.tools import sandbox_child, stored_history
from tests.tools.attacks import Many, changed, make_row

TEXTS = ["please read a.py", "def parse(): pass", "the parser is done", "é" * 40_000, "x" * 200_000]


HEAP = "PRAGMA hard_heap_limit = {HEAP_BYTES}"

ROWS = [make_row(n, text) for n, text in enumerate(TEXTS, 1)]


@pytest.fixture
def many() -> Iterator[Many]:
    made = Many(ROWS)
    yield made
    made.close()


def test_the_child_answers_with_columns_and_rows(many: Many) -> None:
    assert many.ask("SELECT seq, content FROM messages WHERE seq < 3 ORDER BY seq DESC") == {
        "columns": ["seq", "content"],
        "rows": [[2, "def parse(): pass"], [1, "please read a.py"]],
        "more": False,
    }
    assert many.started == 1


def test_the_columns_are_those_that_the_rows_have(many: Many) -> None:
    found = many.ask("SELECT * FROM messages LIMIT 1")
    assert found is not None
    assert tuple(found["columns"]) == stored_history.COLUMNS


@pytest.mark.parametrize("words", ["parser", "PARSE OR nothing", '"read a"', "pars*"])
def test_words_are_searched_by_their_stem(many: Many, words: str) -> None:
    found = many.ask(f"SELECT id FROM messages_fts WHERE messages_fts MATCH '{words}' ORDER BY rank LIMIT 3")
    assert found is not None
    assert found["rows"]


def test_a_long_value_comes_with_its_beginning_and_its_length(many: Many) -> None:
    found = many.ask("SELECT content FROM messages WHERE seq = 5")
    assert found is not None
    cell = found["rows"][0][0]
    assert cell["chars"] == 200_000
    assert cell["cut"] == "x" * len(cell["cut"])
    assert sandbox_child.OUTPUT_BYTES * 0.8 < len(cell["cut"]) <= sandbox_child.OUTPUT_BYTES
    letters = many.ask("SELECT content FROM messages WHERE seq = 4")
    assert letters is not None
    assert len(json.dumps(letters)) < sandbox_child.OUTPUT_BYTES + 200
    rest = many.ask("SELECT substr(content, 199001, 1000), length(content) FROM messages WHERE seq = 5")
    assert rest is not None
    assert rest["rows"] == [["x" * 1000, 200_000]]


def test_no_result_is_longer_than_its_limit(many: Many) -> None:
    found = many.ask("SELECT a.content, b.content, c.seq FROM messages a, messages b, messages c ORDER BY a.seq")
    assert found is not None
    assert found["more"] is True
    assert len(json.dumps(found)) < sandbox_child.OUTPUT_BYTES + 1000
    counted = many.ask("WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c LIMIT 9000) SELECT x FROM c")
    assert counted is not None
    assert (len(counted["rows"]), counted["more"]) == (sandbox_child.MAX_ROWS, True)


def test_values_that_json_does_not_have_are_reported_as_text(many: Many) -> None:
    found = many.ask("SELECT 9e999, -9e999, x'e9ff', NULL, 9223372036854775807, 1.5")
    assert found is not None
    assert found["rows"] == [["inf", "-inf", "\ufffd\ufffd", None, 9223372036854775807, 1.5]]


@pytest.mark.parametrize(
    ("layer", "statement", "said", "instead"),
    [
        (
            ("if not STATEMENT.match(statement):", "if not statement:"),
            "PRAGMA user_version",
            "one SELECT",
            "not authorized",
        ),
        (
            ("    database.set_authorizer(lambda", "    print(end='') or (lambda"),
            "SELECT name FROM sqlite_master",
            "prohibited",
            "",
        ),
        (
            ('(second or "").lower() in FUNCTIONS', "second"),
            "SELECT printf('%d', 1)",
            "not authorized to use function",
            "",
        ),
        (
            ("    for limit, most in LIMITS:", "    for limit, most in ():"),
            "SELECT 1" + ",1" * 200,
            "too many columns",
            "",
        ),
    ],
)
def test_each_layer_holds_something_that_the_others_let_pass(
    tmp_path: Path, layer: tuple[str, str], statement: str, said: str, instead: str
) -> None:
    """With the layer: refused, in its words. Without it: another's words, or an answer."""
    with_it, without = Many(ROWS), Many(ROWS, changed(tmp_path, layer))
    try:
        first, second = with_it.ask(statement), without.ask(statement)
    finally:
        with_it.close()
        without.close()
    if said:
        assert first is not None
        assert said in first["error"]
    assert second is not None
    assert instead in second["error"] if instead else "rows" in second


def test_sqlite_in_the_sandbox_stays_within_its_heap_limit(tmp_path: Path) -> None:
    sql = """WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c LIMIT 100)
    SELECT count(*) FROM (SELECT a.content || x AS t FROM messages a, c WHERE a.seq = 5 ORDER BY t LIMIT 100)"""
    (tmp_path / "without").mkdir()
    # With less than it has, or the machine would be at work for a second.
    less = ("HEAP_BYTES = 256 << 20", "HEAP_BYTES = 8 << 20")
    with_it = Many(ROWS, changed(tmp_path, less), wall=60)
    without = Many(ROWS, changed(tmp_path / "without", less, (f'    database.execute(f"{HEAP}")\n', "")), wall=60)
    try:
        first, second = with_it.ask(sql), without.ask(sql)
    finally:
        with_it.close()
        without.close()
    assert first == {"error": "MemoryError"}
    assert second is not None
    assert second["rows"] == [[100]]


def test_the_system_holds_the_process_to_its_limits(tmp_path: Path) -> None:
    """Asked in the child itself, by a function that stands in for a statement."""
    told = "[resource.getrlimit(n)[0] for n in (resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE, resource.RLIMIT_CORE)]"
    more = "[resource.getrlimit(resource.RLIMIT_AS)[0], resource.getrlimit(resource.RLIMIT_CPU)[0]]"
    asking = changed(
        tmp_path,
        ("        _print(run_statement(database, json.loads(line)))", f"        _print({{'is': {told} + {more}}})"),
    )
    many = Many(ROWS, asking)
    try:
        found = many.ask("SELECT 1")
    finally:
        many.close()
    assert found is not None
    assert found["is"][:4] == [0, sandbox_child.MAX_FILES, 0, sandbox_child.MEMORY_BYTES]
    assert 1 <= found["is"][4] <= 2


def test_the_system_ends_a_process_that_computes_for_long() -> None:
    many = Many(ROWS, wall=60.0)
    try:
        assert (
            many.ask("WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT count(*) FROM c") is None
        )
    finally:
        many.close()


def test_the_process_can_write_no_file(tmp_path: Path) -> None:
    target = tmp_path / "x"
    writing = (
        f"        open({str(target)!r}, 'w').write('x')\n        _print(run_statement(database, json.loads(line)))"
    )
    many = Many(ROWS, changed(tmp_path, ("        _print(run_statement(database, json.loads(line)))", writing)))
    try:
        many.ask("SELECT 1")
    finally:
        many.close()
    assert target.stat().st_size == 0


def test_a_word_index_of_much_text_holds_the_newest_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox_child, "INDEXED_CHARS", 1000)
    given = iter([make_row(1, "old word"), make_row(2, "filler " * 200), make_row(3, "new word"), b"\n"])
    database = sandbox_child.fill(given, search=True)
    found = database.execute("SELECT id FROM messages_fts WHERE messages_fts MATCH 'word'").fetchall()
    assert found == [("id3",)]
    database.close()


def test_a_statement_run_in_process_is_guarded_in_the_same_way() -> None:
    database = sandbox_child.fill(iter([*ROWS, b""]), search=True)
    sandbox_child.guard(database)
    with pytest.raises(sqlite3.DatabaseError):
        database.execute("DELETE FROM messages")
    assert sandbox_child.run_statement(database, "SELECT count(*) FROM messages")["rows"] == [[len(ROWS)]]
    database.close()


async def test_a_child_that_gets_no_rows_answers_all_the_same() -> None:
    many = Many([])
    found = await asyncio.to_thread(many.ask, "SELECT count(*) FROM messages")
    many.close()
    assert found is not None
    assert found["rows"] == [[0]]
