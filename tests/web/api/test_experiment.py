"""`GET /api/report`, over the wire."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.exchange.hidden_calls import TOOLS, make_answer, make_proxy_call, run_proxy_with_tools
from tests.proxy_server import Agent, run_proxy
from tests.raw_upstream import run_upstream
from tests.scripted_model import Answer, ScriptedModel

PRICED = (
    '[models."priced"]\nwindow = 100000\ntokenizer = "estimate"\ninput = 2.0\noutput = 10.0\nmin = 100\nblock = 1\n'
)


async def test_the_report_is_there_before_any_session_is() -> None:
    async with (
        run_upstream(ScriptedModel("Hi.")) as upstream,
        run_proxy(upstream.port, experiment={"control": 0.1}) as proxy,
    ):
        answer = await proxy.get("/api/report")
        assert answer.status == 200
        found = answer.json()
        assert (found["share"], found["control_sessions"], found["managed_sessions"]) == (0.1, 0, 0)
        assert found["verdict"] == "Not known: there are no sessions with a bill in both arms."
        assert (await proxy.get("/api/report?since=-1")).status == 422


Json = dict[str, Any]


async def paint_sheds(tmp_path: Path, *answers: Answer, **more: Any) -> tuple[list[Json], dict[str, Json]]:
    """Talk in six sessions with an upstream that caches nothing. Return the losses of the report, and the statistics of
    each session."""
    (tmp_path / "models.toml").write_text(PRICED)
    reply = ScriptedModel(*answers)
    reply.usage = {"prompt_tokens": 4000, "completion_tokens": 50, "prompt_tokens_details": {"cached_tokens": 0}}
    options: dict[str, Any] = {"experiment": {"control": 0.5}, "models_file": str(tmp_path / "models.toml")}
    async with run_upstream(reply) as upstream, run_proxy_with_tools(upstream.port, **options) as proxy:
        for n in range(6):
            agent = Agent(proxy, (f"x-context-session: s{n}".encode(),), more={"model": "priced", **more})
            for words in (f"Paint shed {n}. " + "It is red. " * 900, "Go on.", "And on."):
                await agent.say(words)
        await proxy.outcomes()
        stats = {f"s{n}": (await proxy.get(f"/api/sessions/s{n}/stats")).json() for n in range(6)}
        return (await proxy.get("/api/report")).json()["losses"], stats


async def test_a_session_that_cost_more_is_named_by_its_first_prompt(tmp_path: Path) -> None:
    answers: list[Answer] = [make_answer(None, make_proxy_call(1)), "Well. " * 50] * 30
    losses, stats = await paint_sheds(tmp_path, *answers, tools=TOOLS)
    assert losses
    for one in losses:
        assert one["title"].startswith(f"Paint shed {one['session'][1:]}.")
        assert one["address"] == one["session"]
        told = stats[one["session"]]
        assert (one["dollars"], one["without"]) == pytest.approx((told["cost"], told["cost_without"]))
        assert [cause["cause"].split(" of ")[0] for cause in one["causes"]] == ["rounds", "definitions"]
        assert sum(cause["dollars"] for cause in one["causes"]) == pytest.approx(one["dollars"] - one["without"])


async def test_prompts_that_were_sent_unchanged_cost_nothing_extra_where_the_provider_caches_nothing(
    tmp_path: Path,
) -> None:
    losses, stats = await paint_sheds(tmp_path, "Well. " * 50)
    assert all(one["cost"] == one["cost_without"] for one in stats.values())
    assert losses == []
