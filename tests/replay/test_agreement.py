"""The project's scorer for recorded traffic and the replay command find the same, on a sample of that traffic."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from aiohttp import ClientSession, web

from proxy.chat.tokens import TokenCounter, estimate_text_tokens
from proxy.context.models import Model
from proxy.dialects.completions.request import read_message
from proxy.replay.baselines import BASELINES
from proxy.replay.play import Contender, ReplaySettings, play_conversation
from proxy.replay.read import RecordedConversation, read_conversations
from proxy.replay.report import ReportRow, build_row
from proxy.replay.score import ReplayTotals
from proxy.settings.load import Settings
from proxy.web.app import make_policies
from tests.proxy_server import run_proxy
from tests.recorded.scorer import load_scorer

SAMPLE = {"entire-cli": 1, "mini-swe-agent": 1, "livemcpbench": 4, "swe-agent": 2, "tau-bench": 3}
"""Number of conversations of each file."""
TOLERANCE = 0.01


@pytest.fixture(scope="module")
def scorer(shared: Path) -> ModuleType:
    return load_scorer(shared)


@pytest.fixture(scope="module")
def sample(shared: Path) -> list[RecordedConversation]:
    def taken() -> Iterator[RecordedConversation]:
        for name, count in SAMPLE.items():
            yield from islice(read_conversations(shared / "replay" / "open" / f"{name}.jsonl"), count)

    return list(taken())


def as_recorded(one: RecordedConversation) -> dict[str, Any]:
    made: dict[str, Any] = {"id": one.id, "messages": [json.loads(raw) for raw in one.messages]}
    return made | ({"tools": json.loads(one.tools)} if one.tools else {})


def arguments(**more: Any) -> argparse.Namespace:
    defaults = {
        "proxy": "", "session_header": "", "run": "r", "stream": False, "play_state": False, "far": 20, "limit": 0,
        "summary_model": "summarizer", "cache_min": 1024, "cache_block": 128, "cache_prompts": 4,
    }  # fmt: skip
    return argparse.Namespace(**(defaults | more))


async def scored(
    scorer: ModuleType,
    sample: list[RecordedConversation],
    transform: Callable[..., Any] | None,
    policy: str = "",
    **more: Any,
) -> dict[str, Any]:
    """The scorer's result for a transform, or for a running proxy under a policy."""
    upstream, tokens, score = scorer.Upstream("summarizer"), scorer.Tokens(), scorer.Score()
    if not policy:
        for one in sample:
            await scorer.replay(as_recorded(one), arguments(), upstream, None, transform, tokens, score)
        return dict(score.row())
    runner = web.AppRunner(upstream.app())
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        async with run_proxy(port, policy=policy, tokens={"count": "exact"}) as proxy, ClientSession() as client:
            args = arguments(proxy=proxy.url, session_header="x-context-session", **more)
            for one in sample:
                await scorer.replay(as_recorded(one), args, upstream, client, None, tokens, score)
    finally:
        await runner.cleanup()
    return dict(score.row())


def play_sample(
    scorer: ModuleType, sample: list[RecordedConversation], contender: Contender, *, state: bool = False
) -> ReportRow:
    match = ReplaySettings((Contender("nothing"), contender), Model(), scorer.PRICES, play_state=state)
    nothing, total = ReplayTotals(), ReplayTotals()
    for one in sample:
        tallies = play_conversation(one, match).totals
        nothing.add(tallies[0])
        total.add(tallies[1])
    return build_row(total, nothing, match.price_scale)


def agree(theirs: dict[str, Any], ours: ReportRow) -> None:
    assert theirs["errors"] == 0, theirs["why"]
    named: dict[str, float | None] = {
        "steps": ours.requests, "prompt": ours.prompt, "cached": ours.cached, "peak": ours.peak,
        "recall": ours.atoms.all, "recall_far": ours.atoms.far, "in_place": ours.atoms.in_place,
        "lines": ours.lines.all, "lines_far": ours.lines.far, "faults": ours.faults,
        "refs": ours.atoms.wanted, "refs_far": ours.atoms.wanted_far,
    }  # fmt: skip
    for pair, cost in ours.cost.items():
        named |= {f"cost@{pair}": round(cost.paid), f"effective@{pair}": round(cost.effective)}
    apart = {name: (theirs[name], mine) for name, mine in named.items() if not near(theirs[name], mine)}
    assert apart == {}


def near(theirs: float | None, mine: float | None) -> bool:
    if theirs is None or mine is None:
        return theirs is mine
    return abs(theirs - mine) <= TOLERANCE * max(abs(theirs), abs(mine))


async def test_scorer_and_replay_agree_on_unchanged_prompts(
    scorer: ModuleType, sample: list[RecordedConversation]
) -> None:
    agree(await scored(scorer, sample, None), play_sample(scorer, sample, Contender("nothing")))


@pytest.mark.parametrize("name", ["mask-10-by-15", "random-half"])
async def test_scorer_and_replay_agree_on_each_baseline(
    scorer: ModuleType, sample: list[RecordedConversation], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    token_counter = TokenCounter(estimate_text_tokens)
    baseline = BASELINES[name]
    # Half of a history is chosen by its tokens: both have to count them alike.
    monkeypatch.setitem(BASELINES, name, lambda messages, _: baseline(messages, token_counter))

    def transform(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        history = [read_message(json.dumps(message).encode()) for message in messages]
        return [json.loads(raw) for raw in baseline(history, token_counter)]

    theirs = await scored(scorer, sample, transform)
    agree(theirs, play_sample(scorer, sample, Contender(name, None, name)))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "state"), [("thrifty", False), ("rolling", False), ("rolling", True)])
async def test_a_policy_is_found_to_be_the_same_as_through_the_running_proxy(
    scorer: ModuleType, sample: list[RecordedConversation], name: str, state: bool
) -> None:
    policy = make_policies(Settings())[name]
    theirs = await scored(scorer, sample, None, name, play_state=state)
    assert theirs["invalid"] == 0
    # Where it plays a STATE block the scorer takes the blanks off an answer's front, and counts that as ours.
    assert theirs["altered"] == 0 or state
    agree(theirs, play_sample(scorer, sample, Contender(name, policy), state=state))
