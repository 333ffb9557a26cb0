from __future__ import annotations

import json

from proxy.chat.tokens import TokenCounter, estimate_text_tokens
from proxy.replay.baselines import BASELINES, STUB
from tests.recorded.strict import violations
from tests.replay.recorded import assistant, make_run, messages, tool_result, user

WEIGH = TokenCounter(estimate_text_tokens)
HISTORY = messages(*make_run(40)[:-1])


def contents(name: str) -> list[str | None]:
    return [json.loads(raw)["content"] for raw in BASELINES[name](HISTORY, WEIGH)]


def test_masking_keeps_the_last_ten_results() -> None:
    stubs = [content == STUB for content in contents("mask-10")]
    assert sum(stubs) == 31
    assert not any(stubs[-20:])


def test_masking_in_batches_moves_fifteen_at_a_time() -> None:
    assert sum(content == STUB for content in contents("mask-10-by-15")) == 30


def test_half_of_the_history_is_half_of_its_tokens_and_valid() -> None:
    whole = sum(map(WEIGH, HISTORY))
    for name in ("newest-half", "random-half"):
        kept = BASELINES[name](HISTORY, WEIGH)
        assert 0.35 * whole < sum(map(WEIGH, messages(*map(json.loads, kept)))) < 0.6 * whole
        assert violations([json.loads(raw) for raw in kept]) == []
        assert kept[:2] == [HISTORY[0].raw, HISTORY[1].raw]
        assert kept[-1] == HISTORY[-1].raw
        assert BASELINES[name](HISTORY, WEIGH) == kept


def test_the_newest_half_is_the_newest() -> None:
    assert BASELINES["newest-half"](HISTORY, WEIGH)[2:] == [m.raw for m in HISTORY[-len(contents("newest-half")) + 2 :]]


def test_short_histories_stay_as_they_are() -> None:
    short = messages(user("a"), assistant("b"), user("c"))
    for name in BASELINES:
        assert BASELINES[name](short, WEIGH)[-1] == short[-1].raw
        assert BASELINES[name](short[:1], WEIGH) == [short[0].raw]


def test_a_result_without_text_is_left_as_it_is() -> None:
    empty = {**tool_result(1, ""), "content": None}
    history = messages(user("a"), empty, *[tool_result(n, "x") for n in range(10)])
    assert BASELINES["mask-10"](history, WEIGH)[1] == history[1].raw
