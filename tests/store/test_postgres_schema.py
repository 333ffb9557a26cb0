from __future__ import annotations

import asyncio
import sqlite3

import asyncpg
import pytest

from proxy.errors import StoreRefused
from proxy.store.postgres_schema import migrate, translate_statement
from proxy.store.schema import LATEST_VERSION, MIGRATIONS, Migration
from tests.postgres import execute, replace_database
from tests.stores import TABLES, postgres_store

VERSION = "SELECT version FROM context_proxy_schema"


async def run(url: str, migrations: tuple[Migration, ...] = MIGRATIONS) -> int:
    connection = await asyncpg.connect(url)
    try:
        return await migrate(connection, migrations)
    finally:
        await connection.close()


def test_types_have_their_names_in_tables_and_nowhere_else() -> None:
    made = translate_statement("\nCREATE TABLE a (b TEXT NOT NULL, c BLOB, d BIGINT)")
    assert made == '\nCREATE TABLE a (b TEXT COLLATE "C" NOT NULL, c BYTEA, d BIGINT)'
    assert translate_statement("ALTER TABLE a ADD COLUMN b TEXT") == 'ALTER TABLE a ADD COLUMN b TEXT COLLATE "C"'
    assert translate_statement("SELECT CAST(a AS TEXT)") == "SELECT CAST(a AS TEXT)"


async def test_an_empty_database_gets_the_whole_schema_once(database: str) -> None:
    assert await run(database) == len(MIGRATIONS)
    assert await execute(database, VERSION) == [(LATEST_VERSION,)]
    whole = "relkind IN ('r', 'p') AND NOT relispartition AND relnamespace = 'public'::regnamespace"
    names = await execute(database, f"SELECT relname FROM pg_class WHERE {whole}")
    assert {name for (name,) in names} == {*TABLES, "context_proxy_schema"}
    assert await run(database) == 0


async def test_the_columns_are_those_of_sqlite_in_their_order(database: str) -> None:
    await run(database)
    text = "SELECT column_name FROM information_schema.columns WHERE table_name = $1 ORDER BY ordinal_position"
    connection = sqlite3.connect(":memory:")
    for migration in MIGRATIONS:
        for statement in migration.statements:
            connection.execute(statement)
    for table in set(TABLES) - {"indexed"}:
        theirs = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
        assert [name for (name,) in await execute(database, text, table)] == theirs
    connection.close()


async def test_replicas_that_start_together_migrate_once(database: str) -> None:
    assert sorted(await asyncio.gather(*(run(database) for _ in range(5)))) == [0, 0, 0, 0, len(MIGRATIONS)]


async def test_rows_of_an_older_schema_are_kept_and_brought_up_to_date(database: str) -> None:
    await run(database, MIGRATIONS[:4])
    await execute(database, "INSERT INTO sessions VALUES ('t', 's', true, 2.0, '{}')")
    assert await run(database) == len(MIGRATIONS) - 4
    assert await execute(database, "SELECT session, last_at, policy FROM sessions") == [("s", 2.0, "")]


async def test_rows_of_version_12_are_found_under_the_new_names(database: str) -> None:
    await run(database, MIGRATIONS[:12])
    await execute(
        database, "INSERT INTO branches VALUES ('t', 's', 'b', NULL, NULL, 'main', '', 1.0, 'tip', NULL, 2.0, NULL)"
    )
    await execute(database, "INSERT INTO rounds VALUES ('t', 's', 'key', 'tip', 'x', '{}', 3.0)")
    await execute(database, "INSERT INTO answers VALUES ('t', 's', 'a', 'summary', 'm', 1, 1, 0.1, 4.0, 'text')")
    await execute(database, "INSERT INTO windows VALUES ('', '', 'default', 'm', 64000, 5.0)")
    store = postgres_store(database)
    await store.open()
    (found,) = await store.read_hidden_rounds("t", "s", [b"tip"])
    position = await store.read_branch_position("t", "s", "b")
    answers = (await store.read_branch("t", "s", "b")).helper_answers  # type: ignore[union-attr]
    windows = await store.read_context_windows(0.0)
    await store.close()
    assert (found.key, found.tip, found.body) == (b"key", b"tip", b"{}")
    assert position is not None
    assert (position.tip, position.last_at) == (b"tip", 2.0)
    assert answers == {"a": "text"}
    assert [(one.model, one.tokens) for one in windows] == [("m", 64000)]
    names = {name for (name,) in await execute(database, "SELECT indexname FROM pg_indexes")}
    assert {"hidden_rounds_by_tip", "helper_answers_by_time"} < names
    assert not {"rounds_by_head", "answers_by_time"} & names


async def test_a_migration_that_breaks_off_leaves_the_old_schema_and_can_be_run_again(database: str) -> None:
    await run(database)
    broken = Migration(LATEST_VERSION + 1, "a test", ("CREATE TABLE more (a TEXT)", "CREATE TABLE more (a TEXT)"))
    with pytest.raises(asyncpg.DuplicateTableError):
        await run(database, (*MIGRATIONS, broken))
    assert await execute(database, VERSION) == [(LATEST_VERSION,)]
    assert await execute(database, "SELECT 1 FROM pg_tables WHERE tablename = 'more'") == []
    assert await run(database, (*MIGRATIONS, Migration(LATEST_VERSION + 1, "a test", broken.statements[:1]))) == 1


async def test_a_newer_schema_is_refused_and_left_alone(database: str) -> None:
    await run(database)
    await execute(database, f"UPDATE context_proxy_schema SET version = {LATEST_VERSION + 5}")
    store = postgres_store(database)
    with pytest.raises(
        StoreRefused, match=f"schema {LATEST_VERSION + 5}, and this version knows schemas up to {LATEST_VERSION}"
    ):
        await store.open()
    assert await execute(database, VERSION) == [(LATEST_VERSION + 5,)]


async def test_a_database_that_cannot_hold_every_text_is_refused(postgres: str) -> None:
    await execute(postgres, "CREATE DATABASE latin ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0")
    try:
        with pytest.raises(StoreRefused, match="UTF8"):
            await run(replace_database(postgres, "latin"))
    finally:
        await execute(postgres, "DROP DATABASE latin WITH (FORCE)")
