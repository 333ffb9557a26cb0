from __future__ import annotations

import asyncio

import pytest
from websockets.asyncio.server import ServerConnection, serve

from proxy.errors import UpstreamTimeout, UpstreamUnreachable
from proxy.settings.model import DEMO
from proxy.upstream.transport import Target
from proxy.upstream.websocket_client import Closed, HandshakeRefused, UpstreamWebSocket, is_sendable, open_websocket
from tests.raw_upstream import Connection, RawRequest, run_upstream
from tests.scripted_model import send_reply


def target(url: str, key: str | None = None) -> Target:
    return Target("one", url, "openai", key, (), "", "", "")


async def opened(url: str, *subprotocols: str, key: str | None = None, seconds: float = 5.0) -> UpstreamWebSocket:
    headers = [(b"authorization", b"Bearer mine"), (b"sec-websocket-key", b"k"), (b"cookie", b"a=1")]
    return await open_websocket(
        target(url, key), "/v1/realtime", b"model=m", headers, subprotocols, connect_s=seconds, most_bytes=1000
    )


async def test_the_base_path_and_the_operators_key_take_the_place_of_the_clients() -> None:
    seen: list[ServerConnection] = []

    async def note(connection: ServerConnection) -> None:
        seen.append(connection)
        await connection.close(1000)

    async with serve(note, "127.0.0.1", 0) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        there = await opened(f"http://127.0.0.1:{port}/base/v2", key="sk-operator-key")
        with pytest.raises(Closed) as closed:
            await there.receive()
        assert closed.value == Closed(1000, "")
        with pytest.raises(Closed):
            await there.send("too late")
        await there.close(1005, "x" * 500)
    (request,) = [one.request for one in seen]
    assert request is not None
    assert request.path == "/base/v2/realtime?model=m"
    assert request.headers["authorization"] == "Bearer sk-operator-key"
    assert "cookie" not in request.headers
    assert request.headers.get_all("sec-websocket-key") != ["k"]


async def test_a_redirect_is_not_an_answer_that_is_followed() -> None:
    async def redirect(_: RawRequest, connection: Connection) -> None:
        await send_reply(connection, b"302 Found", b"", b"location: http://127.0.0.1:1/elsewhere")

    async with run_upstream(redirect) as upstream:
        with pytest.raises(HandshakeRefused) as refused:
            await opened(f"http://127.0.0.1:{upstream.port}/v1")
        assert (refused.value.status, refused.value.is_final) == (302, False)


async def test_an_upstream_that_is_away_or_silent_is_reported() -> None:
    with pytest.raises(UpstreamUnreachable):
        await opened("http://127.0.0.1:1/v1")

    async def silent(_: RawRequest, connection: Connection) -> None:
        await connection.left()

    async with run_upstream(silent) as upstream:
        with pytest.raises(UpstreamTimeout):
            await opened(f"http://127.0.0.1:{upstream.port}/v1", seconds=0.3)
        assert await upstream.none_open(2.0)


async def test_an_answer_that_is_not_http_is_a_refusal() -> None:
    async def noise(_: RawRequest, connection: Connection) -> None:
        await connection.send(b"hello\r\n\r\n")
        await connection.reset()

    async with run_upstream(noise) as upstream:
        with pytest.raises((HandshakeRefused, UpstreamUnreachable)):
            await opened(f"http://127.0.0.1:{upstream.port}/v1")
    with pytest.raises(HandshakeRefused):
        await opened(DEMO)


@pytest.mark.parametrize(("code", "wanted"), [(1000, True), (1005, False), (1006, False), (999, False), (4999, True)])
def test_codes_that_only_report_are_not_sent(code: int, wanted: bool) -> None:
    assert is_sendable(code) is wanted


async def test_a_cancelled_handshake_leaves_no_connection() -> None:
    async def silent(_: RawRequest, connection: Connection) -> None:
        await connection.left()

    async with run_upstream(silent) as upstream:
        task = asyncio.create_task(opened(f"http://127.0.0.1:{upstream.port}/v1"))
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await upstream.none_open(2.0)
