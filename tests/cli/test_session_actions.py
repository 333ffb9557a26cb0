"""Every action of the table is done by each of its commands."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import typer

from proxy.cli.session_actions import GROUPS, add_commands, list_names
from proxy.operator.actions import ACTIONS, Action
from tests.cli.conftest import Shop
from tests.operator.test_actions import planted

OF_OTHERS = {"stats", "sessions settings"}
"""Commands in files of their own that do more than one action: their options say which."""


def words(shop: Shop, action: Action, line: str) -> list[str]:
    """The command line that does an action on a session of its own."""
    name = shop.fresh()
    ids = shop.world.named(name)
    known = {
        "ids": ids["group"], "group": ids["group"], "note": ids["note"], "groups": "2", "text": "A canary.",
    }  # fmt: skip
    given = [known[one] for one in action.arguments if one in known]
    options = {"show_past_prompt": ["--request", ids["exchange"]], "change_settings": ["--policy", "rolling"]}
    sure = ["--yes"] if action.confirm else []
    return [*line.split(), name, *given, *options.get(action.name, []), *sure]


EVERY = [pytest.param(action, line, id=f"{action.name}: {line}") for action in ACTIONS for line in action.commands]


@pytest.mark.parametrize(("action", "line"), EVERY)
def test_each_action_is_done_by_its_commands(shop: Shop, action: Action, line: str) -> None:
    ran = shop.ok(*words(shop, action, line), "--json")
    made: Any = msgspec.convert(ran.json(), action.result)
    assert not isinstance(made, list) or made or "list" in line
    if line not in OF_OTHERS:
        assert shop.ok(*words(shop, action, line)).out.strip(), "people are told, too"


@pytest.mark.parametrize(("action", "line"), EVERY)
def test_a_read_key_does_what_its_plane_says(shop: Shop, action: Action, line: str) -> None:
    ran = shop.run(*words(shop, action, line), key="cp-acme-read")
    assert (ran.code == 0) == ("read" in action.planes), ran


def test_what_is_to_be_confirmed_is_asked_first(shop: Shop) -> None:
    name = shop.fresh()
    group = shop.groups(name)[0]["id"]
    ran = shop.run("messages", "remove", name, group, given="n\n")
    assert ran.code == 1
    assert f"Remove {group} for good?" in ran.err
    assert shop.groups(name)[0]["status"] == "in"


def test_a_new_action_of_the_table_has_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.cli.session_actions.ACTIONS", (planted(),))
    group = typer.Typer()
    add_commands(typer.Typer(), {**GROUPS, "context": group}, "Steer a session")
    assert list_names(group) == {"wind-back"}
