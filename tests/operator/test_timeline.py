from __future__ import annotations

import pytest

from proxy.operator import session_cache, session_stats, timeline
from proxy.operator.timeline import HOUR_S, PeriodFigures, make_timeline_cache
from tests.operator.agent import run_conversation
from tests.operator.test_session_stats import exchange


async def test_points_add_up_to_what_the_session_cost() -> None:
    async with run_conversation("passthrough") as talk:
        model = talk.parts.models[0]
        rows = [
            exchange(100, 100, 10.0, cached=0),
            exchange(200, 50, HOUR_S + 20.0, cached=20, edits=3),
            exchange(210, 60, HOUR_S + 30.0, cached=40, edits=3),
        ]
        talk.parts.models_by_name["m"] = type(model)(
            "m", window=1000, input=1.0, output=2.0, w=1.0, r=0.1, min=0, block=1
        )
        points, sums = timeline.build_points(talk.parts, rows)
        assert sum(point.cost or 0 for point in points) == pytest.approx(sums.cost)
        assert sum(point.cost_without or 0 for point in points) == pytest.approx(sums.cost_without)
        assert [point.edited for point in points] == [False, True, False]
        told = timeline.build_timeline(talk.parts, rows)
        assert [(one.figures.at, one.figures.exchanges) for one in told.periods] == [(0, 1), (HOUR_S, 2)]
        assert {(one.policy, one.model) for one in told.periods} == {(rows[0].policy, "m")}
        assert (told.figures.tokens_before, told.figures.tokens_after, told.figures.limit) == (210, 60, 1000)
        assert told.figures.utilisation == 0.06


def test_a_period_takes_in_exchanges_and_other_periods() -> None:
    first, second = (
        PeriodFigures(0, 2, 10, 5, 1, 2, 0.5, 0.75),
        PeriodFigures(HOUR_S, 1, 4, 4, cost=0.25, unpriced=1, loops=2, fallbacks=1, errors=1, first_byte_ms=5.0),
    )
    first.add(second)
    assert first == PeriodFigures(0, 3, 14, 9, 1, 2, 0.75, 0.75, 1, 2, 1, errors=1, first_byte_ms=5.0)


async def test_a_session_that_is_used_again_is_reported_again() -> None:
    async with run_conversation("thrifty") as talk:
        remembered = make_timeline_cache()
        (item,) = await talk.parts.store.list_sessions(talk.tenant)
        told = await remembered.find(talk.parts, item)
        assert told is not None
        assert await remembered.find(talk.parts, item) is told
        stats = await session_stats.compute_stats(talk.parts, talk.tenant, "s")
        assert (told.figures.exchanges, told.figures.cost) == (stats.exchanges, stats.cost)
        await talk.ask()
        await talk.proxy.outcome()
        (item,) = await talk.parts.store.list_sessions(talk.tenant)
        again = await remembered.find(talk.parts, item)
        assert again is not None
        assert again.figures.exchanges == told.figures.exchanges + 1


async def test_a_long_session_has_the_same_sums_in_the_list_and_on_its_page(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (session_stats, session_cache):
        monkeypatch.setattr(module, "MAX_EXCHANGES", 3)
    async with run_conversation("passthrough") as talk:
        (item,) = await talk.parts.store.list_sessions(talk.tenant)
        listed = await make_timeline_cache().find(talk.parts, item)
        stats = await session_stats.compute_stats(talk.parts, talk.tenant, "s")
        assert listed is not None
        sums = ("exchanges", "cost", "cost_without", "cached_reported", "cached_predicted", "more")
        assert [getattr(listed.figures, name) for name in sums] == [getattr(stats, name) for name in sums]
        assert (stats.exchanges, stats.more, item.exchanges > 3) == (3, True, True)
        monkeypatch.undo()
        whole = await session_stats.compute_stats(talk.parts, talk.tenant, "s")
        assert (whole.exchanges, whole.more) == (item.exchanges, False)
