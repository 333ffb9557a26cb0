"""What is paid, and what it would have been: by hand, through the running proxy."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from proxy.chat.tokens import TokenCounter, estimate_text_tokens
from proxy.dialects.completions.request import read_request
from tests.exchange.hiding import TOOLS, offering, ours, says
from tests.faulty import Connection, Request, faulty
from tests.running import Agent, Running, running
from tests.scripted import Scripted, calls, whole

PRICED = """
[models."priced"]
window = 100000
tokenizer = "estimate"
input = 2.0
output = 10.0
w = 1.25
r = 0.1
min = 100
block = 1
"""


@pytest.fixture
def prices(tmp_path: Path) -> str:
    file = tmp_path / "models.toml"
    file.write_text(PRICED)
    return str(file)


def said(there: Running) -> tuple[float, float]:
    return there.count("cost_dollars_total", kind="paid"), there.count("cost_dollars_total", kind="without")


def usage(prompt: int, cached: int) -> dict[str, Any]:
    return {"prompt_tokens": prompt, "completion_tokens": 100, "prompt_tokens_details": {"cached_tokens": cached}}


HISTORY: list[dict[str, Any]] = [{"role": "user", "content": "Look around. " + "x " * 500}]


async def test_an_untouched_prompt_costs_what_it_would_have_cost(prices: str) -> None:
    model = Scripted("Done.")
    model.usage = usage(1000, 400)
    async with faulty(model) as upstream, running(upstream.port, models_file=prices) as there:
        await there.post({"model": "priced", "messages": HISTORY})
        paid, without = said(there)
    # 600 tokens at 1.25 x 2 dollars a million, 400 at a tenth of 2, and 100 of the answer at 10
    assert paid == pytest.approx((600 * 2.5 + 400 * 0.2 + 100 * 10) / 1e6)
    assert without == pytest.approx(paid)


async def test_a_model_without_prices_has_no_bill(prices: str) -> None:
    async with faulty(Scripted("Done.")) as upstream, running(upstream.port, models_file=prices) as there:
        await there.post({"model": "nobody-knows", "messages": HISTORY})
        assert said(there) == (0.0, 0.0)


async def test_a_shortened_prompt_is_compared_with_the_client_s_own_and_its_cache(prices: str) -> None:
    """A window of one group: the second request goes out without a long group in its middle."""
    model = Scripted("Done.", "Done again.")
    model.usage = usage(1000, 0)
    async with faulty(model) as upstream, running(upstream.port, models_file=prices, policy="rolling") as there:
        first = await there.post({"model": "priced", "messages": HISTORY})
        before = said(there)
        history = [*HISTORY, first.message]
        for n in range(6):
            history += [
                {"role": "user", "content": f"And {n}? " + "y " * (200 if n else 4000)},
                {"role": "assistant", "content": "So."},
            ]
        history.append({"role": "user", "content": "And now?"})
        answer = await there.post({"model": "priced", "messages": history})
        before_tokens, after_tokens = map(int, (answer.header("x-context-tokens") or "").split(","))
        paid, without = (now - then for now, then in zip(said(there), before, strict=True))
    assert after_tokens < before_tokens
    assert paid == pytest.approx((1000 * 2.5 + 100 * 10) / 1e6)
    # The first prompt and its short answer would have come from the cache; the upstream counts by another measure.
    known = int((first.header("x-context-tokens") or "").split(",")[0])
    factor = 1000 / after_tokens
    all_written = (before_tokens * factor * 2.5 + 100 * 10) / 1e6
    assert all_written - (known + 10) * factor * 2.3 / 1e6 < without < all_written - known * factor * 2.3 / 1e6
    assert without > paid


async def test_rounds_of_ours_are_paid_for_and_would_not_have_been(prices: str) -> None:
    model = Scripted(says(None, ours(1)), says(None, ours(2)), "Done.")
    model.usage = usage(1000, 400)
    async with faulty(model) as upstream, offering(upstream.port, models_file=prices) as there:
        await there.post({"model": "priced", "messages": HISTORY, "tools": TOOLS})
        paid, without = said(there)
    prompt, answers = 600 * 2.5 + 400 * 0.2, 300 * 10
    assert paid == pytest.approx((3 * prompt + answers) / 1e6)
    assert without == pytest.approx((prompt + answers) / 1e6)


class Metered:
    """An upstream that counts as the proxy does, and takes from its cache what it was sent the last time."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.paid = 0.0
        self.steps = 0

    async def __call__(self, request: Request, there: Connection) -> None:
        read, weigh = read_request(request.body), TokenCounter(estimate_text_tokens)
        sizes, came = [weigh(m) for m in read.messages], [m.raw for m in read.messages]
        shared = next((n for n, (a, b) in enumerate(zip(came, self.sent, strict=False)) if a != b), len(self.sent))
        head, shared, self.sent = weigh.count_tools(read.tools), min(shared, len(came)), came
        prompt, cached = head + sum(sizes), head + sum(sizes[:shared]) if shared else 0
        self.paid += ((prompt - cached) * 1.25 * 2 + cached * 0.1 * 2 + 100 * 10) / 1e6
        self.steps += 1
        called = calls((f"call_{self.steps:06}", "look"), at=self.steps)
        message = called if self.steps < 60 else {"role": "assistant", "content": "Done."}
        await whole(there, message, usage(prompt, cached))


async def worked(there: Running, metered: Metered) -> dict[str, Any]:
    """A session with sixty calls, each with a long result; its figures by the API."""
    agent = Agent(there, (b"x-context-session: s",), more={"model": "priced", "tools": TOOLS})
    agent.messages = [{"role": "system", "content": "Be."}]
    await agent.say("Look around.")
    while agent.messages[-1].get("tool_calls"):
        n = len(agent.messages)
        agent.brings("\n".join(f"row {n}-{k} of a listing with words in it" for k in range(150)))
        await agent.say()
    async with asyncio.timeout(5):
        while there.app.store.queued:
            await asyncio.sleep(0.005)
    return dict((await there.get("/api/sessions/s/stats")).json())


def kinds(there: Running) -> dict[str, float]:
    return {kind: there.count("cost_dollars_total", kind=kind) for kind in ("paid", "without", "planned")}


@pytest.mark.slow
async def test_observe_pays_for_the_originals_and_says_what_the_plan_would_have_cost(prices: str) -> None:
    found: dict[str, dict[str, Any]] = {}
    counted: dict[str, dict[str, float]] = {}
    spent: dict[str, float] = {}
    for policy in ("observe", "thrifty", "passthrough"):
        metered = Metered()
        plain: dict[str, Any] = {"models_file": prices, "policy": policy, "state": {"ask": "never"}}
        async with faulty(metered) as upstream, running(upstream.port, **plain) as there:
            found[policy], counted[policy] = await worked(there, metered), kinds(there)
            lines = (await there.get("/api/live")).json()["items"]
            money = (await there.get("/api/money")).json()["total"]
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
    model = Scripted(says(None, ours(1)), "Done.")
    model.usage = usage(100_000, 0)
    async with faulty(model) as upstream, offering(upstream.port, models_file=prices) as there:
        agent = Agent(there, (b"x-context-session: s",), more={"model": "priced", "tools": TOOLS})
        await agent.say("Look around. " + "x " * 500)
        await there.outcome()
        found = (await there.get("/api/sessions/s/stats")).json()
        counted = kinds(there)
        (point,) = (await there.get("/api/sessions/s/points")).json()
    assert counted["paid"] == pytest.approx((2 * 100_000 * 2.5 + 200 * 10) / 1e6)
    assert found["cost"] == point["cost"] == pytest.approx(counted["paid"])
    assert found["cost_without"] == point["cost_without"] == pytest.approx(counted["without"])
    assert found["prompt_tokens"] == 200_000
