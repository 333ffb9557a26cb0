from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from typer.main import get_command

from proxy.cli.main import app
from proxy.cli.remote import SHARED_OPTIONS
from tests.cli.conftest import Shop

VALUES = {
    "session": "nonesuch", "ids": "nonesuch", "text": "words", "words": "words", "groups": "1", "message": "nonesuch",
    "group": "nonesuch", "memo": "nonesuch", "note": "nonesuch", "files": "-", "last": "3",
}  # fmt: skip


def commands(at: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command with its words."""
    for name, below in getattr(at, "commands", {}).items():
        if hasattr(below, "commands"):
            yield from commands(below, (*words, name))
        else:
            yield (*words, name), below


def asking() -> list[tuple[str, ...]]:
    """A command line for each command that speaks to a proxy, every argument given."""
    found = []
    for words, command in commands(get_command(app)):
        if {p.name for p in command.params} >= set(SHARED_OPTIONS):
            given = [VALUES[str(p.name)] for p in command.params if p.param_type_name == "argument"]
            yes = ["--yes"] if any(p.name == "yes" for p in command.params) else []
            found.append((*words, *given, *yes))
    return found


ALL = asking()
LINE = '{"messages": [{"role": "user", "content": "Hello"}]}\n'


def named(words: tuple[str, ...]) -> str:
    return " ".join(words)


def test_there_are_commands_for_all_that_an_operator_does() -> None:
    first = {words[0] for words in ALL}
    assert first >= {
        "sessions", "context", "messages", "groups", "undo", "state", "scratchpad", "memos", "stats", "add", "build",
        "compress", "notes", "feedback", "export", "import", "tail", "shell",
    }  # fmt: skip
    steering = {words[1] for words in ALL if words[0] == "context"}
    assert steering >= {"show", "window", "drop", "restore", "rebuild", "pin", "unpin", "prune", "compress"}


@pytest.mark.parametrize("words", ALL, ids=named)
def test_a_wrong_key_ends_with_code_2_and_says_what_to_give(shop: Shop, words: tuple[str, ...]) -> None:
    ran = shop.run(*words, key="cp-wrong", given=LINE)
    assert (ran.code, ran.out) == (2, "")
    assert "--key" in ran.err
    assert "cp-wrong" not in ran.err


@pytest.mark.parametrize("words", ALL, ids=named)
def test_no_proxy_ends_with_code_3_and_says_how_to_start_it(shop: Shop, words: tuple[str, ...]) -> None:
    ran = shop.run(*words, url="http://127.0.0.1:9", given=LINE)
    assert (ran.code, ran.out) == (3, "")
    assert "127.0.0.1:9 cannot be reached" in ran.err
    assert "context-proxy serve" in ran.err


ABSENT = [words for words in ALL if "nonesuch" in words]


@pytest.mark.parametrize("words", ABSENT, ids=named)
def test_what_is_not_there_ends_with_code_1(shop: Shop, words: tuple[str, ...]) -> None:
    ran = shop.run(*words, given="")
    assert (ran.code, ran.out) == (1, ""), ran
    assert "there is no such session" in ran.err or "there is no memo" in ran.err
    assert "context-proxy sessions list" in ran.err or "context-proxy memos list" in ran.err


@pytest.mark.parametrize("words", ABSENT, ids=named)
def test_a_session_of_another_tenant_is_not_there_either(shop: Shop, words: tuple[str, ...]) -> None:
    there = tuple("theirs" if word == "nonesuch" and n < 3 else word for n, word in enumerate(words))
    assert shop.run(*there, given="").code == 1


CHANGING = ["context window - 1", "undo -", "add - words", "state set - words", "sessions delete - --yes"]


@pytest.mark.parametrize("line", CHANGING)
def test_a_read_key_changes_nothing(shop: Shop, line: str) -> None:
    ran = shop.run(*line.split(), key="cp-acme-read")
    assert ran.code == 1, ran
    assert "key" in ran.err


def test_the_tenant_is_said_where_the_key_sees_all(shop: Shop) -> None:
    assert shop.run("sessions", "show", "theirs", "--tenant", "acme", key="cp-all-admin").code == 1
    found = shop.json("sessions", "show", "theirs", "--tenant", "other", key="cp-all-admin")
    assert found["tenant"] == "other"
    ran = shop.run("memos", "list", key="cp-all-admin")
    assert ran.code == 1
    assert "--tenant" in ran.err


@pytest.mark.parametrize("line", ["context window -", "context window - -1", "context drop -", "sessions list -n 0"])
def test_wrong_use_ends_with_code_2(shop: Shop, line: str) -> None:
    ran = shop.run(*line.split())
    assert (ran.code, ran.out) == (2, "")


def test_every_command_has_the_shared_options_and_a_help_of_its_own() -> None:
    for words, command in commands(get_command(app)):
        assert command.help, words
    assert len(ALL) > 40
