"""Reads of a server that hangs, of one that is slow in one statement, and of one that is well again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress

import asyncpg
import psutil
import pytest

from proxy.errors import StoreUnavailable
from proxy.store import read_probe
from proxy.store.circuit_breaker import DOWN_AFTER
from proxy.store.postgres import PostgresStore
from tests.postgres import Server, server
from tests.raw_upstream import HANGS_S, wait_until
from tests.store.conftest import RowFactory
from tests.stores import postgres_store

make = RowFactory()
SLOW = "SELECT 1 FROM pg_sleep(60)"


@pytest.fixture
async def store(database: str) -> AsyncIterator[PostgresStore]:
    """A store whose reads may take half a second."""
    made = postgres_store(database, drain_s=0.5, read_s=0.5)
    await made.open()
    yield made
    await made.close()


@pytest.fixture
def _no_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    """The probe begins later than any test ends."""
    monkeypatch.setattr(read_probe, "PROBE_PAUSE_S", 3600.0)


@contextmanager
def hanging(own: Server) -> Iterator[None]:
    """The server accepts connections and statements, and answers none."""
    parent = psutil.Process(own.process.pid)
    processes = [parent, *parent.children()]
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.suspend()
    try:
        yield
    finally:
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.resume()


async def reach_limit(store: PostgresStore) -> None:
    with pytest.raises(StoreUnavailable, match="took longer"):
        await store._query(SLOW, ())


async def reach_limits(store: PostgresStore) -> None:
    """As many limits in a row as open the breaker: those that come late on a busy machine do not count."""
    async with asyncio.timeout(HANGS_S):
        while not store._reader._breaker.is_open():
            await reach_limit(store)


@pytest.mark.usefixtures("_no_probe")
async def test_after_limits_in_a_row_reads_fail_without_being_made(store: PostgresStore) -> None:
    for _ in range(DOWN_AFTER - 1):
        await reach_limit(store)
    assert await store.read_session_names() == []
    await reach_limits(store)
    with pytest.raises(StoreUnavailable, match="does not answer"):
        await store.read_session_names()
    with pytest.raises(StoreUnavailable, match="does not answer"):
        await store.search("t1", "s1", "words")
    assert not store.readable
    assert store.writable
    await store.put([make.form(b"one")])  # writes have a connection of their own


@pytest.mark.slow
async def test_a_server_that_hangs_is_left_alone_until_it_answers_and_nothing_is_lost() -> None:
    with server() as own:
        store = postgres_store(own.url, read_s=0.5, drain_s=20.0)
        await store.open()
        await store.put([*make.begin(), make.form(b"before")])
        with hanging(own):
            waiting = store.put([make.form(b"during")])
            reads = await asyncio.gather(*(store.read_session_names() for _ in range(20)), return_exceptions=True)
            assert all(isinstance(read, StoreUnavailable) for read in reads)
            await wait_until(store._reader._breaker.is_open)
            with pytest.raises(StoreUnavailable, match="does not answer"):
                await store.read_session_names()
            await wait_until(lambda: store.stalled)
            assert not waiting.done()
        await waiting
        await wait_until(lambda: store.healthy)  # nobody has read anything
        assert await store.read_session_names() == [("t1", "s1")]
        for body in (b"before", b"during"):
            assert await store.read_form("t1", "s1", make.form(body).form) == body
        await store.close()


async def test_after_one_slow_read_an_idle_store_is_healthy_again_without_another(store: PostgresStore) -> None:
    await reach_limit(store)
    assert (store.healthy, store.readable) == (False, False)
    await wait_until(lambda: store.healthy)
    assert store.readable


@pytest.mark.usefixtures("_no_probe")
async def test_limits_of_some_statements_stop_no_reads_while_others_are_answered(store: PostgresStore) -> None:
    slow = [asyncio.create_task(store._query(SLOW, ())) for _ in range(2 * DOWN_AFTER)]
    while not all(task.done() for task in slow):
        assert await store.read_session_names() == []
    assert all(isinstance(task.exception(), StoreUnavailable) for task in slow)
    assert await store.read_session_names() == []


@pytest.mark.usefixtures("_no_probe")
async def test_limits_that_a_busy_event_loop_is_late_to_notice_do_not_count(store: PostgresStore) -> None:
    for _ in range(DOWN_AFTER):
        slow = asyncio.create_task(store._query(SLOW, ()))
        await asyncio.sleep(0.2)
        time.sleep(0.6)  # the loop is busy
        with pytest.raises(StoreUnavailable, match="took longer"):
            await slow
    assert await store.read_session_names() == []


async def test_while_a_table_is_locked_no_read_is_made_and_its_end_is_seen(store: PostgresStore, database: str) -> None:
    other = await asyncpg.connect(database)
    async with other.transaction():
        await other.execute("LOCK TABLE messages IN ACCESS EXCLUSIVE MODE")
        async with asyncio.timeout(HANGS_S):
            while not store._reader._breaker.is_open():
                with pytest.raises(StoreUnavailable):
                    await store.read_chain("t1", "s1", b"key")
        await asyncio.sleep(2 * read_probe.PROBE_PAUSE_S)
        with pytest.raises(StoreUnavailable, match="does not answer"):
            await store.read_session_names()
    await wait_until(lambda: store.healthy)
    assert await store.read_chain("t1", "s1", b"key") == []
    await other.close()


async def test_reads_that_their_callers_give_up_are_noticed_too(store: PostgresStore, database: str) -> None:
    other = await asyncpg.connect(database)
    async with other.transaction():
        await other.execute("LOCK TABLE messages IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await store.read_chain("t1", "s1", b"key")
        await wait_until(store._reader._breaker.is_open)
        with pytest.raises(StoreUnavailable, match="does not answer"):
            await store.read_session_names()
    await wait_until(lambda: store.healthy)
    await other.close()


@pytest.mark.slow
async def test_a_caller_with_a_limit_of_its_own_does_not_wait_for_the_cancellation() -> None:
    with server() as own:
        store = postgres_store(own.url, read_s=60.0, drain_s=0.5)
        await store.open()
        assert await store.read_session_names() == []
        with hanging(own):
            async with asyncio.timeout(20):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.2):
                        await store.read_session_names()
        await wait_until(lambda: store.healthy)
        await store.close()
