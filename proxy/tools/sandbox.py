"""Where a model's SQL runs: a child process with a database of its own, which is ended when it takes too long.

A statement can hold SQLite for seconds within one opcode, where no handler is asked (FAULTS.md M3), so only a process
that can be killed keeps the time. One child answers one query and is gone, whatever the query did to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from proxy.errors import ToolRefused

CHILD = Path(__file__).with_name("child.py")
WALL = 1.5
"""Seconds from when a child is ready until it must have answered."""
START = 5.0
"""Seconds within which it must be ready, and an earlier one must have made room for it."""
SQL = 10_000
"""Bytes of a statement."""
REPLY = 1 << 20
"""Bytes of a line from the child: its 64 KB of results, written as JSON; more is a fault."""
PIECE = 64 << 10
"""Bytes written at a time."""
CHILDREN = 2
"""Children at once: each may take a processor for a second and half a GiB."""


class Answer(msgspec.Struct, frozen=True):
    """A result as the child gives it. A cell is a value, or {cut, chars} where only its beginning came."""

    columns: list[str] = []
    rows: list[list[Any]] = []
    more: bool = False
    error: str | None = None


_ANSWER = msgspec.json.Decoder(Answer)


class Sandbox:
    """Starts children, only so many at once."""

    def __init__(self, child: Path = CHILD, wall: float = WALL, children: int = CHILDREN) -> None:
        """wall: seconds. child: the program, which tests change to take a layer out."""
        self._child = child
        self._wall = wall
        self._places = asyncio.Semaphore(children)

    async def query(self, rows: Sequence[bytes], statement: str, *, search: bool) -> Answer:
        """The answer to one statement over these rows (lines of JSON, without their ends). Raises ToolRefused."""
        if len(statement.encode("utf-8", "replace")) > SQL:
            raise ToolRefused(f"the statement is longer than {SQL} bytes.", limited=True)
        try:
            async with asyncio.timeout(START):
                await self._places.acquire()
        except TimeoutError:
            raise ToolRefused("too many queries at once; try again.", limited=True) from None
        try:
            async with self._running() as process:
                await _line(process, START)
                async with asyncio.timeout(self._wall):
                    sending = asyncio.ensure_future(_send(process, rows, statement, search=search))
                    try:
                        reply = await _line(process, self._wall)
                    finally:
                        sending.cancel()
                        with contextlib.suppress(asyncio.CancelledError):
                            await sending
        except TimeoutError:
            reply = b""
        finally:
            self._places.release()
        return _read(reply)

    @contextlib.asynccontextmanager
    async def _running(self) -> AsyncIterator[asyncio.subprocess.Process]:
        """A child, which is dead and buried at the end, also where the one who asked has left."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", str(self._child)),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
            env={}, cwd="/", limit=REPLY,
        )  # fmt: skip
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await asyncio.shield(process.wait())
            if process.stdin is not None:
                process.stdin.close()


async def _send(process: asyncio.subprocess.Process, rows: Sequence[bytes], statement: str, *, search: bool) -> None:
    """Everything that the child reads, in pieces, so that the loop is free between them."""
    pipe = process.stdin
    if pipe is None:  # never: it was asked for
        return
    pending = [json.dumps({"search": search}).encode() + b"\n"]
    size = 0
    # A child that is dead has said what it had to say, or nothing.
    with contextlib.suppress(ConnectionError):
        for row in (*rows, b"", json.dumps(statement).encode()):
            pending += (row, b"\n")
            size += len(row) + 1
            if size >= PIECE:
                pipe.write(b"".join(pending))
                pending, size = [], 0
                await pipe.drain()
        pipe.write(b"".join(pending))
        await pipe.drain()
        pipe.close()


async def _line(process: asyncio.subprocess.Process, seconds: float) -> bytes:
    """One line from the child; b"" where it died or says too much. Raises TimeoutError."""
    if process.stdout is None:  # never: it was asked for
        return b""
    async with asyncio.timeout(seconds):
        try:
            return await process.stdout.readline()
        except ValueError:
            return b""


def _read(reply: bytes) -> Answer:
    try:
        return _ANSWER.decode(reply)
    except ValueError:
        # The child has its own limits and the parent's clock: which of them ended it does not matter to a model.
        return Answer(error="the query took too much time or memory and was ended; ask for less, with LIMIT")
