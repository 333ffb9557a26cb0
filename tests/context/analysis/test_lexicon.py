from __future__ import annotations

import re
import time

import pytest

from proxy.context.analysis.lexicon import (
    ERROR_PATTERN,
    FAILED_PATTERN,
    SHELL_POLLS,
    SHELL_WRITES,
    THEMES,
    LoopSettings,
)
from proxy.errors import ConfigError

CHANGES = (
    "echo a > b", "cat >> log <<'EOF'\nx\nEOF", "sed -i 's/a/b/' x.py", "rm -rf build", "git commit -m x", "mv a b",
    "cd /x && git checkout -- y.py", "pip install numpy", "python -c \"open('a','w').write('b')\"", "tee x", "npm ci",
)  # fmt: skip
LOOKS = (
    "ls -la", "grep -rn 'a -> b' src 2>/dev/null", "cat x.py 2>&1 | head", "git log --oneline", "git diff HEAD",
    "pytest", "python x.py", "find . -name '*.py' | xargs grep -l error", "sed -n 1,20p x.py", "go test ./...",
    "echo warm",
)  # fmt: skip


def test_b5_the_themes_are_the_sources_in_its_order() -> None:
    assert [name for name, _ in THEMES] == ["planning", "synthesis", "search_intent", "read_intent"]
    assert THEMES[0][1] == ("plan", "strategy", "approach", "need to")


def test_b8_the_sources_settings_are_the_defaults() -> None:
    settings = LoopSettings()
    assert (settings.consecutive_threshold, settings.theme_window, settings.looping) == (3, 3, ("planning",))


def test_b5_themes_come_from_a_file_as_tables() -> None:
    table = {"name": "waiting", "words": ["wait", "later"]}
    assert LoopSettings(themes=[table]).themes == (("waiting", ("wait", "later")),)  # type: ignore[arg-type]  # as TOML has it


@pytest.mark.parametrize(
    "themes", [({"name": "x"},), ("planning",), ({"name": 1, "words": ["a"]},), (7,), ({"words": []},)]
)
def test_themes_of_another_kind_are_refused(themes: object) -> None:
    with pytest.raises(ConfigError) as caught:
        LoopSettings(themes=themes)  # type: ignore[arg-type]  # that is the point
    assert caught.value.key == "themes"


def test_patterns_that_cannot_be_compiled_are_refused() -> None:
    with pytest.raises(ConfigError, match="shell_polls"):
        LoopSettings(shell_polls="(")


def test_commands_that_change_something_are_distinguished_from_those_that_look() -> None:
    assert [c for c in CHANGES if not re.search(SHELL_WRITES, c, re.MULTILINE)] == []
    assert [c for c in LOOKS if re.search(SHELL_WRITES, c, re.MULTILINE)] == []


def test_commands_that_wait_are_distinguished_from_others() -> None:
    for command in ("sleep 5 && cat log", "gh run watch 1", "tail -f log", "gh pr checks 5 --watch", "cat a; wait"):
        assert re.search(SHELL_POLLS, command) or "gh run watch" in command
    assert not re.search(SHELL_POLLS, "grep await x.js && tail -5 log && cat sleep.py")


@pytest.mark.parametrize(
    ("text", "failed"),
    [
        ("Error: flight HAT030 not available", True),
        ("<returncode>1</returncode>\n<output>\nKeyError: 'x'\n</output>", True),
        ("<tool_use_error>File does not exist.</tool_use_error>", False),
        ("Exit code 2\ngrep: no such file or directory", True),
        ("<returncode>0</returncode>\n<output>\nerror: nothing\n</output>", False),
        ("1  def error(): raise ValueError", False),
        ("ValueError: bad", True),
    ],
)
def test_the_beginning_of_a_result_says_whether_the_call_failed(text: str, failed: bool) -> None:
    assert bool(re.search(FAILED_PATTERN, text, re.IGNORECASE)) is failed
    assert re.search(ERROR_PATTERN, text, re.IGNORECASE) or not failed


@pytest.mark.parametrize("piece", ["run--", "oc -a ", "git -git ", "kubectl -git get-"])
def test_commands_are_searched_in_linear_time(piece: str) -> None:
    command = (piece * 40_000)[:40_000]
    began = time.thread_time()
    for pattern in (SHELL_POLLS, SHELL_WRITES):
        re.search(pattern, command, re.MULTILINE)
    assert time.thread_time() - began < 0.5
