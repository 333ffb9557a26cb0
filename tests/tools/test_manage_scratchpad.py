from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from proxy.store.session_notes import ScratchpadRow
from tests.stores import sqlite_store
from tests.tools.stored_session import in_memory, make_session_rows, make_tool_context, read_error, run_call


async def test_a_scratchpad_is_read_replaced_and_appended_to() -> None:
    async with in_memory() as store:
        tool_context = make_tool_context(store)
        assert await run_call(tool_context, "manage_scratchpad", action="read") == "[the scratchpad is empty]"
        assert "has 5 of 8000 characters" in await run_call(
            tool_context, "manage_scratchpad", action="append", content="- one"
        )
        await run_call(tool_context, "manage_scratchpad", action="append", content="- two")
        assert await run_call(tool_context, "manage_scratchpad", action="read") == "- one\n- two"
        await run_call(tool_context, "manage_scratchpad", action="update", content="# Plan")
        assert await run_call(tool_context, "manage_scratchpad", action="read") == "# Plan"
        await run_call(tool_context, "manage_scratchpad", action="update", content="")
        assert await run_call(tool_context, "manage_scratchpad", action="read") == "[the scratchpad is empty]"
        kept = await store.read_scratchpad_versions("t1", "s1")
        assert [(row.text, row.author) for row in kept] == [
            ("", "model"), ("# Plan", "model"), ("- one\n- two", "model"), ("- one", "model"),
        ]  # fmt: skip


async def test_a_scratchpad_belongs_to_its_session_and_survives_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "store.sqlite3"
    store = sqlite_store(file)
    await store.open()
    await store.put(make_session_rows())
    await run_call(make_tool_context(store), "manage_scratchpad", action="update", content="mine")
    await store.close()
    store = sqlite_store(file)
    await store.open()
    try:
        assert await run_call(make_tool_context(store), "manage_scratchpad", action="read") == "mine"
        for other in ({"session": "s2"}, {"tenant": "t2"}):
            assert "empty" in await run_call(make_tool_context(store, **other), "manage_scratchpad", action="read")
    finally:
        await store.close()


async def test_an_update_that_does_not_fit_changes_nothing() -> None:
    async with in_memory() as store:
        tool_context = make_tool_context(store, tools={"scratchpad_chars": 200})
        await run_call(tool_context, "manage_scratchpad", action="update", content="x" * 150)
        text = read_error(await run_call(tool_context, "manage_scratchpad", action="append", content="y" * 100))
        assert "251 characters, 200 are allowed; nothing was changed" in text
        assert await run_call(tool_context, "manage_scratchpad", action="read") == "x" * 150


async def test_wrong_arguments_are_reported() -> None:
    async with in_memory() as store:
        tool_context = make_tool_context(store)
        assert "action (string), content (string, optional)" in read_error(
            await run_call(tool_context, "manage_scratchpad", action="erase")
        )
        assert "takes the text" in read_error(
            await run_call(tool_context, "manage_scratchpad", action="append", content=" \n")
        )


async def test_concurrent_appends_to_a_scratchpad_are_all_kept() -> None:
    async with in_memory() as store:
        tool_context = make_tool_context(store)
        await asyncio.gather(
            *(run_call(tool_context, "manage_scratchpad", action="append", content=f"- {n}") for n in range(3))
        )
        text = await run_call(tool_context, "manage_scratchpad", action="read")
        assert sorted(text.split("\n")) == ["- 0", "- 1", "- 2"]


async def test_after_a_concurrent_update_the_scratchpad_is_read_again(monkeypatch: Any) -> None:
    async with in_memory() as store:
        tool_context = make_tool_context(store)
        put, done = store.put, list[bool]()

        def first_the_operator(rows: Any) -> Any:
            if not done:
                done.append(True)
                put([ScratchpadRow("t1", "s1", 1, "operator's", "operator", 5.0)])
            return put(rows)

        monkeypatch.setattr(store, "put", first_the_operator)
        await run_call(tool_context, "manage_scratchpad", action="append", content="model's")
        assert await run_call(tool_context, "manage_scratchpad", action="read") == "operator's\nmodel's"
