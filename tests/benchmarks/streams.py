"""Streams of 100 chunks: processor time per stream, and the delay of the first token.

    fast    the upstream sends as fast as it can
    spaced  5 ms between two chunks, about as a model sends them; the streams do not all begin at once

The delay of the first token is measured by the clock, from the request to the first event. The time of the upstream
itself is subtracted.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median

from tests.benchmarks.driver import Answer, UnexpectedAnswer, send_all
from tests.benchmarks.meter import wait_until_idle
from tests.benchmarks.overhead import LARGE, MESSAGES, SMALL, check_answers
from tests.benchmarks.rows import Row, compare_servers, find_percentile, rotate_order
from tests.benchmarks.scope import Scope
from tests.benchmarks.servers import CHUNKS
from tests.benchmarks.start_servers import BARE, DIRECT, Server, start_all
from tests.benchmarks.traffic import iter_growing, make_long, make_short

PACES = {"fast": 0, "spaced": 5}
"""Milliseconds between two chunks."""
CASES = (
    (SMALL, "fast", 1, 24),
    (SMALL, "fast", 16, 48),
    (SMALL, "spaced", 1, 2),
    (SMALL, "spaced", 16, 64),
    (LARGE, "fast", 1, 16),
    (LARGE, "spaced", 16, 64),
)
"""Size of the request, pace, streams at once, streams per round."""


def make_bodies(size: int, gap: int, clients: int, each: int, seed: str) -> list[list[bytes]]:
    """Return a line of bodies per client: a new conversation per stream if small, one growing conversation if large."""
    made = []
    for n in range(clients):
        name = f"{seed}_{n}"
        if size == SMALL:
            made.append([make_short(f"{name}_{k}", stream=True, gap=gap).body() for k in range(each + 1)])
        else:
            talk = make_long(name, MESSAGES, size, stream=True, gap=gap)
            made.append(list(iter_growing(talk, each + 1, 400)))
    return made


def run_round(
    server: Server, sent: Sequence[Sequence[bytes]], gap: int, found: dict[str, list[float]]
) -> tuple[list[float], list[Answer]]:
    """Run one round; return (seconds until the first event of each stream, the answers).

    found: gets the milliseconds of processor time per stream, by server.
    """
    opening, rest = [line[:1] for line in sent], [line[1:] for line in sent]
    send_all(server, opening)
    before = wait_until_idle(server.pid)
    # A stream takes about this long: the beginnings of all lines are spread over this time.
    answered = send_all(server, rest, over=gap * CHUNKS / 1000)
    answers = list(itertools.chain.from_iterable(answered))
    found[server.name].append((wait_until_idle(server.pid) - before).total / len(answers) * 1000)
    if any(b"[DONE]" not in answer.body for answer in answers):
        raise UnexpectedAnswer(f"{server.name} ended a stream early")
    return [answer.first for answer in answers], answers


def measure(servers: Sequence[Server], case: tuple[int, str, int, int], scope: Scope) -> list[Row]:
    """Measure milliseconds of processor time per stream; for several spaced streams also until the first token."""
    size, pace, usual, streams = case
    clients, gap = scope.choose_count(usual, min(usual, 2)), scope.choose_count(PACES[pace], min(PACES[pace], 1))
    each = scope.choose_count(max(1, streams // clients), 1)
    spent: dict[str, list[float]] = {server.name: [] for server in servers}
    first: dict[str, list[list[float]]] = {server.name: [] for server in servers}
    remarks: Counter[str] = Counter()
    asked = 0
    for number in range(-1 if clients > 1 and not scope.quick else 0, scope.rounds):
        sent = make_bodies(size, gap, clients, each, f"s{size // 1000}{pace[0]}{clients}x{number + 1}")
        for server in rotate_order(servers, number):
            took, answers = run_round(server, sent, gap, spent)
            first[server.name].append(took)
            if server.name not in (BARE, DIRECT):
                remarks += check_answers(answers)
                asked += len(answers)
    name = f"{size // 1000} KB, {pace}"
    known: Row = {"clients": clients, "size": size, "pace": pace}
    spent = {name: values[-scope.rounds :] for name, values in spent.items() if name != DIRECT}
    rows = compare_servers({**known, "case": name, "what": "processor", "streams": each * clients}, "ms", spent)
    rows[-1] |= {"told": dict(remarks), "asked": asked}
    first = {name: values[-scope.rounds :] for name, values in first.items()}
    return rows + (compare_first_tokens(name, known, first) if pace == "spaced" and clients > 1 else [])


def compare_first_tokens(name: str, known: Row, first: Mapping[str, Sequence[Sequence[float]]]) -> list[Row]:
    """Return the milliseconds that each server adds to the time to the first event: at the median, and at the 99th
    percentile of all rounds."""
    rows = []
    middles: dict[str, list[float]] = {}
    ends: dict[str, list[float]] = {}
    direct = first[DIRECT]
    for server in (name for name in first if name != DIRECT):
        middles[server] = [(median(a) - median(b)) * 1000 for a, b in zip(first[server], direct, strict=True)]
        mine, own = (list(itertools.chain.from_iterable(values)) for values in (first[server], direct))
        ends[server] = [(find_percentile(mine, 0.99) - find_percentile(own, 0.99)) * 1000]
    for what, values in (("p50", middles), ("p99", ends)):
        rows += compare_servers({**known, "case": f"{name}: first token, {what}", "what": what}, "ms", values)
    return rows


def run(scope: Scope) -> list[Row]:
    """Measure all cases."""
    rows: list[Row] = []
    with start_all() as (up, servers):
        for case in CASES:
            if scope.selects(f"{case[0] // 1000} KB, {case[1]}, x{case[2]}"):
                rows += measure([up, *servers], case, scope)
    return rows
