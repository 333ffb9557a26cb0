from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from tests.tools.stored_session import in_memory, make_tool_context


async def test_the_session_of_a_tool_context_cannot_be_changed() -> None:
    async with in_memory() as store:
        tool_context = make_tool_context(store)
        with pytest.raises(FrozenInstanceError):
            tool_context.session = "s2"  # type: ignore[misc]
        assert (tool_context.offered_tools, tool_context.prompt) == (None, ())
