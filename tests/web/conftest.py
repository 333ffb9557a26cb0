"""The proxy's own edge without the exchange: guard, errors and passthrough in front of a scripted upstream."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from proxy.metrics import Metrics
from proxy.settings.load import Settings
from proxy.settings.model import PoolSettings, TimeoutSettings
from proxy.upstream.client import UpstreamClient
from proxy.web.asgi import Receive, Scope, Send
from proxy.web.error_responses import answer_errors
from proxy.web.limits import limit_heads
from proxy.web.passthrough import serve_passthrough
from tests.raw_upstream import Script, Upstream, run_upstream, serve_app


@dataclass
class Edge:
    """The port for clients, the upstream behind it, and its metrics."""

    port: int
    upstream: Upstream
    client: UpstreamClient
    metrics: Metrics

    @property
    def busy(self) -> int:
        return self.client._transports["default"].open_responses

    def count(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(f"context_proxy_{name}", labels) or 0.0


@asynccontextmanager
async def edge(script: Script, **timeouts: float) -> AsyncIterator[Edge]:
    metrics = Metrics()
    async with run_upstream(script) as upstream:
        settings = Settings(
            upstream=f"http://127.0.0.1:{upstream.port}",
            timeouts=TimeoutSettings(**timeouts),
            pool=PoolSettings(connections=10, keepalive=10),
        )
        client = UpstreamClient(settings, metrics)

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await serve_passthrough(scope, receive, send, client, metrics, path=scope["raw_path"].decode())

        async with serve_app(answer_errors(limit_heads(app, settings), metrics)) as port:
            yield Edge(port, upstream, client, metrics)
        await client.close()
