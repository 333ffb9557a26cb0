"""Starts what is measured, each in a process of its own, and stops it again."""

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
"""No server in between."""


class NotStarted(RuntimeError):
    """A server that did not come up; the text is what it said last."""


@dataclass(frozen=True, slots=True)
class Server:
    """One that listens on 127.0.0.1. headers: further lines of a request, each with its end."""

    name: str
    pid: int
    port: int
    path: str = "/v1/chat/completions"
    headers: bytes = b""
    probe: Path = Path()
    """Where it tells how long its event loop was held, where it is looked at."""


@contextmanager
def started(name: str, command: list[str], port: str, log: Path, **environment: str) -> Iterator[Server]:
    """A server that prints its port; `port` is the pattern that finds it. Raises NotStarted."""
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
        stop(process)


def stop(process: subprocess.Popen[str]) -> None:
    """In order where it will, else not."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(20)
        return
    process.kill()
    process.wait(20)


@contextmanager
def upstream() -> Iterator[Server]:
    """The fake upstream."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(HERE / "servers.py"), "upstream"]
        with started(DIRECT, command, r"^port (\d+)", Path(folder) / "log") as found:
            yield found


@contextmanager
def bare(upstream_port: int, *, probe: bool = False) -> Iterator[Server]:
    """The pass-through that does nothing."""
    with tempfile.TemporaryDirectory() as folder:
        held = Path(folder) / "held"
        command = [
            sys.executable,
            str(HERE / "servers.py"),
            "bare",
            str(upstream_port),
            *([str(held)] if probe else []),
        ]
        with started(BARE, command, r"^port (\d+)", Path(folder) / "log") as found:
            yield replace(found, probe=held)


@contextmanager
def proxy(upstream_port: int, db: str = "", *, probe: bool = False) -> Iterator[Server]:
    """The proxy as a user runs it: the command with its defaults, the log into a file. db: where is stored; without it
    a SQLite file of its own. probe: with a look at how long its event loop is held."""
    with tempfile.TemporaryDirectory() as folder:
        held = Path(folder) / "held"
        command = [sys.executable, str(HERE / "probed.py"), str(held)] if probe else [str(COMMAND)]
        command += ["serve", "--port", "0", "--upstream", f"http://127.0.0.1:{upstream_port}/v1"]
        command += ["--db", db or f"{folder}/bench.sqlite3"]
        name = ON_POSTGRES if db.startswith("postgresql") else PROXY
        with started(name, command, r"listening +http://127\.0\.0\.1:(\d+)/", Path(folder) / "log") as found:
            yield replace(found, probe=held)


@contextmanager
def proxy_on_postgres(upstream_port: int) -> Iterator[Server | None]:
    """The same with PostgreSQL, which syncs nothing to the disk here; None where there is none."""
    with ExitStack() as stack:
        try:
            url = stack.enter_context(server()).url
        except (RuntimeError, OSError, subprocess.SubprocessError) as error:
            print(f"not measured with PostgreSQL: {error}", file=sys.stderr)
            yield None
            return
        yield stack.enter_context(proxy(upstream_port, asyncio.run(new_database(url))))


@contextmanager
def field(*, postgres: bool = False) -> Iterator[tuple[Server, list[Server]]]:
    """(the upstream, what stands in front of it: the bare pass-through first)."""
    with ExitStack() as stack:
        up = stack.enter_context(upstream())
        found = [stack.enter_context(bare(up.port)), stack.enter_context(proxy(up.port))]
        if postgres and (other := stack.enter_context(proxy_on_postgres(up.port))) is not None:
            found.append(other)
        yield up, found
