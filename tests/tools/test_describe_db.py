from __future__ import annotations

from proxy.tools.describe_db import SCHEMA_TEXT
from proxy.tools.stored_history import COLUMNS
from tests.tools.stored_session import ask, in_memory, make_tool_context, put, user


async def test_it_tells_every_column_what_is_allowed_and_how_much_there_is() -> None:
    async with in_memory() as store:
        tool_context = make_tool_context(store)
        assert "stored so far: 0 messages" in await ask(tool_context, "describe_db")
        await put(store, [user("a"), user("b")])
        text = await ask(tool_context, "describe_db")
        assert "stored so far: 2 messages" in text
        assert all(f"\n  {column} " in SCHEMA_TEXT for column in COLUMNS)
        assert "messages_fts" in text
        assert "substr" in text
        assert len(text) < 3000
