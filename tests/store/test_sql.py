from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator

import pytest

from proxy.store import removal, session_lists, session_notes, sql
from proxy.store.row_reader import CHUNK_SIZES
from proxy.store.schema import MIGRATIONS
from tests.stores import TABLES


def statements() -> Iterator[tuple[str, str]]:
    for module in (sql, session_notes, session_lists, removal):
        for name, value in vars(module).items():
            if name.startswith("_") or not name.isupper():
                continue
            if isinstance(value, str) and re.match(r"\s*(SELECT|INSERT|UPDATE|WITH)\b", value):
                yield name, value
            elif isinstance(value, dict):
                yield from ((f"{name}[{size}]", text) for size, text in value.items())


ALL = dict(statements())


@pytest.fixture(scope="module")
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


def test_the_check_finds_the_sql_statements() -> None:
    assert len(ALL) > 25


@pytest.mark.parametrize("name", ALL)
def test_a_statement_runs_and_its_placeholders_come_in_order(name: str, database: sqlite3.Connection) -> None:
    translated = sql.for_sqlite(ALL[name])
    assert "$" not in translated
    assert translated.count("?") == ALL[name].count("$")
    plan(database, ALL[name])


@pytest.mark.parametrize("name", [name for name in ALL if name != "CONTEXT_WINDOWS"])
def test_a_statement_never_reads_a_whole_table(name: str, database: sqlite3.Connection) -> None:
    """CONTEXT_WINDOWS is read once, when a proxy starts, and for all tenants."""
    scans = [line for line in plan(database, ALL[name]).splitlines() if line.startswith("SCAN")]
    # Those are not tables but what a statement itself has made, some lines each.
    assert [
        line
        for line in scans
        if not re.fullmatch(r"SCAN (CONSTANT ROW|up|line|sized|page|shared|newest|\(subquery-\d+\)|one\d+)", line)
    ] == []


@pytest.mark.parametrize("name", ALL)
def test_a_statement_names_the_tenant(name: str) -> None:
    assert "tenant" in ALL[name]


@pytest.mark.parametrize("name", [*(f"FIND[{size}]" for size in CHUNK_SIZES), "FIND_NEWEST"])
def test_the_search_over_sessions_uses_its_index_and_does_not_sort(name: str, database: sqlite3.Connection) -> None:
    found = plan(database, ALL[name])
    assert "answers_by_key" in found
    assert "TEMP B-TREE" not in found


def test_lists_that_are_read_by_pages_are_read_in_index_order(database: sqlite3.Connection) -> None:
    assert "exchanges_by_start" in plan(database, sql.EXCHANGES)
    for text, index in (
        (session_lists.TENANT_SESSIONS, "sessions_by_use"),
        (session_lists.ALL_SESSIONS, "sessions_by_time"),
    ):
        found = plan(database, text)
        assert index in found
        assert "TEMP B-TREE" not in found
    for text in (sql.MESSAGES, sql.NEWEST_MESSAGES):
        assert "messages_by_seq (tenant=? AND session=? AND seq" in plan(database, text)
    assert "key>? AND key<?" in plan(database, sql.MESSAGES_BETWEEN)


@pytest.mark.parametrize("text", ["SELECT $2, $1", "SELECT $1, $1", "SELECT $2"])
def test_placeholders_out_of_order_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="in order"):
        sql.for_sqlite(text)


def test_counted_tables_are_named_in_the_order_of_their_counts() -> None:
    assert re.findall(r"FROM (\w+)", sql.SESSION_COUNTS) == list(sql.COUNTED_TABLES)


@pytest.mark.parametrize("name", ["EDITS", "LEFT_OUT"])
def test_the_edits_of_a_branch_are_read_once(name: str, database: sqlite3.Connection) -> None:
    lines = [
        line for line in plan(database, ALL[name]).splitlines() if " edits " in line or line.startswith("SEARCH e ")
    ]
    assert len(lines) == 1, "else each edit costs a look at others of its branch"


def test_a_join_by_row_is_said_to_be_one_to_postgres() -> None:
    assert sql.for_postgres(sql.CHAIN).count("OFFSET 0) m ON true") == 2
    assert "m.key = up.parent OFFSET 0" in sql.for_postgres(sql.CHAIN)
    assert "/* each */" not in sql.for_postgres(sql.CHAIN)
    assert "LEFT JOIN LATERAL" in sql.for_postgres(sql.ITERATIONS)
    assert sql.for_postgres(sql.FORM) == sql.FORM


@pytest.mark.parametrize("name", ALL)
def test_every_join_with_a_table_is_marked_as_one_by_row(name: str) -> None:
    """But those that begin with a branch's own row."""
    joins = re.findall(rf"JOIN (?:{'|'.join(TABLES)}) \w+ ON (.*)", ALL[name])
    assert [join for join in joins if "/* each */" not in join and "t.tenant AND" not in join] == []
