from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.errors import Conflict, Unprocessable
from proxy.exchange.import_conversations import import_conversation, read_conversation
from tests.proxy_server import Agent, run_proxy
from tests.raw_upstream import run_upstream
from tests.scripted_model import ScriptedModel


def raws(*messages: object) -> list[bytes]:
    return [json.dumps(message).encode() for message in messages]


HISTORY: list[dict[str, Any]] = [
    {"role": "user", "content": "One."},
    {"role": "assistant", "content": "First."},
    {"role": "user", "content": "Two."},
    {"role": "assistant", "content": "Second."},
]


async def test_an_agent_without_a_session_id_continues_where_the_import_ended() -> None:
    async with run_upstream(ScriptedModel()) as upstream, run_proxy(upstream.port) as proxy:
        await Agent(proxy).say("Whose am I?")
        ((tenant,),) = await proxy.rows("SELECT tenant FROM sessions")
        assert await import_conversation(proxy.app.services, tenant, read_conversation("brought", raws(*HISTORY))) == 4
        agent = Agent(proxy, messages=[*HISTORY])
        assert (await agent.say("Three.")).session == "brought"
        rows = await proxy.rows("SELECT role, answer FROM messages WHERE session = 'brought' ORDER BY seq")
        assert [(row[0], bool(row[1])) for row in rows][:4] == [
            ("user", False), ("assistant", False), ("user", False), ("assistant", True)
        ]  # fmt: skip
        assert len(await proxy.rows("SELECT branch FROM branches WHERE session = 'brought'")) == 1
    assert len(upstream.requests) == 2, "nobody was asked about what was imported"


async def test_an_import_adds_no_duplicate_but_adds_a_branch_of_a_known_conversation() -> None:
    async with run_upstream(ScriptedModel()) as upstream, run_proxy(upstream.port) as proxy:
        parts = proxy.app.services
        await import_conversation(parts, "t", read_conversation("a", raws(*HISTORY)))
        with pytest.raises(Conflict):
            await import_conversation(parts, "t", read_conversation("a", raws(*HISTORY)))
        branch = [*HISTORY[:2], {"role": "user", "content": "Else."}, {"role": "assistant", "content": "Other."}]
        await import_conversation(parts, "t", read_conversation("a", raws(*branch)))
        kinds = await proxy.rows("SELECT kind FROM branches ORDER BY created_at")
        assert kinds == [("main",), ("fork",)]
        assert await proxy.rows("SELECT count(*) FROM messages") == [(6,)]
        await import_conversation(parts, "u", read_conversation("a", raws(*HISTORY)))
        assert await proxy.rows("SELECT count(*) FROM sessions") == [(2,)]


def test_geminis_calls_find_their_results_in_order() -> None:
    call = {"role": "model", "parts": [{"functionCall": {"name": "look", "args": {}}}] * 2}
    result = {"role": "function", "parts": [{"functionResponse": {"name": "look", "response": {"output": "x"}}}]}
    made = read_conversation("g", raws({"role": "user", "parts": [{"text": "a"}]}, call, result, result))
    messages = [json.loads(raw) for raw in made.messages]
    assert made.strategy == "gemini"
    ids = [one["id"] for one in messages[1]["tool_calls"]]
    assert len(set(ids)) == 2
    assert [m["tool_call_id"] for m in messages[2:]] == ids


@pytest.mark.parametrize("wrong", [[], [b"{"], [b"3"], [b'{"role": 3}'], [b'{"parts": 3}'], [b'{"parts": []}', b"x"]])
def test_a_text_that_is_not_a_conversation_is_refused(wrong: list[bytes]) -> None:
    with pytest.raises(Unprocessable):
        read_conversation("x", wrong)
