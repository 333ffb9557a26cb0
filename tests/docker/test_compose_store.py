"""The start of the composition's proxy, as a shell runs it: which store it takes with which profile."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("store", "has_postgres", "told"),
    [
        ("", False, "/data/context-proxy.sqlite3"),
        ("", True, "postgresql://context:word@postgres/context"),
        ("postgresql://me@elsewhere/db", True, "postgresql://me@elsewhere/db"),
    ],
)
def test_the_profile_decides_which_store_is_used(tmp_path: Path, store: str, has_postgres: bool, told: str) -> None:
    service = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["proxy"]
    for name, script in (
        ("getent", f'[ "$*" = "hosts postgres" ] && exit {0 if has_postgres else 2}'),
        ("context-proxy", 'echo "$1 $CONTEXT_PROXY_DB"'),
    ):
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    # What the Dockerfile sets, and what the composition does.
    environment = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}", "CONTEXT_PROXY_DB": "/data/context-proxy.sqlite3", "STORE": store,
        "POSTGRES_PASSWORD": "word",
    }  # fmt: skip
    assert "CONTEXT_PROXY_DB=/data/context-proxy.sqlite3" in (ROOT / "Dockerfile").read_text()
    assert {"STORE", "POSTGRES_PASSWORD"} <= set(service["environment"])
    command = [word.replace("$$", "$") for word in (*service["entrypoint"], *service["command"])]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=10)
    assert (done.returncode, done.stdout.strip()) == (0, f"serve {told}"), done.stderr
