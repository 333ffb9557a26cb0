"""P4, D3, D4, D5, D7: a store that is slow, full, read-only, gone, or breaks its calls, under load; both stores. Each
request is answered; what a client was told is stored is there; what is lost is recorded as a gap."""

from __future__ import annotations

import asyncio
import json
import os
import resource
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import asyncpg
import psutil
import pytest

from proxy.errors import StoreUnavailable
from proxy.store.base import Row
from proxy.web.app import ContextProxy
from tests.faults.fork_server import ForkServer
from tests.faults.killing import Fetch, answer_with_mark, check_integrity, make_postgres_fetch, make_sqlite_fetch
from tests.faults.test_load import answer
from tests.faults.tracing import injected, need_tracing
from tests.postgres import execute, replace_database
from tests.proxy_server import CHAT, join_chunks, parse_answer, run_proxy
from tests.raw_upstream import Upstream, connect, make_post, run_upstream, send_raw

Record = Callable[[str, object], None]
Fault = Callable[[int, str], AbstractAsyncContextManager[None]]
"""From the proxy's pid and its store's address."""

REQUESTS = int(os.environ.get("FAULT_REQUESTS", "96"))
"""While the fault lasts: of 25 KB each, so that the spool of 1 MiB is too small for them."""
AT_ONCE = 16
LIMITS = {"spool_mb": 1, "commit_wait_ms": 100}


@dataclass
class Asked:
    """The requests, and the answers that their clients know. told: each mark with its session, if the
    answer said that it is stored. deferred: the same if it said that it is not stored yet. passed: number of requests
    that went on as they came, without a store."""

    port: int
    told: dict[str, str] = field(default_factory=dict)
    deferred: dict[str, str] = field(default_factory=dict)
    passed: int = 0
    answered: int = 0

    async def one(self, mark: str, size: int = 25_000) -> None:
        stream = self.answered % 2 == 0
        history = [
            {"role": "user", "content": f"of {mark}"},
            {"role": "assistant", "content": "which the store may know"},
        ]
        messages = [*history, {"role": "user", "content": f"{mark} " + "x" * size}]
        raw = json.dumps({"model": "m", "stream": stream, "messages": messages}).encode()
        got = parse_answer(await send_raw(self.port, make_post(CHAT, raw, b"content-type: application/json"), 30))
        assert got.status == 200, got.body
        message = join_chunks(json.loads(e) for e in got.events if e != b"[DONE]") if stream else got.message
        assert message["content"] == f"answer to {mark}"
        assert b"data: [DONE]\n\n" in got.body if stream else got.whole
        self.answered += 1
        if got.header("x-context-fallback") == "store":
            self.passed += 1
            return
        late = b"persist deferred" in got.body or got.header("x-context-persist")
        (self.deferred if late else self.told)[mark] = got.session

    async def many(self, name: str, count: int) -> None:
        for start in range(0, count, AT_ONCE):
            await asyncio.gather(*(self.one(f"{name}{n}") for n in range(start, min(start + AT_ONCE, count))))


async def survives(
    fork_server: ForkServer, db: str, fetch: Fetch, fault: Fault, record: Record, *, loses: bool
) -> None:
    """loses: more is to be stored than may wait."""
    async with run_upstream(answer_with_mark) as upstream:
        pid, port = await start(fork_server, upstream, db)
        asked = Asked(port)
        await asked.many("before", 4)
        async with fault(pid, db):
            await asked.many("during", REQUESTS)
        await healed(asked)
        await asked.many("after", 8)
        assert asked.answered >= REQUESTS + 13
        stored, gaps = await read_settled(fetch, asked)
        false = [mark for mark in asked.told if f"answer to {mark}" not in stored]
        assert false == [], "clients were told that these are stored"
        lost = {mark: s for mark, s in asked.deferred.items() if f"answer to {mark}" not in stored}
        unrecorded = [mark for mark, session in lost.items() if session not in gaps]
        assert unrecorded == [], f"of {len(lost)} that are lost these have no gap"
        unread = sum(int(row[0]) for row in await fetch("SELECT items FROM gaps WHERE reason = 'store not readable'"))
        assert unread == asked.passed, "what went on without a store is counted"
        assert not loses or lost or unread, "nothing was lost: the bound was not reached"
        await asyncio.to_thread(fork_server.end, pid)
        told = f"{asked.answered} of {asked.answered} answered, {len(asked.deferred)} of them deferred, "
        record("measured", told + f"{asked.passed} without a store, {len(lost) + unread} lost, all recorded as gaps")


async def read_settled(fetch: Fetch, asked: Asked) -> tuple[set[str], set[str]]:
    """(the stored answers, the sessions with gaps), once each deferred answer is stored or has a gap. A disk that
    was full may take its time with what came afterwards, too."""
    stored, gaps = set[str](), set[str]()
    for _ in range(100):
        rows = await fetch(
            "SELECT m.body FROM exchanges e JOIN messages m ON m.tenant = e.tenant"
            " AND m.session = e.session AND m.key = e.answer WHERE e.status = 'complete'"
        )
        stored = {json.loads(bytes(body))["content"] for (body,) in rows}
        gaps = {str(session) for (session,) in await fetch("SELECT DISTINCT session FROM gaps")}
        if all(f"answer to {mark}" in stored or session in gaps for mark, session in asked.deferred.items()):
            break
        await asyncio.sleep(0.2)
    return stored, gaps


async def start(fork_server: ForkServer, upstream: Upstream, db: str) -> tuple[int, int]:
    url = f"http://127.0.0.1:{upstream.port}/v1"
    return await fork_server.started(
        upstream=url, db=db, tokens={"count": "estimate"}, log_level="error", limits=LIMITS
    )


async def healed(asked: Asked) -> None:
    """Until an answer is stored in time again, and what had to wait is."""
    async with asyncio.timeout(40):
        number = 0
        while f"probe{number}" not in asked.told:
            number += 1
            await asked.one(f"probe{number}", 10)
            await asyncio.sleep(0.1)
    await asyncio.sleep(0.3)  # gaps are written behind what waited


def calls(names: str, what: str) -> Fault:
    return lambda pid, _: injected(pid, names, what)


@asynccontextmanager
async def gone(_: int, db: str) -> AsyncIterator[None]:
    """The file and what belongs to it has another name for a while."""
    there = [
        path for path in Path(db).parent.iterdir() if path.name.startswith(Path(db).name) and ".lock" not in path.name
    ]
    for path in there:
        path.rename(path.with_name(f"away-{path.name}"))
    yield
    for path in there:
        path.with_name(f"away-{path.name}").rename(path)


FILE = {
    "slow": (calls("fsync,fdatasync", "delay_enter=2000000"), True),
    "full": (calls("pwrite64", "error=ENOSPC"), True),
    "read-only": (calls("pwrite64,ftruncate", "error=EROFS"), True),
    "gone": (gone, True),
    "writes fail": (calls("pwrite64", "error=EIO"), True),
    "syncs fail": (calls("fsync,fdatasync", "error=EIO"), True),
    "reads fail": (calls("pread64", "error=EIO"), False),
}


@pytest.mark.parametrize("how", FILE)
async def test_d3_d4_d5_d7_with_a_file_every_request_is_answered_and_what_is_lost_is_recorded(
    fork_server: ForkServer, tmp_path: Path, record_property: Record, how: str
) -> None:
    fault, loses = FILE[how]
    if how != "gone":
        need_tracing()
    db = str(tmp_path / "store.sqlite3")
    await survives(
        fork_server, db, make_sqlite_fetch(db), fault, label_records(record_property, f"a file, {how}"), loses=loses
    )
    check_integrity(db)


TRIGGER = """CREATE FUNCTION faulty() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {} RETURN NULL; END $$;
CREATE TRIGGER faulty BEFORE INSERT ON messages FOR EACH STATEMENT EXECUTE FUNCTION faulty()"""


def triggered(what: str) -> Fault:
    """Whatever writes messages does this first."""

    @asynccontextmanager
    async def fault(_: int, db: str) -> AsyncIterator[None]:
        for text in TRIGGER.format(what).split(";\nCREATE"):
            await execute(db, text if text.startswith("CREATE") else f"CREATE{text}")
        yield
        await execute(db, "DROP FUNCTION faulty CASCADE")

    return fault


@asynccontextmanager
async def closed(_: int, db: str) -> AsyncIterator[None]:
    """Nobody is let in, and who was in is thrown out."""
    name, server = db.rpartition("/")[2], replace_database(db, "postgres")
    out = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = $1"
    await execute(server, f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
    await execute(server, out, name)
    yield
    await execute(server, f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")


@asynccontextmanager
async def locked(_: int, db: str) -> AsyncIterator[None]:
    """Whoever reads or writes messages gets no answer."""
    other = await asyncpg.connect(db)
    async with other.transaction():
        await other.execute("LOCK TABLE messages IN ACCESS EXCLUSIVE MODE")
        yield
    await other.close()


SERVER = {
    "hanging": locked,
    "slow": triggered("PERFORM pg_sleep(2);"),
    "full": triggered("RAISE SQLSTATE '53100';"),
    "read-only": triggered("RAISE SQLSTATE '25006';"),
    "gone": closed,
}


@pytest.mark.parametrize("how", SERVER)
async def test_d3_d4_d5_d7_with_postgresql_every_request_is_answered_and_what_is_lost_is_recorded(
    fork_server: ForkServer, database: str, record_property: Record, how: str
) -> None:
    record = label_records(record_property, f"PostgreSQL, {how}")
    await survives(fork_server, database, make_postgres_fetch(database), SERVER[how], record, loses=True)


def label_records(record: Record, what: str) -> Record:
    return lambda name, value: record(name, f"{what}: {value}")


async def test_d4_connected_clients_are_answered_and_stored_when_no_file_can_be_opened(
    fork_server: ForkServer, tmp_path: Path
) -> None:
    def say(mark: str) -> bytes:
        raw = json.dumps({"model": "m", "messages": [{"role": "user", "content": mark}]}).encode()
        return make_post(CHAT, raw).replace(b"connection: close\r\n", b"content-type: application/json\r\n")

    db = str(tmp_path / "store.sqlite3")
    async with run_upstream(answer_with_mark) as upstream:
        pid, port = await start(fork_server, upstream, db)
        client = await connect(port)
        for number in range(3):
            await client.send(say(f"m{number}"))
            assert b"answer to" in await answer(client)
        before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (psutil.Process(pid).num_fds(), before[1]))
        others = [await connect(port) for _ in range(10)]
        for number in range(3, 33):
            await client.send(say(f"m{number}"))
            assert f"answer to m{number}".encode() in await answer(client)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
        for other in others:
            other.writer.transport.abort()
        await Asked(port).one("after")
        client.writer.transport.abort()
        await asyncio.to_thread(fork_server.end, pid)
    assert await make_sqlite_fetch(db)("SELECT status, count(*) FROM exchanges GROUP BY status") == [("complete", 34)]
    check_integrity(db)


async def test_d3_what_a_request_said_is_lost_and_its_answer_stored_is_not_an_acknowledgement() -> None:
    """The spool was full when the request came, and had room when the answer did."""

    def refuse(app: ContextProxy) -> None:
        def later(rows: Sequence[Row]) -> asyncio.Future[None]:
            refused: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            refused.set_exception(StoreUnavailable("1 bytes already wait to be written."))
            return refused

        app.services.store.put_deferred = later  # type: ignore[method-assign]

    async with run_upstream(answer_with_mark) as upstream, run_proxy(upstream.port, before=refuse) as proxy:
        for stream in (False, True):
            got = await proxy.post({"model": "m", "stream": stream, "messages": [{"role": "user", "content": "m1"}]})
            assert got.status == 200
            assert got.header("x-context-persist") == "deferred" or b"persist deferred" in got.body
        assert await proxy.rows("SELECT status FROM exchanges") == []
