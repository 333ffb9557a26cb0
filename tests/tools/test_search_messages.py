from __future__ import annotations

from typing import Any

import pytest

from proxy.errors import ToolRefused
from proxy.store import reads
from proxy.tools.search_messages import SEARCH, SHOWN_CHARS
from tests.tools.stored_session import in_memory, make_tool_context, store_messages, user


async def search(tool_context: Any, arguments: str) -> str:
    return await SEARCH.call(arguments, tool_context)


async def test_messages_are_found_by_their_words_with_the_ids_that_recall_takes() -> None:
    async with in_memory() as store:
        names = await store_messages(
            store, [user("The printer is old."), user("Lunch at noon."), user("printer " * 200)]
        )
        tool_context = make_tool_context(store)
        lines = (await search(tool_context, '{"query": "printer"}')).splitlines()
        assert {line[9:19] for line in lines} == {names[0], names[2]}
        assert all(len(line) < SHOWN_CHARS + 80 for line in lines)
        assert len((await search(tool_context, '{"query": "printer", "limit": 1}')).splitlines()) == 1
        assert "no message" in await search(tool_context, '{"query": "elephant"}')


async def test_a_search_without_words_is_refused() -> None:
    async with in_memory() as store:
        with pytest.raises(ToolRefused):
            await search(make_tool_context(store), '{"query": " "}')


async def test_a_match_whose_text_is_not_read_is_named_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "MAX_PAGE_BYTES", 10)
    async with in_memory() as store:
        await store_messages(store, [user("The printer is old."), user("The printer is new.")])
        first, second = (await search(make_tool_context(store), '{"query": "printer"}')).splitlines()
    assert first.endswith((", user, 20 characters] The printer is old.", ", user, 20 characters] The printer is new."))
    assert second[19:] == ", user, long: see recall]"
