"""An agent that grows its history request by request, as hypothesis draws it, with what is remembered carried along."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import msgspec
from hypothesis import strategies as st

from proxy.chat import chain
from proxy.chat.message import Request
from proxy.context.branch_state import BranchState
from proxy.context.injections import BUILT_IN_INJECTIONS
from proxy.context.models import Model
from proxy.context.operator_edits import OperatorDecisions
from proxy.context.pipeline import rewrite
from proxy.context.plan import Plan, RewriteInputs
from proxy.context.policy import Policy, ScheduleName, read_policy, with_schedule
from proxy.context.stages import BUILT_IN_STAGES
from proxy.notes.memo_matching import Memo
from tests.conversations import COUNTER, INPUTS, PLAIN_MODEL, Json, assistant, make_next_request, result, system, user

POLICIES = (
    "thrifty", "thrifty/over_budget", "rolling", "rolling/over_budget", "rolling/when_it_pays",
    "importance", "importance/over_budget", "importance/when_it_pays",
    "summarize", "summarize/over_budget", "summarize/when_it_pays",
    "reflective", "reflective/over_budget", "reflective/when_it_pays",
    "hierarchical", "hierarchical/over_budget", "hierarchical/when_it_pays",
)  # fmt: skip
TALK = [
    system(),
    user("one?"),
    assistant("so", "1"),
    result("1", "first " * 50),
    assistant("done one"),
    user("two"),
    assistant(None, "2"),
    result("2", "second " * 50),
    assistant("done two"),
    user("three"),
]
"""Two groups that are done, each with a call and its result, and a prompt that has no answer yet."""
LONG = "\n".join(f"{n:03} def name_{n}(argument): return '/path/to/{n}.py', error {n * 7919}" for n in range(120))


@cache
def load_policy(name: str) -> Policy:
    """A policy that we ship; behind a slash the schedule that it gets in place of its own."""
    file, _, schedule = name.partition("/")
    path = Path(__file__).parents[2] / "config" / "policies" / f"{file}.toml"
    policy = read_policy(tomllib.loads(path.read_text()), BUILT_IN_STAGES, BUILT_IN_INJECTIONS)
    known: dict[str, ScheduleName] = {
        "over_budget": "over_budget", "when_it_pays": "when_it_pays", "always": "always",
    }  # fmt: skip
    return with_schedule(policy, known[schedule]) if schedule else policy


def list_sent_texts(made: Plan, talk: list[Json] = TALK) -> list[str | None]:
    """The conversation as it goes out, message by message."""
    raws = made.messages
    assert made.refusal is None
    return [m["content"] for m in (talk if raws is None else [json.loads(raw) for raw in raws])]


@dataclass(frozen=True)
class Turn:
    """One request: what came, what was remembered before it, and what was planned. beside: what else was known."""

    values: list[Json]
    request: Request
    state: BranchState
    plan: Plan
    now: float
    beside: RewriteInputs = INPUTS


@dataclass(frozen=True)
class Story:
    """A whole conversation, and after which of its messages the agent asks. told: the model has tools of ours, a
    scratchpad that changes now and then, memos; and what it has just asked for is guarded."""

    values: list[Json]
    stops: list[int]
    model: Model
    pauses: list[float]
    states: list[bool]
    told: bool = False

    def play(self, policy: Policy, operator_decisions: OperatorDecisions | None = None) -> list[Turn]:
        """Every request in order, with the session of each carried to the next. operator_decisions: what an operator
        decides half way."""
        turns: list[Turn] = []
        state, now = BranchState(), 0.0
        asked: Request | None = None
        for n, stop in enumerate(self.stops):
            if n == len(self.stops) // 2:
                state = msgspec.structs.replace(state, decisions=operator_decisions)
            now += self.pauses[n % len(self.pauses)]
            values = self.values[:stop]
            asked = make_next_request(asked, values, tools=[{"type": "function", "function": {"name": "run"}}])
            beside = self._beside(n, asked, policy)
            plan = rewrite(asked, state, policy, self.model, now, beside)
            turns.append(Turn(values, asked, state, plan, now, beside))
            state = state.after_sending(plan, now)
            note = (
                (plan.keys[-1], f"Goal: step {n}")
                if plan.asks_for_state and self.states[n % len(self.states)]
                else None
            )
            state = state.after_answer(predicted=plan.predicted, cached=plan.predicted, state=note)
        return turns

    def _beside(self, n: int, asked: Request, policy: Policy) -> RewriteInputs:
        if not self.told:
            return INPUTS
        keys = chain.compute_keys("", asked.messages)
        return RewriteInputs(
            COUNTER,
            offered_tools=frozenset(policy.tools),
            scratchpad=f"- step {n // 3}" if n else "",
            memos=MEMOS[: n % 3],
            guarded_keys=frozenset(keys[-1:]) if asked.messages[-1].is_result else frozenset(),
        )


MEMOS = tuple(Memo(f"m{n}", f"finding {n} of an earlier session", (), "s", 1e9, 1e9) for n in range(2))
MARK = {"cache_control": {"type": "ephemeral"}}
SIZES = st.sampled_from([0, 5, 60, 310, 900, 1500, 5500])
NONE: Json = {}
EXTRAS = st.sampled_from([NONE, NONE, NONE, NONE, {"reasoning_content": "so I go on"}, {"unknown": {"x": 1.0}}])


@st.composite
def texts(draw: st.DrawFn, size: int) -> object:
    """A text of that size: a string, text parts, or text parts with a cache mark."""
    begin = draw(st.integers(0, 500))
    text = LONG[begin : begin + size]
    kind = draw(st.sampled_from(["string"] * 6 + ["parts", "marked"]))
    if kind == "string":
        return text
    half = size // 2
    more = MARK if kind == "marked" else {}
    return [{"type": "text", "text": text[:half]}, {"type": "text", "text": text[half:], **more}]


@st.composite
def rounds(draw: st.DrawFn) -> list[Json]:
    """One or more calls at once and their results. Ids come from a small pool: agents use them again."""
    calls = draw(st.lists(st.sampled_from(["c1", "c2", "c3"]), min_size=1, max_size=3, unique=True))
    said = draw(st.sampled_from([None, "", "Let me look."]))
    answers = [result(c, draw(texts(draw(SIZES)))) for c in draw(st.permutations(calls))]
    return [assistant(said, *calls, **draw(EXTRAS)), *answers]


@st.composite
def stories(draw: st.DrawFn, *, window: Sequence[int | None] = (None, None, 3_000, 12_000)) -> Story:
    """Several groups with rounds of tool calls in them; an upstream of some kind; pauses that let caches go cold."""
    alternate = draw(st.integers(0, 4)) == 0
    values: list[Json] = [system()] if draw(st.booleans()) else []
    if not alternate and draw(st.integers(0, 5)) == 0:
        values.append(assistant("Welcome!"))
    stops = []
    for n in range(draw(st.integers(1, 5))):
        prompts = 1 if alternate else draw(st.sampled_from([1, 1, 1, 2]))
        values += [user(f"Prompt {n}: {LONG[: draw(SIZES) // 10]}", **draw(EXTRAS)) for _ in range(prompts)]
        stops.append(len(values))
        for made in draw(st.lists(rounds(), max_size=6)):
            values += made
            stops.append(len(values))
        values.append(assistant(f"Answer {n}", **draw(EXTRAS)))
    model = replace(
        PLAIN_MODEL,
        window=draw(st.sampled_from(window)),
        alternate=alternate,
        after_tool=draw(st.sampled_from(["append", "append", "user", "none"])) if not alternate else "append",
        min=draw(st.sampled_from([0, 1024])),
        block=draw(st.sampled_from([1, 128])),
        cache=draw(st.sampled_from(["prefix", "prefix", "none"])),
    )
    pauses = draw(st.lists(st.sampled_from([1.0, 1.0, 5.0, 1000.0]), min_size=1, max_size=6))
    states = draw(st.lists(st.booleans(), min_size=1, max_size=4))
    return Story(values, stops, model, pauses, states, draw(st.booleans()))
