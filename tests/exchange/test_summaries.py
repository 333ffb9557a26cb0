"""The policy `summarize` through the running proxy: the helper model's summary where it is good, else a count."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from proxy.context.summaries.summary import HEADING
from proxy.settings.load import find_shipped_file
from tests.exchange.helper_setup import make_helper_settings, wait_for_helper
from tests.proxy_server import Agent, RunningProxy, run_proxy
from tests.raw_upstream import Connection, RawRequest, run_upstream
from tests.scripted_model import ScriptedModel, send_reply

WORDS = "some words that say very little of any thing at all " * 4
COUNT = "Previous {0} turns: {1} user messages, {1} model responses, 0 tool calls"


@asynccontextmanager
async def serving(
    folder: Path, answer: Any, **helped: Any
) -> AsyncIterator[tuple[RunningProxy, ScriptedModel, ScriptedModel]]:
    """The proxy, its model with a window of 2,500 tokens, and a helper that gives this answer to everything."""
    text = find_shipped_file("policies/summarize.toml").read_text().replace('"summarize"', '"mine"')
    (folder / "mine.toml").write_text(text)
    (folder / "models").write_text("[models.m]\nwindow = 2_500\n")
    model, helper = ScriptedModel(WORDS), ScriptedModel(answer)
    async with run_upstream(model) as upstream, run_upstream(helper) as beside:
        tree = make_helper_settings(folder, upstream.port, beside.port, {"timeout_s": 2.0, **helped})
        async with run_proxy(0, **tree | {"policy": "mine", "models_file": str(folder / "models")}) as proxy:
            yield proxy, model, helper


async def talk(proxy: RunningProxy, rounds: int, *, stream: bool = False) -> Agent:
    agent = Agent(proxy, (b"x-context-session: a",), stream=stream)
    for n in range(rounds):
        found = await agent.say(f"question {n}: {WORDS}")
        assert found.header("x-context-fallback") is None
        await wait_for_helper(proxy)
    return agent


def bearer(model: ScriptedModel) -> str:
    """The first user message that the model got last."""
    return next(str(m["content"]) for m in model.last["messages"] if m["role"] == "user")


@pytest.mark.parametrize("stream", [False, True])
async def test_d4_a_summary_of_the_helper_replaces_the_messages_that_it_was_asked_about(
    tmp_path: Path, stream: bool
) -> None:
    async with serving(tmp_path, " They spoke of little things. ") as (proxy, model, helper):
        agent = await talk(proxy, 26, stream=stream)
    # Batches of twenty messages, one of which is answered; what came after it was asked for while it was left out, and
    # what is left out with this very request is counted, since nobody waits for the helper here.
    first = next(n for n, m in enumerate(agent.messages) if bearer(model).startswith(m["content"]))
    told, *more = bearer(model).removeprefix(agent.messages[first]["content"]).strip().split("\n\n")
    assert told == f"{HEADING}\nThey spoke of little things."
    assert set(more[:-1]) <= {told}
    assert all(one == told or one.startswith(("Previous 1 turns: ", "Previous 2 turns: ")) for one in more[-1:])
    assert len(helper.chats) == len({str(chat["messages"]) for chat in helper.chats}), "nothing is asked twice"
    assert "question 0" in str(helper.chats[0]["messages"])
    assert "question 10" not in str(helper.chats[0]["messages"])


async def test_d4_summaries_of_all_messages_left_out_now_are_asked_for_and_awaited(tmp_path: Path) -> None:
    async with serving(tmp_path, "They spoke of little things.", wait_ms=5000) as (proxy, model, helper):
        agent = Agent(proxy, (b"x-context-session: a",))
        for n in range(14):
            agent.messages += [{"role": "user", "content": f"question {n}: {WORDS}{WORDS}"}]
            agent.messages += [{"role": "assistant", "content": WORDS + WORDS}]
        await agent.say("and now?")
        first = next(n for n, m in enumerate(agent.messages) if bearer(model).startswith(m["content"]))
        assert 10 <= first < 20, "no whole batch is left out"
        assert bearer(model) == f"{agent.messages[first]['content']}\n\n{HEADING}\nThey spoke of little things."
        assert len(helper.chats) == 1
        await agent.say("and then?")
        assert "Previous" not in bearer(model)
        assert len(helper.chats) == 2, "what is new alone"


async def down(_: RawRequest, connection: Connection) -> None:
    await send_reply(connection, b"500 No", b"no")


@pytest.mark.parametrize("answer", ["", "  ", "x" * 60_000, down], ids=["empty", "blank", "longer", "down"])
async def test_d4_a_summary_that_fails_is_empty_or_too_long_leaves_the_count(tmp_path: Path, answer: Any) -> None:
    async with serving(tmp_path, answer) as (proxy, model, helper):
        agent = await talk(proxy, 26)
    first = next(n for n, m in enumerate(agent.messages) if bearer(model).startswith(m["content"]))
    assert bearer(model) == f"{agent.messages[first]['content']}\n\n{COUNT.format(first, first // 2)}"
    assert helper.chats
