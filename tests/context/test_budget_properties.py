"""The budget holds for every drawn conversation, policy, schedule and window, or the plan says that it does not.

The proxy's own count is checked against the body that goes out, read anew as upstream would read it. Text is counted
in characters, times a scale that grows with the window: so a window of a million tokens needs no megabytes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.chat import chain
from proxy.chat.message import Request
from proxy.chat.tokens import TokenCounter
from proxy.context.branch_state import BranchState
from proxy.context.models import Model
from proxy.context.pipeline import rewrite
from proxy.context.plan import Plan, RewriteInputs
from proxy.dialects.completions.request import read_request, write_request
from proxy.notes.memo_matching import Memo
from tests.context.agent import LONG, load_policy
from tests.conversations import PLAIN_MODEL, Json, assistant, make_next_request, result, system, user

pytestmark = pytest.mark.slow

FILES = sorted(
    p.stem for p in (Path(__file__).parents[2] / "config" / "policies").glob("*.toml") if p.stem != "passthrough"
)
SCHEDULES = ("always", "over_budget", "when_it_pays")
EACH = pytest.mark.parametrize("policy", [f"{file}/{schedule}" for file in FILES for schedule in SCHEDULES])
SOME = settings(max_examples=8)
WINDOWS = (4_000, 8_000, 16_000, 32_000, 128_000, 200_000, 1_000_000)
TOOLS: list[Json] = [{"type": "function", "function": {"name": "run", "description": "Runs a command."}}]
STATE = "Goal: go on\nContext: as before\nResolved: nothing\nTechnical Anchors: a.txt"


@cache
def weigh_at(scale: int) -> TokenCounter:
    """A counter for which a character is that many tokens."""
    return TokenCounter(lambda text: scale * len(text))


@dataclass(frozen=True)
class Asked:
    """One request of a conversation. room: tokens that the answer needs."""

    request: Request
    plan: Plan
    model: Model
    token_counter: TokenCounter
    room: int

    @property
    def sent(self) -> int:
        """Tokens of the body that goes out."""
        out = read_request(write_request(self.request, self.plan.messages))
        return self.token_counter.count_tools(out.tools) + sum(map(self.token_counter, out.messages))

    @property
    def most(self) -> int:
        assert self.model.window is not None
        return self.model.window - self.room

    @property
    def says_so(self) -> bool:
        return self.plan.limit is not None and self.plan.after > self.plan.limit


@dataclass(frozen=True)
class Talk:
    """A conversation, where it is asked, what the provider reports of its cache, and how long answers may be."""

    values: list[Json]
    stops: list[int]
    model: Model
    scale: int
    cached: list[float | None]
    max_tokens: int | None

    def play(self, policy: str) -> list[Asked]:
        chosen, token_counter = load_policy(policy), weigh_at(self.scale)
        state, turns = BranchState(), []
        asked: Request | None = None
        for n, stop in enumerate(self.stops):
            more = {} if self.max_tokens is None else {"max_tokens": self.max_tokens}
            asked = make_next_request(asked, self.values[:stop], tools=TOOLS, **more)
            window = self.model.window or 0
            keys = chain.compute_keys("", asked.messages)
            plan = rewrite(
                asked, state, chosen, self.model, float(n), RewriteInputs(token_counter, keys=keys,
                offered_tools=frozenset(chosen.tools),
                scratchpad=f"- step {n}", memos=[Memo("m", "finding of an earlier session", (), "s", 1e9, 1e9)],
                guarded_keys=frozenset(keys[-1:]) if asked.messages[-1].is_result and n % 3 == 0 else frozenset()),
            )  # fmt: skip
            room = self.max_tokens if self.max_tokens is not None else min(self.model.answer, window // 5)
            turns.append(Asked(asked, plan, self.model, token_counter, 0 if self.model.answer_apart else room))
            share = self.cached[n % len(self.cached)]
            state = state.after_sending(plan, float(n)).after_answer(
                predicted=plan.predicted,
                cached=None if share is None else int(share * plan.predicted),
                state=(plan.keys[-1], STATE) if plan.asks_for_state else None,
            )
        return turns


def text(draw: st.DrawFn, share: float, window: int, scale: int) -> str:
    """A text that has that share of the window."""
    chars = int(share * window / scale)
    begin = draw(st.integers(0, 3000))
    return (LONG[begin:] + LONG * (chars // len(LONG) + 1))[:chars]


@st.composite
def talks(draw: st.DrawFn, *, prompts: Sequence[float], answers: Sequence[float]) -> Talk:
    """prompts, results: shares of the window that a user message has, and that a tool result has."""
    window = draw(st.sampled_from(WINDOWS))
    scale = max(1, window // 25_000)
    values: list[Json] = [system("Be brief.")] if draw(st.booleans()) else []
    stops = []
    for _ in range(draw(st.integers(1, 4))):
        values.append(user("Go on. " + text(draw, draw(st.sampled_from(prompts)), window, scale)))
        stops.append(len(values))
        for _ in range(draw(st.integers(0, 5))):
            calls = [f"c{n}" for n in range(draw(st.integers(1, 3)))]
            values.append(assistant(draw(st.sampled_from([None, "Let me look."])), *calls))
            values += [result(c, text(draw, draw(st.sampled_from(answers)), window, scale)) for c in calls]
            stops.append(len(values))
        values.append(assistant("Done: " + text(draw, draw(st.sampled_from(prompts)) / 2, window, scale)))
    model = replace(
        PLAIN_MODEL,
        window=window,
        answer_apart=draw(st.booleans()),
        cache=draw(st.sampled_from(["prefix", "none", "breakpoint"])),
        after_tool=draw(st.sampled_from(["append", "user", "none"])),
        alternate=draw(st.integers(0, 4)) == 0,
    )
    cached = draw(st.lists(st.sampled_from([1.0, 1.0, 0.0, 0.0, None]), min_size=1, max_size=6))
    if draw(st.booleans()):
        cached = [draw(st.sampled_from([0.0, None]))]
    limits = [None, 16, window // 10, window // 4, window // 2, window * 9 // 10]
    return Talk(values, stops, model, scale, cached, draw(st.sampled_from(limits)))


ANY = talks(prompts=(0.001, 0.01, 0.2, 1.3), answers=(0.0, 0.001, 0.05, 0.3, 2.0))
FITTING = talks(prompts=(0.0005, 0.001), answers=(0.0, 0.001, 0.05, 0.3, 2.0))
"""Nothing in these has to stay that would not fit."""


@EACH
@SOME
@given(talk=ANY)
def test_a_prompt_never_exceeds_the_window_less_the_room_for_the_answer_unless_it_says_so(
    policy: str, talk: Talk
) -> None:
    for turn in talk.play(policy):
        assert turn.plan.refusal is None, turn.plan.notes
        assert turn.plan.after == turn.sent, "everything that is sent counts"
        assert turn.sent <= turn.most or turn.says_so
        if turn.says_so:
            assert [note.kind for note in turn.plan.notes].count("over_budget") == 1


@EACH
@SOME
@given(talk=FITTING)
def test_short_prompts_are_never_over_budget(policy: str, talk: Talk) -> None:
    window = talk.model.window or 0
    talk = replace(talk, max_tokens=min(talk.max_tokens or 0, window // 2) or None)
    for turn in talk.play(policy):
        assert turn.plan.refusal is None, turn.plan.notes
        assert turn.sent <= turn.most, json.dumps([e.reason for e in turn.plan.new_edits])
