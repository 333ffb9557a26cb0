from __future__ import annotations

from tests.web.api.conftest import World

S = "/api/sessions/talk"


def test_threads_say_which_is_used_last(world: World) -> None:
    (line,) = world.ask("GET", S + "/threads").json()["items"]
    assert (line["kind"], line["is_newest"], line["stopped"]) == ("main", True, None)
    assert world.ask("GET", f"{S}/threads/{line['thread']}").json() == line


def test_a_fork_is_the_thread_used_last(world: World) -> None:
    messages = world.converse("forked")
    messages[-2] = {"role": "user", "content": "Something else."}
    world.chat("forked", messages[:-1])
    threads = world.ask("GET", "/api/sessions/forked/threads").json()["items"]
    assert [line["kind"] for line in threads] == ["main", "fork"]
    assert [line["is_newest"] for line in threads] == [False, True]
    first = world.ask("GET", "/api/sessions/forked/threads?limit=1").json()
    rest = world.ask("GET", f"/api/sessions/forked/threads?limit=1&cursor={first['next']}").json()
    assert first["items"] + rest["items"] == threads


def test_decisions_and_summaries_are_listed(world: World) -> None:
    messages = world.converse("summed")
    body = {"model": "demo", "messages": [*messages, {"role": "user", "content": "Once more."}]}
    got = world.ask(
        "POST", "/v1/chat/completions", body, key="cp-acme-data", x_context_session="summed", x_context_policy="rolling"
    )
    assert got.status == 200
    thread = world.ask("GET", "/api/sessions/summed/threads").json()["items"][0]
    page = world.ask("GET", f"/api/sessions/summed/threads/{thread['thread']}/edits?limit=200").json()
    assert len(page["items"]) == thread["edits"] > 0
    assert all(edit["stage"] and edit["reason"] for edit in page["items"])
    one = world.ask("GET", f"/api/sessions/summed/threads/{thread['thread']}/edits?limit=1").json()
    assert (one["items"], one["next"] is None) == (page["items"][:1], thread["edits"] == 1)
    assert world.ask("GET", "/api/sessions/summed/summaries").json()["items"] == []


def test_iterations_are_listed_where_they_are_recorded(world: World) -> None:
    assert world.ask("GET", S + "/iterations").json() == {"items": [], "next": None}
    messages = world.converse("thought")
    body = {"model": "demo", "messages": [*messages[:-1]]}
    world.ask(
        "POST", "/v1/chat/completions", body, key="cp-acme-data", x_context_session="reflected",
        x_context_policy="reflective",
    )  # fmt: skip
    found = world.ask("GET", "/api/sessions/reflected/iterations").json()
    assert found["next"] is None
    for one in found["items"]:
        assert one["iteration"] >= 1
        assert one["tool_calls"]
