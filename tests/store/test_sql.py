from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator

import pytest

from proxy.store import sql
from proxy.store.schema import MIGRATIONS, TABLES


def statements() -> Iterator[tuple[str, str]]:
    for name, value in vars(sql).items():
        if isinstance(value, str) and re.match(r"\s*(SELECT|INSERT|UPDATE|WITH)\b", value) and not name.startswith("_"):
            yield name, value
        elif isinstance(value, dict) and name.isupper():
            yield from ((f"{name}[{size}]", text) for size, text in value.items())


ALL = dict(statements())


@pytest.fixture
def database() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:")
    for migration in MIGRATIONS:
        for statement in migration.statements:
            connection.execute(statement)
    yield connection
    connection.close()


def plan(database: sqlite3.Connection, text: str) -> str:
    translated = sql.for_sqlite(text)
    rows = database.execute("EXPLAIN QUERY PLAN " + translated, [None] * translated.count("?")).fetchall()
    return "\n".join(row[3] for row in rows)


def test_all_statements_are_looked_at() -> None:
    assert len(ALL) > 25


@pytest.mark.parametrize("name", ALL)
def test_a_statement_runs_and_its_placeholders_come_in_order(name: str, database: sqlite3.Connection) -> None:
    translated = sql.for_sqlite(ALL[name])
    assert "$" not in translated
    assert translated.count("?") == ALL[name].count("$")
    plan(database, ALL[name])


@pytest.mark.parametrize("name", [name for name in ALL if name != "COUNT"])
def test_a_statement_never_reads_a_whole_table(name: str, database: sqlite3.Connection) -> None:
    scans = [line for line in plan(database, ALL[name]).splitlines() if line.startswith("SCAN")]
    assert [line for line in scans if line not in ("SCAN CONSTANT ROW", "SCAN up")] == []


@pytest.mark.parametrize("name", [name for name in ALL if name != "COUNT"])
def test_a_statement_names_the_tenant(name: str) -> None:
    assert "tenant" in ALL[name]


@pytest.mark.parametrize("name", [*(f"FIND[{size}]" for size in sql.CHUNKS), "FIND_NEWEST"])
def test_the_search_over_sessions_uses_its_index_and_does_not_sort(name: str, database: sqlite3.Connection) -> None:
    found = plan(database, ALL[name])
    assert "messages_by_key" in found
    assert "TEMP B-TREE" not in found


def test_lists_that_are_read_by_pages_are_read_in_index_order(database: sqlite3.Connection) -> None:
    assert "exchanges_by_start" in plan(database, sql.EXCHANGES)


@pytest.mark.parametrize("text", ["SELECT $2, $1", "SELECT $1, $1", "SELECT $2"])
def test_placeholders_out_of_order_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="in order"):
        sql.for_sqlite(text)


def test_count_and_its_names_agree() -> None:
    assert re.findall(r"FROM (\w+)", sql.COUNT) == list(TABLES)
    assert re.findall(r"FROM (\w+)", sql.SESSION_COUNTS) == list(sql.COUNTED)
