from __future__ import annotations

from proxy.tools.describe_db import SCHEMA_TEXT
from proxy.tools.stored_history import COLUMNS
from tests.tools.stored_session import (
    in_memory,
    make_message_rows,
    make_tool_context,
    run_call,
    store_messages,
    user,
)


async def test_describe_db_lists_every_column_what_is_allowed_and_how_much_is_stored() -> None:
    async with in_memory() as store:
        tool_context = make_tool_context(store)
        assert "stored so far: 0 messages" in await run_call(tool_context, "describe_db")
        await store_messages(store, [user("a"), user("b")])
        text = await run_call(tool_context, "describe_db")
        assert "stored so far: 2 messages" in text
        assert all(f"\n  {column} " in SCHEMA_TEXT for column in COLUMNS)
        assert "messages_fts" in text
        assert "substr" in text
        assert len(text) < 3000


async def test_in_an_unnamed_session_only_readable_messages_count() -> None:
    async with in_memory() as store:
        await store_messages(store, [user("a"), user("b"), user("of another conversation")])
        own = [row.key for row in make_message_rows([user("a"), user("b")])]
        context = make_tool_context(store, explicit=False, prompt_keys=(*own, b"not stored yet"))
        assert "stored so far: 2 messages" in await run_call(context, "describe_db")
