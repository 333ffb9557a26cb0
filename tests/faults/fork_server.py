"""A process that has everything loaded and forks a real `context-proxy serve` as often as it is told: killing a proxy
a thousand times would otherwise be a thousand times the loading of it. Run as a script; `ForkServer` talks to it.

Each line on stdin is the settings of one more proxy as JSON; what comes back is `ready PID PORT` once it answers.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import socket
import subprocess
import sys
from typing import Any

import uvicorn

from proxy.cli.logs import set_up_logging
from proxy.cli.serve import AnnouncingServer
from proxy.settings.load import Settings

SAMPLE_S = 0.002
"""Seconds between two samples of the loop, once its lag is asked for."""


class ReportingServer(AnnouncingServer):
    """Says where it listens in one line that a program reads."""

    latest = -1.0
    """The greatest lag of the loop in seconds since the last question; None before the first question."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await uvicorn.Server.startup(self, sockets)
        if self.started:
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGUSR1, lambda: print("tasks", len(asyncio.all_tasks()), flush=True))
            loop.add_signal_handler(signal.SIGUSR2, self._tell_lag)
            print("ready", os.getpid(), self._address[1], flush=True)

    def _tell_lag(self) -> None:
        print("lag", self.latest, flush=True)
        if self.latest < 0:
            self._look(asyncio.get_running_loop().time())
        self.latest = 0.0

    def _look(self, due: float) -> None:
        loop = asyncio.get_running_loop()
        self.latest = max(self.latest, loop.time() - due)
        loop.call_later(SAMPLE_S, self._look, loop.time() + SAMPLE_S)


def serve(tree: dict[str, Any]) -> None:
    """Serve as the command does, without its output."""
    settings = Settings.model_validate(tree)
    set_up_logging(settings.log_level, settings.access_log)
    with socket.create_server(("127.0.0.1", 0), backlog=2048) as listener:
        signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(0))
        ReportingServer(settings, listener).run(sockets=[listener])


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # they are killed, and nobody asks how they ended
    for line in sys.stdin:
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            try:
                serve(json.loads(line))
            except Exception as problem:  # noqa: BLE001  whoever waits for a line has to get one
                print("refused", repr(problem).replace("\n", " "), flush=True)
            finally:
                os._exit(0)


class ForkServer:
    """The parent's side. Blocking; the proxies that it made and nobody killed end with `close`."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.fork_server"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._alive: set[int] = set()

    def start(self, **tree: Any) -> tuple[int, int]:
        """(pid, port) of one more proxy."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(tree) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline().split()
        assert line[:1] == ["ready"], line
        self._alive.add(int(line[1]))
        return int(line[1]), int(line[2])

    async def started(self, **tree: Any) -> tuple[int, int]:
        """The same, without blocking the loop."""
        return await asyncio.to_thread(self.start, **tree)

    def tasks(self, pid: int) -> int:
        """Number of tasks of its event loop."""
        return int(self._told(pid, signal.SIGUSR1, "tasks"))

    def lag(self, pid: int) -> float:
        """Seconds that its event loop was held at most since this was last asked; asking first begins it."""
        return float(self._told(pid, signal.SIGUSR2, "lag"))

    def _told(self, pid: int, how: signal.Signals, name: str) -> str:
        assert self._process.stdout is not None
        os.kill(pid, how)
        line = self._process.stdout.readline().split()
        assert line[:1] == [name], line
        return line[1]

    def kill(self, pid: int) -> None:
        """-9, and not before it is gone: its lock on the file goes with it."""
        self._end(pid, signal.SIGKILL, 10)

    def end(self, pid: int) -> None:
        """SIGTERM: it ends when all that it has begun is answered and stored."""
        self._end(pid, signal.SIGTERM, 60)

    def _end(self, pid: int, how: signal.Signals, seconds: float) -> None:
        self._alive.discard(pid)
        handle = os.pidfd_open(pid)
        try:
            signal.pidfd_send_signal(handle, how)
            assert select.select([handle], [], [], seconds)[0], "a process did not end"
        finally:
            os.close(handle)

    def close(self) -> None:
        for pid in list(self._alive):
            self.kill(pid)
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)
        assert self._process.stdout is not None
        self._process.stdout.close()


if __name__ == "__main__":
    main()
