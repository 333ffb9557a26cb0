from __future__ import annotations

from proxy.store.base import SessionRow
from proxy.store.in_memory import InMemoryStore
from proxy.web.api.admin_context import read_tenants
from tests.web.api.conftest import ProxyWithData


async def test_tenants_are_found_a_row_each() -> None:
    store = InMemoryStore()
    await store.open()
    try:
        for tenant in ("a", "b", "c"):
            for n in range(20):
                await store.put([SessionRow(tenant, f"s{n}", True, 1.0)])
        assert await read_tenants(store, "", 2) == ["a", "b"]
        assert await read_tenants(store, "b", 9) == ["c"]
        assert await read_tenants(store, "c", 9) == []
    finally:
        await store.close()


def test_a_session_of_an_odd_name_is_reached_by_its_address(proxy: ProxyWithData) -> None:
    proxy.converse("a / b?#%2F")
    (line,) = proxy.ask("GET", "/api/sessions?q=a%20/").json()["items"]
    assert line["session"] == "a / b?#%2F"
    assert proxy.ask("GET", f"/api/sessions/{line['address']}").json()["session"] == line["session"]


def test_a_caller_of_all_tenants_must_name_one_where_a_name_is_ambiguous(proxy: ProxyWithData) -> None:
    proxy.converse("both")
    proxy.converse("both", "other")
    assert proxy.ask("GET", "/api/sessions/both", key="cp-all-read").status == 409
    for tenant in ("acme", "other"):
        got = proxy.ask("GET", f"/api/sessions/both?tenant={tenant}", key="cp-all-read")
        assert got.json()["tenant"] == tenant
    assert proxy.ask("GET", "/api/sessions/talk", key="cp-all-read").json()["tenant"] == "acme"
    assert proxy.ask("GET", "/api/sessions/talk?tenant=other", key="cp-all-read").status == 404
    assert proxy.ask("GET", "/api/memos", key="cp-all-read").status == 409


def test_a_name_that_only_another_tenant_has_is_not_there(proxy: ProxyWithData) -> None:
    assert proxy.ask("GET", "/api/sessions/theirs").status == 404
    listed = [line["session"] for line in proxy.ask("GET", "/api/sessions?limit=200").json()["items"]]
    assert "theirs" not in listed
    assert "talk" in listed
