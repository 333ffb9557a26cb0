"""What each dialect costs, beside the bare pass-through of the same bytes: a conversation that goes on, short and long,
and streams of 100 chunks, one client and sixteen at once."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from tests.benchmarks import streams
from tests.benchmarks.driver import Broken
from tests.benchmarks.overhead import CLIENTS, LARGE, SMALL, Load, load, passed, ran
from tests.benchmarks.rows import Row, compared, turned
from tests.benchmarks.scope import Scope
from tests.benchmarks.starting import BARE, Server, field
from tests.benchmarks.wire_formats import WIRE_FORMATS, WireFormat

KINDS = ((SMALL, "grows", 160), (LARGE, "grows", 48), (SMALL, "stream", 48))
"""Size of the request, kind, requests a round."""


def written(form: WireFormat, size: int, kind: str, clients: int, each: int, seed: str) -> Load:
    """The load in a wire format. each: requests a client."""
    if kind == "stream":
        made = streams.lines(size, 0, clients, each, seed)
        chat = Load([line[:1] for line in made], [line[1:] for line in made], [b""] * clients, 0)
    else:
        chat = load(kind, size, clients, each, seed)
    opening, lines = ([list(map(form.write, line)) for line in each] for each in (chat.opening, chat.lines))
    return replace(chat, opening=opening, lines=lines)


def measure(
    servers: Sequence[Server], name: str, size: int, kind: str, usual: int, total: int, scope: Scope
) -> list[Row]:
    """Microseconds a request of each server."""
    form, clients = WIRE_FORMATS[name], scope.few(usual, min(usual, 2))
    asked = [replace(server, path=form.path) for server in servers]
    each = scope.few(max(2, total // clients), 2)
    found: dict[str, list[float]] = {server.name: [] for server in servers}
    told: dict[str, Counter[str]] = {server.name: Counter() for server in servers}
    for number in range(0 if scope.quick else -1, scope.rounds):  # the first one warms up
        seed = f"{name[0]}{size // 1000}{kind[0]}{clients}x{number + 1:02}"
        this = written(form, size, kind, clients, each if number >= 0 else 2, seed)
        for server in turned(asked, number):
            spent, answers = ran(server, this)
            if kind == "stream" and any(form.terminal not in answer.body for answer in answers):
                raise Broken(f"{server.name} ended a stream early")
            if server.name != BARE:
                told[server.name] += passed(answers, this.sessions)
            if number >= 0:
                found[server.name].append(spent.all / this.requests * 1e6)
    case: Row = {"case": f"{name}, {size // 1000} KB, {kind}", "clients": clients, "size": size, "kind": kind}
    rows = compared({**case, "requests": each * clients}, "us", found)
    count = each * clients * scope.rounds
    return [{**row, "told": dict(told[row["server"]]), "asked": count} for row in rows]


def run(scope: Scope) -> list[Row]:
    """All cases, those of one kind side by side."""
    rows: list[Row] = []
    with field() as (_, servers):
        for (size, kind, total), clients, name in itertools.product(KINDS, CLIENTS, WIRE_FORMATS):
            if scope.wants(f"{name}, {size // 1000} KB, {kind}, x{clients}"):
                rows += measure(servers, name, size, kind, clients, total, scope)
    return rows
