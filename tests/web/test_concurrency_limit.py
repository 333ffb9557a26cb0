from __future__ import annotations

import pytest

from proxy.errors import Unavailable
from proxy.metrics import Metrics
from proxy.web.concurrency_limit import ConcurrencyLimit


def test_one_more_than_there_is_room_for_is_sent_away_and_a_place_that_is_left_is_taken_again() -> None:
    metrics = Metrics()
    room = ConcurrencyLimit(2, metrics)
    with room.hold_place():
        with pytest.raises(ValueError, match="of its own"), room.hold_place():
            raise ValueError("of its own")
        with room.hold_place(), pytest.raises(Unavailable, match="2 requests"), room.hold_place():
            pass
        assert room.taken == 1
    assert room.taken == 0
    assert metrics.registry.get_sample_value("context_proxy_refused_requests_total") == 1
