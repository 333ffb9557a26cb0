"""Outputs of many tools: most written from knowledge of the tools, the last ones printed by the tools themselves.

Each line of `tool_outputs.jsonl` has a command, its output, the outcomes that are right, and parts of lines that a
shortened result keeps. Where "unknown" is right too, a person could not tell for certain.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from proxy.context.analysis import result_lines, shell_commands
from proxy.context.analysis.shell_commands import TOOL_RUN, ShellCommand
from tests.context.analysis.runs import read_text_outcome

OUTPUTS = [json.loads(line) for line in Path(__file__).with_name("tool_outputs.jsonl").read_text("ascii").splitlines()]


def parse(command: str) -> ShellCommand:
    return shell_commands.parse_command(command) if command else TOOL_RUN


@pytest.mark.parametrize("run", OUTPUTS, ids=lambda run: f"{run['command']} -> {run['verdicts'][0]}")
def test_the_output_of_a_tool_is_read_as_its_run_ended(run: dict[str, Any]) -> None:
    read = read_text_outcome(run["output"], parse(run["command"]))
    assert read.verdict in run["verdicts"]
    lines = result_lines.split_lines(run["output"])
    kept = "\n".join(lines[n] for n in read.kept_lines)
    assert [part for part in run.get("kept", ()) if part not in kept] == []


@pytest.mark.parametrize(
    "run",
    [run for run in OUTPUTS if run["verdicts"] == ["failed"] and run["output"][0] != "{"],
    ids=lambda run: run["command"],
)
@pytest.mark.parametrize("change", ["crlf", "colours", "task in front"])
def test_a_failure_is_read_in_other_forms(run: dict[str, Any], change: str) -> None:
    lines = run["output"].splitlines()
    if change == "crlf":
        text = "\r\n".join(lines)
    elif change == "colours":
        text = re.sub(r"(?m)^([ \t]*)(\S.*)$", "\\1\x1b[1;31m\\2\x1b[0m", run["output"])
    else:
        text = "\n".join(f"app-1  | {line}" for line in lines)
    read = read_text_outcome(text, parse(run["command"]))
    assert read.verdict != "succeeded"
    if change != "task in front":
        assert read.verdict == "failed"
