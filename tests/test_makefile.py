"""`make run` in an empty folder, with programs that stand for Python and pip: the lines that a person sees."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYTHON = """#!/bin/sh
case "$*" in
*"too old"*) exec REAL "$1" "CHANGED$2" ;;
*venv*) mkdir -p .venv/bin; cp "$0" .venv/bin/python; cp "$0" .venv/bin/context-proxy ;;
*"pip install"*) echo "pip is silent" ;;
serve*) echo served ;;
esac
"""


def run_make(folder: Path, changed: str = "") -> subprocess.CompletedProcess[str]:
    """Run `make run` in a folder. changed: a statement in front of the check of the Python."""
    for name in ("Makefile", "requirements.lock", "pyproject.toml"):
        if not (folder / name).exists():
            shutil.copy(ROOT / name, folder)
    python = folder / "python"
    python.write_text(PYTHON.replace("REAL", sys.executable).replace("CHANGED", changed))
    python.chmod(0o755)
    command = ["make", "--no-print-directory", "run", f"PYTHON={python}"]
    return subprocess.run(
        command, cwd=folder, env={**os.environ, "MAKEFLAGS": ""}, capture_output=True, text=True, check=False
    )


def test_a_silent_installation_is_announced_and_only_once(tmp_path: Path) -> None:
    shown = run_make(tmp_path).stdout.splitlines()
    told = next(n for n, line in enumerate(shown) if line.startswith("Setting up .venv: pip installs"))
    assert "about a minute" in shown[told]
    assert told < shown.index("pip is silent")
    assert shown[-1] == "served"
    assert run_make(tmp_path).stdout.splitlines() == ["served"]


def test_an_old_python_is_named_before_pip_misses_a_package(tmp_path: Path) -> None:
    done = run_make(tmp_path, "import sys; sys.version_info = (3, 10, 13); ")
    assert done.returncode
    assert "pip is silent" not in done.stdout
    assert done.stderr.startswith("The Python of .venv is too old: remove .venv, and name Python 3.11,")
