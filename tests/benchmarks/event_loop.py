"""The longest hold of the event loop while a large request comes among small ones.

In each round four clients send small requests all the time, and one large request comes among them. A hold is measured
by the clock, and by the processor time of the process. On a shared machine the clock also counts the time of other
processes; the row of the bare pass-through shows how much.
"""

from __future__ import annotations

import asyncio
import random
import string
from collections.abc import Callable, Sequence

from tests.benchmarks.driver import Connection, run_client
from tests.benchmarks.event_loop_probe import read_longest_hold
from tests.benchmarks.rows import Row, compare_servers, rotate_order
from tests.benchmarks.scope import Scope
from tests.benchmarks.start_servers import Server, start_bare, start_proxy, start_upstream
from tests.benchmarks.traffic import Conversation, make_long, make_short

SMALL_CLIENTS = 4
MARGIN_S = 0.1
"""Seconds in which only small requests are sent, before and after the large one."""
Bodies = tuple[list[bytes], bytes]
"""The bodies that are sent first, alone, and the large body that comes among small requests."""


def make_small_only(seed: str) -> Bodies:
    """No large request: one more small one."""
    return [], make_short(seed).body()


def make_new_history(seed: str) -> Bodies:
    """A history of 2 MB that the server has not seen."""
    return [], make_long(seed, 1180, 2_000_000).body()


def make_known_history(seed: str) -> Bodies:
    """A history of 2 MB that the server knows, with one more step."""
    talk = make_long(seed, 1180, 2_000_000)
    first = talk.body()
    talk.add_turn(400)
    return [first], talk.body()


def make_large_result(seed: str) -> Bodies:
    """A tool result of 1 MB, in a conversation that goes on."""
    talk = Conversation(seed)
    first = talk.body()
    talk.add_turn(1_000_000)
    return [first], talk.body()


def make_long_word(seed: str) -> Bodies:
    """A tool result of 1 MB without a space, the slowest text for a tokenizer."""
    talk = Conversation(seed)
    first = talk.body()
    talk.add_turn(0)
    word = "".join(random.Random(seed).choices(string.ascii_lowercase, k=1_000_000))
    talk.messages[-1] = talk.messages[-1].replace(b'"content": "1"', b'"content": "%b"' % word.encode())
    assert len(talk.messages[-1]) > len(word)
    return [first], talk.body()


def make_uncounted_history(seed: str) -> Bodies:
    """A history of 400 messages of 2 KB whose tokens have not been counted yet."""
    return [], make_long(seed, 400, 800_000).body()


CASES: dict[str, Callable[[str], Bodies]] = {
    "small ones alone": make_small_only,
    "2 MB, 1,180 messages, new": make_new_history,
    "2 MB, 1,180 messages, goes on": make_known_history,
    "a result of 1 MB": make_large_result,
    "a result of 1 MB, one word": make_long_word,
    "400 messages, first counted": make_uncounted_history,
}


async def send_among_small(server: Server, large: bytes, seed: str) -> None:
    """Send the large body while other clients send small ones."""
    over = asyncio.Event()

    async def send_small(number: int) -> None:
        connection, count = Connection(server), 0
        while not over.is_set():
            await connection.send(make_short(f"{seed}_{number}_{count}").body())
            count += 1
        connection.close()

    tasks = [asyncio.create_task(send_small(n)) for n in range(SMALL_CLIENTS)]
    await asyncio.sleep(MARGIN_S)
    connection = Connection(server)
    await connection.send(large)
    await asyncio.sleep(MARGIN_S)
    over.set()
    await asyncio.gather(*tasks)
    connection.close()


async def send_alone(server: Server, bodies: Sequence[bytes]) -> None:
    """Send the bodies one after the other, and nothing else."""
    connection = Connection(server)
    for body in bodies:
        await connection.send(body)
    connection.close()


def measure(servers: Sequence[Server], case: str, scope: Scope) -> list[Row]:
    """Measure the longest hold of each round, in milliseconds."""
    clock: dict[str, list[float]] = {server.name: [] for server in servers}
    own: dict[str, list[float]] = {server.name: [] for server in servers}
    for number in range(scope.rounds):
        for server in rotate_order(servers, number):
            first, large = CASES[case](f"l{number:02}{len(case)}")
            run_client(lambda: send_alone(server, first))  # noqa: B023  run at once
            read_longest_hold(server.pid, server.probe)
            run_client(lambda: send_among_small(server, large, f"m{number}{len(case)}"))  # noqa: B023
            by_clock, of_own = read_longest_hold(server.pid, server.probe)
            clock[server.name].append(by_clock)
            own[server.name].append(of_own)
    worst = {name: [max(values)] for name, values in own.items()}
    return [
        *compare_servers({"case": f"{case}: by the clock", "what": "clock"}, "ms", clock),
        *compare_servers({"case": f"{case}: by itself", "what": "own"}, "ms", own),
        *compare_servers({"case": f"{case}: by itself, worst", "what": "worst"}, "ms", worst),
    ]


def run(scope: Scope) -> list[Row]:
    """Measure all cases."""
    rows: list[Row] = []
    with start_upstream() as up, start_bare(up.port, probe=True) as simple, start_proxy(up.port, probe=True) as ours:
        run_client(
            lambda: send_alone(ours, [make_long("warm", 100, 100_000).body()])
        )  # the vocabulary is loaded by the first
        for case in CASES:
            if scope.selects(case):
                rows += measure([simple, ours], case, scope)
    return rows
