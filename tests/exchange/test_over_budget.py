"""B1, B4 and I2 through the running proxy: the budget of branches that drift, that were refused, and what is said."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.context.models import Model
from proxy.operator import session_stats, timeline
from proxy.store.session_lists import SessionItem
from tests.proxy_server import Agent, RunningProxy, run_proxy
from tests.raw_upstream import Connection, RawRequest, run_upstream
from tests.scripted_model import ScriptedModel, make_calls, send_reply

JSON = b"content-type: application/json"
NAMED = b"x-context-session: a"
TEXT = "\n".join(f"{n:04} some output of a command, word by word" for n in range(700))
"""About 9,000 tokens."""


def narrow(proxy: RunningProxy, window: int, **more: Any) -> None:
    proxy.app.services.models_by_name["m"] = Model("m", window=window, tokenizer="estimate", **more)


async def work(agent: Agent, steps: int, text: str = TEXT) -> list[int]:
    """Tokens of each prompt that went out."""
    sent = []
    found = await agent.say("Look at everything.")
    for _ in range(steps):
        sent.append(int((found.header("x-context-tokens") or "").split(",")[1]))
        agent.brings(text)
        found = await agent.say()
    return sent


@pytest.mark.parametrize("policy", ["thrifty", "rolling", "chat"])
async def test_usage_that_never_reports_a_hit_does_not_switch_the_budget_off(policy: str) -> None:
    """B1."""
    model = ScriptedModel(make_calls(("c1", "run"), n=1))
    model.usage = {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10, "prompt_tokens_details": {
        "cached_tokens": 0}}  # fmt: skip
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy=policy) as proxy:
        narrow(proxy, 40_000)
        sent = await work(Agent(proxy, (NAMED,)), 12)
    assert max(sent) <= 32_000


async def test_a_prompt_that_cannot_be_brought_under_its_budget_says_so() -> None:
    """B4: in the answer, in the record, in a counter, and where people look."""
    model = ScriptedModel("Well.")
    pinned = {"model": "m", "messages": [{"role": "user", "content": "[pin] " + TEXT}]}
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        narrow(proxy, 8_000)
        found = await proxy.post(pinned, NAMED)
        fits = await proxy.post(
            {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}, b"x-context-session: b"
        )
        sent = int((found.header("x-context-tokens") or "").split(",")[1])
        assert found.header("x-context-over-budget") == str(sent - 6_400)
        assert fits.header("x-context-over-budget") is None
        assert proxy.count("over_budget_total", kind="prompt") == 1
        rows = await proxy.rows("SELECT note FROM exchanges ORDER BY started_at")
        assert rows == [(f"{sent - 6_400} tokens over the budget of 6400",), (None,)]
        ((tenant,), *_) = await proxy.rows("SELECT tenant FROM sessions WHERE session = 'a'")
        item = SessionItem(tenant, "a", True, 0.0, 0.0, "", "{}", 0, 1, 1)
        told = await timeline.make_timeline_cache().find(proxy.app.services, item)
        assert told is not None
        assert told.figures.over_budget == sent - 6_400
        stats = await session_stats.compute_stats(proxy.app.services, tenant, "a")
        assert stats.over_budget == stats.sent - 6_400 > 0


async def test_the_room_for_the_answer_is_part_of_what_is_said() -> None:
    async with run_upstream(ScriptedModel("Well.")) as upstream, run_proxy(upstream.port, policy="observe") as proxy:
        narrow(proxy, 16_000)
        body = {"model": "m", "messages": [{"role": "user", "content": TEXT}], "max_tokens": 12_000}
        found = await proxy.post(body, NAMED)
        sent = int((found.header("x-context-tokens") or "").split(",")[1])
        assert found.header("x-context-over-budget") == str(sent - 4_000)
        apart = await proxy.post(body | {"max_tokens": 2_000}, b"x-context-session: b")
        assert apart.header("x-context-over-budget") is None


async def test_a_level_over_its_budget_is_counted_and_recorded() -> None:
    async with (
        run_upstream(ScriptedModel("Well.")) as upstream,
        run_proxy(upstream.port, policy="hierarchical") as proxy,
    ):
        rules = [{"role": "system", "content": "Be brief. " * 1_000}, {"role": "user", "content": "Hi"}]
        found = await proxy.post({"model": "m", "messages": rules}, NAMED)
        assert found.status == 200
        assert proxy.count("over_budget_total", kind="level") == 1
        ((note,),) = await proxy.rows("SELECT note FROM exchanges")
    assert note.startswith("permanent: ")


def refusing(model: ScriptedModel, most: int) -> Any:
    """An upstream that refuses the proxy's cuts and texts, and whatever is longer than `most` bytes."""

    async def script(request: RawRequest, connection: Connection) -> None:
        body = request.body.decode()
        if "### STATE" in body or "[shortened" in body or len(body) > most:
            model.received.append(request)
            await send_reply(connection, b"400 Bad", b'{"error":{"message":"no"}}', JSON)
        else:
            await model(request, connection)

    return script


async def test_a_branch_that_was_refused_once_still_keeps_to_its_window() -> None:
    """I2."""
    model = ScriptedModel(make_calls(("c1", "run"), n=1))
    async with run_upstream(refusing(model, 200_000)) as upstream, run_proxy(upstream.port, policy="rolling") as proxy:
        narrow(proxy, 40_000)
        agent = Agent(proxy, (NAMED,), messages=[{"role": "system", "content": "Be."}])
        sent = await work(agent, 9)
        stopped = await proxy.rows("SELECT stopped FROM branches")
        edits = await proxy.rows("SELECT DISTINCT stage FROM edits WHERE action <> 'withdrawn'")
    assert stopped == [("upstream_reject",)]
    assert max(sent) <= 40_000 - 4_096
    assert sorted(edits) == [("fit_budget",), ("remark",)]
    assert model.last["messages"][0] == {"role": "system", "content": "Be."}
    assert "characters are left out" not in json.dumps(model.chats[3]), "as long as it fits, it goes out as it came"


async def test_once_the_client_has_compacted_it_is_tried_again() -> None:
    """I2."""
    model = ScriptedModel("Well.")
    async with run_upstream(refusing(model, 10**6)) as upstream, run_proxy(upstream.port, policy="rolling") as proxy:
        agent = Agent(proxy, (NAMED,), messages=[{"role": "system", "content": "Be."}])
        for text in ("One", "Two", "Three"):
            await agent.say(text)
        assert len(model.received) == 4
        agent.messages[2:] = [{"role": "user", "content": "What we have done so far: one, two, three. Go on."}]
        await agent.say()
        assert len(model.received) == 6, "the rewritten one was tried"
        rows = await proxy.rows("SELECT stopped FROM branches")
        agent.messages[-1] = {"role": "user", "content": "Say it again."}
        await agent.send()
    assert rows == [("upstream_reject",)] * 2


@pytest.mark.parametrize("policy", ["thrifty", "rolling"])
async def test_the_edits_of_a_branch_that_was_refused_are_taken_back(policy: str) -> None:
    model = ScriptedModel(make_calls(("c1", "run"), n=1))
    async with run_upstream(refusing(model, 10**6)) as upstream, run_proxy(upstream.port, policy=policy) as proxy:
        agent = Agent(proxy, (NAMED,))
        await work(agent, 9, "a line of output\n" * 300)
        rows = await proxy.rows("SELECT key, action FROM edits ORDER BY number")
        stopped = await proxy.rows("SELECT stopped FROM branches")
    assert stopped == [("upstream_reject",)]
    assert set(dict(rows).values()) <= {"withdrawn"}
    assert model.last["messages"] == agent.messages[:-1]
