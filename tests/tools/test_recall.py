from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from proxy.chat.chain import public_id
from proxy.dialects.completions.request import read_message
from proxy.store.session_notes import HiddenRoundRow
from proxy.tools import stored_history
from proxy.tools.recall import HEADER_CHARS, RECALL
from proxy.tools.sandbox import TenantSlots
from tests.tools.stored_session import (
    CANARY,
    assistant,
    assistant_call,
    in_memory,
    make_message_rows,
    make_tool_context,
    read_error,
    result,
    run_call,
    shared_file,
    store_messages,
    user,
)

LONG = "".join(f"{n}: what stands in line {n}\n" for n in range(2000))


def body_of(text: str) -> str:
    """A result without the line that says what it is."""
    return text.split("\n", 1)[1]


@pytest.mark.parametrize("text", ["short", "", "é\U0001f600\n\n[page 2 of 3]", LONG])
async def test_all_pages_together_are_the_message(text: str) -> None:
    async with in_memory() as store:
        names = await store_messages(store, [user("go"), assistant_call("read", "{}"), result(text)])
        tool_context = make_tool_context(store)
        pages = -(-len(text) // (tool_context.settings.tools.result_chars - HEADER_CHARS)) or 1
        got = [await run_call(tool_context, "recall", id=names[2], page=n) for n in range(1, pages + 1)]
        assert "".join(map(body_of, got)) == text
        assert all(len(page) <= tool_context.settings.tools.result_chars for page in got)
        assert got[0].startswith(f"[message {names[2]} of role tool, page 1 of {pages}, {len(text)} characters in all")
        assert (f'next: recall(id="{names[2]}", page=2)' in got[0]) == (pages > 1)
        assert "next:" not in got[-1].split("\n")[0]


async def test_a_message_that_calls_is_reported_with_its_calls_its_thoughts_and_what_is_not_text() -> None:
    async with in_memory() as store:
        thinking = assistant_call("read", '{"path": "a.py"}', text="I read it.") | {"reasoning_content": "Where is it?"}
        picture = {"role": "user", "content": [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {}}]}
        names = await store_messages(store, [picture, thinking])
        assert body_of(await run_call(make_tool_context(store), "recall", id=names[1])) == (
            'I read it.\n\n[reasoning]\nWhere is it?\n\n[call c1] read {"path": "a.py"}'
        )
        assert body_of(await run_call(make_tool_context(store), "recall", id=names[0])) == (
            "see\n\n[an image or file of this message cannot be shown here]"
        )


@pytest.mark.parametrize("written", ["{0}", " {0} ", '"{0}"', "<{0}>"])
async def test_an_id_is_found_however_it_is_quoted(written: str) -> None:
    async with in_memory() as store:
        names = await store_messages(store, [user("found")])
        assert (
            body_of(await run_call(make_tool_context(store), "recall", id=written.format(names[0]).upper())) == "found"
        )


async def test_an_error_of_recall_says_what_to_do() -> None:
    async with in_memory() as store:
        names = await store_messages(store, [user("hi")])
        tool_context = make_tool_context(store)
        assert "copy it exactly" in read_error(await run_call(tool_context, "recall", id="aaaaaaaaaa"))
        assert "copy it exactly" in read_error(await run_call(tool_context, "recall", id="../../etc/passwd"))
        assert "has one page; there is no page 2" in read_error(
            await run_call(tool_context, "recall", id=names[0], page=2)
        )
        assert "no page 0" in read_error(await run_call(tool_context, "recall", id=names[0], page=0))
        assert "`id`" in read_error(await run_call(tool_context, "recall"))


async def test_messages_of_other_sessions_and_tenants_are_not_there(tmp_path: Path) -> None:
    async with shared_file(tmp_path) as store:
        await store_messages(store, [user("mine")])
        for tenant, session in (("t1", "s2"), ("t2", "s1")):
            theirs = await store_messages(store, [user(f"{CANARY} of {tenant} {session}")], tenant, session)
            assert CANARY not in await run_call(make_tool_context(store), "recall", id=theirs[0])


async def test_hidden_messages_are_found_by_their_id_too() -> None:
    async with in_memory() as store:
        shown = make_message_rows([user("go"), assistant("It is 42.")])
        spliced = make_message_rows(
            [user("go"), assistant_call("query_db", "{}", "q1"), result("hidden rows", "q1"), assistant("It is 42.")]
        )
        await store_messages(store, [user("go"), assistant("It is 42.")])
        replaces = [row.body.decode() for row in spliced[1:]]
        body = json.dumps({"replaces": replaces}).encode()
        await store.put([HiddenRoundRow("t1", "s1", shown[1].key, shown[0].key, "x1", body, 1.0)])
        assert (
            body_of(await run_call(make_tool_context(store), "recall", id=public_id(spliced[2].key))) == "hidden rows"
        )


def test_the_definition_of_recall_is_short() -> None:
    # Every request of a branch carries it: about 60 tokens.
    assert len(RECALL.definition) < 360


STEPS = [
    user("go"),
    assistant_call("read", '{"path": "src/a.py"}'),
    result("x = 1"),
    assistant_call("edit", '{"path": "src/a.py", "new": "x = 2"}'),
    result("edited"),
    assistant_call("edit", '{"path": "/w/src/a.py", "new": "x = 3"}'),
    result("edited"),
    assistant_call("edit", '{"path": "src/b.py", "new": "x = 3"}'),
    result("edited"),
]


def prompt_of(values: list[dict[str, object]]) -> dict[str, object]:
    """The values of a tool context for a request with these messages."""
    rows = make_message_rows(values)
    return {"prompt": [read_message(row.body) for row in rows], "prompt_keys": [row.key for row in rows]}


@pytest.mark.parametrize("in_prompt", [True, False], ids=["in the prompt", "in the store alone"])
async def test_recall_says_which_call_it_was_how_long_ago_and_what_has_changed_since(in_prompt: bool) -> None:
    async with in_memory() as store:
        names = await store_messages(store, STEPS)
        tool_context = make_tool_context(store, **(prompt_of(STEPS) if in_prompt else {}))
        head, text = (await run_call(tool_context, "recall", id=names[2])).split("\n")
        assert head == (
            f"[message {names[2]} of role tool, page 1 of 1, 5 characters in all; the result of read "
            '{"path": "src/a.py"}, 4 steps ago; edited 2 times since: read it again for its present text; '
            "the old text follows]"
        )
        assert text == "x = 1"
        fresh = await run_call(tool_context, "recall", id=names[8])
        assert fresh.startswith(
            f"[message {names[8]} of role tool, page 1 of 1, 6 characters in all; the result of edit "
        )
        assert "1 step ago; no call has changed it since]" in fresh
        assert "old" not in fresh


async def test_calls_of_other_sessions_do_not_make_a_recalled_text_old(tmp_path: Path) -> None:
    async with shared_file(tmp_path) as store:
        names = await store_messages(store, STEPS[:3])
        await store_messages(store, STEPS, "t1", "s2")
        await store_messages(store, STEPS, "t2", "s1")
        assert "no call has changed it since]" in await run_call(make_tool_context(store), "recall", id=names[2])


async def test_recalls_of_a_tenant_have_their_turns() -> None:
    async with in_memory() as store:
        names = await store_messages(store, [user("found")])
        tool_context = make_tool_context(store, read_slots=TenantSlots(1))
        async with tool_context.read_slots.hold("t2"):
            asked = asyncio.ensure_future(run_call(tool_context, "recall", id=names[0]))
            await asyncio.sleep(0.05)
            assert not asked.done()
        assert body_of(await asked) == "found"
        assert tool_context.read_slots.free == 1


async def test_the_search_for_later_edits_ends_after_so_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_history, "PAGE_SIZE", 2)
    monkeypatch.setattr(stored_history, "MAX_SEARCHED_BYTES", 10_000)
    read = [user("go"), assistant_call("read", '{"path": "a.py"}', "c1"), result(LONG, "c1")]
    edit = [assistant_call("edit", '{"path": "a.py", "old": "x", "new": "y"}', "c2"), result("done", "c2")]
    for between, counted in (("short", True), ("long " * 4000, False)):
        async with in_memory() as store:
            names = await store_messages(store, [*read, user(between), assistant("Well."), *edit])
            head = (await run_call(make_tool_context(store), "recall", id=names[2])).split("\n")[0]
            assert ("the old text follows" in head) is counted, head
