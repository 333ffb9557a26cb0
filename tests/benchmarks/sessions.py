"""What a request costs with ever more conversations live: each request goes on with one of them, drawn at random."""

from __future__ import annotations

import random
from collections import Counter

from tests.benchmarks.driver import drive, send
from tests.benchmarks.meter import settled
from tests.benchmarks.overhead import passed
from tests.benchmarks.rows import Row, compared, turned
from tests.benchmarks.scope import Scope
from tests.benchmarks.starting import BARE, Server, field
from tests.benchmarks.traffic import Conversation

LIVE = (10, 100, 1_000, 10_000)
REQUESTS = 80
FILLING = 8
"""Clients that begin conversations."""


def begin(server: Server, talks: list[Conversation]) -> None:
    """Each conversation's first request."""
    lines = [[talk.body() for talk in talks[n::FILLING]] for n in range(FILLING)]
    drive(lambda: send(server, lines))
    settled(server.pid)
    for talk in talks:
        talk.turn(200)


def run(scope: Scope) -> list[Row]:
    """From few to many, on the same proxy."""
    rows: list[Row] = []
    chance = random.Random(7)
    talks: list[Conversation] = []
    count = scope.few(REQUESTS, 4)
    with field() as (_, servers):
        for server in servers:
            begin(server, [Conversation(f"warm_{n}", prompt=400) for n in range(scope.few(100, 2))])
        for live in LIVE[: scope.few(len(LIVE), 2)]:
            if not scope.wants(f"{live:,} live"):
                continue
            fresh = [Conversation(f"live_{n}", prompt=400) for n in range(len(talks), live)]
            begin(servers[-1], fresh)
            talks += fresh
            spent: dict[str, list[float]] = {server.name: [] for server in servers}
            told: Counter[str] = Counter()
            for number in range(scope.rounds):
                bodies = []
                for talk in chance.choices(talks, k=count):
                    bodies.append(talk.body())
                    talk.turn(200)
                for server in turned(servers, number):
                    before = settled(server.pid)
                    (answers,) = drive(lambda: send(server, [bodies]))  # noqa: B023  run at once
                    spent[server.name].append((settled(server.pid) - before).all / count * 1e6)
                    told += passed(answers) if server.name != BARE else Counter()
            rows += compared({"case": f"{live:,} live", "live": live, "requests": count}, "us", spent)
            rows[-1] |= {"told": dict(told), "asked": count * scope.rounds}
    return rows
