from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from proxy.notes.memo_matching import Memo
from proxy.store.reads import Store
from proxy.tools import stored_memos
from proxy.tools.retrieve_memos import MAX_MEMOS
from tests.notes.memos import parse_memos
from tests.tools.stored_session import CANARY, in_memory, make_tool_context, read_error, run_call

MEMOS = [
    Memo("a", "The billing service retries webhooks three times", ("billing", "webhooks"), "s2", 1.0, 1.0),
    Memo("b", "The search service keeps its index on local disk", ("search",), "s3", 2.0, 2.0),
    Memo("c", "Invoices are rounded per line", ("billing",), "s3", 3.0, 3.0),
]


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    async with in_memory() as made:
        await made.put([stored_memos.make_memo_row("t1", memo) for memo in MEMOS])
        await made.put(
            [
                stored_memos.make_memo_row(
                    "t2", Memo("a", f"billing {CANARY} is theirs alone", ("billing",), "s1", 9.0, 9.0)
                )
            ]
        )
        yield made


def list_memo_ids(text: str) -> list[object]:
    return [one["id"] for one in parse_memos(text)]


async def test_memos_are_found_by_tag_by_words_or_newest_first(store: Store) -> None:
    tool_context = make_tool_context(store)
    assert list_memo_ids(await run_call(tool_context, "retrieve_memos", tags=["billing"])) == ["c", "a"]
    assert list_memo_ids(await run_call(tool_context, "retrieve_memos", tags=["Billing", "webhooks"])) == ["a", "c"]
    assert list_memo_ids(await run_call(tool_context, "retrieve_memos", tags="search")) == ["b"]
    assert list_memo_ids(
        await run_call(tool_context, "retrieve_memos", query="where is the index, on which disk?")
    ) == ["b"]
    assert list_memo_ids(await run_call(tool_context, "retrieve_memos")) == ["c", "b", "a"]


async def test_when_no_memo_fits_the_tags_are_listed(store: Store) -> None:
    text = await run_call(make_tool_context(store), "retrieve_memos", tags=["deploy"])
    assert text == "[none of 3 memos fits. Tags: billing, webhooks, search.]"
    assert await run_call(make_tool_context(store, project="x"), "retrieve_memos") == "[none of 0 memos fits.]"


async def test_memos_of_other_tenants_are_not_retrieved(store: Store) -> None:
    for arguments in ({}, {"tags": ["billing"]}, {"query": f"{CANARY} alone"}):
        assert CANARY not in await run_call(make_tool_context(store), "retrieve_memos", **arguments)


async def test_a_guessed_session_gets_none(store: Store) -> None:
    assert "not open" in read_error(await run_call(make_tool_context(store, explicit=False), "retrieve_memos"))


async def test_many_are_cut_to_a_few_whole_ones(store: Store) -> None:
    more = [Memo(f"z{n}", f"zeta number {n} " + "x" * 400, ("zeta",), "s", 1.0, 10.0 + n) for n in range(50)]
    await store.put([stored_memos.make_memo_row("t1", memo) for memo in more])
    shown: list[object] = []
    for limit in (2000, 64_000):
        text = await run_call(make_tool_context(store, tools={"result_chars": limit}), "retrieve_memos", tags=["zeta"])
        assert len(text) <= limit
        block, more_fit = text.rsplit("\n", 1)
        shown = list_memo_ids(block)
        assert shown == [f"z{n}" for n in range(49, 49 - len(shown), -1)]
        assert more_fit == f"[{50 - len(shown)} more fit: name more tags]"
    assert len(shown) == MAX_MEMOS


async def test_a_chinese_memo_is_saved_and_found_again() -> None:
    async with in_memory() as store:
        tool_context = make_tool_context(store)
        assert (
            await run_call(tool_context, "save_memo", content="支付服务的密钥保存在金库中不在配置里", tags=["支付"])
        ).startswith("[saved")
        for query in ("密钥", "支付服务的密钥在哪里"):
            assert len(list_memo_ids(await run_call(tool_context, "retrieve_memos", query=query))) == 1
        assert len(list_memo_ids(await run_call(tool_context, "retrieve_memos", tags=["支付"]))) == 1
        assert "[none of 1 memos fits." in await run_call(tool_context, "retrieve_memos", query="天气")
