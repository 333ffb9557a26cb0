"""`context-proxy replay --ask`, as a command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from proxy.cli.main import app

RUN = CliRunner()


def record(path: Path) -> Path:
    """A conversation that thrifty edits: many long results, of which the same comes several times."""
    listing = "\n".join(f"{n}\tdef function_{n}(argument): return argument + {n}" for n in range(1, 260))
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Find the fault."}]
    for n in range(25):
        function = {"name": "read", "arguments": json.dumps({"path": f"file{n % 3}.py"})}
        messages.append(
            {"role": "assistant", "tool_calls": [{"id": f"call_{n:04}", "type": "function", "function": function}]}
        )
        messages.append({"role": "tool", "tool_call_id": f"call_{n:04}", "content": listing})
    messages.append({"role": "assistant", "content": "All done."})
    path.write_text(json.dumps({"id": "one", "messages": messages}) + "\n")
    return path


@pytest.mark.slow
def test_the_demo_model_is_asked_and_its_answers_are_kept(tmp_path: Path) -> None:
    file, answers, out = record(tmp_path / "run.jsonl"), tmp_path / "answers.jsonl", tmp_path / "out.json"
    command = ["replay", str(file), "--ask", "demo", "--answers", str(answers), "--db", ":memory:"]
    found = RUN.invoke(app, [*command, "--json", str(out)])
    assert found.exit_code == 0, found.output
    report = json.loads(out.read_text())
    assert report["points"] > 0
    assert report["full_with_full"] == 1.0, "the demo model is the same each time"
    assert len(answers.read_text().splitlines()) == 4 * report["points"]
    again = RUN.invoke(app, [*command, "--json", "-", "--dollars", "0"])
    assert json.loads(again.output) == report


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--ask", "nobody-knows"], "a model with prices"),
        (["--ask", "demo", "--policy", "all"], "one policy with --ask"),
    ],
)
def test_what_cannot_be_asked_is_refused_before_anything_is_paid(tmp_path: Path, more: list[str], words: str) -> None:
    found = RUN.invoke(app, ["replay", str(record(tmp_path / "run.jsonl")), *more, "--db", ":memory:"])
    assert found.exit_code != 0
    assert words in str(found.exception or found.output)
