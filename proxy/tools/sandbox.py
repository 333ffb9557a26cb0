"""Sandbox for a model's SQL: a child process with a private database, which is ended when it takes too long.

A statement can hold SQLite for seconds within one opcode, and no handler is called during an opcode.
Only a process that the system ends by itself keeps the time limit. One child answers one query and then ends, whatever
the query did to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import threading
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from proxy.errors import ToolRefused

CHILD_FILE = Path(__file__).with_name("sandbox_child.py")
WALL_S = 20.0
"""Seconds within which a child that is ready must answer. The real limit of a query is its processor time, which the
system counts. This limit is for a busy machine, where a child may wait for a processor and reach no other limit."""
START_S = 20.0
"""Seconds within which a child must be ready. It takes milliseconds on a machine that is not overloaded. A child also
waits for this time at most until an earlier one has ended."""
MAX_SQL_BYTES = 10_000
"""Bytes of a statement."""
MAX_REPLY_BYTES = 1 << 20
"""Bytes of a line from the child: its 64 KB of results, written as JSON. A longer line is a fault."""
ROWS_PER_WRITE = 50
"""Rows written at a time."""
MAX_CHILDREN = 2
"""Concurrent children: each may use a processor for a second and half a GiB."""


class QueryResult(msgspec.Struct, frozen=True):
    """A result as the child gives it. A cell is a value, or {cut, chars} if only its beginning came."""

    columns: list[str] = []
    rows: list[list[Any]] = []
    more: bool = False
    error: str | None = None


_ANSWER = msgspec.json.Decoder(QueryResult)

RowLoader = Callable[[], Awaitable[Sequence[bytes]]]
"""Loads the rows of the table: lines of JSON, without their ends."""


class TenantSlots:
    """Slots that are given to tenants in turn: of those who wait, the one with the fewest slots gets the next one.

    The queries of one tenant wait for each other. Those of another tenant wait for one of them at most.
    """

    def __init__(self, count: int) -> None:
        """count: slots for all tenants together."""
        self.free = count
        self._held: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """By tenant, the one that was served last at the end."""

    async def acquire(self, tenant: str) -> None:
        """Wait for a slot, which `release` gives back."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(turn)
        self._hand_out_turns()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release(tenant)
            raise

    def release(self, tenant: str) -> None:
        """Give a slot to the next one."""
        self.free += 1
        self._held[tenant] -= 1
        if not self._held[tenant]:
            del self._held[tenant]
        self._hand_out_turns()

    @contextlib.asynccontextmanager
    async def hold(self, tenant: str) -> AsyncIterator[None]:
        """Wait for a slot, and hold it for the block."""
        await self.acquire(tenant)
        try:
            yield
        finally:
            self.release(tenant)

    def _hand_out_turns(self) -> None:
        while self.free and self._waiting:
            tenant = min(self._waiting, key=self._held.__getitem__)
            waiting = self._waiting.pop(tenant)
            turn = waiting.popleft()
            if waiting:
                self._waiting[tenant] = waiting
            if not turn.done():  # else it was cancelled while it waited
                self.free -= 1
                self._held[tenant] += 1
                turn.set_result(None)


class Sandbox:
    """Start children, with a limit on concurrent ones."""

    def __init__(self, child: Path = CHILD_FILE, wall: float = WALL_S, children: int = MAX_CHILDREN) -> None:
        """Set the limits. wall: seconds. child: the program, which tests change to remove a layer."""
        self._child = child
        self._wall = wall
        self._slots = TenantSlots(children)

    async def query(self, load_rows: RowLoader, statement: str, *, search: bool, tenant: str = "") -> QueryResult:
        """Return the answer to one statement over the loaded rows. They are loaded once there is a place for a child,
        so no query that waits holds them. tenant: whose query it is; tenants have their turns. Raises ToolRefused."""
        if len(statement.encode("utf-8", "replace")) > MAX_SQL_BYTES:
            raise ToolRefused(f"the statement is longer than {MAX_SQL_BYTES} bytes.", limited=True)
        try:
            async with asyncio.timeout(START_S):
                await self._slots.acquire(tenant)
        except TimeoutError:
            raise ToolRefused("too many queries at once; try again.", limited=True) from None
        talk = _ChildProcess(self._child, self._wall)
        try:
            reply = await asyncio.to_thread(talk.run_query, await load_rows(), statement, search=search)
        finally:
            talk.kill()  # the caller may have left
            self._slots.release(tenant)
        return _decode_reply(reply)


class _ChildProcess:
    """A child's whole life, in a thread. The event loops in use start processes by fork, which stops a large process
    for a tenth of a second; `subprocess` does not."""

    def __init__(self, child: Path, wall: float) -> None:
        self._command = [sys.executable, "-I", "-S", str(child)]
        self._wall = wall
        self._process: subprocess.Popen[bytes] | None = None
        self._ended = False

    def kill(self) -> None:
        """Kill the child, from any thread, whether it has been started or not."""
        self._ended = True
        if self._process is not None:
            self._process.kill()

    def run_query(self, rows: Sequence[bytes], statement: str, *, search: bool) -> bytes:
        """Return the answer of the child; b"" if the child died or had to be ended."""
        pipe = subprocess.PIPE
        self._process = process = subprocess.Popen(  # noqa: S603  our own program, by its path, without a shell
            self._command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, env={}, cwd="/"
        )
        with process:
            try:
                return self._run_statement(process, rows, statement, search=search)
            finally:
                process.kill()
                if process.stdin is not None:
                    with contextlib.suppress(OSError):  # bytes that it did not read
                        process.stdin.close()

    def _run_statement(
        self, process: subprocess.Popen[bytes], rows: Sequence[bytes], statement: str, *, search: bool
    ) -> bytes:
        if self._ended or process.stdin is None or process.stdout is None:
            return b""
        with self._limit_time(START_S):
            process.stdout.readline(MAX_REPLY_BYTES)
        # The child reads all of it before it says more, so neither waits for the other.
        with self._limit_time(self._wall), contextlib.suppress(OSError):
            process.stdin.write(json.dumps({"search": search}).encode() + b"\n")
            for at in range(0, len(rows), ROWS_PER_WRITE):
                process.stdin.write(b"".join(row + b"\n" for row in rows[at : at + ROWS_PER_WRITE]))
            process.stdin.write(b"\n" + json.dumps(statement).encode() + b"\n")
            process.stdin.close()
            return process.stdout.readline(MAX_REPLY_BYTES)
        return b""

    @contextlib.contextmanager
    def _limit_time(self, seconds: float) -> Iterator[None]:
        """Kill the child, and so break every pipe to it, if this takes longer."""
        clock = threading.Timer(seconds, self.kill)
        clock.start()
        try:
            yield
        finally:
            clock.cancel()


def _decode_reply(reply: bytes) -> QueryResult:
    try:
        return _ANSWER.decode(reply)
    except ValueError:
        # The child has its own limits and the parent's clock: it does not matter to a model which of them ended it.
        return QueryResult(error="the query took too much time or memory and was ended; ask for less, with LIMIT")
