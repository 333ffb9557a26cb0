from __future__ import annotations

import asyncio
import gzip
import time

import pytest

from proxy.errors import AnswerTooLong, UpstreamBroken, UpstreamTimeout
from proxy.upstream.client import Reply, UpstreamRequest
from tests.raw_upstream import HEAD, STREAM, Connection, RawRequest, run_upstream
from tests.upstream.conftest import EVENTS, errors, gathered, make_client, send


async def timed(reply: Reply, came: list[float]) -> UpstreamTimeout:
    """The time at which each part came, and the timeout that ended them."""
    try:
        async for _ in reply.iter_bytes():
            came += [time.monotonic()]
    except UpstreamTimeout as error:
        return error
    pytest.fail("it came to an end")


@pytest.mark.parametrize("count", range(0, 21, 4))
async def test_u4_bytes_before_a_reset_are_given_out(count: int) -> None:
    async def reset_after(_: RawRequest, connection: Connection) -> None:
        await connection.send(STREAM)
        for event in EVENTS[:count]:
            await connection.chunk(event)
        await connection.reset()

    async with run_upstream(reset_after) as upstream, make_client(upstream.port) as client:
        reply = await send(client)
        came, error = await gathered(reply)
        assert came == b"".join(EVENTS[:count])
        assert isinstance(error, UpstreamBroken)
        assert errors(client, "broken") == 1


async def test_u5_a_close_before_the_last_chunk_is_broken_and_one_after_it_is_an_end() -> None:
    async def close(request: RawRequest, connection: Connection) -> None:
        await connection.send(STREAM)
        await connection.chunk(EVENTS[0])
        if b"whole" in request.body:
            await connection.send(b"0\r\n\r\n")
        connection.writer.close()

    async with run_upstream(close) as upstream, make_client(upstream.port) as client:
        came, error = await gathered(await send(client))
        assert (came, type(error)) == (EVENTS[0], UpstreamBroken)
        came, error = await gathered(await send(client, b"whole"))
        assert (came, error) == (EVENTS[0], None)


async def test_u6_a_cut_inside_a_character_leaves_the_bytes_as_they_are() -> None:
    cut = EVENTS[3][: EVENTS[3].index(b"\xc3") + 1]

    async def close(_: RawRequest, connection: Connection) -> None:
        await connection.send(STREAM)
        await connection.chunk(EVENTS[2])
        await connection.chunk(cut)
        connection.writer.close()

    async with run_upstream(close) as upstream, make_client(upstream.port) as client:
        came, error = await gathered(await send(client))
        assert came == EVENTS[2] + cut
        assert isinstance(error, UpstreamBroken)


@pytest.mark.timed
async def test_u7_silence_in_the_middle_ends_at_the_idle_timeout_and_frees_the_connection() -> None:
    async def stall(_: RawRequest, connection: Connection) -> None:
        await connection.send(STREAM)
        await connection.chunk(EVENTS[0])
        await connection.left()

    async with run_upstream(stall) as upstream, make_client(upstream.port, idle_s=0.2) as client:
        started = time.monotonic()
        came, error = await gathered(await send(client))
        assert came == EVENTS[0]
        assert isinstance(error, UpstreamTimeout)
        assert time.monotonic() - started == pytest.approx(0.2, abs=0.15)
        assert await upstream.none_open()


@pytest.mark.timed
async def test_u8_a_slow_drip_is_forwarded_as_it_comes_and_ends_at_the_deadline() -> None:
    sent: list[float] = []

    async def drip(_: RawRequest, connection: Connection) -> None:
        await connection.send(STREAM)
        for _number in range(100):
            sent.append(time.monotonic())
            await connection.chunk(b".")
            await asyncio.sleep(0.1)

    async with run_upstream(drip) as upstream, make_client(upstream.port, idle_s=0.4, total_s=0.75) as client:
        started = time.monotonic()
        reply = await send(client)
        came: list[float] = []
        error = await timed(reply, came)
        assert "total_s" in str(error)
        assert time.monotonic() - started == pytest.approx(0.75, abs=0.15)
        assert len(came) >= 5
        assert max(there - here for here, there in zip(sent, came, strict=False)) < 0.05
        assert await upstream.none_open()


async def test_a_slow_reader_is_not_taken_for_a_silent_upstream() -> None:
    async def two(_: RawRequest, connection: Connection) -> None:
        await connection.send(STREAM)
        await connection.chunk(EVENTS[0])
        await asyncio.sleep(0.3)
        await connection.chunk(EVENTS[1])
        await connection.send(b"0\r\n\r\n")

    async with run_upstream(two) as upstream, make_client(upstream.port, idle_s=0.25) as client:
        reply = await send(client)
        came = b""
        async for part in reply.iter_bytes():
            came += part
            await asyncio.sleep(0.4)
        assert came == EVENTS[0] + EVENTS[1]


@pytest.mark.parametrize("ending", ["close", "reset"])
async def test_u4_bytes_before_the_end_are_given_out_to_a_slow_reader_too(ending: str) -> None:
    async def break_off(_: RawRequest, connection: Connection) -> None:
        await connection.send(STREAM)
        for event in EVENTS:
            await connection.chunk(event)
            await asyncio.sleep(0.001)
        if ending == "reset":
            await connection.reset()
        else:
            connection.writer.close()

    async with run_upstream(break_off) as upstream, make_client(upstream.port) as client:
        reply = await send(client)
        parts = reply.iter_bytes()
        came = await anext(parts)
        await upstream.none_open()
        await asyncio.sleep(0.05)
        more, error = await gathered(reply)
        assert came + more == b"".join(EVENTS)
        assert isinstance(error, UpstreamBroken)


async def test_back_pressure_reaches_the_upstream() -> None:
    written = 0

    async def flood(_: RawRequest, connection: Connection) -> None:
        nonlocal written
        await connection.send(STREAM)
        for _number in range(1000):
            await connection.chunk(b"x" * 65536)
            written += 65536

    async with run_upstream(flood) as upstream, make_client(upstream.port) as client:
        reply = await send(client)
        async for _ in reply.iter_bytes():
            break
        await asyncio.sleep(0.3)
        held = written
        await asyncio.sleep(0.3)
        assert written == held, "the upstream goes on writing though nobody reads"
        assert written < 20 << 20  # what the kernels on both sides hold, and 256 KiB of ours
        await reply.close()
        assert await upstream.none_open()


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(HEAD + b"content-length: 100\r\n\r\n{", id="longer length than body"),
        pytest.param(STREAM + b"zz\r\nnot a chunk", id="chunk garbage"),
        pytest.param(STREAM + b"5\r\nab", id="cut chunk"),
    ],
)
async def test_u11_a_body_that_is_not_whole_is_broken(answer: bytes) -> None:
    async def say(_: RawRequest, connection: Connection) -> None:
        await connection.send(answer)
        connection.writer.close()

    async with run_upstream(say) as upstream, make_client(upstream.port) as client:
        _, error = await gathered(await send(client))
        assert isinstance(error, UpstreamBroken)


async def test_u11_bytes_after_the_end_of_an_answer_never_reach_another_request() -> None:
    async def say(request: RawRequest, connection: Connection) -> None:
        forged = HEAD + b'content-length: 10\r\n\r\n"somebody"'
        if b"first" in request.body:
            await connection.send(HEAD + b"content-length: 2\r\n\r\n{}" + forged)
        else:
            await connection.send(HEAD + b'content-length: 6\r\n\r\n"mine"')

    async with run_upstream(say) as upstream, make_client(upstream.port) as client:
        assert await (await send(client, b"first")).read_body(1000) == b"{}"
        assert await (await send(client)).read_body(1000) == b'"mine"'
        assert upstream.connections == 2, "the connection with bytes left over was used again"


@pytest.mark.parametrize(("asked", "encoding"), [(False, b"gzip"), (True, b"x-unknown"), (True, b"gzip, x-unknown")])
async def test_u13_an_answer_in_a_coding_that_is_not_known_or_asked_for_stays_as_it_is(
    asked: bool, encoding: bytes
) -> None:
    packed = gzip.compress(b'{"a":1}')

    async def pack(_: RawRequest, connection: Connection) -> None:
        await connection.send(
            HEAD, b"content-encoding: %b\r\ncontent-length: %d\r\n\r\n" % (encoding, len(packed)), packed
        )

    async with run_upstream(pack) as upstream, make_client(upstream.port) as client:
        reply = await send(client, identity=asked)
        assert reply.encoding == encoding.decode()
        assert not reply.is_readable
        assert (b"content-encoding", encoding) in reply.headers
        assert await reply.read_body(1000) == packed
        assert errors(client, "encoding") == asked


async def test_u13_an_answer_that_is_compressed_although_identity_was_asked_for_is_decoded() -> None:
    async def pack(request: RawRequest, connection: Connection) -> None:
        assert request.all(b"accept-encoding") == [b"identity"]
        packed = gzip.compress(b'{"a":1}')
        await connection.send(HEAD, b"Content-Encoding: GZip\r\ncontent-length: %d\r\n\r\n" % len(packed), packed)

    async with run_upstream(pack) as upstream, make_client(upstream.port) as client:
        reply = await client.send(
            client.targets[0],
            UpstreamRequest("POST", "/v1/x", b"", [(b"accept-encoding", b"gzip, br")], b"{}"),
            identity=True,
        )
        assert reply.is_readable
        assert {name for name, _ in reply.headers} == {b"content-type"}
        assert await reply.read_body(1000) == b'{"a":1}'
        assert errors(client, "encoding") == 0


async def test_u17_an_http_1_0_answer_ends_with_its_connection() -> None:
    async def say(_: RawRequest, connection: Connection) -> None:
        await connection.send(b"HTTP/1.0 200 OK\r\n\r\nuntil the end")
        connection.writer.close()

    async with run_upstream(say) as upstream, make_client(upstream.port) as client:
        assert await gathered(await send(client)) == (b"until the end", None)


async def test_an_answer_over_the_limit_can_still_be_had_from_the_start() -> None:
    async def long(_: RawRequest, connection: Connection) -> None:
        await connection.send(STREAM)
        for _number in range(30):
            await connection.chunk(b"0123456789" * 100)
        await connection.send(b"0\r\n\r\n")

    async with run_upstream(long) as upstream, make_client(upstream.port) as client:
        reply = await send(client)
        with pytest.raises(AnswerTooLong, match="over 5000 bytes"):
            await reply.read_body(5000)
        assert await reply.read_body(1 << 20) == b"0123456789" * 3000


async def test_a_read_that_is_cancelled_closes_the_connection_by_itself() -> None:
    async def stall(_: RawRequest, connection: Connection) -> None:
        await connection.send(STREAM)
        await connection.chunk(EVENTS[0])
        await connection.left()

    async with run_upstream(stall) as upstream, make_client(upstream.port) as client:
        reading = asyncio.create_task((await send(client)).read_body(1000))
        await asyncio.sleep(0.05)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert client._transports["default"].open_responses == 0
        assert await upstream.none_open()


async def test_an_error_that_was_looked_into_can_be_passed_on() -> None:
    async def refuses(_: RawRequest, connection: Connection) -> None:
        await connection.send(b"HTTP/1.1 400 Bad\r\ncontent-length: 7\r\n\r\n", b"too long"[:7])

    async with run_upstream(refuses) as upstream, make_client(upstream.port) as client:
        reply = await send(client)
        assert await reply.peek_body(100) == b"too lon"
        assert await reply.read_body(100) == b"too lon"
        await reply.close()
