"""A client that resends a message which an operator has removed does not bring its text back into the store."""

from __future__ import annotations

import json

from proxy.operator import edit_messages
from tests.operator.agent import find_messages, list_group_messages, run_conversation


async def test_a_removed_message_does_not_come_back_in_other_bytes() -> None:
    async with run_conversation("thrifty") as talk:
        await edit_messages.remove(talk.parts, talk.tenant, "s", [(await talk.groups())[0]])
        await talk.ask()
        talk.agent.messages[1]["content"] = [{"type": "text", "text": "Prompt number 0?"}]
        assert not find_messages(await talk.ask("As parts.")) & list_group_messages(0)
        body = {"model": "m", "messages": [*talk.agent.messages, {"role": "user", "content": "With blanks."}]}
        await talk.proxy.post(json.dumps(body, indent=1).encode(), b"x-context-session: s")
        assert not any("number 0" in (text or "") for text in talk.upstream.texts())
        for table in ("messages", "forms"):
            rows = await talk.proxy.rows(f"SELECT body FROM {table}")
            assert not any(b"number 0" in bytes(row[0]) for row in rows), table
