"""Data derived from a conversation: answers once each, vectors by form, spending added up."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from proxy.store import encode, sql, sqlite_files, write_queue
from proxy.store.derived import (
    NO_CONVERSATION,
    NO_SESSION,
    ContextWindowRow,
    EmbeddingRow,
    HelperAnswerRow,
    SpendingRow,
)
from proxy.store.migrate import migrate
from proxy.store.reads import Store
from proxy.store.schema import MIGRATIONS
from tests.store.conftest import RowFactory, digest
from tests.stores import sqlite_store


def answer(
    ask: str, text: str = "A summary.", at: float = 1.0, tenant: str = "t1", session: str = "s1"
) -> HelperAnswerRow:
    return HelperAnswerRow(tenant, session, ask, "summary", "mini", 100, 20, 0.25, at, text)


def vector(form: bytes, made: bytes = b"\x00\x00\x80\x3f", model: str = "small") -> EmbeddingRow:
    return EmbeddingRow("t1", "s1", model, form, made, 1.0)


def spending(day: int, dollars: float, kind: str = "summary") -> SpendingRow:
    return SpendingRow(*NO_CONVERSATION, day, kind, 1, 100, 20, dollars)


def test_derived_rows_fill_the_placeholders_of_their_statements() -> None:
    for text, args in encode.build_statements([answer("a"), vector(b"f"), spending(1, 0.5)]):
        assert {len(one) for one in args} == {text.count("$")}
    assert (
        write_queue.count_bytes([answer("a", "x" * 30), vector(b"f", b"y" * 40), spending(1, 1)])
        == 70 + 3 * write_queue.ROW_OVERHEAD
    )


@pytest.mark.usefixtures("begun")
async def test_the_first_answer_to_an_ask_stands_and_is_found_by_its_name(store: Store) -> None:
    odd = "a\ud800b\x00c\U0001f600"
    await store.put([answer("a", odd)])
    await store.put([answer("a", "another")])
    assert await store.read_helper_answer("t1", "s1", "a") == odd
    assert await store.read_helper_answer("t1", "s1", "b") is None


async def test_answers_never_cross_a_session_or_a_tenant(store: Store, make: RowFactory) -> None:
    await store.put([*make.begin(), answer("a", session="s2"), answer("a", tenant="t2")])
    assert await store.read_helper_answer("t1", "s1", "a") is None
    record = await store.read_branch("t1", "s1", "main")
    assert record is not None
    assert record.helper_answers == {}


async def test_a_branch_comes_back_with_the_newest_answers_of_its_session(store: Store, make: RowFactory) -> None:
    count = sql.MAX_HELPER_ANSWERS + 5
    await store.put([*make.begin(), *(answer(f"a{n}", f"text {n}", at=float(n)) for n in range(count))])
    record = await store.read_branch("t1", "s1", "main")
    assert record is not None
    assert list(record.helper_answers.items()) == [(f"a{n}", f"text {n}") for n in range(5, count)]
    whole = await store.read_session("t1", "s1")
    assert whole is not None
    assert whole.counts["helper_answers"] == count


@pytest.mark.usefixtures("begun")
async def test_vectors_are_kept_once_for_each_model_and_form(store: Store) -> None:
    forms = [digest("form", n) for n in range(70)]
    await store.put([vector(form, b"%04d" % n) for n, form in enumerate(forms)])
    await store.put([vector(forms[0], b"late"), vector(forms[1], b"othr", "large")])
    found = await store.read_embeddings("t1", "s1", "small", [*forms, digest("new")])
    assert found == {form: b"%04d" % n for n, form in enumerate(forms)}
    assert await store.read_embeddings("t1", "s1", "large", forms) == {forms[1]: b"othr"}
    assert await store.read_embeddings("t1", "s2", "small", forms) == {}
    assert await store.read_embeddings("t2", "s1", "small", forms) == {}
    assert await store.read_embeddings("t1", "s1", "small", []) == {}


async def test_spending_is_added_up_by_day(store: Store) -> None:
    await store.put([spending(7, 0.25), spending(7, 0.5), spending(7, 1.0, "reflection"), spending(8, 9.0)])
    await store.put([spending(7, 0.25)])
    assert await store.sum_spending(7) == 2.0
    assert await store.sum_spending(8) == 9.0
    assert await store.sum_spending(9) == 0.0


async def test_the_newest_window_that_an_upstream_has_named_stands(store: Store) -> None:
    def window(upstream: str, tokens: int, at: float, tenant: str = "t") -> ContextWindowRow:
        return ContextWindowRow(tenant, NO_SESSION, upstream, "m", tokens, at)

    await store.put([window("a", 8_000, 1.0), window("b", 4_000, 2.0)])
    await store.put([window("a", 16_000, 3.0)])
    assert await store.read_context_windows(0.0) == [window("b", 4_000, 2.0), window("a", 16_000, 3.0)]
    assert await store.read_context_windows(2.5) == [window("a", 16_000, 3.0)]
    await store.put([window("a", 4_000, 4.0, "other")])
    assert await store.read_context_windows(2.5) == [window("a", 16_000, 3.0), window("a", 4_000, 4.0, "other")]
    await store.delete_session("other", NO_SESSION)
    assert len(await store.read_context_windows(2.5)) == 2
    await store.delete_tenant("other")
    assert await store.read_context_windows(2.5) == [window("a", 16_000, 3.0)]


async def test_a_store_of_version_1_gets_the_tables_and_keeps_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite3"
    sqlite_files.prepare_files(path)
    await migrate(path, MIGRATIONS[:1])
    connection = sqlite3.connect(path)
    connection.execute("INSERT INTO sessions VALUES ('t1', 's1', 1, 2.0, '{}')")
    connection.commit()
    connection.close()
    store = sqlite_store(path)
    await store.open()
    await store.put([answer("a")])
    assert await store.read_helper_answer("t1", "s1", "a") == "A summary."
    record = await store.read_session("t1", "s1")
    assert record is not None
    assert record.counts["helper_answers"] == 1
    await store.close()
