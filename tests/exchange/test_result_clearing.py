"""The schedule `provider` through the running proxy: the provider clears, when rent-or-buy says so and where it can."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.clients.clouds import BedrockModel
from tests.dialect_agents import MessagesAgent, read_words
from tests.proxy_server import Agent, RunningProxy, run_proxy
from tests.raw_upstream import run_upstream
from tests.scripted_model import ScriptedModel
from tests.strict_messages import StrictMessages, WithoutMember, clear_tool_uses, read_step

Json = dict[str, Any]
STEPS = 30
THINKING: Json = {"thinking": {"type": "adaptive"}}


def make_model(kind: type[StrictMessages] = StrictMessages, steps: int = STEPS) -> StrictMessages:
    return kind(*(read_step(n, f"a{n}.py") for n in range(steps)), [{"type": "text", "text": "Done."}])


@pytest.fixture
def tree(tmp_path: Path) -> Json:
    """Settings of a proxy whose policy lets the provider clear, for a cache that is cheap to write."""
    policies = tmp_path / "policies"
    policies.mkdir()
    text = 'name = "clearing"\nschedule = "provider"\nask = "never"\n[[stages]]\nuse = "shorten_results"\n'
    (policies / "clearing.toml").write_text(text)
    models = tmp_path / "models.toml"
    models.write_text('[models."claude-opus-5-5"]\nr = 0.2\n')
    return {"policy": "clearing", "policies_dir": str(policies), "models_file": str(models)}


def find_kept(body: Json) -> int | None:
    edits = (body.get("context_management") or {}).get("edits", [])
    return next((one["keep"]["value"] for one in edits if one["type"] == "clear_tool_uses_20250919"), None)


def count_uses(body: Json) -> int:
    return json.dumps(body["messages"]).count('"tool_use"')


async def read_notes(proxy: RunningProxy) -> list[Any]:
    return [note for (note,) in await proxy.rows("SELECT note FROM exchanges ORDER BY started_at")]


@pytest.mark.parametrize("stream", [False, True])
async def test_the_provider_clears_in_batches_and_reasoning_stays_valid(tree: Json, stream: bool) -> None:
    model = make_model()
    async with run_upstream(model) as upstream, run_proxy(upstream.port, **tree) as proxy:
        agent = MessagesAgent(proxy, read_words, stream=stream, more=THINKING)
        assert await agent.work("Find the fault.") == "Done."
        await proxy.outcomes()
        notes = await read_notes(proxy)
        edits = await proxy.rows("SELECT stage, reason FROM edits")
        counted = proxy.count("provider_cleared_total", kind="results")
        schedules = await proxy.rows("SELECT DISTINCT schedule FROM exchanges")
    assert (model.refusals, model.dropped) == ([], [])
    assert schedules == [("provider",)]
    cleared = [count_uses(body) - kept if (kept := find_kept(body)) is not None else 0 for body in model.bodies]
    batches = sorted(set(cleared))
    assert batches[0] == 0
    assert 2 <= len(batches) < STEPS / 3, "in batches, not with every request"
    assert cleared == sorted(cleared), "what is cleared stays cleared"
    first = next(n for n, count in enumerate(cleared) if count)
    assert 3 < first < STEPS - 3
    for one in model.bodies[first]["messages"][:-1]:
        if one["role"] == "user" and isinstance(one["content"], list) and one["content"][0]["type"] == "tool_result":
            assert len(one["content"][0]["content"]) > 5000, "the proxy sends each result as it came"
    assert {row[0] for row in edits} == {"provider_clearing"}
    assert "paid for itself" in edits[0][1]
    assert f"the provider cleared {cleared[-1]} tool results" in notes[-1]
    assert counted == sum(cleared)
    assert all("context_management" not in answer for answer in agent.answers), "the client did not ask for it"
    beta = model.received[first].all(b"anthropic-beta")
    assert beta == [b"context-management-2025-06-27"]
    seen, _ = clear_tool_uses(model.bodies[-1])
    assert len(json.dumps(seen)) < 0.6 * len(json.dumps(model.bodies[-1]))


async def test_cleared_results_stay_cleared_after_a_restart(tree: Json, tmp_path: Path) -> None:
    model = make_model()
    tree["db"] = str(tmp_path / "a.sqlite3")
    async with run_upstream(model) as upstream:
        async with run_proxy(upstream.port, **tree) as proxy:
            agent = MessagesAgent(proxy, read_words, more=THINKING)
            await agent.work("Find the fault.")
        before = count_uses(model.bodies[-1]) - (find_kept(model.bodies[-1]) or 0)
        async with run_proxy(upstream.port, **tree) as proxy:
            agent.proxy = proxy
            await agent.work("Go on.")
    after = count_uses(model.bodies[-1]) - (find_kept(model.bodies[-1]) or 0)
    assert before == after > 0
    assert (model.refusals, model.dropped) == ([], [])


async def test_a_clients_own_context_management_is_left_as_it_is(tree: Json) -> None:
    model = make_model()
    own: Json = {"edits": [{"type": "clear_tool_uses_20250919", "keep": {"type": "tool_uses", "value": 20}}]}
    line = b"anthropic-beta: context-management-2025-06-27"
    async with run_upstream(model) as upstream, run_proxy(upstream.port, **tree) as proxy:
        agent = MessagesAgent(proxy, read_words, more={"context_management": own}, lines=(line,))
        await agent.work("Find the fault.")
        used = {found.header("x-context-policy-used") for found in agent.heard}
        warned = {found.header("x-context-warning") for found in agent.heard}
    assert all(body["context_management"] == own for body in model.bodies)
    assert used == {"clearing, when_it_pays", "clearing, append_only"}, "the latter once an answer has reasoning"
    assert warned == {
        "schedule provider: the client clears by itself, or uses tools of the provider; the usual schedule in its place"
    }
    assert all("context_management" in answer for answer in agent.answers)


async def test_clearing_of_results_is_added_after_the_clients_own_clearing_of_thinking(tree: Json) -> None:
    model = make_model()
    own = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
    line = b"anthropic-beta: context-management-2025-06-27,another-beta"
    async with run_upstream(model) as upstream, run_proxy(upstream.port, **tree) as proxy:
        agent = MessagesAgent(proxy, read_words, more={"context_management": own, **THINKING}, lines=(line,))
        await agent.work("Find the fault.")
    last = model.bodies[-1]["context_management"]["edits"]
    assert [one["type"] for one in last] == ["clear_thinking_20251015", "clear_tool_uses_20250919"]
    assert all("context_management" in answer for answer in agent.answers), "the client asked for an editing"
    assert model.received[-1].all(b"anthropic-beta") == [line.partition(b": ")[2]]
    assert (model.refusals, model.dropped) == ([], [])


async def test_another_wire_format_gets_the_usual_schedule_and_is_reported(tree: Json) -> None:
    async with run_upstream(ScriptedModel("Done.")) as upstream, run_proxy(upstream.port, **tree) as proxy:
        found = await Agent(proxy).say("Look around.")
    assert found.header("x-context-policy-used") == "clearing, when_it_pays"
    warning = "schedule provider: not for the format completions; the usual schedule in its place"
    assert found.header("x-context-warning") == warning


class WithoutClearing(WithoutMember):
    """A gateway that does not know the field."""

    member = b'"context_management"'
    words = "context_management: Extra inputs are not permitted"


async def test_an_upstream_that_refuses_is_not_asked_again(tree: Json) -> None:
    model = make_model(WithoutClearing)
    async with run_upstream(model) as upstream, run_proxy(upstream.port, **tree) as proxy:
        assert await MessagesAgent(proxy, read_words).work("Find the fault.") == "Done."
        agent = MessagesAgent(proxy, read_words)
        agent.messages.append({"role": "user", "content": "Something else."})
        await agent.ask()
        fallbacks = [fallback for _, _, fallback in await proxy.outcomes()]
    assert fallbacks.count("upstream_reject") == 1
    assert agent.heard[-1].header("x-context-policy-used") == "clearing, when_it_pays"
    assert "the upstream refused it" in (agent.heard[-1].header("x-context-warning") or "")


class Reporting(StrictMessages):
    """A provider that always says what it has cleared."""

    def make_message(self, body: Mapping[str, Any], answer: str | Sequence[Json]) -> Json:
        return {"context_management": {"applied_edits": []}} | super().make_message(body, answer)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_history_that_only_names_the_field_asks_for_no_clearing(stream: bool) -> None:
    """Such a history got the header of the beta, and the client did not see what the provider said of it."""
    arguments = {"path": "a.py", "topic": "context_management"}
    steps = [[{"type": "tool_use", "id": f"t{n}", "name": "read", "input": arguments}] for n in range(6)]
    model = Reporting(*steps, [{"type": "text", "text": "Done."}])
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="rolling") as proxy:
        agent = MessagesAgent(proxy, read_words, stream=stream)
        await agent.work("Find the fault.")
    assert model.bodies[-1]["messages"] != agent.messages[:-1], "the prompt was changed"
    assert [found.all(b"anthropic-beta") for found in model.received] == [[]] * 7
    if not stream:
        assert all("context_management" in answer for answer in agent.answers)


class BedrockAgent(MessagesAgent):
    """The same agent in front of Bedrock: the beta stands in the body."""

    async def ask(self) -> Json:
        tool = {"name": "read", "description": "Read a file.", "input_schema": {"type": "object"}}
        body = {"anthropic_version": "bedrock-2023-05-31", "max_tokens": 4096, "messages": self.messages,
                "system": self.system, "tools": [tool], **self.more}  # fmt: skip
        found = await self.proxy.post(body, path="/model/claude-opus-5-5/invoke", key="ABSK-any")
        assert found.status == 200, found.body
        message: Json = found.json()
        self.messages.append({"role": "assistant", "content": message["content"]})
        return message


@pytest.mark.parametrize("own", [[], ["another-beta"], ["another-beta", "context-management-2025-06-27"]])
async def test_on_bedrock_the_beta_stands_in_the_body(tree: Json, own: list[str]) -> None:
    steps = (read_step(n, f"a{n}.py") for n in range(STEPS))
    model = BedrockModel(*steps, [{"type": "text", "text": "Done."}])
    more = {**THINKING, **({"anthropic_beta": own} if own else {})}
    async with run_upstream(model) as upstream, run_proxy(upstream.port, **tree) as proxy:
        assert await BedrockAgent(proxy, read_words, more=more).work("Find the fault.") == "Done."
    assert (model.refusals, model.dropped) == ([], [])
    assert find_kept(model.bodies[-1]) is not None
    sent = json.loads(upstream.requests[-1].body)
    assert sent["anthropic_beta"] == [*(one for one in own if "context" not in one), "context-management-2025-06-27"]
    assert not any(request.all(b"anthropic-beta") for request in upstream.requests)
