"""Pings through the running proxy, at an upstream whose cache lives for two seconds."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from proxy.context.models import Model
from proxy.dialects.usage import Usage
from proxy.exchange import cache_keep_alive, cost
from proxy.exchange.cost import read_meter
from proxy.operator import edit_messages
from proxy.operator.experiment_report import build_report, make_measure_cache
from proxy.web.app import ContextProxy
from tests import strict_messages
from tests.dialect_agents import Json, MessagesAgent, read_words
from tests.proxy_server import RunningProxy, run_proxy
from tests.raw_upstream import Connection, RawRequest, run_upstream, wait_until
from tests.scripted_model import send_reply
from tests.strict_messages import StrictMessages, read_step

LIFETIME_S = 2.0
MARGIN_S = 1.5
PINGS = 2
MANY = 12
SYSTEM = [{"type": "text", "text": "You are a careful engineer. " * 400, "cache_control": {"type": "ephemeral"}}]
TEXT = [{"type": "text", "text": "Done."}]
JSON_TYPE = b"content-type: application/json"
OUTCOMES = ("warm", "cold", "answered", "refused", "failed", "cancelled", "dropped")


@pytest.fixture(autouse=True)
def _short_lifetime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_keep_alive, "MARGIN_S", MARGIN_S)
    monkeypatch.setitem(strict_messages.LIFETIMES, "5m", LIFETIME_S)


def shorten(app: ContextProxy) -> None:
    models = app.services.models
    app.services.models = tuple(dataclasses.replace(one, ttl_s=LIFETIME_S) for one in models)


@asynccontextmanager
async def serving(model: StrictMessages, pings: int = PINGS, **tree: Any) -> AsyncIterator[RunningProxy]:
    model.now = time.monotonic
    cache = {"keep_alive_pings": pings} | tree.pop("cache", {})
    async with (
        run_upstream(model) as upstream,
        run_proxy(upstream.port, before=shorten, cache=cache, **{"policy": "thrifty"} | tree) as proxy,
    ):
        yield proxy


def make_agent(proxy: RunningProxy, name: bytes = b"a", **more: Any) -> MessagesAgent:
    return MessagesAgent(proxy, read_words, lines=(b"x-context-session: " + name,), system=SYSTEM, **more)


def count_pings(proxy: RunningProxy) -> Json:
    found = {name: proxy.count("cache_pings_total", outcome=name) for name in OUTCOMES}
    return {name: count for name, count in found.items() if count}


async def wait_for_end(proxy: RunningProxy) -> None:
    """Wait until no branch waits for a ping any more."""
    await wait_until(lambda: not proxy.app.services.cache_pings.waiting)


async def test_pings_keep_the_cache_warm_and_are_billed_beside_the_exchange() -> None:
    model = StrictMessages(TEXT)
    async with serving(model) as proxy:
        agent = make_agent(proxy, stream=True, more={"metadata": {"user_id": "u"}})
        agent.lines += (b"idempotency-key: one-request",)
        await proxy.get("/api/live")  # the first request builds the API, which takes a while
        await agent.work("Find the fault.")
        answered = time.monotonic()
        await proxy.outcomes()
        paid, without = proxy.read_dollars()
        (line,) = (await proxy.get("/api/live")).json()["items"]
        assert line["figures"]["cost"] >= paid * 0.999
        await wait_until(lambda: len(model.pings) == 1)
        pinged = time.monotonic()
        await wait_until(lambda: len(model.pings) == PINGS)
        assert time.monotonic() - pinged > (LIFETIME_S - MARGIN_S) / 2, "the second one comes an interval later"
        await wait_for_end(proxy)
        ((stored,),) = await proxy.rows("SELECT meter FROM exchanges")
        assert proxy.read_dollars()[0] > paid
        assert proxy.read_dollars()[1] == without
        (line,) = (await proxy.get("/api/live")).json()["items"]
        assert line["figures"]["cost"] == pytest.approx(proxy.read_dollars()[0]), "no sum from before the pings"
        await asyncio.sleep(answered + LIFETIME_S + 0.1 - time.monotonic())
        await agent.work("And now?")
        await proxy.outcomes()
        rows = await proxy.rows("SELECT meter, predicted FROM exchanges ORDER BY started_at")
        page = (await proxy.get("/api/sessions/a/stats")).json()
        used = agent.answers[-1]["usage"]
        points = (await proxy.get("/api/sessions/a/points")).json()
    assert model.refusals == []
    assert count_pings(proxy)["warm"] >= PINGS
    assert points[0]["pings"] == PINGS
    first, ping = model.received[0], model.received[1]
    assert ping.body == first.body.replace(b"4096", b"0").replace(b'"stream": true', b'"stream": false')
    assert [ping.all(name) for name in (b"x-api-key", b"anthropic-version")] == [[b"sk-one"], [b"2023-06-01"]]
    assert first.all(b"idempotency-key")
    assert not ping.all(b"idempotency-key"), "the upstream would give the first answer again"
    meter, later = read_meter(stored), read_meter(rows[1][0])
    assert len(meter.pings) == PINGS
    assert all((one.cached or 0) > 2000 and one.completion == one.cache_write == 0 for one in meter.pings)
    assert used["cache_read_input_tokens"] > 2000, "the entry of the first prompt was still there"
    assert rows[1][1] > 2000, "the plan knew it"
    assert later.kept_warm
    assert later.held == 0, "without the proxy it would have been cold"
    assert page["exchanges"] == 2
    assert page["pings"] >= PINGS
    assert 0 < page["pings_cost"] < page["cost"] < page["cost_without"]


async def test_a_cache_that_had_not_expired_is_not_kept_warm_by_a_ping() -> None:
    async with serving(StrictMessages(TEXT), pings=1) as proxy:
        agent = make_agent(proxy)
        await agent.work("Find the fault.")
        await wait_for_end(proxy)
        await agent.work("And now?")
        rows = await proxy.rows("SELECT meter FROM exchanges ORDER BY started_at")
    first, second = (read_meter(meter) for (meter,) in rows)
    assert len(first.pings) == 1
    assert not second.kept_warm
    assert second.held > 2000


async def test_without_the_setting_nothing_is_sent_and_the_cache_expires() -> None:
    model = StrictMessages(TEXT)
    async with serving(model, pings=0) as proxy:
        agent = make_agent(proxy)
        await agent.work("Find the fault.")
        await asyncio.sleep(LIFETIME_S + 0.2)
        assert not proxy.app.services.cache_pings.waiting
        await agent.work("And now?")
        assert agent.answers[-1]["usage"]["cache_read_input_tokens"] == 0
    assert model.pings == []
    assert len(model.received) == 2


async def test_a_request_takes_the_place_of_what_waits_and_pings_are_counted_from_it() -> None:
    model = StrictMessages(*(read_step(n, f"a{n}.py", thinks=False) for n in range(3)), TEXT)
    async with serving(model, pings=1) as proxy:
        agent = make_agent(proxy)
        await agent.work("Find the fault.")
        during = len(model.pings)  # 0, unless the machine is busy
        assert len(proxy.app.services.cache_pings.waiting) == 1
        await wait_for_end(proxy)
        assert len(model.pings) == during + 1
        assert model.pings[-1]["messages"] == model.bodies[-1]["messages"]
        await asyncio.sleep(LIFETIME_S)
        assert len(model.pings) == during + 1


class Answering(StrictMessages):
    """An upstream that answers pings with another status, or not at all."""

    status = b"400 Bad"
    hangs = False

    async def __call__(self, request: RawRequest, connection: Connection) -> None:
        if b'"max_tokens": 0' not in request.body:
            await super().__call__(request, connection)
            return
        self.pings.append(json.loads(request.body))
        if self.hangs:
            await connection.reader.read(1)  # until the proxy closes the connection
            self.pings.append({})
            return
        await send_reply(connection, self.status, b"{}", JSON_TYPE)


@pytest.mark.parametrize("status", [b"400 Bad", b"429 Slow", b"500 Broken", b"200 OK"])
async def test_a_refusal_ends_the_pings_of_the_session(status: bytes) -> None:
    model = Answering(TEXT)
    model.status = status
    async with serving(model) as proxy:
        agent = make_agent(proxy)
        await agent.work("Find the fault.")
        await wait_for_end(proxy)
        await agent.work("And now?")
        assert not proxy.app.services.cache_pings.waiting
        await make_agent(proxy, b"other").work("Find another fault.")
        assert len(proxy.app.services.cache_pings.waiting) == 1, "another session may have pings"
    assert len(model.pings) == 1
    assert count_pings(proxy) == {"failed" if status == b"200 OK" else "refused": 1}


async def test_an_upstream_that_answers_a_ping_gets_no_more_of_them() -> None:
    async def answer(request: RawRequest, connection: Connection) -> None:
        pings.append(b'"max_tokens": 0' in request.body)
        message = model.make_message({"model": "claude-opus-5-5", "messages": []}, TEXT)
        usage = {"input_tokens": 10, "output_tokens": 900, **SERVED}
        await send_reply(connection, b"200 OK", json.dumps(message | {"usage": usage}).encode(), JSON_TYPE)

    model, pings = StrictMessages(), list[bool]()
    async with (
        run_upstream(answer) as upstream,
        run_proxy(upstream.port, before=shorten, policy="thrifty", cache={"keep_alive_pings": MANY}) as proxy,
    ):
        await make_agent(proxy).work("Find the fault.")
        await wait_for_end(proxy)
        ((stored,),) = await proxy.rows("SELECT meter FROM exchanges")
        await make_agent(proxy, b"other").work("Find the fault.")
        assert not proxy.app.services.cache_pings.waiting
    assert pings == [False, True, False]
    assert count_pings(proxy) == {"answered": 1}
    assert [one.completion for one in read_meter(stored).pings] == [900], "it is paid"


async def test_a_refusal_ends_the_pings_of_the_other_branches_too() -> None:
    model = Answering(TEXT)
    async with serving(model) as proxy:
        for prompt in ("Find the fault.", "Find the word.", "Find the file."):
            await make_agent(proxy).work(prompt)
        await wait_for_end(proxy)
        await asyncio.sleep(LIFETIME_S - MARGIN_S)
    assert len(model.pings) == 1


async def test_a_ping_that_the_cache_did_not_serve_is_the_last_one_and_is_billed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(strict_messages.LIFETIMES, "5m", 0.01)
    model = StrictMessages(TEXT)
    async with serving(model) as proxy:
        agent = make_agent(proxy)
        await agent.work("Find the fault.")
        await wait_for_end(proxy)
        ((stored,),) = await proxy.rows("SELECT meter FROM exchanges")
        await agent.work("And now?")
        await asyncio.sleep(0.1)
        assert not proxy.app.services.cache_pings.waiting
    assert len(model.pings) == 1
    assert count_pings(proxy) == {"cold": 1}
    (ping,) = read_meter(stored).pings
    assert ping.cached == 0
    assert ping.cache_write is not None
    assert ping.cache_write > 2000


async def test_a_request_cancels_a_ping_under_way_before_it_is_answered() -> None:
    async def slow(_: RawRequest, connection: Connection) -> None:
        await wait_until(lambda: len(model.pings) == 2)
        message = model.make_message(model.bodies[-1], TEXT)
        await send_reply(connection, b"200 OK", json.dumps(message).encode(), JSON_TYPE)

    model = Answering(TEXT, slow, TEXT)
    model.hangs = True
    async with serving(model) as proxy:
        agent = make_agent(proxy)
        await agent.work("Find the fault.")
        await wait_until(lambda: len(model.pings) == 1)
        assert await agent.work("And now?") == "Done."
        assert model.pings[1] == {}, "the connection was closed"
        assert proxy.app.services.cache_pings.sending == set()
    assert count_pings(proxy)["cancelled"] >= 1


async def test_a_session_has_one_ping_under_way() -> None:
    model = Answering(TEXT)
    model.hangs = True
    async with serving(model) as proxy:
        for prompt in ("Find the fault.", "Find the word."):
            await make_agent(proxy).work(prompt)
        await wait_until(lambda: len(model.pings) == 1)
        await asyncio.sleep(LIFETIME_S - MARGIN_S)
        assert len(model.pings) == 1
        assert len(proxy.app.services.cache_pings.waiting) == 2


async def test_no_ping_begins_while_a_request_is_prepared() -> None:
    model = StrictMessages(TEXT)
    async with serving(model) as proxy:
        await make_agent(proxy).work("Find the fault.")
        ((tenant, session, name),) = proxy.app.services.cache_pings.waiting
        live = proxy.app.services.live_sessions.find_session(tenant, session)
        assert live is not None
        branch = live.branches[name]
        branch.last_request = msgspec.structs.replace(branch.last_request, tip_key=b"of the next request")
        await wait_for_end(proxy)
    assert model.pings == []


@pytest.mark.parametrize("stop", ["announce_stop", "drain"])
async def test_no_ping_begins_once_the_proxy_is_to_stop(stop: str) -> None:
    model = StrictMessages(TEXT)
    async with serving(model) as proxy:
        agent = make_agent(proxy)
        await agent.work("Find the fault.")
        getattr(proxy.app, stop)()
        assert not proxy.app.services.cache_pings.waiting
        await agent.work("And now?")
        assert not proxy.app.services.cache_pings.waiting
        await asyncio.sleep(LIFETIME_S)
    assert model.pings == []


async def test_a_session_that_is_removed_has_no_pings() -> None:
    async with serving(StrictMessages(TEXT), pings=MANY) as proxy:
        await make_agent(proxy).work("Find the fault.")
        ((tenant, session, _),) = proxy.app.services.cache_pings.waiting
        proxy.app.services.forget_session(tenant, session)
        assert not proxy.app.services.cache_pings.waiting


async def test_a_text_that_is_erased_is_not_sent_again() -> None:
    model = StrictMessages(TEXT)
    async with serving(model, pings=MANY) as proxy:
        await make_agent(proxy).work("Find the secret.")
        messages = (await proxy.get("/api/sessions/a/messages")).json()["items"]
        (gid,) = {one["group"] for one in messages if "secret" in json.dumps(one)}
        assert len(proxy.app.services.cache_pings.waiting) == 1
        ((tenant, session, _),) = proxy.app.services.cache_pings.waiting
        await edit_messages.remove(proxy.app.services, tenant, session, [gid])
        assert not proxy.app.services.cache_pings.waiting


async def test_an_older_answer_that_ends_later_has_no_ping() -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    async def slow(_: RawRequest, connection: Connection) -> None:
        begun.set()
        message = model.make_message(model.bodies[-1], TEXT)
        await go.wait()
        await send_reply(connection, b"200 OK", json.dumps(message).encode(), JSON_TYPE)

    model = StrictMessages(TEXT, slow, TEXT)
    async with serving(model, pings=1) as proxy:
        agent = make_agent(proxy)
        await agent.work("Find the fault.")
        agent.messages.append({"role": "user", "content": "And now?"})
        late = make_agent(proxy, messages=[*agent.messages])
        waiting = asyncio.create_task(late.ask())
        await begun.wait()
        agent.messages += [{"role": "assistant", "content": TEXT}, {"role": "user", "content": "Go on."}]
        await agent.ask()
        (newer,) = (one.task for one in proxy.app.services.cache_pings.waiting.values())
        go.set()
        await waiting
        assert not newer.cancelled()
        await wait_for_end(proxy)
        asked = [json.dumps(one["messages"][-1]) for one in model.pings]
        assert "Go on." in asked[-1]
        assert not any("And now?" in one for one in asked)


async def test_branches_and_bytes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_keep_alive, "MAX_WAITING_BRANCHES", 2)
    async with serving(StrictMessages(TEXT), pings=MANY) as proxy:
        waiting = proxy.app.services.cache_pings.waiting
        for name in (b"a", b"b", b"c"):
            await make_agent(proxy, name).work(f"Find fault {name!r}.")
        assert [session for _, session, _ in waiting] == ["b", "c"]
        tasks = [one.task for one in waiting.values()]
        monkeypatch.setattr(cache_keep_alive, "MAX_WAITING_BYTES", 15_000)
        await make_agent(proxy, b"d").work("Find fault d.")
        assert [session for _, session, _ in waiting] == ["d"]
        tasks += [one.task for one in waiting.values()]
        dropped = count_pings(proxy)["dropped"]
    await asyncio.sleep(0)
    assert dropped == 3
    assert all(task.done() for task in tasks), "ended with the process"


@pytest.mark.parametrize(
    "more",
    [
        {"thinking": {"type": "enabled", "budget_tokens": 1024}},
        {"tool_choice": {"type": "any"}},
        {"system": [{**SYSTEM[0], "cache_control": {"type": "ephemeral", "ttl": "1h"}}]},
    ],
)
async def test_a_prompt_that_cannot_be_pinged_is_left_alone(more: Json) -> None:
    async with serving(StrictMessages(TEXT)) as proxy:
        await make_agent(proxy, more=more).work("Find the fault.")
        assert not proxy.app.services.cache_pings.waiting


async def test_a_prompt_without_breakpoints_and_the_control_arm_have_no_pings() -> None:
    async with serving(StrictMessages(TEXT), cache={"breakpoints": False}) as proxy:
        await MessagesAgent(proxy, read_words, system="Be careful. " * 800).work("Find the fault.")
        assert not proxy.app.services.cache_pings.waiting
    async with serving(StrictMessages(TEXT), experiment={"control": 1.0}) as proxy:
        await make_agent(proxy).work("Find the fault.")
        assert not proxy.app.services.cache_pings.waiting


SERVED = {"cache_read_input_tokens": 3000}
LONG_WRITE = {"cache_creation_input_tokens": 3000, "cache_creation": {"ephemeral_1h_input_tokens": 3000}}


@pytest.mark.parametrize(
    ("system", "usage", "waits"),
    [
        (SYSTEM, SERVED, 1),
        (SYSTEM, {"cache_read_input_tokens": 0}, 0),
        (SYSTEM, {}, 0),
        (SYSTEM, LONG_WRITE, 0),
        (SYSTEM, {**SERVED, "input_tokens": 149}, 1),
        (SYSTEM, {**SERVED, "input_tokens": 151}, 0),
        ("Be careful. " * 800, SERVED, 0),
        ([{**SYSTEM[0], "cache_control": {"type": "ephemeral", "ttl": "1h"}}], SERVED, 0),
    ],
)
async def test_only_what_is_cached_for_five_minutes_is_kept_warm(system: Any, usage: Json, waits: int) -> None:
    async def answer(_: RawRequest, connection: Connection) -> None:
        made = model.make_message(model.bodies[-1], TEXT)
        reported = {"input_tokens": 10, "output_tokens": 5, **usage}
        await send_reply(connection, b"200 OK", json.dumps(made | {"usage": reported}).encode(), JSON_TYPE)

    model = StrictMessages(answer)
    async with serving(model, cache={"breakpoints": False}) as proxy:
        await MessagesAgent(proxy, read_words, system=system).work("Find the fault.")
        assert len(proxy.app.services.cache_pings.waiting) == waits


async def test_a_cloud_with_paths_of_its_own_gets_no_pings() -> None:
    async def answer(_: RawRequest, connection: Connection) -> None:
        message = model.make_message({"model": "claude-opus-5-5", "messages": []}, TEXT)
        usage = {"input_tokens": 10, "output_tokens": 5, **SERVED}
        await send_reply(connection, b"200 OK", json.dumps(message | {"usage": usage}).encode(), JSON_TYPE)

    model = StrictMessages()
    body = {"max_tokens": 9, "system": SYSTEM, "messages": [{"role": "user", "content": "Find the fault."}]}
    vertex = "/v1/projects/p/locations/l/publishers/anthropic/models/claude-opus-5-5:rawPredict"
    for path, more, waits in (
        ("/v1/messages", {"model": "claude-opus-5-5"}, 1),
        (vertex, {"anthropic_version": "vertex-2023-10-16"}, 0),
    ):
        async with (
            run_upstream(answer) as upstream,
            run_proxy(upstream.port, before=shorten, policy="thrifty", cache={"keep_alive_pings": 1}) as proxy,
        ):
            assert (await proxy.post(body | more, path=path)).status == 200
            assert await proxy.outcomes() == [("complete", 200, None)]
            assert len(proxy.app.services.cache_pings.waiting) == waits


async def test_side_calls_and_sub_agents_have_no_pings() -> None:
    model = StrictMessages(read_step(1, "a.py", thinks=False), TEXT)
    async with serving(model, pings=MANY) as proxy:
        await make_agent(proxy).work("Find the fault.")
        waiting = proxy.app.services.cache_pings.waiting
        (main,) = waiting
        helping = make_agent(proxy)
        helping.system = [{**SYSTEM[0], "text": "You search in files. " * 500}]
        model.answers = [read_step(2, "b.py", thinks=False), TEXT]
        await helping.work("Find the word.")
        assert list(waiting) == [main], "the branch that works keeps its pings"


async def test_an_answer_that_took_longer_than_the_cache_lives_has_no_ping() -> None:
    async def slow(_: RawRequest, connection: Connection) -> None:
        await asyncio.sleep(LIFETIME_S + 0.1)
        message = {**model.make_message(model.bodies[-1], TEXT), "id": "msg_slow"}
        await send_reply(connection, b"200 OK", json.dumps(message).encode(), JSON_TYPE)

    model = StrictMessages(slow)
    async with serving(model) as proxy:
        await make_agent(proxy).work("Find the fault.")
        await wait_for_end(proxy)
    assert model.pings == []


async def test_the_report_of_an_experiment_has_the_pings_of_managed_sessions() -> None:
    model = StrictMessages(TEXT)
    async with serving(model, experiment={"control": 1e-9}) as proxy:
        await make_agent(proxy).work("Find the fault.")
        await wait_for_end(proxy)
        await proxy.outcomes()
        found = await build_report(proxy.app.services, make_measure_cache(), None)
    assert (found.managed_sessions, found.pings) == (1, PINGS)
    (predicted, reported), dollars = msgspec.structs.astuple(found.predictions["managed"]), found.pings_dollars
    assert 0 < dollars < reported
    assert predicted == pytest.approx(reported), "pings are no error of the prediction"


def test_pings_are_paid_and_would_not_be_without_the_proxy() -> None:
    model = Model(input=1.0, output=5.0, tokenizer="estimate")
    plain = cost.Meter([(1000, 900)], 0, before=1000, held=900, sent=1000, expected=900, writes=[(100, 0)])
    pinged = msgspec.structs.replace(plain, pings=[Usage(1000, 0, 1000, 1000, 0)])
    bill, more = cost.compute_bill(model, plain), cost.compute_bill(model, pinged)
    assert bill is not None
    assert more is not None
    assert more.paid - bill.paid == pytest.approx(1000 * 0.1 / 1e6) == cost.price_pings(model, pinged)
    assert more.without_proxy == bill.without_proxy
    warm = cost.compute_bill(model, msgspec.structs.replace(plain, kept_warm=True, held=0))
    assert warm is not None
    assert warm.paid == bill.paid
    assert warm.without_proxy == pytest.approx(1000 * 1.25 / 1e6), "all of it would have been written again"
