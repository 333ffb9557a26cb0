from __future__ import annotations

import json

from tests.web.api.conftest import World

E = "/api/sessions/talk/exchanges"


def test_exchanges_come_newest_first_by_pages_and_filters(world: World) -> None:
    whole = world.ask("GET", E + "?limit=200").json()["items"]
    assert [one["started_at"] for one in whole] == sorted((one["started_at"] for one in whole), reverse=True)
    assert {one["status"] for one in whole} == {"complete"}
    first = world.ask("GET", E + "?limit=2").json()
    assert first["items"] == whole[:2]
    assert world.ask("GET", f"{E}?limit=2&cursor={first['next']}").json()["items"] == whole[2:4]
    assert world.ask("GET", E + "?status=failed").json() == {"items": [], "next": None}
    assert world.ask("GET", f"{E}?thread={whole[0]['thread']}&limit=200").json()["items"] == whole
    assert world.ask("GET", f"{E}/{whole[1]['exchange']}").json() == whole[1]


def test_the_bytes_of_a_request_come_back_as_they_were(world: World) -> None:
    messages = [{"role": "user", "content": "Exactly this."}]
    raw = json.dumps({"model": "demo", "temperature": 0.50, "messages": messages}, indent=1).encode()
    got = world.ask("POST", "/v1/chat/completions", raw, key="cp-acme-data", x_context_session="exact")
    assert got.status == 200
    (one,) = world.ask("GET", "/api/sessions/exact/exchanges").json()["items"]
    for which in ("original", "sent"):
        path = f"/api/sessions/exact/exchanges/{one['exchange']}/body?which={which}"
        assert world.ask("GET", path).body == raw
