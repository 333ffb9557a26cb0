"""The start of the composition's proxy, as a shell runs it: which store it takes with which profile."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from proxy.cli.key import write_keys

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("store", "has_postgres", "told"),
    [
        ("", False, "/data/context-proxy.sqlite3"),
        ("", True, "postgresql://context@postgres/context by p@ss/w:o#r%d"),
        ("postgresql://me@elsewhere/db", True, "postgresql://me@elsewhere/db"),
    ],
)
def test_the_profile_decides_which_store_is_used(tmp_path: Path, store: str, has_postgres: bool, told: str) -> None:
    service = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["proxy"]
    check = f"{sys.executable} -m proxy.cli.main check"
    for name, script in (
        ("getent", f'[ "$*" = "hosts postgres" ] && exit {0 if has_postgres else 2}'),
        (
            "context-proxy",
            f'echo "$1 $CONTEXT_PROXY_DB${{PGPASSWORD:+ by $PGPASSWORD}}"; exec {check} >{tmp_path}/told',
        ),
    ):
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    # What the Dockerfile sets, and what the composition does.
    environment = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}", "CONTEXT_PROXY_DB": "/data/context-proxy.sqlite3", "STORE": store,
        "POSTGRES_PASSWORD": "p@ss/w:o#r%d",
    }  # fmt: skip
    assert "CONTEXT_PROXY_DB=/data/context-proxy.sqlite3" in (ROOT / "Dockerfile").read_text()
    assert {"STORE", "POSTGRES_PASSWORD"} <= set(service["environment"])
    command = [word.replace("$$", "$") for word in (*service["entrypoint"], *service["command"])]
    rendered = {name: value for name, value in service["environment"].items() if "$" not in value}
    write_keys(tmp_path, "default")
    rendered["CONTEXT_PROXY_CONFIG"] = rendered["CONTEXT_PROXY_CONFIG"].replace("/keys", str(tmp_path), 1)
    environment |= rendered | {"CONTEXT_PROXY_UPSTREAM": "", "CONTEXT_PROXY_HOST": "0.0.0.0", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (0, f"serve {told}"), done.stderr
    in_force = tomllib.loads((tmp_path / "told").read_text())  # by the proxy itself
    assert in_force["db"] == told.partition(" by ")[0]
    assert {key["plane"] for key in in_force["keys"]} == {"data", "admin", "read", "metrics"}
