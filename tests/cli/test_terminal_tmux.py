"""The commands in a real terminal: colours, the pager, the editor."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import CommandRunner

if shutil.which("tmux") is None:
    pytest.skip("tmux is not there (Debian's package tmux)", allow_module_level=True)


class Screen:
    """A terminal of 100 by 40."""

    def __init__(self, folder: Path, shop: CommandRunner) -> None:
        self._socket = str(folder / "tmux")
        env = {"CONTEXT_PROXY_URL": shop.url, "CONTEXT_PROXY_KEY": "cp-acme-admin", "PAGER": "less", "PS1": "$ "}
        words = [word for name, value in env.items() for word in ("-e", f"{name}={value}")]
        self._tmux("-f", "/dev/null", "new-session", "-d", "-x", "100", "-y", "40", *words, "sh")

    def _tmux(self, *words: str) -> str:
        done = subprocess.run(["tmux", "-S", self._socket, *words], capture_output=True, text=True, check=True)
        return done.stdout

    def command(self, line: str) -> None:
        self.keys(f"clear; {sys.executable} -m proxy.cli.main {line}", "Enter")

    def keys(self, *keys: str) -> None:
        self._tmux("send-keys", *keys)

    def shows(self, text: str, seconds: float = 30) -> str:
        """The text of the screen, once it has this text."""
        end = time.monotonic() + seconds
        while text not in (seen := self._tmux("capture-pane", "-p", "-e")):
            assert time.monotonic() < end, seen
            time.sleep(0.1)
        return seen

    def close(self) -> None:
        self._tmux("kill-server")


@pytest.fixture
def screen(tmp_path: Path, shop: CommandRunner) -> Iterator[Screen]:
    made = Screen(tmp_path, shop)
    try:
        yield made
    finally:
        made.close()


def test_a_list_is_coloured_and_its_lines_are_whole(screen: Screen, shop: CommandRunner) -> None:
    name = shop.fresh()
    shop.ok("context", "drop", name, shop.groups(name)[1]["id"])
    screen.command(f"groups list {name}; echo END-$?")
    seen = screen.shows("END-0")
    assert "\x1b[31mdropped" in seen
    assert "And the other one?" in seen


def test_a_long_prompt_opens_in_the_pager(screen: Screen) -> None:
    screen.command("context show talk; echo END-$?")
    seen = screen.shows("You are careful.")
    assert "END-0" not in seen
    screen.keys("q")
    screen.shows("END-0")


def test_the_shell_has_a_prompt_with_the_session(screen: Screen, shop: CommandRunner) -> None:
    name = shop.fresh()
    screen.command(f"shell {name}; echo END-$?")
    screen.shows(f"{name}>")
    screen.keys("/context window 2", "Enter")
    screen.shows("the last 2 groups stay")
    screen.keys("quit", "Enter")
    screen.shows("END-0")
    assert shop.json("sessions", "settings", name)["window"] == 2
