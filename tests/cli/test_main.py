from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from rich.text import Text
from typer.core import TyperGroup
from typer.main import get_command
from typer.testing import CliRunner

from proxy.cli import entry
from proxy.cli.main import AFTER_ACTIONS, BEFORE_ACTIONS, CommandModule, app, choose_app, make_app, run
from proxy.errors import ConfigError
from proxy.version import VERSION


def test_the_installed_command_is_this_one() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    module, _, name = project["scripts"]["context-proxy"].partition(":")
    assert getattr(import_module(module), name) is entry.run


def test_the_version_is_printed() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.output.strip()) == (0, VERSION)


def test_help_names_every_command() -> None:
    output = CliRunner().invoke(app, ["--help"]).output
    assert all(name in output for name in ("serve", "check", "docs"))


@pytest.mark.parametrize(
    "words", [("-h",), ("sessions", "-h"), ("sessions", "list", "-h"), ("serve", "-h"), ("wrap", "-h")]
)
def test_the_short_option_h_prints_the_help_of_each_command(words: tuple[str, ...]) -> None:
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == 0, done.output
    assert "Usage: " in done.stdout


@pytest.mark.parametrize(
    ("words", "values"),
    [
        ("serve --policy th", ["thrifty", "thrifty-bold"]),
        ("replay --policy obs", ["observe"]),
        ("wrap cl", ["claude"]),
        ("key --plane m", ["metrics"]),
    ],
)
def test_shell_completion_offers_names_of_policies_and_agents(words: str, values: list[str]) -> None:
    line = f"context-proxy {words}"
    asked = {"_CONTEXT_PROXY_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    assert CliRunner().invoke(app, [], env=asked, prog_name="context-proxy").output.split() == values


def _list_helps(command: Any) -> Iterator[str]:
    yield command.help or ""
    yield from (getattr(one, "help", None) or "" for one in command.params)
    for one in getattr(command, "commands", {}).values():
        yield from _list_helps(one)


def test_no_help_has_brackets_that_the_terminal_takes_for_a_style() -> None:
    for text in _list_helps(get_command(app)):
        assert Text.from_markup(text).plain == text


@pytest.mark.parametrize("one", [*BEFORE_ACTIONS, *AFTER_ACTIONS], ids=lambda one: one.name)
def test_a_command_alone_is_as_it_is_among_all(one: CommandModule) -> None:
    alone, whole = get_command(make_app(one.name)), get_command(app)
    assert isinstance(alone, TyperGroup)
    assert isinstance(whole, TyperGroup)
    assert list(alone.commands) == [one.name]
    given = [CliRunner().invoke(each, [one.name, "--help"]).output for each in (make_app(one.name), app)]
    assert given[0] == given[1]


@pytest.mark.parametrize(
    ("word", "commands", "others"),
    [
        ("serve", {"serve"}, {"stats", "sessions", "build"}),
        ("build", {"build", "sessions", "context"}, {"serve", "docs"}),
        ("sessions", {"build", "sessions", "context"}, {"serve", "docs"}),
        ("docs", {"serve", "docs", "sessions"}, set()),
        ("shell", {"serve", "shell", "sessions"}, set()),
        ("nonesuch", {"serve", "docs", "sessions"}, set()),
        ("--help", {"serve", "docs", "sessions"}, set()),
        ("", {"serve", "docs", "sessions"}, set()),
    ],
)
def test_a_command_line_has_as_few_commands_as_its_word_needs(word: str, commands: set[str], others: set[str]) -> None:
    chosen = get_command(choose_app(word))
    assert isinstance(chosen, TyperGroup)
    assert commands <= set(chosen.commands)
    assert not others & set(chosen.commands)


def test_a_command_that_asks_a_running_proxy_imports_no_server() -> None:
    code = (
        "import sys; from proxy.cli.main import make_app; make_app('stats');"
        "print(sorted({'fastapi', 'uvicorn', 'aiohttp', 'proxy.store', 'proxy.exchange'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_config_error_ends_with_code_2_and_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["context-proxy", "check", "--policy", "nonesuch"])
    with pytest.raises(SystemExit) as ended:
        run()
    captured = capsys.readouterr()
    assert ended.value.code == 2
    assert captured.out == ""
    assert captured.err.startswith("context-proxy: --policy: policy = 'nonesuch' is not usable; allowed: one of ")
    assert captured.err.count("\n") == 1


def test_an_unknown_option_ends_with_code_2() -> None:
    done = subprocess.run([sys.executable, "-m", "proxy.cli.main", "check", "--prot", "1"], capture_output=True)
    assert done.returncode == 2


def test_a_config_error_reaches_callers_in_python() -> None:
    result = CliRunner().invoke(app, ["check", "--port", "-1"])
    assert isinstance(result.exception, ConfigError)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("serve", "--port", "abc"), "'--port': 'abc' is not usable; allowed: a whole number"),
        (("sessions", "list", "-n", "0"), "'--limit' / '-n': '0' is not usable; allowed: at least 1"),
        (("mcp", "--port", "70000"), "'--port': '70000' is not usable; allowed: at most 65535"),
        (("report", "--days", "many"), "'--days': 'many' is not usable; allowed: a number"),
    ],
)
def test_a_value_of_an_option_is_refused_in_plain_words(words: tuple[str, ...], said: str) -> None:
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.replace("│", " ").split())
