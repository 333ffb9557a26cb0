"""`GET /api/report`, over the wire."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.proxy_server import Agent, run_proxy
from tests.raw_upstream import run_upstream
from tests.scripted_model import ScriptedModel

PRICED = (
    '[models."priced"]\nwindow = 100000\ntokenizer = "estimate"\ninput = 2.0\noutput = 10.0\nmin = 100\nblock = 1\n'
)


async def test_the_report_is_there_before_any_session_is() -> None:
    async with (
        run_upstream(ScriptedModel("Hi.")) as upstream,
        run_proxy(upstream.port, experiment={"control": 0.1}) as there,
    ):
        answer = await there.get("/api/report")
        assert answer.status == 200
        found = answer.json()
        assert (found["share"], found["control_sessions"], found["managed_sessions"]) == (0.1, 0, 0)
        assert found["verdict"] == "Not known: there are no sessions with a bill in both arms."
        assert (await there.get("/api/report?since=-1")).status == 422


async def test_a_session_that_cost_more_is_named_by_its_first_prompt(tmp_path: Path) -> None:
    (tmp_path / "models.toml").write_text(PRICED)
    reply = ScriptedModel("Well. " * 50)
    reply.usage = {"prompt_tokens": 4000, "completion_tokens": 50, "prompt_tokens_details": {"cached_tokens": 0}}
    options: dict[str, Any] = {"policy": "thrifty", "experiment": {"control": 0.5}}
    options["models_file"] = str(tmp_path / "models.toml")
    async with run_upstream(reply) as upstream, run_proxy(upstream.port, **options) as there:
        for n in range(6):
            agent = Agent(there, (f"x-context-session: s{n}".encode(),), more={"model": "priced"})
            for words in (f"Paint shed {n}. " + "It is red. " * 900, "Go on.", "And on."):
                await agent.say(words)
        await there.outcomes()
        losses = (await there.get("/api/report")).json()["losses"]
    assert losses
    for one in losses:
        assert one["title"].startswith(f"Paint shed {one['session'][1:]}.")
        assert one["address"] == one["session"]
