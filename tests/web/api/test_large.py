"""A store of 100,000 sessions and 1,000,000 messages: every list answers within 100 ms, wherever its page is.

The bound asserted is four times that: the machine may be busy with something else.
"""

from __future__ import annotations

import hashlib
import sqlite3
import statistics
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from proxy.chat import chain
from proxy.settings.load import Settings
from proxy.web.app import create_app
from tests.proxy_server import make_key, run_proxy_in_thread
from tests.web.api.conftest import ProxyWithData

SESSIONS, MESSAGES, LONG = 99_990, 10, 100_000
"""Sessions of ten messages; and ten sessions more, of which one has 100,000."""
PROMISED_MS = 100.0


def named(seq: int) -> bytes:
    """A chain key."""
    return hashlib.blake2b(str(seq).encode(), digest_size=chain.DIGEST_BYTES).digest()


async def create_empty_store(path: Path) -> None:
    """An empty store with its tables."""
    store = create_app(Settings(db=str(path), upstream="demo")).store
    await store.open()
    await store.close()


def fill(path: Path) -> None:
    """Rows as the proxy would have stored them, by the shortest way."""
    body = b'{"role": "user", "content": "a line of the log, number %d"}'

    def messages() -> Iterator[tuple[object, ...]]:
        seq = 0
        for s in range(SESSIONS + 1):
            name, count = (f"s{s:06}", MESSAGES) if s < SESSIONS else ("long", LONG)
            parent = b""
            for n in range(count):
                seq += 1
                name_of = named(seq)
                yield (
                    "acme", name, name_of, parent, n, "t", "user", f"g{n // 2}", body % seq, name_of, None, "completed",
                    "openai", 12, False, True, float(s), n + 1,
                )  # fmt: skip
                parent = name_of

    with closing(sqlite3.connect(path)) as database, database:
        database.execute("PRAGMA synchronous=OFF")
        columns = [row[1] for row in database.execute("PRAGMA table_info(messages)")]
        told = (
            *("tenant", "session", "key", "parent", "position", "branch", "role", "group_id", "body", "form"),
            *("call_id", "status", "strategy", "tokens", "answer", "reached", "created_at", "seq"),
        )
        assert set(told) <= set(columns)
        names = [(f"s{s:06}", float(s)) for s in range(SESSIONS)] + [("long", 1e6)]
        database.executemany(
            "INSERT INTO sessions (tenant, session, explicit, created_at, settings, last_at, policy)"
            " VALUES ('acme', ?, 1, ?, '{}', ?, 'thrifty')",
            [(name, at, at) for name, at in names],
        )
        database.executemany(
            "INSERT INTO branches (tenant, session, branch, kind, system, created_at, tip, last_at)"
            " VALUES ('acme', ?, 't', 'main', x'', ?, x'', ?)",
            [(name, at, at) for name, at in names],
        )
        slots = ", ".join("?" * len(told))
        database.executemany(f"INSERT INTO messages ({', '.join(told)}) VALUES ({slots})", messages())
        database.execute("ANALYZE")


@pytest.mark.slow
async def test_pages_of_a_large_store_come_in_time(tmp_path: Path) -> None:
    path = tmp_path / "large.sqlite3"
    await create_empty_store(path)
    fill(path)
    with run_proxy_in_thread("demo", db=str(path), keys=[make_key("cp-acme-admin", "acme", "admin")]) as proxy:
        data = ProxyWithData(proxy)
        first = data.ask("GET", "/api/sessions?limit=200").json()
        assert first["items"][0]["session"] == "long"
        deep = data.ask("GET", "/api/sessions/long/messages?limit=200&newest=true").json()
        paths = [
            "/api/sessions?limit=200",
            f"/api/sessions?limit=200&cursor={first['next']}",
            "/api/sessions?limit=200&q=s04242",
            "/api/sessions?limit=200&policy=rolling",
            "/api/sessions/s050000",
            "/api/sessions/long",
            "/api/sessions/s050000/messages?limit=200",
            "/api/sessions/long/messages?limit=200",
            f"/api/sessions/long/messages?limit=200&newest=true&cursor={deep['next']}",
            "/api/sessions/long/messages?limit=200&role=tool",
            f"/api/sessions/long/messages/{chain.public_id(named(SESSIONS * MESSAGES + 5))}",
            "/api/sessions/long/branches",
            "/api/sessions/long/exchanges",
            "/api/tenants",
            "/api/stats",
            "/api/live?limit=50",
            f"/api/live?limit=50&cursor={first['next']}",
            "/api/money",
        ]
        took = {}
        for asked in paths:
            times = []
            for _ in range(5):
                began = time.perf_counter()
                assert data.ask("GET", asked).status == 200, asked
                times.append((time.perf_counter() - began) * 1000)
            took[asked] = round(statistics.median(times), 1)
        print(took)
        assert {asked: ms for asked, ms in took.items() if ms > 4 * PROMISED_MS} == {}
