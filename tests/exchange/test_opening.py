from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

import pytest

from proxy.chat.tokens import TokenCounter, estimate_text_tokens
from proxy.context.branch_state import BranchState
from proxy.context.models import Model
from proxy.context.pipeline import rewrite
from proxy.context.plan import Proposal, View
from proxy.context.stage import When
from proxy.settings.load import Settings
from proxy.web.app import make_policies
from tests.conversations import assistant, request, result, system, user
from tests.faulty import faulty
from tests.running import Agent, Running, running
from tests.scripted import Scripted

ROOT = Path(__file__).parents[2]
LONG = "\n".join(f"line {n} of a long result" for n in range(400))


@dataclass(frozen=True, slots=True)
class Watch:
    """A stage of a user's own that shortens the first message, and tells when it was asked."""

    when: ClassVar[When] = "schedule"
    asked: ClassVar[list[str]] = []

    def __call__(self, view: View) -> Iterable[Proposal]:
        """One proposal."""
        self.asked.append(view.messages[0].text[:5])
        if len(view.messages) > 2:
            yield Proposal(0, "text", "watch", "long", 9, text="short", since=0)


@pytest.fixture
def watched(tmp_path: Path) -> dict[str, Any]:
    """Settings of a policy that has such a stage."""
    policy = 'name = "watched"\nschedule = "always"\nask = "never"\n[[stages]]\nuse = "{}:Watch"\n'
    (tmp_path / "watched.toml").write_text(policy.format(__name__))
    Watch.asked.clear()
    return {"policy": "watched", "policies_dir": str(tmp_path), "tools": {"offer": "never"}}


def talk() -> list[dict[str, Any]]:
    said = [("user", LONG), ("assistant", "Yes."), ("user", "And now?")]
    return [{"role": role, "content": text} for role, text in said]


async def told(proxy: Running, agent: Agent, *lines: bytes, **more: Any) -> tuple[str, int]:
    """(the session, how often the stage was asked) of one request."""
    before = len(Watch.asked)
    found = await agent.send(*lines, **more)
    assert found.status == 200
    return found.session, len(Watch.asked) - before


async def test_the_same_first_request_again_is_another_session_with_the_same_prompt(watched: dict[str, Any]) -> None:
    model = Scripted("Well.")
    async with faulty(model) as upstream, running(upstream.port, **watched) as proxy:
        agent = Agent(proxy, messages=talk())
        found = [await told(proxy, agent) for _ in range(4)]
        edits = await proxy.rows("SELECT session, text FROM edits")
    assert len({session for session, _ in found}) == 4
    assert [asked for _, asked in found] == [1, 0, 0, 0]
    assert sorted(edits) == sorted((session, b"short") for session, _ in found), "each has edits of its own"
    bodies = [request.body for request in upstream.requests]
    assert b'"content":"short"' in bodies[0].replace(b'": "', b'":"')
    assert len(set(bodies)) == 1


async def test_what_differs_in_anything_is_planned_anew(watched: dict[str, Any]) -> None:
    model = Scripted("Well.")
    tools = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
    async with faulty(model) as upstream, running(upstream.port, **watched) as proxy:
        agent = Agent(proxy, messages=talk())
        await told(proxy, agent)
        for lines, more in (
            ([b"x-context-pin: true"], {}),
            ([b"x-context-project: mine"], {}),
            ([], {"model": "another"}),
            ([], {"tools": tools}),
            ([], {"reasoning_effort": "low"}),
            ([], {"messages": [*talk(), *talk()[1:]]}),
        ):
            assert (await told(proxy, agent, *lines, **more))[1] == 1, (lines, more)
        other = Agent(proxy, messages=talk(), key="sk-another")
        assert (await told(proxy, other))[1] == 1, "another tenant's messages have other keys"


async def test_a_conversation_that_goes_on_is_planned_by_itself(watched: dict[str, Any]) -> None:
    model = Scripted("Well.")
    async with faulty(model) as upstream, running(upstream.port, **watched) as proxy:
        one, two = (Agent(proxy, (b"x-context-session: " + name,), messages=talk()) for name in (b"a", b"b"))
        assert [(await told(proxy, agent))[1] for agent in (one, two)] == [1, 0]
        assert (await told(proxy, one))[1] == 1, "a twin has a history"
        for agent in (one, two):
            agent.messages += [{"role": "assistant", "content": "Well."}, {"role": "user", "content": "Go on"}]
            assert (await told(proxy, agent))[1] == 1


@pytest.mark.parametrize("name", sorted(path.stem for path in (ROOT / "config/policies").glob("*.toml")))
def test_a_plan_of_a_first_request_does_not_depend_on_when_it_is_made(name: str) -> None:
    policy = make_policies(Settings())[name]
    said = [system(), user("Fix the build")]
    for n in range(40):
        said += [assistant(f"Step {n}: I will look", f"call_{n:09}"), result(f"call_{n:09}", f"{n} {LONG}")]
    made = [
        rewrite(
            request(said), BranchState(), policy, Model(window=60_000), now, weigh=TokenCounter(estimate_text_tokens)
        )
        for now in (0.0, 1.8e9 + 0.123)
    ]
    one, other = ([getattr(plan, field.name) for field in fields(plan)] for plan in made)
    assert one == other
    assert made[0].new_edits or name in ("observe", "passthrough", "reflective"), "nothing was decided"
