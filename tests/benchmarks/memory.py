"""What is in memory: of the idle process, once it has been used, and with 1,000 live sessions of 200 KB."""

from __future__ import annotations

from tests.benchmarks.driver import drive, send
from tests.benchmarks.meter import memory, settled
from tests.benchmarks.rows import Row
from tests.benchmarks.scope import Scope
from tests.benchmarks.starting import BARE, Server, field
from tests.benchmarks.traffic import MODEL, growing, long, short

SESSIONS = 1_000
SIZE, MESSAGES = 200_000, 118
CLIENTS = 2
"""Who begin sessions at once; each goes on with its session once."""
UNKNOWN = b'"model": "claude-haiku-5-5"'
"""One whose vocabulary is not public: its tokens are estimated."""


def row(server: Server, case: str, idle: int = 0) -> Row:
    """Megabytes now. idle: bytes that are taken off."""
    now, most = memory(server.pid)
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
    """In this order, in one process."""
    with field() as (_, servers):
        rows = [row(server, "idle") for server in servers]
        idle = {server.name: memory(server.pid)[0] for server in servers}
        for server in servers:
            body = short("first").body()
            drive(lambda: send(server, [[body.replace(f'"model": "{MODEL}"'.encode(), UNKNOWN)] * 20]))  # noqa: B023
            rows.append(row(server, "after 20 requests, no vocabulary needed"))
            drive(lambda: send(server, [[body] * 20]))  # noqa: B023
            settled(server.pid)
            rows.append(row(server, "after 20 of a model with a vocabulary"))
        used = {server.name: memory(server.pid)[0] for server in servers}
        count = scope.few(SESSIONS, 4)
        scope.say(f"{count:,} sessions of {SIZE // 1000} KB")
        for at in range(0, count, CLIENTS * 10):
            names = range(at, min(at + CLIENTS * 10, count))
            bodies = [list(growing(long(f"live_{n}", MESSAGES, SIZE), 2, 400)) for n in names]
            lines = [[body for talk in bodies[n::CLIENTS] for body in talk] for n in range(CLIENTS)]
            for server in servers:
                drive(lambda: send(server, lines))  # noqa: B023
        for server in servers:
            settled(server.pid)
            told = f"{count:,} live sessions of {SIZE // 1000} KB"
            rows.append(row(server, told))
            told += ": above"
            rows.append(row(server, f"{told} idle", idle[server.name]))
            rows.append(row(server, f"{told} a used one", used[server.name]))
    base = {row["case"]: row["value"] for row in rows if row["server"] == BARE}
    for one in rows:
        if base[one["case"]] > 0 and "above" not in one["case"]:
            one["ratio"] = one["ratio_q1"] = one["ratio_q3"] = round(one["value"] / base[one["case"]], 3)
    return rows
