from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.dialects.completions.request import ERASED_TEXT
from proxy.exchange.rebuild_prompt import rebuild_prompt
from proxy.operator import edit_messages, show
from tests.operator.agent import find_messages, list_group_messages, run_conversation


@pytest.mark.parametrize("policy", ["thrifty", "reflective"])
async def test_every_form_of_what_is_removed_is_blank(policy: str) -> None:
    async with run_conversation(policy) as talk:
        # The client words it in another way, and once with blanks that no rule puts together again.
        talk.agent.messages[2] = talk.agent.messages[2] | {"content": [{"type": "text", "text": "Looking 0."}]}
        await talk.ask()
        body = {"model": "m", "messages": talk.agent.messages}
        await talk.proxy.post(json.dumps(body, indent=1).encode(), b"x-context-session: s")
        first = (await talk.groups())[0]
        await edit_messages.remove(talk.parts, talk.tenant, "s", [first])
        for table, column in (("messages", "body"), ("forms", "body"), ("edits", "text"), ("iterations", "body")):
            rows = await talk.proxy.rows(f"SELECT {column} FROM {table} WHERE {column} IS NOT NULL")
            for words in (b"number 0", b"Looking 0"):
                assert not any(words in bytes(row[0]) for row in rows), (table, words)
        hits = await talk.parts.store.search(talk.tenant, "s", "Looking number")
        assert hits
        assert not any("number 0" in hit.text or "Looking 0" in hit.text for hit in hits)


async def test_past_prompts_can_still_be_shown() -> None:
    async with run_conversation("thrifty") as talk:
        await edit_messages.drop(talk.parts, talk.tenant, "s", [(await talk.groups())[1]])
        await talk.ask()
        await edit_messages.remove(talk.parts, talk.tenant, "s", [(await talk.groups())[0]])
        for row in await talk.parts.store.read_exchanges(talk.tenant, "s", 100):
            shown = await show.read_past_prompt(talk.parts, talk.tenant, "s", row.exchange)
            assert "number 0" not in shown.body
            found = await rebuild_prompt(talk.parts.store, talk.tenant, "s", row.exchange)
            assert found is not None
            sent: list[dict[str, Any]] = json.loads(found.original_body)["messages"]
            assert sent[1] == {"role": "user", "content": ERASED_TEXT}
        await talk.ask()
        (newest,) = await talk.parts.store.read_exchanges(talk.tenant, "s", 1)
        past = await show.read_past_prompt(talk.parts, talk.tenant, "s", newest.exchange)
        assert json.loads(past.body)["messages"] == talk.upstream.last["messages"]


async def test_the_conversation_continues_after_memory_is_lost() -> None:
    async with run_conversation("rolling") as talk:
        await edit_messages.remove(talk.parts, talk.tenant, "s", [(await talk.groups())[0]])
        live = talk.parts.live_sessions.find_session(talk.tenant, "s")
        assert live is not None
        talk.parts.live_sessions.forget_session(live)
        before = await talk.parts.store.read_session(talk.tenant, "s")
        assert not find_messages(await talk.ask()) & list_group_messages(0)
        after = await talk.parts.store.read_session(talk.tenant, "s")
        assert before is not None
        assert after is not None
        assert len(after.branches) == len(before.branches)
        assert not any(b"number 0" in bytes(row[0]) for row in await talk.proxy.rows("SELECT body FROM messages"))
