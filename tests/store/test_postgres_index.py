from __future__ import annotations

import json

import asyncpg
import pytest

from proxy.store import postgres_index
from proxy.store.postgres_schema import migrate
from proxy.store.schema import MIGRATIONS
from tests.postgres import execute
from tests.store.conftest import RowFactory, digest
from tests.stores import count_rows, postgres_store


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The Parser of config.toml", ["the", "parser", "of", "config", "toml"]),
        ("ÉTÉ e\u0301te\u0301 snake_case", ["ete", "ete", "snake", "case"]),
        ("half \ud83d a pair\x00", ["half", "a", "pair"]),
        ("x" * 50, ["x" * 40, "x" * 10]),
        ("", []),
        ("用Redis缓存数据, が", ["用", "redis", "缓存", "存数", "数据", "か"]),
    ],
)
def test_words_are_in_small_letters_and_without_marks(text: str, words: list[str]) -> None:
    assert postgres_index.extract_words(text) == words


def test_a_query_is_any_of_its_words_and_nothing_in_it_is_an_operator() -> None:
    assert postgres_index.build_query("Red & !green | 'blue') x") == "'red' | 'green' | 'blue'"
    assert postgres_index.build_query("?! x") == ""
    assert postgres_index.build_query("数据库") == "'数据' | '据库'"
    assert postgres_index.build_query(" ".join(f"word{n}" for n in range(99))).count("|") == 31


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            b'{"content":"text","tool_calls":[{"function":{"name":"grep","arguments":"{\\"a\\":\\"b\\\\nc\\"}"}}]}',
            'text grep {"a":"b c"}',
        ),
        (b'{"content":[{"type":"text","text":"one"},{"image_url":{}},5,{"text":"two"}]}', "one two"),
        (b'{"content":null,"tool_calls":[5,{"function":5},{}]}', ""),
        (b'{"content":5}', ""),
        (b"[1]", ""),
        (b"\xff no json", "\ufffd no json"),
        (b"[" * 5000, "[" * 5000),
    ],
)
def test_the_index_gets_texts_and_calls_of_a_message_and_not_its_json(body: bytes, said: str) -> None:
    assert postgres_index.extract_text("message", body) == said


async def test_what_is_deleted_is_not_found_any_more(database: str, make: RowFactory) -> None:
    store = postgres_store(database)
    await store.open()
    await store.put(make.begin())
    bodies = [json.dumps({"content": text}).encode() for text in ("gone soon", "stays soon")]
    await store.put([make.message(digest("m", n), body=body) for n, body in enumerate(bodies)])
    await store.put([make.edit(digest("m", 0), text="gone soon too", stage="compress_levels")])
    assert len(await store.search("t1", "s1", "soon")) == 3
    await execute(database, "DELETE FROM messages WHERE key = $1", digest("m", 0))
    await execute(database, "DELETE FROM edits")
    assert [match.key for match in await store.search("t1", "s1", "soon")] == [digest("m", 1)]
    assert (await count_rows(store))["indexed"] == 1
    await store.close()


async def test_a_store_of_version_8_is_reindexed_session_by_session_when_it_is_searched(database: str) -> None:
    connection = await asyncpg.connect(database)
    await migrate(connection, MIGRATIONS[:8])
    await connection.close()
    store = postgres_store(database)
    await store.open()
    text = "修复了数据库迁移 parser"
    for place in (RowFactory("t1", "s1"), RowFactory("t1", "s2")):
        bodies = [json.dumps({"role": "user", "content": f"{text} {n}"}).encode() for n in range(3)]
        await store.put(place.begin())
        await store.put([place.message(digest("m", n), digest("m", n - 1), n, body=b) for n, b in enumerate(bodies)])
        for n in range(3):  # as the code of schema 8 did
            await execute(
                database,
                "INSERT INTO indexed (tenant, session, kind, branch, version, key, words)"
                " VALUES ($1, $2, 'message', '', $3, $4, to_tsvector('simple', $5))",
                *(place.tenant, place.session, n + 1, digest("m", n), text),
            )
    forms = "SELECT session, form, count(*) FROM indexed GROUP BY 1, 2 ORDER BY 1"
    assert await execute(database, forms) == [("s1", 1, 3), ("s2", 1, 3)]
    assert len(await store.search("t1", "s1", "迁移")) == 3
    assert len(await store.search("t1", "s1", "parser")) == 3
    assert await execute(database, forms) == [("s1", 2, 3), ("s2", 1, 3)]
    await store.close()


async def test_a_long_session_is_indexed_by_pages(
    database: str, make: RowFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_index, "_PAGE", 10)
    store = postgres_store(database)
    await store.open()
    await store.put(make.begin())
    await store.put(make.line(35))
    assert len(await store.search("t1", "s1", "body", limit=100)) == 35
    await store.put(make.line(5, "more"))
    assert len(await store.search("t1", "s1", "body", limit=100)) == 40
    await store.close()


async def test_a_text_of_any_length_is_indexed(database: str, make: RowFactory) -> None:
    store = postgres_store(database)
    await store.open()
    await store.put(make.begin())
    long = json.dumps({"content": " ".join(f"{n:x}{'z' * 30}" for n in range(100_000))}).encode()
    await store.put(
        [make.message(digest("m", 0), body=long), make.message(digest("m", 1), body=b'{"content":"short"}')]
    )
    assert [match.key for match in await store.search("t1", "s1", "1" + "z" * 30)] == [digest("m", 0)]
    assert [match.key for match in await store.search("t1", "s1", "short")] == [digest("m", 1)]
    assert store.healthy
    await store.close()
