"""Start the measured servers, each in its own process, and stop them again."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from tests.postgres import new_database, server

HERE = Path(__file__).resolve().parent
COMMAND = Path(sys.executable).with_name("context-proxy")
BARE, PROXY, ON_POSTGRES = "bare", "context-proxy", "context-proxy, PostgreSQL"
DIRECT = "upstream"
"""The upstream itself, with no server in front of it."""


class NotStarted(RuntimeError):
    """A server did not start. The text is the end of its log."""


@dataclass(frozen=True, slots=True)
class Server:
    """A server that listens on 127.0.0.1. headers: further header lines of each request, each with its line end."""

    name: str
    pid: int
    port: int
    path: str = "/v1/chat/completions"
    headers: bytes = b""
    probe: Path = Path()
    """The file into which its event loop probe writes, if it has one."""


@contextmanager
def start_server(name: str, command: list[str], port: str, log: Path, **environment: str) -> Iterator[Server]:
    """Start a server that prints its port; yield it. port: the pattern that finds the port. Raises NotStarted."""
    own = {key: value for key, value in os.environ.items() if not key.startswith("CONTEXT_PROXY_")}
    with log.open("ab") as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, stdin=subprocess.DEVNULL, text=True, env=own | environment
        )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if found := re.search(port, line):
                yield Server(name, process.pid, int(found[1]))
                return
        raise NotStarted(log.read_text(errors="replace")[-2000:])
    finally:
        stop_process(process)


def stop_process(process: subprocess.Popen[str]) -> None:
    """Terminate a process; kill it if it does not end within 20 s."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(20)
        return
    process.kill()
    process.wait(20)


@contextmanager
def start_upstream() -> Iterator[Server]:
    """Start the fake upstream."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(HERE / "servers.py"), "upstream"]
        with start_server(DIRECT, command, r"^port (\d+)", Path(folder) / "log") as found:
            yield found


@contextmanager
def start_bare(upstream_port: int, *, probe: bool = False) -> Iterator[Server]:
    """Start the bare pass-through."""
    with tempfile.TemporaryDirectory() as folder:
        held = Path(folder) / "held"
        command = [
            sys.executable,
            str(HERE / "servers.py"),
            "bare",
            str(upstream_port),
            *([str(held)] if probe else []),
        ]
        with start_server(BARE, command, r"^port (\d+)", Path(folder) / "log") as found:
            yield replace(found, probe=held)


@contextmanager
def start_proxy(upstream_port: int, db: str = "", *, probe: bool = False) -> Iterator[Server]:
    """Start the proxy as a user does: the command with its defaults, its log in a file.

    db: the store; a SQLite file of its own if empty. probe: measure holds of its event loop.
    """
    with tempfile.TemporaryDirectory() as folder:
        held = Path(folder) / "held"
        command = [sys.executable, str(HERE / "serve_with_probe.py"), str(held)] if probe else [str(COMMAND)]
        command += ["serve", "--port", "0", "--upstream", f"http://127.0.0.1:{upstream_port}/v1"]
        command += ["--db", db or f"{folder}/bench.sqlite3"]
        name = ON_POSTGRES if db.startswith("postgresql") else PROXY
        with start_server(name, command, r"listening +http://127\.0\.0\.1:(\d+)/", Path(folder) / "log") as found:
            yield replace(found, probe=held)


@contextmanager
def start_proxy_on_postgres(upstream_port: int) -> Iterator[Server | None]:
    """Start the proxy on PostgreSQL, which does not sync to disk here; yield None if PostgreSQL is not installed."""
    with ExitStack() as stack:
        try:
            url = stack.enter_context(server()).url
        except (RuntimeError, OSError, subprocess.SubprocessError) as error:
            print(f"not measured with PostgreSQL: {error}", file=sys.stderr)
            yield None
            return
        yield stack.enter_context(start_proxy(upstream_port, asyncio.run(new_database(url))))


@contextmanager
def start_all(*, postgres: bool = False) -> Iterator[tuple[Server, list[Server]]]:
    """Start all servers; yield (the upstream, the servers in front of it, beginning with the bare pass-through)."""
    with ExitStack() as stack:
        up = stack.enter_context(start_upstream())
        found = [stack.enter_context(start_bare(up.port)), stack.enter_context(start_proxy(up.port))]
        if postgres and (other := stack.enter_context(start_proxy_on_postgres(up.port))) is not None:
            found.append(other)
        yield up, found
