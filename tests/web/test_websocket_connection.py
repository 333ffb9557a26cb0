from __future__ import annotations

import asyncio
import logging
import os
import struct
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress

import pytest
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed, InvalidStatus

from proxy.web import websocket_connection
from tests.proxy_server import run_proxy
from tests.raw_upstream import HANGS_S, abort_all, connect, run_upstream, wait_until
from tests.strict_responses import StrictResponses
from tests.web.test_responses_websocket import HELLO, ask, create, hear, socket

HANDSHAKE = (
    b"GET /v1/responses HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: Upgrade\r\nupgrade: websocket\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


async def test_a_frame_may_be_as_long_as_a_body_but_not_longer() -> None:
    model = StrictResponses("Well.")
    async with run_upstream(model) as upstream, run_proxy(upstream.port, limits={"body_mb": 1}) as proxy:
        async with socket(proxy) as websocket:
            await ask(websocket, [HELLO], user="a" * 900_000)
            await websocket.send(create([HELLO], user="a" * 1_100_000))
            with pytest.raises(ConnectionClosed) as closed:
                await hear(websocket)
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1009
        assert len(upstream.requests) == 1


async def test_a_frame_that_grows_when_it_is_decompressed_is_bounded_too() -> None:
    async with (
        run_upstream(StrictResponses("Well.")) as upstream,
        run_proxy(upstream.port, limits={"body_mb": 1}) as proxy,
    ):
        async with socket(proxy, compression="deflate") as websocket:
            await websocket.send(create([HELLO], user="a" * 50_000_000))
            with pytest.raises(ConnectionClosed) as closed:
                await hear(websocket)
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1009
        assert upstream.requests == []


async def test_incomplete_messages_share_one_budget() -> None:
    """Each of them may be as long as a body, on as many connections as there are; compressed it costs its client
    nothing."""

    async def send_half(websocket: ClientConnection) -> None:
        half = create([HELLO], user="a" * 700_000)[:-100_000]

        async def fragments() -> AsyncIterator[str]:
            yield half
            await asyncio.Event().wait()

        with suppress(ConnectionClosed):
            await websocket.send(fragments())

    async with (
        run_upstream(StrictResponses("Well.")) as upstream,
        run_proxy(upstream.port, limits={"body_mb": 1, "bodies_mb": 4}) as proxy,
        AsyncExitStack() as stack,
    ):
        held = [await stack.enter_async_context(socket(proxy, compression="deflate")) for _ in range(6)]
        sending = [asyncio.create_task(send_half(one)) for one in held]
        await wait_until(lambda: any(one.close_code == 1013 for one in held))
        assert [one.close_code for one in held].count(None) in (2, 3)  # one address has half of the room
        async with socket(proxy) as there:
            await ask(there, [HELLO])  # a small one finds room
        for task in sending:
            task.cancel()
        await stack.aclose()
        async with socket(proxy) as one, socket(proxy) as other, socket(proxy) as third:
            for there in (one, other, third):
                await ask(there, [HELLO], user="a" * 700_000)


async def test_empty_websocket_fragments_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket_connection, "PING_S", HANGS_S * 2)
    async with (
        run_upstream(StrictResponses("Well.")) as upstream,
        run_proxy(upstream.port, limits={"body_mb": 1, "bodies_mb": 1}) as proxy,
    ):
        client = await connect(proxy.port)
        await client.send(HANDSHAKE)
        assert b"101" in await client.reader.readuntil(b"\r\n\r\n")
        await client.send(b"\x01\x80\0\0\0\0" + b"\x00\x80\0\0\0\0" * 30_000)
        async with asyncio.timeout(HANGS_S):
            with suppress(ConnectionError):  # some of it has not been read
                while await client.reader.read(1000):
                    pass
        await abort_all([client])


async def test_waiting_frames_count_towards_the_budget_of_bodies() -> None:
    async with (
        run_upstream(StrictResponses("Well.")) as upstream,
        run_proxy(upstream.port, limits={"body_mb": 1, "bodies_mb": 1}) as proxy,
    ):
        budget = proxy.app.body_budget
        with budget.share("another") as share:
            share.reserve(900_000)
            async with socket(proxy) as websocket:
                await websocket.send(create([HELLO], user="a" * 200_000))
                with pytest.raises(ConnectionClosed) as closed:
                    await hear(websocket)
                assert closed.value.rcvd is not None
                assert closed.value.rcvd.code == 1013
        assert upstream.requests == []
        async with socket(proxy) as websocket:
            await ask(websocket, [HELLO], user="a" * 200_000)
        assert budget.held == 0


async def test_a_frame_with_too_many_values_is_refused_and_the_connection_continues() -> None:
    """A frame of 40 MB with 20 million numbers held every other request for 55 s, and took 5.7 GB."""
    async with (
        run_upstream(StrictResponses("Well.")) as upstream,
        run_proxy(upstream.port, limits={"values": 1000}) as proxy,
        socket(proxy) as websocket,
    ):
        await websocket.send(create([HELLO], metadata={"a": [0] * 1000}))
        (error,) = await hear(websocket)
        assert (error["status"], "1000 JSON values" in error["error"]["message"]) == (400, True)
        await ask(websocket, [HELLO])
        assert len(upstream.requests) == 1


async def test_a_history_that_is_longer_than_a_body_is_refused_and_the_connection_continues() -> None:
    async with (
        run_upstream(StrictResponses("Well.")) as upstream,
        run_proxy(upstream.port, limits={"body_mb": 1}) as proxy,
        socket(proxy) as websocket,
    ):
        long = {"type": "message", "role": "user", "content": "a" * 700_000}
        first = await ask(websocket, [long])
        await websocket.send(create([long], previous_response_id=first["id"]))
        assert (await hear(websocket))[-1]["status"] == 413
        await ask(websocket, [HELLO], previous_response_id=first["id"])


async def test_websocket_connections_count_with_the_others_and_free_their_place() -> None:
    async with (
        run_upstream(StrictResponses("Well.")) as upstream,
        run_proxy(upstream.port, limits={"connections": 3}) as proxy,
    ):
        async with socket(proxy) as one, socket(proxy) as other, socket(proxy):
            await ask(one, [HELLO])
            with pytest.raises(InvalidStatus) as refused:
                async with socket(proxy):
                    pass
            assert refused.value.response.status_code == 503
            await ask(other, [HELLO])
        async with socket(proxy) as again:
            await ask(again, [HELLO])
        assert proxy.server is not None
        await wait_until(lambda: proxy.server is not None and not proxy.server.server_state.connections)


async def test_a_client_that_answers_no_ping_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket_connection, "PING_S", 0.1)
    async with run_upstream(StrictResponses("Well.")) as upstream, run_proxy(upstream.port) as proxy:
        client = await connect(proxy.port)
        await client.send(HANDSHAKE)
        assert b"101" in await client.reader.readuntil(b"\r\n\r\n")
        mask = os.urandom(4)
        await client.send(b"\x81\xff" + struct.pack("!Q", 1000) + mask + b"half a frame")
        async with asyncio.timeout(HANGS_S):
            while await client.reader.read(1000):
                pass
        await abort_all([client])
        assert proxy.server is not None
        await wait_until(lambda: proxy.server is not None and not proxy.server.server_state.connections)


async def test_frames_after_the_handshake_are_read() -> None:
    async with run_upstream(StrictResponses("Well.")) as upstream, run_proxy(upstream.port) as proxy:
        client = await connect(proxy.port)
        data = create([HELLO]).encode()
        frame = b"\x81\xfe" + struct.pack("!H", len(data)) + b"\0\0\0\0" + data
        await client.send(HANDSHAKE + frame)
        async with asyncio.timeout(HANGS_S):
            await client.reader.readuntil(b"response.completed")
        await abort_all([client])
        assert len(upstream.requests) == 1


async def test_no_path_and_no_query_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with (
        run_upstream(StrictResponses("Well.")) as upstream,
        run_proxy(upstream.port) as proxy,
        socket(proxy, "/v1/responses?secret=1") as websocket,
    ):
        await ask(websocket, [HELLO])
    ours = [one for one in caplog.records if one.name.startswith(("proxy", "uvicorn"))]
    assert ours
    assert not any("secret" in one.getMessage() for one in ours)
