"""`make run` in an empty folder, with programs that stand for Python and pip: the lines that a person sees."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYTHON = """#!/bin/sh
case "$*" in
*venv*) mkdir -p .venv/bin; cp "$0" .venv/bin/python; cp "$0" .venv/bin/context-proxy ;;
*"pip install"*) echo "pip is silent" ;;
serve*) echo served ;;
esac
"""


def test_a_silent_installation_is_announced_and_only_once(tmp_path: Path) -> None:
    for name in ("Makefile", "requirements.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    python = tmp_path / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    command = ["make", "--no-print-directory", "run", f"PYTHON={python}"]
    environment = {**os.environ, "MAKEFLAGS": ""}

    def run() -> list[str]:
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
        return done.stdout.splitlines()

    shown = run()
    told = next(n for n, line in enumerate(shown) if line.startswith("Setting up .venv: pip installs"))
    assert "about a minute" in shown[told]
    assert told < shown.index("pip is silent")
    assert shown[-1] == "served"
    assert run() == ["served"]
