"""A bar is for people: a pipe or a file gets nothing of it."""

from __future__ import annotations

import pytest

from proxy.cli.progress_bar import show_progress


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_bar_is_shown_on_a_terminal_alone(
    is_terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1" if is_terminal else "0")
    monkeypatch.setenv("TERM", "xterm")
    with show_progress("copying", 10) as move:
        move(3)
        move(7)
    out, shown = capsys.readouterr()
    assert out == ""
    assert ("copying" in shown, "10/10" in shown) == (is_terminal, is_terminal)
