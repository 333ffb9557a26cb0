"""Clients from the npm registry: installed once from a lock with hashes, and run in a home of their own.

They reach nothing but 127.0.0.1: whatever else they ask for goes to a port on which nobody answers.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.clients.loops import LISTING

LOCKED = Path(__file__).parent / "node"
CACHE = Path(__file__).parents[2] / ".venvs" / "node-clients"
INSTALL_S = 300
RUN_S = 120


def install() -> Path:
    """The folder of the installed packages. Skips the test, with the reason, where they cannot be had."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not on the PATH")
    lock = (LOCKED / "package-lock.json").read_bytes()
    folder = CACHE / hashlib.sha256(lock).hexdigest()[:12]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        if not (folder / "installed").exists():
            for name in ("package.json", "package-lock.json"):
                shutil.copy(LOCKED / name, folder / name)
            command = ["npm", "ci", "--no-audit", "--no-fund", "--loglevel=error"]
            try:
                subprocess.run(command, cwd=folder, check=True, timeout=INSTALL_S, capture_output=True, text=True)
            except (subprocess.SubprocessError, OSError) as problem:
                pytest.skip(f"the packages of {LOCKED.name}/package-lock.json cannot be had: {problem}")
            (folder / "installed").touch()
    return folder


def make_environment(home: Path, **more: str) -> dict[str, str]:
    """The environment of a client: nothing of the caller's but the PATH."""
    home.mkdir(parents=True, exist_ok=True)
    nowhere = "http://127.0.0.1:9"
    return {
        "PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8", "TZ": "UTC",
        "HTTP_PROXY": nowhere, "HTTPS_PROXY": nowhere, "ALL_PROXY": nowhere, "NO_PROXY": "127.0.0.1,localhost",
        **more,
    }  # fmt: skip


async def run_client(*command: str, folder: Path, environment: dict[str, str]) -> tuple[str, str]:
    """(stdout, stderr) of a client that ends by itself with status 0."""
    process = await asyncio.create_subprocess_exec(
        *command, cwd=folder, env=environment, stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        out, errors = await asyncio.wait_for(process.communicate(), RUN_S)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, (out[-3000:], errors[-3000:])
    return out.decode(), errors.decode()


def make_work(folder: Path) -> Path:
    """A folder with the three files that the loop reads, always at the same path."""
    work = folder / "work"
    work.mkdir(exist_ok=True)
    for n in range(3):
        (work / f"file{n}.py").write_text(f"{LISTING}\n# file{n}.py\n")
    return work


def find_path(command: str) -> str:
    """The file that a command prints."""
    return next(one for one in command.replace("'", " ").split() if one.startswith("file"))
