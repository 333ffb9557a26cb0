"""One and three replicas on one PostgreSQL: processor time of the proxies and of the database, and requests a second.

Requests go to the replicas in turn, so that each finds a conversation that another one has moved on. Where the machine
has few processors, requests a second are those that all of it can do together: processor time tells more.
"""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from tests.benchmarks.driver import Connection, drive
from tests.benchmarks.meter import settled
from tests.benchmarks.rows import Row, compared
from tests.benchmarks.scope import Scope
from tests.benchmarks.starting import Server, proxy, upstream
from tests.benchmarks.traffic import Conversation, growing
from tests.postgres import new_database, server

COUNTS = (1, 3)
CLIENTS = 16
TURNS = 8
STEP = 1500
"""Characters of a tool's result in a step."""


async def ask(replicas: Sequence[Server], lines: Sequence[Sequence[bytes]], names: Sequence[bytes]) -> None:
    """The bodies of each line one after the other, each to the next replica; all lines at once."""
    turn = itertools.count()

    async def one(bodies: Sequence[bytes], name: bytes) -> None:
        connections = [Connection(replica) for replica in replicas]
        try:
            for body in bodies:
                await connections[next(turn) % len(connections)].ask(body, b"x-session-id: %b\r\n" % name)
        finally:
            for connection in connections:
                connection.close()

    await asyncio.gather(*map(one, lines, names))


def conversations(seed: str, count: int, turns: int) -> tuple[list[list[bytes]], list[bytes]]:
    """(bodies of each conversation, its session's name)."""
    made = [f"{seed}_{n}" for n in range(count)]
    return [list(growing(Conversation(name, prompt=300), turns, STEP)) for name in made], [n.encode() for n in made]


@contextmanager
def fleet(count: int) -> Iterator[tuple[int, list[Server]]]:
    """(the database server's process, so many replicas). Raises RuntimeError where there is no PostgreSQL."""
    with ExitStack() as stack:
        up, postgres = stack.enter_context(upstream()), stack.enter_context(server())
        url = asyncio.run(new_database(postgres.url))
        yield postgres.process.pid, [stack.enter_context(proxy(up.port, url)) for _ in range(count)]


def run(scope: Scope) -> list[Row]:
    """Each number of replicas on a database of its own."""
    rows: list[Row] = []
    clients, turns = scope.few(CLIENTS, 2), scope.few(TURNS, 2)
    for count in COUNTS:
        case = f"{count} replica{'s' * (count > 1)}, x{clients}"
        if not scope.wants(case):
            continue
        found: dict[str, list[float]] = {"proxies": [], "PostgreSQL": []}
        rates: list[float] = []
        try:
            with fleet(count) as (database, replicas):
                for number in range(scope.rounds + 1):
                    lines, names = conversations(f"round_{count}_{number}", clients, turns)
                    before = [settled(pid).all for pid in (database, *(replica.pid for replica in replicas))]
                    began = time.perf_counter()
                    drive(lambda: ask(replicas, lines, names))  # noqa: B023  run at once
                    took = time.perf_counter() - began
                    after = [settled(pid).all for pid in (database, *(replica.pid for replica in replicas))]
                    if number:  # the first one warms up
                        each = [(now - then) / clients / turns * 1e6 for now, then in zip(after, before, strict=True)]
                        found["PostgreSQL"].append(each[0])
                        found["proxies"].append(sum(each[1:]))
                        rates.append(clients * turns / took)
        except (RuntimeError, OSError, subprocess.SubprocessError) as error:
            print(f"not measured with PostgreSQL: {error}", file=sys.stderr)
            return rows
        rows += compared({"case": case, "clients": 1, "requests": clients * turns}, "us", found)
        rows += compared({"case": case, "clients": 1}, "a second", {"requests": rates})
    return rows
