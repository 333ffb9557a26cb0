"""Lists by pages, the same on each backend."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from msgspec.structs import replace

from proxy.store import sqlite_files
from proxy.store.base import Row, is_last_page
from proxy.store.migrate import migrate
from proxy.store.reads import Store
from proxy.store.row_reader import MAX_PAGE_BYTES
from proxy.store.schema import MIGRATIONS
from proxy.store.session_lists import MessageFilter, SessionFilter, contains_text
from tests.store.conftest import RowFactory, digest
from tests.stores import sqlite_store


async def fill(store: Store) -> None:
    """Ten sessions of one tenant, the odd ones named and of another policy, and one of another tenant."""
    for n in range(10):
        one = RowFactory(session=f"Task_{n}%")
        begin = [replace(row, explicit=n % 2 == 1) if hasattr(row, "explicit") else row for row in one.begin()]
        line = [one.message(digest("m", i), digest("m", i - 1) if i else b"root", i) for i in range(n)]
        exchange = replace(one.exchange(f"x{n}"), policy="rolling" if n % 2 else "thrifty")
        await store.put([*begin, *line, exchange, one.tip(digest("m", n - 1), 100.0 + n)])
    await store.put(RowFactory("t2", "theirs").begin(at=105.5))


async def test_sessions_are_listed_by_their_last_use_and_by_pages(store: Store) -> None:
    await fill(store)
    listed = await store.list_sessions("t1")
    assert [item.session for item in listed] == [f"Task_{n}%" for n in range(9, -1, -1)]
    assert [(item.messages, item.exchanges, item.branches) for item in listed[:2]] == [(9, 1, 1), (8, 1, 1)]
    assert (listed[0].last_at, listed[0].created_at, listed[0].policy) == (109.0, 1.0, "rolling")
    pages = await store.list_sessions("t1", limit=4)
    while len(page := await store.list_sessions("t1", pages[-1].cursor, 4)):
        pages += page
    assert pages == listed


async def test_an_operator_lists_the_sessions_of_all_tenants(store: Store) -> None:
    await fill(store)
    listed = await store.list_sessions(None, limit=5)
    assert [item.session for item in listed] == ["Task_9%", "Task_8%", "Task_7%", "Task_6%", "theirs"]
    rest = await store.list_sessions(None, listed[-1].cursor)
    assert [item.session for item in rest] == [f"Task_{n}%" for n in range(5, -1, -1)]
    assert await store.list_sessions("t3") == []


@pytest.mark.parametrize(
    ("only", "found"),
    [
        (SessionFilter(text="task_7"), [7]),
        (SessionFilter(text="K_7%"), [7]),
        (SessionFilter(text="7_"), []),
        (SessionFilter(text="!"), []),
        (SessionFilter(since=108.0), [9, 8]),
        (SessionFilter(explicit=True), [9, 7, 5, 3, 1]),
        (SessionFilter(explicit=False, since=105.0), [8, 6]),
        (SessionFilter(policy="rolling", text="_1"), [1]),
        (SessionFilter(policy="none"), []),
    ],
)
async def test_a_list_of_sessions_is_filtered(store: Store, only: SessionFilter, found: list[int]) -> None:
    await fill(store)
    for tenant in ("t1", None):
        listed = await store.list_sessions(tenant, only=only)
        assert [item.session for item in listed if item.tenant == "t1"] == [f"Task_{n}%" for n in found]


async def test_a_session_is_used_as_late_as_its_latest_branch(store: Store, make: RowFactory) -> None:
    await store.put([*make.begin(), make.tip(b"h", 50.0), make.tip(b"h", 40.0)])
    (item,) = await store.list_sessions("t1")
    assert item.last_at == 50.0
    record = await store.read_session("t1", "s1")
    assert record is not None
    assert (record.last_at, record.policy) == (50.0, "")


async def branching(store: Store, make: RowFactory) -> None:
    """Two groups of three on the main branch; a fork at the second message with a group of its own."""
    rows = [replace(row, group_id=f"g{row.position // 3}") for row in make.line(6)]
    rows[1:2] = [replace(rows[1], role="assistant", body=b'{"content":"Caf\\u00e9 \\"au\\" lait"}')]
    forked = [
        replace(make.message(digest("f", n), digest("f", n - 1) if n else rows[1].key, 2 + n), group_id="gf")
        for n in (0, 1)
    ]
    forked = [replace(row, branch="fork") for row in forked]
    await store.put([*make.begin(), make.branch("fork", 2.0, "main"), *rows, *forked])
    tips = [
        replace(make.tip(rows[4].key, 3.0), answer=rows[5].key),
        replace(make.tip(forked[1].key, 3.0, "fork"), answer=None),
    ]
    await store.put(tips)


async def test_messages_are_listed_by_pages_either_way(store: Store, make: RowFactory) -> None:
    await branching(store, make)
    for only in (MessageFilter(), MessageFilter(branch="main")):
        count = 6 if only.branch else 8
        assert [row.seq for row in await store.read_messages("t1", "s1", only=only)] == list(range(1, count + 1))
        assert [row.seq for row in await store.read_messages("t1", "s1", 2, 3, only)] == [3, 4, 5]
        assert [row.seq for row in await store.read_messages("t1", "s1", 0, 2, only, newest=True)] == [count, count - 1]
        assert [row.seq for row in await store.read_messages("t1", "s1", 4, 2, only, newest=True)] == [3, 2]
    assert await store.read_messages("t2", "s1") == await store.read_messages("t1", "s2") == []


@pytest.mark.parametrize(
    ("only", "found"),
    [
        (MessageFilter(role="assistant"), [2]),
        (MessageFilter(group="g1"), [4, 5, 6]),
        (MessageFilter(branch="fork"), [1, 2, 7, 8]),
        (MessageFilter(branch="fork", role="user", group="g0"), [1]),
        (MessageFilter(text='CAFÉ "AU"'), [2]),
        (MessageFilter(text="body 4"), [5]),
        (MessageFilter(text="café", branch="fork"), [2]),
        (MessageFilter(text="nothing"), []),
    ],
)
async def test_a_list_of_messages_is_filtered(
    store: Store, make: RowFactory, only: MessageFilter, found: list[int]
) -> None:
    await branching(store, make)
    assert [row.seq for row in await store.read_messages("t1", "s1", only=only)] == found
    assert [row.seq for row in await store.read_messages("t1", "s1", only=only, newest=True)] == found[::-1]


@pytest.mark.parametrize("only", [MessageFilter(), MessageFilter(branch="main"), MessageFilter(text="body")])
@pytest.mark.parametrize("newest", [False, True])
async def test_a_page_ends_where_its_messages_are_long(
    store: Store, make: RowFactory, only: MessageFilter, newest: bool
) -> None:
    rows = [replace(row, body=row.body + b" " * (MAX_PAGE_BYTES // 3)) for row in make.line(5)]
    await store.put([*make.begin(), *rows, replace(make.tip(rows[4].key, 3.0), answer=None)])
    page = await store.read_messages("t1", "s1", only=only, newest=newest)
    assert [row.seq for row in page] == ([5, 4, 3] if newest else [1, 2, 3])
    assert not is_last_page(page, 100)
    rest = await store.read_messages("t1", "s1", page[-1].seq, only=only, newest=newest)
    assert [row.seq for row in rest] == ([2, 1] if newest else [4, 5])
    assert is_last_page(rest, 100)
    assert not is_last_page(rest, 2)


@pytest.mark.usefixtures("begun")
async def test_a_text_is_found_after_many_messages_without_it(store: Store, make: RowFactory) -> None:
    await store.put(make.line(700))
    only = MessageFilter(text="body 69")
    assert [row.seq for row in await store.read_messages("t1", "s1", limit=3, only=only)] == [70, 691, 692]
    assert [row.seq for row in await store.read_messages("t1", "s1", 692, 3, only)] == [693, 694, 695]


@pytest.mark.parametrize(
    ("body", "text", "expected"),
    [
        (b'{"content":[{"type":"text","text":"Gr\\u00fcn"}]}', "grün", True),
        (b'{"tool_calls":[{"function":{"arguments":"{}"}}]}', "{}", True),
        (b'{"content":"x"}', "content", False),
        (b"no json, but text", "But", True),
        (b"\xff\xfe", "x", False),
    ],
)
def test_text_search_reads_the_words_of_a_message_not_its_json(body: bytes, text: str, expected: bool) -> None:
    assert contains_text(body, text) is expected


async def test_the_sessions_of_an_older_store_are_listed_by_what_their_branches_say(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite3"
    sqlite_files.prepare_files(path)
    await migrate(path, MIGRATIONS[:4])
    connection = sqlite3.connect(path)
    connection.execute("INSERT INTO sessions VALUES ('t1', 'used', 1, 2.0, '{}'), ('t1', 'idle', 1, 3.0, '{}')")
    connection.execute(
        "INSERT INTO threads VALUES ('t1', 'used', 'a', NULL, NULL, 'main', x'', 2.0, x'', NULL, 9.0, NULL)"
    )
    connection.commit()
    connection.close()
    store = sqlite_store(path)
    await store.open()
    assert [(item.session, item.last_at) for item in await store.list_sessions("t1")] == [("used", 9.0), ("idle", 3.0)]
    await store.close()


async def test_whose_a_session_is_can_be_asked_by_its_name_alone(store: Store) -> None:
    await store.put(RowFactory("t1", "both").begin())
    await store.put(RowFactory("t2", "both").begin())
    await store.put(RowFactory("t2", "theirs").begin())
    assert await store.read_session_tenants("both") == ["t1", "t2"]
    assert await store.read_session_tenants("both", limit=1) == ["t1"]
    assert await store.read_session_tenants("theirs") == ["t2"]
    assert await store.read_session_tenants("bot") == []


async def test_an_answer_and_results_of_its_calls_have_what_was_reported_for_it(store: Store, make: RowFactory) -> None:
    def message(name: bytes, parent: bytes, role: str) -> Row:
        return replace(make.message(name, parent), role=role)

    await store.put([
        *make.begin(), message(b"user", b"root", "user"), message(b"answer", b"user", "assistant"),
        message(b"one", b"answer", "tool"), message(b"two", b"one", "tool"), message(b"foreign", b"two", "assistant"),
        message(b"three", b"foreign", "tool"), make.exchange("x1"), make.outcome("x1"),
    ])  # fmt: skip
    keys = [b"user", b"answer", b"one", b"two", b"foreign", b"three", b"none"]
    assert await store.read_token_snapshots("t1", "s1", keys) == {b"answer": 950, b"one": 950, b"two": 950}
    assert await store.read_token_snapshots("t1", "s2", keys) == {}
