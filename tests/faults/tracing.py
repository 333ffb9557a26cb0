"""Faults of the disk, made for one process by strace: its system calls fail or take long while it is traced."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

QUIET = ["strace", "-f", "-qq", "-o", "/dev/null"]


def can_trace(command: list[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, timeout=20).returncode == 0
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return False


def need_tracing() -> None:
    """Skips the test where nothing can be traced."""
    if not can_trace([*QUIET, "true"]):
        pytest.skip("strace is not installed, or cannot trace here (Debian's package strace)")


@asynccontextmanager
async def injected(pid: int, calls: str, what: str) -> AsyncIterator[None]:
    """While it lasts these system calls of the process do that (`error=EIO`, `delay_enter=2000000`)."""
    command = [*QUIET, "-e", f"trace={calls}", "-e", f"inject={calls}:{what}", "-p", str(pid)]
    tracer = subprocess.Popen(command, stderr=subprocess.PIPE)
    try:
        await attached(pid)
        yield
    finally:
        tracer.send_signal(signal.SIGINT)
        await asyncio.to_thread(tracer.communicate)


async def attached(pid: int) -> None:
    """Until each of its branches is traced."""
    async with asyncio.timeout(20):
        while not all(
            "TracerPid:\t0" not in (task / "status").read_text() for task in Path(f"/proc/{pid}/task").iterdir()
        ):
            await asyncio.sleep(0.02)
