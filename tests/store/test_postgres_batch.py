from __future__ import annotations

import re
from typing import Any

import asyncpg
import pytest

from proxy.store import encode, postgres_batch
from proxy.store.full_text_search import IndexRow
from tests.postgres import execute
from tests.store.conftest import RowFactory, digest
from tests.store.round_trips import counted
from tests.stores import postgres_store

make = RowFactory()

LETTERS = {"text": 0, "bytea": 1, "bigint": 2, "double precision": 3, "boolean": 4}


async def test_the_types_of_all_arguments_are_those_that_the_server_expects(database: str) -> None:
    store = postgres_store(database)
    await store.open()
    await store.close()
    connection = await asyncpg.connect(database)
    names = {"int8": "bigint", "float8": "double precision", "bool": "boolean"}
    for statements in postgres_batch.list_batch_statements().values():
        for one in statements:
            kinds = [kind.name for kind in (await connection.prepare(one.text)).get_parameters()]
            assert [LETTERS[names.get(kind, kind)] for kind in kinds] == list(one.places), one.text
    await connection.close()


def test_every_row_type_is_part_of_a_batch_but_those_that_index_or_remove() -> None:
    assert set(encode.STATEMENTS) - set(postgres_batch.list_batch_statements()) == {IndexRow}
    with pytest.raises(KeyError):
        postgres_batch.encode_batch([IndexRow("t", "s")])


def test_values_are_in_the_order_in_which_the_function_reads_them() -> None:
    counts, values = postgres_batch.encode_batch([make.form(b"one"), *make.begin(), make.form(b"two")])
    assert sum(counts) == 4
    assert values[0][:3] == ["t1", "s1", "{}"]
    assert values[1][-4:] == [digest(b"one"), b"one", digest(b"two"), b"two"]
    name, text = postgres_batch.build_function()
    assert name in text
    assert "$1" not in text
    assert len(re.findall(r"LOOP\n", text)) == len(counts)


async def test_a_batch_of_all_tables_is_one_round_trip(database: str) -> None:
    async with counted(database) as (way, trips):
        store = postgres_store(way)
        await store.open()
        await store.put([make.form(b"first")])
        before = trips.count
        key = digest("k")
        rows: list[Any] = [*make.begin(), make.message(key), make.form(b"f"), make.edit(key), make.state(key, "text")]
        await store.put([*rows, make.exchange("x1"), make.outcome("x1"), make.tip(key, 2.0)])
        assert trips.count - before == 1
        await store.close()
    assert await execute(database, "SELECT status FROM exchanges") == [("complete",)]


async def test_a_function_that_is_lost_is_made_again(database: str) -> None:
    store = postgres_store(database)
    await store.open()
    name, _ = postgres_batch.build_function()
    await execute(database, f"DROP FUNCTION {name}")
    ours = "application_name = 'context-proxy' AND datname = current_database()"
    await execute(database, f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {ours}")
    await store.put([*make.begin(), make.form(b"one")])
    await store.close()
    assert await execute(database, "SELECT count(*) FROM forms") == [(1,)]
