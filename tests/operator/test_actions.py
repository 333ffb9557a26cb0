"""The table of operator actions: each row reaches its function over every way that it names, and no row contradicts
itself."""

from __future__ import annotations

from typing import Any

import pytest

from proxy.exchange.inband import COMMAND_WORDS
from proxy.operator import edit_messages, show
from proxy.operator.actions import (
    ACTIONS,
    ACTIONS_BY_NAME,
    REQUIRED,
    Action,
    BranchBody,
    InbandForm,
    make_signature,
)
from proxy.operator.inband_commands import HELP, REPLIES
from proxy.operator.response_models import DecisionResult
from tests.documentation.blocks import titled
from tests.operator.agent import run_conversation

INBAND = [action for action in ACTIONS if action.inband is not None]


async def wind_back(services: object, tenant: str, session: str, *, branch: str | None = None) -> DecisionResult:
    """A function as an action has it."""
    return DecisionResult(session, branch or "", "undo", [], [], 0)


def planted(**changes: Any) -> Action:
    """An action in which all is well, but for the fields given."""
    fields: dict[str, Any] = {
        "name": "wind_back", "function": wind_back, "arguments": ("branch",), "planes": frozenset({"admin"}),
        "method": "POST", "path": "/wind-back", "tag": "operator", "summary": "Wind the session back.",
        "commands": ("context wind-back",), "body": BranchBody,
    }  # fmt: skip
    return Action(**{**fields, **changes})


def test_each_action_has_a_name_of_its_own() -> None:
    assert len(ACTIONS_BY_NAME) == len(ACTIONS)


def test_an_action_in_which_all_is_well_is_taken() -> None:
    assert planted().result is DecisionResult
    assert planted().is_body_optional
    assert planted().route_path == "/api/sessions/{session}/wind-back"
    assert planted(scope="tenant").route_path == "/api/wind-back"
    assert not ACTIONS_BY_NAME["set_window"].is_body_optional
    assert not ACTIONS_BY_NAME["change_settings"].is_body_optional


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"planes": frozenset()}, "no plane opens it"),
        ({"planes": frozenset({"read"})}, "no plane opens it"),
        ({"planes": frozenset({"admin", "everybody"})}, "no plane opens it"),
        ({"planes": frozenset({"admin", "read"})}, "a read key opens views"),
        ({"method": "GET", "body": None}, "a read key opens views"),
        ({"planes": frozenset({"admin", "data"})}, "an in-band command is open"),
        ({"inband": InbandForm("/context wind", "wind it back")}, "an in-band command is open"),
        ({"arguments": ("branch", "speed")}, "its function takes no speed"),
        ({"arguments": ()}, "arguments are missing: branch"),
        ({"path": "/wind-back/{hours}"}, "arguments are missing: hours"),
    ],
)
def test_an_action_that_contradicts_itself_is_refused(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=f"action wind_back: {problem}"):
        planted(**changes)


@pytest.mark.parametrize("action", INBAND, ids=lambda action: action.name)
async def test_each_action_with_a_word_is_reached_in_the_conversation(action: Action) -> None:
    assert action.inband is not None
    assert action.inband.words.split()[0] in COMMAND_WORDS
    assert action.result in REPLIES
    async with run_conversation("thrifty", commands={"in_band": True}) as talk:
        group = (await talk.groups())[0]
        line = action.inband.words.replace("[N]", "2").replace("GID", group).replace("N", "2")
        asked = len(talk.upstream.chats)
        reply = (await talk.agent.say(line)).message["content"]
        assert len(talk.upstream.chats) == asked, "it never goes upstream"
        made = await action.function(talk.parts, talk.tenant, "s", **arguments(action, group))
    assert HELP not in reply
    if action.method == "GET":
        assert reply == f"[context-proxy] {REPLIES[action.result](made)}"
    else:
        assert "no group" not in reply


def arguments(action: Action, group: str) -> dict[str, Any]:
    """The arguments of the line, by the names of the function's parameters."""
    known = {"ids": [group], "group": group, "groups": 2, "last": 2}
    return {name: known[name] for name in action.arguments if name in known}


async def test_the_action_of_the_page_on_architecture_works() -> None:
    space: dict[str, Any] = {}
    exec(titled("myaction.py").text, space)
    action: Action = space["SET_ASIDE"]
    assert action.result in REPLIES
    async with run_conversation("thrifty") as talk:
        first, *_ = await talk.groups()
        await edit_messages.pin(talk.parts, talk.tenant, "s", [first])
        made: DecisionResult = await action.function(talk.parts, talk.tenant, "s", [first])
        (shown, *_) = await show.list_groups(talk.parts, talk.tenant, "s")
    assert (made.action, made.groups, shown.status, shown.pinned) == ("drop", [first], "dropped", False)


def test_a_signature_has_every_argument_by_its_name() -> None:
    made = make_signature({"branch": (str, None), "text": (str, REQUIRED)})
    assert str(made) == "(*, branch: str = None, text: str)"
