from __future__ import annotations

from tests.web.api.conftest import ProxyWithData


def test_tools_are_listed_and_called_in_a_session(proxy: ProxyWithData) -> None:
    names = [tool["name"] for tool in proxy.ask("GET", "/api/tools", key="cp-acme-read").json()]
    assert "search" in names
    session = proxy.ask("GET", "/api/sessions?limit=1").json()["items"][0]["address"]
    path = f"/api/sessions/{session}/tools"
    made = proxy.ask("POST", f"{path}/query_db", {"arguments": {"sql": "SELECT count(*) AS n FROM messages"}})
    assert made.json()["failed"] is False
    assert "columns: n" in made.json()["text"]
    assert proxy.ask("POST", f"{path}/format_disk", {}).status == 404
    assert proxy.ask("POST", f"{path}/search", {"arguments": {"query": "x"}}, key="cp-acme-read").status == 403
