"""An agent that works on one prompt for long: histories by iteration, and the policy `progressive` to look at them."""

from __future__ import annotations

import json
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from proxy.chat.message import Message
from proxy.context.branch_state import BranchState
from proxy.context.injections import BUILT_IN_INJECTIONS
from proxy.context.models import Model
from proxy.context.pipeline import rewrite
from proxy.context.plan import Plan, RewriteInputs
from proxy.context.policy import Policy, read_policy
from proxy.context.stages import BUILT_IN_STAGES
from tests.conversations import COUNTER, PLAIN_MODEL, Json, assistant, make_request, result, system, user
from tests.conversations import make_message as read


@cache
def load_progressive() -> Policy:
    """As we ship it."""
    path = Path(__file__).parents[2] / "config" / "policies" / "progressive.toml"
    return read_policy(tomllib.loads(path.read_text()), BUILT_IN_STAGES, BUILT_IN_INJECTIONS)


def make_tool_call(name: str, call_id: str, text: str | None = None, **arguments: Any) -> Json:
    """An assistant message that calls one tool."""
    made = {"id": call_id, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
    return {"role": "assistant", "content": text, "tool_calls": [made]}


def make_step(name: str, brought: str, text: str | None = None, call_id: str = "c1", **arguments: Any) -> list[Json]:
    """A call and what it brought."""
    return [make_tool_call(name, call_id, text, **arguments), result(call_id, brought)]


def make_old_exchange(number: int, *, tools: bool = False) -> list[Json]:
    """An exchange of earlier conversation."""
    inside = make_step("search", f"old result {number}", q=number) if tools else []
    return [user(f"old question {number}"), *inside, assistant(f"old answer {number}")]


def make_iterations(iterations: int, *, before: int = 0, tools: bool = False, every: int = 0) -> list[Json]:
    """`before` old exchanges, a prompt, and so many iterations on it; each `every`th is a thought without a call."""
    values = [system("Be exact.")]
    for n in range(before):
        values += make_old_exchange(n, tools=tools)
    values.append(user("the question"))
    for n in range(iterations):
        if every and n % every == every - 1:
            values.append(assistant(f"thought {n}"))
        else:
            values += make_step("search", f"result {n}", f"looking at {n}", f"c{n}", q=n)
    return values


def make_plan(
    values: list[Json],
    policy: Policy | None = None,
    state: BranchState | None = None,
    model: Model = PLAIN_MODEL,
    *,
    tools: bool = False,
    **more: Any,
) -> Plan:
    """The plan for this history. tools: the client sends one."""
    asked = make_request(values, **({"tools": [{"type": "function", "function": {"name": "search"}}]} if tools else {}))
    return rewrite(
        asked, state or BranchState(), policy or load_progressive(), model, 0.0, RewriteInputs(COUNTER, **more)
    )


def list_sent_messages(values: list[Json], policy: Policy | None = None, **more: Any) -> list[Message]:
    """The messages that go out."""
    made = make_plan(values, policy, **more)
    assert made.refusal is None, made.notes
    if made.messages is None:
        return [read(v) for v in values]
    return [read(json.loads(raw)) for raw in made.messages]


def list_sent_texts(values: list[Json], policy: Policy | None = None, **more: Any) -> list[str]:
    """Their texts."""
    return [m.text for m in list_sent_messages(values, policy, **more)]
