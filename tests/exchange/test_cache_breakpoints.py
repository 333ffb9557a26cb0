"""Breakpoints of the proxy's through the running proxy: what is sent, what is saved, and upstreams without them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.dialect_agents import MessagesAgent, read_words
from tests.proxy_server import run_proxy
from tests.raw_upstream import run_upstream
from tests.strict_messages import StrictMessages, WithoutMember, read_step

Json = dict[str, Any]
LONG: Json = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
STEPS = 6


def make_model(kind: type[StrictMessages] = StrictMessages, steps: int = STEPS) -> StrictMessages:
    calls = (read_step(n, f"a{n}.py", thinks=False) for n in range(steps))
    return kind(*calls, [{"type": "text", "text": "Done."}])


def count_marks(body: Json) -> int:
    return json.dumps(body).count('"cache_control"')


async def test_a_client_without_marks_is_served_from_the_cache() -> None:
    model = make_model()
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        agent = MessagesAgent(proxy, read_words)
        assert await agent.work("Find the fault.") == "Done."
        await proxy.outcomes()
        paid, without = proxy.read_dollars()
        used = [answer["usage"] for answer in agent.answers]
        predicted, reported = (proxy.count("cached_tokens_total", kind=kind) for kind in ("predicted", "reported"))
    assert model.refusals == []
    assert [count_marks(body) for body in model.bodies] == [0, *[2] * STEPS], "the first prompt is too short"
    assert all(one["cache_read_input_tokens"] > 1000 > one["input_tokens"] for one in used[2:])
    assert used[-1]["cache_read_input_tokens"] > 10_000
    assert paid < 0.7 * without, "without the proxy nothing is cached, and nothing is written either"
    assert 0.5 * predicted < reported < 2 * predicted, "the upstream counts otherwise"


async def test_passthrough_observe_and_the_setting_leave_a_prompt_unchanged() -> None:
    trees: list[Json] = [{"policy": "observe"}, {"policy": "passthrough"}, {"policy": "thrifty", "cache": {}}]
    trees[-1]["cache"]["breakpoints"] = False
    for tree in trees:
        model = make_model(steps=2)
        async with run_upstream(model) as upstream, run_proxy(upstream.port, **tree) as proxy:
            await MessagesAgent(proxy, read_words).work("Find the fault.")
            await proxy.outcomes()
            paid, without = proxy.read_dollars()
        assert [count_marks(body) for body in model.bodies] == [0, 0, 0]
        assert paid == pytest.approx(without)


class WithoutMarks(WithoutMember):
    """A gateway that takes no cache marks."""

    member = b'"cache_control"'
    words = "messages.0.content.0.cache_control: Extra inputs are not permitted"


class Wordless(WithoutMarks):
    """Another one that does not say what it refuses."""

    words = "bad request"


@pytest.mark.parametrize("kind", [WithoutMarks, Wordless])
async def test_an_upstream_that_refuses_marks_gets_them_once(kind: type[WithoutMarks]) -> None:
    model = make_model(kind)
    assert isinstance(model, WithoutMarks)
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        assert await MessagesAgent(proxy, read_words).work("Find the fault.") == "Done."
        outcomes = await proxy.outcomes()
        (line,) = await proxy.app.store.list_sessions(None)
        live = proxy.app.services.live_sessions.find_session(line.tenant, line.session)
    assert model.refused == 1
    assert {(status, fallback) for status, _, fallback in outcomes} == {("complete", None)}
    assert live is not None
    assert [branch.state.stopped for branch in live.branches.values()] == [None]


async def test_a_lifetime_that_the_client_asks_for_counts_from_the_first_request() -> None:
    model = make_model(steps=1)
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        now = [1000.0]
        model.now = proxy.app.services.now = lambda: now[0]
        agent = MessagesAgent(proxy, read_words, more=LONG)
        await agent.work("Find the fault.")
        await proxy.outcomes()
        now[0] += 1800  # longer than five minutes, shorter than an hour
        await agent.work("Go on.")
        await proxy.outcomes()
        paid, without = proxy.read_dollars()
        used = agent.answers[-1]["usage"]
        expected = await proxy.rows("SELECT predicted FROM exchanges ORDER BY started_at DESC LIMIT 1")
    assert used["cache_read_input_tokens"] > 1000
    assert expected[0][0] > 1000, "the cache is taken for warm"
    usages = [answer["usage"] for answer in agent.answers]
    prompt = sum(
        one["input_tokens"]
        + 2 * one["cache_creation"]["ephemeral_1h_input_tokens"]
        + 0.05 * one["cache_read_input_tokens"]
        for one in usages
    )
    assert all(one["cache_creation"]["ephemeral_5m_input_tokens"] == 0 for one in usages)
    assert paid == pytest.approx((prompt * 4 + sum(one["output_tokens"] for one in usages) * 20) / 1e6)
    assert without == pytest.approx(paid)


@pytest.mark.parametrize(("ttl", "price_of_writes"), [("5m", 1.25), ("1h", 2.0)])
@pytest.mark.parametrize("stream", [False, True])
async def test_metrics_statistics_and_savings_are_what_the_provider_bills(
    ttl: str, price_of_writes: float, stream: bool
) -> None:
    model = make_model(steps=4)
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        more: Json = {"cache_control": {"type": "ephemeral", "ttl": ttl}}
        agent = MessagesAgent(proxy, read_words, stream=stream, more=more, lines=(b"x-context-session: a",))
        await agent.work("Find the fault.")
        await proxy.outcomes()
        paid, without = proxy.read_dollars()
        stats = (await proxy.get("/api/sessions/a/stats")).json()
        sums = (await proxy.get("/api/savings?since=0")).json()
        names = ("prompt_tokens_total", "completion_tokens_total")
        counted = [*(proxy.count(name) for name in names), proxy.count("cached_tokens_total", kind="reported")]
    usages = [answer["usage"] for answer in agent.answers]
    fresh, read_again, written, said_tokens = (
        sum(one[name] for one in usages)
        for name in ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens")
    )
    assert sum(one["cache_creation"][f"ephemeral_{ttl}_input_tokens"] for one in usages) == written > 1000
    assert counted == [fresh + read_again + written, said_tokens, read_again]
    assert [stats["prompt_tokens"], stats["completion_tokens"], stats["cached_reported"]] == counted
    bill = (4 * (fresh + price_of_writes * written + 0.05 * read_again) + 20 * said_tokens) / 1e6
    assert paid == pytest.approx(bill)
    assert [stats["cost"], sums["cost"]] == pytest.approx([bill, bill])
    assert [stats["cost_without"], sums["cost_without"]] == pytest.approx([without, without])


async def test_a_reported_write_for_five_minutes_outweighs_the_client() -> None:
    class Short(StrictMessages):
        def _read_cache(self, body: Any) -> Json:
            found = super()._read_cache(body)
            written = found["cache_creation_input_tokens"]
            return found | {"cache_creation": {"ephemeral_5m_input_tokens": written, "ephemeral_1h_input_tokens": 0}}

    model = make_model(Short, steps=1)
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        now = [1000.0]
        proxy.app.services.now = lambda: now[0]
        agent = MessagesAgent(proxy, read_words, more=LONG)
        await agent.work("Find the fault.")
        await proxy.outcomes()
        now[0] += 1800
        await agent.work("Go on.")
        await proxy.outcomes()
        expected = await proxy.rows("SELECT predicted FROM exchanges ORDER BY started_at DESC LIMIT 1")
    assert expected == [(0,)]
