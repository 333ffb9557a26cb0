from __future__ import annotations

import asyncio
import json
import random
import socket
import struct
from typing import Any

import pytest

from proxy.web import error_responses
from tests.proxy_server import CHAT, RunningProxy, parse_answer, run_proxy
from tests.raw_upstream import STREAM, Connection, RawRequest, connect, make_post, run_upstream, send_raw, wait_until
from tests.scripted_model import ScriptedModel, make_calls, make_chunk, make_completion, make_events

REFUSAL = b'{"no": "no"}'
HELLO = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}

ODD: dict[str, bytes] = {
    "nan": b'{"model":"m","messages":[{"role":"user","content":"a"}],"temperature":NaN}',
    "infinity": b'{"model":"m","messages":[{"role":"user","content":"a"}],"temperature":1e999}',
    "duplicate keys": b'{"model":"m","model":"n","messages":[{"role":"user","content":"a","content":"b"}]}',
    "lone surrogate": b'{"model":"m","messages":[{"role":"user","content":"\\ud800 a"}]}',
    "surrogate in a key": b'{"model":"m","\\ud800":1,"messages":[{"role":"user","content":"a"}]}',
    "huge integer": b'{"model":"m","messages":[{"role":"user","content":"a"}],"seed":' + b"9" * 5000 + b"}",
    "deep nesting": b'{"model":"m","messages":[{"role":"user","content":' + b"[" * 100_000 + b"]" * 100_000 + b"}]}",
    "deep unclosed": b"[" * 1_000_000,
    "nul": b'{"model":"m","messages":[{"role":"user","content":"\\u0000a"}]}',
    "invalid utf-8": b'{"model":"m","messages":[{"role":"user","content":"\xff\xfe"}]}',
    "utf-16": '{"model":"m","messages":[{"role":"user","content":"ä"}]}'.encode("utf-16"),
    "bom": b"\xef\xbb\xbf" + json.dumps(HELLO).encode(),
    "no body": b"",
    "white space": b"  \n",
    "a number": b"17",
    "a list": b'[{"role":"user"}]',
    "cut off": json.dumps(HELLO).encode()[:-3],
    "trailing garbage": json.dumps(HELLO).encode() + b"}}",
    "no messages": b'{"model":"m"}',
    "messages null": b'{"model":"m","messages":null}',
    "messages an object": b'{"model":"m","messages":{"role":"user"}}',
    "messages empty": b'{"model":"m","messages":[]}',
    "messages of numbers": b'{"model":"m","messages":[1,2]}',
    "a message without a role": b'{"model":"m","messages":[{"content":"a"}]}',
    "role a number": b'{"model":"m","messages":[{"role":1,"content":"a"}]}',
    "unknown role": b'{"model":"m","messages":[{"role":"wizard","content":"a"}]}',
    "content null": b'{"model":"m","messages":[{"role":"user","content":null}]}',
    "content a number": b'{"model":"m","messages":[{"role":"user","content":3}]}',
    "parts of odd kinds": b'{"model":"m","messages":[{"role":"user","content":[1,null,"a",{"type":"x"},{"text":2}]}]}',
    "calls of odd kinds": b'{"model":"m","messages":[{"role":"assistant","tool_calls":[1,{"function":3}]}]}',
    "tools a text": b'{"model":"m","messages":[{"role":"user","content":"a"}],"tools":"all"}',
    "tools of numbers": b'{"model":"m","messages":[{"role":"user","content":"a"}],"tools":[1,{"type":3},null]}',
    "model a list": b'{"model":[],"messages":[{"role":"user","content":"a"}]}',
    "stream a text": b'{"model":"m","messages":[{"role":"user","content":"a"}],"stream":"yes"}',
    "options a text": b'{"model":"m","messages":[{"role":"user","content":"a"}],"stream":true,"stream_options":"x"}',
    "n a text": b'{"model":"m","messages":[{"role":"user","content":"a"}],"n":"3","seed":-0.0,"x":1E5}',
    "an orphan result": b'{"model":"m","messages":[{"role":"tool","tool_call_id":"x","content":"a"}]}',
    "escapes and spaces": b' {"model" : "m" ,\t"messages":[ {"content":"\\u00e4\\/","role":"user"} ]\r\n, "z":1.50}\n',
    "metadata odd": b'{"model":"m","messages":[{"role":"user","content":"a"}],"metadata":{"session_id":[]}}',
}


async def test_with_passthrough_the_bytes_upstream_are_the_bytes_sent_and_back() -> None:
    model = ScriptedModel("Höflich \u2028 gesagt")
    body = b'{ "messages":[{"role":"user","content":"\\u00e4 \xc3\xa4"}] ,"model":"m","unknown":{"a":[1.0,1e2]},"z":0 }'
    async with run_upstream(model) as upstream, run_proxy(upstream.port) as proxy:
        found = await proxy.post(body)
    assert model.received[0].body == body
    assert found.status == 200
    assert found.whole
    assert found.body == make_completion({"role": "assistant", "content": "Höflich \u2028 gesagt"}, model.usage)


async def test_with_passthrough_a_stream_is_the_same_bytes_both_ways() -> None:
    message = make_calls(("call_1", "read_file"), text="First this.", path="a.txt")
    model = ScriptedModel(message)
    body = json.dumps(HELLO | {"stream": True, "stream_options": {"include_usage": True}}).encode()
    async with run_upstream(model) as upstream, run_proxy(upstream.port) as proxy:
        found = await proxy.post(body)
    assert model.received[0].body == body
    assert found.body == b"".join(make_events(message, model.usage))
    assert found.whole


async def test_with_passthrough_nothing_is_asked_for_that_the_client_did_not_ask_for() -> None:
    model = ScriptedModel("Well.")
    body = json.dumps(HELLO | {"stream": True}).encode()
    async with run_upstream(model) as upstream, run_proxy(upstream.port) as proxy:
        found = await proxy.post(body)
    assert model.received[0].body == body
    assert found.body == b"".join(make_events({"content": "Well."}))


@pytest.mark.parametrize("policy", ["passthrough", "thrifty", "rolling"])
async def test_odd_bodies_are_passed_on_untouched_and_upstream_decides(policy: str) -> None:
    async def refuse(request: RawRequest, connection: Connection) -> None:
        await connection.send(
            b"HTTP/1.1 422 No\r\ncontent-type: application/json\r\ncontent-length: 12\r\n\r\n", REFUSAL
        )

    async with run_upstream(refuse) as upstream, run_proxy(upstream.port, policy=policy) as proxy:
        for name, body in ODD.items():
            upstream.requests.clear()
            found = await proxy.post(body)
            assert (found.status, found.body) == (422, REFUSAL), name
            assert [r.body for r in upstream.requests][-1] == body or policy != "passthrough", name
            if policy == "passthrough":
                assert [r.body for r in upstream.requests] == [body], name
    assert proxy.count("internal_errors_total", where="web") == 0
    assert proxy.count("internal_errors_total", where="prepare") == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_odd_bodies_are_answered_whatever_the_upstream_says_to_them(stream: bool) -> None:
    model = ScriptedModel("Well.")
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        for name, body in ODD.items():
            asked = body.replace(b'{"model":"m"', b'{"stream":true,"model":"m"') if stream else body
            found = await proxy.post(asked)
            assert found.status == 200, name
            assert found.whole, name
            assert b"Well." in found.body, name
        again = await proxy.post(HELLO)
        assert again.status == 200
    assert proxy.count("internal_errors_total", where="prepare") == 0


def anything(dice: random.Random, depth: int = 0) -> Any:
    """A JSON value, mostly of the wrong kind for wherever it stands."""
    plain = [None, True, 0, -1, 2**70, 1.5, float("nan"), "", "a", "\ud83d", "user", "tool", "c1", "text", "auto"]
    kind = dice.random()
    if depth > 3 or kind < 0.5:
        return dice.choice(plain)
    if kind < 0.75:
        return [anything(dice, depth + 1) for _ in range(dice.randrange(4))]
    names = ["type", "text", "function", "name", "arguments", "id", "image_url", "url", "cache_control"]
    return {name: anything(dice, depth + 1) for name in dice.sample(names, dice.randrange(5))}


def body_of(dice: random.Random) -> dict[str, Any]:
    """A request that is nearly one."""
    fields = ["content", "tool_calls", "tool_call_id", "name", "function_call", "reasoning_content"]
    roles = ["user", "assistant", "tool", "system", "developer", "function", "wizard"]
    messages = [
        {"role": dice.choice(roles), "content": "a"}
        | {f: anything(dice) for f in dice.sample(fields, dice.randrange(3))}
        for _ in range(dice.randrange(6))
    ]
    body: dict[str, Any] = {"model": "m", "messages": messages if dice.random() < 0.95 else anything(dice)}
    more = ["model", "stream", "tools", "n", "metadata", "stream_options", "response_format", "tool_choice"]
    return body | {name: anything(dice) for name in dice.sample(more, dice.randrange(4))}


@pytest.mark.parametrize("policy", ["thrifty", "rolling", "observe"])
async def test_no_body_causes_an_error_of_the_proxy(policy: str) -> None:
    dice = random.Random(policy)
    async with run_upstream(ScriptedModel("Well.")) as upstream, run_proxy(upstream.port, policy=policy) as proxy:
        for _ in range(400):
            raw = json.dumps(body_of(dice)).encode()
            found = await proxy.post(raw)
            assert found.status == 200, raw
            assert found.whole, raw
        assert proxy.count("internal_errors_total", where="web") == 0
        assert proxy.count("internal_errors_total", where="prepare") == 0
        assert (await proxy.rows("SELECT count(*) FROM exchanges WHERE status = 'complete'"))[0][0] > 40


async def test_a_body_over_the_limit_is_refused_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(error_responses, "LINGER_S", 0.2)  # what is announced here never comes
    async with run_upstream(ScriptedModel()) as upstream, run_proxy(upstream.port, limits={"body_mb": 1}) as proxy:
        claimed = make_post(CHAT, b"", b"content-length: 2000000").replace(b"content-length: 0\r\n", b"")
        by_length = parse_answer(await send_raw(proxy.port, claimed))
        chunked = b"POST %b HTTP/1.1\r\nhost: t\r\ntransfer-encoding: chunked\r\n\r\n" % CHAT.encode()
        by_chunks = parse_answer(await send_raw(proxy.port, chunked + b"10000\r\n%b\r\n" % (b"a" * 65536) * 17))
    for found in (by_length, by_chunks):
        assert found.status == 413
        assert found.error["type"] == "invalid_request_error"
        assert found.error["code"] == "request_too_large"
        assert found.header("x-should-retry") == "false"
    assert upstream.requests == []


async def test_a_header_block_over_the_limit_and_a_missing_host_are_refused() -> None:
    async with run_upstream(ScriptedModel()) as upstream, run_proxy(upstream.port) as proxy:
        large = await proxy.post(HELLO, b"x-large: " + b"a" * 70_000)
        hostless = parse_answer(await send_raw(proxy.port, make_post().replace(b"host: test\r\n", b"")))
    assert large.status == 431
    assert hostless.status == 400
    for found in (large, hostless):
        assert found.header("x-should-retry") == "false"
        assert set(found.error) == {"message", "type", "param", "code"}
    assert upstream.requests == []


async def gone_while(proxy: RunningProxy, body: dict[str, Any], seen: asyncio.Event, *, how: str) -> None:
    """Ask, and leave once `seen` is set."""
    client = await connect(proxy.port)
    raw = json.dumps(body).encode()
    await client.send(make_post(CHAT, raw, b"authorization: Bearer sk-one", b"content-type: application/json"))
    await asyncio.wait_for(seen.wait(), 5)
    sock: socket.socket = client.writer.get_extra_info("socket")
    if how == "reset":
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.writer.transport.abort()
    else:
        if how == "half":
            client.writer.write_eof()
            await asyncio.wait_for(client.left(), 5)
        client.writer.close()


@pytest.mark.parametrize("how", ["reset", "close", "half"])
@pytest.mark.parametrize("stream", [False, True])
async def test_upstream_is_closed_when_the_client_leaves_before_the_first_byte(stream: bool, how: str) -> None:
    asked = asyncio.Event()

    async def silent(_: RawRequest, connection: Connection) -> None:
        asked.set()
        await connection.left()
        connection.writer.close()

    async with run_upstream(silent) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        leaving = asyncio.create_task(gone_while(proxy, HELLO | {"stream": stream}, asked, how=how))
        await asked.wait()
        assert await upstream.none_open(0.5 * 4)
        await leaving
        assert (await proxy.outcome())[0] == "client_gone"
        assert proxy.count("client_gone_total") == 1


@pytest.mark.parametrize("policy", ["passthrough", "thrifty"])
async def test_upstream_is_closed_when_the_client_leaves_mid_stream(policy: str) -> None:
    begun = asyncio.Event()

    async def endless(_: RawRequest, connection: Connection) -> None:
        await connection.send(STREAM)
        await connection.chunk(make_chunk({"role": "assistant", "content": "On and"}))
        begun.set()
        await connection.left()
        connection.writer.close()

    async with run_upstream(endless) as upstream, run_proxy(upstream.port, policy=policy) as proxy:
        leaving = asyncio.create_task(gone_while(proxy, HELLO | {"stream": True}, begun, how="reset"))
        await begun.wait()
        assert await upstream.none_open(0.5 * 4)
        await leaving
        status, http, _ = await proxy.outcome()
        assert (status, http) == ("client_gone", 499)


async def test_the_next_requests_succeed_after_many_clients_have_left() -> None:
    async def slow(request: RawRequest, connection: Connection) -> None:
        if b"wait" in request.body:
            await connection.left()
            connection.writer.close()
        else:
            await ScriptedModel("Well.")(request, connection)

    async with (
        run_upstream(slow) as upstream,
        run_proxy(upstream.port, pool={"connections": 5, "keepalive": 5}) as proxy,
    ):
        body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "wait"}]}).encode()
        clients = []
        for _ in range(5):
            client = await connect(proxy.port)
            await client.send(make_post(CHAT, body))
            clients.append(client)
        await wait_until(lambda: upstream.open == 5)
        for client in clients:
            client.writer.transport.abort()
        assert await upstream.none_open(0.5 * 4)
        found = await asyncio.gather(*(proxy.post(HELLO) for _ in range(5)))
        assert [f.status for f in found] == [200] * 5


async def test_a_client_that_reads_slowly_holds_the_upstream_back() -> None:
    sent = 0

    async def fast(_: RawRequest, connection: Connection) -> None:
        nonlocal sent
        await connection.send(STREAM)
        event = make_chunk({"content": "a" * 60_000})
        for _again in range(2000):
            await connection.chunk(event)
            sent += len(event)

    async with run_upstream(fast) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        client = await connect(proxy.port)
        await client.send(make_post(CHAT, json.dumps(HELLO | {"stream": True}).encode()))
        await client.reader.readexactly(1000)
        before = -1
        while before != sent:
            before = sent
            await asyncio.sleep(0.3)
        assert sent < 60_000_000, "nobody held the upstream back"
        client.writer.transport.abort()
        assert await upstream.none_open(1.0 * 4)
