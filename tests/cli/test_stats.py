from __future__ import annotations

from proxy.cli.sessions import _cost
from tests.cli.conftest import Shop


def test_where_a_session_stands_is_told_as_the_source_tells_it(shop: Shop) -> None:
    found = shop.json("stats", "talk")
    told = shop.ok("stats", "talk").out
    assert f"{found['sent']:,} / {found['limit']:,}" in told
    for line in ("total tokens used", "messages stored", "summaries", "compression ratio", "last compression",
                 "retrieved items", "fetched again"):  # fmt: skip
        assert line in told


def test_levels_stand_there_where_the_policy_has_them(shop: Shop) -> None:
    name = shop.fresh()
    shop.ok("sessions", "settings", name, "--policy", "hierarchical")
    levels = shop.json("stats", name)["levels"]
    told = shop.ok("stats", name).out
    assert levels
    assert all(f"{level}" in told for level in levels)


def test_the_whole_proxy_is_told_without_a_session(shop: Shop) -> None:
    assert "healthy" in shop.ok("stats").out
    assert shop.json("stats")["healthy"] is True
    assert "since it started" not in shop.ok("stats").out
    assert "since it started" in shop.ok("stats", key="cp-all-read").out


def test_an_observed_plan_is_told_beside_what_was_paid() -> None:
    found = {"cost": 0.21, "cost_without": 0.21, "cost_planned": 0.03, "planned_as": "thrifty"}
    assert _cost(found) == "paid $0.2100; thrifty would have paid about $0.0300"
    assert _cost(found | {"cost": 0.1, "cost_planned": None}) == "$0.1000, without the proxy $0.2100"
