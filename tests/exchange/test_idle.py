"""E9 through the running proxy: what comes due while it is idle is compressed before the next request comes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from proxy.exchange import idle as idle_module
from proxy.settings.load import find_shipped_file
from tests.exchange.helper_setup import make_helper_settings, wait_for_helper
from tests.proxy_server import Agent, RunningProxy, run_proxy
from tests.raw_upstream import Connection, RawRequest, run_upstream, wait_until
from tests.scripted_model import ScriptedModel, make_calls, send_reply
from tests.stores import count_rows

LOG = "\n".join(f"line {n}: plain words of a log that nobody reads twice" for n in range(40))
SUMMARY = "Looked at the log; nothing in it."
ROUNDS = 5


def scripted() -> ScriptedModel:
    return ScriptedModel(*(make_calls((f"call_{n}", "read"), n=n) for n in range(ROUNDS)), "All done.")


def write(folder: Path, working_s: int) -> None:
    """`hierarchical` that finds a block of two steps due after so many seconds, whatever the helper has to keep."""
    text = find_shipped_file("policies/hierarchical.toml").read_text().replace('name = "hierarchical"', 'name = "mine"')
    text = text.replace("working_s = 300", f"working_s = {working_s}\nblock = 2\nrecent = 1\nids = 0")
    (folder / "mine.toml").write_text(text)


@asynccontextmanager
async def serving(folder: Path, model: Any, helper: Any, working_s: int = 1) -> AsyncIterator[RunningProxy]:
    write(folder, working_s)
    async with run_upstream(model) as upstream, run_upstream(helper) as beside:
        tree = make_helper_settings(folder, upstream.port, beside.port, {"timeout_s": 5.0}) | {"policy": "mine"}
        async with run_proxy(0, **tree) as proxy:
            yield proxy


async def work(agent: Agent) -> None:
    await agent.say("look around")
    for n in range(ROUNDS):
        agent.brings(f"result {n}\n{LOG}")
        await agent.say()


async def test_e9_the_helper_is_asked_while_nobody_waits_and_its_answer_is_there_for_the_next_request(
    tmp_path: Path,
) -> None:
    model, helper = scripted(), ScriptedModel(SUMMARY)
    async with serving(tmp_path, model, helper) as proxy:
        agent = Agent(proxy, (b"x-context-session: a",))
        await work(agent)
        sent = len(model.chats)
        assert helper.chats == [], "nothing is due yet"
        await wait_until(lambda: proxy.count("idle_compressions_total", outcome="asked") >= 1)
        await wait_for_helper(proxy)
        assert len(helper.chats) >= 1
        assert helper.received[0].all(b"authorization") == [], "the client's key is for another place"
        assert len(model.chats) == sent, "nothing is sent to the model"
        before = len(helper.chats)
        await agent.say("and now?")
        assert SUMMARY in " ".join(text or "" for text in model.texts()), "the first request that comes has it"
        await wait_for_helper(proxy)
        assert len({str(chat["messages"]) for chat in helper.chats[:before]}) == before, "nothing is asked twice"


async def test_e9_without_a_helper_it_is_planned_and_nothing_is_sent_or_stored(tmp_path: Path) -> None:
    model = scripted()
    write(tmp_path, 1)
    async with (
        run_upstream(model) as upstream,
        run_proxy(upstream.port, policies_dir=str(tmp_path), policy="mine") as proxy,
    ):
        await work(Agent(proxy, (b"x-context-session: a",)))
        counts, sent = await count_rows(proxy.app.store), len(model.chats)
        await wait_until(lambda: proxy.count("idle_compressions_total", outcome="planned") >= 1)
        assert (await count_rows(proxy.app.store), len(model.chats)) == (counts, sent)


async def test_e9_an_answer_under_way_is_not_disturbed(tmp_path: Path) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    async def slow(_: RawRequest, connection: Connection) -> None:
        begun.set()
        await go.wait()
        await send_reply(connection, b"200 OK", b'{"choices":[]}')

    model = scripted()
    model.answers.append(slow)
    async with serving(tmp_path, model, ScriptedModel(SUMMARY)) as proxy:
        await work(Agent(proxy, (b"x-context-session: a",)))
        other = Agent(proxy, (b"x-context-session: b",))
        other.messages.append({"role": "user", "content": "wait"})
        waiting = asyncio.create_task(other.send())
        await begun.wait()
        await asyncio.sleep(1.5)
        assert proxy.count("idle_compressions_total", outcome="asked") == 0, "it was due, and somebody waits"
        go.set()
        await waiting
        await wait_until(lambda: proxy.count("idle_compressions_total", outcome="asked") >= 1)


async def test_e9_a_new_request_takes_the_place_of_what_waits_and_the_oldest_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idle_module, "MAX_WAITING_BRANCHES", 2)
    async with serving(tmp_path, ScriptedModel("ok"), ScriptedModel(SUMMARY), working_s=3600) as proxy:
        waiting = proxy.app.services.idle_compressions
        for name in (b"a", b"a", b"b", b"c"):
            await Agent(proxy, (b"x-context-session: " + name,)).say(f"hello {name!r} {len(waiting)}")
        assert [session for _, session, _ in waiting] == ["b", "c"]
        assert proxy.count("idle_compressions_total", outcome="dropped") >= 1
        tasks = [one.task for one in waiting.values()]
    await asyncio.sleep(0)
    assert all(task.done() for task in tasks), "ended with the process"
    assert not waiting


async def test_e9_policies_without_ages_wait_for_nothing() -> None:
    async with run_upstream(ScriptedModel("ok")) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        await Agent(proxy).say("hello")
        assert not proxy.app.services.idle_compressions
