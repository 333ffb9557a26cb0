"""Small transactions are durable in the journal, and the tables have them before anybody reads them."""

from __future__ import annotations

import asyncio
import base64
import shutil
import sqlite3
from contextlib import closing
from enum import StrEnum
from pathlib import Path

import pytest
from msgspec.structs import replace

from proxy.errors import StoreUnavailable
from proxy.store import journal, writer
from proxy.store.base import GapRow, Row
from proxy.store.bindings import BindingRow
from proxy.store.branch_positions import BranchKindRow, WorkingBranchRow
from proxy.store.derived import (
    ContextWindowRow,
    EmbeddingRow,
    HelperAnswerRow,
    IterationRow,
    SpendingRow,
)
from proxy.store.removal import RemovalStepRow
from proxy.store.response_names import ResponseNameRow
from proxy.store.session_notes import HiddenRoundRow, MemoRow, NoteRow, ScratchpadRow, SettingsRow, ToolOfferRow
from proxy.store.sqlite import MAX_RECENT_ANSWERS, RecentAnswers, SqliteStore, concerns_one_session
from tests.snapshot import snapshot
from tests.store.conftest import RowFactory, digest
from tests.stores import count_rows, sqlite_store


def in_tables(path: Path, table: str) -> int:
    """Rows that another program finds in a table."""
    with closing(sqlite3.connect(path)) as connection:
        return int(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


async def opened(path: Path) -> SqliteStore:
    store = sqlite_store(path)
    await store.open()
    return store


def all_kinds(make: RowFactory) -> list[Row]:
    """A row of each type that is journaled."""
    place, key = ("t1", "s1"), digest("m", 1)
    return [
        *make.begin(),
        *make.line(2),
        make.tip(key, 5.0),
        make.form(b"form"),
        replace(make.edit(key), text="a lone \ud800 surrogate"),
        make.state(key, "state"),
        make.exchange("x1"),
        make.outcome("x1"),
        GapRow(*place, "x1", 1, "disk", 1.0),
        BranchKindRow(*place, "main", "side"),
        WorkingBranchRow(*place, "main", b"system", 3),
        HelperAnswerRow(*place, "ask", "summary", "mini", 1, 1, 0.1, 1.0, "text"),
        SpendingRow("", "", 1, "summary", 1, 2, 3, 0.5),
        ContextWindowRow("", "", "u", "m", 1000, 1.0),
        EmbeddingRow(*place, "small", b"form", b"vector", 1.0),
        IterationRow(*place, "main", key, 1, "", 1.0, b"{}"),
        HiddenRoundRow(*place, key, b"head", "x1", b"{}", 1.0),
        ToolOfferRow(*place, "main", "offer"),
        ScratchpadRow(*place, 1, "text", "model", 1.0),
        MemoRow("t1", "", "memo", "p", "content", "[]", "s1", 1.0, 1.0),
        SettingsRow(*place, "{}"),
        NoteRow(*place, "main", "n", "note", "text", 1.0),
        ResponseNameRow(*place, "resp_1", "main", "x1", True, True, False, False, 1.0),
        BindingRow(*place, b"token", b"tools", b"chain", b"", b"own", 1.0),
    ]


def test_each_type_of_row_comes_back_as_it_was(make: RowFactory) -> None:
    rows = all_kinds(make)
    assert {type(row) for row in rows} == set(journal.KINDS.values())
    packed = journal.pack([rows[:3], rows[3:]])
    assert packed is not None
    assert journal.unpack(packed) == [rows[:3], rows[3:]]


def test_what_is_long_or_removes_is_not_journaled(make: RowFactory) -> None:
    assert journal.pack([[make.form(b"x" * journal.MAX_ITEM_BYTES)]]) is None
    assert journal.pack([make.begin(), [RemovalStepRow("t1", "s1", "forms")]]) is None
    assert journal.pack([[]]) is None
    assert journal.pack([[make.form(b"%d" % n + b"x" * 10_000)] for n in range(12)]) is None


class Word(StrEnum):
    """A text that is no plain one."""

    HEARD = "heard"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tokens", 1 << 63),
        ("position", None),
        ("role", None),
        ("position", []),
        ("branch", "\ud800"),
        ("status", Word.HEARD),
    ],
)
def test_a_value_that_a_column_might_not_take_is_left_to_the_tables(
    make: RowFactory, field: str, value: object
) -> None:
    assert journal.pack([[replace(make.message(b"key"), **{field: value})]]) is None


async def test_a_member_of_an_enum_is_stored_and_a_number_of_65_bits_is_refused(
    tmp_path: Path, make: RowFactory
) -> None:
    store = await opened(tmp_path / "db")
    await store.put(make.begin())
    await store.put([replace(make.message(b"key"), status=Word.HEARD)])
    with pytest.raises(StoreUnavailable):
        await store.put([replace(make.message(b"other"), tokens=1 << 63)])
    assert await store._fetch("SELECT status FROM messages", ()) == [("heard",)]
    await store.close()


async def test_a_small_transaction_is_one_page_and_is_read_as_if_it_were_in_the_tables(
    tmp_path: Path, make: RowFactory
) -> None:
    store = await opened(tmp_path / "db")
    await store.put([*make.begin(), *make.line(2)])
    await store.put([make.exchange("x0")])
    assert await store.read_exchange("t1", "s1", "x0")
    log = tmp_path / "db-wal"
    before = log.stat().st_size
    for n in range(1, 9):
        await store.put([make.exchange(f"x{n}"), make.outcome(f"x{n}"), make.form(b"%d" % n * 200)])
    assert log.stat().st_size - before <= 9 * 4120
    assert in_tables(tmp_path / "db", "exchanges") == 1
    found = await store.read_exchange("t1", "s1", "x8")
    assert found is not None
    assert found.status == "complete"
    assert in_tables(tmp_path / "db", "exchanges") == 9
    await store.close()


async def test_a_read_of_another_session_does_not_wait_for_the_journal(tmp_path: Path, make: RowFactory) -> None:
    store = await opened(tmp_path / "db")
    await store.put([*make.begin(), make.form(b"mine")])
    assert await store.read_form("t1", "other", b"f") is None
    assert in_tables(tmp_path / "db", "forms") == 0
    assert [item.session for item in await store.list_sessions("t1")] == ["s1"]
    assert in_tables(tmp_path / "db", "forms") == 1
    await store.close()


async def test_a_look_up_of_answers_leaves_the_journal_where_it_has_none_of_them(
    tmp_path: Path, make: RowFactory
) -> None:
    store = await opened(tmp_path / "db")
    line = make.line(4)
    await store.put([*make.begin(), *line])
    assert await store.find_chain_hits("t1", [digest("other")], None) == []
    assert await store.find_chain_hits("t1", [line[0].key], None) == [], "no answer"
    assert in_tables(tmp_path / "db", "messages") == 0
    assert [hit.key for hit in await store.find_chain_hits("t1", [line[1].key, line[3].key], None)] == [
        line[3].key,
        line[1].key,
    ]
    assert in_tables(tmp_path / "db", "messages") == 4
    await store.put([make.form(b"later")])
    assert await store.find_chain_hits("t1", [digest("other")], None) == []
    assert in_tables(tmp_path / "db", "forms") == 0
    assert len(await store.find_chain_hits("t1", [line[3].key], None)) == 1
    assert in_tables(tmp_path / "db", "forms") == 1, "the row of its branch may be newer"
    await store.close()


async def test_answers_that_are_not_written_yet_are_found(tmp_path: Path, make: RowFactory) -> None:
    store = await opened(tmp_path / "db")
    line = make.line(4)
    await store.put([*make.begin(), *line[:2]])
    held = store.put_deferred(line[2:])
    assert not held.done()
    hits = await asyncio.gather(*(store.find_chain_hits("t1", [line[n].key], None) for n in (1, 3, 3)))
    assert [[hit.key for hit in found] for found in hits] == [[line[1].key], [line[3].key], [line[3].key]]
    await store.close()


def test_more_answers_than_are_remembered_count_as_not_written(make: RowFactory) -> None:
    answers = [make.message(digest(f"a{n}"), answer=True) for n in range(MAX_RECENT_ANSWERS)]
    recent = RecentAnswers()
    recent.add(answers)
    assert recent.has_none(["t1", digest("other"), 2])
    assert not recent.has_none(["t1", answers[7].key, 2])
    recent.add([make.message(digest("more"), answer=True)])
    assert not recent.has_none([digest("other")]), "it may be the one that had no room"
    recent.forget(1)
    assert not recent.has_none([digest("other")])
    recent.forget(2)
    assert recent.has_none([digest("more"), answers[7].key])
    recent.add(answers[:1])
    recent.forget(2)
    assert not recent.has_none([answers[0].key]), "it was put again since"


@pytest.mark.parametrize(
    ("text", "one"),
    [
        ("SELECT 1 FROM forms WHERE tenant = $1 AND session = $2", True),
        ("SELECT 1 FROM messages m WHERE m.tenant = $1 AND m.session = $2 AND m.seq > $3", True),
        ("SELECT 1 FROM memos WHERE tenant = $1 AND session = '' AND memo = $2", False),
        ("SELECT 1 FROM sessions WHERE (tenant, session) > ($1, $2)", False),
        ("SELECT 1 FROM edits WHERE tenant = $3 AND session = $4", False),
    ],
)
def test_a_statement_says_which_session_it_reads(text: str, one: bool) -> None:
    assert concerns_one_session(text) is one


async def test_the_journal_is_applied_when_it_is_full_or_old(
    tmp_path: Path, make: RowFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await opened(tmp_path / "db")
    for n in range(journal.MAX_ITEMS):
        await store.put([*make.begin(), make.form(b"%d" % n)])
    async with asyncio.timeout(30):
        while in_tables(tmp_path / "db", "forms") < journal.MAX_ITEMS:
            await asyncio.sleep(0.01)
    monkeypatch.setattr(writer, "MAX_AGE_S", 0.05)
    await store.put([make.form(b"later")])
    async with asyncio.timeout(30):
        while in_tables(tmp_path / "db", "forms") <= journal.MAX_ITEMS:
            await asyncio.sleep(0.01)
    await store.close()


async def test_what_a_killed_process_left_in_the_journal_is_applied_once_by_the_next(
    tmp_path: Path, make: RowFactory
) -> None:
    """The copy of the files is what a process that is killed there leaves."""
    store = await opened(tmp_path / "db")
    gap = GapRow("t1", "s1", "x1", 5, "disk", 1.0)
    await store.put([*make.begin(), *make.line(2)])
    assert await count_rows(store)
    await store.put([gap, make.exchange("x1")])
    await store.put([*make.line(4), make.outcome("x1")])
    for end in ("", "-wal"):
        shutil.copy(tmp_path / f"db{end}", tmp_path / f"dead{end}")
    await store.close()
    for _ in range(2):
        after = await opened(tmp_path / "dead")
        assert [m.seq for m in await after.read_chain("t1", "s1", digest("m", 3))] == [1, 2, 3, 4]
        found = await after.read_exchange("t1", "s1", "x1")
        assert found is not None
        assert found.status == "complete"
        assert await after._fetch("SELECT bytes FROM gaps", ()) == [(5,)]
        await after.close()


async def test_the_order_of_puts_is_kept_where_some_are_not_journaled(tmp_path: Path, make: RowFactory) -> None:
    store = await opened(tmp_path / "db")
    await asyncio.gather(
        store.put([*make.begin(), make.exchange("x1")]),
        store.put([make.form(b"long" * 10_000)]),
        store.put([replace(make.outcome("x1"), note="second")]),
        store.put([RemovalStepRow("t1", "s1", "forms")]),
        store.put([make.form(b"after")]),
        store.put([replace(make.outcome("x1"), note="third")]),
    )
    found = await store.read_exchange("t1", "s1", "x1")
    assert found is not None
    assert found.note == "third"
    assert await store._fetch("SELECT body FROM forms", ()) == [(b"after",)]
    await store.close()


async def test_removed_content_is_not_left_in_the_journal(tmp_path: Path, make: RowFactory) -> None:
    path = tmp_path / "db"
    store = await opened(path)
    for n in range(5):
        await store.put([make.form(b"canary %d " % n * 100)])
    await store.put([RemovalStepRow("t1", "s1", "forms")])
    await store.close()
    assert b"canary" not in path.read_bytes()


@pytest.mark.parametrize(
    ("written", "removing"),
    [
        (
            MemoRow("t1", "", "memo", "p", "canary", "[]", "s1", 1.0, 1.0),
            MemoRow("t1", "", "memo", "p", "", "[]", "", 1.0, 2.0, deleted=True),
        ),
        (NoteRow("t1", "s1", "main", "n", "note", "canary", 1.0), NoteRow("t1", "s1", "main", "n", "note", "", 1.0)),
    ],
)
async def test_a_deleted_memo_and_a_withdrawn_note_are_not_left_in_the_journal(
    tmp_path: Path, written: Row, removing: Row
) -> None:
    path = tmp_path / "db"
    store = await opened(path)
    await store.put([written])
    await store.put([removing])
    await store.close()
    assert b"canary" not in path.read_bytes()


async def test_a_record_that_cannot_be_read_is_a_gap_and_the_others_are_applied(
    tmp_path: Path, make: RowFactory
) -> None:
    path, dead = tmp_path / "db", tmp_path / "dead"
    store = await opened(path)
    await store.put([*make.begin(), make.form(b"before")])
    await store.put([make.form(b"damaged")])
    await store.put([make.form(b"after")])
    for end in ("", "-wal"):
        shutil.copy(tmp_path / f"db{end}", tmp_path / f"dead{end}")
    await store.close()
    with closing(sqlite3.connect(dead)) as connection, connection:
        connection.execute("UPDATE journal SET data = x'00000005c1c1c1c1c1' WHERE slot = 2")
    for _ in range(2):
        after = await opened(dead)
        assert {row[0] for row in await after._fetch("SELECT body FROM forms", ())} == {b"before", b"after"}
        async with asyncio.timeout(30):
            while not (gaps := await after._fetch("SELECT bytes, items FROM gaps", ())):
                await asyncio.sleep(0.01)
        assert gaps == [(9, 1)]
        await after.close()


def test_a_record_of_an_earlier_version_is_read(make: RowFactory) -> None:
    """The text is a record as version 11 of the schema writes it. It is never changed: see the docstring of the
    journal."""
    record = base64.b64decode((Path(__file__).parent / "journal_record.txt").read_text())
    rows = [row for row in all_kinds(make) if not isinstance(row, ResponseNameRow | BindingRow)]  # schemas 14, 15
    assert journal.unpack(record) == [rows]


async def test_an_item_that_no_table_takes_after_all_is_lost_alone_and_recorded(
    tmp_path: Path, make: RowFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await opened(tmp_path / "db")
    monkeypatch.setattr(journal, "has_plain_values", lambda _row, _values: True)
    await store.put([*make.begin(), make.form(b"good")])
    await store.put([replace(make.message(b"key"), tokens=1 << 63)])
    await store.put([make.form(b"good too")])
    assert len(await store._fetch("SELECT body FROM forms", ())) == 2
    async with asyncio.timeout(30):
        while not await store._fetch("SELECT reason FROM gaps", ()):
            await asyncio.sleep(0.01)
    assert store.dropped == 1
    assert store.healthy
    await store.close()


async def test_while_the_disk_takes_nothing_journaled_rows_are_unavailable_and_not_missing(
    tmp_path: Path, make: RowFactory
) -> None:
    path = tmp_path / "db"
    store = await opened(path)
    await store.put([*make.begin(), make.form(b"kept")])
    path.rename(tmp_path / "moved")
    waiting = store.put([make.form(b"waits")])
    async with asyncio.timeout(30):
        while store.healthy:
            await asyncio.sleep(0.01)
    with pytest.raises(StoreUnavailable):
        await store.read_branch("t1", "s1", "main")
    (tmp_path / "moved").rename(path)
    await asyncio.wait_for(waiting, 30)
    assert await store.read_branch("t1", "s1", "main") is not None
    await store.close()


async def test_a_snapshot_has_what_is_durable(tmp_path: Path, make: RowFactory) -> None:
    store = await opened(tmp_path / "db")
    await store.put([*make.begin(), make.tip(b"tip", 7.0)])
    with closing(snapshot(tmp_path / "db")) as found:
        assert found.execute("SELECT tip, last_at FROM branches").fetchall() == [(b"tip", 7.0)]
    stored = await store.read_branch("t1", "s1", "main")
    assert stored is not None
    assert stored.tip == b"tip"
    await store.close()
