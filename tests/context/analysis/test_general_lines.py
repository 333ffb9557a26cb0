"""Lines that many programs print are read for what they are at their place."""

from __future__ import annotations

import re

import pytest

from proxy.context.analysis import general_lines, runner_patterns, shell_commands
from tests.context.analysis.runs import read_text_outcome


@pytest.mark.parametrize(
    "line",
    [
        "... [truncated 200 lines] ...", "[Output truncated - 500 lines remaining]", "(Output truncated)",
        "[... omitted 1200 of 3000 lines ...]", "<response clipped>", "... [output truncated] ...", "... +120 lines",
        "[... 4000 lines omitted ...]", "... 3,421 tokens truncated ...",
    ],
)  # fmt: skip
def test_a_line_in_place_of_a_part_of_the_output_is_known(line: str) -> None:
    text = f"ok  \tex.com/a\t0.1s\n{line}\n"
    assert re.match(general_lines.CUT_LINE, line, re.IGNORECASE) is not None
    assert read_text_outcome(text, shell_commands.parse_command("go test ./...")).verdict == "unknown"
    assert read_text_outcome(f"{line}\n5 passed in 0.1s", shell_commands.parse_command("pytest")).verdict == (
        "succeeded"
    )


@pytest.mark.parametrize("line", ["Truncated table orders", "120 lines in 3 files", "ok 3 - lines omitted nothing"])
def test_a_line_about_other_things_is_no_cut(line: str) -> None:
    text = f"{line}\n5 passed in 0.1s"
    assert read_text_outcome(text, shell_commands.parse_command("pytest")).verdict == "succeeded"


@pytest.mark.parametrize(
    ("line", "verdict"),
    [
        ("error: 0.02", "unknown"),
        ("Error: 3.1%", "unknown"),
        ("Error: no such model", "failed"),
        ("mean squared error: 1e-3", "unknown"),
    ],
)
def test_a_figure_called_error_is_no_failure(line: str, verdict: str) -> None:
    text = f"epoch 3 done\n{line}\n"
    assert read_text_outcome(text, shell_commands.parse_command("python train.py")).verdict == verdict


def test_a_remark_behind_the_outcome_does_not_hide_it() -> None:
    text = "DatabaseError: no such column\n\n[SQL: SELECT x]\n(Background on this error at: https://example.com)\n"
    assert read_text_outcome(text, shell_commands.parse_command("alembic upgrade head")).verdict == "failed"
    remark = runner_patterns.compile_patterns().remark
    assert remark.match("[SQL: SELECT x]") is not None
    assert remark.match("5 passed in 0.1s") is None
