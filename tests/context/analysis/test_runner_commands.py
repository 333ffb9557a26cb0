"""Commands that are runners, start runners, or may run one many times."""

from __future__ import annotations

import re

import pytest

from proxy.context.analysis.runner_commands import (
    REPEATING_COMMANDS,
    RUNNER_COMMANDS,
    STARTING_COMMANDS,
    TRIAL_COMMANDS,
)


@pytest.mark.parametrize(
    "command", ["pytest -q", "python -m pytest", "uv run ruff check .", "npx jest", "./gradlew test", "go test ./..."]
)
def test_a_runner_is_recognised_after_the_command_that_starts_it(command: str) -> None:
    assert re.match(RUNNER_COMMANDS, command)


@pytest.mark.parametrize("command", ["./deploy.sh", "python run.py", "go run .", "pytests", "echo pytest"])
def test_a_script_is_not_a_runner(command: str) -> None:
    assert not re.match(RUNNER_COMMANDS, command)
    assert not re.match(STARTING_COMMANDS, command)


def test_make_and_npm_start_runners() -> None:
    assert re.match(STARTING_COMMANDS, "make test")
    assert re.match(STARTING_COMMANDS, "npm run build")


@pytest.mark.parametrize("command", ["for d in a b; do make -C $d; done", "make -k test", "npm test -ws"])
def test_commands_that_run_one_program_many_times(command: str) -> None:
    assert re.search(REPEATING_COMMANDS, command)
    assert not re.search(REPEATING_COMMANDS, "make test")


@pytest.mark.parametrize(
    "command",
    [
        "pytest --co -q",
        "npx jest --listTests",
        "make -sn all",
        "ctest --test-dir b -N",
        "go test -list . ./...",
        "vitest list",
    ],
)
def test_a_command_that_only_lists_what_it_would_do(command: str) -> None:
    assert re.search(TRIAL_COMMANDS, command)


@pytest.mark.parametrize("command", ["pytest --color=yes", "make -C sub", "cargo fmt --check", "ninja -C out"])
def test_a_command_that_does_what_it_says_is_not_a_trial(command: str) -> None:
    assert not re.search(TRIAL_COMMANDS, command)
