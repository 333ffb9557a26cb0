from __future__ import annotations

import json

from proxy.dialects.completions.request import read_message
from proxy.tools.tool_context import ToolContext
from tests.tools.stored_session import in_memory, make_tool_context, read_error, run_call, user

FACT = "The printers only read UTF-16, since their firmware is from 2003"


async def saved(context: ToolContext) -> list[tuple[str, str, str]]:
    return [(row.content, row.tags, row.source_session) for row in await context.store.read_memos(context.tenant)]


async def test_a_memo_is_kept_with_its_tags_and_where_it_comes_from() -> None:
    async with in_memory() as store:
        context = make_tool_context(store)
        text = await run_call(context, "save_memo", content=f" {FACT}\u200b\n", tags=["Old Printers", "gotcha"])
        assert text.startswith("[saved: memo ")
        assert text.endswith(", tags old-printers, gotcha]")
        assert await saved(context) == [(FACT, '["old-printers","gotcha"]', "s1")]
        assert context.metrics.memos_total.labels("saved")._value.get() == 1


async def test_tags_may_come_as_one_text() -> None:
    async with in_memory() as store:
        context = make_tool_context(store)
        await run_call(context, "save_memo", content=FACT, tags="printers, gotcha")
        assert (await saved(context))[0][1] == '["printers","gotcha"]'


async def test_nearly_the_same_again_is_one_memo() -> None:
    async with in_memory() as store:
        context = make_tool_context(store)
        await run_call(context, "save_memo", content=FACT, tags=["printers"])
        text = await run_call(
            make_tool_context(store, session="s2"), "save_memo", content=FACT.replace("2003", "2004"), tags=["firmware"]
        )
        assert "in place of one" in text
        assert await saved(context) == [(FACT.replace("2003", "2004"), '["firmware","printers"]', "s2")]


async def test_projects_are_kept_apart() -> None:
    async with in_memory() as store:
        await run_call(make_tool_context(store), "save_memo", content=FACT, tags=[])
        await run_call(make_tool_context(store, project="shop"), "save_memo", content=FACT, tags=[])
        assert len(await store.read_memos("t1")) == 2
        assert [row.content for row in await store.read_memos("t1", "shop")] == [FACT]


async def test_junk_and_what_can_be_read_here_anyway_is_turned_away() -> None:
    async with in_memory() as store:
        prompt = [read_message(json.dumps(user(f"Note: {FACT}. Now go on.")).encode())]
        context = make_tool_context(store, prompt=prompt)
        assert "too short" in read_error(await run_call(context, "save_memo", content="use tabs", tags=[]))
        assert "too long" in read_error(await run_call(context, "save_memo", content="word like this " * 400, tags=[]))
        assert "your own words" in read_error(await run_call(context, "save_memo", content=FACT, tags=[]))
        assert await saved(context) == []
        assert context.metrics.memos_total.labels("refused")._value.get() == 3


async def test_no_more_are_kept_than_may_be() -> None:
    async with in_memory() as store:
        context = make_tool_context(store, memos={"keep": 1})
        await run_call(context, "save_memo", content=FACT, tags=[])
        other = "Deploys go through staging, because production has no rollback"
        assert "no more can be" in read_error(await run_call(context, "save_memo", content=other, tags=[]))
        assert "in place of one" in await run_call(context, "save_memo", content=FACT, tags=["again"])


async def test_a_guessed_session_saves_nothing() -> None:
    async with in_memory() as store:
        context = make_tool_context(store, explicit=False)
        assert "not open" in read_error(await run_call(context, "save_memo", content=FACT, tags=[]))
        assert await saved(context) == []
