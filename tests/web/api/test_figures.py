from __future__ import annotations

import time

from proxy.operator.timeline import PeriodFigures, SessionFigures, SessionPeriod, SessionTimeline
from proxy.web.api.figures import _choose_step, _sum_since
from tests.web.api.conftest import ProxyWithData


def test_a_key_is_told_whose_it_is_and_what_it_opens(proxy: ProxyWithData) -> None:
    assert proxy.ask("GET", "/api/me").json() == {
        "name": "acme-admin", "tenant": "acme", "plane": "admin", "may_change": True,
    }  # fmt: skip
    assert proxy.ask("GET", "/api/me", key="cp-acme-read").json()["may_change"] is False


def test_sessions_come_with_figures_by_pages_and_filters(proxy: ProxyWithData) -> None:
    for n in range(3):
        proxy.converse(f"live-{n}")
    first = proxy.ask("GET", "/api/live?limit=2&q=live-").json()
    assert [line["session"] for line in first["items"]] == ["live-2", "live-1"]
    figures, stats = first["items"][0]["figures"], proxy.ask("GET", "/api/sessions/live-2/stats").json()
    for name in ("exchanges", "cost", "cost_without", "cached_predicted", "cached_reported", "limit"):
        assert figures[name] == stats[name], name
    assert 0 < figures["utilisation"] < 1
    assert first["items"][0]["title"] == proxy.ask("GET", "/api/sessions/live-2").json()["title"] != ""
    rest = proxy.ask("GET", f"/api/live?limit=2&q=live-&cursor={first['next']}").json()
    assert ([line["session"] for line in rest["items"]], rest["next"]) == (["live-0"], None)
    assert proxy.ask("GET", "/api/live?q=live-&policy=rolling").json()["items"] == []
    assert proxy.ask("GET", "/api/live?q=live-", key="cp-other-read").json()["items"] == []


def test_points_come_oldest_first_and_the_newest_of_them(proxy: ProxyWithData) -> None:
    proxy.converse("pointed")
    points = proxy.ask("GET", "/api/sessions/pointed/points").json()
    assert [point["started_at"] for point in points] == sorted(point["started_at"] for point in points)
    assert proxy.ask("GET", "/api/sessions/pointed/points?limit=2").json() == points[-2:]
    branch = points[0]["branch"]
    assert len(proxy.ask("GET", f"/api/sessions/pointed/points?branch={branch}").json()) == len(points)
    assert proxy.ask("GET", "/api/sessions/pointed/points?branch=nobody").json() == []


def test_a_prompt_chart_has_the_groups_of_the_next_prompt(proxy: ProxyWithData) -> None:
    seen = proxy.ask("GET", "/api/sessions/talk/prompt_chart").json()
    groups = proxy.ask("GET", "/api/sessions/talk/groups").json()["items"]
    assert [bar["group"] for bar in seen["bars"]] == groups
    assert {piece["kind"] for piece in seen["fixed"]} == {"tools", "system"}


def test_money_is_the_sum_of_all_sessions_and_of_nobody_elses(proxy: ProxyWithData) -> None:
    proxy.converse("spent")
    money = proxy.ask("GET", "/api/money").json()
    lines = proxy.ask("GET", "/api/live?limit=50").json()["items"]
    assert money["over"] == len(lines)
    assert abs(money["total"]["cost"] - sum(line["figures"]["cost"] for line in lines)) < 1e-9
    assert money["total"]["exchanges"] == sum(step["exchanges"] for step in money["steps"])
    costs = [one["figures"]["cost"] for one in money["spenders"]]
    assert costs == sorted(costs, reverse=True)
    assert "theirs" not in {one["session"] for one in money["spenders"]}
    for by in ("policies", "models", "tenants"):
        assert abs(sum(one["figures"]["cost"] for one in money[by]) - money["total"]["cost"]) < 1e-9
        assert sum(one["figures"]["exchanges"] for one in money[by]) == money["total"]["exchanges"]
    assert "thrifty" in [one["name"] for one in money["policies"]]
    assert [one["name"] for one in money["tenants"]] == ["acme"]
    minutes = proxy.ask("GET", "/api/money?step=auto").json()
    assert (minutes["step"], minutes["total"]) == (300, money["total"])
    assert all(one["title"] for one in money["spenders"])
    late = time.time() + 7200
    assert proxy.ask("GET", f"/api/money?since={late:.0f}").json()["total"]["exchanges"] == 0
    hours = proxy.ask("GET", f"/api/money?since={time.time() - 86400:.0f}&step=hour").json()
    assert hours["step"] == 3600
    assert all(step["at"] % 3600 == 0 for step in hours["steps"])


def test_the_costliest_sessions_are_ranked_by_the_period_that_was_asked_for() -> None:
    periods = [
        SessionPeriod("thrifty", "demo", PeriodFigures(at, 2, cost=cost, cost_without=2 * cost, unpriced=left))
        for at, cost, left in ((0, 4.0, 0), (900, 1.0, 1), (1200, 0.0, 2))
    ]
    whole = SessionFigures(6, "demo", "complete", 1, 1, None, None, False, 5.0, 10.0, None, 0, 0, 0, 0)
    found = SessionTimeline(whole, periods)
    assert _sum_since(found, 0) == whole
    late = _sum_since(found, 900)
    assert (late.exchanges, late.cost, late.cost_without) == (4, 1.0, 2.0)
    assert (_sum_since(found, 1199).cost, _sum_since(found, 1201).cost) == (1.0, None)


def test_a_chart_has_some_tens_of_steps_however_long_the_time_is() -> None:
    hour, day = 3600, 86400
    wanted = {0: 300, 6 * hour: 300, 7 * hour: hour, 2 * day: hour, 7 * day: 6 * hour, 15 * day: day, 400 * day: day}
    assert {span: _choose_step(span) for span in wanted} == wanted


def test_savings_are_those_since_a_moment_and_of_ones_own_tenant(proxy: ProxyWithData) -> None:
    before = proxy.ask("GET", f"/api/savings?since={time.time()}").json()
    assert before["requests"] == 0
    began = time.time()
    proxy.converse("saving")
    found = proxy.ask("GET", f"/api/savings?since={began}").json()
    stats = proxy.ask("GET", "/api/sessions/saving/stats").json()
    assert found["requests"] == stats["exchanges"]
    assert abs(found["cost"] - stats["cost"]) < 1e-12
    assert proxy.ask("GET", f"/api/savings?since={began}", key="cp-other-read").json()["requests"] == 0
