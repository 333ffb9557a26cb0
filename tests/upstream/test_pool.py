from __future__ import annotations

import asyncio
import gc
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

import psutil
import pytest

from proxy.errors import UpstreamError, UpstreamTimeout
from proxy.upstream import pool as pools
from proxy.upstream.connection import Connection as Line
from proxy.upstream.connection import Lost
from proxy.upstream.pool import Full, Pool
from tests.faulty import STREAM, Connection, Request, faulty, until
from tests.upstream.conftest import EVENTS, answer_json, client_of, send


class Wire(asyncio.Transport):
    """What a connection needs of a transport."""

    def __init__(self) -> None:
        super().__init__()
        self.aborted = False

    def abort(self) -> None:
        self.aborted = True

    def get_write_buffer_size(self) -> int:
        return 0


async def plug(connection: Line) -> None:
    connection.connection_made(Wire())


def new_pool(limit: int, kept: int = 1000, connect: Callable[[Line], Awaitable[None]] = plug) -> Pool:
    return Pool(connect, limit, kept)


def sound(pool: Pool) -> bool:
    """Whether what it counts is what there is, and nobody waits for what lies there."""
    return pool._taken == len(pool._all) <= pool._limit and not (pool._waiting and pool._idle)


async def test_a_connection_that_came_back_is_used_before_a_new_one_the_last_first() -> None:
    pool = new_pool(10)
    one, two = await pool.open(1), await pool.open(1)
    pool.back(one)
    pool.back(two)
    assert [pool.ready(), pool.ready(), pool.ready()] == [two, one, None]
    assert sound(pool)


async def test_who_waits_is_served_in_order_with_what_comes_back_or_may_open_one() -> None:
    pool = new_pool(2)
    one, two = await pool.open(1), await pool.open(1)
    served: list[tuple[int, Line]] = []

    async def ask(number: int) -> None:
        served.append((number, await pool.open(5)))

    tasks = []
    for number in range(4):
        tasks.append(asyncio.create_task(ask(number)))
        await asyncio.sleep(0)
    assert served == []
    pool.back(one)
    two.abort()
    await asyncio.sleep(0.01)
    assert [number for number, _ in served] == [0, 1]
    assert served[0][1] is one
    assert served[1][1] is not two
    for _, connection in tuple(served):
        connection.finish(clean=True)
    await asyncio.gather(*tasks)
    assert [number for number, _ in served] == [0, 1, 2, 3]
    assert len(pool._all) == 2
    assert sound(pool)


async def test_patience_ends_and_what_is_freed_after_goes_to_the_next() -> None:
    pool = new_pool(1)
    one = await pool.open(1)
    patient = asyncio.create_task(pool.open(5))
    with pytest.raises(Full):
        await pool.open(0.05)
    gone = asyncio.create_task(pool.open(5))
    await asyncio.sleep(0)
    gone.cancel()
    with suppress(asyncio.CancelledError):
        await gone
    assert len(pool._waiting) == 1
    pool.back(one)
    assert await patient is one


@pytest.mark.parametrize("closed", [True, False])
async def test_what_is_given_in_the_moment_of_a_cancel_is_handed_on(closed: bool) -> None:
    pool = new_pool(1)
    one = await pool.open(1)
    first, second = asyncio.create_task(pool.open(5)), asyncio.create_task(pool.open(5))
    await asyncio.sleep(0)
    if closed:
        one.abort()
    else:
        pool.back(one)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    got = await asyncio.wait_for(second, 1)
    assert (got is one) is not closed
    assert sound(pool)


async def test_what_is_given_and_closes_before_it_is_taken_is_not_used() -> None:
    pool = new_pool(1)
    one = await pool.open(1)
    waiting = asyncio.create_task(pool.open(5))
    await asyncio.sleep(0)
    pool.back(one)
    one.eof_received()
    assert not (await waiting).closed
    assert sound(pool)


async def test_a_connection_that_does_not_come_about_frees_its_place() -> None:
    async def fail(connection: Line) -> None:
        await asyncio.sleep(0)
        raise OSError("refused")

    pool = new_pool(1, connect=fail)
    for _ in range(3):
        with pytest.raises(OSError, match="refused"):
            await asyncio.wait_for(pool.open(5), 1)
    both = await asyncio.gather(pool.open(5), pool.open(5), return_exceptions=True)
    assert [type(one) for one in both] == [OSError, OSError]
    assert pool._taken == 0
    assert sound(pool)


async def test_idle_ones_are_kept_for_so_long_and_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "KEPT_S", 0.1)
    pool = new_pool(10, kept=3)
    five = [await pool.open(1) for _ in range(5)]
    for one in five[:4]:
        pool.back(one)
    assert len(pool._idle) == 3
    assert five[3].closed
    await asyncio.sleep(0.06)
    kept = pool.ready()
    assert kept is five[2]
    pool.back(kept)
    await asyncio.sleep(0.06)
    assert list(pool._idle) == [kept], "the time runs from when it came back"
    await asyncio.sleep(0.1)
    assert [one.closed for one in five] == [True, True, True, True, False]
    assert pool._sweeper is None
    pool.back(five[4])
    pool._idle[five[4]] -= 1  # the sweep is late
    assert pool.ready() is None
    assert five[4].closed
    assert sound(pool)
    pool.close()


async def test_closing_closes_all_and_what_comes_back_after() -> None:
    pool = new_pool(10)
    three = [await pool.open(1) for _ in range(3)]
    pool.back(three[0])
    pool.close()
    assert all(one.closed for one in three)
    assert pool._taken == 0
    late = await pool.open(1)
    pool.back(late)
    assert late.closed


async def test_the_cost_of_a_step_does_not_grow_with_how_many_there_are() -> None:
    async def cost(count: int) -> float:
        pool = new_pool(count, kept=count)
        started = time.process_time()
        held = [await pool.open(60) for _ in range(count)]
        waiting = [asyncio.create_task(pool.open(60)) for _ in range(count)]
        await asyncio.sleep(0)
        for task in waiting[::2]:
            task.cancel()
        for one in held:
            pool.back(one)
        got = await asyncio.gather(*waiting, return_exceptions=True)
        for given in got:
            if isinstance(given, Line):
                given.finish(clean=True)
        spent = time.process_time() - started
        assert len(pool._idle) == count
        pool.close()
        return spent / count

    gc.collect()
    gc.disable()  # what it walks through is everybody's
    try:
        few = min([await cost(1000) for _ in range(5)])
        many = min([await cost(16_000) for _ in range(2)])
    finally:
        gc.enable()
    assert many < 5 * few


async def test_a_thousand_at_once_each_get_their_own_answer() -> None:
    async def echo(request: Request, there: Connection) -> None:
        await asyncio.sleep(0.05)
        await there.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(request.body), request.body))

    async with faulty(echo) as upstream, client_of(upstream.port, connect_s=20) as client:
        pool = client._lines["default"].pool
        pool._limit = pool._kept = 1000

        async def one(number: int) -> None:
            reply = await send(client, b"%d" % number)
            assert await reply.read(100) == b"%d" % number
            await reply.close()

        await asyncio.gather(*(one(number) for number in range(2000)))
        assert upstream.connections <= 1000
        assert sound(pool)


async def test_with_all_in_use_others_wait_and_then_are_told() -> None:
    gate = asyncio.Event()

    async def wait(request: Request, there: Connection) -> None:
        await gate.wait()
        await answer_json(request, there)

    async with faulty(wait) as upstream, client_of(upstream.port, connect_s=0.2) as client:
        held = [asyncio.create_task(send(client)) for _ in range(10)]
        await until(lambda: len(upstream.requests) == 10)
        with pytest.raises(UpstreamTimeout, match=r"all 10 connections .* are in use"):
            await send(client)
        waits = asyncio.create_task(send(client))
        await asyncio.sleep(0.05)
        gate.set()
        for task in (*held, waits):
            assert await (await task).read(10) == b"{}"
        assert upstream.connections == 10


@pytest.mark.parametrize("seed", range(3))
async def test_nothing_is_left_of_cancels_at_random_moments(seed: int) -> None:
    chance = random.Random(seed)

    async def work(_: Request, there: Connection) -> None:
        await asyncio.sleep(chance.uniform(0, 0.01))
        await there.send(STREAM)
        for event in EVENTS[:5]:
            await there.chunk(event)
            await asyncio.sleep(chance.uniform(0, 0.004))
        if chance.random() < 0.1:
            await there.reset()
        await there.send(b"0\r\n\r\n")

    process = psutil.Process()
    tasks, files = len(asyncio.all_tasks()), process.num_fds()
    async with faulty(work) as upstream, client_of(upstream.port, connect_s=0.05) as client:

        async def one() -> None:
            reply = await send(client)
            try:
                async for _ in reply.chunks():
                    if chance.random() < 0.05:
                        return
            finally:
                await reply.close()

        async def cut_off() -> None:
            task = asyncio.create_task(one())
            if chance.random() < 0.7:
                await asyncio.sleep(chance.choice([0, 0.001, 0.01, 0.03]))
                for _ in range(chance.randint(1, 3)):
                    task.cancel()
                    for _turn in range(chance.randint(0, 3)):
                        await asyncio.sleep(0)
            with suppress(asyncio.CancelledError, UpstreamError):
                await task

        await asyncio.gather(*(cut_off() for _ in range(200)))
        line = client._lines["default"]
        assert line.open == 0
        assert sound(line.pool)
        assert len(line.pool._idle) == len(line.pool._all), "all that is there can be used"
        assert not line.pool._waiting
        assert len([t for t in asyncio.all_tasks() if "faulty" not in repr(t)]) <= tasks + 1
    await until(lambda: process.num_fds() <= files)
    assert len(asyncio.all_tasks()) == tasks


async def test_a_trip_that_is_over_cannot_touch_the_one_that_comes_after() -> None:
    async with faulty(answer_json) as upstream, client_of(upstream.port) as client:
        first = await send(client)
        assert await first.read(10) == b"{}"
        second = await send(client)
        await first.close()
        with suppress(Lost):
            await first._source.aclose()
        assert await second.read(10) == b"{}"
        assert upstream.connections == 1
