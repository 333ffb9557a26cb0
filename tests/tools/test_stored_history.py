from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from proxy.chat.chain import public_id
from proxy.store import session_notes
from proxy.store.erasure import EraseMessageRow
from proxy.store.session_notes import HiddenRoundRow
from proxy.tools import stored_history
from tests.tools.stored_session import (
    CANARY,
    assistant,
    assistant_call,
    in_memory,
    make_dropped_edit,
    make_message_rows,
    make_tool_context,
    result,
    run_call,
    shared_file,
    store_messages,
    user,
)

TALK = [user("go"), assistant_call("read", '{"p": 1}', text="reading"), result("the file"), assistant("done")]


def table(lines: list[bytes]) -> list[dict[str, Any]]:
    return [dict(zip(stored_history.COLUMNS, json.loads(line), strict=True)) for line in lines]


async def test_rows_are_the_sessions_messages_in_order(tmp_path: Path) -> None:
    async with shared_file(tmp_path) as store:
        names = await store_messages(store, TALK)
        records, is_all = await stored_history.load_newest(make_tool_context(store))
        lines = stored_history.make_table_rows(records, [])
        assert is_all
        assert CANARY.encode() not in b"".join(lines)
        read = table(lines)
        assert [row["seq"] for row in read] == [1, 2, 3, 4]
        assert [row["id"] for row in read] == names
        assert [row["role"] for row in read] == ["user", "assistant", "tool", "assistant"]
        assert [row["content"] for row in read] == ["go", 'reading\n\n[call c1] read {"p": 1}', "the file", "done"]
        assert [row["status"] for row in read] == ["completed", "tool_call", "completed", "completed"]
        assert [row["tool_call_id"] for row in read] == [None, None, "c1", None]
        assert {row["group_id"] for row in read} == {"g1"}
        assert {row["parsing_strategy"] for row in read} == {"openai"}
        assert read[0]["created_at"] == "2023-11-14 22:13:20"


async def test_messages_that_left_the_prompt_are_marked() -> None:
    async with in_memory() as store:
        await store_messages(store, TALK)
        stored = make_message_rows(TALK)
        await store.put([make_dropped_edit(stored[1])])
        tool_context = make_tool_context(store)
        records, _ = await stored_history.load_newest(tool_context)
        read = table(
            stored_history.make_table_rows(records, [], await stored_history.load_prompt_membership(tool_context))
        )
        assert [row["status"] for row in read] == ["completed", "tool_call", "completed", "completed"]
        assert [row["in_prompt"] for row in read] == [1, 0, 1, 1]
        here = replace(tool_context, prompt_keys=[row.key for row in stored[:3]])
        read = table(stored_history.make_table_rows(records, [], await stored_history.load_prompt_membership(here)))
        assert [row["in_prompt"] for row in read] == [1, 0, 1, 0], "what stands in another branch is in no prompt"


async def test_withdrawn_messages_are_marked_as_dropped_and_restored_ones_are_not() -> None:
    async with in_memory() as store:
        await store_messages(store, TALK)
        stored = make_message_rows(TALK)
        wide = [msgspec.structs.replace(make_dropped_edit(row), branch="", stage="operator") for row in stored]
        back = msgspec.structs.replace(wide[3], version=2, action="withdrawn")
        await store.put([wide[1], wide[3], back])
        tool_context = make_tool_context(store)
        records, _ = await stored_history.load_newest(tool_context)
        read = table(
            stored_history.make_table_rows(records, [], await stored_history.load_prompt_membership(tool_context))
        )
        assert [row["status"] for row in read] == ["completed", "dropped", "completed", "completed"]
        assert [row["in_prompt"] for row in read] == [1, 0, 1, 1]


async def test_messages_that_the_operator_removed_are_not_listed() -> None:
    async with in_memory() as store:
        await store_messages(store, TALK)
        await store.put([EraseMessageRow("t1", "s1", make_message_rows(TALK)[0].key, b'{"role":"user","content":""}')])
        records, _ = await stored_history.load_newest(make_tool_context(store))
        assert [row["content"] for row in table(stored_history.make_table_rows(records, []))][-2:] == [
            "the file",
            "done",
        ]
        assert len(stored_history.make_table_rows(records, [])) == 3


async def test_the_newest_come_first_where_not_all_can_be_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_history, "PAGE_SIZE", 7)
    async with in_memory() as store:
        await store_messages(store, [user(f"message {n}") for n in range(50)])
        tool_context = make_tool_context(store)
        assert len((await stored_history.load_newest(tool_context))[0]) == 50
        records, is_all = await stored_history.load_newest(tool_context, 2500)
        assert not is_all
        assert [record.seq for record in records] == list(range(50, 50 - len(records), -1))
        assert 5 < len(records) < 15
        assert len((await stored_history.load_newest(tool_context, 1))[0]) == 1


def a_round(answer: str, **body: list[dict[str, Any]]) -> HiddenRoundRow:
    visible = make_message_rows([user("go"), assistant(answer)])
    texts = {name: [json.dumps(message) for message in messages] for name, messages in body.items()}
    return HiddenRoundRow("t1", "s1", visible[1].key, visible[0].key, "x1", json.dumps(texts).encode(), 1.0)


async def test_a_copy_of_only_some_of_many_rounds_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_notes, "MAX_PAGE_BYTES", 200)
    rows = []
    for n in range(9):
        hidden = [assistant_call("query_db", "{}", f"q{n}"), result(f"number {n}", f"q{n}"), assistant(str(n))]
        rows.append(msgspec.structs.replace(a_round(str(n), replaces=hidden), created_at=float(n)))
    async with in_memory() as store:
        await store_messages(store, [user("go")])
        await store.put(rows)
        tool_context = make_tool_context(store)
        rows.sort(key=lambda row: row.key)
        assert await stored_history.load_rounds(tool_context) == (rows, True)
        for n in (0, 8):
            _, (name, message) = stored_history.read_hidden_messages(rows[n])
            assert await stored_history.find_message(tool_context, name) == ("tool", message.text)
        assert await stored_history.find_message(tool_context, "zzzzzzzzzz") is None
        monkeypatch.setattr(stored_history, "MAX_ROUND_BYTES", len(rows[0].body) * 3)
        assert await stored_history.load_rounds(tool_context) == (rows[:3], False)
        found_rows = await run_call(tool_context, "query_db", sql="SELECT count(*) FROM messages")
        assert found_rows.startswith("[only 3 of this proxy's tool calls and results are searched; 1 row")


async def test_rounds_that_the_client_never_saw_precede_their_answer() -> None:
    async with in_memory() as store:
        await store_messages(store, [user("go"), assistant("It is 42.")])
        hidden = [assistant_call("query_db", '{"sql": "x"}', "q1"), result("42", "q1"), assistant("It is 42.")]
        row = a_round("It is 42.", replaces=hidden)
        records, _ = await stored_history.load_newest(make_tool_context(store))
        read = table(stored_history.make_table_rows(records, [row]))
        assert [(one["seq"], one["role"], one["status"]) for one in read] == [
            (1, "user", "completed"),
            (2, "assistant", "tool_call"),
            (2, "tool", "completed"),
            (2, "assistant", "completed"),
        ]
        # The ids are those that the woven history has.
        spliced = make_message_rows([user("go"), *hidden])
        assert [one["id"] for one in read[1:3]] == [public_id(one.key) for one in spliced[1:3]]


def test_our_results_beside_a_clients_calls_follow_the_answer_in_the_order_of_their_calls() -> None:
    both = assistant_call("query_db", "{}", "q1")
    both["tool_calls"] += (
        assistant_call("read", "{}", "c1")["tool_calls"] + assistant_call("recall", "{}", "q2")["tool_calls"]
    )
    row = a_round("x", replaces=[both], results=[result("second", "q2"), result("first", "q1")])
    assert [message.text for _, message in stored_history.read_hidden_messages(row)] == ["first", "second"]
    assert len({name for name, _ in stored_history.read_hidden_messages(row)}) == 2


@pytest.mark.parametrize(
    "body", [b"", b"[]", b'{"replaces": ["{}"]}', b'{"replaces": ["no JSON", 1]}', b'{"results": []}']
)
def test_a_round_that_cannot_be_read_hides_nothing(body: bytes) -> None:
    assert (
        list(stored_history.read_hidden_messages(HiddenRoundRow("t1", "s1", b"k" * 16, b"h" * 16, "x1", body, 1.0)))
        == []
    )


async def test_a_message_longer_than_a_cell_says_where_the_rest_is() -> None:
    async with in_memory() as store:
        names = await store_messages(store, [user("é" * 600_000)])
        records, _ = await stored_history.load_newest(make_tool_context(store))
        content = table(stored_history.make_table_rows(records, []))[0]["content"]
        assert len(content.encode()) < 1_000_000 - 1000
        assert content.endswith(f'[cut here; recall(id="{names[0]}") has all of it]')


def test_bytes_that_are_not_a_message_are_text() -> None:
    assert stored_history.format_stored_message(b"\xff no JSON") == "\ufffd no JSON"
    half = b'{"role": "user", "content": "a\\ud800b"}'
    assert stored_history.format_stored_message(half) == half.decode()
