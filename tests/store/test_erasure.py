"""An erased message is found nowhere, on every backend, and the messages around it are as they were."""

from __future__ import annotations

from proxy.store import encode
from proxy.store.base import Row
from proxy.store.derived import EmbeddingRow, HelperAnswerRow, IterationRow
from proxy.store.erasure import EraseFormRow, EraseMessageRow, EraseRoundRow
from proxy.store.reads import Store
from proxy.store.session_notes import HiddenRoundRow
from tests.store.conftest import RowFactory, digest

GONE = b'{"role":"user","content":"gone"}'


def test_the_rows_fill_the_placeholders_of_their_statements() -> None:
    rows: list[Row] = [
        EraseMessageRow("t1", "s1", b"k", GONE),
        EraseFormRow("t1", "s1", b"f", GONE),
        EraseRoundRow("t1", "s1", b"k", GONE),
    ]
    made = encode.build_statements(rows)
    assert len(made) == 9
    for text, args in made:
        assert [len(one) for one in args] == [text.count("$")]


def answer(name: str, kind: str) -> HelperAnswerRow:
    return HelperAnswerRow("t1", "s1", name, kind, "m", 1, 1, 0.0, 1.0, "text")


async def test_all_that_was_made_of_a_message_is_blank(store: Store, make: RowFactory) -> None:
    secret = b'{"role":"user","content":"zanzibar"}'
    first, second = make.message(digest("a"), body=secret), make.message(digest("b"), digest("a"), 1)
    await store.put(
        [
            *make.begin(), first, second,
            make.edit(first.key, text="zanzibar short"), make.edit(second.key, text="stays"),
            make.state(first.key, "Goal: zanzibar"), make.state(second.key, "Goal: stays"),
            IterationRow("t1", "s1", "main", first.key, 1, "a1", 1.0, b"zanzibar"),
            IterationRow("t1", "s1", "main", second.key, 2, "a2", 1.0, b"stays"),
            *(answer(name, kind) for name, kind in (("a1", "reflection"), ("a2", "reflection"), ("a3", "summary"))),
            EmbeddingRow("t1", "s1", "m", first.form, b"0000", 1.0),
            HiddenRoundRow("t1", "s1", first.key, b"h", "x", b'{"replaces":["zanzibar"]}', 1.0),
            make.form(b"zanzibar too"),
        ]
    )  # fmt: skip
    assert await store.search("t1", "s1", "zanzibar")
    await store.put(
        [
            EraseMessageRow("t1", "s1", first.key, GONE),
            EraseFormRow("t1", "s1", digest(b"zanzibar too"), b"gone"),
            EraseRoundRow("t1", "s1", first.key, b"{}"),
        ]
    )
    assert await store.search("t1", "s1", "zanzibar") == []
    known, other = await store.read_chain("t1", "s1", second.key)
    assert (known.body, known.status, known.form, known.seq) == (GONE, "removed", first.form, 1)
    assert (other.body, other.status) == (second.body, "completed")
    assert [edit.text for edit, _ in await store.read_edits("t1", "s1", "main")] == ["", "stays"]
    found = await store.read_branch("t1", "s1", "main")
    assert found is not None
    assert [state.text for state in found.states] == ["Goal: stays"]
    assert [one.body for one in await store.read_iterations("t1", "s1", "main")] == [b"stays"]
    assert [await store.read_helper_answer("t1", "s1", name) for name in ("a1", "a2", "a3")] == [None, "text", None]
    assert await store.read_embeddings("t1", "s1", "m", [first.form]) == {}
    assert [row.body for row in await store.read_rounds_page("t1", "s1")] == [b"{}"]
    assert await store.read_form("t1", "s1", digest(b"zanzibar too")) == b"gone"


async def test_a_message_that_comes_again_stays_blank(store: Store, make: RowFactory) -> None:
    row = make.message(digest("a"))
    await store.put([*make.begin(), row, EraseMessageRow("t1", "s1", row.key, GONE)])
    await store.put([row])
    assert [one.body for one in await store.read_chain("t1", "s1", row.key)] == [GONE]


async def test_other_sessions_and_tenants_keep_theirs(store: Store, make: RowFactory) -> None:
    other, stranger = RowFactory(session="s2"), RowFactory("t2")
    for one in (make, other, stranger):
        await store.put([*one.begin(), one.message(digest("a")), one.form(b"form")])
    await store.put([EraseMessageRow("t1", "s1", digest("a"), GONE), EraseFormRow("t1", "s1", digest(b"form"), b"")])
    for place in (("t1", "s2"), ("t2", "s1")):
        assert (await store.read_chain(*place, digest("a")))[0].body != GONE
        assert await store.read_form(*place, digest(b"form")) == b"form"
