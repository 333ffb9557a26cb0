from __future__ import annotations

import json
from typing import Any

from tests.web.api.conftest import ProxyWithData

M = "/api/sessions/talk/messages"


def test_messages_come_in_their_order_and_by_pages(world: ProxyWithData) -> None:
    whole = world.ask("GET", M + "?limit=200").json()
    assert whole["next"] is None
    seqs = [line["seq"] for line in whole["items"]]
    assert seqs == sorted(seqs)
    found: list[Any] = []
    cursor: str | None = ""
    while cursor is not None:
        page = world.ask("GET", f"{M}?limit=2{f'&cursor={cursor}' if cursor else ''}").json()
        found += page["items"]
        cursor = page["next"]
    assert found == whole["items"]
    newest = world.ask("GET", M + "?limit=200&newest=true").json()["items"]
    assert newest == whole["items"][::-1]


def test_filters_leave_out_what_is_not_asked_for(world: ProxyWithData) -> None:
    lines = world.ask("GET", M + "?limit=200").json()["items"]
    users = world.ask("GET", M + "?role=user").json()["items"]
    assert [line["text"] for line in users] == ["Read the log.", "And the other one?", "Thank you."]
    group = users[1]["group"]
    assert world.ask("GET", f"{M}?group={group}").json()["items"] == [li for li in lines if li["group"] == group]
    assert next(line["text"] for line in world.ask("GET", M + "?q=OTHER%20one").json()["items"]) == "And the other one?"
    branch = lines[0]["branch"]
    assert world.ask("GET", f"{M}?branch={branch}&limit=200").json()["items"] == lines
    assert world.ask("GET", M + "?branch=nobody").json()["items"] == []


def test_a_message_is_shown_whole_with_what_became_of_it(world: ProxyWithData) -> None:
    tool = world.ask("GET", M + "?role=tool").json()["items"][0]
    shown = world.ask("GET", f"{M}/{tool['id']}").json()
    assert shown["message"]["content"] == "a line of the log\n" * 40
    assert shown["edits"] == []


def test_words_are_found(world: ProxyWithData) -> None:
    found = world.ask("GET", "/api/sessions/talk/search?q=other").json()
    assert any("other" in one["text"] for one in found)
    assert world.ask("GET", "/api/sessions/talk/search?q=xyzzyx").json() == []


E = "/api/sessions/talk/exchanges"


def test_exchanges_come_newest_first_by_pages_and_filters(world: ProxyWithData) -> None:
    whole = world.ask("GET", E + "?limit=200").json()["items"]
    assert [one["started_at"] for one in whole] == sorted((one["started_at"] for one in whole), reverse=True)
    assert {one["status"] for one in whole} == {"complete"}
    first = world.ask("GET", E + "?limit=2").json()
    assert first["items"] == whole[:2]
    assert world.ask("GET", f"{E}?limit=2&cursor={first['next']}").json()["items"] == whole[2:4]
    assert world.ask("GET", E + "?status=failed").json() == {"items": [], "next": None}
    assert world.ask("GET", f"{E}?branch={whole[0]['branch']}&limit=200").json()["items"] == whole
    assert world.ask("GET", f"{E}/{whole[1]['exchange']}").json() == whole[1]


def test_the_bytes_of_a_request_come_back_as_they_were(world: ProxyWithData) -> None:
    messages = [{"role": "user", "content": "Exactly this."}]
    raw = json.dumps({"model": "demo", "temperature": 0.50, "messages": messages}, indent=1).encode()
    got = world.ask("POST", "/v1/chat/completions", raw, key="cp-acme-data", x_context_session="exact")
    assert got.status == 200
    (one,) = world.ask("GET", "/api/sessions/exact/exchanges").json()["items"]
    for which in ("original", "sent"):
        path = f"/api/sessions/exact/exchanges/{one['exchange']}/body?which={which}"
        assert world.ask("GET", path).body == raw
