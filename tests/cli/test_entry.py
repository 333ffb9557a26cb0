from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import proxy

COMMAND = [sys.executable, "-c", "from proxy.cli.entry import run; run()"]


def test_the_version_is_told_without_the_packages_of_the_server() -> None:
    code = (
        "import sys; sys.argv[1:] = ['--version']; from proxy.cli.entry import run; run();"
        "print(sorted({'typer', 'fastapi', 'pydantic', 'uvicorn', 'msgspec', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [proxy.__version__, "[]"]


@pytest.mark.timed
def test_the_version_is_printed_in_a_quarter_of_a_second() -> None:
    began = time.monotonic()
    subprocess.run([*COMMAND, "--version"], capture_output=True, check=True)
    assert time.monotonic() - began < 4 * 0.25


def test_every_other_command_runs_as_usual(tmp_path: Path) -> None:
    done = subprocess.run([*COMMAND, "check"], capture_output=True, text=True, cwd=tmp_path, env=dict(os.environ))
    assert (done.returncode, "policy = " in done.stdout) == (0, True)
