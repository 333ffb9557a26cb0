from __future__ import annotations

import pytest
from typer.main import get_command

from proxy.cli.main import app
from proxy.cli.shell import parse_line
from tests.cli.conftest import CommandRunner


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("stats", ["stats", "S"]),
        ("context window 5", ["context", "window", "S", "5"]),
        ("/context show", ["context", "show", "S"]),
        ("/undo", ["undo", "S"]),
        ("/message list 3", ["groups", "list", "S", "3"]),
        ("/message show abc", ["groups", "show", "S", "abc"]),
        ("/message remove abc", ["messages", "remove", "S", "abc"]),
        ("/messages", ["groups", "list", "S"]),
        ("/messages 4", ["groups", "list", "S", "4"]),
        ("messages list --newest", ["messages", "list", "S", "--newest"]),
        ("/session scratchpad", ["scratchpad", "show", "S"]),
        ("state", ["state", "show", "S"]),
        ("state edit", ["state", "edit", "S"]),
        ('add it\'s "so"', ["add", "S", 'it\'s "so"']),
        ("sessions list", ["sessions", "list"]),
        ("context window --help", ["context", "window", "--help"]),
        ("nonesuch", ["nonesuch"]),
    ],
)
def test_a_line_is_a_command_with_the_session_in_its_place(line: str, words: list[str]) -> None:
    assert parse_line(get_command(app), line, "S") == words


@pytest.mark.parametrize("line", ["serve", "shell", "'open"])
def test_what_has_no_place_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r"no place|quotation"):
        parse_line(get_command(app), line, "S")


def test_e8_one_line_after_the_other_until_quit(shop: CommandRunner) -> None:
    name = shop.fresh()
    lines = [
        "context window 2",
        "nonesuch",
        "context drop nonesuch",
        "context drop",
        "sessions",
        "add it's so",
        "'",
        "/message list 1",
        "/undo",
        "quit",
    ]
    ran = shop.run("shell", name, given="\n".join([*lines, "add never"]) + "\n")
    assert ran.code == 0, ran
    assert "the last 2 groups stay" in ran.out
    assert "undone" in ran.out
    assert "No such command" in ran.err
    assert "Missing argument 'ids'. `context drop --help` tells more." in ran.err
    assert "Usage: context" not in ran.err, "it would show the session as an argument"
    assert "nonesuch" in ran.err
    assert [note["text"] for note in shop.json("notes", "list", name)] == ["it's so"]


def test_another_session_is_used_from_then_on(shop: CommandRunner) -> None:
    first, second = shop.fresh(), shop.fresh()
    ran = shop.run("shell", first, given=f"use {second}\nuse nonesuch\ncontext window 1\nhelp\n")
    assert ran.code == 0, ran
    assert "scratchpad" in ran.out
    assert shop.json("sessions", "settings", first) == {}
    assert shop.json("sessions", "settings", second)["window"] == 1
