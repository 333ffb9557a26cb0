from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Shop

STATE = "Goal: mend the build\nContext: tests fail\nResolved: none\nTechnical Anchors: Makefile"


def editor(folder: Path, script: str) -> str:
    """A program that edits a file as a person would."""
    file = folder / "editor"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return str(file)


def test_a_state_is_set_shown_and_edited(shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_scratchpad_is_set_shown_and_edited(shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = shop.fresh()
    shop.ok("scratchpad", "set", name, "- [ ] mend")
    monkeypatch.setenv("EDITOR", editor(tmp_path, 'echo "- [x] seen" >>"$1"'))
    shop.ok("scratchpad", "edit", name)
    told = shop.ok("scratchpad", "show", name).out
    assert "[ ] mend" in told
    assert "[x] seen" in told


@pytest.mark.parametrize(("program", "told"), [("/nonesuch/editor", "can be started"), ("false", "ended with 1")])
def test_an_editor_that_fails_sets_nothing(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, program: str, told: str
) -> None:
    name = shop.fresh()
    monkeypatch.setenv("EDITOR", program)
    ran = shop.run("scratchpad", "edit", name)
    assert (ran.code, ran.out) == (2, "")
    assert told in ran.err
    assert shop.json("scratchpad", "show", name)["number"] == 0


def test_a_note_stands_in_the_next_prompt_until_it_is_withdrawn(shop: Shop) -> None:
    name = shop.fresh()
    note = shop.json("add", name, "Leave the lock file as it is.")["id"]
    assert "Leave the lock file" in shop.ok("context", "show", name).out
    assert note in shop.ok("notes", "list", name).out
    shop.ok("notes", "withdraw", name, note)
    assert shop.json("notes", "list", name) == []
    assert "Leave the lock file" not in shop.ok("context", "show", name).out
    assert shop.run("notes", "withdraw", name, "nonesuch").code == 1
    assert shop.run("add", name, "").code == 2


def test_feedback_is_given_and_listed(shop: Shop) -> None:
    name = shop.fresh()
    shop.ok("feedback", "give", name, "Better.")
    assert [one["text"] for one in shop.json("feedback", "list", name)] == ["Better."]
    assert "Better." in shop.ok("feedback", "list", name).out
