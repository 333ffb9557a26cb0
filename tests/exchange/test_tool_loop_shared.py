"""Hidden rounds and all tools where several processes share a PostgreSQL database, and no request of a conversation is
answered by the process that answered the one before it."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest

from tests.clients.weather import ASKED, CITIES, FIRST, LAST, SCHEMA, SYSTEM, THANKS, Forecaster, weather
from tests.exchange.hidden_calls import (
    PlayedConversation,
    assert_hidden,
    assert_true,
    make_answer,
    make_client_call,
    make_proxy_call,
)
from tests.faults.fork_server import ForkServer
from tests.postgres import execute
from tests.proxy_server import PATIENT_LIMITS, Agent, RawAnswer, RunningProxy
from tests.raw_upstream import run_upstream
from tests.scripted_model import ScriptedModel

STREAMS = pytest.mark.parametrize("stream", [False, True])


async def two(fork_server: ForkServer, database: str, upstream: int, policy: str) -> list[RunningProxy]:
    """Two processes, each a proxy of its own. What they have inside is not to be seen from here."""
    tree: dict[str, Any] = {"db": database, "policy": policy, "tools": {"offer": "first_request"}} | PATIENT_LIMITS
    tree["upstream"] = f"http://127.0.0.1:{upstream}/v1"
    pids = [await fork_server.started(**tree) for _ in range(2)]
    assert pids[0][0] != pids[1][0]
    return [RunningProxy(cast("Any", None), port) for _, port in pids]


@pytest.mark.slow
@STREAMS
async def test_every_tool_works_whichever_process_is_asked(
    fork_server: ForkServer, database: str, stream: bool
) -> None:
    model, heard = Forecaster(), list[RawAnswer]()
    async with run_upstream(model) as upstream:
        proxies = await two(fork_server, database, upstream.port, "rolling")
        agent = Agent(proxies[0], (b"x-session-id: shared",), stream=stream, more={"tools": [SCHEMA]})
        agent.messages.append({"role": "system", "content": SYSTEM})
        for text in (ASKED, THANKS):
            heard.append(await agent.say(text))
            while calls := agent.messages[-1].get("tool_calls"):
                agent.proxy = proxies[len(heard) % 2]
                agent.brings(*(weather(**json.loads(call["function"]["arguments"])) for call in calls))
                heard.append(await agent.say())
            agent.proxy = proxies[len(heard) % 2]
        assert await execute(database, "SELECT count(*) FROM memos") == [(1,)]
        assert await execute(database, "SELECT kind FROM branches") == [("main",)]
    model.assert_told()
    assert_hidden(heard)
    said = [m["content"] for m in agent.messages if m["role"] == "assistant" and m["content"]]
    assert said == [*FIRST, "".join(LAST)]
    assert [m["content"] for m in agent.messages if m["role"] == "tool"] == [weather(city) for city in CITIES]


@pytest.mark.slow
@STREAMS
@pytest.mark.parametrize("named", [(), (b"x-session-id: s",)])
async def test_hidden_rounds_of_one_process_are_put_back_by_another(
    fork_server: ForkServer, database: str, stream: bool, named: tuple[bytes, ...]
) -> None:
    answers: list[Any] = [
        *(make_answer("Look. ", make_proxy_call(1)), make_answer(None, make_proxy_call(2), make_client_call(1))),
        *(
            make_answer("And. ", make_client_call(2), make_proxy_call(3), make_client_call(3)),
            make_answer(None, make_proxy_call(4)),
            "It is so.",
            make_answer(None, make_proxy_call(5)),
            "Good.",
        ),
    ]
    model = ScriptedModel(*answers)
    async with run_upstream(model) as upstream:
        proxies = await two(fork_server, database, upstream.port, "thrifty")
        played = PlayedConversation(proxies[0], model, stream=stream)
        for n, text in enumerate(("Hello", None, None, "Thank you")):
            played.agent.proxy = proxies[n % 2]
            await played.turn(text, *named)
        assert await execute(database, "SELECT count(*) FROM sessions") == [(1,)]
    assert_true(model, answers)
    assert_hidden(played.heard)
    assert len({json.dumps(chat["tools"]) for chat in model.chats}) == 1
