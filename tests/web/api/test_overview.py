from __future__ import annotations

from tests.web.api.conftest import ProxyWithData


def test_policies_and_models_are_listed(proxy: ProxyWithData) -> None:
    policies = proxy.ask("GET", "/api/policies").json()["items"]
    named = {policy["name"]: policy for policy in policies}
    assert named["thrifty"]["is_default"] is True
    assert named["rolling"]["schedule"] == "always"
    assert named["passthrough"]["stages"] == []
    assert [p["name"] for p in proxy.ask("GET", "/api/policies?q=roll").json()["items"]] == ["rolling"]
    first = proxy.ask("GET", "/api/models?limit=1").json()
    second = proxy.ask("GET", f"/api/models?limit=1&cursor={first['next']}").json()
    whole = proxy.ask("GET", "/api/models").json()["items"]
    assert first["items"] + second["items"] == whole[:2]
    assert all(set(m["name"]) & set("gpt") for m in proxy.ask("GET", "/api/models?q=gpt").json()["items"])


def test_figures_are_for_who_sees_every_tenant(proxy: ProxyWithData) -> None:
    own = proxy.ask("GET", "/api/stats").json()
    assert (own["healthy"], own["policy"], own["figures"]) == (True, "thrifty", {})
    assert 0 < own["added_ms"] <= own["added_ms_p99"]
    whole = proxy.ask("GET", "/api/stats", key="cp-all-read").json()
    assert (own["dollars_spent_today"], whole["dollars_spent_today"]) == (None, 0.0), "others' dollars are theirs"
    assert whole["figures"]["requests"] > 0
    kinds = [name for name in whole["figures"] if name.startswith("cached_tokens.")]
    assert kinds, "what was predicted and what was reported are two figures"


def test_tenants_are_listed_and_removed_with_all_that_is_theirs(proxy: ProxyWithData) -> None:
    memo = proxy.memo("leaving")
    assert proxy.ask("GET", "/api/tenants").json()["items"] == [{"tenant": "acme"}]
    everybody = proxy.ask("GET", "/api/tenants", key="cp-all-read").json()["items"]
    assert {"tenant": "other"} in everybody
    got = proxy.ask("DELETE", "/api/tenants/leaving", key="cp-all-admin")
    assert (got.status, got.json()["verified"]) == (200, True)
    assert proxy.ask("GET", f"/api/memos/{memo}?tenant=leaving", key="cp-all-admin").status == 404
    assert proxy.ask("DELETE", "/api/tenants/leaving", key="cp-all-admin").status == 404
    assert proxy.ask("GET", "/api/sessions/talk").status == 200


def test_the_upstreams_are_reported_with_their_addresses(proxy: ProxyWithData) -> None:
    [target] = proxy.ask("GET", "/api/stats").json()["targets"]
    assert target == {"name": "default", "base_url": "demo", "models": ["*"]}
