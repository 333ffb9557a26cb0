"""Processor time of a request by number of live conversations. Each request continues one of them, drawn at random."""

from __future__ import annotations

import random
from collections import Counter

from tests.benchmarks.driver import send_all
from tests.benchmarks.meter import wait_until_idle
from tests.benchmarks.overhead import check_answers
from tests.benchmarks.rows import Row, compare_servers, rotate_order
from tests.benchmarks.scope import Scope
from tests.benchmarks.start_servers import BARE, Server, start_all
from tests.benchmarks.traffic import Conversation

LIVE = (10, 100, 1_000, 10_000)
REQUESTS = 80
FILLING_CLIENTS = 8
"""Clients that begin the conversations."""


def begin_conversations(server: Server, talks: list[Conversation]) -> None:
    """Send the first request of each conversation."""
    lines = [[talk.body() for talk in talks[n::FILLING_CLIENTS]] for n in range(FILLING_CLIENTS)]
    send_all(server, lines)
    wait_until_idle(server.pid)
    for talk in talks:
        talk.add_turn(200)


def run(scope: Scope) -> list[Row]:
    """Measure from few live conversations to many, on the same proxy."""
    rows: list[Row] = []
    chance = random.Random(7)
    talks: list[Conversation] = []
    count = scope.choose_count(REQUESTS, 4)
    with start_all() as (_, servers):
        for server in servers:
            begin_conversations(
                server, [Conversation(f"warm_{n}", prompt=400) for n in range(scope.choose_count(100, 2))]
            )
        for live in LIVE[: scope.choose_count(len(LIVE), 2)]:
            if not scope.selects(f"{live:,} live"):
                continue
            fresh = [Conversation(f"live_{n}", prompt=400) for n in range(len(talks), live)]
            begin_conversations(servers[-1], fresh)
            talks += fresh
            spent: dict[str, list[float]] = {server.name: [] for server in servers}
            remarks: Counter[str] = Counter()
            for number in range(scope.rounds):
                bodies = []
                for talk in chance.choices(talks, k=count):
                    bodies.append(talk.body())
                    talk.add_turn(200)
                for server in rotate_order(servers, number):
                    before = wait_until_idle(server.pid)
                    (answers,) = send_all(server, [bodies])
                    spent[server.name].append((wait_until_idle(server.pid) - before).total / count * 1e6)
                    remarks += check_answers(answers) if server.name != BARE else Counter()
            rows += compare_servers({"case": f"{live:,} live", "live": live, "requests": count}, "us", spent)
            rows[-1] |= {"told": dict(remarks), "asked": count * scope.rounds}
    return rows
