"""An agent with three finished prompts, each with a tool call, and what upstream got of its next one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proxy.exchange.services import Services
from proxy.operator import show
from proxy.sessions.locate import derive_tenant
from tests.proxy_server import Agent, RunningProxy, run_proxy
from tests.raw_upstream import run_upstream
from tests.scripted_model import ScriptedModel, make_calls

POLICIES = sorted(path.stem for path in (Path(__file__).parents[2] / "config" / "policies").glob("*.toml"))
ROUND = 3


def make_model() -> ScriptedModel:
    """Calls a tool and answers, three times over, then only answers."""
    answers: list[Any] = []
    for n in range(ROUND):
        answers += [make_calls((f"call_{n:09}", "look"), text=f"Looking {n}.", at=n), f"Answer number {n}."]
    return ScriptedModel(*answers, "Well.")


@dataclass
class RunningConversation:
    """A conversation under way."""

    upstream: ScriptedModel
    port: int
    proxy: RunningProxy
    agent: Agent
    name: str = "s"

    @property
    def parts(self) -> Services:
        return self.proxy.app.services

    @property
    def tenant(self) -> str:
        return derive_tenant({"authorization": f"Bearer {self.agent.key}"}, "")

    async def begin(self) -> None:
        """Three prompts, each with a call and its result."""
        for n in range(ROUND):
            await self.agent.say(f"Prompt number {n}?")
            self.agent.brings(f"Result number {n}.")
            await self.agent.say()

    async def ask(self, text: str = "Go on.") -> list[str]:
        """The messages that the upstream gets when the agent says more and resends all it has."""
        await self.agent.say(text)
        return [said for said in self.upstream.texts() if said]

    async def groups(self) -> list[str]:
        return [one.id for one in await show.list_groups(self.parts, self.tenant, self.name)]


def make_helper_settings(port: int) -> dict[str, Any]:
    """Settings with a helper on this port."""
    upstream = {"base_url": f"http://127.0.0.1:{port}/v1", "models": []}
    return {"helper": {"upstream": "helper", "model": "h"}, "more_upstreams": {"helper": upstream}}


@asynccontextmanager
async def run_conversation(
    policy: str, *, stream: bool = False, own_key: str = "", more_upstreams: Any = None, **tree: Any
) -> AsyncIterator[RunningConversation]:
    """A conversation of three groups."""
    upstream = make_model()
    async with run_upstream(upstream) as server:
        main = {"base_url": f"http://127.0.0.1:{server.port}/v1", "api_key_env": own_key}
        tree["upstreams"] = {"main": main, **(more_upstreams or {})}
        async with _talking(upstream, server.port, policy, stream, tree) as talk:
            yield talk


@asynccontextmanager
async def _talking(
    upstream: ScriptedModel, port: int, policy: str, stream: bool, tree: dict[str, Any]
) -> AsyncIterator[RunningConversation]:
    async with run_proxy(port, policy=policy, **tree) as proxy:
        agent = Agent(proxy, lines=(b"x-context-session: s",), stream=stream)
        agent.messages.append({"role": "system", "content": "Be brief."})
        talk = RunningConversation(upstream, port, proxy, agent)
        await talk.begin()
        yield talk


def find_messages(said: list[str]) -> set[str]:
    """The messages of the three groups that are in a prompt, as `prompt 0`, `result 1`, `answer 2`."""
    words = ("Prompt", "Result", "Answer")
    return {
        f"{word.lower()} {n}" for word in words for n in range(ROUND) if any(f"{word} number {n}" in s for s in said)
    }


def list_group_messages(*groups: int) -> set[str]:
    """All that these groups say."""
    return {f"{word} {n}" for word in ("prompt", "result", "answer") for n in groups}
