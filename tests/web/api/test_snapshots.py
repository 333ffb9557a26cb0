"""Every message of one answer shows the one number that the provider reported for it."""

from __future__ import annotations

from tests.proxy_server import Agent, run_proxy
from tests.raw_upstream import run_upstream
from tests.scripted_model import ScriptedModel, make_calls


async def test_an_answer_and_the_results_of_its_calls_show_what_the_provider_reported() -> None:
    model = ScriptedModel(make_calls(("call_000001", "look"), ("call_000002", "look")), "Done.")
    async with run_upstream(model) as upstream, run_proxy(upstream.port) as proxy:
        agent = Agent(proxy, (b"x-context-session: s",))
        model.usage = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
        await agent.say("Look.")
        agent.brings("One.", "Two.")
        model.usage = {"prompt_tokens": 300, "completion_tokens": 7, "total_tokens": 307}
        await agent.say()
        await proxy.outcome()
        found = (await proxy.get("/api/sessions/s/messages")).json()["items"]
        newest = (await proxy.get("/api/sessions/s/messages?newest=true&limit=2")).json()["items"]
    assert [(one["role"], one["snapshot"]) for one in found] == [
        ("user", None), ("assistant", 120), ("tool", 120), ("tool", 120), ("assistant", 307),
    ]  # fmt: skip
    assert [one["snapshot"] for one in newest] == [307, 120], "though the answer that called is on another page"
