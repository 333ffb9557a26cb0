"""Questions to a helper, seen from outside: what an answer changes, and that nothing else ever does."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from proxy.context.plan import Ask
from proxy.helper.queue import judge_answer
from tests.exchange.helper_setup import (
    EXTRACT,
    LONG,
    SESSION,
    make_helper_settings,
    run_proxy_on_file,
    run_proxy_with_helper,
    send_texts,
    wait_for_helper,
    write_policy,
)
from tests.failing_store import FailingStore, use_store
from tests.proxy_server import Agent, run_proxy
from tests.raw_upstream import Connection, RawRequest, run_upstream, wait_until
from tests.scripted_model import ScriptedModel, send_reply


async def test_a_good_answer_is_in_the_next_requests_prompt(tmp_path: Path) -> None:
    async with run_proxy_with_helper(tmp_path, " The user wants it read.\n") as proxy:
        agent = await send_texts(proxy, LONG, "And now?", "And then?")
        assert proxy.model.texts(0) == [LONG]
        assert proxy.model.texts(1)[0] == "The user wants it read."
        assert proxy.told("kept") == 1
        assert proxy.proxy.count("helper_tokens_total", kind="summary") == 14
        assert proxy.proxy.count("helper_dollars_total", kind="summary") == pytest.approx((11 * 1.25 + 3 * 5) / 1e6)
        (row,) = await proxy.proxy.rows(
            "SELECT kind, model, prompt_tokens, completion_tokens, text FROM helper_answers"
        )
        assert row == ("summary", "demo", 11, 3, b"The user wants it read.")
        assert await proxy.proxy.rows("SELECT count(*) FROM sessions") == [(1,)], "the helper's calls are no session"
        assert await proxy.proxy.rows("SELECT count(*) FROM exchanges") == [(3,)]
    (question,) = proxy.helper.chats
    assert question["messages"] == [{"role": "user", "content": "Summarise: " + LONG}]
    assert [m["content"] for m in agent.messages if m["role"] == "user"] == [LONG, "And now?", "And then?"]


@pytest.mark.parametrize("stream", [False, True])
async def test_nothing_of_the_helper_reaches_the_client(tmp_path: Path, stream: bool) -> None:
    def told(found: list[Any]) -> list[Any]:
        return [([name for name, _ in one.headers], one.body) for one in found]

    async def heard(answer: Any, **helper: Any) -> list[Any]:
        async with run_proxy_with_helper(tmp_path, answer, helper=helper) as proxy:
            agent = Agent(proxy.proxy, (SESSION,), stream=stream)
            return [await agent.say(text) for text in (LONG, "And now?", "And then?")]

    async def down(_: RawRequest, connection: Connection) -> None:
        await send_reply(connection, b"500 No", b"no")

    without = told(await heard("x", dollars_a_day=0.0))
    assert told(await heard("The secret summary.")) == without
    assert told(await heard(down)) == without
    assert b"secret" not in repr(without).encode()


def script(status: bytes, body: bytes) -> Any:
    async def speak(_: RawRequest, connection: Connection) -> None:
        await send_reply(connection, status, body, b"content-type: application/json")

    return speak


async def hang(_: RawRequest, connection: Connection) -> None:
    await connection.left()


async def refuse(_: RawRequest, connection: Connection) -> None:
    await connection.reset()


async def half(_: RawRequest, connection: Connection) -> None:
    await connection.send(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{")
    await connection.reset()


CUT = b'{"choices":[{"index":0,"message":{"role":"assistant","content":"a42f and"},"finish_reason":"length"}]}'
BAD: list[tuple[Any, str]] = [
    ("", "empty"),
    (" \n", "empty"),
    ({"role": "assistant", "content": None}, "empty"),
    ("a42f " + "x" * 200, "too_long"),
    ("Nothing of note.", "missing"),
    ("See a42fe.", "missing"),
    (hang, "timeout"),
    (script(b"500 No", b"no"), "failed"),
    (script(b"400 No", b"{}"), "refused"),
    (script(b"200 OK", b"<html>"), "garbage"),
    (script(b"200 OK", CUT), "cut"),
    (refuse, "unreachable"),
    (half, "broken"),
]


@pytest.mark.parametrize(("answer", "outcome"), BAD, ids=[f"{n}-{outcome}" for n, (_, outcome) in enumerate(BAD)])
async def test_a_bad_answer_is_counted_and_the_request_is_unharmed(tmp_path: Path, answer: Any, outcome: str) -> None:
    wait = {"timeout_s": 0.2 if outcome == "timeout" else 20.0}  # a busy machine takes its time for the other ones
    async with run_proxy_with_helper(tmp_path, answer, stage='keep = "a42f"', helper=wait) as proxy:
        agent = await send_texts(proxy, LONG, "And now?", "And then?")
        assert proxy.told(outcome) == 1, "asked once, and not again with each request"
        assert await proxy.proxy.rows("SELECT count(*) FROM helper_answers") == [(0,)]
        assert all(row == ("complete", 200, None) for row in await proxy.proxy.outcomes())
    assert len(proxy.helper.received) <= 2, "a connection that is lost before the answer is tried once more at most"
    assert proxy.model.texts(1)[0] == EXTRACT
    assert proxy.model.texts(2)[0] == EXTRACT
    assert [m["content"] for m in agent.messages[1::2]] == ["Well."] * 3


async def test_a_closed_port_is_counted_and_the_request_is_unharmed(tmp_path: Path) -> None:
    async with run_proxy_with_helper(tmp_path, "x", small={"base_url": "http://127.0.0.1:1/v1"}) as proxy:
        await send_texts(proxy, LONG, "And now?")
        assert proxy.told("unreachable") == 1
    assert proxy.model.texts(1)[0] == EXTRACT
    assert proxy.helper.received == []


@pytest.mark.timed
async def test_a_slow_helper_never_delays_a_request_that_does_not_wait(tmp_path: Path) -> None:
    async with run_proxy_with_helper(tmp_path, hang, stage="now = true") as proxy:
        agent = Agent(proxy.proxy, (SESSION,))
        started = time.monotonic()
        for text in (LONG, "And now?", "And then?"):
            await agent.say(text)
        assert time.monotonic() - started < 1.0


async def test_an_answer_that_is_needed_now_is_in_the_same_request(tmp_path: Path) -> None:
    async with run_proxy_with_helper(tmp_path, "Read it.", stage="now = true", helper={"wait_ms": 2000}) as proxy:
        agent = Agent(proxy.proxy, (SESSION,))
        agent.messages = [{"role": "user", "content": LONG}, {"role": "assistant", "content": "Yes."}]
        await agent.say("And now?")
        assert proxy.told("kept") == 1
    assert proxy.model.texts(0)[0] == "Read it."
    assert len(proxy.helper.received) == 1


@pytest.mark.timed
async def test_waiting_ends_with_its_limit_and_the_answer_comes_later(tmp_path: Path) -> None:
    async def late(request: RawRequest, connection: Connection) -> None:
        await asyncio.sleep(0.6)
        await ScriptedModel("Read it.")(request, connection)

    async with run_proxy_with_helper(tmp_path, late, stage="now = true", helper={"wait_ms": 150}) as proxy:
        agent = Agent(proxy.proxy, (SESSION,))
        agent.messages = [{"role": "user", "content": LONG}, {"role": "assistant", "content": "Yes."}]
        started = time.monotonic()
        await agent.say("And now?")
        assert 0.15 <= time.monotonic() - started < 4 * 0.15
        await wait_for_helper(proxy.proxy)
        await agent.say("And then?")
    assert proxy.model.texts(0)[0] == EXTRACT
    assert proxy.model.texts(1)[0] == "Read it."


async def test_a_client_that_leaves_while_it_waits_takes_nothing_with_it(tmp_path: Path) -> None:
    async with run_proxy_with_helper(tmp_path, hang, "Read it.", stage="now = true", helper={"wait_ms": 5000}) as proxy:
        agent = Agent(proxy.proxy, (SESSION,))
        agent.messages = [{"role": "user", "content": LONG}]
        leaving = asyncio.create_task(proxy.proxy.post({"model": "m", "messages": agent.messages}, SESSION, seconds=60))
        await wait_until(lambda: len(proxy.helper.received) == 1)
        leaving.cancel()
        await asyncio.wait([leaving])
        stored = await proxy.proxy.rows("SELECT body FROM messages")
        assert [json.loads(body)["content"] for (body,) in stored] == [LONG]
        found = asyncio.create_task(agent.send())
        await asyncio.sleep(0.1)
        assert len(proxy.helper.received) == 1, "the question is under way already"
        found.cancel()
    assert proxy.model.received == []


async def test_the_helper_is_not_asked_without_a_budget(tmp_path: Path) -> None:
    async with run_proxy_with_helper(tmp_path, "Read it.", helper={"dollars_a_day": 0.000_01}) as proxy:
        await send_texts(proxy, LONG, "And now?")
        assert proxy.told("over_budget") == 1
    assert proxy.helper.received == []
    assert proxy.model.texts(1)[0] == EXTRACT


async def test_a_restart_keeps_answers_and_what_was_spent(tmp_path: Path) -> None:
    model, helper = ScriptedModel("Well."), ScriptedModel("Read it.")
    limits = {"dollars_a_day": 0.006, "max_tokens": 1000}
    async with run_proxy_on_file(tmp_path, model, helper, limits) as proxy:
        agent = Agent(proxy, (SESSION,))
        helper.usage = {"prompt_tokens": 400, "completion_tokens": 400, "total_tokens": 800}
        await agent.say(LONG)
        await wait_for_helper(proxy)
    async with run_proxy_on_file(tmp_path, model, helper, limits) as proxy:
        again = Agent(proxy, (SESSION,), messages=agent.messages)
        await again.say("And now?")
        await wait_for_helper(proxy)
        assert len(helper.received) == 1
        other = Agent(proxy, (b"x-context-session: b",))
        await other.say(LONG)
        await wait_for_helper(proxy)
        assert proxy.count("helper_total", kind="summary", outcome="over_budget") == 1, "0.0025 of 0.006 are spent"
    assert model.texts(1)[0] == "Read it."
    assert len(helper.received) == 1


async def test_no_more_are_asked_at_once_than_the_settings_allow(tmp_path: Path) -> None:
    under_way: list[int] = [0, 0]
    release = asyncio.Event()

    async def count(request: RawRequest, connection: Connection) -> None:
        under_way[0] += 1
        under_way[1] = max(under_way)
        await release.wait()
        await ScriptedModel("Read it.")(request, connection)
        under_way[0] -= 1

    async with run_proxy_with_helper(tmp_path, count, helper={"concurrency": 2, "queue": 3}) as proxy:
        agents = [Agent(proxy.proxy, (b"x-context-session: s%d" % n,)) for n in range(8)]
        await asyncio.gather(*(agent.say(LONG) for agent in agents))
        await wait_until(lambda: under_way[0] == 2)
        asking = proxy.proxy.app.services.helper_queue
        assert asking is not None
        assert len(asking) == 5
        assert proxy.told("queue_full") == 3
        release.set()
        await wait_for_helper(proxy.proxy)
        assert under_way[1] == 2
        assert proxy.told("kept") == 5


async def test_an_answer_belongs_to_its_tenant(tmp_path: Path) -> None:
    async with run_proxy_with_helper(tmp_path, "For one.", "For two.") as proxy:
        for key in ("sk-one", "sk-two"):
            await send_texts(proxy, LONG, "And now?", key=key)
    assert proxy.model.texts(1)[0] == "For one."
    assert proxy.model.texts(3)[0] == "For two."
    for request in proxy.helper.received:
        assert not [name for name, _ in request.headers if name.lower().startswith(b"x-")]


@pytest.mark.parametrize("is_same_place", [True, False])
async def test_a_clients_key_goes_to_a_helper_at_the_same_place_alone(tmp_path: Path, is_same_place: bool) -> None:
    write_policy(tmp_path)
    model, helper = ScriptedModel("Well."), ScriptedModel("In short.")

    async def answer(request: RawRequest, connection: Connection) -> None:
        await (helper if json.loads(request.body)["model"] == "demo" else model)(request, connection)

    async with run_upstream(answer) as upstream, run_upstream(answer) as elsewhere:
        port = upstream.port if is_same_place else elsewhere.port
        async with run_proxy(0, **make_helper_settings(tmp_path, upstream.port, port, {})) as proxy:
            for key in ("sk-one", "sk-two"):
                await Agent(proxy, (SESSION, b"x-api-key: own"), key=key).say(LONG)
                await wait_for_helper(proxy)
    got = [(request.all(b"authorization"), request.all(b"x-api-key")) for request in helper.received]
    brought = [([b"Bearer sk-one"], [b"own"]), ([b"Bearer sk-two"], [b"own"])]
    assert got == (brought if is_same_place else [([], []), ([], [])])


async def test_the_upstreams_own_key_is_used_where_it_has_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMALL_KEY", "sk-small")
    async with run_proxy_with_helper(tmp_path, "Read it.", small={"api_key_env": "SMALL_KEY"}) as proxy:
        await Agent(proxy.proxy, (SESSION, b"api-key: sk-azure")).say(LONG)
        await wait_for_helper(proxy.proxy)
    (request,) = proxy.helper.received
    assert request.all(b"authorization") == [b"Bearer sk-small"]
    assert request.all(b"api-key") == []


async def test_a_helper_that_is_down_is_left_alone_for_a_while(tmp_path: Path) -> None:
    async with run_proxy_with_helper(tmp_path, script(b"503 No", b"no"), helper={"concurrency": 1}) as proxy:
        for n in range(6):
            await Agent(proxy.proxy, (b"x-context-session: s%d" % n,)).say(LONG)
            await wait_for_helper(proxy.proxy)
        assert proxy.told("failed") == 3
        assert proxy.told("resting") == 3
    assert len(proxy.helper.received) == 3


@pytest.mark.timed
async def test_helper_calls_are_cancelled_when_the_proxy_stops(tmp_path: Path) -> None:
    started = 0.0
    async with run_proxy_with_helper(tmp_path, hang, helper={"timeout_s": 60}) as running:
        await Agent(running.proxy, (SESSION,)).say(LONG)
        await wait_until(lambda: bool(running.helper.received))
        started = time.monotonic()
        proxy = running.proxy
    assert time.monotonic() - started < 2
    assert proxy.count("helper_total", kind="summary", outcome="cancelled") == 1


@pytest.mark.parametrize("mode", ["observe", "passthrough"])
async def test_a_policy_that_sends_the_original_asks_nothing(tmp_path: Path, mode: str) -> None:
    async with run_proxy_with_helper(tmp_path, "Read it.", mode=mode) as proxy:
        await send_texts(proxy, LONG, "And now?")
    assert proxy.helper.received == []


async def test_a_store_that_is_away_costs_the_answer_and_nothing_else(tmp_path: Path) -> None:
    store = FailingStore()
    async with run_proxy_with_helper(tmp_path, "Read it.", before=use_store(store)) as proxy:
        agent = await send_texts(proxy, LONG)
        store.writes = False
        await agent.say("And now?")
        store.writes = True
        agent = Agent(proxy.proxy, (b"x-context-session: b",))
        store.reads = False
        await agent.send()
        await wait_for_helper(proxy.proxy)
        store.reads = True
        await agent.say(LONG)
    assert proxy.told("kept") >= 1


def test_a_summary_must_contain_each_required_name_as_a_whole_word() -> None:
    ask = Ask("summary", "?", required_names=("12", "/etc/hosts", "a.py", "$x"))
    good = "Line 12 of /etc/hosts, a.py and cost$x."
    assert judge_answer(ask, good) == "kept"
    for wrong in (good.replace("12", "123"), good.replace("a.py", "data.py"), good.replace("$x", "$xy")):
        assert judge_answer(ask, wrong) == "missing"
    assert judge_answer(Ask("summary", "?", max_chars=5), "123456") == "too_long"
    assert judge_answer(Ask("summary", "?"), "x" * 100_000) == "too_long"
    assert judge_answer(Ask("summary", "?"), "") == "empty"
