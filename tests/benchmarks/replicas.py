"""One and three replicas on one PostgreSQL: processor time of the proxies and of the database, and requests a second.

Requests go to the replicas in turn, so that each finds conversations that another replica has continued. On a machine
with few processors, requests a second are limited by all processes together: processor time says more.
"""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from tests.benchmarks.driver import Connection, run_client
from tests.benchmarks.meter import wait_until_idle
from tests.benchmarks.rows import Row, compare_servers
from tests.benchmarks.scope import Scope
from tests.benchmarks.start_servers import Server, start_proxy, start_upstream
from tests.benchmarks.traffic import Conversation, iter_growing
from tests.postgres import new_database, server

COUNTS = (1, 3)
CLIENTS = 16
TURNS = 8
STEP = 1500
"""Characters of a tool's result in a step."""


async def send_in_turn(replicas: Sequence[Server], lines: Sequence[Sequence[bytes]], names: Sequence[bytes]) -> None:
    """Send the bodies of each line one after the other, each to the next replica; all lines run at once."""
    turn = itertools.count()

    async def one(bodies: Sequence[bytes], name: bytes) -> None:
        connections = [Connection(replica) for replica in replicas]
        try:
            for body in bodies:
                await connections[next(turn) % len(connections)].send(body, b"x-session-id: %b\r\n" % name)
        finally:
            for connection in connections:
                connection.close()

    await asyncio.gather(*map(one, lines, names))


def make_conversations(seed: str, count: int, turns: int) -> tuple[list[list[bytes]], list[bytes]]:
    """Return (the bodies of each conversation, the names of their sessions)."""
    made = [f"{seed}_{n}" for n in range(count)]
    return [list(iter_growing(Conversation(name, prompt=300), turns, STEP)) for name in made], [
        n.encode() for n in made
    ]


@contextmanager
def start_replicas(count: int) -> Iterator[tuple[int, list[Server]]]:
    """Yield (process id of the database server, the replicas). Raises RuntimeError if PostgreSQL is not installed."""
    with ExitStack() as stack:
        up, postgres = stack.enter_context(start_upstream()), stack.enter_context(server())
        url = asyncio.run(new_database(postgres.url))
        yield postgres.process.pid, [stack.enter_context(start_proxy(up.port, url)) for _ in range(count)]


def run(scope: Scope) -> list[Row]:
    """Measure each number of replicas on a database of its own."""
    rows: list[Row] = []
    clients, turns = scope.choose_count(CLIENTS, 2), scope.choose_count(TURNS, 2)
    for count in COUNTS:
        case = f"{count} replica{'s' * (count > 1)}, x{clients}"
        if not scope.selects(case):
            continue
        found: dict[str, list[float]] = {"proxies": [], "PostgreSQL": []}
        rates: list[float] = []
        try:
            with start_replicas(count) as (database, replicas):
                for number in range(scope.rounds + 1):
                    lines, names = make_conversations(f"round_{count}_{number}", clients, turns)
                    before = [wait_until_idle(pid).total for pid in (database, *(replica.pid for replica in replicas))]
                    began = time.perf_counter()
                    run_client(lambda: send_in_turn(replicas, lines, names))  # noqa: B023  run at once
                    took = time.perf_counter() - began
                    after = [wait_until_idle(pid).total for pid in (database, *(replica.pid for replica in replicas))]
                    if number:  # the first one warms up
                        each = [(now - then) / clients / turns * 1e6 for now, then in zip(after, before, strict=True)]
                        found["PostgreSQL"].append(each[0])
                        found["proxies"].append(sum(each[1:]))
                        rates.append(clients * turns / took)
        except (RuntimeError, OSError, subprocess.SubprocessError) as error:
            print(f"not measured with PostgreSQL: {error}", file=sys.stderr)
            return rows
        rows += compare_servers({"case": case, "clients": 1, "requests": clients * turns}, "us", found)
        rows += compare_servers({"case": case, "clients": 1}, "a second", {"requests": rates})
    return rows
