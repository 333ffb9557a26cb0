from __future__ import annotations

import asyncio

import pytest

from proxy.errors import Unavailable
from proxy.metrics import Metrics
from proxy.web import body_budget
from proxy.web.body_budget import BodyBudget, BodyShare


async def test_what_a_request_held_is_given_back_at_its_end() -> None:
    metrics = Metrics()
    budget = BodyBudget(100, metrics)
    with budget.share() as one:
        one.reserve(60)
        one.reserve(30)
        with budget.share() as other:
            other.reserve(5)
            with pytest.raises(Unavailable):
                other.reserve(6)
        assert budget.held == 90
    assert budget.held == 0
    assert metrics.registry.get_sample_value("context_proxy_refused_requests_total") == 1


def test_a_body_alone_is_let_in_however_long_it_is() -> None:
    budget = BodyBudget(100, Metrics())
    with budget.share() as one:
        one.reserve(1000)
        one.reserve(1000)
        assert budget.held == 2000
    assert budget.held == 0


async def test_one_of_several_tenants_has_half() -> None:
    budget = BodyBudget(100, Metrics(), several=True)
    with budget.share("a") as one, budget.share("a") as two, budget.share("b") as other:
        one.reserve(30)
        with pytest.raises(Unavailable):
            two.reserve(30)
        two.reserve(20)
        other.reserve(30)
        other.reserve(20)
        with pytest.raises(Unavailable):
            two.reserve(1)
    assert budget.held == 0
    with budget.share("a") as one:
        one.reserve(90)


@pytest.mark.parametrize("slow", [0.0, 60.0])
async def test_the_body_that_has_been_coming_for_longest_gives_way(
    monkeypatch: pytest.MonkeyPatch, slow: float
) -> None:
    monkeypatch.setattr(body_budget, "SLOW_S", slow)
    budget = BodyBudget(100, Metrics())
    ended: list[str] = []

    async def upload(name: str, share: BodyShare) -> None:
        async def reading() -> bytes:
            share.reserve(40)
            await asyncio.sleep(60)
            return b""

        try:
            await share.read_whole(reading())
        except Unavailable:
            ended.append(name)

    with budget.share() as one, budget.share() as two, budget.share() as new:
        tasks = [asyncio.create_task(upload(name, share)) for name, share in (("one", one), ("two", two))]
        await asyncio.sleep(0.01)
        if slow:
            with pytest.raises(Unavailable):
                new.reserve(40)
        else:
            new.reserve(40)
        await asyncio.sleep(0.01)
        assert ended == ([] if slow else ["one"])
        assert budget.held == 80
        tasks[1].cancel()
        tasks[0].cancel()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(found[1], asyncio.CancelledError), "the server's own cancellation is not taken for that"
        with pytest.raises(Unavailable):
            one.reserve(100)
    assert budget.held == 0
