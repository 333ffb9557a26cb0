"""The keyword index over messages and summaries, filled when it is asked for the first time."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from proxy.errors import StoreUnavailable
from proxy.store import full_text_search, postgres, reads
from proxy.store.base import EditRow, MessageRow
from proxy.store.full_text_search import MAX_INDEXED_BYTES, IndexRow
from proxy.store.in_memory import InMemoryStore
from proxy.store.reads import Store
from proxy.store.row_reader import MAX_PAGE_BYTES
from tests.store.conftest import RowFactory, digest
from tests.stores import count_rows


def user_row(make: RowFactory, n: int, text: Any, **more: Any) -> MessageRow:
    body = json.dumps({"role": "user", "content": text, **more}).encode()
    return make.message(digest("m", n), digest("m", n - 1), n, body=body)


def summary(make: RowFactory, n: int, text: str, version: int = 1, stage: str = "compress_levels") -> EditRow:
    return EditRow(
        make.tenant, make.session, "main", digest("m", n), version, stage, "full", "text", text, 9, 1, "x", 1.0
    )


async def indexed(store: Store) -> int:
    return (await count_rows(store))["indexed"]


async def fetch(store: Any, text: str, *args: Any) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = await store._fetch(text, args)
    return found


async def test_e6_messages_are_found_by_any_of_their_words_the_best_first(store: Store, make: RowFactory) -> None:
    texts = ["the parser of config.toml fails", "a walk in the park", "the parser, again the parser", "nothing"]
    await store.put([*make.begin(), *(user_row(make, n, t) for n, t in enumerate(texts))])
    found = await store.search("t1", "s1", "Parser CONFIG")
    assert [m.key for m in found] == [digest("m", 0), digest("m", 2)]
    assert [m.key for m in await store.search("t1", "s1", "walk")] == [digest("m", 1)]
    assert (found[0].kind, found[0].role) == ("message", "user")
    assert found[0].text.strip() == texts[0]
    assert len(await store.search("t1", "s1", "parser", limit=1)) == 1


async def test_texts_are_read_until_they_have_so_many_bytes(
    store: Store, make: RowFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are found too, with their role and their id, and without their text."""
    for module in (reads, postgres):
        monkeypatch.setattr(module, "MAX_PAGE_BYTES", 3000)
    texts = [" ".join(["parser"] * (300 - 50 * n) + ["filler"] * 50 * n) for n in range(4)]
    await store.put([*make.begin(), *(user_row(make, n, text) for n, text in enumerate(texts))])
    found = await store.search("t1", "s1", "parser")
    assert sorted(match.key for match in found) == sorted(digest("m", n) for n in range(4))
    assert [match.has_text for match in found] == [True, True, False, False]
    assert [match.text.strip() in texts for match in found[:2]] == [True, True]
    assert [(match.role, match.text) for match in found[2:]] == [("user", ""), ("user", "")]
    whole = await store.search("t1", "s1", "parser", limit=1)
    assert [(match.key, match.has_text) for match in whole] == [(found[0].key, True)], "the first always has its own"


async def test_the_beginning_of_a_long_text_is_indexed_and_its_words_leave_the_index_with_it() -> None:
    store, make = InMemoryStore(), RowFactory()
    await store.open()
    texts = [
        "early " + "filler " * (MAX_INDEXED_BYTES // 7) + "late",
        "\u00e9t\u00e9 " * MAX_INDEXED_BYTES,
        "late and short",
    ]
    await store.put([*make.begin(), *(user_row(make, n, text) for n, text in enumerate(texts))])
    for word, wanted in (("early", [0]), ("late", [2]), ("ete", [1])):
        found = await store.search("t1", "s1", word)
        assert [m.key for m in found] == [digest("m", n) for n in wanted], word
    assert (await store.search("t1", "s1", "early"))[0].text.strip() == texts[0], "and shown whole"
    await store.delete_session("t1", "s1")
    assert await fetch(store, "SELECT rowid FROM keywords WHERE keywords MATCH 'filler OR early OR ete'") == []
    await store.close()


async def test_the_index_is_brought_up_to_date_in_steps_of_so_many_bytes(store: Store, make: RowFactory) -> None:
    """Between two of them the writer has its turn, and no step holds more than some 16 MiB of messages."""
    long = "lantern " * (MAX_PAGE_BYTES // 8 * 2 // 3)
    await store.put([*make.begin(), *(user_row(make, n, f"number{n} {long}") for n in range(5))])
    counts: list[int] = []
    put = store.put

    def counting(rows: Any) -> Any:
        done = put(rows)
        if isinstance(rows[0], IndexRow):
            done.add_done_callback(lambda _: counts.append(1))
        return done

    store.put = counting  # type: ignore[method-assign]  # the store's own, and counted
    found = await store.search("t1", "s1", "number0 number1 number2 number3 number4")
    assert len(found) == 5
    await asyncio.sleep(0)
    assert len(counts) == 3
    assert len(await store.search("t1", "s1", "number4")) == 1
    await asyncio.sleep(0)
    assert len(counts) == 4, "nothing is new"


@pytest.mark.usefixtures("begun")
async def test_e6_parts_calls_and_escapes_are_read_as_words(store: Store, make: RowFactory) -> None:
    parts = [{"type": "text", "text": "first\nsecond"}, {"type": "text", "text": "third \u00e9t\u00e9"}]
    call = {"id": "c", "type": "function", "function": {"name": "grep", "arguments": '{"pattern": "needle"}'}}
    await store.put(
        [user_row(make, 0, parts), user_row(make, 1, None, tool_calls=[call]), user_row(make, 2, "x\nsixth")]
    )
    for word, n in (("second", 0), ("ete", 0), ("needle", 1), ("grep", 1), ("sixth", 2)):
        assert [m.key for m in await store.search("t1", "s1", word)] == [digest("m", n)], word


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("修复了数据库迁移的问题", "数据库"),
        ("修复了数据库迁移的问题", "迁移"),
        ("用redis缓存结果", "Redis"),
        ("用redis缓存结果", "缓存"),
        ("キャッシュを無効にする", "キャッシュ"),
        ("設定ファイルを読み込む", "設定"),
        ("서버를 배포했다", "서버"),
        ("ฐานข้อมูลถูกย้าย", "ข้อมูล"),
        ("目的", "目的"),
    ],
)
async def test_e6_a_word_of_a_script_without_blanks_is_found(
    store: Store, make: RowFactory, text: str, query: str
) -> None:
    await store.put([*make.begin(), user_row(make, 0, text), user_row(make, 1, "另外的内容 other ほかの話")])
    await store.put([summary(make, 1, f"summary: {text}")])
    found = await store.search("t1", "s1", query)
    assert {(m.kind, m.key) for m in found} == {("message", digest("m", 0)), ("summary", digest("m", 1))}
    assert all(text in m.text for m in found)
    assert await store.search("t1", "s1", "不存在 存在しない 없는것") == []


async def test_e6_what_says_a_word_of_such_a_script_more_often_comes_first(store: Store, make: RowFactory) -> None:
    texts = ["今天的天气很好，数据放在别处了", "数据迁移之后的数据和备份数据", "今天没有别的事情可以说"]
    await store.put([*make.begin(), *(user_row(make, n, text) for n, text in enumerate([*texts, *["别的话"] * 5]))])
    found = await store.search("t1", "s1", "数据")
    assert [m.key for m in found] == [digest("m", 1), digest("m", 0)]
    assert found[0].rank < found[1].rank < 0


@pytest.mark.usefixtures("begun")
async def test_e6_summaries_are_found_beside_what_they_stand_for(store: Store, make: RowFactory) -> None:
    await store.put([user_row(make, 0, "a long result"), summary(make, 0, "summary of the migration")])
    await store.put([summary(make, 0, "a stub of the migration", 2, stage="truncate_results")])
    (found,) = await store.search("t1", "s1", "migration")
    assert (found.kind, found.key, found.text) == ("summary", digest("m", 0), "summary of the migration")
    assert found.branch == "main"


async def test_e6_no_search_sees_another_session_or_tenant(store: Store) -> None:
    for tenant, session in (("t1", "s1"), ("t1", "s2"), ("t2", "s1")):
        make = RowFactory(tenant, session)
        await store.put([*make.begin(), user_row(make, 0, f"secret of {tenant} {session}")])
    for tenant, session in (("t1", "s1"), ("t1", "s2"), ("t2", "s1")):
        assert [m.text.strip() for m in await store.search(tenant, session, "secret")] == [
            f"secret of {tenant} {session}"
        ]
    assert await store.search("t3", "s1", "secret") == []
    own = full_text_search.make_scope_word("t2", "s1")
    assert await store.search("t1", "s1", own) == []


@pytest.mark.parametrize(
    "text",
    ["", "   ", "?!", '"', 'a" OR scope : "x', "secret NOT x", "secret*", "NEAR(secret x)", "(secret", "-secret"],
)
async def test_e6_nothing_in_a_query_is_an_operator(store: Store, make: RowFactory, text: str) -> None:
    await store.put([*make.begin(), user_row(make, 0, "secret")])
    found = await store.search("t1", "s1", text)
    assert len(found) == ("secret" in text.lower())


async def test_e6_the_index_costs_nothing_until_it_is_searched_and_then_only_what_is_new(
    store: Store, make: RowFactory
) -> None:
    await store.put([*make.begin(), *(user_row(make, n, f"word {n}") for n in range(20))])
    assert await indexed(store) == 0
    assert len(await store.search("t1", "s1", "word", limit=50)) == 20
    assert await indexed(store) == 20
    await store.put([user_row(make, 20, "word"), summary(make, 3, "word")])
    assert await indexed(store) == 20
    assert len(await store.search("t1", "s1", "word", limit=50)) == 22
    assert len(await store.search("t1", "s1", "word", limit=50)) == 22
    assert await indexed(store) == 22


@pytest.mark.usefixtures("begun")
async def test_e6_bodies_that_are_not_json_do_no_harm(store: Store, make: RowFactory) -> None:
    deep = b'{"role":"user","content":"deep","x":' + b"[" * 1500 + b"]" * 1500 + b"}"
    rows = [
        make.message(digest("m", 0), body=b"\xff\xfe not json"),
        make.message(digest("m", 1), body=deep),
        make.message(digest("m", 2), body=b'{"role":"user","content":"half \\ud83d a pair"}'),
        make.message(digest("m", 3), body=b'{"role":"user"}'),
    ]
    await store.put(rows)
    assert [m.key for m in await store.search("t1", "s1", "pair")] == [digest("m", 2)]
    assert [m.key for m in await store.search("t1", "s1", "deep")] == [digest("m", 1)]
    assert [m.key for m in await store.search("t1", "s1", "json")] == [digest("m", 0)]


async def test_e6_what_is_deleted_is_not_found_any_more(make: RowFactory) -> None:
    store = InMemoryStore()
    await store.open()
    await store.put(make.begin())
    gone = "gone soon, 数据库迁移, 서버를, half a pair: \ud83d"
    await store.put([user_row(make, 0, gone), user_row(make, 1, "stays soon"), summary(make, 0, "gone soon too: 部署")])
    assert len(await store.search("t1", "s1", "soon")) == 3
    assert [m.text.strip() for m in await store.search("t1", "s1", "迁移")] == [gone.replace("\ud83d", "\ufffd" * 3)]
    connection = store._connection
    assert connection is not None
    connection.execute("DELETE FROM messages WHERE key = ?", (digest("m", 0),))
    connection.execute("DELETE FROM edits")
    assert [m.text.strip() for m in await store.search("t1", "s1", "soon")] == ["stays soon"]
    for word in ("gone", "数据", "迁移", "서버", "部署"):
        assert connection.execute("SELECT count(*) FROM keywords WHERE keywords MATCH ?", (word,)).fetchone() == (0,)
    connection.execute("INSERT INTO keywords (keywords) VALUES ('integrity-check')")
    await store.close()


async def test_e6_a_store_that_cannot_be_written_is_searched_as_it_is(
    store: Store, make: RowFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.put([*make.begin(), user_row(make, 0, "here")])
    await store.search("t1", "s1", "here")
    monkeypatch.setattr(store, "put", lambda _rows: _refused())
    assert len(await store.search("t1", "s1", "here")) == 1


async def _refused() -> None:
    raise StoreUnavailable("full")


@pytest.mark.usefixtures("begun")
async def test_e6_filling_grows_with_what_is_new(store: Store) -> None:
    """Forty times as many sessions beside it do not make a session's index dearer."""
    text = " ".join(f"word{n}" for n in range(200))
    spent = []
    for round_ in range(3):
        for other in range(20):
            beside = RowFactory("t1", f"other{round_}-{other}")
            await store.put([*beside.begin(), *(user_row(beside, n, text) for n in range(5))])
            await store.search("t1", beside.session, "word1")
        mine = RowFactory("t1", f"mine{round_}")
        await store.put([*mine.begin(), *(user_row(mine, n, text) for n in range(40))])
        began = time.perf_counter()
        assert await store.search("t1", mine.session, "word1")
        spent.append(time.perf_counter() - began)
    assert min(spent[1:]) < 20 * max(spent[0], 0.005)
