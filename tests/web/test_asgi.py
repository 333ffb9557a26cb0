from __future__ import annotations

import asyncio
import gc
import json
import logging
import weakref
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from proxy.cli.logs import JsonFormatter, TextFormatter
from proxy.errors import ClientGone, TooLarge, UpstreamBroken
from proxy.metrics import Metrics
from proxy.web.asgi import (
    DISCONNECT_KEY,
    MAX_JOINED_BYTES,
    MAX_PATH_CHARS,
    MAX_WAITING_BYTES,
    Disconnect,
    HeldHead,
    Message,
    Receive,
    Scope,
    Send,
    Upload,
    has_body,
    read_body,
    read_content_length,
    render_path,
    run_while_connected,
    with_write_timeout,
)
from proxy.web.error_responses import answer_errors
from tests.proxy_server import CHAT, Agent, run_proxy
from tests.raw_upstream import STREAM, Connection, RawRequest, connect, make_post, run_upstream, send_raw, serve_app
from tests.scripted_model import ScriptedModel, send_reply

GONE: Message = {"type": "http.disconnect"}

NAME = "proxy.requests"


def part(body: bytes, more: bool = True) -> Message:
    return {"type": "http.request", "body": body, "more_body": more}


class Wire:
    """An ASGI `receive` that says what it is told to, and then waits."""

    def __init__(self, messages: Iterable[Message] = ()) -> None:
        self.queue: asyncio.Queue[Message] = asyncio.Queue()
        self.asked = 0
        for message in messages:
            self.queue.put_nowait(message)

    async def __call__(self) -> Message:
        self.asked += 1
        return await self.queue.get()

    def leave(self) -> None:
        self.queue.put_nowait(GONE)


async def test_work_that_ends_gives_its_result_and_its_error() -> None:
    async def fail() -> None:
        raise UpstreamBroken("x")

    assert await run_while_connected({}, Wire([part(b"", False)]), asyncio.sleep(0.01, "done")) == "done"
    with pytest.raises(UpstreamBroken):
        await run_while_connected({}, Wire(), fail())


class Worker:
    """Work that goes on until it is cancelled, which it counts, and that takes a while to end. leave: told once more
    while it does."""

    def __init__(self, leave: Callable[[], None]) -> None:
        self.cancelled = 0
        self.ended = False
        self._leave = leave

    async def work(self) -> None:
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            self.cancelled += 1
            self._leave()
            await asyncio.sleep(0.05)
            self.ended = True
            raise


async def test_a_client_that_leaves_cancels_the_work_once_and_its_end_is_waited_for() -> None:
    wire = Wire()
    worker = Worker(wire.leave)
    asyncio.get_running_loop().call_later(0.02, wire.leave)
    with pytest.raises(ClientGone):
        await run_while_connected({}, wire, worker.work())
    assert (worker.cancelled, worker.ended) == (1, True)


async def test_a_result_that_was_there_before_the_leaving_counts() -> None:
    async def work() -> str:
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            return "stored"
        return ""

    assert await run_while_connected({}, Wire([GONE]), work()) == "stored"


async def test_a_connection_that_tells_by_itself_cancels_the_work_once_and_its_end_is_waited_for() -> None:
    leaving = Disconnect()
    worker = Worker(leaving.report_left)
    asyncio.get_running_loop().call_later(0.02, leaving.report_left)
    with pytest.raises(ClientGone):
        await run_while_connected({DISCONNECT_KEY: leaving}, Wire(), worker.work())
    assert (worker.cancelled, worker.ended) == (1, True)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0, "what the task does next is not cancelled with it"
    with pytest.raises(ClientGone):  # and who has left before gets nothing done
        await run_while_connected({DISCONNECT_KEY: leaving}, Wire(), worker.work())
    assert worker.cancelled == 1


async def test_a_cancellation_without_a_disconnect_is_an_ordinary_one() -> None:
    async def work() -> str:
        try:
            await asyncio.sleep(0.02)
        except asyncio.CancelledError:
            return "stored"
        return "done"

    leaving = Disconnect()
    assert await run_while_connected({DISCONNECT_KEY: leaving}, Wire(), work()) == "done"
    leaving.report_left()
    await asyncio.sleep(0)  # nobody works any more, so nobody is cancelled
    again = Disconnect()
    asyncio.get_running_loop().call_soon(again.report_left)
    assert await run_while_connected({DISCONNECT_KEY: again}, Wire(), work()) == "stored"
    task = asyncio.create_task(run_while_connected({DISCONNECT_KEY: Disconnect()}, Wire(), asyncio.sleep(10)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_cancelling_the_request_ends_the_work_however_often_it_is_cancelled() -> None:
    ended = 0

    async def work() -> None:
        nonlocal ended
        try:
            await asyncio.sleep(10)
        finally:
            await asyncio.sleep(0.05)
            ended += 1

    task = asyncio.create_task(run_while_connected({}, Wire(), work()))
    for _ in range(3):
        await asyncio.sleep(0.01)
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == 1
    assert len(asyncio.all_tasks()) == 1, "nothing is left behind"


async def test_a_body_is_read_whole_or_not_at_all() -> None:
    assert await read_body(Wire([part(b"ab"), part(b""), part(b"c", False)]), 3) == b"abc"
    assert await read_body(Wire([part(b"", False)]), 0) == b""
    with pytest.raises(ClientGone):
        await read_body(Wire([part(b"ab"), GONE]), 10)


@pytest.mark.parametrize(
    "messages", [[part(b"abcd", False)], [part(b"ab"), part(b"cd")], [part(b"ab"), part(b"cd", False)]]
)
async def test_c7_a_body_over_the_limit_is_refused_before_the_rest_is_read(messages: list[Message]) -> None:
    wire = Wire(messages)
    with pytest.raises(TooLarge):
        await read_body(wire, 3)
    assert wire.asked == len(messages)


async def test_c7_a_body_that_says_it_is_too_long_is_not_read() -> None:
    wire = Wire()
    with pytest.raises(TooLarge):
        await read_body(wire, 3, declared=4)
    assert wire.asked == 0


async def limited(scope: Scope, receive: Receive, send: Send) -> None:
    body = await read_body(receive, 1 << 20, read_content_length(scope))
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"%d" % len(body)})


@pytest.mark.parametrize("how", ["by its length", "by its chunks", "lying length"])
async def test_c7_on_the_wire_413_comes_before_the_body_has_ended(how: str) -> None:
    async with serve_app(answer_errors(limited, Metrics())) as port:
        client = await connect(port)
        if how == "by its length":
            await client.send(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 70000000\r\n\r\nx")
        elif how == "by its chunks":
            await client.send(b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n")
            for _ in range(40):
                await client.chunk(b"x" * 65536)
                await asyncio.sleep(0)
        else:
            await client.send(
                make_post("/", b"x" * 100).replace(b"content-length: 100", b"content-length: 99999999999999")
            )
        async with asyncio.timeout(30):
            head = await client.reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 413")
        assert b"x-should-retry: false" in head
        client.writer.transport.abort()
        assert (await send_raw(port, make_post("/", b"x" * 1000))).endswith(b"1000\r\n0\r\n\r\n")


def scope_of(*headers: tuple[bytes, bytes]) -> Scope:
    return {"headers": list(headers)}


def test_whether_there_is_a_body_is_said_by_headers_alone() -> None:
    assert not has_body(scope_of((b"host", b"a")))
    assert not has_body(scope_of((b"content-length", b"0")))
    assert has_body(scope_of((b"content-length", b"1")))
    assert has_body(scope_of((b"transfer-encoding", b"chunked")))
    assert read_content_length(scope_of((b"content-length", b"12"))) == 12
    assert read_content_length(scope_of((b"content-length", b"-1"))) is None
    assert read_content_length(scope_of()) is None


async def test_an_upload_comes_out_in_order_and_listening_continues_after_it() -> None:
    wire = Wire([part(b"a"), part(b""), part(b"b"), part(b"c", False)])
    upload = Upload(wire)

    async def work() -> list[bytes]:
        got = [piece async for piece in upload.read_pieces()]
        wire.leave()
        await asyncio.sleep(10)
        return got

    with pytest.raises(ClientGone):
        await upload.run_while_connected(work())

    again = Upload(Wire([part(b"a"), part(b"b", False)]))

    async def read() -> list[bytes]:
        return [piece async for piece in again.read_pieces()]

    assert await again.run_while_connected(read()) == [b"a", b"b"]


async def test_an_upload_is_read_ahead_only_up_to_its_limit() -> None:
    wire = Wire([part(b"x" * 65536) for _ in range(100)])
    upload = Upload(wire)
    started = asyncio.Event()

    async def work() -> int:
        await asyncio.sleep(0.05)
        assert wire.asked * 65536 <= MAX_WAITING_BYTES + 2 * 65536
        started.set()
        wire.queue.put_nowait(part(b"", False))
        return sum([len(piece) async for piece in upload.read_pieces()])

    assert await upload.run_while_connected(work()) == 100 * 65536
    assert started.is_set()


async def test_a_client_that_leaves_in_its_upload_ends_the_work() -> None:
    upload = Upload(Wire([part(b"a"), GONE]))

    async def work() -> list[bytes]:
        return [piece async for piece in upload.read_pieces()]

    with pytest.raises(ClientGone):
        await upload.run_while_connected(work())


async def test_a_client_that_leaves_is_told_while_its_upload_waits_to_be_taken() -> None:
    leaving, ended = Disconnect(), asyncio.Event()
    upload = Upload(Wire([part(b"x" * MAX_WAITING_BYTES), part(b"y")]), leaving)

    async def work() -> None:
        try:
            await asyncio.sleep(10)
        finally:
            ended.set()

    task = asyncio.create_task(upload.run_while_connected(work()))
    await asyncio.sleep(0.01)
    leaving.report_left()
    with pytest.raises(ClientGone):
        await task
    assert ended.is_set()
    with pytest.raises(ClientGone):
        await upload.run_while_connected(work())


async def test_a_client_that_reads_nothing_of_its_answer_is_disconnected() -> None:
    async def never(_: Message) -> None:
        await asyncio.sleep(10)

    async def at_once(message: Any) -> None:
        assert message == {"a": 1}

    await with_write_timeout(at_once, 0.05)({"a": 1})
    with pytest.raises(ClientGone):
        await with_write_timeout(never, 0.05)({})


async def test_a_client_that_takes_its_time_is_waited_for() -> None:
    heard: list[str] = []
    began = asyncio.Event()

    async def slow(message: Message) -> None:
        for _ in range(3):
            await asyncio.sleep(0.01)
        began.set()
        try:
            await asyncio.sleep(message["s"])
        except asyncio.CancelledError:
            heard.append("cancelled")
            await asyncio.sleep(0.01)
            raise
        if message["s"]:
            raise ValueError("its own")

    await with_write_timeout(slow, 5)({"s": 0})
    with pytest.raises(ValueError, match="its own"):
        await with_write_timeout(slow, 5)({"s": 0.001})
    began.clear()
    task = asyncio.ensure_future(with_write_timeout(slow, 5)({"s": 5}))
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert heard == ["cancelled"]


class Transport:
    """A transport that notes each write."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize(
    ("said", "written"),
    [
        ([b"head", b"body"], [b"headbody"]),
        ([b"head", b"body", b"more"], [b"headbody", b"more"]),
        ([b"head", b""], [b"head"]),
        ([b"head"], [b"head"]),
        ([b"head", b"x" * (MAX_JOINED_BYTES + 1)], [b"head", b"x" * (MAX_JOINED_BYTES + 1)]),
        ([], []),
    ],
)
@pytest.mark.parametrize("closes", [False, True])
def test_a_held_head_is_written_with_the_body_or_at_the_end(
    said: list[bytes], written: list[bytes], closes: bool
) -> None:
    transport = Transport()
    cycle = SimpleNamespace(transport=transport)
    held = HeldHead(cycle)
    for data in said:
        cycle.transport.write(data)
    assert cycle.transport.is_closing() is False
    if closes:
        cycle.transport.close()
    held.release()
    assert transport.written == written
    assert cycle.transport is transport
    assert transport.closed is closes


async def test_a_whole_answer_is_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    heads: list[bytes] = []
    write = HeldHead.write

    def note(held: HeldHead, data: bytes) -> None:
        heads.append(data)
        write(held, data)

    monkeypatch.setattr(HeldHead, "write", note)
    async with run_upstream(ScriptedModel("answered")) as upstream, run_proxy(upstream.port) as proxy:
        answer = await Agent(proxy).say("well")
    assert answer.status == 200
    assert len(heads) == 2
    assert heads[0].startswith(b"HTTP/1.1 200")
    assert heads[1] == answer.body


async def test_an_answered_request_needs_no_garbage_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    cycles: list[weakref.ref[Any]] = []
    hold = HeldHead.__init__

    def note(held: HeldHead, cycle: Any) -> None:
        cycles.append(weakref.ref(cycle))
        hold(held, cycle)

    monkeypatch.setattr(HeldHead, "__init__", note)
    async with run_upstream(ScriptedModel("answered")) as upstream, run_proxy(upstream.port) as proxy:
        agent = Agent(proxy)
        gc.disable()
        try:
            for _ in range(2):
                await agent.say("well")
            await asyncio.sleep(0.05)  # the connections are closed
            left = [cycle() for cycle in cycles]
        finally:
            gc.enable()
    assert left == [None, None]


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """The request lines so far, as JSON would have them."""
    return [json.loads(JsonFormatter().format(record)) for record in caplog.records if record.name == NAME]


async def some(caplog: pytest.LogCaptureFixture, count: int) -> list[dict[str, Any]]:
    async with asyncio.timeout(30):
        while len(lines(caplog)) < count:
            await asyncio.sleep(0.005)
    assert len(lines(caplog)) == count
    return lines(caplog)


async def test_a_managed_request_has_one_line_with_its_session_policy_tokens_and_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    model = ScriptedModel("Well.")
    model.usage = {**model.usage, "prompt_tokens_details": {"cached_tokens": 7}}
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        for stream in (True, False):
            agent = Agent(proxy, (b"x-context-session: s",), path=CHAT + "?api_key=canary", stream=stream)
            await agent.say(f"canary {stream}")
        first, second = await some(caplog, 2)
    for line in (first, second):
        assert (line["level"], line["method"], line["path"], line["status"]) == ("info", "POST", CHAT, 200)
        assert (line["session"], line["policy"], line["cached"]) == ("s", "thrifty", 7)
        assert line["tokens_before"] == line["tokens_after"] > 0
        assert line["upstream"] == "default"
        assert 0 < line["ms"] < 10_000
        assert "outcome" not in line
        assert "broken_off" not in line
    assert "canary" not in json.dumps(lines(caplog))


async def test_unmanaged_requests_are_logged_and_probes_only_at_debug(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    async with run_upstream(ScriptedModel("Well.")) as upstream, run_proxy(upstream.port) as proxy:
        await proxy.get("/healthz")
        await proxy.post({"model": "m", "input": "canary"}, path="/v1/embeddings")
        await Agent(proxy).send(b"x-context-off: 1")
        passed, off = await some(caplog, 2)
        caplog.set_level(logging.DEBUG)
        await proxy.get("/healthz")
        assert (await some(caplog, 3))[2]["level"] == "debug"
    assert (passed["path"], passed["status"]) == ("/v1/embeddings", 200)
    assert "session" not in passed
    assert off["fallback"] == "off"


async def test_a_stream_that_the_upstream_cuts_is_a_warning_and_no_error(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def cut(_: RawRequest, connection: Connection) -> None:
        await connection.send(STREAM)
        await connection.chunk(b'data: {"choices":[{"index":0,"delta":{"content":"canary"}}]}\n\n')
        await connection.reset()

    async with run_upstream(cut) as upstream, run_proxy(upstream.port) as proxy:
        found = await Agent(proxy, stream=True, messages=[{"role": "user", "content": "Hello"}]).send()
        assert not found.whole
        (line,) = await some(caplog, 1)
        await proxy.post({"model": "m"}, path="/v1/whatever")
        _, other = await some(caplog, 2)
    assert (line["status"], line["broken_off"], line["outcome"]) == (200, True, "partial")
    assert other["broken_off"] is True
    told = [(record.levelname, record.getMessage()) for record in caplog.records if record.name != NAME]
    assert ("WARNING", "upstream default broke off its answer: upstream_broken") in told
    assert not [text for level, text in told if level == "ERROR"], "nothing here is a mistake of the proxy's"
    assert "canary" not in caplog.text


@pytest.mark.parametrize("path", [CHAT, "/v1/embeddings"])
async def test_an_upstream_that_fails_is_reported_at_warning(path: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def failing(_: RawRequest, connection: Connection) -> None:
        await send_reply(
            connection, b"502 Bad Gateway", b'{"error":{"message":"canary"}}', b"content-type: application/json"
        )

    async def silent(_: RawRequest, connection: Connection) -> None:
        await connection.reset()

    body = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}
    for script, told in ((failing, "upstream default answered 502"), (silent, "upstream default failed: upstream_")):
        caplog.clear()
        async with run_upstream(script) as upstream, run_proxy(upstream.port) as proxy:
            assert (await proxy.post(body, path=path)).status == 502
            (line,) = await some(caplog, 1)
        assert line["status"] == 502
        warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        assert [text for text in warned if text.startswith(told)], warned
        assert "canary" not in caplog.text


async def test_a_client_that_leaves_before_its_answer_is_logged_as_gone(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    asked = asyncio.Event()

    async def waiting(_: RawRequest, connection: Connection) -> None:
        asked.set()
        await connection.left()

    async with run_upstream(waiting) as upstream, run_proxy(upstream.port) as proxy:
        client = await connect(proxy.port)
        body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "Hello"}]}).encode()
        await client.send(make_post(CHAT, body, b"content-type: application/json"))
        await asyncio.wait_for(asked.wait(), 30)
        client.writer.transport.abort()
        (line,) = await some(caplog, 1)
    assert (line["status"], line["outcome"]) == (499, "client_gone")


async def test_a_path_is_cut_and_cannot_move_a_terminals_cursor(caplog: pytest.LogCaptureFixture) -> None:
    scope = {"path": "/", "raw_path": b"/a%1B[31m\x1b[31m\xff" + b"a" * 500 + b"?key=canary"}
    assert len(render_path(scope)) == MAX_PATH_CHARS
    assert render_path(scope).isprintable()
    caplog.set_level(logging.INFO)
    async with run_upstream(ScriptedModel("Well.")) as upstream, run_proxy(upstream.port) as proxy:
        await send_raw(proxy.port, b"GET /v1/models?key=canary HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
        (line,) = await some(caplog, 1)
    assert line["path"] == "/v1/models"
    (record,) = [record for record in caplog.records if record.name == NAME]
    assert "GET /v1/models 200" in TextFormatter().format(record)
