"""Memory (RSS) of the idle process, of the process after some requests, and with 1,000 live sessions of 200 KB."""

from __future__ import annotations

from tests.benchmarks.driver import send_all
from tests.benchmarks.meter import read_memory, wait_until_idle
from tests.benchmarks.rows import Row
from tests.benchmarks.scope import Scope
from tests.benchmarks.start_servers import BARE, Server, start_all
from tests.benchmarks.traffic import MODEL, iter_growing, make_long, make_short

SESSIONS = 1_000
SIZE, MESSAGES = 200_000, 118
CLIENTS = 2
"""Clients that begin sessions at once. Each sends one more request of its session."""
MODEL_WITHOUT_VOCABULARY = b'"model": "claude-haiku-5-5"'
"""A model whose vocabulary is not public, so its tokens are estimated."""


def make_row(server: Server, case: str, idle: int = 0) -> Row:
    """Return the row of the memory that a server uses now, in megabytes. idle: bytes that are subtracted."""
    now, most = read_memory(server.pid)
    known = {"case": case, "server": server.name, "unit": "MB", "rounds": 1}
    value = (now - idle) / 1e6
    return {
        **known,
        "value": round(value, 1),
        "q1": round(value, 1),
        "q3": round(value, 1),
        "most": round(most / 1e6, 1),
    }


def run(scope: Scope) -> list[Row]:
    """Measure all cases in this order, in one process of each server."""
    with start_all() as (_, servers):
        rows = [make_row(server, "idle") for server in servers]
        idle = {server.name: read_memory(server.pid)[0] for server in servers}
        for server in servers:
            body = make_short("first").body()
            other = body.replace(f'"model": "{MODEL}"'.encode(), MODEL_WITHOUT_VOCABULARY)
            send_all(server, [[other] * 20])
            rows.append(make_row(server, "after 20 requests, no vocabulary needed"))
            send_all(server, [[body] * 20])
            wait_until_idle(server.pid)
            rows.append(make_row(server, "after 20 of a model with a vocabulary"))
        used = {server.name: read_memory(server.pid)[0] for server in servers}
        count = scope.choose_count(SESSIONS, 4)
        scope.report(f"{count:,} sessions of {SIZE // 1000} KB")
        for at in range(0, count, CLIENTS * 10):
            names = range(at, min(at + CLIENTS * 10, count))
            bodies = [list(iter_growing(make_long(f"live_{n}", MESSAGES, SIZE), 2, 400)) for n in names]
            lines = [[body for talk in bodies[n::CLIENTS] for body in talk] for n in range(CLIENTS)]
            for server in servers:
                send_all(server, lines)
        for server in servers:
            wait_until_idle(server.pid)
            case = f"{count:,} live sessions of {SIZE // 1000} KB"
            rows.append(make_row(server, case))
            case += ": above"
            rows.append(make_row(server, f"{case} idle", idle[server.name]))
            rows.append(make_row(server, f"{case} a used one", used[server.name]))
    base = {row["case"]: row["value"] for row in rows if row["server"] == BARE}
    for one in rows:
        if base[one["case"]] > 0 and "above" not in one["case"]:
            one["ratio"] = one["ratio_q1"] = one["ratio_q3"] = round(one["value"] / base[one["case"]], 3)
    return rows
