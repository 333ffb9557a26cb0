from __future__ import annotations

import pytest
from msgspec.structs import replace

from proxy.store import encode, sql
from proxy.store.base import GapRow
from proxy.store.reads import Store
from proxy.store.write_queue import ROW_OVERHEAD, count_bytes
from tests.store.conftest import RowFactory, digest

make = RowFactory()


def test_rows_of_a_type_that_follow_each_other_are_one_statement() -> None:
    rows = [*make.begin(), *make.line(3), make.form(b"a"), make.form(b"b"), *make.line(1, "again")]
    made = encode.build_statements(rows)
    assert [(text, len(args)) for text, args in made] == [
        (sql.INSERT_SESSION, 1),
        (sql.INSERT_BRANCH, 1),
        (sql.INSERT_MESSAGE, 3),
        (sql.INSERT_FORM, 2),
        (sql.INSERT_MESSAGE, 1),
    ]


def test_every_row_type_fills_the_placeholders_of_its_statement() -> None:
    rows = [
        *make.begin(),
        make.tip(b"h", 1.0),
        *make.line(1),
        make.form(b"f"),
        make.edit(b"k"),
        make.edit(b"k", text=None),
        make.state(b"k", "text"),
        make.exchange("x"),
        make.outcome("x"),
        GapRow("t1", "s1", "x", 1, "reason", 1.0),
    ]
    for text, args in encode.build_statements(rows):
        assert {len(one) for one in args} == {text.count("$")}


def test_a_row_of_an_unknown_type_is_refused() -> None:
    with pytest.raises(KeyError):
        encode.build_statements(["row"])  # type: ignore[list-item]


def test_size_counts_bodies_and_an_overhead_for_each_row() -> None:
    assert count_bytes([]) == 0
    assert count_bytes([make.form(b"x" * 1000)]) == 1000 + ROW_OVERHEAD
    assert count_bytes([make.edit(b"k", text="x" * 50), make.edit(b"k", text=None)]) == 50 + 2 * ROW_OVERHEAD
    assert count_bytes([make.message(b"k", body=b"x" * 70), make.tip(b"k", 1.0)]) == 70 + 2 * ROW_OVERHEAD


def test_a_gap_says_whose_rows_they_were_and_of_which_exchange() -> None:
    rows = [*make.begin(), make.form(b"a"), make.exchange("x9", at=44.0)]
    assert encode.make_gap(rows, 5, "disk") == GapRow("t1", "s1", "x9", 5, "disk", 44.0)
    assert encode.make_gap([make.form(b"a")], 5, "disk") == GapRow("t1", "s1", "", 5, "disk", 0.0)


def test_there_is_no_gap_of_a_gap_or_of_nothing() -> None:
    assert encode.make_gap([], 0, "disk") is None
    assert encode.make_gap([GapRow("t", "s", "x", 1, "r", 1.0)], 1, "disk") is None
    assert encode.make_gap(["row"], 1, "disk") is None  # type: ignore[list-item]


def test_a_gap_can_be_stored_even_where_its_label_could_not() -> None:
    gap = encode.make_gap([RowFactory(session="s\ud800\x00").message(digest("k"))], 1, "bad")
    assert gap is not None
    assert gap.session == "s??"


async def test_labels_of_clients_and_upstreams_lose_only_what_no_text_column_takes(store: Store) -> None:
    odd, plain = "a\x00b\ud800é", "a?b?é"
    message = replace(make.message(digest("k")), role=odd, group_id=odd, call_id=odd)
    exchange = replace(make.exchange("x1"), model=odd, upstream=odd, policy=odd, strategy=odd)
    outcome = replace(make.outcome("x1"), finish=odd, fallback=odd, note=odd)
    await store.put([*make.begin(), message, replace(make.edit(digest("k")), reason=odd), exchange, outcome])
    (found,) = await store.read_messages("t1", "s1")
    assert (found.role, found.group_id, found.call_id) == (plain, plain, plain)
    record = await store.read_exchange("t1", "s1", "x1")
    assert record is not None
    assert (record.model, record.upstream, record.policy, record.strategy) == (plain,) * 4
    assert (record.finish, record.fallback, record.note) == (plain,) * 3
    assert (record.answer, record.ended_at) == (outcome.answer, outcome.ended_at)
    ((edit, _),) = await store.read_edits("t1", "s1", "main")
    assert edit.reason == plain


def test_of_the_heads_of_a_transaction_a_branches_last_one_counts() -> None:
    make = RowFactory()
    tips: encode.BranchTips = {}
    first = encode.build_statements([make.tip(b"1", 1.0), make.tip(b"fork", 2.0, "fork"), make.form(b"x")], tips)
    assert [text for text, _ in first] == [sql.INSERT_FORM]
    assert encode.build_statements([make.tip(b"2", 3.0)], tips) == []
    assert list(tips.values()) == [make.tip(b"2", 3.0), make.tip(b"fork", 2.0, "fork")]
    assert [text for text, _ in encode.build_statements(tuple(tips.values()))] == [
        sql.UPDATE_BRANCH_TIP,
        sql.TOUCH_SESSION,
    ]
    assert encode.build_statements([make.tip(b"3", 2.0)], tips) == [(sql.TOUCH_SESSION, [(3.0, "t1", "s1", 3.0)])]
