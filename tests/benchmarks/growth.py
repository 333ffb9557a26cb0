"""Processor time of a request as its history grows: each request of a conversation of n messages has two new ones.

The time of the proxy, less that of the bare pass-through, is fitted by a line over the bytes of the history. The slope
is the cost of a KB of history, in microseconds.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from statistics import linear_regression

from tests.benchmarks.driver import Answer, send_all
from tests.benchmarks.meter import wait_until_idle
from tests.benchmarks.overhead import check_answers
from tests.benchmarks.rows import Row, compare_servers, rotate_order, round_figure
from tests.benchmarks.scope import Scope
from tests.benchmarks.start_servers import BARE, PROXY, Server, start_all
from tests.benchmarks.traffic import MODEL, MODEL_WITHOUT_WINDOW, iter_growing, make_long

LENGTHS = (10, 40, 120, 400, 1_000, 4_000)
MESSAGE_BYTES = 1_700
"""Bytes of a message."""
REQUESTS = {10: 30, 40: 30, 120: 20, 400: 12, 1_000: 8, 4_000: 4}
OVER_WINDOW = ", over the window"
"""For a model with a window. A prompt that no edit makes fit is planned again with each request."""


def send_in_order(server: Server, bodies: Sequence[bytes]) -> list[Answer]:
    """Send the bodies one after the other; return the answers."""
    return list(itertools.chain.from_iterable(send_all(server, [bodies])))


def measure(servers: Sequence[Server], messages: int, scope: Scope, model: str = MODEL_WITHOUT_WINDOW) -> list[Row]:
    """Measure microseconds per request, of each server.

    All rounds go on with one conversation: the first request of a long one takes longer than all others together, and
    is a case of its own (`new` in `overhead`).
    """
    count = scope.choose_count(REQUESTS[messages], 2)
    spent: dict[str, list[float]] = {server.name: [] for server in servers}
    remarks: Counter[str] = Counter()
    sizes: list[int] = []
    talk = make_long(f"g{messages}{model[:1]}", messages, messages * MESSAGE_BYTES)
    talk.model = model
    opening = list(iter_growing(talk, 2, MESSAGE_BYTES))
    for server in servers:
        send_in_order(server, opening)
    for number in range(scope.rounds):
        bodies = list(iter_growing(talk, count, MESSAGE_BYTES))
        sizes += map(len, bodies)
        for server in rotate_order(servers, number):
            before = wait_until_idle(server.pid)
            answers = send_in_order(server, bodies)
            spent[server.name].append((wait_until_idle(server.pid) - before).total / count * 1e6)
            remarks += check_answers(answers, 1) if server.name != BARE else Counter()
    name = f"{messages:,} messages" + ("" if model == MODEL_WITHOUT_WINDOW else OVER_WINDOW)
    case = {
        "case": name,
        "messages": messages if model == MODEL_WITHOUT_WINDOW else 0,
        "kb": round(sum(sizes) / len(sizes) / 1000),
    }
    rows = compare_servers({**case, "requests": count}, "us", spent)
    rows[-1] |= {"told": dict(remarks), "asked": count * scope.rounds}
    return rows


def fit_slope(rows: Sequence[Row]) -> list[Row]:
    """Fit the cost of a KB of history by least squares: of the bare pass-through, and of the proxy above that."""
    sizes = [row["kb"] for row in rows if row["server"] == BARE]
    mine = {name: [row["value"] for row in rows if row["server"] == name] for name in (BARE, PROXY)}
    found = {BARE: linear_regression(sizes, mine[BARE]).slope}
    above = [proxy - bare for proxy, bare in zip(mine[PROXY], mine[BARE], strict=True)]
    found[PROXY] = linear_regression(sizes, above).slope
    case = {"case": "a KB of history (proxy: above bare)", "messages": 0, "unit": "us/KB", "rounds": 1}
    return [{**case, "server": name, "value": round_figure(value)} for name, value in found.items()]


def run(scope: Scope) -> list[Row]:
    """Measure all lengths, and fit the slope."""
    rows: list[Row] = []
    with start_all() as (_, servers):
        for server in servers:
            send_in_order(
                server,
                list(
                    iter_growing(make_long("warm", 10, 10 * MESSAGE_BYTES), scope.choose_count(100, 4), MESSAGE_BYTES)
                ),
            )
        for messages in LENGTHS[: scope.choose_count(len(LENGTHS), 3)]:
            if scope.selects(f"{messages:,} messages"):
                rows += measure(servers, messages, scope)
        fitted = fit_slope(rows) if len(rows) > 2 else []
        if scope.selects(f"{LENGTHS[-1]:,} messages{OVER_WINDOW}") and not scope.quick:
            rows += measure(servers, LENGTHS[-1], scope, MODEL)
    return rows + fitted
