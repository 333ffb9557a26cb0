"""Behaviour of the PostgreSQL store alone: refusals, time limits, and a server that goes away and comes back."""

from __future__ import annotations

import asyncio
import errno
import signal
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import asyncpg
import pytest
from msgspec.structs import replace

from proxy.errors import StoreRefused, StoreUnavailable
from proxy.store.postgres import PostgresStore, describe_refusal
from proxy.store.session_lists import MessageFilter
from tests.postgres import execute, replace_database, server
from tests.proxy_server import run_proxy
from tests.raw_upstream import free_port, run_upstream, wait_until
from tests.scripted_model import ScriptedModel
from tests.store.conftest import RowFactory
from tests.stores import count_rows, postgres_store

make = RowFactory()


@pytest.fixture
async def store(database: str) -> AsyncIterator[PostgresStore]:
    made = postgres_store(database, drain_s=0.5, read_s=60.0)  # a busy machine may take its time
    await made.open()
    yield made
    await made.close()


@pytest.mark.parametrize("place", ["nowhere", "no database", "no url"])
async def test_what_cannot_be_opened_is_refused_without_its_password(postgres: str, place: str) -> None:
    url, told = {
        "nowhere": (f"postgresql://me:canary@127.0.0.1:{free_port()}/db", "opened: Connection refused. See"),
        "no database": (
            replace_database(postgres, "missing").replace("//tests", "//tests:canary"),
            '"missing" does not',
        ),
        "no url": ("postgresql://me:canary@127.0.0.1:port/db", "opened: ValueError. See"),
    }[place]
    store = postgres_store(url, connect_s=2.0)
    with pytest.raises(StoreRefused) as refused:
        await store.open()
    assert "canary" not in str(refused.value)
    assert told in f"{refused.value.message} {refused.value.hint}"
    assert not store.healthy


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (socket.gaierror(-2, "Name or service not known"), "Name or service not known"),
        (
            OSError(f"Multiple exceptions: [Errno {errno.ECONNREFUSED}] Connect call failed ('::1', 1)"),
            "Connection refused",
        ),
        (TimeoutError(), "no answer in time"),
        (ValueError("canary"), "ValueError"),
    ],
)
def test_a_database_that_cannot_be_opened_is_reported_with_the_reason(error: Exception, told: str) -> None:
    assert describe_refusal(error) == told


@pytest.mark.parametrize("drops", [True, False])
async def test_a_pooler_that_keeps_the_settings_of_a_connection_is_named(
    database: str, monkeypatch: pytest.MonkeyPatch, drops: bool
) -> None:
    """drops: it was told to ignore them, as PgBouncer can be. Else it refuses the connection, as PgBouncer does."""
    connect = asyncpg.connect

    async def connect_by_pooler(url: str, *, server_settings: object = None, **more: object) -> object:
        if server_settings and not drops:
            raise asyncpg.ProtocolViolationError("unsupported startup parameter: statement_timeout")
        return await connect(url, **more)

    monkeypatch.setattr(asyncpg, "connect", connect_by_pooler)
    store = postgres_store(database, write_s=7.0)
    with pytest.raises(StoreRefused) as refused:
        await store.open()
    assert "pooler" in refused.value.hint


async def test_a_store_that_is_closed_says_so(store: PostgresStore) -> None:
    await store.close()
    with pytest.raises(StoreUnavailable):
        await store.read_session_names()


@pytest.mark.timed
async def test_a_read_that_takes_too_long_is_ended_and_the_next_is_well(database: str) -> None:
    store = postgres_store(database, drain_s=0.5, read_s=0.5)
    await store.open()
    started = time.monotonic()
    with pytest.raises(StoreUnavailable):
        await store._fetch("SELECT 1 FROM pg_sleep(30)", ())
    assert time.monotonic() - started < 0.5 * 4
    assert store.trouble == "a read took longer than 0.5 s"
    assert await store.read_session_names() == []
    assert store.healthy
    busy = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(30)' AND state = 'active'"
    for _ in range(100):
        if await execute(database, busy) == [(0,)]:
            break
        await asyncio.sleep(0.05)
    else:
        pytest.fail("the server still works on it")
    await store.close()


async def test_a_question_that_no_database_understands_says_nothing_about_the_server(store: PostgresStore) -> None:
    for session in ("a\x00b", "a\ud800b"):
        with pytest.raises(StoreUnavailable):
            await store.read_session("t1", session)
    assert store.healthy


async def test_reader_connections_cannot_write(store: PostgresStore) -> None:
    with pytest.raises(StoreUnavailable):
        await store._fetch("DELETE FROM sessions", ())


async def test_many_reads_at_once_share_few_connections(store: PostgresStore, database: str) -> None:
    await store.put(make.begin())
    found = await asyncio.gather(*(store.read_session("t1", "s1") for _ in range(200)))
    assert all(found)
    ours = "application_name = 'context-proxy' AND datname = current_database()"
    ((count,),) = await execute(database, f"SELECT count(*) FROM pg_stat_activity WHERE {ours}")
    assert isinstance(count, int)
    assert count <= 9


async def test_a_long_session_is_read_in_time_before_the_server_has_statistics(database: str) -> None:
    """A planner that takes a session for one row had made squares of these: over the limit, by far."""
    store = postgres_store(database, read_s=2.0)
    await store.open()
    rows = make.line(4000)
    await store.put(make.begin())
    for start in range(0, len(rows), 500):
        part = rows[start : start + 500]
        await store.put([*part, *(make.edit(row.key) for row in part), make.tip(part[-1].key, 2.0)])
    await store.put([replace(make.tip(rows[-1].key, 3.0), answer=None)])
    assert len(await store.read_chain("t1", "s1", rows[-1].key)) == 4000
    assert len(await store.read_edits("t1", "s1", "main")) == 4000
    assert len(await store.read_messages("t1", "s1", only=MessageFilter(branch="main"))) == 100
    assert len(await store.read_left_out("t1", "s1", "main")) == 0
    assert len(await store.search("t1", "s1", "body")) == 10
    assert len(await store.remove_expired(2.5)) == 0
    await store.close()


@pytest.mark.parametrize("durability", ["full", "normal"])
async def test_store_durability_sets_synchronous_commit(database: str, durability: str) -> None:
    store = postgres_store(database, durability=durability)
    connection = await store._connect()
    assert await connection.fetchval("SHOW synchronous_commit") == {"full": "on", "normal": "off"}[durability]
    assert await connection.fetchval("SHOW default_transaction_read_only") == "off"
    await connection.close()
    await store.close()


@pytest.mark.slow
async def test_a_server_that_is_killed_and_comes_back_loses_nothing_that_was_acknowledged() -> None:
    with server() as own:
        store = postgres_store(own.url, read_s=1.0, drain_s=0.5)
        await store.open()
        await store.put([*make.begin(), make.form(b"before")])
        own.stop(signal.SIGQUIT)
        futures = [store.put([make.form(b"%d" % number)]) for number in range(20)]
        await wait_until(lambda: not store.healthy)
        with pytest.raises(StoreUnavailable):
            await store.read_form("t1", "s1", make.form(b"before").form)
        assert not any(future.done() for future in futures)
        await asyncio.to_thread(own.start)
        await asyncio.gather(*futures)
        assert (await count_rows(store))["forms"] == 21
        await wait_until(lambda: store.healthy)
        await store.close()


@pytest.mark.timed
@pytest.mark.slow
async def test_a_server_that_is_gone_does_not_hold_up_the_end() -> None:
    with server() as own:
        store = postgres_store(own.url, read_s=0.5, drain_s=0.5)
        await store.open()
        own.stop()
        future = store.put([make.form(b"lost")])
        started = time.monotonic()
        await store.close()
        assert time.monotonic() - started < 4 * 2.0
        assert isinstance(future.exception(), StoreUnavailable)


SSL_REQUEST = bytes.fromhex("0000000804d2162f")


@asynccontextmanager
async def garbling(url: str) -> AsyncIterator[tuple[str, asyncio.Event]]:
    """(the URL of a way to that server, what makes it answer nonsense while it is set)."""
    parts, garbled = urlsplit(url), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, away = await asyncio.open_connection(parts.hostname, parts.port)

        async def back() -> None:
            while data := await there.read(65536):
                writer.write(data)
            writer.close()

        hearing, known = asyncio.create_task(back()), False
        try:
            while data := await reader.read(65536):
                if not garbled.is_set():
                    away.write(data)
                    known = True
                elif data == SSL_REQUEST:
                    writer.write(b"N")
                else:  # an authentication without its kind; the description of 1,000 columns, of which none comes
                    writer.write(b"T\x00\x00\x00\x06\x03\xe8" if known else b"R\x00\x00\x00\x04")
        finally:
            hearing.cancel()
            for one in (away, writer):
                one.transport.abort()

    relay = await asyncio.start_server(serve, "127.0.0.1", 0)
    place = f"{parts.username}@127.0.0.1:{relay.sockets[0].getsockname()[1]}"
    yield parts._replace(netloc=place).geturl(), garbled
    relay.close()


@pytest.mark.slow
async def test_r3_what_the_driver_cannot_read_is_a_loss_of_the_store_like_any_other(database: str) -> None:
    async with (
        garbling(database) as (url, garbled),
        run_upstream(ScriptedModel()) as upstream,
        run_proxy(upstream.port, db=url, policy="thrifty", store={"read_s": 10.0}) as proxy,
    ):
        hello = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}
        assert (await proxy.post(hello)).header("x-context-fallback") is None
        assert await proxy.app.store.read_session_names()  # on a connection that is kept
        garbled.set()
        for _ in range(3):
            with pytest.raises(StoreUnavailable):
                await proxy.app.store.read_session_names()
        assert not proxy.app.store.healthy
        got = [await proxy.post(hello, f"x-context-session: other-{n}".encode()) for n in range(3)]
        assert [(one.status, one.header("x-context-fallback")) for one in got] == [(200, "store")] * 3
        assert proxy.count("internal_errors_total", where="prepare") == 0
        garbled.clear()
        async with asyncio.timeout(30):
            while (await proxy.post(hello, b"x-context-session: after")).header("x-context-fallback") is not None:
                await asyncio.sleep(0.1)
            while (await count_rows(proxy.app.store))["gaps"] < 3:
                await asyncio.sleep(0.1)
