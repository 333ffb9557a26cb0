"""What is paid, and what it would have been: by hand, through the running proxy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.exchange.hiding import TOOLS, offering, ours, says
from tests.faulty import faulty
from tests.running import Running, running
from tests.scripted import Scripted

PRICED = """
[models."priced"]
window = 100000
tokenizer = "estimate"
input = 2.0
output = 10.0
w = 1.25
r = 0.1
min = 100
block = 1
"""


@pytest.fixture
def prices(tmp_path: Path) -> str:
    file = tmp_path / "models.toml"
    file.write_text(PRICED)
    return str(file)


def said(there: Running) -> tuple[float, float]:
    return there.count("cost_dollars_total", kind="paid"), there.count("cost_dollars_total", kind="without")


def usage(prompt: int, cached: int) -> dict[str, Any]:
    return {"prompt_tokens": prompt, "completion_tokens": 100, "prompt_tokens_details": {"cached_tokens": cached}}


HISTORY: list[dict[str, Any]] = [{"role": "user", "content": "Look around. " + "x " * 500}]


async def test_an_untouched_prompt_costs_what_it_would_have_cost(prices: str) -> None:
    model = Scripted("Done.")
    model.usage = usage(1000, 400)
    async with faulty(model) as upstream, running(upstream.port, models_file=prices) as there:
        await there.post({"model": "priced", "messages": HISTORY})
        paid, without = said(there)
    # 600 tokens at 1.25 x 2 dollars a million, 400 at a tenth of 2, and 100 of the answer at 10
    assert paid == pytest.approx((600 * 2.5 + 400 * 0.2 + 100 * 10) / 1e6)
    assert without == pytest.approx(paid)


async def test_a_model_without_prices_has_no_bill(prices: str) -> None:
    async with faulty(Scripted("Done.")) as upstream, running(upstream.port, models_file=prices) as there:
        await there.post({"model": "nobody-knows", "messages": HISTORY})
        assert said(there) == (0.0, 0.0)


async def test_a_shortened_prompt_is_compared_with_the_client_s_own_and_its_cache(prices: str) -> None:
    """A window of one group: the second request goes out without the first prompt and its answer."""
    model = Scripted("Done.", "Done again.")
    model.usage = usage(1000, 0)
    async with faulty(model) as upstream, running(upstream.port, models_file=prices, policy="rolling") as there:
        first = await there.post({"model": "priced", "messages": HISTORY})
        before = said(there)
        history = [*HISTORY, first.message]
        for n in range(6):
            history += [{"role": "user", "content": f"And {n}? " + "y " * 200}, {"role": "assistant", "content": "So."}]
        history.append({"role": "user", "content": "And now?"})
        answer = await there.post({"model": "priced", "messages": history})
        before_tokens, after_tokens = map(int, (answer.header("x-context-tokens") or "").split(","))
        paid, without = (now - then for now, then in zip(said(there), before, strict=True))
    assert after_tokens < before_tokens
    assert paid == pytest.approx((1000 * 2.5 + 100 * 10) / 1e6)
    # The first prompt and its short answer would have come from the cache; the upstream counts by another measure.
    known = int((first.header("x-context-tokens") or "").split(",")[0])
    factor = 1000 / after_tokens
    all_written = (before_tokens * factor * 2.5 + 100 * 10) / 1e6
    assert all_written - (known + 10) * factor * 2.3 / 1e6 < without < all_written - known * factor * 2.3 / 1e6
    assert without > paid


async def test_rounds_of_ours_are_paid_for_and_would_not_have_been(prices: str) -> None:
    model = Scripted(says(None, ours(1)), says(None, ours(2)), "Done.")
    model.usage = usage(1000, 400)
    async with faulty(model) as upstream, offering(upstream.port, models_file=prices) as there:
        await there.post({"model": "priced", "messages": HISTORY, "tools": TOOLS})
        paid, without = said(there)
    prompt, answers = 600 * 2.5 + 400 * 0.2, 300 * 10
    assert paid == pytest.approx((3 * prompt + answers) / 1e6)
    assert without == pytest.approx((prompt + answers) / 1e6)
