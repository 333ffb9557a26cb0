"""Processor time per request: of 1 KB and 218 KB, with one client and sixteen, as an agent and as wrk send them.

grows        each request continues a conversation, with one more call and its result
paced        as `grows`, but the model takes 10 ms for an answer, and the agent 10 ms for the next request
new          each request begins a conversation that the proxy has not seen
same         the same body again and again, as load generators send it; the proxy sees a new conversation each time
same, named  as `same`, with the name of a session in a header
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tests.benchmarks.driver import Answer, UnexpectedAnswer, send_all
from tests.benchmarks.meter import ProcessorTime, wait_until_idle
from tests.benchmarks.rows import Row, compare_servers, rotate_order, round_figure
from tests.benchmarks.scope import Scope
from tests.benchmarks.start_servers import BARE, Server, start_all
from tests.benchmarks.traffic import (
    iter_growing,
    iter_new_conversations,
    iter_short_conversations,
    make_long,
    make_short,
)

SMALL, LARGE = 1_000, 218_000
MESSAGES = 120
"""Messages of a large request."""
KINDS = ("grows", "paced", "new", "same", "same, named")
GROWING_KINDS = ("grows", "paced")
CLIENTS = (1, 16)
PACE_MS = 10
"""Milliseconds until an answer of the upstream and until the next request of a client, in `paced`. A server that waits
sleeps, and is slower when it wakes: its caches hold something else then. The time of real models is longer."""


@dataclass(frozen=True, slots=True)
class Load:
    """The requests of one round: a line of bodies per client. opening: those that are sent before the measurement."""

    opening: list[list[bytes]]
    lines: list[list[bytes]]
    headers: list[bytes]
    sessions: int
    """Conversations that the proxy must recognise in the measured requests; 0 if their number is not checked."""
    pause: float = 0.0
    """Seconds from an answer to the client's next request."""

    @property
    def requests(self) -> int:
        return sum(map(len, self.lines))


def make_load(kind: str, size: int, clients: int, each: int, seed: str) -> Load:
    """Return the load of one round. each: requests per client."""
    names = [f"{seed}_{n}" for n in range(clients)]
    messages = 2 if size == SMALL else MESSAGES
    opening: list[list[bytes]] = [[] for _ in names]
    headers = [b""] * clients
    sessions = 0
    gap = PACE_MS if kind == "paced" else 0
    if kind in GROWING_KINDS and size == SMALL:
        lines = [list(iter_short_conversations(name, each, gap)) for name in names]
        sessions = clients * -(-each // 4)
    elif kind in GROWING_KINDS:
        lines = [list(iter_growing(make_long(name, messages, size, gap=gap), each + 1, 400)) for name in names]
        opening = [line[:1] for line in lines]
        lines = [line[1:] for line in lines]
        sessions = clients
    elif kind == "new":
        lines = [list(iter_new_conversations(name, each, messages, size)) for name in names]
        sessions = clients * each
    else:
        one = make_short(seed).body() if size == SMALL else make_long(seed, messages, size).body()
        lines = [[one] * each for _ in names]
        if kind == "same, named":
            headers = [f"x-context-session: {name}\r\n".encode() for name in names]
            opening, sessions = [[one] for _ in names], clients
    return Load(opening, lines, headers, sessions, gap / 1000)


def run_load(server: Server, load: Load) -> tuple[ProcessorTime, list[Answer]]:
    """Send the load; return the processor time that the server used, and its answers."""
    send_all(server, load.opening, load.headers)
    before = wait_until_idle(server.pid)
    answers = send_all(server, load.lines, load.headers, pause=load.pause)
    spent = wait_until_idle(server.pid) - before
    return spent, [answer for line in answers for answer in line]


def check_answers(answers: Sequence[Answer], sessions: int = 0) -> Counter[str]:
    """Count the answers that the proxy has marked, by mark: a fallback with its reason, or an answer not yet on disk.

    Raises UnexpectedAnswer if the proxy has failed, or if it did not recognise the conversations: then the figures
    would be those of other work.
    """
    named = [name for answer in answers if (name := answer.header(b"x-context-session"))]
    seen = set(named)
    # The answer to a request whose plan took too long names no session.
    if sessions and (len(seen) > sessions or (len(seen) < sessions and len(named) == len(answers))):
        raise UnexpectedAnswer(f"{len(seen)} conversations were seen where {sessions} are")
    remarks = [answer.header(b"x-context-fallback") for answer in answers]
    if b"error" in remarks:
        raise UnexpectedAnswer("a fault of the proxy's own: see its log")
    remarks += [answer.header(b"x-context-persist") for answer in answers]
    return Counter(each.decode() for each in remarks if each)


def measure(servers: Sequence[Server], kind: str, size: int, clients: int, scope: Scope) -> list[Row]:
    """Measure microseconds of processor time per request, of each server."""
    total = 160 if size == SMALL and kind != "paced" else 48 if kind in GROWING_KINDS else 24
    each = scope.choose_count(max(2, total // clients), 2)
    found: dict[str, list[float]] = {server.name: [] for server in servers}
    main: dict[str, list[float]] = {server.name: [] for server in servers}
    remarks: dict[str, Counter[str]] = {server.name: Counter() for server in servers}
    for number in range(0 if scope.quick else -1, scope.rounds):  # the first one warms up
        load = make_load(kind, size, clients, each if number >= 0 else 2, f"{kind[0]}{clients}{number + 1:02}")
        for server in rotate_order(servers, number):
            spent, answers = run_load(server, load)
            if server.name != BARE:
                remarks[server.name] += check_answers(answers, load.sessions)
            if number >= 0:
                found[server.name].append(spent.total / load.requests * 1e6)
                main[server.name].append(spent.main / load.requests * 1e6)
    asked = each * clients * scope.rounds + (0 if scope.quick else 2 * clients)
    case: Row = {"case": f"{size // 1000} KB, {kind}", "clients": clients, "size": size, "kind": kind}
    rows = compare_servers({**case, "requests": each * clients}, "us", found)
    mains = compare_servers(case, "us", main)
    return [
        {**row, "main": round_figure(m["value"]), "told": dict(remarks[row["server"]]), "asked": asked}
        for row, m in zip(rows, mains, strict=True)
    ]


def run(scope: Scope) -> list[Row]:
    """Measure all cases."""
    rows: list[Row] = []
    with start_all(postgres=not scope.quick) as (_, servers):
        for size, kind, usual in itertools.product((SMALL, LARGE), KINDS, CLIENTS):
            clients = scope.choose_count(usual, min(usual, 2))
            if scope.selects(f"{size // 1000} KB, {kind}, x{clients}"):
                rows += measure(servers, kind, size, clients, scope)
    return rows
