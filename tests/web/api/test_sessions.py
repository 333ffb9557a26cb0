from __future__ import annotations

from tests.web.api.conftest import World


def test_sessions_are_listed_used_last_first_by_pages_and_filters(world: World) -> None:
    for n in range(3):
        world.converse(f"listed-{n}")
    first = world.ask("GET", "/api/sessions?limit=2&q=listed").json()
    assert [line["session"] for line in first["items"]] == ["listed-2", "listed-1"]
    assert first["items"][0]["messages"] > 3
    rest = world.ask("GET", f"/api/sessions?limit=2&q=listed&cursor={first['next']}").json()
    assert [line["session"] for line in rest["items"]] == ["listed-0"]
    assert rest["next"] is None
    assert world.ask("GET", "/api/sessions?q=listed&policy=rolling").json()["items"] == []
    assert world.ask("GET", "/api/sessions?q=listed&explicit=false").json()["items"] == []
    late = first["items"][0]["last_at"]
    assert len(world.ask("GET", f"/api/sessions?q=listed&since={late}").json()["items"]) == 1


def test_a_session_tells_its_threads_and_rows(world: World) -> None:
    shown = world.ask("GET", "/api/sessions/talk").json()
    assert (shown["tenant"], shown["explicit"], shown["settings"]) == ("acme", True, {})
    assert [thread["kind"] for thread in shown["threads"]] == ["main"]
    assert shown["rows"]["messages"] > 3


def test_what_is_deleted_is_gone_and_its_memos_stay_without_its_name(world: World) -> None:
    name, memo = world.fresh(), world.memo()
    got = world.ask("DELETE", f"/api/sessions/{name}")
    assert got.json()["verified"] is True
    assert world.ask("GET", f"/api/sessions/{name}").status == 404
    assert world.ask("GET", f"/api/memos/{memo}").status == 200
    history = world.converse(name)
    assert len(history) > 3
    assert world.ask("GET", f"/api/sessions/{name}").json()["rows"]["messages"] > 3, "it begins anew"


def test_a_session_tells_how_full_it_is_and_what_it_cost(world: World) -> None:
    stats = world.ask("GET", "/api/sessions/talk/stats").json()
    assert stats["groups"] == 3
    assert 0 < stats["sent"] <= stats["tokens"]
    assert stats["exchanges"] > 3
    assert stats["needs_pruning"] is False
