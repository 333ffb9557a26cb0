from __future__ import annotations

from proxy.cli.stats import _describe_cost, _describe_pings, _format_figure
from tests.cli.conftest import CommandRunner


def test_a_look_at_the_figures_is_not_a_request_of_a_client(shop: CommandRunner) -> None:
    before = shop.json("stats", key="cp-all-read")["figures"]["requests"]
    shop.ok("sessions", "list")
    assert shop.json("stats", key="cp-all-read")["figures"]["requests"] == before
    shop.fresh()
    assert shop.json("stats", key="cp-all-read")["figures"]["requests"] > before


def test_statistics_of_a_session_are_printed_as_the_api_has_them(shop: CommandRunner) -> None:
    found = shop.json("stats", "talk")
    told = shop.ok("stats", "talk").out
    assert f"{found['sent']:,} / {found['limit']:,}" in told
    for line in ("total tokens used", "messages stored", "summaries", "compression ratio", "last compression",
                 "retrieved items", "fetched again"):  # fmt: skip
        assert line in told


def test_levels_are_printed_where_the_policy_has_them(shop: CommandRunner) -> None:
    name = shop.fresh()
    shop.ok("sessions", "settings", name, "--policy", "hierarchical")
    levels = shop.json("stats", name)["levels"]
    told = shop.ok("stats", name).out
    assert levels
    assert all(f"{level}" in told for level in levels)


def test_the_whole_proxy_is_told_without_a_session(shop: CommandRunner) -> None:
    assert "healthy" in shop.ok("stats").out
    assert shop.json("stats")["healthy"] is True
    assert "since it started" not in shop.ok("stats").out
    told = shop.ok("stats", key="cp-all-read").out
    assert "since it started" in told
    assert "context tokens, sent " in told


def test_the_cost_of_an_observed_plan_is_printed_beside_what_was_paid() -> None:
    found = {"cost": 0.21, "cost_without": 0.21, "cost_planned": 0.03, "planned_as": "thrifty"}
    assert _describe_cost(found) == "paid $0.2100; thrifty would have paid about $0.0300"
    assert _describe_cost(found | {"cost": 0.1, "cost_planned": None}) == "$0.1000, without the proxy about $0.2100"


def test_pings_are_told_apart_from_requests_with_what_they_cost() -> None:
    assert (
        _describe_pings({"cost": 0.21, "pings": 2, "pings_cost": 0.02}) == "2 pings that kept the cache warm, $0.0200"
    )
    assert _describe_pings({"cost": None, "pings": 1, "pings_cost": 0.0}) == "1 ping that kept the cache warm"


def test_dollars_of_the_proxy_have_more_than_two_places() -> None:
    shown = [_format_figure(*one) for one in (("cost_dollars.paid", 0.0004), ("requests", 12.0), ("cpu_seconds", 1.5))]
    assert shown == ["$0.0004", "12", "1.50"]
