from __future__ import annotations

from tests.web.api.conftest import TOOLS, ProxyWithData


def test_sessions_are_listed_used_last_first_by_pages_and_filters(proxy: ProxyWithData) -> None:
    for n in range(3):
        proxy.converse(f"listed-{n}")
    first = proxy.ask("GET", "/api/sessions?limit=2&q=listed").json()
    assert [line["session"] for line in first["items"]] == ["listed-2", "listed-1"]
    assert first["items"][0]["messages"] > 3
    rest = proxy.ask("GET", f"/api/sessions?limit=2&q=listed&cursor={first['next']}").json()
    assert [line["session"] for line in rest["items"]] == ["listed-0"]
    assert rest["next"] is None
    assert proxy.ask("GET", "/api/sessions?q=listed&policy=rolling").json()["items"] == []
    assert proxy.ask("GET", "/api/sessions?q=listed&explicit=false").json()["items"] == []
    late = first["items"][0]["last_at"]
    assert len(proxy.ask("GET", f"/api/sessions?q=listed&since={late}").json()["items"]) == 1


def test_a_session_tells_its_branches_and_rows(proxy: ProxyWithData) -> None:
    shown = proxy.ask("GET", "/api/sessions/talk").json()
    assert (shown["tenant"], shown["explicit"], shown["settings"]) == ("acme", True, {})
    assert [branch["kind"] for branch in shown["branches"]] == ["main"]
    assert shown["rows"]["messages"] > 3


def test_a_deleted_session_is_gone_and_its_memos_stay_without_its_name(proxy: ProxyWithData) -> None:
    name, memo = proxy.fresh(), proxy.memo()
    got = proxy.ask("DELETE", f"/api/sessions/{name}")
    assert got.json()["verified"] is True
    assert proxy.ask("GET", f"/api/sessions/{name}").status == 404
    assert proxy.ask("GET", f"/api/memos/{memo}").status == 200
    history = proxy.converse(name)
    assert len(history) > 3
    assert proxy.ask("GET", f"/api/sessions/{name}").json()["rows"]["messages"] > 3, "it begins anew"


def test_a_session_tells_how_full_it_is_and_what_it_cost(proxy: ProxyWithData) -> None:
    stats = proxy.ask("GET", "/api/sessions/talk/stats").json()
    assert stats["groups"] == 3
    assert 0 < stats["sent"] <= stats["tokens"]
    assert stats["exchanges"] > 3
    assert stats["needs_pruning"] is False


S = "/api/sessions/talk"


def test_branches_say_which_is_used_last(proxy: ProxyWithData) -> None:
    (line,) = proxy.ask("GET", S + "/branches").json()["items"]
    assert (line["kind"], line["is_newest"], line["stopped"]) == ("main", True, None)
    assert proxy.ask("GET", f"{S}/branches/{line['branch']}").json() == line


def test_a_fork_is_the_branch_used_last(proxy: ProxyWithData) -> None:
    messages = proxy.converse("forked")
    messages[-2] = {"role": "user", "content": "Something else."}
    proxy.chat("forked", messages[:-1])
    branches = proxy.ask("GET", "/api/sessions/forked/branches").json()["items"]
    assert [line["kind"] for line in branches] == ["main", "fork"]
    assert [line["is_newest"] for line in branches] == [False, True]
    first = proxy.ask("GET", "/api/sessions/forked/branches?limit=1").json()
    rest = proxy.ask("GET", f"/api/sessions/forked/branches?limit=1&cursor={first['next']}").json()
    assert first["items"] + rest["items"] == branches


def test_decisions_and_summaries_are_listed(proxy: ProxyWithData) -> None:
    messages = proxy.converse("summed")
    body = {"model": "demo", "messages": [*messages, {"role": "user", "content": "Once more."}]}
    got = proxy.ask(
        "POST", "/v1/chat/completions", body, key="cp-acme-data", x_context_session="summed", x_context_policy="rolling"
    )
    assert got.status == 200
    branch = proxy.ask("GET", "/api/sessions/summed/branches").json()["items"][0]
    page = proxy.ask("GET", f"/api/sessions/summed/branches/{branch['branch']}/edits?limit=200").json()
    assert len(page["items"]) == branch["edits"] > 0
    assert all(edit["stage"] and edit["reason"] for edit in page["items"])
    one = proxy.ask("GET", f"/api/sessions/summed/branches/{branch['branch']}/edits?limit=1").json()
    assert (one["items"], one["next"] is None) == (page["items"][:1], branch["edits"] == 1)
    assert proxy.ask("GET", "/api/sessions/summed/summaries").json()["items"] == []


def test_iterations_are_listed_where_they_are_recorded(proxy: ProxyWithData) -> None:
    assert proxy.ask("GET", S + "/iterations").json() == {"items": [], "next": None}
    messages = proxy.converse("thought")
    body = {"model": "demo", "messages": [*messages[:-1]]}
    proxy.ask(
        "POST", "/v1/chat/completions", body, key="cp-acme-data", x_context_session="reflected",
        x_context_policy="reflective",
    )  # fmt: skip
    found = proxy.ask("GET", "/api/sessions/reflected/iterations").json()
    assert found["next"] is None
    for one in found["items"]:
        assert one["iteration"] >= 1
        assert one["tool_calls"]


def test_an_iteration_is_listed_with_the_feedback_on_it(proxy: ProxyWithData) -> None:
    prompt = {"role": "user", "content": "Read the log."}
    called = proxy.chat("criticised", [prompt], tools=TOOLS)
    results = [
        {"role": "tool", "tool_call_id": one["id"], "content": "a line of the log"} for one in called["tool_calls"]
    ]
    body = {"model": "demo", "messages": [prompt, called, *results], "tools": TOOLS}
    headers = {"x_context_session": "criticised", "x_context_policy": "reflective"}
    assert proxy.ask("POST", "/v1/chat/completions", body, key="cp-acme-data", **headers).status == 200
    base = "/api/sessions/criticised"
    assert proxy.ask("POST", base + "/feedback", {"text": "Look elsewhere."}).status == 200
    (iteration,) = proxy.ask("GET", base + "/iterations").json()["items"]
    assert iteration["user_feedback"] == "Look elsewhere."
