from __future__ import annotations

import pytest

from proxy.errors import Unavailable
from proxy.metrics import Metrics
from proxy.web.body_budget import BodyBudget


def test_what_a_request_held_is_given_back_at_its_end() -> None:
    metrics = Metrics()
    budget = BodyBudget(100, metrics)
    with budget.share() as one:
        one.add(60)
        one.add(30)
        with budget.share() as other:
            other.add(5)
            with pytest.raises(Unavailable):
                other.add(6)
        assert budget.held == 90
    assert budget.held == 0
    assert metrics.registry.get_sample_value("context_proxy_refused_requests_total") == 1


def test_a_body_alone_is_let_in_however_long_it_is() -> None:
    budget = BodyBudget(100, Metrics())
    with budget.share() as one:
        one.add(1000)
        one.add(1000)
        assert budget.held == 2000
    assert budget.held == 0
