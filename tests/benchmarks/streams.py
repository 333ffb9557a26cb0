"""Streams of 100 chunks: processor time a stream, and how much later the first token comes.

    fast    the upstream sends as fast as it can
    spaced  5 ms between two chunks, as models do; the beginnings of streams are spread, as clients' are

Time to first token is by the clock: of a stream's request until its first event, the upstream's own taken off.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median

from tests.benchmarks.driver import Answer, Broken, drive, send
from tests.benchmarks.meter import settled
from tests.benchmarks.overhead import LARGE, MESSAGES, SMALL, passed
from tests.benchmarks.rows import Row, compared, percentile, turned
from tests.benchmarks.scope import Scope
from tests.benchmarks.servers import CHUNKS
from tests.benchmarks.starting import BARE, DIRECT, Server, field
from tests.benchmarks.traffic import growing, long, short

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
"""Size of the request, pace, streams at once, streams a round."""


def lines(size: int, gap: int, clients: int, each: int, seed: str) -> list[list[bytes]]:
    """A new conversation with each stream where it is small, one that grows where it is large: a line a client."""
    made = []
    for n in range(clients):
        name = f"{seed}_{n}"
        if size == SMALL:
            made.append([short(f"{name}_{k}", stream=True, gap=gap).body() for k in range(each + 1)])
        else:
            talk = long(name, MESSAGES, size, stream=True, gap=gap)
            made.append(list(growing(talk, each + 1, 400)))
    return made


def one_round(
    server: Server, sent: Sequence[Sequence[bytes]], gap: int, found: dict[str, list[float]]
) -> tuple[list[float], list[Answer]]:
    """(seconds to each stream's first event, the answers); adds the milliseconds of processor time a stream."""
    opening, rest = [line[:1] for line in sent], [line[1:] for line in sent]
    drive(lambda: send(server, opening))
    before = settled(server.pid)
    # The first of each line is known to take about so long: that is over which all lines' beginnings are spread.
    answered = drive(lambda: send(server, rest, over=gap * CHUNKS / 1000))
    answers = list(itertools.chain.from_iterable(answered))
    found[server.name].append((settled(server.pid) - before).all / len(answers) * 1000)
    if any(b"[DONE]" not in answer.body for answer in answers):
        raise Broken(f"{server.name} ended a stream early")
    return [answer.first for answer in answers], answers


def measure(servers: Sequence[Server], case: tuple[int, str, int, int], scope: Scope) -> list[Row]:
    """Milliseconds of processor time a stream, and those until the first event beside the upstream's own."""
    size, pace, usual, streams = case
    clients, gap = scope.few(usual, min(usual, 2)), scope.few(PACES[pace], min(PACES[pace], 1))
    each = scope.few(max(1, streams // clients), 1)
    spent: dict[str, list[float]] = {server.name: [] for server in servers}
    first: dict[str, list[list[float]]] = {server.name: [] for server in servers}
    told: Counter[str] = Counter()
    for number in range(-1 if clients > 1 and not scope.quick else 0, scope.rounds):
        sent = lines(size, gap, clients, each, f"s{size // 1000}{pace[0]}{clients}x{number + 1}")
        for server in turned(servers, number):
            took, answers = one_round(server, sent, gap, spent)
            first[server.name].append(took)
            told = passed(answers) if server.name not in (BARE, DIRECT) else told
    name = f"{size // 1000} KB, {pace}"
    known: Row = {"clients": clients, "size": size, "pace": pace}
    spent = {name: values[-scope.rounds :] for name, values in spent.items() if name != DIRECT}
    rows = compared({**known, "case": name, "what": "processor", "streams": each * clients}, "ms", spent)
    rows[-1] |= {"told": dict(told), "asked": each * clients}
    first = {name: values[-scope.rounds :] for name, values in first.items()}
    return rows + (added(name, known, first) if pace == "spaced" and clients > 1 else [])


def added(name: str, known: Row, first: Mapping[str, Sequence[Sequence[float]]]) -> list[Row]:
    """Milliseconds that each server adds to the time to the first event: at the median, and for the slowest in a
    hundred, of all rounds."""
    rows = []
    middles: dict[str, list[float]] = {}
    ends: dict[str, list[float]] = {}
    direct = first[DIRECT]
    for server in (name for name in first if name != DIRECT):
        middles[server] = [(median(a) - median(b)) * 1000 for a, b in zip(first[server], direct, strict=True)]
        mine, own = (list(itertools.chain.from_iterable(values)) for values in (first[server], direct))
        ends[server] = [(percentile(mine, 0.99) - percentile(own, 0.99)) * 1000]
    for what, values in (("p50", middles), ("p99", ends)):
        rows += compared({**known, "case": f"{name}: first token, {what}", "what": what}, "ms", values)
    return rows


def run(scope: Scope) -> list[Row]:
    """All cases."""
    rows: list[Row] = []
    with field() as (up, servers):
        for case in CASES:
            if scope.wants(f"{case[0] // 1000} KB, {case[1]}, x{case[2]}"):
                rows += measure([up, *servers], case, scope)
    return rows
