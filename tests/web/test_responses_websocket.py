from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from proxy.dialects.responses.frames import Carried
from proxy.exchange.services import TURN_BYTES
from proxy.web import responses_websocket
from proxy.web.responses_websocket import MAX_LANES, CarriedHistories, make_http_scope
from tests.loop_turns import count_bytes_read
from tests.proxy_server import RunningProxy, make_key, run_proxy
from tests.raw_upstream import STREAM, Connection, RawRequest, replace_head, run_upstream, wait_until
from tests.scripted_model import send_reply
from tests.strict_responses import Ask, Say, StrictResponses, Think

Json = dict[str, Any]

HELLO: Json = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Find the fault."}]}
LISTING = "\n".join(f"{n}\tdef function_{n}(argument): return argument + {n}" for n in range(1, 200))


@asynccontextmanager
async def socket(proxy: RunningProxy, path: str = "/v1/responses", **more: Any) -> AsyncIterator[ClientConnection]:
    url = f"ws://127.0.0.1:{proxy.port}{path}"
    headers = {"authorization": "Bearer sk-one", **more.pop("headers", {})}
    async with connect(url, additional_headers=headers, max_size=None, proxy=None, **more) as made:
        yield made


def create(items: Sequence[Json], **more: Any) -> str:
    body = {
        "type": "response.create", "model": "gpt-6.2-sol", "input": items, "store": False,
        "include": ["reasoning.encrypted_content"], "instructions": "You are a careful engineer.",
        "tools": [{"type": "function", "name": "read", "parameters": {"type": "object"}}],
    }  # fmt: skip
    return json.dumps(body | more)


async def hear(websocket: ClientConnection) -> list[Json]:
    """The events of one response, or the error."""
    events: list[Json] = []
    while True:
        events.append(json.loads(await asyncio.wait_for(websocket.recv(), 10)))
        if events[-1]["type"] in ("response.completed", "response.incomplete", "response.failed", "error"):
            return events


async def ask(websocket: ClientConnection, items: Sequence[Json], **more: Any) -> Json:
    await websocket.send(create(items, **more))
    events = await hear(websocket)
    assert events[-1]["type"] == "response.completed", events[-1]
    assert [one["sequence_number"] for one in events] == [*range(len(events))]
    response: Json = events[-1]["response"]
    assert {one["response"]["id"] for one in events if "response" in one} == {response["id"]}
    return response


@pytest.mark.parametrize("policy", ["thrifty", "rolling", "observe"])
async def test_a_loop_in_which_each_frame_has_only_what_is_new(policy: str, tmp_path: Path) -> None:
    steps: list[list[Any]] = [
        [Think(f"file {n}"), Say(f"Step {n}."), Ask("read", {"path": f"file{n % 3}.py"})] for n in range(12)
    ]
    model = StrictResponses(*steps, [Think(), Say("All done.")])
    tree: Json = {"policy": policy, "db": str(tmp_path / "a.sqlite3")}
    whole: list[Json] = [HELLO]
    async with run_upstream(model) as upstream, run_proxy(upstream.port, **tree) as proxy, socket(proxy) as websocket:
        warm = await ask(websocket, [], generate=False)
        assert model.received == [], "a warm-up is answered here"
        new, before, calls = [HELLO], warm["id"], []
        while True:
            answer = await ask(websocket, new, previous_response_id=before)
            assert answer["previous_response_id"] == before, "the client sees what it has asked for"
            whole += answer["output"]
            asked = [item for item in answer["output"] if item["type"] == "function_call"]
            if not asked:
                break
            calls += [json.loads(one["arguments"])["path"] for one in asked]
            new = [{"type": "function_call_output", "call_id": one["call_id"], "output": LISTING} for one in asked]
            whole += new
            before = answer["id"]
        outcomes = await proxy.outcomes()
        assert await proxy.rows("SELECT count(*) FROM branches") == [(1,)], "one conversation"
    assert answer["output"][-1]["content"][0]["text"] == "All done."
    assert calls == [f"file{n % 3}.py" for n in range(12)]
    assert (model.refused, model.dropped) == ([], [])
    assert {(status, fallback) for status, _, fallback in outcomes} == {("complete", None)}
    for body in model.received:
        assert body["store"] is False
        assert body["stream"] is True
        assert not {"previous_response_id", "generate", "type"} & body.keys()
    if policy == "observe":
        assert model.received[-1]["input"] == whole[: len(model.received[-1]["input"])]
    else:
        assert len(str(model.received[-1]["input"])) < 0.9 * len(str(whole)), "something is saved"


@pytest.mark.parametrize("takeover", [False, True])
async def test_a_socket_continues_from_a_stored_response_that_it_did_not_carry(takeover: bool) -> None:
    model = StrictResponses("First.", "Second.", "Third.")
    tree: Json = {"policy": "thrifty", "responses": {"takeover": takeover}}
    stored: Json = {"store": True, "include": []}
    async with run_upstream(model) as upstream, run_proxy(upstream.port, **tree) as proxy:
        async with socket(proxy) as one:
            first = await ask(one, [HELLO], **stored)
        async with socket(proxy) as other:
            second = await ask(other, [HELLO], **stored, previous_response_id=first["id"])
            third = await ask(other, [HELLO], **stored, previous_response_id=second["id"])
        assert await proxy.rows("SELECT count(*) FROM branches") == [(1,)]
    assert (second["previous_response_id"], third["previous_response_id"]) == (first["id"], second["id"])
    assert [one["store"] for one in (first, second, third)] == [True] * 3
    assert third["output"][0]["content"][0]["text"] == "Third."
    assert model.refused == []
    names = [one.get("previous_response_id") for one in model.received]
    assert names == ([None] * 3 if takeover else [None, first["id"], second["id"]])
    assert [len(one["input"]) for one in model.received] == ([1, 3, 5] if takeover else [1, 1, 1])


async def test_lanes_of_one_socket_are_answered_at_the_same_time_and_each_in_its_order() -> None:
    """`stream_id` names a lane. It is for the socket alone: OpenAI refuses it over HTTP."""
    gate = asyncio.Event()
    model = StrictResponses("Well.", binds=False)

    async def answer(request: RawRequest, connection: Connection) -> None:
        if b"Slow." in request.body:
            await gate.wait()
        await model(request, connection)

    def say(text: str) -> list[Json]:
        return [{"type": "message", "role": "user", "content": text}]

    async with run_upstream(answer) as upstream, run_proxy(upstream.port) as proxy, socket(proxy) as websocket:
        await websocket.send(create(say("Slow."), stream_id="a"))
        await websocket.send(create(say("Second."), stream_id="a"))
        await websocket.send(create(say("Quick."), stream_id="b"))
        quick = await hear(websocket)
        assert {one["stream_id"] for one in quick} == {"b"}
        await websocket.send(create(say("Fork."), stream_id="c", previous_response_id=quick[-1]["response"]["id"]))
        fork = await hear(websocket)
        assert ({one["stream_id"] for one in fork}, len(model.received[-1]["input"])) == ({"c"}, 3)
        await websocket.send(create(say("Unknown."), stream_id="c", previous_response_id="resp_other"))
        (unknown,) = await hear(websocket)
        assert (unknown["stream_id"], unknown["error"]["code"]) == ("c", "previous_response_not_found")
        gate.set()
        assert {one["stream_id"] for one in [*await hear(websocket), *await hear(websocket)]} == {"a"}
        assert not any("stream_id" in one for one in [*(await ask(websocket, [HELLO])), *model.received])
    assert model.refused == []
    asked = [one["input"][-1]["content"] for one in model.received]
    assert asked[:4] == ["Quick.", "Fork.", "Slow.", "Second."]


async def test_more_lanes_than_a_socket_may_have_end_it() -> None:
    model = StrictResponses("Well.", binds=False)
    async with run_upstream(model) as upstream, run_proxy(upstream.port) as proxy, socket(proxy) as websocket:
        for n in range(MAX_LANES):
            await websocket.send(create([HELLO], stream_id=str(n), generate=False))
        assert len([await hear(websocket) for _ in range(MAX_LANES)]) == MAX_LANES
        await websocket.send(create([HELLO], stream_id="more"))
        with pytest.raises(ConnectionClosed) as closed:
            await asyncio.wait_for(websocket.recv(), 5)
    assert closed.value.rcvd is not None
    assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1008, "too many lanes")


async def test_input_that_steers_comes_back_while_the_response_continues() -> None:
    gate = asyncio.Event()
    model = StrictResponses("Well.", binds=False)

    async def answer(request: RawRequest, connection: Connection) -> None:
        await gate.wait()
        await model(request, connection)

    async with run_upstream(answer) as upstream, run_proxy(upstream.port) as proxy, socket(proxy) as websocket:
        await websocket.send(create([HELLO]))
        steer = {"type": "response.steer", "previous_response_id": "resp_1", "input": "No, \u00e4nother way."}
        await websocket.send(json.dumps(steer))
        refused = json.loads(await asyncio.wait_for(websocket.recv(), 10))
        assert (refused["type"], refused["error"]["code"]) == ("response.steer.failed", "steering_not_supported")
        assert refused["steer"] == {"previous_response_id": "resp_1", "input": "No, \u00e4nother way."}
        gate.set()
        assert (await hear(websocket))[-1]["type"] == "response.completed"


async def test_an_interruption_leaves_the_response_and_the_connection_as_they_are() -> None:
    gate = asyncio.Event()
    model = StrictResponses("Well.", "Again.", binds=False)

    async def answer(request: RawRequest, there: Connection) -> None:
        await gate.wait()
        await model(request, there)

    async with run_upstream(answer) as upstream, run_proxy(upstream.port) as proxy, socket(proxy) as there:
        await there.send(create([HELLO]))
        interrupt = {"type": "response.interrupt", "response_id": "resp_1", "mode": "discard_partial_items"}
        await there.send(json.dumps(interrupt))
        gate.set()
        done = (await hear(there))[-1]
        await there.send(json.dumps(interrupt))  # the client may send it as the response ends
        await there.send(create([HELLO], previous_response_id=done["response"]["id"]))
        again = await hear(there)
    assert done["type"] == "response.completed"
    assert [again[0]["type"], again[-1]["type"]] == ["response.created", "response.completed"]
    assert len(model.received[-1]["input"]) == 3


@pytest.mark.slow
async def test_a_thousand_responses_on_one_socket() -> None:
    model = StrictResponses("Well.", binds=False)
    async with (
        run_upstream(model) as upstream,
        run_proxy(upstream.port, policy="observe") as proxy,
        socket(proxy) as websocket,
    ):
        answer: Json = {}
        for n in range(1000):
            named: Json = {"previous_response_id": answer["id"]} if n % 10 else {}
            answer = await ask(websocket, [HELLO], **named)
        assert await proxy.rows("SELECT count(*) FROM exchanges WHERE status = 'complete'") == [(1000,)]
        assert proxy.count("internal_errors_total") == 0
        assert proxy.app._histories.size < 10_000
    assert model.refused == []


async def test_a_response_that_the_connection_did_not_carry_is_asked_for_whole() -> None:
    model = StrictResponses("First.", "Second.")
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        async with socket(proxy) as one:
            first = await ask(one, [HELLO])
        async with socket(proxy) as other:
            await other.send(create([HELLO], previous_response_id=first["id"]))
            (refused,) = await hear(other)
            assert (refused["status"], refused["error"]["code"]) == (400, "previous_response_not_found")
            again = await ask(other, [HELLO, *first["output"], HELLO])
            assert again["output"][0]["content"][0]["text"] == "Second."
    assert len(model.received) == 2


async def test_an_error_is_a_frame_and_the_connection_continues() -> None:
    model = StrictResponses("Well.")
    async with run_upstream(model) as upstream, run_proxy(upstream.port) as proxy, socket(proxy) as websocket:
        for wrong in ("{", json.dumps({"type": "session.update"}), create([{"type": "message", "role": "user"}])):
            await websocket.send(wrong)
            (refused,) = await hear(websocket)
            assert refused["status"] == 400
            assert refused["error"]["message"]
        await websocket.send(create([HELLO]).encode())
        assert (await hear(websocket))[-1]["type"] == "response.completed", "a binary frame is a frame too"
    assert len(model.refused) == 1


@pytest.mark.parametrize(
    ("event", "status", "code"),
    [
        (b'{"type":"error","sequence_number":1,"code":"server_is_overloaded","message":"No.","param":null}', 500,
         "server_is_overloaded"),
        (b'{"type":"error","code":503,"message":"No."}', 503, "503"),
    ],
)  # fmt: skip
async def test_an_error_in_a_stream_is_a_frame_with_a_status(event: bytes, status: int, code: str) -> None:
    """Codex goes by the status. Without one it waited for five minutes."""

    async def fails(_: RawRequest, connection: Connection) -> None:
        await connection.send(STREAM)
        await connection.chunk(b'data: {"type":"response.created","response":{"id":"r","error":null}}\n\n')
        await connection.chunk(b"data: " + event + b"\n\n")
        await connection.chunk(b"")

    async with run_upstream(fails) as upstream, run_proxy(upstream.port) as proxy, socket(proxy) as websocket:
        await websocket.send(create([HELLO]))
        created, refused = await hear(websocket)
        assert created["type"] == "response.created"
        assert (refused["status"], refused["error"]["code"], refused["error"]["message"]) == (status, code, "No.")
        await websocket.send(create([HELLO]))
        assert (await hear(websocket))[-1]["type"] == "error", "the connection goes on"


async def test_an_upstream_that_does_not_stream_is_reported_as_events() -> None:
    body = json.dumps({"id": "resp_1", "object": "response", "status": "completed", "output": [{"id": "msg_1"}]})

    async def whole(_: RawRequest, connection: Connection) -> None:
        await send_reply(connection, b"200 OK", body.encode(), b"content-type: application/json")

    async with run_upstream(whole) as upstream, run_proxy(upstream.port) as proxy, socket(proxy) as websocket:
        assert (await ask(websocket, [HELLO]))["output"] == [{"id": "msg_1"}]
        await websocket.send(create([HELLO], previous_response_id="resp_1"))
        await hear(websocket)
        sent = json.loads(upstream.requests[-1].body)["input"]
        assert sent == [HELLO, {"id": "msg_1"}, HELLO]


@pytest.mark.parametrize(
    "head",
    [b"HTTP/1.1 200 OK\r\ncontent-type: Text/Event-Stream", b"HTTP/1.1 201 Created\r\ncontent-type: text/event-stream",
     b"HTTP/1.1 200 OK\r\ncontent-type: text/plain"],
)  # fmt: skip
async def test_a_stream_is_reported_as_events_whatever_its_head_says(head: bytes) -> None:
    async with (
        run_upstream(replace_head(StrictResponses("Well."), head)) as upstream,
        run_proxy(upstream.port) as proxy,
        socket(proxy) as websocket,
    ):
        assert (await ask(websocket, [HELLO]))["output"][0]["content"][0]["text"] == "Well."


async def test_others_get_their_turn_while_a_stream_is_told_that_came_at_once() -> None:
    delta = b'data: {"type":"response.output_text.delta","delta":"a"}\n\n'
    stream = delta * 10_000 + b'data: {"type":"response.completed","response":{"id":"resp_1","output":[]}}\n\n'

    async def whole(_: RawRequest, connection: Connection) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-encoding: unknown\r\n"
        await connection.send(head + b"connection: close\r\n\r\n", stream)
        connection.writer.close()

    async with (
        run_upstream(whole) as upstream,
        run_proxy(upstream.port) as proxy,
        socket(proxy) as websocket,
        count_bytes_read() as read,
    ):
        await websocket.send(create([HELLO]))
        assert len(await hear(websocket)) == 10_001
    assert sum(read.values()) >= len(stream)
    assert max(read.values()) <= 4 * TURN_BYTES


async def test_an_answer_in_one_body_that_is_too_long_to_be_held_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(responses_websocket, "MAX_BODY_BYTES", 10_000)
    said = [b'{"id":"resp_1","output":[],"x":"%b"}' % (b"a" * size) for size in (9_000, 11_000, 9_000)]

    async def whole(_: RawRequest, connection: Connection) -> None:
        await send_reply(connection, b"200 OK", said.pop(0), b"content-type: application/json")

    async with run_upstream(whole) as upstream, run_proxy(upstream.port) as proxy, socket(proxy) as websocket:
        await ask(websocket, [HELLO])
        await websocket.send(create([HELLO]))
        (refused,) = await hear(websocket)
        assert (refused["type"], refused["status"]) == ("error", 502)
        assert "too long" in refused["error"]["message"]
        await ask(websocket, [HELLO])


async def test_a_key_and_an_allowed_page_are_needed_before_the_first_frame() -> None:
    keys = [make_key("cp-acme-data", "acme")]
    async with run_upstream(StrictResponses("Well.")) as upstream:
        async with run_proxy(upstream.port, keys=keys) as proxy:
            with pytest.raises(InvalidStatus) as refused:
                async with socket(proxy):
                    pass
            assert refused.value.response.status_code == 401
            assert b"x-context-key" in (refused.value.response.body or b"")
            async with socket(proxy, headers={"x-context-key": "cp-acme-data"}) as websocket:
                assert (await ask(websocket, [HELLO]))["output"]
        async with run_proxy(upstream.port) as proxy:
            with pytest.raises(InvalidStatus) as refused:
                async with socket(proxy, headers={"origin": "https://evil.example", "authorization": ""}):
                    pass
            assert refused.value.response.status_code == 403
        assert all(not request.all(b"x-context-key") for request in upstream.requests)


async def test_a_session_in_the_path_and_headers_of_a_frame_count() -> None:
    model = StrictResponses("Well.")
    async with (
        run_upstream(model) as upstream,
        run_proxy(upstream.port, policy="observe") as proxy,
        socket(proxy, "/s/mine/v1/responses", headers={"openai-beta": "responses_websockets=2026-02-06"}) as websocket,
    ):
        lite = {"ws_request_header_x_openai_internal_codex_responses_lite": "true"}
        await ask(websocket, [HELLO], client_metadata=lite)
        assert await proxy.rows("SELECT DISTINCT session FROM branches") == [("mine",)]
        (request,) = upstream.requests
        assert request.line == b"POST /v1/responses HTTP/1.1"
        assert request.all(b"x-openai-internal-codex-responses-lite") == [b"true"]
        assert request.all(b"openai-beta") == request.all(b"sec-websocket-key") == request.all(b"upgrade") == []


@pytest.mark.parametrize("base", ["/api/v1", "/inference/v1"])
async def test_a_client_that_changed_the_host_alone_has_the_socket_under_its_providers_path(base: str) -> None:
    """A base path below /api is a path of chat, not of the admin API. Other paths are tunnels, as before."""
    model = StrictResponses([Say("One.")], [Say("Two.")])
    async with run_upstream(model) as upstream:
        upstreams = {"main": {"base_url": f"http://127.0.0.1:{upstream.port}{base}"}}
        async with run_proxy("", upstreams=upstreams) as proxy:
            for path in (f"{base}/responses", f"/s/own{base}/responses"):
                async with socket(proxy, path) as websocket:
                    await ask(websocket, [HELLO])
            with pytest.raises(InvalidStatus) as refused:
                async with socket(proxy, f"/other{base}/responses"):
                    pass
            assert refused.value.response.status_code == 426
            sessions = await proxy.rows("SELECT session FROM sessions ORDER BY created_at")
    assert [one.line.split()[1] for one in upstream.requests[:2]] == [f"{base}/responses".encode()] * 2
    assert len(sessions) == 2
    assert sessions[1] == ("own",)


async def test_a_client_that_leaves_ends_the_request_upstream() -> None:
    async def slow(_: RawRequest, connection: Connection) -> None:
        await connection.send(STREAM)
        await connection.chunk(b'event: response.created\ndata: {"type":"response.created","response":{"id":"r"}}\n\n')
        await connection.left()

    async with run_upstream(slow) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        async with socket(proxy) as websocket:
            await websocket.send(create([HELLO]))
            assert json.loads(await websocket.recv())["type"] == "response.created"
            assert upstream.open == 1
        assert await upstream.none_open(2.0)
        assert (await proxy.outcome())[0] == "client_gone"
        assert proxy.count("internal_errors_total", where="web") == 0


async def test_an_answer_that_breaks_off_ends_the_connection() -> None:
    async def breaks(_: RawRequest, connection: Connection) -> None:
        await connection.send(STREAM)
        await connection.chunk(b'event: response.created\ndata: {"type":"response.created","response":{"id":"r"}}\n\n')
        await connection.reset()

    async with run_upstream(breaks) as upstream, run_proxy(upstream.port) as proxy, socket(proxy) as websocket:
        await websocket.send(create([HELLO]))
        assert (await hear(websocket))[-1]["type"] == "error"
        with pytest.raises(ConnectionClosed):
            await asyncio.wait_for(websocket.recv(), 5)


async def test_more_frames_than_may_wait_end_the_connection() -> None:
    async def never(_: RawRequest, connection: Connection) -> None:
        await connection.left()

    async with run_upstream(never) as upstream, run_proxy(upstream.port) as proxy, socket(proxy) as websocket:
        for _ in range(4):
            await websocket.send(create([HELLO]))
        with pytest.raises(ConnectionClosed) as closed:
            await asyncio.wait_for(websocket.recv(), 5)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1008


async def test_a_server_that_stops_lets_a_response_end() -> None:
    gate = asyncio.Event()
    model = StrictResponses("Well.")

    async def waits(request: RawRequest, connection: Connection) -> None:
        await gate.wait()
        await model(request, connection)

    async with (
        run_upstream(waits) as upstream,
        run_proxy(upstream.port) as proxy,
        socket(proxy) as idle,
        socket(proxy) as busy,
    ):
        await ask(idle, [], generate=False)
        await busy.send(create([HELLO]))
        await wait_until(lambda: len(upstream.requests) == 1)
        assert proxy.server is not None
        proxy.app.drain()
        proxy.server.should_exit = True
        with pytest.raises(ConnectionClosed):
            await asyncio.wait_for(idle.recv(), 5)
        gate.set()
        assert (await hear(busy))[-1]["type"] == "response.completed"
        with pytest.raises(ConnectionClosed) as closed:
            await asyncio.wait_for(busy.recv(), 5)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1012


def test_the_oldest_history_is_forgotten_where_all_of_them_are_too_long() -> None:
    held = CarriedHistories(10)
    one, other = object(), object()
    held.put(one, Carried("resp_1", b"x" * 6))
    held.put(one, Carried("resp_2", b"x" * 4))
    held.put(other, Carried("resp_3", b"x" * 6))
    assert held.size == 10
    held.put(other, Carried("resp_4", b"x" * 7))
    assert held.get(one) == Carried()
    assert held.get(other).response_id == "resp_4"
    held.remove(other)
    held.remove(other)
    assert held.size == 0


def test_a_history_that_is_too_long_alone_is_not_kept() -> None:
    held = CarriedHistories(10)
    held.put(held, Carried("resp_1", b"x" * 11))
    assert (held.get(held), held.size) == (Carried(), 0)


def test_a_request_has_the_headers_of_its_handshake_and_those_of_its_frame() -> None:
    scope = {
        "type": "websocket", "scheme": "wss", "path": "/v1/responses", "raw_path": b"/v1/responses",
        "headers": [
            (b"upgrade", b"websocket"), (b"x-codex-a", b"old"), (b"x-b", b"1"), (b"sec-websocket-key", b"k"),
        ],
    }  # fmt: skip
    made = make_http_scope(scope, [(b"x-codex-a", b"new")])
    assert (made["type"], made["method"], made["scheme"]) == ("http", "POST", "https")
    assert (b"x-codex-a", b"new") in made["headers"]
    assert (b"x-b", b"1") in made["headers"]
    assert not {b"upgrade", b"sec-websocket-key"} & dict(made["headers"]).keys()
    assert (b"x-codex-a", b"old") not in made["headers"]
