from __future__ import annotations

import json

from tests.web.api.conftest import World


def test_memos_are_listed_by_pages_and_filters(world: World) -> None:
    made = sorted(world.memo() for _ in range(3))
    whole = world.ask("GET", "/api/memos?limit=200").json()["items"]
    names = [memo["memo"] for memo in whole]
    assert set(made) <= set(names)
    assert names == sorted(names)
    first = world.ask("GET", "/api/memos?limit=1").json()
    second = world.ask("GET", f"/api/memos?limit=1&cursor={first['next']}").json()
    assert first["items"] + second["items"] == whole[:2]
    assert world.ask("GET", "/api/memos?q=xyzzy").json() == {"items": [], "next": None}
    assert world.ask("GET", "/api/memos?q=POSTGRESQL&limit=200").json()["items"]
    assert world.ask("GET", "/api/memos?project=nothing").json()["items"] == []


def test_a_memo_is_mended_and_what_is_left_out_stays(world: World) -> None:
    name = world.memo()
    text = "The tests need PostgreSQL 15 since yesterday's change of the view."
    shown = world.ask("PUT", f"/api/memos/{name}", {"content": text}).json()
    assert (shown["content"], shown["tags"], shown["session"]) == (text, ["tests"], "talk")
    shown = world.ask("PUT", f"/api/memos/{name}", {"tags": ["Data Base"]}).json()
    assert (shown["content"], shown["tags"]) == (text, ["data-base"])
    assert world.ask("GET", f"/api/memos/{name}").json() == shown


def test_a_memo_from_elsewhere_is_saved_once(world: World) -> None:
    body = {"content": "The release needs a tag that git signs with the key of the team.", "tags": ["Release"]}
    shown = world.ask("POST", "/api/memos", body).json()
    assert (shown["content"], shown["tags"], shown["session"]) == (body["content"], ["release"], "")
    assert world.ask("GET", f"/api/memos/{shown['memo']}").json() == shown
    again = world.ask("POST", "/api/memos", {**body, "tags": ["git"]}).json()
    assert (again["memo"], set(again["tags"])) == (shown["memo"], {"release", "git"})
    elsewhere = world.ask("POST", "/api/memos", {**body, "project": "other"}).json()
    assert elsewhere["memo"] != shown["memo"]
    assert world.ask("GET", f"/api/memos/{shown['memo']}", key="cp-other-admin").status == 404
    assert world.ask("POST", "/api/memos", {"content": ""}).status == 422
    assert world.ask("POST", "/api/memos", body, key="cp-acme-read").status == 403


def test_a_deleted_memo_does_not_come_back(world: World) -> None:
    name = world.memo()
    assert world.ask("DELETE", f"/api/memos/{name}").json() == {"memo": name}
    assert world.ask("GET", f"/api/memos/{name}").status == 404
    assert world.ask("PUT", f"/api/memos/{name}", {"tags": ["again"]}).status == 404


def test_all_memos_are_exported_a_line_each(world: World) -> None:
    listed = world.ask("GET", "/api/memos?limit=200").json()["items"]
    got = world.ask("GET", "/api/memos/export")
    assert got.headers["content-type"].startswith("application/x-ndjson")
    assert [json.loads(line) for line in got.body.splitlines()] == listed
    assert world.ask("GET", "/api/memos/export", key="cp-other-admin").body == b""
