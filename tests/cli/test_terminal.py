from __future__ import annotations

import time
from pathlib import Path

import pytest

from proxy.cli import terminal
from proxy.cli.terminal import (
    TableColumn,
    escape_controls,
    format_age,
    format_count,
    format_dollars,
    format_number,
    format_percent,
    write_file,
)
from proxy.errors import ConfigError


def test_figures_are_written_as_people_read_them() -> None:
    assert [format_number(12847), format_number(0.834)] == ["12,847", "0.83"]
    assert [format_percent(None), format_percent(0.804)] == ["-", "80 %"]
    assert [format_dollars(None), format_dollars(0.01234), format_dollars(1234.5)] == ["-", "$0.0123", "$1,234.50"]
    assert [format_count(n, "row") for n in (0, 1, 2, 1204)] == ["0 rows", "1 row", "2 rows", "1,204 rows"]
    now = time.time()
    assert [format_age(now - s) for s in (5, 130, 7300, 200000)] == ["5 s ago", "2 min ago", "2 h ago", "2 d ago"]
    assert [format_age(None), format_age(now + 100)] == ["-", "0 s ago"]


@pytest.mark.parametrize(
    "steers", ["\x1b", "\x07", "\x9b", "\r", "\b", "\u202e", "\u2066", "\ud800", "\x7f", "\u061c", "\u2028"]
)
def test_what_steers_a_terminal_can_be_read(steers: str) -> None:
    assert escape_controls(f"a{steers}b") == f"a\\x{ord(steers):02x}b"
    assert escape_controls("a\tb\nü→\U0001f600") == "a\tb\nü→\U0001f600"


def test_a_table_fits_and_cuts_only_what_may_be_cut(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")  # rich takes stdout for a terminal
    monkeypatch.setenv("TERM", "dumb")
    rows = [{"id": "abcdefghij" * 2, "n": 1234567, "text": "[bold]long " * 40}]
    columns = (
        TableColumn("id", lambda r: r["id"], is_never_cut=True),
        TableColumn("n", lambda r: r["n"], is_number=True),
        TableColumn("text", lambda r: r["text"], takes_rest=True),
    )
    terminal.print_table(rows, columns)
    out = capsys.readouterr().out
    assert "abcdefghijabcdefghij" in out
    assert "1,234,567" in out
    assert "[bold]long" in out
    assert "…" in out
    assert max(map(len, out.splitlines())) == 80
    terminal.print_table([], columns, empty="no such thing")
    assert capsys.readouterr().out == "no such thing\n"


def test_a_table_in_a_pipe_is_whole_without_lines_and_without_colours(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"id": "a", "n": 1234567, "text": "word " * 40}, {"id": "日本語", "n": 5, "text": "a\x1b[31mb"}]
    columns = (
        TableColumn("id", lambda r: r["id"], style="cyan"),
        TableColumn("n", lambda r: r["n"], is_number=True),
        TableColumn("text", lambda r: r["text"], takes_rest=True),
    )
    terminal.print_table(rows, columns)
    assert capsys.readouterr().out.splitlines() == [
        "id              n  text",
        "a       1,234,567  " + "word " * 39 + "word",
        "日本語          5  a\\x1b[31mb",
    ]
    terminal.print_pairs("title", {"name": "value " * 30, "longer name": None})
    assert capsys.readouterr().out.splitlines() == [
        "title",
        "name         " + "value " * 29 + "value",
        "longer name  -",
    ]


def test_a_report_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"OUT = .* a file that can be written \(Is a directory\)"):
        write_file(tmp_path, "text")
