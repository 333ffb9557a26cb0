"""What a request costs as its history grows: a conversation of n messages goes on, two new ones with each request.

The proxy's cost above the bare one's is fitted by a line over the bytes of the history: its slope is what a KB of
history costs, in microseconds.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from statistics import linear_regression

from tests.benchmarks.driver import Answer, drive, send
from tests.benchmarks.meter import settled
from tests.benchmarks.overhead import passed
from tests.benchmarks.rows import Row, compared, figure, turned
from tests.benchmarks.scope import Scope
from tests.benchmarks.starting import BARE, PROXY, Server, field
from tests.benchmarks.traffic import ENDLESS, MODEL, growing, long

LENGTHS = (10, 40, 120, 400, 1_000, 4_000)
EACH = 1_700
"""Bytes of a message."""
REQUESTS = {10: 30, 40: 30, 120: 20, 400: 12, 1_000: 8, 4_000: 4}
OVER = ", over the window"
"""Of a model that has one: what no edit makes fit is planned anew with every request, and no upstream takes it."""


def asked(server: Server, bodies: Sequence[bytes]) -> list[Answer]:
    """One after the other, and what was answered."""
    return list(itertools.chain.from_iterable(drive(lambda: send(server, [bodies]))))


def measure(servers: Sequence[Server], messages: int, scope: Scope, model: str = ENDLESS) -> list[Row]:
    """Microseconds a request of each server. A long conversation goes on over the rounds, since its first request,
    which is a case of its own (`new` in the overhead), takes longer than all others together."""
    count = scope.few(REQUESTS[messages], 2)
    spent: dict[str, list[float]] = {server.name: [] for server in servers}
    told: Counter[str] = Counter()
    sizes: list[int] = []
    talk = long(f"g{messages}{model[:1]}", messages, messages * EACH)
    talk.model = model
    opening = list(growing(talk, 2, EACH))
    for server in servers:
        asked(server, opening)
    for number in range(scope.rounds):
        bodies = list(growing(talk, count, EACH))
        sizes += map(len, bodies)
        for server in turned(servers, number):
            before = settled(server.pid)
            answers = asked(server, bodies)
            spent[server.name].append((settled(server.pid) - before).all / count * 1e6)
            told += passed(answers, 1) if server.name != BARE else Counter()
    name = f"{messages:,} messages" + ("" if model == ENDLESS else OVER)
    case = {"case": name, "messages": messages if model == ENDLESS else 0, "kb": round(sum(sizes) / len(sizes) / 1000)}
    rows = compared({**case, "requests": count}, "us", spent)
    rows[-1] |= {"told": dict(told), "asked": count * scope.rounds}
    return rows


def slope(rows: Sequence[Row]) -> list[Row]:
    """What a KB of history costs each server, the proxy above the bare one's own: least squares over all lengths."""
    sizes = [row["kb"] for row in rows if row["server"] == BARE]
    mine = {name: [row["value"] for row in rows if row["server"] == name] for name in (BARE, PROXY)}
    found = {BARE: linear_regression(sizes, mine[BARE]).slope}
    above = [proxy - bare for proxy, bare in zip(mine[PROXY], mine[BARE], strict=True)]
    found[PROXY] = linear_regression(sizes, above).slope
    case = {"case": "a KB of history (proxy: above bare)", "messages": 0, "unit": "us/KB", "rounds": 1}
    return [{**case, "server": name, "value": figure(value)} for name, value in found.items()]


def run(scope: Scope) -> list[Row]:
    """All lengths, and the slope."""
    rows: list[Row] = []
    with field() as (_, servers):
        for server in servers:
            asked(server, list(growing(long("warm", 10, 10 * EACH), scope.few(100, 4), EACH)))
        for messages in LENGTHS[: scope.few(len(LENGTHS), 3)]:
            if scope.wants(f"{messages:,} messages"):
                rows += measure(servers, messages, scope)
        fitted = slope(rows) if len(rows) > 2 else []
        if scope.wants(f"{LENGTHS[-1]:,} messages{OVER}") and not scope.quick:
            rows += measure(servers, LENGTHS[-1], scope, MODEL)
    return rows + fitted
