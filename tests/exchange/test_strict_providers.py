"""Requests that go upstream keep the rules of each provider, after edits, rounds of our tools and inserted texts."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest

from tests.proxy_server import Agent, RawAnswer, run_proxy
from tests.raw_upstream import Connection, RawRequest, run_upstream
from tests.strict_completions import PROVIDERS, StrictCompletions

Json = dict[str, Any]
LOOK: Json = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Look at a part of it.",
        "parameters": {"type": "object", "properties": {"at": {"type": "integer"}}, "required": ["at"]},
    },
}
OURS: list[tuple[str, Json]] = [
    ("recall", {"id": "aaaaaaaaaa"}),
    ("query_db", {"sql": "SELECT count(*) FROM messages"}),
    ("manage_scratchpad", {"action": "update", "content": "Note this."}),
]
PROMPTS, STEPS = 3, 14
MODELS = {
    "mistral": "mistral-large-latest", "gemma": "gemma-3-27b-it", "qwen": "qwen3.5-35b", "deepseek": "deepseek-v4-pro",
    "kimi": "kimi-k3", "glm": "glm-5.2", "gemini": "gemini-3-pro",
}  # fmt: skip


class RecallingModel(StrictCompletions):
    """A model that also calls tools of the proxy where they are offered: alone in each sixth step, and beside a call of
    the client's in each ninth."""

    hidden = 0
    _step = -1

    async def __call__(self, request: RawRequest, connection: Connection) -> None:
        names = [tool["function"]["name"] for tool in json.loads(request.body).get("tools") or ()]
        offered = [one for one in OURS if one[0] in names]
        step = PROMPTS * (STEPS + 1) - len(self.answers)
        if offered and step != self._step and step % 6 == 5:
            self._step, self.hidden = step, self.hidden + 1
            self.answers.insert(0, {"text": "I look it up.", "calls": [offered[step % len(offered)]]})
        elif offered and step != self._step and step % 9 == 7 and "calls" in self.answers[0]:
            self._step, self.hidden = step, self.hidden + 1
            self.answers[0] = {**self.answers[0], "calls": [*self.answers[0]["calls"], offered[0]]}
        await super().__call__(request, connection)


def list_answers() -> Iterable[Json]:
    """The work for three prompts, with two calls at once in some steps."""
    for prompt in range(PROMPTS):
        for n in range(STEPS):
            at = prompt * STEPS + n
            yield {"text": f"Step {at}.", "calls": [("look", {"at": at + more}) for more in range(1 + (n % 5 == 3))]}
        yield {"text": f"Part {prompt} is done."}


def show_part(at: int) -> str:
    return "\n".join(f"{at * i} of part {i * i + at % 5}" for i in range(160))


def read_answer(found: RawAnswer) -> Json:
    """The message with all its members, as a client that sends them back keeps it."""
    message = found.message
    for event in found.events:
        for choice in json.loads(event)["choices"] if event != b"[DONE]" else ():
            for name, value in choice["delta"].items():
                if name in ("reasoning", "reasoning_content"):
                    message[name] = message.get(name, "") + value
                elif name not in ("role", "content", "tool_calls"):
                    message[name] = value
            for part in choice["delta"].get("tool_calls") or ():
                if "extra_content" in part:
                    message["tool_calls"][part["index"]]["extra_content"] = part["extra_content"]
    return message


@pytest.mark.parametrize("policy", ["thrifty", "rolling", "hierarchical"])
@pytest.mark.parametrize("provider", PROVIDERS)
async def test_no_request_breaks_a_rule_that_the_clients_own_keeps(provider: str, policy: str) -> None:
    model = RecallingModel(provider, *list_answers())
    agent_sent: list[Json] = []
    async with (
        run_upstream(model) as upstream,
        run_proxy(upstream.port, policy=policy, tools={"offer": "first_request"}) as proxy,
    ):
        more = {"tools": [LOOK], "model": MODELS.get(provider, "gpt-5")}
        agent = Agent(proxy, stream=policy != "rolling", more=more)
        agent.messages.append({"role": "system", "content": "Be exact."})
        for prompt in range(PROMPTS):
            agent.messages.append({"role": "user", "content": f"Part {prompt}: go on with it, please."})
            while True:
                found = await agent.send()
                assert found.status == 200, found.body
                message = read_answer(found)
                agent.messages.append(message)
                if not (calls := message.get("tool_calls")):
                    break
                assert {call["function"]["name"] for call in calls} == {"look"}
                agent.brings(*[show_part(json.loads(call["function"]["arguments"])["at"]) for call in calls])
            assert message["content"].endswith(f"Part {prompt} is done.")
        agent_sent += agent.messages[:-1]
        assert {row[2] for row in await proxy.outcomes()} == {None}
        assert await proxy.rows("SELECT count(DISTINCT session) FROM exchanges") == [(1,)]
    assert model.refusals == []
    assert model.hidden > 5
    assert len(json.dumps(model.bodies[-1]["messages"])) < 0.95 * len(json.dumps(agent_sent))
    check_members(model)


def check_members(model: StrictCompletions) -> None:
    """A provider gets back what it gave, also in the rounds that the client never saw."""
    given = {call["id"]: message for message in model.given for call in message.get("tool_calls") or ()}
    for message in model.bodies[-1]["messages"]:
        for call in message.get("tool_calls") or ():
            source = given[call["id"]]
            for name in ("reasoning", "reasoning_content"):
                assert message.get(name) == source.get(name)
            assert call.get("extra_content") == next(
                one.get("extra_content") for one in source["tool_calls"] if one["id"] == call["id"]
            )
