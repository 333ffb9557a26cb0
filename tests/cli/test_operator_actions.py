"""Every action of the table is done by each of its commands."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import typer

from proxy.cli.operator_actions import GROUPS, add_commands, list_names
from proxy.operator.actions import ACTIONS, Action
from tests.cli.conftest import CommandRunner
from tests.operator.test_actions import planted


def words(shop: CommandRunner, action: Action, line: str, name: str) -> list[str]:
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
def name(shop: CommandRunner) -> Iterator[str]:
    """A session of its own, which is gone afterwards: others look at the list."""
    made = shop.fresh()
    yield made
    shop.world.ask("DELETE", f"/api/sessions/{made}")


@pytest.mark.parametrize(("action", "line"), EVERY)
def test_each_action_is_done_by_its_commands(shop: CommandRunner, name: str, action: Action, line: str) -> None:
    given = words(shop, action, line, name)
    refused = shop.run(*given, key="cp-acme-read")
    assert (refused.code == 0) == ("read" in action.planes), refused
    msgspec.convert(shop.ok(*given, "--json").json(), action.result)


@pytest.mark.parametrize(("action", "line"), EVERY)
def test_every_action_prints_a_line_for_people(shop: CommandRunner, name: str, action: Action, line: str) -> None:
    assert shop.ok(*words(shop, action, line, name)).out.strip()


def test_what_is_to_be_confirmed_is_asked_first(shop: CommandRunner, name: str) -> None:
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


def statuses(shop: CommandRunner, session: str) -> list[str]:
    return [group["status"] for group in shop.groups(session)]


def test_a_group_is_dropped_restored_and_pinned(shop: CommandRunner) -> None:
    name = shop.fresh()
    first, second, _ = (group["id"] for group in shop.groups(name))
    assert "still in the store" in shop.ok("context", "drop", name, first, second).out
    assert statuses(shop, name)[:2] == ["dropped", "dropped"]
    assert shop.json("context", "restore", name, first, second)["action"] == "restore"
    assert statuses(shop, name)[:2] == ["in", "in"]
    assert [group["pinned"] for group in shop.groups(name)] == [True, True, False], "what is restored stays"
    shop.ok("context", "unpin", name, second)
    assert [group["pinned"] for group in shop.groups(name)] == [True, False, False]
    shop.ok("context", "pin", name, second)
    assert [group["pinned"] for group in shop.groups(name)] == [True, True, False]


def test_a_dropped_group_is_shown_as_dropped_by_the_operator(shop: CommandRunner) -> None:
    name = shop.fresh()
    group = shop.groups(name)[1]["id"]
    shop.ok("context", "drop", name, group)
    told = shop.ok("context", "show", name).out
    assert "operator" in told
    assert "And the other one?" in told
    brief = shop.ok("context", "show", name, "--brief").out
    assert "dropped" in brief
    assert max(map(len, brief.splitlines())) < 260, "a message of 700 characters is one of them"
    assert "And the other one?" not in shop.ok("context", "show", name, "--body").out


def test_the_prompt_of_a_past_request_is_shown_byte_for_byte(shop: CommandRunner) -> None:
    exchange = shop.json("sessions", "requests", "talk")[0]["exchange"]
    found = shop.json("context", "show", "talk", "--request", exchange)
    assert found["exchange"] == exchange
    assert shop.ok("context", "show", "talk", "--request", exchange, "--body").out == found["body"]
    assert shop.run("context", "show", "talk", "--request", "nonesuch").code == 1


def test_the_window_holds_and_opens_again(shop: CommandRunner) -> None:
    name = shop.fresh()
    assert "the last 1 groups" in shop.ok("context", "window", name, "1").out
    assert "out" in statuses(shop, name)
    assert "whole history" in shop.ok("context", "window", name, "0").out
    assert statuses(shop, name) == ["in"] * 3


def test_undo_takes_the_last_group(shop: CommandRunner) -> None:
    name = shop.fresh()
    last = shop.groups(name)[-1]["id"]
    assert shop.json("undo", name)["groups"] == [last]
    assert statuses(shop, name)[-1] in ("removed", "dropped")


def test_the_next_request_prunes_compresses_and_rebuilds(shop: CommandRunner) -> None:
    name = shop.fresh()
    assert shop.json("context", "prune", name)["force"] == "prune"
    assert shop.json("compress", name)["force"] == "compress"
    assert shop.json("context", "compress", name)["force"] == "compress"
    assert shop.json("context", "rebuild", name)["how"] == "next_request"
    assert "with the next request" in shop.ok("context", "rebuild", name).out


def test_what_would_break_the_history_is_refused(shop: CommandRunner) -> None:
    name = shop.fresh()
    ran = shop.run("context", "drop", name, shop.groups(name)[0]["id"], "nonesuch")
    assert (ran.code, ran.out) == (1, "")
    assert statuses(shop, name) == ["in"] * 3


def test_the_option_json_prints_one_json_document(shop: CommandRunner) -> None:
    assert json.loads(shop.ok("context", "show", "talk", "--json").out)["session"] == "talk"


def test_groups_are_listed_and_the_last_ones_alone(shop: CommandRunner) -> None:
    name = shop.fresh()
    found = shop.groups(name)
    assert [group["title"] for group in found] == ["Read the log.", "And the other one?", "Thank you."]
    told = shop.ok("groups", "list", name).out
    assert all(group["id"] in told for group in found)
    assert shop.json("groups", "list", name, "1") == found[-1:]
    assert "no group" in shop.ok("groups", "list", name, "--status", "dropped").out
    assert shop.run("groups", "list", name, "--status", "odd").code == 2


def test_a_group_is_shown_in_full(shop: CommandRunner) -> None:
    name = shop.fresh()
    group = shop.groups(name)[0]
    found = shop.json("groups", "show", name, group["id"])
    assert [m["group"] for m in found if m["role"] != "system"] == [group["id"]] * group["messages"]
    told = shop.ok("groups", "show", name, group["id"]).out
    assert told.count("a line of the log") >= 40
    assert "→ read_file(" in told
    assert shop.run("groups", "show", name, "nonesuch").code == 1


STATE = "Goal: mend the build\nContext: tests fail\nResolved: none\nTechnical Anchors: Makefile"


def editor(folder: Path, script: str) -> str:
    """A program that edits a file as a person would."""
    file = folder / "editor"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return str(file)


def test_a_state_is_set_shown_and_edited(shop: CommandRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = shop.fresh()
    assert "no state yet" in shop.ok("state", "show", name).out
    shop.ok("state", "set", name, "-", given=STATE)
    found = shop.json("state", "show", name)
    assert (found["by"], "mend the build" in found["text"]) == ("operator", True)
    monkeypatch.setenv("EDITOR", editor(tmp_path, 'sed -i s/Makefile/meson.build/ "$1"'))
    shop.ok("state", "edit", name)
    assert "meson.build" in shop.ok("state", "show", name).out
    monkeypatch.setenv("EDITOR", "true")
    assert "nothing was changed" in shop.ok("state", "edit", name).out
    assert shop.json("state", "show", name)["versions"] == 2


def test_a_scratchpad_is_set_shown_and_edited(
    shop: CommandRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = shop.fresh()
    shop.ok("scratchpad", "set", name, "- [ ] mend")
    monkeypatch.setenv("EDITOR", editor(tmp_path, 'echo "- [x] seen" >>"$1"'))
    shop.ok("scratchpad", "edit", name)
    told = shop.ok("scratchpad", "show", name).out
    assert "[ ] mend" in told
    assert "[x] seen" in told


@pytest.mark.parametrize(("program", "told"), [("/nonesuch/editor", "can be started"), ("false", "ended with 1")])
def test_an_editor_that_fails_sets_nothing(
    shop: CommandRunner, monkeypatch: pytest.MonkeyPatch, program: str, told: str
) -> None:
    name = shop.fresh()
    monkeypatch.setenv("EDITOR", program)
    ran = shop.run("scratchpad", "edit", name)
    assert (ran.code, ran.out) == (2, "")
    assert told in ran.err
    assert shop.json("scratchpad", "show", name)["number"] == 0


def test_a_note_is_in_the_next_prompt_until_it_is_withdrawn(shop: CommandRunner) -> None:
    name = shop.fresh()
    note = shop.json("add", name, "Leave the lock file as it is.")["id"]
    assert "Leave the lock file" in shop.ok("context", "show", name).out
    assert note in shop.ok("notes", "list", name).out
    shop.ok("notes", "withdraw", name, note)
    assert shop.json("notes", "list", name) == []
    assert "Leave the lock file" not in shop.ok("context", "show", name).out
    assert shop.run("notes", "withdraw", name, "nonesuch").code == 1
    assert shop.run("add", name, "").code == 2


def test_feedback_is_given_and_listed(shop: CommandRunner) -> None:
    name = shop.fresh()
    shop.ok("feedback", "give", name, "Better.")
    assert [one["text"] for one in shop.json("feedback", "list", name)] == ["Better."]
    assert "Better." in shop.ok("feedback", "list", name).out


def test_e8_what_is_built_is_the_request_that_would_go_out(shop: CommandRunner) -> None:
    built = shop.run("build", "talk").json()
    shown = shop.json("context", "show", "talk")
    assert built["messages"][0] == {"role": "system", "content": "You are careful."}
    assert shop.run("build", "talk").out == shown["body"] + "\n"
    assert shop.json("build", "talk")["tokens_after"] == shown["tokens_after"]
    assert "You are careful." in shop.ok("build", "talk", "--text").out


def test_a_memo_is_listed_shown_mended_and_deleted(shop: CommandRunner) -> None:
    memo = shop.world.memo()
    assert memo in [one["memo"] for one in shop.json("memos", "list", "--text", "PostgreSQL 14")]
    assert memo in shop.ok("memos", "list").out
    assert "lacks a function" in shop.ok("memos", "show", memo).out
    shop.ok("memos", "edit", memo, "--text", "The tests need PostgreSQL 15, since 14 is slow.", "--tag", "db")
    found = shop.json("memos", "show", memo)
    assert (found["tags"], "15" in found["content"]) == (["db"], True)
    assert shop.run("memos", "delete", memo, given="n\n").code == 1
    shop.ok("memos", "delete", memo, "--yes")
    assert shop.run("memos", "show", memo).code == 1


def test_memos_of_no_project_are_distinguished_from_all_memos(shop: CommandRunner) -> None:
    shop.world.memo()
    assert shop.json("memos", "list", "--project", "")
    assert shop.json("memos", "list", "--project", "other") == []


def test_memos_are_written_a_line_each(shop: CommandRunner, tmp_path: Path) -> None:
    memo = shop.world.memo()
    lines = shop.ok("memos", "export").out.splitlines()
    assert memo in [json.loads(line)["memo"] for line in lines]
    file = tmp_path / "memos.jsonl"
    assert shop.json("memos", "export", "--out", str(file)) == {"file": str(file), "memos": len(lines)}
    assert file.read_text().splitlines() == lines


def test_a_part_of_a_long_prompt_is_shown_and_said_to_be_one(shop: CommandRunner, name: str) -> None:
    whole = shop.json("context", "show", name)
    count = whole["count"]
    page = shop.json("context", "show", name, "--first", "2", "--limit", "3")
    assert page["messages"] == whole["messages"][2:5]
    end = shop.ok("context", "show", name, "--first=-2", "--brief").out
    assert f"messages {count - 2} to {count - 1} of {count}\n" in end
    assert (
        f"messages 0 to 2 of {count}; --first 3 shows those that follow"
        in shop.ok("context", "show", name, "--limit", "3").out
    )
    assert "--first is behind the last one" in shop.ok("context", "show", name, "--first", "999").out
    assert "messages 0 to" not in shop.ok("context", "show", name).out
    assert shop.ok("context", "show", name, "--limit", "1", "--body").out == whole["body"], "bytes come whole"
