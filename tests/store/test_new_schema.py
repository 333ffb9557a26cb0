from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing

import pytest

from proxy.store.new_schema import fold_renames
from proxy.store.schema import MIGRATIONS

ALL = [statement for migration in MIGRATIONS for statement in migration.statements]


def schema(statements: Iterable[str]) -> dict[str, list[object]]:
    """The schema of these statements in an empty database: columns, indexes, views and triggers, by their names."""
    with closing(sqlite3.connect(":memory:")) as made:
        for statement in statements:
            made.execute(statement)
        found: dict[str, list[object]] = {}
        for kind, name, table, text in made.execute("SELECT type, name, tbl_name, sql FROM sqlite_master"):
            words = " ".join((text or "").replace('"', "").split())  # a rename puts quotes around the new name
            found[name] = [kind, table, words, *made.execute(f"PRAGMA table_xinfo({name})")]
            found[name] += made.execute(f"PRAGMA index_list({name})")
            found[name] += made.execute(f"PRAGMA index_info({name})")
        return found


def test_a_new_file_has_the_schema_of_all_migrations() -> None:
    folded = fold_renames(ALL)
    assert schema(folded) == schema(ALL)
    assert sum("RENAME" in statement for statement in folded) < sum("RENAME" in statement for statement in ALL) / 3


def count_rows(statements: Iterable[str]) -> dict[str, int]:
    """The number of rows that these statements leave in each table of an empty database."""
    with closing(sqlite3.connect(":memory:")) as made:
        for statement in statements:
            made.execute(statement)
        names = [name for (name,) in made.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: made.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in names}


def test_a_new_file_has_the_rows_of_all_migrations() -> None:
    rows = count_rows(fold_renames(ALL))
    assert rows == count_rows(ALL)
    assert rows["journal"] > 90, "without its slots, each transaction takes pages of the file and gives them back"


@pytest.mark.parametrize("count", [1, 11, 12, 13])
def test_folded_renames_of_the_first_migrations_give_the_same_schema(count: int) -> None:
    some = [statement for migration in MIGRATIONS[:count] for statement in migration.statements]
    assert schema(fold_renames(some)) == schema(some)


def test_a_rename_that_a_view_may_depend_on_stays() -> None:
    made = ["CREATE TABLE a (x TEXT)", "CREATE TABLE b (x TEXT)", "CREATE VIEW v AS SELECT x FROM a"]
    renames = ["ALTER TABLE a RENAME COLUMN x TO y", "ALTER TABLE b RENAME COLUMN x TO y", "ALTER TABLE b RENAME TO c"]
    assert fold_renames([*made, *renames]) == [made[0], "CREATE TABLE c (y TEXT)", made[2], renames[0]]
    assert schema(fold_renames([*made, *renames])) == schema([*made, *renames])


def test_a_table_whose_rename_stays_keeps_the_renames_of_its_columns() -> None:
    several = [
        "CREATE TABLE a (x TEXT)",
        "CREATE VIEW v AS SELECT x FROM a",
        "ALTER TABLE a RENAME TO b",
        "ALTER TABLE b RENAME COLUMN x TO y",
    ]
    assert fold_renames(several) == several


def test_statements_about_rows_are_left_out() -> None:
    several = ["CREATE TABLE a (x TEXT)", "UPDATE a SET x = 1", "ALTER TABLE a RENAME COLUMN x TO y"]
    assert fold_renames(several) == ["CREATE TABLE a (y TEXT)"]
