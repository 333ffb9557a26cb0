from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress

import pytest
import uvloop

from proxy.errors import BadRequest, ProxyError, UpstreamBroken, UpstreamError, UpstreamTimeout, UpstreamUnreachable
from proxy.upstream.client import UpstreamClient, UpstreamRequest
from proxy.upstream.http1 import HEAD_LIMIT, HIGH_WATER, JOINED_BODY_BYTES, MAX_INFORMATIONAL, ResponseStream
from tests.raw_upstream import HEAD, STREAM, Connection, RawRequest, run_upstream, wait_until
from tests.upstream.conftest import (
    EVENTS,
    answer_json,
    connections,
    gathered,
    idle,
    listening,
    make_client,
    send,
    transport_of,
)

CODED = b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in EVENTS[:3]) + b"0\r\nx-sum: 1\r\n\r\n"
WHOLE = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n" + STREAM + CODED
SIZED = HEAD + b"content-length: 12\r\n\r\nhello, world"


async def read_until_end(client: UpstreamClient, method: str = "GET") -> tuple[int, bytes, ProxyError | None]:
    """(status, what came, what ended it); status 0 where there was no answer."""
    try:
        reply = await client.send(client.targets[0], UpstreamRequest(method, "/v1/x", b"", [], None))
    except UpstreamError as error:
        return 0, b"", error
    return reply.status, *await gathered(reply)


@pytest.mark.parametrize(
    ("answer", "body"), [(WHOLE, b"".join(EVENTS[:3])), (SIZED, b"hello, world")], ids=["chunked", "sized"]
)
async def test_an_answer_may_be_cut_into_pieces_anywhere(answer: bytes, body: bytes) -> None:
    at = 0

    async def say(_: RawRequest, connection: Connection) -> None:
        await connection.send(answer[:at])
        await asyncio.sleep(0.001)
        await connection.send(answer[at:])

    async with run_upstream(say) as upstream, make_client(upstream.port) as client:
        for at in range(1, len(answer)):  # noqa: B007  # `say` looks at it
            assert await read_until_end(client) == (200, body, None)
        assert upstream.connections == 1


@pytest.mark.parametrize(("more", "status"), [(0, 200), (1, 0)])
async def test_very_many_informational_heads_are_refused(more: int, status: int) -> None:
    async def say(_: RawRequest, connection: Connection) -> None:
        await connection.send(b"HTTP/1.1 100 \r\n\r\n" * (MAX_INFORMATIONAL + more) + SIZED)

    async with run_upstream(say) as upstream, make_client(upstream.port) as client:
        assert (await read_until_end(client))[0] == status


async def test_an_answer_may_come_byte_by_byte() -> None:
    async def say(_: RawRequest, connection: Connection) -> None:
        for at in range(len(WHOLE)):
            await connection.send(WHOLE[at : at + 1])
            await asyncio.sleep(0)

    async with run_upstream(say) as upstream, make_client(upstream.port) as client:
        assert await read_until_end(client) == (200, b"".join(EVENTS[:3]), None)


@pytest.mark.parametrize("ending", ["close", "reset"])
@pytest.mark.parametrize(
    ("answer", "body"), [(WHOLE, b"".join(EVENTS[:3])), (SIZED, b"hello, world")], ids=["chunked", "sized"]
)
async def test_an_answer_that_ends_too_early_is_never_a_whole_one(answer: bytes, body: bytes, ending: str) -> None:
    at = 0

    async def say(_: RawRequest, connection: Connection) -> None:
        await connection.send(answer[:at])
        if ending == "reset":
            await connection.reset()
        else:
            connection.writer.close()

    head = answer.index(b"\r\n\r\n", answer.index(b" 200 ")) + 4
    async with run_upstream(say) as upstream, make_client(upstream.port) as client:
        for at in range(0, len(answer), 1 if ending == "close" else 9):
            status, came, error = await read_until_end(client)
            assert (status, type(error)) == ((0, UpstreamUnreachable) if at < head else (200, UpstreamBroken)), at
            assert body.startswith(came)
            assert len(came) >= min(len(body), at - head - 30), "what had come is given out"
        assert await upstream.none_open()


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 5000, id="informational ones for ever"),
        pytest.param(b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * HEAD_LIMIT, id="no end"),
        pytest.param(b"HTTP/1.1 200 OK\r\nx: " + b"y" * HEAD_LIMIT + b"\r\ncontent-length: 0\r\n\r\n", id="too long"),
        pytest.param(b"SSH-2.0-OpenSSH_9.2\r\n", id="another protocol"),
        pytest.param(b"\x15\x03\x03\x00\x02\x02\x28", id="TLS"),
        pytest.param(b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\nx", id="upgrade"),
        pytest.param(b"HTTP/1.1 700 What\r\ncontent-length: 0\r\n\r\n", id="status"),
        pytest.param(HEAD + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n{}", id="two ends"),
        pytest.param(HEAD + b"content-length: 2\r\ncontent-length: 9\r\n\r\n{}", id="two lengths"),
    ],
)
async def test_an_answer_that_cannot_be_passed_on_is_broken_and_its_connection_closed(answer: bytes) -> None:
    async def say(_: RawRequest, connection: Connection) -> None:
        with suppress(ConnectionError):
            for at in range(0, len(answer), 10_000):
                await connection.send(answer[at : at + 10_000])
                await asyncio.sleep(0.001)
        await connection.left()

    async with run_upstream(say) as upstream, make_client(upstream.port) as client:
        async with asyncio.timeout(30):
            status, _, error = await read_until_end(client)
        assert (status, type(error)) == (0, UpstreamBroken)
        assert await upstream.none_open()


@pytest.mark.parametrize(
    ("method", "answer", "again"),
    [
        ("HEAD", HEAD + b"content-length: 10\r\n\r\n", True),
        ("HEAD", HEAD + b"transfer-encoding: chunked\r\n\r\n", True),
        ("HEAD", HEAD + b"\r\n", True),
        ("GET", b"HTTP/1.1 204 No Content\r\n\r\n", True),
        ("GET", b"HTTP/1.1 304 Not Modified\r\ncontent-length: 10\r\n\r\n", True),
        ("GET", HEAD + b"content-length: 0\r\n\r\n", True),
        ("HEAD", HEAD + b"content-length: 2\r\n\r\n{}", False),
        ("GET", b"HTTP/1.1 204 No Content\r\n\r\nmore", False),
        ("GET", HEAD + b"content-length: 0\r\n\r\n\r\n", False),
        ("GET", HEAD + b"connection: close\r\ncontent-length: 0\r\n\r\n", False),
        ("GET", b"HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 0\r\n\r\n", False),
    ],
)
async def test_a_connection_is_used_again_where_nothing_is_left_on_it(method: str, answer: bytes, again: bool) -> None:
    async def say(_: RawRequest, connection: Connection) -> None:
        await connection.send(answer)

    async with run_upstream(say) as upstream, make_client(upstream.port) as client:
        for _ in range(3):
            status, came, error = await read_until_end(client, method)
            assert (status in (200, 204, 304), came, error) == (True, b"", None)
        assert upstream.connections == (1 if again else 3)


async def test_a_connection_whose_answer_was_not_heard_to_its_end_is_closed() -> None:
    async def say(_: RawRequest, connection: Connection) -> None:
        await connection.send(STREAM)
        await connection.chunk(EVENTS[0])
        await connection.left()

    async with run_upstream(say) as upstream, make_client(upstream.port) as client:
        reply = await send(client)
        async for _ in reply.iter_bytes():
            break
        assert watched(client)
        await reply.close()
        assert not watched(client)
        assert await upstream.none_open()
        with pytest.raises(UpstreamBroken):  # who reads on all the same does not wait for ever
            await reply.read_body(1000)


def watched(client: UpstreamClient) -> list[ResponseStream]:
    """The answers whose time limits the transport checks, with one timer for all."""
    timers: list[asyncio.TimerHandle] = asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]
    assert sum("_check_time_limits" in repr(timer) and not timer.cancelled() for timer in timers) <= 1
    return list(transport_of(client)._answers)


@pytest.mark.parametrize("said", [b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nforged", b"\r\n", None])
async def test_bytes_on_an_idle_connection_close_it(said: bytes | None) -> None:
    async def say(request: RawRequest, connection: Connection) -> None:
        await answer_json(request, connection)
        await asyncio.sleep(0.02)
        if said is None:
            connection.writer.close()
        else:
            await connection.send(said)

    async with run_upstream(say) as upstream, make_client(upstream.port) as client:
        for _ in range(2):
            assert (await read_until_end(client))[:2] == (200, b"{}")
            await asyncio.sleep(0.1)
            assert connections(client) == 0
        assert upstream.connections == 2


# Requests


@pytest.mark.parametrize("size", [0, 1000, JOINED_BODY_BYTES, JOINED_BODY_BYTES + 1, 3_000_000])
async def test_a_body_of_any_size_goes_whole_and_a_small_one_in_one_piece_with_its_head(size: int) -> None:
    pieces: list[int] = []

    async def count(connection: Connection) -> None:
        while sum(pieces) < size or not pieces:
            pieces.append((await connection.reader.read(1 << 22)).count(b"x"))
        await connection.send(SIZED)

    async with listening(count) as port, make_client(port) as client:
        reply = await client.send(client.targets[0], UpstreamRequest("POST", "/v1/y", b"", [], b"x" * size))
        assert await reply.read_body(100) == b"hello, world"
    assert pieces[0] == size or size >= JOINED_BODY_BYTES


async def upload(*parts: bytes, wait: float = 0.0) -> AsyncIterator[bytes]:
    for part in parts:
        yield part
        await asyncio.sleep(wait)


@pytest.mark.parametrize("parts", [[b"abc"], [b"abc", b"defg"], [b"abcdefgh"], []])
async def test_an_upload_of_another_length_than_it_says_is_the_clients_mistake(parts: list[bytes]) -> None:
    async with run_upstream(answer_json) as upstream, make_client(upstream.port) as client:
        with pytest.raises(BadRequest, match="Content-Length"):
            await client.send(
                client.targets[0], UpstreamRequest("POST", "/x", b"", [(b"content-length", b"6")], upload(*parts))
            )
        assert await upstream.none_open()
        assert upstream.requests == []


@pytest.mark.parametrize("ending", ["left open", "close", "reset"])
@pytest.mark.parametrize("pieces", [True, False], ids=["upload", "bytes"])
async def test_an_answer_that_comes_before_the_body_was_sent_is_reported(pieces: bool, ending: str) -> None:
    async def refuse(connection: Connection) -> None:
        await connection.reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(0.1)  # by now the sockets are full
        await connection.send(b"HTTP/1.1 413 Content Too Large\r\ncontent-length: 4\r\n\r\ntoo ")
        if ending == "reset":
            await connection.reset()
        elif ending == "left open":
            await asyncio.sleep(60)

    body = upload(*[b"x" * 1_000_000] * 50) if pieces else b"x" * 50_000_000
    async with listening(refuse) as port, make_client(port) as client, asyncio.timeout(30):
        reply = await client.send(
            client.targets[0], UpstreamRequest("POST", "/v1/x", b"", [(b"content-length", b"50000000")], body)
        )
        assert (reply.status, await reply.read_body(100)) == (413, b"too ")
        assert connections(client) == 0, "with a body half sent it is good for nothing"


@pytest.mark.parametrize("pieces", [True, False], ids=["upload", "bytes"])
async def test_a_reset_while_the_body_is_sent_is_unreachable(pieces: bool) -> None:
    async def reset(connection: Connection) -> None:
        await connection.reader.readuntil(b"\r\n\r\n")
        await connection.reset()

    body = upload(*[b"x" * 1_000_000] * 50) if pieces else b"x" * 50_000_000
    async with listening(reset) as port, make_client(port) as client, asyncio.timeout(30):
        with pytest.raises(UpstreamUnreachable):
            await client.send(
                client.targets[0], UpstreamRequest("POST", "/v1/x", b"", [(b"content-length", b"50000000")], body)
            )


@pytest.mark.parametrize(
    ("who", "limits"),
    [("client", {"idle_s": 0.2}), ("upstream", {"idle_s": 0.2}), ("upstream", {"total_s": 0.2})],
)
async def test_an_upload_in_which_nothing_moves_ends_in_time(who: str, limits: dict[str, float]) -> None:
    pulled = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal pulled
        while True:
            pulled += 1
            yield b"x" * 65536
            if who == "client":
                await asyncio.sleep(60)

    async def deaf(connection: Connection) -> None:
        connection.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.sleep(60)

    async with listening(deaf) as port, make_client(port, **limits) as client:
        async with asyncio.timeout(30):
            with pytest.raises(UpstreamTimeout):
                await client.send(
                    client.targets[0],
                    UpstreamRequest("POST", "/x", b"", [(b"transfer-encoding", b"chunked")], endless()),
                )
        assert connections(client) == 0
    assert pulled == 1 if who == "client" else pulled < 500, "what cannot be sent is not asked for: back-pressure"


async def test_a_refusal_while_the_clients_part_is_awaited_is_reported_and_the_connection_is_not_reused() -> None:
    async def refuse(connection: Connection) -> None:
        await connection.reader.readuntil(b"\r\n\r\n")
        await connection.send(b"HTTP/1.1 413 Content Too Large\r\ncontent-length: 4\r\n\r\ntoo ")
        await connection.left()

    async with listening(refuse) as port, make_client(port) as client, asyncio.timeout(30):
        body = upload(b"abc", b"def", wait=60)
        reply = await client.send(
            client.targets[0], UpstreamRequest("POST", "/v1/x", b"", [(b"content-length", b"6")], body)
        )
        assert (reply.status, await reply.read_body(100)) == (413, b"too ")
        assert connections(client) == 0


async def test_a_body_whose_upstream_has_gone_is_closed_with_it() -> None:
    async def reset(connection: Connection) -> None:
        await connection.reader.readuntil(b"\r\n\r\n")
        await connection.reset()

    async def endless() -> AsyncGenerator[bytes, None]:
        try:
            while True:
                yield b"x" * 65536
        finally:
            closed.append(True)

    closed: list[bool] = []
    async with listening(reset) as port, make_client(port) as client, asyncio.timeout(30):
        body = endless()
        with pytest.raises(UpstreamUnreachable):
            await client.send(
                client.targets[0], UpstreamRequest("POST", "/v1/x", b"", [(b"transfer-encoding", b"chunked")], body)
            )
        assert closed, "at once, not when it is collected"


async def test_a_body_that_ends_with_its_connection_does_not_end_with_a_reset() -> None:
    async def break_off(_: RawRequest, connection: Connection) -> None:
        await connection.send(b"HTTP/1.1 200 OK\r\n\r\nuntil the end")
        await connection.reset()

    async with run_upstream(break_off) as upstream, make_client(upstream.port) as client:
        status, came, error = await read_until_end(client)
        assert (status, came, type(error)) == (200, b"until the end", UpstreamBroken)


async def test_nothing_more_of_a_cancelled_request_is_sent() -> None:
    came = 0
    cancelled = asyncio.Event()

    async def deaf(connection: Connection) -> None:
        nonlocal came
        await cancelled.wait()
        with suppress(ConnectionError):
            while data := await connection.reader.read(1 << 20):
                came += len(data)

    async with listening(deaf) as port, make_client(port) as client:
        task = asyncio.create_task(send(client, b"x" * 50_000_000))
        await asyncio.sleep(0.1)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        cancelled.set()
        await asyncio.sleep(0.3)
    assert came < 25_000_000, "but what the kernels hold"


# What is held, and for how long


async def test_no_more_than_the_high_water_mark_is_taken_from_the_kernel() -> None:
    async def flood(_: RawRequest, connection: Connection) -> None:
        await connection.send(HEAD + b"content-length: %d\r\n\r\n" % (8 << 20), b"x" * (8 << 20))

    async with run_upstream(flood) as upstream, make_client(upstream.port) as client:
        reply = await send(client)
        await asyncio.sleep(0.2)
        [answer] = transport_of(client)._answers
        assert answer._unread_bytes <= 2 * HIGH_WATER
        assert len(await reply.read_body(8 << 20)) == 8 << 20
        assert idle(client), "it was heard to its end"
        await reply.close()


async def test_the_timer_of_an_answer_ends_with_it() -> None:
    async with run_upstream(answer_json) as upstream, make_client(upstream.port, idle_s=0.15) as client:
        for _ in range(20):
            assert (await read_until_end(client))[:2] == (200, b"{}")
            assert not watched(client), "nothing is checked while nothing is under way"
        assert upstream.connections == 1


async def test_one_timer_keeps_the_limit_of_each_answer() -> None:
    async def say(request: RawRequest, connection: Connection) -> None:
        if request.body == b"whole":
            await answer_json(request, connection)
        else:
            await connection.left()

    async with run_upstream(say) as upstream, make_client(upstream.port, idle_s=0.4) as client:
        loop, begun, ended = asyncio.get_running_loop(), [0.0] * 3, [0.0] * 3

        async def stay_silent(n: int) -> None:
            await asyncio.sleep(0.15 * n)
            begun[n] = loop.time()
            with pytest.raises(UpstreamTimeout):
                await send(client, b"silent")
            ended[n] = loop.time()

        await (await send(client, b"whole")).read_body(100)  # the timer is set for it first
        await asyncio.gather(*map(stay_silent, range(3)))
        assert all(0.39 <= end - begin < 0.55 for begin, end in zip(begun, ended, strict=True))
        assert not watched(client)


async def test_bytes_that_were_not_asked_for_by_the_deadline_are_dropped() -> None:
    async def drip(_: RawRequest, connection: Connection) -> None:
        await connection.send(STREAM)
        for event in EVENTS:
            await connection.chunk(event)
            await asyncio.sleep(0.03)

    async with run_upstream(drip) as upstream, make_client(upstream.port, total_s=0.3) as client:
        parts = (await send(client)).iter_bytes()
        assert await anext(parts) == EVENTS[0]
        await asyncio.sleep(0.4)
        with pytest.raises(UpstreamTimeout, match="total_s"):
            await anext(parts)


def test_the_same_holds_on_the_loop_that_is_served_with() -> None:
    async def run() -> None:
        await test_an_answer_that_comes_before_the_body_was_sent_is_reported(True, "reset")
        await test_an_answer_that_comes_before_the_body_was_sent_is_reported(False, "close")
        await test_a_reset_while_the_body_is_sent_is_unreachable(True)
        await test_bytes_on_an_idle_connection_close_it(None)
        await test_a_body_of_any_size_goes_whole_and_a_small_one_in_one_piece_with_its_head(3_000_000)
        await test_no_more_than_the_high_water_mark_is_taken_from_the_kernel()
        async with run_upstream(answer_json) as upstream, make_client(upstream.port) as client:
            await asyncio.gather(*(read_until_end(client) for _ in range(50)))
            await wait_until(lambda: upstream.open <= 10)

    uvloop.run(run())
