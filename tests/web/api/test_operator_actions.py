"""Every action of the table has a route, opened by the keys of its planes, that gives its result."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from fastapi import APIRouter
from fastapi.routing import APIRoute

from proxy.operator.actions import ACTIONS, SettingsBody
from proxy.web.api.operator_actions import DECISIONS, add_routes
from tests.operator.test_actions import planted
from tests.web.api.conftest import World

ON_ONE_STORE = True

BODIES: dict[str, Any] = {
    "groups": 2, "text": "A canary.", "policy": "rolling",
    "content": "The canary of the mine is replaced each Monday, before the shift.",
}  # fmt: skip
"""What the fields of bodies are, but for ids."""


@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: action.name)
def test_each_action_is_reached_by_its_route(world: World, action: Any) -> None:
    ids = world.named(world.fresh())
    path = action.route_path.format(**{**ids, "memo": world.memo(), "action": action.name})
    fields = action.body.model_fields if action.body is not None else {}
    known = {**BODIES, "ids": [ids["group"]]}
    body = {name: known[name] for name in fields if name in known} if action.method != "GET" else None
    for key, opens in (("read", "read" in action.planes), ("data", False)):
        got = world.ask(action.method, path, body, key=f"cp-acme-{key}")
        assert (got.status == 200) == opens, (key, got.body)
    got = world.ask(action.method, path, body)
    assert got.status == 200, got.body
    if action.name == "list_groups":
        assert msgspec.convert(got.json()["items"], action.result)
    else:
        msgspec.convert(got.json(), action.result)


@pytest.mark.parametrize("decision", DECISIONS)
def test_the_routes_of_a_group_and_of_a_message_take_every_decision(world: World, decision: str) -> None:
    ids = world.named(world.fresh())
    for place in ("groups/" + ids["group"], "messages/" + ids["message"]):
        got = world.ask("POST", f"/api/sessions/{ids['session']}/{place}/{decision}", {})
        assert (got.status, got.json()["action"]) == (200, decision), got.body


def test_a_new_action_of_the_table_has_its_route() -> None:
    router = APIRouter()
    for _ in range(2):  # a route that is there is not added once more
        add_routes(router, (planted(),))
    (route,) = router.routes
    assert isinstance(route, APIRoute)
    assert (route.path, route.methods) == ("/api/sessions/{session}/wind-back", {"POST"})
    assert (route.name, route.description) == ("wind_back", "Wind the session back.")


def test_a_list_of_groups_goes_on_where_the_page_before_ended(world: World) -> None:
    first = world.ask("GET", "/api/sessions/talk/groups?limit=1").json()
    rest = world.ask("GET", f"/api/sessions/talk/groups?cursor={first['next']}").json()
    assert [one["title"] for one in first["items"] + rest["items"]] == [
        "Read the log.", "And the other one?", "Thank you.",
    ]  # fmt: skip


def test_settings_that_are_left_out_are_replaced_too(world: World) -> None:
    base = f"/api/sessions/{world.fresh()}/settings"
    world.ask("PATCH", base, {"urgency": "firm"})
    assert "urgency" not in world.ask("PUT", base, {"policy": "rolling"}).json()
    assert set(SettingsBody.model_fields) == {"policy", "schedule", "window", "max_iterations", "urgency"}
