"""S2: what is written for a database, a log or a page, wherever a caller may write: it is a text and no more."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from tests.web.api.conftest import ProxyWithData

ATTACKS = (
    "' OR '1'='1", "'; DROP TABLE sessions; --", '" OR ""="', "1); DELETE FROM messages; --",
    "') UNION SELECT sql FROM sqlite_master --", "%' ESCAPE '\\", "_%_", "!", "\\", "$1", "?1", ":tenant", "{tenant}",
    "%s%s%n", "a\x00b", "a\r\nx-evil: 1", "<script>alert(1)</script>", "../../etc/passwd", "\u202egnp.exe", "ﬀ",
    "' || pg_sleep(9)", "1 AND randomblob(1000000000)", '" MATCH "', "NEAR(a b, 9)", "tags:*", "*", "^a OR b", "(",
    "-- ",
)  # fmt: skip
PLACES = (
    "/api/sessions?q={0}", "/api/sessions?policy={0}", "/api/sessions?cursor={0}", "/api/sessions/{0}",
    "/api/sessions/~{0}", "/api/sessions/{0}/messages", "/api/sessions/talk/messages?q={0}",
    "/api/sessions/talk/messages?role={0}", "/api/sessions/talk/messages?group={0}",
    "/api/sessions/talk/messages?branch={0}", "/api/sessions/talk/messages/{0}", "/api/sessions/talk/search?q={0}",
    "/api/sessions/talk/branches/{0}", "/api/sessions/talk/exchanges?status={0}", "/api/sessions/talk/exchanges/{0}",
    "/api/sessions/talk/groups/{0}", "/api/sessions/talk/groups?branch={0}", "/api/memos?q={0}",
    "/api/memos?project={0}", "/api/memos/{0}", "/api/policies?q={0}", "/api/models?q={0}", "/api/stats?tenant={0}",
)  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
def test_s2_no_text_is_more_than_a_text(proxy: ProxyWithData, place: str) -> None:
    before = proxy.ask("GET", "/api/sessions/talk").json()["rows"]
    for attack in ATTACKS:
        got = proxy.ask("GET", place.format(quote(attack, safe="")))
        assert got.status in (200, 400, 403, 404, 405, 422), (attack, got.body)
        assert "x-evil" not in got.headers
        for word in (b"sqlite", b"syntax", b"asyncpg", b"Traceback", b"no such table", b"no such column"):
            assert word not in got.body.replace(attack.encode(), b""), (attack, got.body)
        if got.status == 200 and "=" in place and "stats" not in place:
            listed = got.json()
            items = listed["items"] if isinstance(listed, dict) else listed
            assert not any(item.get("tenant", "acme") != "acme" for item in items)
    assert proxy.ask("GET", "/api/sessions/talk").json()["rows"] == before


def test_s2_a_bearer_is_hashed_and_nothing_else(proxy: ProxyWithData) -> None:
    for attack in ATTACKS:
        if not attack.isprintable() or not attack.isascii():
            continue
        got = proxy.ask("GET", "/api/sessions", key=attack)
        assert (got.status, got.json()["error"]["code"]) == (401, "invalid_api_key")
        assert attack not in got.json()["error"]["message"]


def test_a_nul_character_in_a_body_is_reported(proxy: ProxyWithData) -> None:
    for path, body in (("undo", {"branch": "a\0"}), ("decide/drop", {"ids": ["a\0"]}), ("rebuild", {"branch": "\0"})):
        assert proxy.ask("POST", f"/api/sessions/talk/{path}", body).status == 422
    for path, body in (("notes", {"text": "a\0b"}), ("scratchpad", {"text": "a\0b"}), ("settings", {"policy": "\0"})):
        got = proxy.ask("POST" if path == "notes" else "PUT", f"/api/sessions/{proxy.fresh()}/{path}", body)
        assert got.status in (200, 422), (path, got.body)
