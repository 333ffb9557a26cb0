from __future__ import annotations

import re

from proxy.store.schema import LATEST_VERSION, MIGRATIONS
from tests.stores import TABLES

CREATED = re.compile(r"CREATE TABLE (\w+)")


def test_migrations_are_numbered_without_gaps_and_give_their_reason() -> None:
    assert [migration.number for migration in MIGRATIONS] == list(range(1, LATEST_VERSION + 1))
    assert all(len(migration.reason) > 20 for migration in MIGRATIONS)


def test_every_primary_key_starts_with_tenant_and_session() -> None:
    for migration in MIGRATIONS:
        for statement in migration.statements:
            if CREATED.search(statement) and "journal" not in statement:  # of transactions, not of rows
                assert "PRIMARY KEY (tenant, session" in statement


def test_every_index_starts_with_the_tenant() -> None:
    for migration in MIGRATIONS:
        for statement in migration.statements:
            # What goes over all tenants: the list for operators, the search for what is past its time, and whose a
            # session of some name is.
            if (
                "CREATE" in statement
                and "INDEX" in statement
                and not re.search("(sessions_by_(time|name)|(threads|branches)_by_time)", statement)
            ):
                assert re.search(r"\(tenant, ", statement)


def test_the_list_of_tables_is_complete() -> None:
    created = [CREATED.search(statement) for migration in MIGRATIONS for statement in migration.statements]
    renamed = {"threads": "branches", "answers": "helper_answers", "rounds": "hidden_rounds"}
    renamed["windows"] = "context_windows"
    names = [renamed.get(found[1], found[1]) for found in created if found]
    assert sorted(names) == sorted([*TABLES, "journal"]), "TABLES of tests/stores.py lists the tables"


def test_migration_2_is_never_changed() -> None:
    columns = {"answers": 10, "embeddings": 6, "spending": 8}
    for table, count in columns.items():
        (statement,) = [s for s in MIGRATIONS[1].statements if f"CREATE TABLE {table} " in s]
        assert len(re.findall(r"^    [a-z_]+ [A-Z]", statement, re.MULTILINE)) == count, table


def test_migration_1_is_never_changed() -> None:
    columns = {"sessions": 5, "threads": 12, "messages": 18, "forms": 4, "edits": 14, "states": 7, "exchanges": 30}
    for table, count in columns.items():
        (statement,) = [s for s in MIGRATIONS[0].statements if f"CREATE TABLE {table} " in s]
        assert len(re.findall(r"^    [a-z_]+ [A-Z]", statement, re.MULTILINE)) == count, table
