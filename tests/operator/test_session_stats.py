from __future__ import annotations

import msgspec
import pytest

from proxy.context.models import Model
from proxy.exchange.cost import Meter, write_meter
from proxy.operator import edit_messages, session_stats, timeline
from proxy.operator.session_stats import SessionTotals
from proxy.store.base import ExchangeRecord
from proxy.store.session_lists import SessionItem
from tests.operator.agent import POLICIES, run_conversation

MODEL = Model("m", window=1000, input=1.0, output=2.0, w=1.0, r=0.1, ttl_s=100, min=0, block=1)


def exchange(before: int, after: int, at: float, *, cached: int | None, edits: int = 0) -> ExchangeRecord:
    return ExchangeRecord(
        "t", "s", f"e{at}", "main", b"h", 1, b"", b"{}", edits, b"{}", "thrifty", "when_it_pays", "m", "u", "openai",
        before, after, cached, at, status="complete", http_status=200, finish="stop", prompt_tokens=after,
        completion_tokens=10, cached_tokens=cached, answer=None, fallback=None, first_byte_ms=1.0, ended_at=at + 1,
        note=None,
    )  # fmt: skip


def test_cost_is_what_was_paid_and_what_the_whole_history_would_have_cost() -> None:
    sums = SessionTotals()
    sums.add_exchange(exchange(100, 100, 0.0, cached=0), MODEL)
    sums.add_exchange(exchange(200, 50, 10.0, cached=20, edits=3), MODEL)
    assert sums.cost == pytest.approx((100 + 20 + 30 + 2 + 20) / 1e6)
    # Without: 200 tokens, of which the 100 of the prompt before were cached.
    assert sums.cost_without == pytest.approx((100 + 20 + 100 + 10 + 20) / 1e6)
    assert (sums.prompt_tokens, sums.completion_tokens, sums.cached_reported, sums.cached_predicted) == (
        150,
        20,
        20,
        20,
    )
    assert sums.last_compression == 10.0


def test_a_cache_that_went_cold_would_have_been_cold_without_the_proxy_too() -> None:
    sums = SessionTotals()
    sums.add_exchange(exchange(100, 100, 0.0, cached=0), MODEL)
    sums.add_exchange(exchange(200, 50, 500.0, cached=0), MODEL)
    assert sums.cost_without == pytest.approx((100 + 20 + 200 + 20) / 1e6)


def test_rounds_of_an_exchange_that_failed_are_paid() -> None:
    sums = SessionTotals()
    meter = write_meter(Meter([(100, 0)], 10, before=100, held=0, sent=100, expected=0, outputs=[10]))
    failed = msgspec.structs.replace(
        exchange(100, 100, 0.0, cached=None),
        status="partial", prompt_tokens=None, completion_tokens=None, meter=meter,
    )  # fmt: skip
    bill = sums.add_exchange(failed, MODEL)
    assert bill is not None
    assert sums.cost == bill.paid == pytest.approx((100 + 20) / 1e6)
    assert (sums.prompt_tokens, sums.completion_tokens) == (100, 10)


def test_cached_tokens_are_those_of_all_rounds_as_the_prompts_are() -> None:
    sums = SessionTotals()
    meter = write_meter(Meter([(240, 100), (328, 128)], 34, before=68, held=0, sent=189, expected=90, outputs=[17, 17]))
    sums.add_exchange(msgspec.structs.replace(exchange(68, 189, 0.0, cached=128), meter=meter), MODEL)
    assert (sums.prompt_tokens, sums.cached_reported, sums.cached_predicted) == (568, 228, 180)


def test_dollars_are_unknown_where_no_answer_reported_its_usage() -> None:
    sums = SessionTotals()
    silent = msgspec.structs.replace(exchange(100, 100, 0.0, cached=None), prompt_tokens=None, completion_tokens=None)
    sums.add_exchange(msgspec.structs.replace(silent, status="rejected"), MODEL)
    assert (sums.cost, sums.unbilled) == (0.0, 0), "a refused request costs nothing"
    sums.add_exchange(silent, MODEL)
    assert (sums.cost, sums.cost_without, sums.unbilled) == (None, None, 1)
    sums.add_exchange(exchange(100, 100, 1.0, cached=0), MODEL)
    assert sums.cost == pytest.approx((100 + 20) / 1e6)
    assert sums.unbilled == 1, "the sum says what it lacks"


def test_without_prices_there_is_no_bill() -> None:
    sums = SessionTotals()
    sums.add_exchange(exchange(100, 100, 0.0, cached=0), Model("x"))
    sums.add_exchange(exchange(100, 100, 0.0, cached=0), MODEL)
    assert sums.cost is sums.cost_without is None


@pytest.mark.parametrize("policy", POLICIES)
async def test_d5_the_figures_of_a_session(policy: str) -> None:
    async with run_conversation(policy) as talk:
        before = await session_stats.compute_stats(talk.parts, talk.tenant, "s")
        assert (before.exchanges, before.groups, before.items, before.messages_stored) == (6, 3, 13, 12)
        assert (before.prompt_tokens, before.completion_tokens) == (66, 18)
        assert before.left_out == 0
        await edit_messages.drop(talk.parts, talk.tenant, "s", [(await talk.groups())[0]])
        after = await session_stats.compute_stats(talk.parts, talk.tenant, "s")
        assert after.left_out == 4
        assert after.sent < before.sent
        assert not after.needs_pruning
        await talk.ask()
        found = await session_stats.compute_stats(talk.parts, talk.tenant, "s")
        assert found.ratio > before.ratio
        assert found.last_compression is not None


async def test_a_prompt_that_is_too_full_says_so() -> None:
    async with run_conversation("passthrough") as talk:
        model = Model("m", window=100)
        talk.parts.models_by_name["m"] = model
        found = await session_stats.compute_stats(talk.parts, talk.tenant, "s")
        assert (found.limit, found.needs_pruning) == (100, True)
        assert found.utilisation == found.sent / 100


async def test_the_policys_own_budget_is_what_a_prompt_is_measured_by() -> None:
    """N3: as the source of `hierarchical` shows it, with each level's budget."""
    async with run_conversation("hierarchical") as talk:
        talk.parts.models_by_name["m"] = Model("m", window=272_000)
        found = await session_stats.compute_stats(talk.parts, talk.tenant, "s")
        assert found.limit == 16_000
        assert found.utilisation == found.sent / 16_000
        assert found.level_budgets == {"permanent": 2_000, "session": 4_000, "working": 8_000}
        assert not found.needs_pruning
        line = await timeline.make_timeline_cache().find(
            talk.parts, SessionItem(talk.tenant, "s", True, 0.0, 0.0, "", "{}", 0, 0, 1)
        )
        assert line is not None
        assert (line.figures.limit, line.figures.needs_pruning) == (16_000, False)
        talk.parts.models_by_name["m"] = Model("m", window=9_000)
        assert (await session_stats.compute_stats(talk.parts, talk.tenant, "s")).limit == 9_000
