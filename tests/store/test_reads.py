"""Every method of a store, the same on each backend."""

from __future__ import annotations

import asyncio
import time

import pytest
from msgspec.structs import fields, replace

from proxy.errors import StoreUnavailable
from proxy.store import sql
from proxy.store.base import DecisionRows, SessionRow
from proxy.store.erasure import EraseMessageRow
from proxy.store.in_memory import InMemoryStore
from proxy.store.reads import Store
from proxy.store.session_notes import NoteRow, SettingsRow
from tests.store.conftest import RowFactory, digest
from tests.stores import count_rows


async def test_a_message_is_stored_once_however_often_it_is_put(store: Store, make: RowFactory) -> None:
    rows = make.line(5)
    for upto in range(1, 6):
        await store.put([*make.begin(), *rows[:upto]])
    assert (await count_rows(store))["messages"] == 5
    assert [record.seq for record in await store.read_chain("t1", "s1", rows[-1].key)] == [1, 2, 3, 4, 5]


@pytest.mark.usefixtures("begun")
async def test_seq_counts_in_the_order_of_storing_and_by_session(store: Store, make: RowFactory) -> None:
    other = RowFactory(session="s2")
    for row in make.line(3):
        await store.put([row, other.message(row.key, row.parent, row.position)])
    for place in ("s1", "s2"):
        assert [record.seq for record in await store.read_chain("t1", place, digest("m", 2))] == [1, 2, 3]


@pytest.mark.usefixtures("begun")
async def test_a_message_stored_twice_keeps_its_first_body(store: Store, make: RowFactory) -> None:
    key = digest("k")
    await store.put([make.message(key, body=b"first")])
    await store.put([make.message(key, body=b"second")])
    assert (await store.read_chain("t1", "s1", key))[0].body == b"first"


@pytest.mark.usefixtures("begun")
async def test_a_message_comes_back_field_for_field(store: Store, make: RowFactory) -> None:
    row = make.message(digest("k"), body=b'\xff\x00{"nan":NaN}', answer=True, reached=False)
    await store.put([row])
    (record,) = await store.read_chain("t1", "s1", row.key)
    for name in row.__struct_fields__:
        assert getattr(record, name) == getattr(row, name), name
    assert record.answer is True
    assert record.reached is False


@pytest.mark.usefixtures("begun")
async def test_a_chain_runs_from_the_root_to_the_node_and_leaves_branches_out(store: Store, make: RowFactory) -> None:
    rows = make.line(6)
    branch = make.message(digest("branch"), rows[2].key, 3, body=b"branch")
    await store.put([*rows, branch])
    assert [r.body for r in await store.read_chain("t1", "s1", rows[5].key)] == [b"body %d" % n for n in range(6)]
    assert [r.body for r in await store.read_chain("t1", "s1", branch.key)] == [
        b"body 0",
        b"body 1",
        b"body 2",
        b"branch",
    ]
    assert await store.read_chain("t1", "s1", digest("unknown")) == []
    assert await store.read_chain("t1", "s2", rows[5].key) == []
    assert await store.read_chain("t2", "s1", rows[5].key) == []


@pytest.mark.usefixtures("begun")
async def test_a_chain_ends_where_a_message_is_its_own_parent(store: Store, make: RowFactory) -> None:
    key = digest("loop")
    await store.put([make.message(key, key)])
    assert [record.key for record in await store.read_chain("t1", "s1", key)] == [key]


@pytest.mark.parametrize("count", [1, 8, 9, 64, 65, 130, 500])
async def test_find_gives_the_deepest_stored_nodes_first(store: Store, make: RowFactory, count: int) -> None:
    rows = make.line(count)
    unknown = [digest("new", n) for n in range(3)]
    await store.put([*make.begin(), *rows])
    for session in ("s1", None):
        hits = await store.find_chain_hits("t1", [*(row.key for row in rows), *unknown], session)
        expected = [row for row in reversed(rows) if session or row.answer][: sql.MAX_HITS]
        assert [(hit.position, hit.key, hit.answer) for hit in hits] == [
            (row.position, row.key, row.answer) for row in expected
        ]
        assert {hit.branch for hit in hits} <= {"main"}


async def test_find_reaches_a_known_node_before_hundreds_of_unknown_keys(store: Store, make: RowFactory) -> None:
    rows = make.line(3)
    await store.put([*make.begin(), *rows])
    keys = [*(row.key for row in rows), *(digest("new", n) for n in range(600))]
    assert [hit.position for hit in await store.find_chain_hits("t1", keys, "s1")] == [2, 1, 0]
    assert [hit.position for hit in await store.find_chain_hits("t1", keys, None)] == [1]
    assert await store.find_chain_hits("t1", [], None) == []


async def test_find_prefers_the_branch_that_was_used_last(store: Store) -> None:
    key = digest("shared")
    for number, last in ((1, 30.0), (2, 50.0), (3, 40.0)):
        one = RowFactory(session=f"s{number}")
        await store.put([*one.begin(), one.message(key, answer=True), one.tip(key, last)])
    hits = await store.find_chain_hits("t1", [key], None)
    assert [(hit.session, hit.last_at) for hit in hits] == [("s2", 50.0), ("s3", 40.0), ("s1", 30.0)]


async def test_find_gives_the_newest_of_very_many_sessions_that_share_their_first_answer(store: Store) -> None:
    root, second = digest("the daily check is done"), digest("second")
    for number in range(150):
        one = RowFactory(session=f"s{number:03}")
        await store.put([*one.begin(float(number)), one.message(root, at=float(number), answer=True)])
    deep = RowFactory(session="s007")
    await store.put([deep.message(second, root, 1, answer=True)])
    hits = await store.find_chain_hits("t1", [root], None)
    assert [hit.session for hit in hits] == [f"s{n:03}" for n in range(149, 149 - sql.MAX_HITS, -1)]
    hits = await store.find_chain_hits("t1", [root, second], None)
    assert hits[0].key == second
    assert len(hits) == sql.MAX_HITS


async def test_find_and_known_never_cross_a_tenant_or_a_named_session(store: Store, make: RowFactory) -> None:
    rows = make.line(4)
    keys = [row.key for row in rows]
    await store.put([*make.begin(), *rows])
    assert await store.find_chain_hits("t2", keys, None) == []
    assert await store.find_chain_hits("t1", keys, "s2") == []
    assert await store.find_known_messages("t2", "s1", keys) == {}
    assert await store.find_known_messages("t1", "s2", keys) == {}
    found = await store.find_known_messages("t1", "s1", [*keys, digest("new")])
    assert set(found) == set(keys)
    assert all(one.form and one.branch and one.strategy for one in found.values())


async def test_a_branch_comes_back_with_its_head_edits_and_states(store: Store, make: RowFactory) -> None:
    keys = [digest("k", n) for n in range(3)]
    await store.put(make.begin())
    fresh = await store.read_branch("t1", "s1", "main")
    assert fresh is not None
    assert (fresh.tip, fresh.answer, fresh.last_at, fresh.stopped) == (b"", None, 1.0, None)
    await store.put([make.edit(keys[0]), make.edit(keys[1]), make.state(keys[1], "one", at=9.0)])
    await store.put([make.edit(keys[0], 2, None), make.state(keys[2], "two", at=8.0)])
    await store.put([make.tip(keys[2], 7.0, stopped="upstream_reject")])
    record = await store.read_branch("t1", "s1", "main")
    assert record is not None
    assert (record.tip, record.answer, record.last_at, record.stopped) == (keys[2], b"answer", 7.0, "upstream_reject")
    assert [(edit.key, edit.version, edit.text, number) for edit, number in record.edits] == [
        (keys[1], 1, "short", 2),
        (keys[0], 2, None, 3),
    ]
    assert [state.text for state in record.states] == ["one", "two"]
    assert await store.read_branch("t1", "s1", "other") is None


@pytest.mark.usefixtures("begun")
async def test_the_first_edit_of_a_version_stands(store: Store, make: RowFactory) -> None:
    key = digest("k")
    await store.put([make.edit(key, text="mine")])
    await store.put([make.edit(key, text="theirs")])
    ((edit, number),) = await store.read_edits("t1", "s1", "main")
    assert (edit, number) == (make.edit(key, text="mine"), 1)


@pytest.mark.usefixtures("begun")
async def test_edits_as_they_were_when_a_past_exchange_ran(store: Store, make: RowFactory) -> None:
    a, b = digest("a"), digest("b")
    await store.put([make.edit(a), make.edit(b), make.edit(a, 2, "shorter"), make.edit(a, branch="other")])
    assert [e.text for e, _ in await store.read_edits("t1", "s1", "main", 1)] == ["short"]
    assert [(e.key, e.version) for e, _ in await store.read_edits("t1", "s1", "main", 2)] == [(a, 1), (b, 1)]
    assert [(e.key, e.version) for e, _ in await store.read_edits("t1", "s1", "main", 3)] == [(b, 1), (a, 2)]
    assert await store.read_edits("t1", "s1", "main", 0) == []
    assert [number for _, number in await store.read_edits("t1", "s1", "other")] == [1]


@pytest.mark.usefixtures("begun")
async def test_text_that_json_can_carry_but_a_text_column_cannot_survives(store: Store, make: RowFactory) -> None:
    odd = "a\ud800b\x00c\U0001f600"
    await store.put([make.branch(), make.edit(digest("k"), text=odd), make.state(digest("k"), odd)])
    record = await store.read_branch("t1", "s1", "main")
    assert record is not None
    assert record.edits[0][0].text == odd
    assert record.states[0].text == odd


@pytest.mark.usefixtures("begun")
async def test_an_exchange_is_open_until_its_outcome_comes(store: Store, make: RowFactory) -> None:
    begun = replace(make.exchange("x1", time.time() + 1), predicted=700)  # a request of this process
    ended = replace(make.outcome("x1"), fallback="error", note="a note", meter='{"completion":50}')
    for row in (begun, ended):  # a column with its default could be one that is not stored, or another one's
        for field in fields(row):
            assert getattr(row, field.name) not in (None, field.default), field.name
    await store.put([begun])
    opened = await store.read_exchange("t1", "s1", "x1")
    assert opened is not None
    assert (opened.status, opened.http_status, opened.ended_at) == ("open", None, None)
    assert opened.model == "gpt-5"
    await store.put([ended, make.exchange("x1", model="other")])
    closed = await store.read_exchange("t1", "s1", "x1")
    assert closed is not None
    for name in begun.__struct_fields__:
        assert getattr(closed, name) == getattr(begun, name), name
    for name in ended.__struct_fields__:
        assert getattr(closed, name) == getattr(ended, name), name
    assert await store.read_exchange("t1", "s1", "x2") is None


@pytest.mark.usefixtures("begun")
async def test_exchanges_are_listed_newest_first_and_by_pages(store: Store, make: RowFactory) -> None:
    await store.put([make.exchange(f"x{n}", at=float(n)) for n in range(10)])
    first = await store.read_exchanges("t1", "s1", 4)
    assert [e.exchange for e in first] == ["x9", "x8", "x7", "x6"]
    rest = await store.read_exchanges("t1", "s1", before=first[-1].started_at)
    assert [e.exchange for e in rest] == ["x5", "x4", "x3", "x2", "x1", "x0"]
    assert await store.read_exchanges("t2", "s1") == []


async def test_a_session_comes_back_with_its_branches_and_counts(store: Store, make: RowFactory) -> None:
    await store.put([*make.begin(), make.branch("fork", 2.0, "main"), *make.line(3), make.exchange("x1")])
    await store.put([SessionRow("t1", "s1", False, 99.0, '{"later":1}')])
    record = await store.read_session("t1", "s1")
    assert record is not None
    assert (record.explicit, record.created_at, record.settings) == (True, 1.0, "{}")
    assert [(branch.branch, branch.parent, branch.kind) for branch in record.branches] == [
        ("main", None, "main"),
        ("fork", "main", "fork"),
    ]
    assert record.counts["messages"] == 3
    assert record.counts["exchanges"] == 1
    assert record.counts["branches"] == 2
    assert await store.read_session("t2", "s1") is None


@pytest.mark.usefixtures("begun")
async def test_forms_are_kept_by_their_hash(store: Store, make: RowFactory) -> None:
    await store.put([make.form(b"tools"), make.form(b"tools"), make.form(b"\x00\xff")])
    assert await store.read_form("t1", "s1", digest(b"tools")) == b"tools"
    assert await store.read_form("t1", "s1", digest(b"\x00\xff")) == b"\x00\xff"
    assert await store.read_form("t1", "s2", digest(b"tools")) is None
    assert (await count_rows(store))["forms"] == 2


async def test_an_item_is_stored_whole_or_not_at_all(store: Store, make: RowFactory) -> None:
    bad = make.exchange("x1", model=None)  # type: ignore[arg-type]
    with pytest.raises(StoreUnavailable):
        await store.put([*make.line(2), bad])
    counts = await count_rows(store)
    assert (counts["messages"], counts["exchanges"]) == (0, 0)


@pytest.mark.usefixtures("begun")
async def test_one_bad_row_spoils_only_its_own_future(store: Store, make: RowFactory) -> None:
    bad = [
        [make.exchange("x1", model=None)],  # type: ignore[arg-type]
        [make.exchange("\ud800")],
        [make.message(digest("big"), position=1 << 70)],
        ["not a row"],
    ]
    futures = []
    for number, row in enumerate(make.line(8)):
        futures.append(store.put([row]))
        if number < len(bad):
            futures.append(store.put(bad[number]))  # type: ignore[arg-type]
    results = await asyncio.gather(*futures, return_exceptions=True)
    assert [isinstance(result, StoreUnavailable) for result in results] == [False, True] * 4 + [False] * 4
    assert (await count_rows(store))["messages"] == 8
    assert store.healthy
    assert store.dropped == 4


async def test_a_lost_item_leaves_a_gap_with_its_exchange_and_size(store: Store, make: RowFactory) -> None:
    with pytest.raises(StoreUnavailable):
        await store.put([make.form(b"x" * 1000), make.exchange("x7", model=None)])  # type: ignore[arg-type]
    await store.put(make.begin())
    for _ in range(100):
        if (await count_rows(store))["gaps"]:
            break
        await asyncio.sleep(0.01)
    record = await store.read_session("t1", "s1")
    assert record is not None
    assert record.counts["gaps"] == 1


@pytest.mark.usefixtures("begun")
async def test_a_put_that_nobody_waits_for_is_stored(store: Store, make: RowFactory) -> None:
    future = store.put(make.line(1))
    future.cancel()
    await store.put(make.begin())
    assert (await count_rows(store))["messages"] == 1


async def test_nothing_to_put_is_done_at_once(store: Store) -> None:
    await store.put([])


async def test_a_closed_store_refuses(store: Store, make: RowFactory) -> None:
    await store.close()
    await store.close()
    with pytest.raises(StoreUnavailable):
        await store.put(make.begin())
    with pytest.raises(StoreUnavailable):
        await count_rows(store)


async def test_what_cannot_be_asked_is_unavailable_and_not_a_fault(store: Store, make: RowFactory) -> None:
    with pytest.raises(StoreUnavailable):
        await store.read_branch("t1", "\ud800", "main")
    await store.put(make.begin())
    assert store.healthy


async def test_d7_what_is_out_of_a_branches_prompt_is_listed_with_stage_and_reason(
    store: Store, make: RowFactory
) -> None:
    rows = make.line(4)
    gone = [replace(make.edit(row.key, text=None), action="gone", reason=f"r{n}") for n, row in enumerate(rows)]
    back = replace(make.edit(rows[1].key, 2, None), action="withdrawn")
    other = replace(make.edit(rows[3].key, text=None, branch="other"), action="gone")
    await store.put([*make.begin(), *rows, gone[2], gone[0], gone[1], back, make.edit(rows[3].key), other])
    found = await store.read_left_out("t1", "s1", "main")
    assert [(one.key, one.stage, one.reason) for one in found] == [(rows[n].key, "mask", f"r{n}") for n in (0, 2)]
    assert (found[0].exchange, found[0].edited_at, found[0].seq) == ("x1", 2.0, 1)
    assert [one.key for one in await store.read_left_out("t1", "s1", "other")] == [rows[3].key]
    assert await store.read_left_out("t2", "s1", "main") == []


@pytest.mark.usefixtures("begun")
async def test_what_was_decided_is_read_in_one_trip_as_in_three(store: Store, make: RowFactory) -> None:
    assert await store.read_decisions("t1", "s1", "") == DecisionRows("{}", [], [])
    odd = "a\ud800b\x00c"
    notes = [
        NoteRow("t1", "s1", "", "b", "note", odd, 3.0),
        NoteRow("t1", "s1", "", "a", "feedback", "x", 3.0),
        NoteRow("t1", "s1", "", "c", "note", "", 1.0),
    ]
    elsewhere = [NoteRow("t1", "s1", "main", "d", "note", "x", 1.0), NoteRow("t2", "s1", "", "e", "note", "x", 1.0)]
    edits = [make.edit(digest(n), version, text, "") for n, version, text in ((1, 1, odd), (2, 1, None), (1, 2, None))]
    pin = replace(edits[1], version=7, action="pin")
    await store.put([*make.begin(), *notes, *elsewhere, *edits, pin, make.edit(digest(3))])
    await store.put([SettingsRow("t1", "s1", '{"window":3}')])
    found = await store.read_decisions("t1", "s1", "")
    assert found.settings == '{"window":3}'
    assert found.edits == await store.read_edits("t1", "s1", "")
    assert [number for _, number in found.edits] == [2, 3, 4]
    assert found.notes == await store.read_notes("t1", "s1", "") == [notes[1], notes[0]]
    assert await store.read_decisions("t2", "s1", "") == DecisionRows("{}", [], elsewhere[1:])


async def test_the_newest_states_of_a_session_are_those_of_its_branches_with_one_system_prompt(
    store: Store, make: RowFactory
) -> None:
    other = replace(make.branch("other"), system=b"another")
    side = replace(make.branch("side"), kind="side")
    more = [make.branch("more"), other, side]
    rows = [
        make.state(key, text, branch, at)
        for key, text, branch, at in (
            (b"a", "first", "main", 1.0),
            (b"b", "newest", "more", 3.0),
            (b"c", "second", "main", 2.0),
            (b"d", "of another", "other", 4.0),
            (b"e", "of a side call", "side", 5.0),
        )
    ]
    await store.put([*make.begin(), *more, *rows])
    system = make.branch("main").system
    found = await store.read_newest_states("t1", "s1", system, 9)
    assert [(row.branch, row.key, row.text) for row in found] == [
        ("more", b"b", "newest"),
        ("main", b"c", "second"),
        ("main", b"a", "first"),
    ]
    assert await store.read_newest_states("t1", "s1", system, 1) == found[:1]
    assert (
        await store.read_newest_states("t1", "s2", system, 9)
        == await store.read_newest_states("t2", "s1", system, 9)
        == []
    )


async def test_a_message_that_a_gateway_got_back_is_found_by_the_beginning_of_its_key(
    store: Store, make: RowFactory
) -> None:
    key, asked = digest("returned"), digest("asked by the client")
    text = b'{"role":"tool","tool_call_id":"c","content":"whole"}'
    other = RowFactory(session="s2")
    await store.put([*make.begin(), make.message(key, body=text, answer=True), make.message(asked, answer=False)])
    await store.put([*other.begin(), other.message(key, body=text, at=9.0, answer=True)])
    found = await store.find_returned_message("t1", key[:8])
    assert found is not None
    assert (found.session, found.key, found.body) == ("s2", key, text)
    assert await store.find_returned_message("t1", asked[:8]) is None, "nobody got it back"
    assert await store.find_returned_message("t2", key[:8]) is None
    assert await store.find_returned_message("t1", bytes(8)) is None
    for session in ("s1", "s2"):
        await store.put([EraseMessageRow("t1", session, key, b'{"role":"tool","content":"gone"}')])
    assert await store.find_returned_message("t1", key[:8]) is None, "it was removed for good"


async def test_a_request_that_is_worked_on_is_open_and_one_older_than_any_request_is_lost(
    store: Store, make: RowFactory
) -> None:
    now = time.time()
    await store.put([*make.begin(), make.exchange("new", now + 1), make.exchange("old", now - 9000)])
    found = await store.read_exchanges("t1", "s1")
    kept_by_this_process = isinstance(store, InMemoryStore)
    assert [(one.exchange, one.status) for one in found] == [
        ("new", "open"),
        ("old", "open" if kept_by_this_process else "lost"),
    ]
    await store.put([make.outcome("old")])
    ended = await store.read_exchange("t1", "s1", "old")
    assert ended is not None
    assert ended.status == "complete", "an outcome that comes late after all is the truth"
