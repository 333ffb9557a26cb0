from __future__ import annotations

from typing import Any

import pytest

from proxy.errors import ToolRefused
from proxy.tools.search_messages import SEARCH, SHOWN_CHARS
from tests.tools.rig import desk_on, in_memory, put, user


async def search(desk: Any, arguments: str) -> str:
    return await SEARCH.call(arguments, desk)


async def test_messages_are_found_by_their_words_with_the_ids_that_recall_takes() -> None:
    async with in_memory() as store:
        names = await put(store, [user("The printer is old."), user("Lunch at noon."), user("printer " * 200)])
        desk = desk_on(store)
        lines = (await search(desk, '{"query": "printer"}')).splitlines()
        assert {line[9:19] for line in lines} == {names[0], names[2]}
        assert all(len(line) < SHOWN_CHARS + 80 for line in lines)
        assert len((await search(desk, '{"query": "printer", "limit": 1}')).splitlines()) == 1
        assert "no message" in await search(desk, '{"query": "elephant"}')


async def test_a_search_without_words_is_refused() -> None:
    async with in_memory() as store:
        with pytest.raises(ToolRefused):
            await search(desk_on(store), '{"query": " "}')
