"""The report of an experiment, from rows as requests leave them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from proxy.operator.compare_arms import SessionMeasures
from proxy.operator.experiment_report import (
    build_report,
    count_calls,
    explain_loss,
    find_losses,
    make_measure_cache,
)  # fmt: skip
from tests.proxy_server import Agent, run_proxy
from tests.raw_upstream import run_upstream
from tests.scripted_model import ScriptedModel, make_calls

PRICED = (
    '[models."priced"]\nwindow = 100000\ntokenizer = "estimate"\ninput = 2.0\noutput = 10.0\nmin = 100\nblock = 1\n'
)
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
SESSIONS, STEPS = 8, 3


def test_calls_are_counted_and_those_that_were_made_before() -> None:
    texts = "make: *** [all] Error 2\n[exit code: 2]", "done\n[exit code: 0]"
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Go."}]
    for name, arguments, text in zip("ab", ('{"command": "make"}', '{"command":"make"}'), texts, strict=True):
        function = {"name": "bash", "arguments": arguments}
        call = {"id": name, "type": "function", "function": function}
        messages += [{"role": "assistant", "tool_calls": [call]}]
        messages += [{"role": "tool", "tool_call_id": name, "content": text}]
    bodies = [*(json.dumps(message).encode() for message in messages), b"no message"]
    assert count_calls(bodies) == (2, 1, 2, 1)


def test_a_session_that_cost_money_says_why() -> None:
    lost = SessionMeasures("t", "lost", "managed", dollars=2.0, without=1.0, rounds=0.3, missed=0.5, edits=0.2)
    lost = msgspec.structs.replace(lost, refetched=2, refetching=0.1, pings=3, pinging=0.05)
    fine = SessionMeasures("t", "fine", "managed", dollars=1.0, own=0.9, sent=0.9, without=1.0)
    (found,) = find_losses([fine, lost])
    assert (found.session, found.dollars, found.without) == ("lost", 2.0, 1.0)
    assert [cause.dollars for cause in explain_loss(lost)] == [0.5, 0.3, 0.2, 0.1, 0.05]
    assert "2 cut results that were fetched again" in found.causes[-2].cause
    assert found.causes[-1].cause == "3 pings that kept the cache warm"


async def test_the_report_has_both_arms_and_what_each_session_did(tmp_path: Path) -> None:
    (tmp_path / "models.toml").write_text(PRICED)
    steps = [make_calls((f"call_{n:06}", "look"), at=n) if (n + 1) % (STEPS + 1) else "Done." for n in range(200)]
    model = ScriptedModel(*steps)
    model.usage = {
        "prompt_tokens": 1000, "completion_tokens": 50, "prompt_tokens_details": {"cached_tokens": 0},
    }  # fmt: skip
    options: dict[str, Any] = {
        "policy": "thrifty",
        "experiment": {"control": 0.5},
        "models_file": str(tmp_path / "models.toml"),
    }
    async with run_upstream(model) as upstream, run_proxy(upstream.port, **options) as proxy:
        for n in range(SESSIONS):
            more = {"model": "priced", "tools": [TOOL]}
            agent = Agent(proxy, (f"x-context-session: s{n}".encode(),), more=more)
            await agent.say("Look around.")
            while agent.messages[-1].get("tool_calls"):
                agent.brings("a result")
                await agent.say()
        await proxy.outcomes()
        cache = make_measure_cache()
        found = await build_report(proxy.app.services, cache, None)
        again = await build_report(proxy.app.services, cache, None)
        other = await build_report(proxy.app.services, cache, "nobody")
    assert found == again
    assert (found.control_sessions + found.managed_sessions, found.mixed, found.unpriced) == (SESSIONS, 0, 0)
    assert min(found.control_sessions, found.managed_sessions) > 0
    assert found.share == 0.5
    figures = {one.name: one for one in found.figures}
    for arm in ("control", "managed"):
        assert getattr(figures["requests a session"], arm).value == STEPS + 1
        assert getattr(figures["turns a session"], arm).value == 1
        assert getattr(figures["tokens an answer"], arm).value == 50
        assert getattr(figures["dollars a request"], arm).value == pytest.approx((1000 * 2.5 + 50 * 10) / 1e6)
        assert getattr(figures["first byte in ms"], arm).value > 0
    assert found.predictions["control"].reported == pytest.approx(
        found.control_sessions * (STEPS + 1) * (1000 * 2.5 + 50 * 10) / 1e6
    )
    assert found.verdict.startswith("Not known yet")
    assert (other.control_sessions, other.managed_sessions) == (0, 0)


async def test_dollars_a_request_are_those_of_the_requests_with_a_bill(tmp_path: Path) -> None:
    """A session with two models, of which one has a price, seemed half as dear, and nothing said so."""
    (tmp_path / "models.toml").write_text(PRICED)
    model = ScriptedModel("Done.")
    model.usage = {"prompt_tokens": 1000, "completion_tokens": 50, "prompt_tokens_details": {"cached_tokens": 0}}
    options: dict[str, Any] = {
        "policy": "thrifty",
        "experiment": {"control": 0.999},
        "models_file": str(tmp_path / "models.toml"),
    }
    async with run_upstream(model) as upstream, run_proxy(upstream.port, **options) as proxy:
        agent = Agent(proxy, (b"x-context-session: mixed",))
        await agent.say("Look around.", model="priced")
        await agent.say("And on.", model="nobody-knows")
        await agent.say("And on.", model="priced")
        await proxy.outcomes()
        found = await build_report(proxy.app.services, make_measure_cache(), None)
    assert (found.control_sessions, found.unpriced, found.partly_billed) == (1, 0, 1)
    figures = {one.name: one.control.value for one in found.figures}
    assert figures["dollars a request"] == pytest.approx((1000 * 2.5 + 50 * 10) / 1e6)
    assert figures["requests a session"] == 3
