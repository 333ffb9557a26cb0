"""Costs with the proxy and without it: calculated by hand, and through the running proxy."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from proxy.chat.tokens import TokenCounter, estimate_text_tokens
from proxy.context.models import Model
from proxy.context.prices import estimate_usage
from proxy.dialects.completions.request import read_request
from proxy.dialects.usage import Usage
from proxy.exchange.cost import Meter, compute_bill, predict_bill, read_meter
from tests.dialect_agents import MessagesAgent, ResponsesAgent
from tests.exchange.hidden_calls import TOOLS, make_answer, make_client_call, make_proxy_call, run_proxy_with_tools
from tests.proxy_server import Agent, RunningProxy, run_proxy
from tests.raw_upstream import HANGS_S, STREAM, Connection, RawRequest, run_upstream
from tests.recorded import policies
from tests.scripted_model import (
    Answer,
    ScriptedModel,
    make_calls,
    make_completion,
    make_events,
    send_completion,
    send_reply,
)
from tests.strict_messages import StrictMessages
from tests.strict_responses import Say, StrictResponses

PRICED = """
[models."priced"]
window = 100000
tokenizer = "estimate"
input = 2.0
output = 10.0
w = 1.25
w_long = 2.0
r = 0.1
min = 100
block = 1
tiers = [["flex", 0.5], ["fast", 3.0], ["us", 1.1]]
"""


@pytest.fixture
def prices(tmp_path: Path) -> str:
    file = tmp_path / "models.toml"
    file.write_text(PRICED)
    return str(file)


def usage(prompt: int, cached: int) -> dict[str, Any]:
    return {"prompt_tokens": prompt, "completion_tokens": 100, "prompt_tokens_details": {"cached_tokens": cached}}


JSON = b"content-type: application/json"
HISTORY: list[dict[str, Any]] = [{"role": "user", "content": "Look around. " + "x " * 500}]


async def test_an_untouched_prompt_costs_what_it_would_have_cost(prices: str) -> None:
    model = ScriptedModel("Done.")
    model.usage = usage(1000, 400)
    async with run_upstream(model) as upstream, run_proxy(upstream.port, models_file=prices) as proxy:
        await proxy.post({"model": "priced", "messages": HISTORY})
        paid, without = proxy.read_dollars()
    # 600 tokens at 1.25 x 2 dollars a million, 400 at a tenth of 2, and 100 of the answer at 10
    assert paid == pytest.approx((600 * 2.5 + 400 * 0.2 + 100 * 10) / 1e6)
    assert without == pytest.approx(paid)


async def test_a_model_without_prices_has_no_bill(prices: str) -> None:
    async with run_upstream(ScriptedModel("Done.")) as upstream, run_proxy(upstream.port, models_file=prices) as proxy:
        await proxy.post({"model": "nobody-knows", "messages": HISTORY})
        assert proxy.read_dollars() == (0.0, 0.0)


async def test_a_shortened_prompt_is_compared_with_the_client_s_own_and_its_cache(prices: str) -> None:
    """A window of one group: the second request goes out without a long group in its middle."""
    model = ScriptedModel("Done. " * 400, "Done again.")
    model.usage = usage(1000, 0)
    async with run_upstream(model) as upstream, run_proxy(upstream.port, models_file=prices, policy="rolling") as proxy:
        first = await proxy.post({"model": "priced", "messages": HISTORY})
        before = proxy.read_dollars()
        history = [*HISTORY, first.message]
        for n in range(6):
            history += [
                {"role": "user", "content": f"And {n}? " + "y " * (200 if n else 4000)},
                {"role": "assistant", "content": "So."},
            ]
        history.append({"role": "user", "content": "And now?"})
        answer = await proxy.post({"model": "priced", "messages": history})
        before_tokens, after_tokens = map(int, (answer.header("x-context-tokens") or "").split(","))
        paid, without = (now - then for now, then in zip(proxy.read_dollars(), before, strict=True))
    assert after_tokens < before_tokens
    assert paid == pytest.approx((1000 * 2.5 + 100 * 10) / 1e6)
    # The first prompt would have come from the cache, and its long answer would have been written: no prompt has had it
    # before. The upstream counts by another measure: what is new is scaled by the lesser quotient of both counts.
    known, sent_first = map(int, (first.header("x-context-tokens") or "").split(","))
    new = (before_tokens - known) * min(1000 / sent_first, 1000 / after_tokens)
    factor = (known * 1000 / sent_first + new) / before_tokens
    all_written = (before_tokens * factor * 2.5 + 100 * 10) / 1e6
    assert without == pytest.approx(all_written - known * factor * 2.3 / 1e6, rel=0.003)
    assert without > paid


@pytest.mark.parametrize(("reported", "held"), [(0, 0), (700, 0), (700, 300), (700, 800)])
def test_a_prefix_that_the_provider_serves_is_cached_without_the_proxy_too(reported: int, held: int) -> None:
    """A conversation that was not recognised: the bill told a saving of two thirds where the agent paid a half more."""
    model = Model(name="priced", input=2.0, output=10.0, w=1.0, r=0.1, min=0, block=1, tokenizer="estimate")
    meter = Meter(rounds=[(1000, reported)], completion=0, before=1500, held=held, sent=1000, expected=0)
    bill = compute_bill(model, meter)
    assert bill is not None
    cached = max(reported, held)
    assert bill.without_proxy == pytest.approx(((1500 - cached) * 2.0 + cached * 0.2) / 1e6)


@pytest.mark.parametrize(("reported", "served"), [(-1, 1.0), (900, 1.0), (450, 1.0), (449, 449 / 900), (0, 0.0)])
def test_a_cache_that_drops_the_sent_prompt_would_have_dropped_the_clients_own(reported: int, served: float) -> None:
    """Before a cache that hits seven times of ten, a saving was reported as a loss."""
    model = Model(name="priced", input=2.0, output=10.0, w=1.0, r=0.1, min=0, block=1, tokenizer="estimate")
    meter = Meter([(1000, reported)], 0, before=1500, held=1300, sent=1000, expected=900, planned=(800, 700))
    bill = compute_bill(model, meter)
    assert bill is not None
    held, planned = round(1300 * served), round(700 * served)
    assert bill.without_proxy == pytest.approx(((1500 - held) * 2.0 + held * 0.2) / 1e6)
    assert bill.planned == pytest.approx(((800 - planned) * 2.0 + planned * 0.2) / 1e6)
    predicted = predict_bill(model, meter)
    assert predicted is not None
    assert predicted.own == pytest.approx((200 * 2.0 + 1300 * 0.2) / 1e6), "a prediction is made before the answer"


async def test_without_the_proxy_nothing_is_cached_where_the_upstream_caches_nothing(prices: str) -> None:
    """A window of five groups: each prompt is shortened. All of the client's own counted as served."""
    model = ScriptedModel("Done.")
    model.usage = usage(1000, 0)
    history = [*HISTORY]
    async with run_upstream(model) as upstream, run_proxy(upstream.port, models_file=prices, policy="rolling") as there:
        for n in range(14):
            answer = await there.post({"model": "priced", "messages": history})
            history += [answer.message, {"role": "user", "content": f"And {n}? " + "y " * 2000}]
        counted = there.read_dollars()
        answer = await there.post({"model": "priced", "messages": history})
        paid, without = (now - then for now, then in zip(there.read_dollars(), counted, strict=True))
        (place,) = await there.app.store.read_sessions_used_since(0.0)
        rows = await there.app.store.read_exchanges(*place, 1)
    before, after = map(int, (answer.header("x-context-tokens") or "").split(","))
    assert 2 * after < before
    assert paid == pytest.approx((1000 * 2.5 + 100 * 10) / 1e6)
    assert without > paid
    assert rows[0].meter is not None
    assert read_meter(rows[0].meter).held == 0


async def test_an_answer_without_a_count_has_no_cached_tokens_once_there_was_a_count(prices: str) -> None:
    """vLLM leaves out a count of zero. What was expected was billed as served."""
    model = ScriptedModel("Done.")
    plain = {"prompt_tokens": 1000, "completion_tokens": 100}
    history = [*HISTORY]
    paid = []
    async with run_upstream(model) as upstream, run_proxy(upstream.port, models_file=prices) as there:
        for model.usage in (usage(1000, 0), plain, usage(1000, 900), {**plain, "prompt_tokens_details": None}):
            before = there.read_dollars()[0]
            answer = await there.post({"model": "priced", "messages": history})
            history += [answer.message, {"role": "user", "content": "And now?"}]
            paid.append(there.read_dollars()[0] - before)
    whole = (1000 * 2.5 + 100 * 10) / 1e6
    assert paid[0] == pytest.approx(whole)
    assert paid[1] < whole, "no count has come yet, so that a missing one proves nothing"
    assert paid[2] == pytest.approx((100 * 2.5 + 900 * 0.2 + 100 * 10) / 1e6)
    assert paid[3] == pytest.approx(whole)


async def test_hidden_rounds_without_a_count_have_no_cached_tokens_once_there_was_a_count(prices: str) -> None:
    model = ScriptedModel("Done.", make_answer(None, make_proxy_call(1)), "Done.")
    async with run_upstream(model) as upstream, run_proxy_with_tools(upstream.port, models_file=prices) as there:
        model.usage = usage(1000, 400)
        first = await there.post({"model": "priced", "messages": HISTORY, "tools": TOOLS})
        before = there.read_dollars()[0]
        model.usage = {"prompt_tokens": 1000, "completion_tokens": 100}
        history = [*HISTORY, first.message, {"role": "user", "content": "And now?"}]
        await there.post({"model": "priced", "messages": history, "tools": TOOLS})
        paid = there.read_dollars()[0] - before
    assert paid == pytest.approx(2 * (1000 * 2.5 + 100 * 10) / 1e6)


async def test_hidden_rounds_are_part_of_the_cost_that_the_proxy_adds(prices: str) -> None:
    model = ScriptedModel(make_answer(None, make_proxy_call(1)), make_answer(None, make_proxy_call(2)), "Done.")
    model.usage = usage(1000, 400)
    async with run_upstream(model) as upstream, run_proxy_with_tools(upstream.port, models_file=prices) as proxy:
        answer = await proxy.post({"model": "priced", "messages": HISTORY, "tools": TOOLS})
        paid, without = proxy.read_dollars()
    prompt = 600 * 2.5 + 400 * 0.2
    assert paid == pytest.approx((3 * prompt + 300 * 10) / 1e6)
    before, after = map(int, (answer.header("x-context-tokens") or "").split(","))
    assert before < after, "our tools came in front"
    # Without them so much less would have come from the cache, and the first two answers would not have been. A token
    # may be rounded away.
    own = prompt - (1 - before / after) * 1000 * 0.2 + 100 * 10
    assert without == pytest.approx(own / 1e6, abs=3e-6)


@pytest.mark.parametrize("policy", policies.FILES)
async def test_the_tokens_before_are_those_of_the_clients_own_prompt(policy: str) -> None:
    with_ours: list[Answer] = [
        make_answer("Look. ", make_proxy_call(1)),
        make_answer(None, make_client_call(1)),
        make_answer(None, make_proxy_call(2)),
        "Done.",
    ]
    without: list[Answer] = [make_answer("Look. ", make_client_call(1)), "Done."]
    counts: dict[str, list[int]] = {}
    for name, answers in (("passthrough", without), (policy, with_ours)):
        model = ScriptedModel(*answers)
        async with run_upstream(model) as upstream, run_proxy_with_tools(upstream.port, name) as proxy:
            agent = Agent(proxy, more={"tools": TOOLS})
            heard = [await agent.say("Look around. " + "x " * 500)]
            agent.messages[-1] = make_answer("Look. ", make_client_call(1))
            agent.brings("a result")
            heard.append(await agent.say())
        counts[name] = [int((one.header("x-context-tokens") or "").split(",")[0]) for one in heard]
    assert counts[policy] == counts["passthrough"]


class Metered:
    """An upstream that counts as the proxy does, and takes from its cache what it was sent the last time."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.paid = 0.0
        self.steps = 0

    async def __call__(self, request: RawRequest, connection: Connection) -> None:
        read, token_counter = read_request(request.body), TokenCounter(estimate_text_tokens)
        sizes, came = [token_counter(m) for m in read.messages], [m.raw for m in read.messages]
        shared = next((n for n, (a, b) in enumerate(zip(came, self.sent, strict=False)) if a != b), len(self.sent))
        head, shared, self.sent = token_counter.count_tools(read.tools), min(shared, len(came)), came
        prompt, cached = head + sum(sizes), head + sum(sizes[:shared]) if shared else 0
        self.paid += ((prompt - cached) * 1.25 * 2 + cached * 0.1 * 2 + 100 * 10) / 1e6
        self.steps += 1
        called = make_calls((f"call_{self.steps:06}", "look"), at=self.steps)
        message = called if self.steps < 60 else {"role": "assistant", "content": "Done."}
        await send_completion(connection, message, usage(prompt, cached))


async def read_stats_after_work(proxy: RunningProxy, metered: Metered) -> dict[str, Any]:
    """A session with sixty calls, each with a long result; its figures by the API."""
    agent = Agent(proxy, (b"x-context-session: s",), more={"model": "priced", "tools": TOOLS})
    agent.messages = [{"role": "system", "content": "Be."}]
    await agent.say("Look around.")
    while agent.messages[-1].get("tool_calls"):
        n = len(agent.messages)
        agent.brings("\n".join(f"row {n}-{k} of a listing with words in it" for k in range(150)))
        await agent.say()
    async with asyncio.timeout(HANGS_S):
        while proxy.app.store.queued:
            await asyncio.sleep(0.005)
    return dict((await proxy.get("/api/sessions/s/stats")).json())


def kinds(proxy: RunningProxy) -> dict[str, float]:
    return {kind: proxy.count("cost_dollars_total", kind=kind) for kind in ("paid", "without", "planned")}


@pytest.mark.slow
async def test_observe_pays_for_the_originals_and_says_what_the_plan_would_have_cost(prices: str) -> None:
    found: dict[str, dict[str, Any]] = {}
    counted: dict[str, dict[str, float]] = {}
    spent: dict[str, float] = {}
    for policy in ("observe", "thrifty", "passthrough"):
        metered = Metered()
        plain: dict[str, Any] = {"models_file": prices, "policy": policy, "state": {"ask": "never"}}
        async with run_upstream(metered) as upstream, run_proxy(upstream.port, **plain) as proxy:
            found[policy], counted[policy] = await read_stats_after_work(proxy, metered), kinds(proxy)
            lines = (await proxy.get("/api/live")).json()["items"]
            money = (await proxy.get("/api/money")).json()["total"]
        spent[policy] = metered.paid
        for figures in (lines[0]["figures"], money):
            for name in ("cost", "cost_without"):
                assert figures[name] == pytest.approx(found[policy][name])
        planned = found[policy]["cost_planned"]
        assert lines[0]["figures"]["cost_planned"] == (None if planned is None else pytest.approx(planned))
        assert money["cost_planned"] == pytest.approx(planned if planned is not None else found[policy]["cost"])
    observed = found["observe"]
    assert observed["cost"] == observed["cost_without"] == pytest.approx(spent["observe"])
    assert observed["planned_as"] == "thrifty"
    assert observed["cost_planned"] == pytest.approx(spent["thrifty"], rel=0.05)
    assert observed["cost_planned"] < 0.9 * observed["cost"]
    assert found["thrifty"]["cost"] == pytest.approx(spent["thrifty"])
    assert found["thrifty"]["cost_without"] == pytest.approx(spent["passthrough"], rel=0.05)
    assert found["thrifty"]["cost_planned"] is found["passthrough"]["cost_planned"] is None
    for policy, figures in found.items():
        assert counted[policy]["paid"] == pytest.approx(figures["cost"])
        assert counted[policy]["without"] == pytest.approx(figures["cost_without"])
        assert counted[policy]["planned"] == pytest.approx(figures["cost_planned"] or 0.0)


async def test_the_api_and_the_metrics_cost_hidden_rounds_by_the_same_function(prices: str) -> None:
    model = ScriptedModel(make_answer(None, make_proxy_call(1)), "Done.")
    model.usage = usage(100_000, 0)
    async with run_upstream(model) as upstream, run_proxy_with_tools(upstream.port, models_file=prices) as proxy:
        agent = Agent(proxy, (b"x-context-session: s",), more={"model": "priced", "tools": TOOLS})
        await agent.say("Look around. " + "x " * 500)
        await proxy.outcome()
        found = (await proxy.get("/api/sessions/s/stats")).json()
        counted = kinds(proxy)
        (point,) = (await proxy.get("/api/sessions/s/points")).json()
    assert counted["paid"] == pytest.approx((2 * 100_000 * 2.5 + 200 * 10) / 1e6)
    assert found["cost"] == point["cost"] == pytest.approx(counted["paid"])
    assert found["cost_without"] == point["cost_without"] == pytest.approx(counted["without"])
    assert found["prompt_tokens"] == 200_000


def no_tool(name: str, arguments: dict[str, Any]) -> str:
    return ""


class BilledMessages(StrictMessages):
    """An upstream that read 9,000 tokens from its cache, and wrote 300 for five minutes and 100 for an hour."""

    def _read_cache(self, body: Any) -> dict[str, Any]:
        return {
            "input_tokens": 50,
            "cache_read_input_tokens": 9000,
            "cache_creation_input_tokens": 400,
            "cache_creation": {"ephemeral_5m_input_tokens": 300, "ephemeral_1h_input_tokens": 100},
        }


class BilledResponses(StrictResponses):
    """An upstream that reports what it read from its cache and wrote to it within the input."""

    def _usage(self, asked: Any, items: Any, output: Any) -> dict[str, Any]:
        details = {"cached_tokens": 9000, "cache_write_tokens": 400}
        return {
            "input_tokens": 9450, "input_tokens_details": details, "output_tokens": 70, "total_tokens": 9520,
            "output_tokens_details": {"reasoning_tokens": 60},
        }  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
async def test_messages_are_billed_by_what_was_read_written_and_for_how_long(prices: str, stream: bool) -> None:
    model = BilledMessages([{"type": "text", "text": "Done."}])
    async with run_upstream(model) as upstream, run_proxy(upstream.port, models_file=prices) as proxy:
        agent = MessagesAgent(proxy, no_tool, stream=stream, more={"model": "priced"})
        await agent.work("Look around.")
        await proxy.outcomes()
        paid, without = proxy.read_dollars()
        (line,) = await proxy.app.store.list_sessions(None)
        live = proxy.app.services.live_sessions.find_session(line.tenant, line.session)
        assert live is not None
        assert [branch.unstored.has_long_cache for branch in live.branches.values()] == [True]
    output = len(json.dumps([{"type": "text", "text": "Done."}])) // 4
    prompt = 50 * 2 + 9000 * 0.2 + 300 * 2.5 + 100 * 4
    assert paid == pytest.approx((prompt + output * 10) / 1e6)
    assert without == pytest.approx(paid)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_compaction_of_the_provider_is_paid_with_the_proxy_and_without_it(prices: str, stream: bool) -> None:
    """Anthropic's: its tokens are among the `iterations`, and in no other count."""

    class Compacting(BilledMessages):
        def make_message(self, body: Any, answer: Any) -> dict[str, Any]:
            message = super().make_message(body, answer)
            spent = {"input_tokens": 20, "output_tokens": 3500, "cache_read_input_tokens": 180_000}
            own = {name: message["usage"][name] for name in ("input_tokens", "output_tokens")}
            spent["cache_creation_input_tokens"] = 0
            message["usage"]["iterations"] = [{"type": "compaction", **spent}, {"type": "message", **own}]
            return message

    async with (
        run_upstream(Compacting([{"type": "text", "text": "Done."}])) as upstream,
        run_proxy(upstream.port, models_file=prices) as proxy,
    ):
        await MessagesAgent(proxy, no_tool, stream=stream, more={"model": "priced"}).work("Look around.")
        await proxy.outcomes()
        paid, without = proxy.read_dollars()
        ((text,),) = await proxy.rows("SELECT meter FROM exchanges")
    output = len(json.dumps([{"type": "text", "text": "Done."}])) // 4
    prompt = 50 * 2 + 9000 * 0.2 + 300 * 2.5 + 100 * 4
    assert paid == pytest.approx((prompt + output * 10 + 20 * 2 + 180_000 * 0.2 + 3500 * 10) / 1e6)
    assert without == pytest.approx(paid)
    model, meter = Model("m", input=2.0, output=10.0, w=1.25, w_long=2.0, r=0.1), read_meter(text)
    bill, predicted = compute_bill(model, meter), predict_bill(model, meter)
    assert bill is not None
    assert bill.paid == pytest.approx(paid)
    assert predicted is not None
    assert predicted.rounds == 0
    assert min(predicted.sent, predicted.own) > (180_000 * 0.2 + 3500 * 10) / 1e6


@pytest.mark.parametrize("stream", [False, True])
async def test_responses_are_billed_by_the_same_function(prices: str, stream: bool) -> None:
    async with (
        run_upstream(BilledResponses([Say("Done.")])) as upstream,
        run_proxy(upstream.port, models_file=prices) as proxy,
    ):
        agent = ResponsesAgent(proxy, no_tool, stream=stream, more={"model": "priced"})
        await agent.work("Look around.")
        await proxy.outcomes()
        paid, _ = proxy.read_dollars()
        agent.more["service_tier"] = "flex"
        await agent.work("Once more, slowly.")
        await proxy.outcomes()
        slow = proxy.read_dollars()[0] - paid
    assert paid == pytest.approx((50 * 2 + 9000 * 0.2 + 400 * 2.5 + 70 * 10) / 1e6)
    assert slow == pytest.approx(paid / 2)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_fast_answer_of_anthropic_costs_what_that_costs(prices: str, stream: bool) -> None:
    class Fast(BilledMessages):
        def _read_cache(self, body: Any) -> dict[str, Any]:
            return {"input_tokens": 9450, "service_tier": "standard", "speed": "fast", "inference_geo": "us"}

    model = Fast([{"type": "text", "text": "Done."}])
    async with run_upstream(model) as upstream, run_proxy(upstream.port, models_file=prices) as proxy:
        await MessagesAgent(proxy, no_tool, stream=stream, more={"model": "priced"}).work("Look around.")
        await proxy.outcomes()
        paid, without = proxy.read_dollars()
    output = len(json.dumps([{"type": "text", "text": "Done."}])) // 4
    assert paid == pytest.approx((9450 * 2.5 + output * 10) * 3 * 1.1 / 1e6)
    assert without == pytest.approx(paid)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("tier", "factor"), [("flex", 0.5), ("default", 1.0), ("unheard-of", 1.0), (7, 1.0)])
async def test_an_answer_of_openai_costs_what_its_service_tier_costs(
    prices: str, stream: bool, tier: Any, factor: float
) -> None:
    async def answer(_: RawRequest, connection: Connection) -> None:
        events = make_events({"role": "assistant", "content": "Done."}, usage(1000, 400))
        whole = json.loads(make_completion({"role": "assistant", "content": "Done."}, usage(1000, 400)))
        if not stream:
            await send_reply(connection, b"200 OK", json.dumps(whole | {"service_tier": tier}).encode(), JSON)
            return
        await connection.send(STREAM)
        for event in events:
            await connection.chunk(
                event.replace(b'"object"', b'"service_tier": %b, "object"' % json.dumps(tier).encode())
            )
        await connection.chunk(b"")

    # Tools of the proxy are offered: a stream is written anew then.
    async with run_upstream(answer) as upstream, run_proxy_with_tools(upstream.port, models_file=prices) as proxy:
        await proxy.post({"model": "priced", "messages": HISTORY, "tools": TOOLS, "stream": stream})
        await proxy.outcomes()
        paid, _ = proxy.read_dollars()
    assert paid == pytest.approx(factor * (600 * 2.5 + 400 * 0.2 + 100 * 10) / 1e6)


async def test_dollars_that_the_provider_reports_are_what_was_paid(prices: str) -> None:
    model = ScriptedModel("Done.", "Done.")
    model.usage = {**usage(1000, 400), "cost": 0.5}
    async with run_upstream(model) as upstream, run_proxy(upstream.port, models_file=prices) as proxy:
        await proxy.post({"model": "priced", "messages": HISTORY})
        assert proxy.read_dollars() == pytest.approx((0.5, 0.5))
        await proxy.post({"model": "nobody-knows", "messages": HISTORY})
        assert proxy.read_dollars() == pytest.approx((1.0, 1.0)), "a price is told even of an unknown model"


def test_the_prompt_that_was_not_sent_is_scaled_by_what_the_provider_asked() -> None:
    model = Model(input=2.0, output=10.0, w=1.25, r=0.1)
    meter = Meter([(1000, 0)], 0, before=2000, held=0, sent=1000, expected=0)
    assert compute_bill(model, meter) == pytest.approx((0.0025, 0.005, None))
    half = msgspec.structs.replace(meter, dollars=[0.00125])
    assert compute_bill(model, half) == pytest.approx((0.00125, 0.0025, None))


def test_a_difference_in_the_form_of_calls_is_not_scaled_with_the_texts_that_were_cut() -> None:
    """The provider counts 200 tokens more for tools and calls, which both prompts have. It counts texts as we do."""
    model = Model(input=2.0, output=10.0, w=1.0, r=0.1)
    meter = Meter([(1200, 0)], 0, before=5000, held=3000, sent=1000, expected=0, planned=(2000, 1000))
    bill = compute_bill(model, meter)
    assert bill is not None
    assert bill.without_proxy == pytest.approx((2000 * 2 + 3200 * 0.2) / 1e6)
    assert bill.planned == pytest.approx((1000 * 2 + 1200 * 0.2) / 1e6)
    predicted = predict_bill(model, meter)
    assert predicted is not None
    assert predicted.own == pytest.approx(bill.without_proxy)
    unknown = compute_bill(replace(model, tokenizer="estimate"), meter)
    assert unknown is not None, "with another vocabulary each text differs"
    assert unknown.without_proxy == pytest.approx((2400 * 2 + 3600 * 0.2) / 1e6)


def test_a_provider_that_counts_less_than_half_of_the_prompt_scales_what_is_saved() -> None:
    """Its count was taken for the form of calls: 4,010 tokens were told without the proxy, beside 10 with it."""
    model = Model(input=2.0, output=10.0, w=1.0, r=0.1)
    bill = compute_bill(model, Meter([(10, 0)], 0, before=5000, held=0, sent=1000, expected=0))
    assert bill is not None
    assert (bill.paid, bill.without_proxy) == pytest.approx((10 * 2 / 1e6, 50 * 2 / 1e6))


def test_cached_tokens_that_are_not_reported_are_expected_by_the_count_of_the_provider() -> None:
    """The provider counts 200 tokens more, in what its cache holds. They counted as written with each request."""
    model = Model(input=2.0, output=10.0, w=1.25, r=0.1)
    bill = compute_bill(model, Meter([(1200, -1)], 0, before=1000, held=900, sent=1000, expected=900))
    assert bill is not None
    assert (bill.paid, bill.without_proxy) == pytest.approx(((100 * 2.5 + 1100 * 0.2) / 1e6,) * 2)


def test_refetched_text_is_not_part_of_the_cost_without_the_proxy() -> None:
    model = Model(input=2.0, output=10.0, w=1.25, r=0.1)
    meter = Meter([(1000, 800)], 60, before=3000, held=2900, sent=1000, expected=800, refetched=600)
    bill = compute_bill(model, meter)
    assert bill is not None
    assert bill.without_proxy == pytest.approx((100 * 2.5 + 2900 * 0.2 + 60 * 10) / 1e6)
    # The prompt that was sent is as long as the client's own without the copy, and is not the same.
    same = compute_bill(model, msgspec.structs.replace(meter, before=1000, held=1000))
    assert same is not None
    assert same.without_proxy == pytest.approx((1000 * 0.2 + 60 * 10) / 1e6)
    # The request brings nothing else: its answer would have come in place of the calls before it.
    fetching = msgspec.structs.replace(meter, fetching=25)
    bill, predicted = compute_bill(model, fetching), predict_bill(model, fetching)
    assert bill is not None
    assert predicted is not None
    assert bill.without_proxy == predicted.own == pytest.approx(35 * 10 / 1e6)
    assert bill.paid == pytest.approx((200 * 2.5 + 800 * 0.2 + 60 * 10) / 1e6)


def test_a_note_that_the_proxy_asks_for_would_not_have_been_written_without_it() -> None:
    model = Model(input=2.0, output=10.0, w=1.25, r=0.1)
    meter = Meter([(1000, 0)], 500, before=2000, held=0, sent=1000, expected=0, asked=450)
    bill, predicted = compute_bill(model, meter), predict_bill(model, meter)
    assert bill is not None
    assert predicted is not None
    assert bill.without_proxy == predicted.own == pytest.approx((2000 * 2.5 + 50 * 10) / 1e6)
    assert bill.paid == predicted.sent == pytest.approx((1000 * 2.5 + 500 * 10) / 1e6)


def test_a_long_prompt_that_was_not_sent_would_have_cost_its_step() -> None:
    model = Model(input=2.0, output=10.0, w=1.0, r=0.1, steps=((1500, 2.0, 1.5),))
    meter = Meter([(1000, 0)], 100, before=2000, held=0, sent=1000, expected=0)
    bill = compute_bill(model, meter)
    assert bill is not None
    assert bill.paid == pytest.approx((1000 * 2 + 100 * 10) / 1e6)
    assert bill.without_proxy == pytest.approx((2000 * 4 + 100 * 15) / 1e6)


def test_a_client_that_marks_nothing_would_have_written_nothing_either() -> None:
    sent = estimate_usage(Usage(1000, 0, 1000, 0, 0), 2000, 0, 0)
    assert (sent.cached, sent.cache_write) == (0, 0)


def test_meters_of_earlier_versions_are_read() -> None:
    old = read_meter(
        '{"rounds":[[1000,400],[1200,-1]],"completion":50,"before":900,"held":0,"sent":900,"expected":700}'
    )
    first, last = old.list_usages()
    assert (first.cached, first.cache_write, first.completion) == (400, None, 0)
    assert (last.cached, last.completion) == (700, 50)


def test_a_provider_that_counts_no_prompt_tokens_is_billed_for_nothing_but_the_answer() -> None:
    meter = Meter([(0, 0)], 100, before=1000, held=0, sent=1100, expected=0, added=100)
    bill = compute_bill(Model("m", input=1.0, output=10.0), meter)
    assert bill is not None
    assert bill.paid == bill.without_proxy == pytest.approx(0.001)


async def test_a_prompt_longer_than_the_window_would_not_have_been_sent_without_the_proxy(tmp_path: Path) -> None:
    """Its client would have had to shorten it. The whole of it counted as paid."""
    file = tmp_path / "models.toml"
    file.write_text(PRICED.replace("window = 100000", "window = 4000"))
    model = ScriptedModel("Done.")
    model.usage = usage(1000, 0)
    async with (
        run_upstream(model) as upstream,
        run_proxy(upstream.port, models_file=str(file), policy="rolling") as proxy,
    ):
        history = [*HISTORY, *({"role": role, "content": "word " * 900} for role in ("assistant", "user") * 8)]
        answer = await proxy.post({"model": "priced", "messages": history})
        before, after = map(int, (answer.header("x-context-tokens") or "").split(","))
        assert after < 4000 < before
        ((text,),) = await proxy.rows("SELECT meter FROM exchanges")
    assert read_meter(text).before == 4000
