"""Processor time a request: 1 KB and 218 KB, one client and sixteen at once, as an agent sends them and as wrk does.

grows       a conversation that goes on, with a call and its result more in every request
new         a conversation that was never seen, with every request
same        the same body again and again, as load generators send it: to the proxy, each is a conversation of its own
same, named the same with a session's name in a header
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tests.benchmarks.driver import Answer, Broken, drive, send
from tests.benchmarks.meter import Used, settled
from tests.benchmarks.rows import Row, compared, figure, turned
from tests.benchmarks.scope import Scope
from tests.benchmarks.starting import BARE, Server, field
from tests.benchmarks.traffic import growing, long, news, short, talks

SMALL, LARGE = 1_000, 218_000
MESSAGES = 120
"""Of the large one."""
KINDS = ("grows", "new", "same", "same, named")
CLIENTS = (1, 16)


@dataclass(frozen=True, slots=True)
class Load:
    """What one round sends: a line a client. opening: what is sent before anything is measured."""

    opening: list[list[bytes]]
    lines: list[list[bytes]]
    headers: list[bytes]
    sessions: int
    """As how many conversations the proxy should see what is measured; 0: however many it likes."""

    @property
    def requests(self) -> int:
        return sum(map(len, self.lines))


def load(kind: str, size: int, clients: int, each: int, seed: str) -> Load:
    """each: requests a client."""
    names = [f"{seed}_{n}" for n in range(clients)]
    messages = 2 if size == SMALL else MESSAGES
    opening: list[list[bytes]] = [[] for _ in names]
    headers = [b""] * clients
    sessions = 0
    if kind == "grows" and size == SMALL:
        lines = [list(talks(name, each)) for name in names]
        sessions = clients * -(-each // 4)
    elif kind == "grows":
        lines = [list(growing(long(name, messages, size), each + 1, 400)) for name in names]
        opening = [line[:1] for line in lines]
        lines = [line[1:] for line in lines]
        sessions = clients
    elif kind == "new":
        lines = [list(news(name, each, messages, size)) for name in names]
        sessions = clients * each
    else:
        one = short(seed).body() if size == SMALL else long(seed, messages, size).body()
        lines = [[one] * each for _ in names]
        if kind == "same, named":
            headers = [f"x-context-session: {name}\r\n".encode() for name in names]
            opening, sessions = [[one] for _ in names], clients
    return Load(opening, lines, headers, sessions)


def ran(server: Server, this: Load) -> tuple[Used, list[Answer]]:
    """What a server has used for the load, and what it answered."""
    drive(lambda: send(server, this.opening, this.headers))
    before = settled(server.pid)
    answers = drive(lambda: send(server, this.lines, this.headers))
    spent = settled(server.pid) - before
    return spent, [answer for line in answers for answer in line]


def passed(answers: Sequence[Answer], sessions: int = 0) -> Counter[str]:
    """What the proxy has to say of its own answers: how many prompts went out as they came for a fault, and why, how
    many answers were not yet on disk. Raises Broken where it took them for other conversations than they are: then
    something else is measured."""
    named = [name for answer in answers if (name := answer.header(b"x-context-session"))]
    seen = set(named)
    # What went out as it came has no name where its plan took too long.
    if sessions and (len(seen) > sessions or (len(seen) < sessions and len(named) == len(answers))):
        raise Broken(f"{len(seen)} conversations were seen where {sessions} are")
    told = [answer.header(b"x-context-fallback") for answer in answers]
    if b"error" in told:
        raise Broken("a fault of the proxy's own: see its log")
    told += [answer.header(b"x-context-persist") for answer in answers]
    return Counter(each.decode() for each in told if each)


def measure(servers: Sequence[Server], kind: str, size: int, clients: int, scope: Scope) -> list[Row]:
    """Microseconds a request of each server."""
    total = 160 if size == SMALL else 48 if kind == "grows" else 24
    each = scope.few(max(2, total // clients), 2)
    found: dict[str, list[float]] = {server.name: [] for server in servers}
    main: dict[str, list[float]] = {server.name: [] for server in servers}
    told: dict[str, Counter[str]] = {server.name: Counter() for server in servers}
    for number in range(0 if scope.quick else -1, scope.rounds):  # the first one warms up
        this = load(kind, size, clients, each if number >= 0 else 2, f"{kind[0]}{clients}{number + 1:02}")
        for server in turned(servers, number):
            spent, answers = ran(server, this)
            if server.name != BARE:
                told[server.name] += passed(answers, this.sessions)
            if number >= 0:
                found[server.name].append(spent.all / this.requests * 1e6)
                main[server.name].append(spent.main / this.requests * 1e6)
    asked = each * clients * scope.rounds + (0 if scope.quick else 2 * clients)
    case: Row = {"case": f"{size // 1000} KB, {kind}", "clients": clients, "size": size, "kind": kind}
    rows = compared({**case, "requests": each * clients}, "us", found)
    mains = compared(case, "us", main)
    return [
        {**row, "main": figure(m["value"]), "told": dict(told[row["server"]]), "asked": asked}
        for row, m in zip(rows, mains, strict=True)
    ]


def run(scope: Scope) -> list[Row]:
    """All cases."""
    rows: list[Row] = []
    with field(postgres=not scope.quick) as (_, servers):
        for size, kind, usual in itertools.product((SMALL, LARGE), KINDS, CLIENTS):
            clients = scope.few(usual, min(usual, 2))
            if scope.wants(f"{size // 1000} KB, {kind}, x{clients}"):
                rows += measure(servers, kind, size, clients, scope)
    return rows
