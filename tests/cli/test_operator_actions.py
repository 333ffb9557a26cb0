"""Every action of the table is done by each of its commands."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
import typer

from proxy.cli.operator_actions import GROUPS, add_commands, list_names
from proxy.operator.actions import ACTIONS, Action
from tests.cli.conftest import Shop
from tests.operator.test_actions import planted


def words(shop: Shop, action: Action, line: str, name: str) -> list[str]:
    """The command line that does an action on a session."""
    ids = shop.world.named(name)
    known = {
        "memo": shop.world.memo(), "ids": ids["group"], "group": ids["group"], "note": ids["note"], "groups": "2",
        "text": "A canary.",
    }  # fmt: skip
    given = [known[one] for one in action.arguments if one in known]
    options = {
        "show_past_prompt": ["--request", ids["exchange"]], "change_settings": ["--policy", "rolling"],
        "edit_memo": ["--text", "The canary of the mine is replaced each Monday, before the shift."],
        "delete_session": ["--yes"],
    }  # fmt: skip
    sure = ["--yes"] if action.confirm else []
    place = [name] if action.scope == "session" else []
    return [*line.split(), *place, *given, *options.get(action.name, []), *sure]


EVERY = [pytest.param(action, line, id=f"{action.name}: {line}") for action in ACTIONS for line in action.commands]


@pytest.fixture
def name(shop: Shop) -> Iterator[str]:
    """A session of its own, which is gone afterwards: others look at the list."""
    made = shop.fresh()
    yield made
    shop.world.ask("DELETE", f"/api/sessions/{made}")


@pytest.mark.parametrize(("action", "line"), EVERY)
def test_each_action_is_done_by_its_commands(shop: Shop, name: str, action: Action, line: str) -> None:
    given = words(shop, action, line, name)
    refused = shop.run(*given, key="cp-acme-read")
    assert (refused.code == 0) == ("read" in action.planes), refused
    msgspec.convert(shop.ok(*given, "--json").json(), action.result)


@pytest.mark.parametrize(("action", "line"), EVERY)
def test_people_are_told_too(shop: Shop, name: str, action: Action, line: str) -> None:
    assert shop.ok(*words(shop, action, line, name)).out.strip()


def test_what_is_to_be_confirmed_is_asked_first(shop: Shop, name: str) -> None:
    group = shop.groups(name)[0]["id"]
    ran = shop.run("messages", "remove", name, group, given="n\n")
    assert ran.code == 1
    assert f"Remove {group} for good?" in ran.err
    assert shop.groups(name)[0]["status"] == "in"


def test_a_new_action_of_the_table_has_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.cli.operator_actions.ACTIONS", (planted(),))
    group = typer.Typer()
    add_commands(typer.Typer(), {**GROUPS, "context": group}, "Steer a session")
    assert list_names(group) == {"wind-back"}
