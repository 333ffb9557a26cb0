"""The whole proxy on a real socket, and a client that hears exactly what comes back.

Nothing in here knows the proxy's inside but `Running.app`, which is there for tests that look at what was stored.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import uvicorn

from proxy.metrics import Metrics
from proxy.settings.load import Settings
from proxy.store.base import Row
from proxy.store.sql import for_sqlite
from proxy.web.app import ContextProxy, create_app
from proxy.web.server import make_connection_class
from tests.raw_upstream import HANGS_S, make_post, send_raw

CHAT = "/v1/chat/completions"


@dataclass(frozen=True)
class RawAnswer:
    """An answer as it came over the socket. whole: it ended as HTTP says an answer ends."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes
    whole: bool

    def header(self, name: str) -> str | None:
        return next((v.decode("latin-1") for k, v in self.headers if k.decode("latin-1").lower() == name), None)

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        found: dict[str, Any] = self.json()["error"]
        return found

    @property
    def events(self) -> list[bytes]:
        """The data of each event of a stream."""
        return [e[6:] for e in self.body.split(b"\n\n") if e.startswith(b"data: ")]

    @property
    def message(self) -> dict[str, Any]:
        """The assistant message, whichever way it came."""
        if self.header("content-type") == "application/json":
            found: dict[str, Any] = self.json()["choices"][0]["message"]
            return found
        return join_chunks(json.loads(e) for e in self.events if e != b"[DONE]")

    @property
    def session(self) -> str:
        found = self.header("x-context-session")
        assert found is not None
        return found


def join_chunks(chunks: Iterator[dict[str, Any]]) -> dict[str, Any]:
    """The message that chunks add up to, as a plain client joins them."""
    message: dict[str, Any] = {"role": "assistant", "content": None}
    calls: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for choice in chunk.get("choices", ()):
            delta = choice["delta"]
            if delta.get("content"):
                message["content"] = (message["content"] or "") + delta["content"]
            for part in delta.get("tool_calls") or ():
                call = calls.setdefault(
                    part["index"], {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
                )
                call["id"] += part.get("id") or ""
                call["function"]["name"] += part["function"].get("name") or ""
                call["function"]["arguments"] += part["function"].get("arguments") or ""
    if calls:
        message["tool_calls"] = [calls[n] for n in sorted(calls)]
    return message


def parse_answer(raw: bytes) -> RawAnswer:
    """The one answer in these bytes."""
    head, _, rest = raw.partition(b"\r\n\r\n")
    line, *fields = head.split(b"\r\n")
    headers = [(k, v.strip()) for k, _, v in (f.partition(b":") for f in fields)]
    named = {k.lower(): v for k, v in headers}
    if named.get(b"transfer-encoding") != b"chunked":
        length = int(named.get(b"content-length", b"0"))
        return RawAnswer(int(line.split()[1]), headers, rest, len(rest) == length)
    body, whole = b"", False
    while b"\r\n" in rest:
        size, _, rest = rest.partition(b"\r\n")
        count = int(size, 16)
        whole = count == 0
        body, rest = body + rest[:count], rest[count + 2 :]
    return RawAnswer(int(line.split()[1]), headers, body, whole)


@dataclass
class RunningProxy:
    """A proxy that answers on `port`."""

    app: ContextProxy
    port: int
    beside: asyncio.AbstractEventLoop | None = None
    """The loop that it runs in, if it has a thread of its own."""
    server: uvicorn.Server | None = None
    """The server, if it runs in this event loop: for tests that look at its connections."""

    def put_beside(self, rows: list[Row]) -> None:
        """Have one in a thread of its own store these. The store of one process knows what went through it alone."""
        assert self.beside is not None

        async def put() -> None:
            await self.app.store.put(rows)

        asyncio.run_coroutine_threadsafe(put(), self.beside).result(30)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def metrics(self) -> Metrics:
        return self.app.services.metrics

    async def post(
        self,
        body: bytes | dict[str, Any],
        *lines: bytes,
        path: str = CHAT,
        key: str = "sk-one",
        seconds: float = HANGS_S,
    ) -> RawAnswer:
        """One POST on a connection of its own; `lines` are further header lines."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        head = [b"content-type: application/json", *([b"authorization: Bearer " + key.encode()] if key else [])]
        return parse_answer(await send_raw(self.port, make_post(path, raw, *head, *lines), seconds))

    async def get(self, path: str) -> RawAnswer:
        """One GET on a connection of its own, without a key."""
        raw = b"GET %b HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n" % path.encode()
        return parse_answer(await send_raw(self.port, raw))

    async def rows(self, text: str, *args: Any) -> list[tuple[Any, ...]]:
        """Rows of the store, once it has written all that it was given."""
        async with asyncio.timeout(20):
            while self.app.store.queued:
                await asyncio.sleep(0.005)
        store: Any = self.app.store
        found: list[tuple[Any, ...]] = await store._fetch(for_sqlite(text), args)
        return found

    async def outcomes(self) -> list[tuple[Any, ...]]:
        """(status, http status, fallback) of each exchange, oldest first."""
        return await self.rows("SELECT status, http_status, fallback FROM exchanges ORDER BY started_at")

    async def outcome(self, seconds: float = 20.0) -> tuple[Any, ...]:
        """The last exchange's, once it has one."""
        async with asyncio.timeout(seconds):
            while True:
                found = await self.outcomes()
                if found and found[-1][0] != "open":
                    return found[-1]
                await asyncio.sleep(0.01)

    def count(self, metric: str, **labels: str) -> float:
        """The sum of the metric's samples that have these labels."""
        samples = (one for family in self.metrics.registry.collect() for one in family.samples)
        name = f"context_proxy_{metric}"
        return sum(one.value for one in samples if one.name == name and labels.items() <= one.labels.items())

    def read_dollars(self) -> tuple[float, float]:
        """The dollars that were paid, and those without the proxy."""
        return self.count("cost_dollars_total", kind="paid"), self.count("cost_dollars_total", kind="without")


PATIENT_LIMITS: dict[str, dict[str, Any]] = {
    "store": {"read_s": HANGS_S},
    "limits": {"commit_wait_ms": 20_000, "plan_ms": 60_000},
    "timeouts": {"connect_s": 60.0},
}
"""A busy machine may take its time, also to write: a turn that is stored later than it is answered is told apart. A
plan that takes longer than a second leaves the prompt as it came: tests that look for its edits found none. A process
that stood still for five seconds found no connection to its upstream."""


def make_settings(upstream: int | str, **tree: Any) -> Settings:
    """Settings for one upstream (its port, or what `upstream` may be); plain where a test does not say otherwise."""
    url = f"http://127.0.0.1:{upstream}/v1" if isinstance(upstream, int) else upstream
    defaults: dict[str, Any] = {"db": ":memory:", "policy": "passthrough", "tokens": {"count": "estimate"}}
    named = {} if "upstreams" in tree else {"upstream": url}
    for name, limits in PATIENT_LIMITS.items():
        tree[name] = limits | tree.get(name, {})
    return Settings.model_validate(defaults | named | tree)


def make_key(key: str, tenant: str = "acme", plane: str = "data") -> dict[str, str]:
    """An entry of the setting `keys`, for this key."""
    name = f"{tenant}-{plane}".replace("*", "all")
    return {"name": name, "sha256": sha256(key.encode()).hexdigest(), "tenant": tenant, "plane": plane}


def make_server(app: ContextProxy) -> uvicorn.Server:
    """A server as `context-proxy serve` makes one, on a port that is free."""
    config = uvicorn.Config(
        app, host="127.0.0.1", port=0, log_config=None, log_level="critical", lifespan="on", ws="none",
        http=make_connection_class(app.settings, app.services.metrics),
        server_header=False, date_header=False, proxy_headers=False, access_log=False, timeout_graceful_shutdown=1,
    )  # fmt: skip
    return uvicorn.Server(config)


@asynccontextmanager
async def run_proxy(
    upstream: int | str, *, before: Callable[[ContextProxy], None] | None = None, **tree: Any
) -> AsyncIterator[RunningProxy]:
    """The proxy in this event loop. `before` may change the app before it starts."""
    app = create_app(make_settings(upstream, **tree))
    if before is not None:
        before(app)
    server = make_server(app)
    task = asyncio.create_task(server.serve())
    while not server.started:
        if task.done():
            raise AssertionError("the server did not start")
        await asyncio.sleep(0.005)
    try:
        yield RunningProxy(app, server.servers[0].sockets[0].getsockname()[1], server=server)
    finally:
        server.should_exit = True
        await task


@contextmanager
def run_proxy_in_thread(upstream: int | str, **tree: Any) -> Iterator[RunningProxy]:
    """The same in a thread of its own, for clients that block."""
    app = create_app(make_settings(upstream, **tree))
    server = make_server(app)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        waiting = threading.Event()
        while not server.started:
            assert thread.is_alive(), "the server did not start"
            waiting.wait(0.01)
        yield RunningProxy(app, server.servers[0].sockets[0].getsockname()[1], server.servers[0].get_loop())
    finally:
        server.should_exit = True
        thread.join(30)


@dataclass
class Agent:
    """A client that keeps its history as agents do, and sends all of it each time."""

    proxy: RunningProxy
    lines: tuple[bytes, ...] = ()
    key: str = "sk-one"
    path: str = CHAT
    stream: bool = False
    more: dict[str, Any] = field(default_factory=dict)
    messages: list[dict[str, Any]] = field(default_factory=list)

    async def say(self, text: str | None = None, *lines: bytes, **more: Any) -> RawAnswer:
        """Ask (with `text` as a new user message, or as the history stands) and remember the answer."""
        if text is not None:
            self.messages.append({"role": "user", "content": text})
        found = await self.send(*lines, **more)
        assert found.status == 200, found.body
        self.messages.append(found.message)
        return found

    async def send(self, *lines: bytes, **more: Any) -> RawAnswer:
        """Ask, and remember nothing."""
        body = {"model": "m", "messages": self.messages, **self.more, **more}
        if self.stream:
            body["stream"] = True
        return await self.proxy.post(body, *self.lines, *lines, path=self.path, key=self.key)

    def brings(self, *contents: str) -> None:
        """The results of the last answer's calls."""
        calls = self.messages[-1]["tool_calls"]
        for call, content in zip(calls, contents, strict=True):
            self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})
