from __future__ import annotations

from typing import Any

from tests.web.api.conftest import World


def sent(world: World, session: str) -> Any:
    """The newest exchange and the messages that went upstream in it."""
    newest = world.ask("GET", f"/api/sessions/{session}/exchanges?limit=1").json()["items"][0]
    body = world.ask("GET", f"/api/sessions/{session}/exchanges/{newest['exchange']}/body").json()
    return newest, body["messages"]


def go_on(world: World, session: str, history: list[dict[str, Any]], text: str = "Go on.") -> list[dict[str, Any]]:
    messages = [*history, {"role": "user", "content": text}]
    return [*messages, world.chat(session, messages)]


def test_settings_are_in_force_with_the_next_request(world: World) -> None:
    name = world.fresh()
    history = world.converse(name)
    base = f"/api/sessions/{name}"
    assert world.ask("PATCH", base + "/settings", {"policy": "rolling", "urgency": "firm"}).status == 200
    shown = world.ask("PATCH", base + "/settings", {"window": 1}).json()
    assert (shown["policy"], shown["window"], shown["urgency"]) == ("rolling", 1, "firm")
    history = go_on(world, name, history)
    exchange, messages = sent(world, name)
    assert exchange["policy"] == "rolling"
    assert [m["role"] for m in messages if m["role"] != "system"] == ["user"], "one group stays"
    put = world.ask("PUT", base + "/settings", {"policy": "rolling"}).json()
    assert "urgency" not in put
    assert world.ask("GET", base + "/settings").json() == put
    go_on(world, name, history)
    assert len(sent(world, name)[1]) > 3, "what is not named is as the policy says"
    assert world.ask("GET", base).json()["settings"]["policy"] == "rolling"


def test_a_window_is_set_by_a_call_of_its_own(world: World) -> None:
    name = world.fresh()
    history = world.converse(name)
    assert world.ask("POST", f"/api/sessions/{name}/window", {"groups": 2}).json()["window"] == 2
    go_on(world, name, history)
    assert next(m["content"] for m in sent(world, name)[1] if m["role"] == "user").startswith("Thank you.")


def test_undo_takes_the_last_group_out_though_the_agent_resends_it(world: World) -> None:
    name = world.fresh()
    history = world.converse(name)
    changed = world.ask("POST", f"/api/sessions/{name}/undo", {}).json()
    assert changed["action"] == "undo"
    go_on(world, name, history)
    texts = [m["content"] for m in sent(world, name)[1] if m["role"] == "user"]
    assert not any("Thank you." in text for text in texts)
    assert any("And the other one?" in text for text in texts)


def test_what_the_next_request_does_is_told_until_it_has(world: World) -> None:
    name = world.fresh()
    history = world.converse(name)
    assert world.ask("POST", f"/api/sessions/{name}/compress", {}).json()["force"] == "compress"
    assert world.ask("GET", f"/api/sessions/{name}/settings").json()["force"] == "compress"
    go_on(world, name, history)
    assert "force" not in world.ask("GET", f"/api/sessions/{name}/settings").json()


def test_nothing_can_be_pruned_where_the_policy_changes_nothing(world: World) -> None:
    name = world.fresh()
    world.ask("PATCH", f"/api/sessions/{name}/settings", {"policy": "passthrough"})
    got = world.ask("POST", f"/api/sessions/{name}/prune", {})
    assert (got.status, got.json()["error"]["code"]) == (409, "conflict")


def test_a_state_is_rebuilt_with_the_next_request_where_nobody_else_can(world: World) -> None:
    name = world.fresh()
    rebuilt = world.ask("POST", f"/api/sessions/{name}/rebuild", {}).json()
    assert (rebuilt["how"], rebuilt["text"]) == ("next_request", None)
    assert world.ask("GET", f"/api/sessions/{name}/settings").json()["ask"] is True
