"""A10 and A13 through the running proxy: scratchpad and memos in the prompt, for whom, and when they are read anew."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.exchange import lookups
from proxy.exchange.rebuild_prompt import rebuild_prompt
from proxy.notes.memo_matching import START as MEMOS
from proxy.notes.scratchpad import START as PAD
from proxy.sessions.locate import derive_tenant
from proxy.store.session_notes import MEMO_SESSION, MemoRow, ScratchpadRow
from tests.proxy_server import Agent, RunningProxy, run_proxy
from tests.raw_upstream import run_upstream
from tests.scripted_model import ScriptedModel, make_calls

NAMED = (b"x-context-session: a",)
POLICIES = pytest.mark.parametrize("policy", ["thrifty", "rolling"])
TENANT = derive_tenant({"authorization": "Bearer sk-one"}, "")


async def note(proxy: RunningProxy, number: int, text: str, session: str = "a") -> None:
    await proxy.app.store.put([ScratchpadRow(TENANT, session, number, text, "operator", 1.0)])
    lookups.forget_notes(proxy.app.services.live_sessions, TENANT, session)


async def save(
    proxy: RunningProxy, memo: str, content: str, *, tags: str = '["deploy"]', project: str = "", tenant: str = TENANT
) -> None:
    row = MemoRow(tenant, MEMO_SESSION, memo, project, content, tags, "earlier", 1.6e9, 1.6e9)
    await proxy.app.store.put([row])


def tail(model: ScriptedModel) -> str:
    """The last message that went upstream."""
    return json.dumps(model.last["messages"][-1])


def whole(model: ScriptedModel) -> str:
    return json.dumps(model.last["messages"])


@POLICIES
async def test_a10_the_scratchpad_is_in_every_prompt_of_its_session_and_of_no_other(policy: str) -> None:
    model = ScriptedModel("ok")
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy=policy) as proxy:
        agent = Agent(proxy, NAMED)
        await agent.say("one")
        assert PAD not in whole(model)
        await note(proxy, 1, "- buy milk")
        await agent.say("two")
        assert PAD in tail(model)
        assert "| - buy milk" in tail(model)
        await agent.say("three")
        assert whole(model).count("| - buy milk") == 1
        await note(proxy, 2, "- buy bread")
        await agent.say("four")
        assert "| - buy bread" in tail(model)
        await Agent(proxy, (b"x-context-session: b",)).say("one")
        assert PAD not in whole(model)


async def test_a10_under_thrifty_what_was_sent_stays_the_front_of_what_is_sent() -> None:
    model = ScriptedModel("ok")
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        agent, before = Agent(proxy, NAMED), list[Any]()
        for n in range(6):
            if n % 2:
                await note(proxy, n, f"note {n}")
            await agent.say(f"prompt {n}")
            assert model.last["messages"][: len(before)] == before
            before = model.last["messages"]
        assert whole(model).count(PAD) == 3


@POLICIES
async def test_a10_the_scratchpad_survives_a_restart(policy: str, tmp_path: Any) -> None:
    model, db = ScriptedModel("ok"), str(tmp_path / "store.sqlite3")
    async with run_upstream(model) as upstream:
        async with run_proxy(upstream.port, policy=policy, db=db) as proxy:
            agent = Agent(proxy, NAMED)
            await agent.say("one")
            await note(proxy, 1, "- buy milk")
        async with run_proxy(upstream.port, policy=policy, db=db) as proxy:
            agent.proxy = proxy
            await agent.say("two")
            assert "| - buy milk" in tail(model)


@POLICIES
async def test_a13_memos_that_fit_are_quoted_with_date_and_source(policy: str) -> None:
    model = ScriptedModel("ok")
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy=policy) as proxy:
        await save(
            proxy, "m1", "We deploy with the script deploy.sh since the pipeline of 2019 broke.", tags='["deploy"]'
        )
        await save(proxy, "m2", "The cafeteria closes at three on Fridays, and nobody knows why.", tags="[]")
        agent = Agent(proxy, NAMED)
        await agent.say("How do we deploy the service?")
        assert MEMOS in json.loads(tail(model))["content"]
        assert "deploy.sh" in tail(model)
        assert "2020-09-13" in tail(model)
        assert "of this or earlier sessions" in tail(model), "the session may have saved it itself"
        assert "cafeteria" not in whole(model)
        await agent.say("Thanks. And what is two and two?")
        assert MEMOS not in json.loads(tail(model))["content"], "no match, no memo"
        exchange = (await proxy.rows("SELECT exchange FROM exchanges ORDER BY started_at"))[0][0]
        rebuilt = await rebuild_prompt(proxy.app.store, TENANT, "a", exchange)
        assert rebuilt is not None
        assert "deploy.sh" in rebuilt.sent_body.decode(), "what was sent can be shown exactly"


async def test_a13_only_a_session_that_the_client_named_has_memos_unless_all_may() -> None:
    model = ScriptedModel("ok")
    for scope, expected in (("session", False), ("tenant", True)):
        async with (
            run_upstream(model) as upstream,
            run_proxy(upstream.port, policy="thrifty", memos={"scope": scope}) as proxy,
        ):
            await save(proxy, "m1", "We deploy with the script deploy.sh since the pipeline of 2019 broke.")
            await Agent(proxy).say("How do we deploy the service?")
            assert ("deploy.sh" in whole(model)) is expected


async def test_a13_projects_and_tenants_are_kept_apart() -> None:
    model = ScriptedModel("ok")
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        await save(proxy, "m1", "We deploy with the script one.sh since the pipeline of 2019 broke.", project="x")
        await save(proxy, "m2", "We deploy with the script two.sh since the pipeline of 2019 broke.")
        await save(proxy, "m3", "We deploy with the script three.sh since the old pipeline broke.", tenant="other")
        await Agent(proxy, NAMED).say("How do we deploy the service?")
        assert [name in whole(model) for name in ("one.sh", "two.sh", "three.sh")] == [False, True, False]
        named = (b"x-context-session: b", b"x-context-project: x")
        await Agent(proxy, named).say("How do we deploy the service?")
        assert [name in whole(model) for name in ("one.sh", "two.sh", "three.sh")] == [True, False, False]


async def test_a13_many_memos_are_compared_off_the_event_loop_and_at_most_five_are_quoted() -> None:
    model = ScriptedModel("ok")
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        for n in range(lookups.MAX_LOOP_MEMOS + 5):
            tags = '["deploy"]' if n < 8 else f'["thing-{n}"]'
            await save(proxy, f"m{n}", f"Finding number{n} of host{n}: it needs the key{n} first.", tags=tags)
        await Agent(proxy, NAMED).say("What about the deploy?")
        assert tail(model).count("Finding number") == 5


async def test_p4_a_store_that_is_away_delays_and_spoils_nothing() -> None:
    model = ScriptedModel("ok")
    async with (
        run_upstream(model) as upstream,
        run_proxy(upstream.port, policy="thrifty", limits={"commit_wait_ms": 50}) as proxy,
    ):
        agent = Agent(proxy, NAMED)
        await note(proxy, 1, "- buy milk")
        await proxy.rows("ALTER TABLE scratchpads RENAME TO elsewhere")
        await agent.say("one")
        assert PAD not in whole(model)
        assert proxy.count("internal_errors_total", where="prompt_notes") == 1


async def test_a_chinese_memo_is_quoted_where_the_prompt_is_about_it() -> None:
    model = ScriptedModel(
        make_calls(("call_m1", "save_memo"), content="支付服务的密钥保存在金库中不在配置里", tags=["支付"]),
        "好。",
        "在金库中。",
    )
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="rolling") as proxy:
        tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
        await Agent(proxy, (b"x-context-session: a",), more={"tools": tools}).say("请记住密钥在哪里")
        again = Agent(proxy, (b"x-context-session: b",), more={"tools": tools})
        await again.say("支付服务的密钥保存在哪里？")
        assert "金库" in "".join(text or "" for text in model.texts())
        await Agent(proxy, (b"x-context-session: c",), more={"tools": tools}).say("今天天气很好")
    assert "金库" not in "".join(text or "" for text in model.texts())
