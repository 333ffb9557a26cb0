"""WebSockets on other paths than `/v1/responses`, through the running proxy to a WebSocket upstream of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.http11 import Request, Response

from tests.proxy_server import RunningProxy, make_key, run_proxy
from tests.raw_upstream import run_upstream, wait_until
from tests.strict_responses import StrictResponses

Handler = Callable[[ServerConnection], Awaitable[None]]
REALTIME = "/v1/realtime?model=gpt-realtime"


class Upstream:
    """A WebSocket server. requests: the handshakes that came. closes: the codes with which clients have left."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.requests: list[Request] = []
        self.closes: list[tuple[int | None, str | None]] = []


@asynccontextmanager
async def upstream_of(handler: Handler, **more: Any) -> AsyncIterator[Upstream]:
    made = Upstream(0)

    async def note(connection: ServerConnection) -> None:
        assert connection.request is not None
        made.requests.append(connection.request)
        with suppress(ConnectionClosed):
            await handler(connection)
        await connection.wait_closed()
        made.closes.append((connection.close_code, connection.close_reason))

    async with serve(note, "127.0.0.1", 0, **more) as server:
        made.port = next(iter(server.sockets)).getsockname()[1]
        yield made


async def echo(connection: ServerConnection) -> None:
    async for message in connection:
        await connection.send(message)


@asynccontextmanager
async def open_tunnel(proxy: RunningProxy, path: str = REALTIME, **more: Any) -> AsyncIterator[ClientConnection]:
    headers = {"authorization": "Bearer sk-one", **more.pop("headers", {})}
    url = f"ws://127.0.0.1:{proxy.port}{path}"
    async with connect(url, additional_headers=headers, max_size=None, proxy=None, **more) as made:
        yield made


async def refuse(proxy: RunningProxy, path: str = REALTIME, **more: Any) -> Any:
    """The answer to a handshake that is refused."""
    with pytest.raises(InvalidStatus) as refused:
        async with open_tunnel(proxy, path, **more):
            pass
    return refused.value.response


async def test_messages_subprotocols_headers_and_closes_go_both_ways() -> None:
    async with (
        upstream_of(echo, subprotocols=["realtime"], max_size=None) as upstream,
        run_proxy(upstream.port) as proxy,
    ):
        headers = {"x-context-user": "me", "openai-beta": "realtime=v1"}
        async with open_tunnel(proxy, subprotocols=["other", "realtime"], headers=headers) as tunnel:
            assert tunnel.subprotocol == "realtime"
            for message in ("text \u00e4", b"\x00\xff", "", "x" * 3_000_000):
                await tunnel.send(message)
                assert await asyncio.wait_for(tunnel.recv(), 10) == message
            await tunnel.close(4001, "done")
        await wait_until(lambda: bool(upstream.closes))
        assert upstream.closes == [(4001, "done")]
        (request,) = upstream.requests
        assert request.path == REALTIME
        assert request.headers["authorization"] == "Bearer sk-one"
        assert request.headers["openai-beta"] == "realtime=v1"
        assert "x-context-user" not in request.headers
        assert request.headers["host"] == f"127.0.0.1:{upstream.port}"
        await wait_until(lambda: proxy.count("requests_total", route="passthrough", status="101") == 1)
        assert proxy.count("unmanaged_total") == 1


async def test_a_close_of_the_upstream_reaches_the_client_with_its_code() -> None:
    async def closes(connection: ServerConnection) -> None:
        await connection.recv()
        await connection.close(4008, "session expired")

    async def breaks(connection: ServerConnection) -> None:
        await connection.recv()
        connection.transport.abort()

    for handler, wanted in ((closes, (4008, "session expired")), (breaks, (1011, ""))):
        async with upstream_of(handler) as upstream, run_proxy(upstream.port) as proxy, open_tunnel(proxy) as tunnel:
            await tunnel.send("go")
            with pytest.raises(ConnectionClosed) as closed:
                await asyncio.wait_for(tunnel.recv(), 10)
            assert closed.value.rcvd is not None
            assert (closed.value.rcvd.code, closed.value.rcvd.reason) == wanted


async def test_a_client_that_breaks_off_ends_the_upstreams_side() -> None:
    async with upstream_of(echo) as upstream, run_proxy(upstream.port) as proxy:
        async with open_tunnel(proxy) as tunnel:
            await tunnel.send("hello")
            await tunnel.recv()
            tunnel.transport.abort()
        await wait_until(lambda: bool(upstream.closes))
        assert upstream.closes[0][0] == 1001


async def test_an_upstream_that_serves_no_websocket_is_answered_with_426() -> None:
    async with run_upstream(StrictResponses()) as upstream, run_proxy(upstream.port) as proxy:
        answer = await refuse(proxy)
        assert answer.status_code == 426
        assert b"WebSocket is not served here; use HTTP." in answer.body
        assert b"upgrade_required" in answer.body
        assert len(upstream.requests) == 1, "it was asked as a WebSocket"
        assert upstream.requests[0].all(b"upgrade") == [b"websocket"]


@pytest.mark.parametrize("path", ["/api/sessions", "/dashboard/", "/healthz", "/metrics"])
async def test_the_proxys_own_pages_are_not_websockets(path: str) -> None:
    async with upstream_of(echo) as upstream, run_proxy(upstream.port) as proxy:
        assert (await refuse(proxy, path)).status_code == 426
        assert upstream.requests == []


async def test_the_demo_and_an_upstream_that_is_away_are_reported() -> None:
    async with run_proxy("demo") as proxy:
        assert (await refuse(proxy)).status_code == 426
    async with run_proxy(1) as proxy:
        assert (await refuse(proxy)).status_code == 502


async def test_a_refusal_of_the_key_is_the_upstreams_own() -> None:
    async def deny(connection: ServerConnection, _: Request) -> Response:
        return connection.respond(401, '{"error":{"message":"Incorrect API key: sk-operator-secret"}}')

    async with upstream_of(echo, process_request=deny) as upstream:
        tree: dict[str, Any] = {"passthrough": {"paths": ["GET /v1/realtime"]}}
        upstreams = {"one": {"base_url": f"http://127.0.0.1:{upstream.port}/v1", "api_key_env": "TUNNEL_KEY"}}
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv("TUNNEL_KEY", "sk-operator-secret")
            async with run_proxy(0, upstreams=upstreams, **tree) as proxy:
                answer = await refuse(proxy)
    assert answer.status_code == 401
    assert b"Incorrect API key: ****" in answer.body
    assert b"operator-secret" not in answer.body


async def test_the_operators_key_opens_listed_paths_alone_and_is_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    async def leaks(connection: ServerConnection) -> None:
        assert connection.request is not None
        await connection.send(f"your key is {connection.request.headers['authorization']}")
        await connection.close(4000, "sk-operator-secret")

    def add_leak(_: ServerConnection, __: Request, response: Response) -> None:
        response.headers["x-seen"] = "sk-operator-secret"
        response.headers["openai-version"] = "1"

    monkeypatch.setenv("TUNNEL_KEY", "sk-operator-secret")
    keys = [make_key("cp-acme-data", "acme")]
    async with upstream_of(leaks, process_response=add_leak, select_subprotocol=lambda *_: None) as upstream:
        upstreams = {"one": {"base_url": f"http://127.0.0.1:{upstream.port}/v1", "api_key_env": "TUNNEL_KEY"}}
        async with run_proxy(0, upstreams=upstreams, keys=keys) as proxy:
            assert (await refuse(proxy)).status_code == 401, "a key of the proxy is needed"
            mine = {"x-context-key": "cp-acme-data"}
            assert (await refuse(proxy, headers=mine)).status_code == 403, "the path is not listed"
            assert (await refuse(proxy, "/v1/../realtime", headers=mine)).status_code == 400
        assert upstream.requests == []
        async with run_proxy(0, upstreams=upstreams, keys=keys, passthrough={"paths": ["GET /v1/realtime"]}) as proxy:
            names = ["realtime", "openai-insecure-api-key.sk-mine"]
            async with open_tunnel(proxy, headers=mine, subprotocols=names) as tunnel:
                assert await tunnel.recv() == "your key is Bearer " + "*" * len("sk-operator-secret")
                with pytest.raises(ConnectionClosed) as closed:
                    await tunnel.recv()
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.reason == "*" * len("sk-operator-secret")
            assert tunnel.response is not None
            assert "x-seen" not in tunnel.response.headers
            assert tunnel.response.headers["openai-version"] == "1"
        (request,) = upstream.requests
        assert request.headers["authorization"] == "Bearer sk-operator-secret"
        assert request.headers["sec-websocket-protocol"] == "realtime"
        assert "x-context-key" not in request.headers


async def test_a_page_of_another_site_opens_no_tunnel() -> None:
    async with upstream_of(echo) as upstream, run_proxy(upstream.port) as proxy:
        answer = await refuse(proxy, headers={"origin": "https://evil.example", "authorization": ""})
        assert answer.status_code == 403
        assert upstream.requests == []


async def test_silence_and_long_messages_have_a_bound() -> None:
    tree: dict[str, Any] = {"timeouts": {"idle_s": 0.5}, "limits": {"body_mb": 1}}
    async with upstream_of(echo, max_size=None) as upstream, run_proxy(upstream.port, **tree) as proxy:
        async with open_tunnel(proxy) as tunnel:
            with pytest.raises(ConnectionClosed) as closed:
                await asyncio.wait_for(tunnel.recv(), 10)
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1001
        async with open_tunnel(proxy) as tunnel:
            with suppress(ConnectionClosed):
                await tunnel.send(b"x" * (2 << 20))
            with pytest.raises(ConnectionClosed) as closed:
                await asyncio.wait_for(tunnel.recv(), 10)
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1009
        await wait_until(lambda: len(upstream.closes) == 2)
        assert proxy.count("internal_errors_total", where="web") == 0


async def test_as_many_tunnels_as_requests_may_be_open() -> None:
    async with upstream_of(echo) as upstream, run_proxy(upstream.port, limits={"requests": 1}) as proxy:
        async with open_tunnel(proxy) as tunnel:
            await tunnel.send("hello")
            await tunnel.recv()
            assert (await refuse(proxy)).status_code == 503
        await wait_until(lambda: bool(upstream.closes))
        async with open_tunnel(proxy) as tunnel:
            await tunnel.send("hello")
            assert await tunnel.recv() == "hello"


async def test_a_server_that_stops_closes_its_tunnels() -> None:
    async with upstream_of(echo) as upstream:
        async with run_proxy(upstream.port) as proxy, open_tunnel(proxy) as tunnel:
            assert proxy.server is not None
            proxy.app.drain()
            proxy.server.should_exit = True
            with pytest.raises(ConnectionClosed) as closed:
                await asyncio.wait_for(tunnel.recv(), 5)
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1012
        await wait_until(lambda: bool(upstream.closes))
