"""How long the event loop is held at most while something large comes among small requests.

Each round: four clients send small requests all the time, one large request comes among them. By the clock, and of that
by the process itself: on a shared machine the clock tells of other processes too (the bare one's row shows how much).
"""

from __future__ import annotations

import asyncio
import random
import string
from collections.abc import Callable, Sequence

from tests.benchmarks.driver import Connection, drive
from tests.benchmarks.probe import longest
from tests.benchmarks.rows import Row, compared, turned
from tests.benchmarks.scope import Scope
from tests.benchmarks.starting import Server, bare, proxy, upstream
from tests.benchmarks.traffic import Conversation, long, short

SMALL_CLIENTS = 4
BEFORE = 0.1
"""Seconds of small requests alone before and after the large one."""
Bodies = tuple[list[bytes], bytes]
"""What is sent first, alone; what comes among small requests."""


def nothing(seed: str) -> Bodies:
    """Small requests alone."""
    return [], short(seed).body()


def two_megabytes(seed: str) -> Bodies:
    """A history that was never seen."""
    return [], long(seed, 1180, 2_000_000).body()


def two_megabytes_on(seed: str) -> Bodies:
    """The same, which goes on."""
    talk = long(seed, 1180, 2_000_000)
    first = talk.body()
    talk.turn(400)
    return [first], talk.body()


def result(seed: str) -> Bodies:
    """A file of a megabyte, in a conversation that goes on."""
    talk = Conversation(seed)
    first = talk.body()
    talk.turn(1_000_000)
    return [first], talk.body()


def one_word(seed: str) -> Bodies:
    """A megabyte without a space in it, which vocabularies take longest for."""
    talk = Conversation(seed)
    first = talk.body()
    talk.turn(0)
    word = "".join(random.Random(seed).choices(string.ascii_lowercase, k=1_000_000))
    talk.messages[-1] = talk.messages[-1].replace(b'"content": "1"', b'"content": "%b"' % word.encode())
    assert len(talk.messages[-1]) > len(word)
    return [first], talk.body()


def four_hundred(seed: str) -> Bodies:
    """A history of 400 messages of 2 KB that were never counted."""
    return [], long(seed, 400, 800_000).body()


CASES: dict[str, Callable[[str], Bodies]] = {
    "small ones alone": nothing,
    "2 MB, 1,180 messages, new": two_megabytes,
    "2 MB, 1,180 messages, goes on": two_megabytes_on,
    "a result of 1 MB": result,
    "a result of 1 MB, one word": one_word,
    "400 messages, first counted": four_hundred,
}


async def among(server: Server, large: bytes, seed: str) -> None:
    """The large one, while clients send small ones."""
    over = asyncio.Event()

    async def chatter(number: int) -> None:
        connection, count = Connection(server), 0
        while not over.is_set():
            await connection.ask(short(f"{seed}_{number}_{count}").body())
            count += 1
        connection.close()

    tasks = [asyncio.create_task(chatter(n)) for n in range(SMALL_CLIENTS)]
    await asyncio.sleep(BEFORE)
    connection = Connection(server)
    await connection.ask(large)
    await asyncio.sleep(BEFORE)
    over.set()
    await asyncio.gather(*tasks)
    connection.close()


async def alone(server: Server, bodies: Sequence[bytes]) -> None:
    """One after the other."""
    connection = Connection(server)
    for body in bodies:
        await connection.ask(body)
    connection.close()


def measure(servers: Sequence[Server], case: str, scope: Scope) -> list[Row]:
    """Milliseconds of the longest hold in each round."""
    clock: dict[str, list[float]] = {server.name: [] for server in servers}
    own: dict[str, list[float]] = {server.name: [] for server in servers}
    for number in range(scope.rounds):
        for server in turned(servers, number):
            first, large = CASES[case](f"l{number:02}{len(case)}")
            drive(lambda: alone(server, first))  # noqa: B023  run at once
            longest(server.pid, server.probe)
            drive(lambda: among(server, large, f"m{number}{len(case)}"))  # noqa: B023
            by_clock, of_own = longest(server.pid, server.probe)
            clock[server.name].append(by_clock)
            own[server.name].append(of_own)
    worst = {name: [max(values)] for name, values in own.items()}
    return [
        *compared({"case": f"{case}: by the clock", "what": "clock"}, "ms", clock),
        *compared({"case": f"{case}: by itself", "what": "own"}, "ms", own),
        *compared({"case": f"{case}: by itself, worst", "what": "worst"}, "ms", worst),
    ]


def run(scope: Scope) -> list[Row]:
    """All cases."""
    rows: list[Row] = []
    with upstream() as up, bare(up.port, probe=True) as simple, proxy(up.port, probe=True) as ours:
        drive(lambda: alone(ours, [long("warm", 100, 100_000).body()]))  # the vocabulary is loaded by the first
        for case in CASES:
            if scope.wants(case):
                rows += measure([simple, ours], case, scope)
    return rows
