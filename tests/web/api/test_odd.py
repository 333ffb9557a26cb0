"""Sessions whose messages hold what JSON can carry and few readers take: nothing of the API breaks on them."""

from __future__ import annotations

import pytest

from tests.web.api.conftest import ProxyWithData

BODIES = {
    "surrogate": rb'{"model":"demo","messages":[{"role":"user","content":"half \ud800 a pair"}]}',
    "nan": rb'{"model":"demo","top_p":NaN,"messages":[{"role":"user","content":"hello","x":NaN}]}',
    "number": rb'{"model":"demo","messages":[{"role":"user","content":"hello","x":1' + b"0" * 5000 + rb"}]}",
    "double": rb'{"model":"demo","model":"demo","messages":[{"role":"user","content":"a","content":"b"}]}',
    "nul": rb'{"model":"demo","messages":[{"role":"user","content":"a\u0000b <script>alert(1)</script>"}]}',
    "parts": rb'{"model":"demo","messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"x"}]}]}',
    "role": rb'{"model":"demo","messages":[{"role":"wizard","content":"a"},{"role":"user","content":"b"}]}',
    "empty": rb'{"model":"demo","messages":[{"role":"user","content":""}]}',
}
PATHS = (
    "", "/messages", "/messages?q=a", "/search?q=hello", "/branches", "/iterations", "/summaries", "/exchanges",
    "/groups", "/prompt", "/state", "/scratchpad", "/settings", "/notes", "/stats", "/export", "/feedback",
)  # fmt: skip


@pytest.mark.parametrize("name", BODIES)
def test_unusual_messages_can_be_shown_and_deleted(proxy: ProxyWithData, name: str) -> None:
    session = f"odd-{name}"
    got = proxy.ask("POST", "/v1/chat/completions", BODIES[name], key="cp-acme-data", x_context_session=session)
    assert got.status in (200, 400)
    if proxy.ask("GET", f"/api/sessions/{session}").status == 404:
        return  # passed on and not stored: there is nothing to be shown
    for path in PATHS:
        found = proxy.ask("GET", f"/api/sessions/{session}{path}")
        assert found.status in (200, 404), (path, found.body)
    for one in proxy.ask("GET", f"/api/sessions/{session}/exchanges").json()["items"]:
        base = f"/api/sessions/{session}/exchanges/{one['exchange']}"
        assert proxy.ask("GET", base + "/body?which=original").body == BODIES[name]
        assert proxy.ask("GET", base + "/prompt").status == 200
    for message in proxy.ask("GET", f"/api/sessions/{session}/messages").json()["items"]:
        assert proxy.ask("GET", f"/api/sessions/{session}/messages/{message['id']}").status == 200
    proxy.ask("POST", f"/api/sessions/{session}/undo", {})
    assert proxy.ask("DELETE", f"/api/sessions/{session}").json()["verified"] is True
