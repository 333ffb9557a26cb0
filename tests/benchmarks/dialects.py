"""Processor time of each dialect, compared with the bare pass-through of the same bytes.

The cases are a conversation that goes on, short and long, and streams of 100 chunks; with one client and with sixteen.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from tests.benchmarks import streams
from tests.benchmarks.driver import UnexpectedAnswer
from tests.benchmarks.overhead import CLIENTS, LARGE, SMALL, Load, check_answers, make_load, run_load
from tests.benchmarks.rows import Row, compare_servers, rotate_order
from tests.benchmarks.scope import Scope
from tests.benchmarks.start_servers import BARE, Server, start_all
from tests.benchmarks.wire_formats import WIRE_FORMATS, WireFormat

KINDS = ((SMALL, "grows", 160), (LARGE, "grows", 48), (SMALL, "stream", 48))
"""Size of the request, kind, requests per round."""


def make_dialect_load(form: WireFormat, size: int, kind: str, clients: int, each: int, seed: str) -> Load:
    """Return the load of a round in a wire format. each: requests per client."""
    if kind == "stream":
        made = streams.make_bodies(size, 0, clients, each, seed)
        chat = Load([line[:1] for line in made], [line[1:] for line in made], [b""] * clients, 0)
    else:
        chat = make_load(kind, size, clients, each, seed)
    opening, lines = ([list(map(form.write, line)) for line in each] for each in (chat.opening, chat.lines))
    return replace(chat, opening=opening, lines=lines)


def measure(
    servers: Sequence[Server], name: str, size: int, kind: str, usual: int, total: int, scope: Scope
) -> list[Row]:
    """Measure microseconds of processor time per request, of each server."""
    form, clients = WIRE_FORMATS[name], scope.choose_count(usual, min(usual, 2))
    asked = [replace(server, path=form.path) for server in servers]
    each = scope.choose_count(max(2, total // clients), 2)
    found: dict[str, list[float]] = {server.name: [] for server in servers}
    remarks: dict[str, Counter[str]] = {server.name: Counter() for server in servers}
    for number in range(0 if scope.quick else -1, scope.rounds):  # the first one warms up
        seed = f"{name[0]}{size // 1000}{kind[0]}{clients}x{number + 1:02}"
        load = make_dialect_load(form, size, kind, clients, each if number >= 0 else 2, seed)
        for server in rotate_order(asked, number):
            spent, answers = run_load(server, load)
            if kind == "stream" and any(form.terminal not in answer.body for answer in answers):
                raise UnexpectedAnswer(f"{server.name} ended a stream early")
            if server.name != BARE:
                remarks[server.name] += check_answers(answers, load.sessions)
            if number >= 0:
                found[server.name].append(spent.total / load.requests * 1e6)
    case: Row = {"case": f"{name}, {size // 1000} KB, {kind}", "clients": clients, "size": size, "kind": kind}
    rows = compare_servers({**case, "requests": each * clients}, "us", found)
    count = each * clients * scope.rounds
    return [{**row, "told": dict(remarks[row["server"]]), "asked": count} for row in rows]


def run(scope: Scope) -> list[Row]:
    """Measure all cases, those of one kind next to each other."""
    rows: list[Row] = []
    with start_all() as (_, servers):
        for (size, kind, total), clients, name in itertools.product(KINDS, CLIENTS, WIRE_FORMATS):
            if scope.selects(f"{name}, {size // 1000} KB, {kind}, x{clients}"):
                rows += measure(servers, name, size, kind, clients, total, scope)
    return rows
