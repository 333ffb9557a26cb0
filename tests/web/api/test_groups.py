from __future__ import annotations

from typing import Any

import pytest

from tests.web.api.conftest import World
from tests.web.api.test_settings import go_on, sent


def groups(world: World, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = world.ask("GET", f"/api/sessions/{name}/groups").json()["items"]
    return found


def test_groups_are_listed_with_their_tokens_by_pages_and_status(world: World) -> None:
    found = groups(world, "talk")
    assert [line["title"] for line in found] == ["Read the log.", "And the other one?", "Thank you."]
    assert all(line["tokens"] > 0 and line["sent"] <= line["tokens"] for line in found)
    first = world.ask("GET", "/api/sessions/talk/groups?limit=2").json()
    rest = world.ask("GET", f"/api/sessions/talk/groups?limit=2&cursor={first['next']}").json()
    assert first["items"] + rest["items"] == found
    assert world.ask("GET", "/api/sessions/talk/groups?status=dropped").json()["items"] == []
    system, prompt, *_ = world.ask("GET", f"/api/sessions/talk/groups/{found[0]['id']}").json()
    assert (system["id"], prompt["content"]["content"]) == ("", "Read the log.")


@pytest.mark.parametrize("policy", ["thrifty", "rolling", "passthrough"])
def test_what_is_dropped_stays_out_and_what_is_restored_is_back_whatever_the_agent_resends(
    world: World, policy: str
) -> None:
    name = world.fresh()
    history = world.converse(name)
    world.ask("PATCH", f"/api/sessions/{name}/settings", {"policy": policy})
    middle = groups(world, name)[1]["id"]
    changed = world.ask("POST", f"/api/sessions/{name}/groups/{middle}/drop", {}).json()
    assert (changed["action"], changed["groups"]) == ("drop", [middle])
    shown = world.ask("GET", f"/api/sessions/{name}/prompt").json()
    out = [m for m in shown["messages"] if m["status"] == "dropped"]
    assert [m["group"] for m in out] == [middle] * len(out)
    assert out
    assert all(m["why"]["stage"] == "operator" for m in out)
    history = go_on(world, name, history)
    assert "And the other one?" not in str(sent(world, name)[1])
    assert groups(world, name)[1]["status"] == "dropped"
    assert world.ask("POST", f"/api/sessions/{name}/groups/{middle}/restore", {}).status == 200
    go_on(world, name, history)
    assert "And the other one?" in str(sent(world, name)[1])


def test_what_is_removed_is_gone_from_the_store_too(world: World) -> None:
    name = world.fresh()
    history = world.converse(name)
    tool = world.ask("GET", f"/api/sessions/{name}/messages?role=tool").json()["items"][0]["id"]
    assert world.ask("POST", f"/api/sessions/{name}/messages/{tool}/remove", {}).status == 200
    assert "a line of the log" not in str(world.ask("GET", f"/api/sessions/{name}/messages/{tool}").json()["message"])
    go_on(world, name, history)
    assert world.ask("POST", f"/api/sessions/{name}/messages/{tool}/restore", {}).status == 409


def test_several_are_decided_at_once(world: World) -> None:
    name = world.fresh()
    ids = [line["id"] for line in groups(world, name)]
    changed = world.ask("POST", f"/api/sessions/{name}/decide/pin", {"ids": ids[:2]}).json()
    assert changed["groups"] == ids[:2]
    assert [line["pinned"] for line in groups(world, name)] == [True, True, False]
    world.ask("POST", f"/api/sessions/{name}/decide/unpin", {"ids": ids[:1]})
    assert [line["pinned"] for line in groups(world, name)] == [False, True, False]


def test_a_past_prompt_says_why_something_was_left_out(world: World) -> None:
    name = world.fresh()
    history = world.converse(name)
    world.ask("POST", f"/api/sessions/{name}/window", {"groups": 1})
    go_on(world, name, history)
    exchange, messages = sent(world, name)
    shown = world.ask("GET", f"/api/sessions/{name}/exchanges/{exchange['exchange']}/prompt").json()
    left_out = [m for m in shown["messages"] if m["status"] != "in"]
    assert left_out
    assert all("window" in m["why"]["reason"] and m["why"]["find"] for m in left_out)
    assert len(shown["messages"]) - len(left_out) == len(messages)
