"""Notes of the proxy's tools and of operators are the same on each backend."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from proxy.store import encode, session_notes, texts, write_queue
from proxy.store.base import Row
from proxy.store.reads import Store
from proxy.store.session_notes import HiddenRoundRow, MemoRow, NoteRow, ScratchpadRow, SettingsRow, ToolOfferRow
from tests.store.conftest import RowFactory, digest
from tests.stores import count_rows

ODD = "a\ud800b\x00c\U0001f600"


def round_row(
    key: bytes, tip: bytes = b"tip", at: float = 1.0, body: bytes = b"{}", session: str = "s1"
) -> HiddenRoundRow:
    return HiddenRoundRow("t1", session, key, tip, "x1", body, at)


def pad(number: int, text: str, author: str = "model") -> ScratchpadRow:
    return ScratchpadRow("t1", "s1", number, text, author, float(number))


def memo(name: str, content: str = "content", project: str = "p", at: float = 1.0, tenant: str = "t1") -> MemoRow:
    return MemoRow(tenant, "", name, project, content, '["a"]', "s1", 1.0, at)


def test_their_rows_fill_the_placeholders_of_their_statements_and_count_in_the_spool() -> None:
    rows: list[Row] = [
        round_row(b"k", body=b"x" * 10),
        ToolOfferRow("t1", "s1", "main", "5b5d"),
        pad(1, "x" * 20),
        memo("m", "x" * 30),
        replace(memo("m"), deleted=True, content=""),
        SettingsRow("t1", "s1", "{}"),
        NoteRow("t1", "s1", "main", "n1", "feedback", "x" * 40, 1.0),
    ]
    for text, args in encode.build_statements(rows):
        assert {len(one) for one in args} == {text.count("$")}
    assert write_queue.count_bytes(rows) == 100 + len(rows) * write_queue.ROW_OVERHEAD


@pytest.mark.usefixtures("begun")
async def test_the_first_round_of_an_answer_stands(store: Store) -> None:
    await store.put([round_row(b"k", body=b"first\xff\x00")])
    await store.put([round_row(b"k", body=b"second")])
    assert await store.read_hidden_rounds("t1", "s1", [b"k"]) == [round_row(b"k", body=b"first\xff\x00")]


@pytest.mark.usefixtures("begun")
async def test_rounds_are_found_by_the_answer_or_by_what_it_answers(store: Store) -> None:
    rows = [round_row(digest("k", n), digest("h", n), float(n)) for n in range(5)]
    await store.put(rows)
    many = [digest("other", n) for n in range(600)]
    assert await store.read_hidden_rounds("t1", "s1", [digest("k", 3), *many, digest("h", 1), digest("h", 3)]) == [
        rows[1],
        rows[3],
    ]
    assert await store.read_hidden_rounds("t1", "s1", many) == []
    assert await store.read_hidden_rounds("t1", "s1", []) == []
    assert await store.read_hidden_rounds("t1", "s2", [digest("k", 3)]) == []
    assert await store.read_hidden_rounds("t2", "s1", [digest("k", 3)]) == []


@pytest.mark.usefixtures("begun")
async def test_a_page_of_rounds_ends_with_the_one_that_brings_it_to_its_size(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_notes, "MAX_PAGE_BYTES", 100)
    rows = [round_row(bytes([n]), digest("h", n), body=b"x" * 60) for n in range(5)]
    rows.append(round_row(bytes([5]), digest("h", 5), body=b"x" * 500))
    await store.put(rows[::-1])
    pages, after = [], b""
    while page := await store.read_rounds_page("t1", "s1", after):
        pages.append(page)
        after = page[-1].key
    assert [row for page in pages for row in page] == rows
    assert [len(page) for page in pages] == [2, 2, 2]
    monkeypatch.setattr(session_notes, "MAX_PAGE_BYTES", 10_000)
    monkeypatch.setattr(session_notes, "ROUNDS_PAGE", 4)
    assert await store.read_rounds_page("t1", "s1") == rows[:4]
    assert await store.read_rounds_page("t1", "s2") == await store.read_rounds_page("t2", "s1") == []


async def test_what_a_branch_is_offered_is_decided_once(store: Store, make: RowFactory) -> None:
    await store.put([*make.begin(), make.branch("fork", 2.0, "main")])
    record = await store.read_branch("t1", "s1", "main")
    assert record is not None
    assert record.offer is None
    await store.put([ToolOfferRow("t1", "s1", "main", ""), ToolOfferRow("t1", "s1", "main", "5b5d")])
    await store.put([ToolOfferRow("t1", "s1", "main", "7b7d"), ToolOfferRow("t1", "s1", "unknown", "5b5d")])
    record, fork = await store.read_branch("t1", "s1", "main"), await store.read_branch("t1", "s1", "fork")
    assert record is not None
    assert fork is not None
    assert (record.offer, fork.offer) == ("", None)


@pytest.mark.usefixtures("begun")
async def test_the_newest_version_of_a_scratchpad_counts_and_the_first_of_a_number_stands(store: Store) -> None:
    assert await store.read_scratchpad("t1", "s1") is None
    await store.put([pad(1, "one"), pad(2, ODD, "operator")])
    await store.put([pad(2, "of another replica")])
    assert await store.read_scratchpad("t1", "s1") == pad(2, ODD, "operator")
    await store.put([pad(n, f"text {n}") for n in range(3, 8)])
    assert [row.number for row in await store.read_scratchpad_versions("t1", "s1", 3)] == [7, 6, 5]
    assert [row.number for row in await store.read_scratchpad_versions("t1", "s1", 3, before=5)] == [4, 3, 2]
    assert await store.read_scratchpad("t1", "s2") is None
    assert await store.read_scratchpad("t2", "s1") is None


async def test_memos_are_listed_by_project_and_by_pages(store: Store) -> None:
    rows = [memo(f"m{n}", ODD, "even" if n % 2 == 0 else "odd") for n in range(7)]
    await store.put([*rows, memo("m1", tenant="t2")])
    assert await store.read_memos("t1") == rows
    assert await store.read_memos("t1", "odd") == rows[1::2]
    assert await store.read_memos("t1", limit=3) == rows[:3]
    assert await store.read_memos("t1", limit=3, after="m2") == rows[3:6]
    assert await store.read_memos("t1", "odd", 1, after="m1") == [rows[3]]
    assert await store.read_memo("t1", "m3") == rows[3]
    assert await store.read_memo("t1", "m9") is None
    assert await store.read_memo("t3", "m1") is None


async def test_the_newest_text_of_a_memo_stands(store: Store) -> None:
    await store.put([memo("m", "old", at=5.0), memo("m", "new", "other", at=6.0)])
    await store.put([memo("m", "late to arrive", at=5.5)])
    found = await store.read_memo("t1", "m")
    assert found == memo("m", "new", "other", at=6.0)


async def test_of_a_deleted_memo_nothing_is_left_and_it_does_not_come_back(store: Store) -> None:
    await store.put([memo("m", "secret", at=5.0)])
    await store.put([replace(memo("m", "secret", at=4.0), deleted=True)])
    await store.put([memo("m", "again", at=9.0)])
    assert await store.read_memo("t1", "m") is None
    assert await store.read_memos("t1") == []
    assert (await count_rows(store))["memos"] == 1
    rows = await store._fetch("SELECT content, tags, source_session, project FROM memos", ())
    assert [tuple(row) for row in rows] == [(b"", "[]", "", "")]


async def test_settings_of_a_session_are_kept_with_it(store: Store, make: RowFactory) -> None:
    await store.put([*make.begin(), SettingsRow("t1", "s1", '{"policy":"rolling"}'), SettingsRow("t1", "s9", "{}")])
    await store.put(make.begin(at=9.0))
    record = await store.read_session("t1", "s1")
    assert record is not None
    assert record.settings == '{"policy":"rolling"}'
    assert await store.read_session("t1", "s9") is None
    assert (await store.read_decisions("t1", "s9", "")).settings == "{}"


@pytest.mark.usefixtures("begun")
async def test_notes_come_in_their_order_until_they_are_withdrawn(store: Store) -> None:
    first = NoteRow("t1", "s1", "main", "n1", "feedback", ODD, 1.0)
    second = NoteRow("t1", "s1", "main", "n2", "note", "two", 2.0)
    await store.put([second, first, replace(first, branch="fork"), replace(first, tenant="t2")])
    assert await store.read_notes("t1", "s1", "main") == [first, second]
    await store.put([replace(first, text=""), replace(second, text="changed")])
    assert await store.read_notes("t1", "s1", "main") == [replace(second, text="changed")]
    assert await store.read_notes("t1", "s2", "main") == []


@pytest.mark.usefixtures("begun")
async def test_a_label_that_no_text_column_takes_is_put_right(store: Store) -> None:
    await store.put([pad(1, "text", "auth\ud800or\x00")])
    found = await store.read_scratchpad("t1", "s1")
    assert found is not None
    assert found.author == texts.sanitize_label("auth\ud800or\x00") == "auth?or?"
