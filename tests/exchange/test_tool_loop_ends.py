"""Rounds that do not end by themselves: limits, faults of the upstream, a client that leaves."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from proxy.chat import json_spans
from proxy.exchange import tool_loop
from proxy.tools import registry
from tests.exchange.hidden_calls import (
    SECRET,
    TOOLS,
    PlayedConversation,
    assert_hidden,
    assert_rebuilt,
    list_offered_tools,
    list_sent_messages,
    make_answer,
    make_client_call,
    make_proxy_call,
    run_proxy_with_tools,
)
from tests.raw_upstream import STREAM, Connection, RawRequest, connect, make_post, run_upstream, wait_until
from tests.scripted_model import ScriptedModel, make_chunk, send_reply

JSON = b"content-type: application/json"
CLIENTS = ["look", "write_file"]


def results(model: ScriptedModel, at: int = -1) -> list[str]:
    """The results of the proxy's tools in one request to the upstream."""
    messages = [json.loads(raw) for raw in list_sent_messages(model, at)]
    return [m["content"] for m in messages if m["role"] == "tool" and SECRET in m["tool_call_id"]]


@pytest.mark.parametrize("stream", [False, True])
async def test_after_so_many_rounds_the_model_is_asked_once_more_without_our_tools(stream: bool) -> None:
    model = ScriptedModel(*(make_answer(None, make_proxy_call(n)) for n in range(4)), "Enough.", "Welcome.")
    async with run_upstream(model) as upstream, run_proxy_with_tools(upstream.port, tools={"rounds": 3}) as proxy:
        played = PlayedConversation(proxy, model, stream=stream)
        found = await played.turn("Hello")
        assert proxy.count("tool_rounds_total", outcome="run") == 3
        assert proxy.count("tool_rounds_total", outcome="rounds") == 1
        assert proxy.count("tools_total", tool="recall", outcome="refused") == 3
        await played.turn("Thanks")
        await assert_rebuilt(proxy, model, [0, 5])
    assert found.message["content"] == "Enough."
    assert [list_offered_tools(model, at) for at in range(5)] == [[*CLIENTS, "recall"]] * 4 + [CLIENTS]
    assert tool_loop.LIMIT_RESULTS["rounds"] in results(model, 4)[-1]
    assert len(results(model, 4)) == 4
    assert_hidden(played.heard)
    # From the next request on all is as it was: the tools, and the whole history.
    assert list_offered_tools(model) == [*CLIENTS, "recall"]
    assert list_sent_messages(model, -1)[: len(list_sent_messages(model, 4))] == list_sent_messages(model, 4)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_model_that_calls_what_is_not_there_any_more_has_said_what_it_says(stream: bool) -> None:
    model = ScriptedModel(
        make_answer("Let me look.", make_proxy_call(1)),
        make_answer("Again.", make_proxy_call(2)),
        make_answer("And again.", make_proxy_call(3)),
    )
    async with run_upstream(model) as upstream, run_proxy_with_tools(upstream.port, tools={"rounds": 1}) as proxy:
        played = PlayedConversation(proxy, model, stream=stream)
        found = await played.turn("Hello")
        model.answers = ["Welcome."]
        await played.turn("Thanks")
        assert await proxy.outcomes() == [("complete", 200, None)] * 2
    assert found.message["content"] == "Let me look.Again.And again."
    assert len(model.received) == 4
    assert_hidden(played.heard)
    called = [json.loads(raw) for raw in list_sent_messages(model, -1)]
    assert [m["role"] for m in called] == ["user", *["assistant", "tool"] * 3, "user"]


@pytest.mark.parametrize("stream", [False, True])
async def test_the_same_call_is_told_that_it_was_made_and_the_third_time_ends_it(stream: bool) -> None:
    again = {"id": "x", **{k: v for k, v in make_proxy_call(1).items() if k != "id"}}
    spaced = {**again, "function": {"name": "recall", "arguments": f'{{ "id":"{SECRET}-1" }}'}}
    called = [{**one, "id": f"{SECRET}{n}"} for n, one in enumerate((again, spaced, again))]
    model = ScriptedModel(*(make_answer(None, call) for call in called), "Enough.")
    async with run_upstream(model) as upstream, run_proxy_with_tools(upstream.port) as proxy:
        played = PlayedConversation(proxy, model, stream=stream)
        await played.turn("Hello")
        assert proxy.count("tools_total", tool="recall", outcome="refused") == 1
    first, second, third = results(model)
    assert tool_loop.REPEATED_CALL not in first
    assert tool_loop.REPEATED_CALL in second
    assert tool_loop.LIMIT_RESULTS["repeats"] in third
    assert list_offered_tools(model) == CLIENTS
    assert_hidden(played.heard)


@pytest.mark.parametrize(
    ("stream", "seconds", "line"),
    [(False, 0.1, b"x-a: b"), (True, 0.1, b"x-a: b"), (False, 60.0, b"x-stainless-read-timeout: 0.2")],
)
async def test_time_is_bounded_too_and_ends_a_tool_that_runs(
    stream: bool, seconds: float, line: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the setting, and where nothing goes out meanwhile by what the client says that it waits."""
    ended: list[str] = []

    async def forever(call: Any, tool_context: Any) -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended.append(call.name)
            raise
        return "never"

    monkeypatch.setattr(tool_loop, "run_tool_call", forever)
    model = ScriptedModel(make_answer(None, make_proxy_call(1), make_proxy_call(2)), "Enough.")
    async with (
        run_upstream(model) as upstream,
        run_proxy_with_tools(upstream.port, tools={"seconds": seconds}) as proxy,
    ):
        played = PlayedConversation(proxy, model, stream=stream)
        await played.turn("Hello", line)
    assert ended[:1] == ["recall"]
    assert [tool_loop.LIMIT_RESULTS["time"] in text for text in results(model)] == [True, True]
    assert list_offered_tools(model) == CLIENTS
    assert_hidden(played.heard)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_forced_call_is_a_call_of_a_proxy_tool_only_once(stream: bool) -> None:
    model = ScriptedModel(
        make_answer(None, make_proxy_call(1)),
        make_answer(None, make_client_call(1)),
        make_answer(None, make_client_call(2)),
    )
    async with run_upstream(model) as upstream, run_proxy_with_tools(upstream.port) as proxy:
        played = PlayedConversation(proxy, model, stream=stream, tool_choice="required")
        await played.turn("Hello")
        await played.turn(None)
        await assert_rebuilt(proxy, model, [0, 2])
    assert [list_offered_tools(model, at) for at in range(3)] == [[*CLIENTS, "recall"], CLIENTS, [*CLIENTS, "recall"]]
    assert all(chat["tool_choice"] == "required" for chat in model.chats)
    assert_hidden(played.heard)


async def refuse(request: RawRequest, connection: Connection) -> None:
    await send_reply(connection, b"500 Broken", b'{"error":{"message":"no"}}', JSON)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_later_round_that_fails_is_answered_by_the_original_request(stream: bool) -> None:
    model = ScriptedModel(make_answer(None, make_proxy_call(1)), refuse, "It is so.", "Welcome.")
    async with run_upstream(model) as upstream, run_proxy_with_tools(upstream.port) as proxy:
        played = PlayedConversation(proxy, model, stream=stream)
        found = await played.turn("Hello")
        assert found.message["content"] == "It is so."
        assert json.loads(model.received[2].body)["tools"] == TOOLS
        assert [json.loads(raw) for raw in list_sent_messages(model, 2)] == [{"role": "user", "content": "Hello"}]
        await played.turn("Thanks")
        assert await proxy.outcomes() == [("complete", 200, "rounds"), ("complete", 200, None)]
        assert proxy.count("fallbacks_total", reason="rounds") == 1
    assert_hidden(played.heard)
    # Nothing is put back: what upstream wrote last it wrote without.
    assert [json.loads(raw)["role"] for raw in list_sent_messages(model, -1)] == ["user", "assistant", "user"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_state_that_the_client_asked_for_itself_is_its_own_in_the_answer_to_its_request(stream: bool) -> None:
    said = "It is so.\n\n### STATE\nGoal: mine\nContext: as before\nResolved: none\nTechnical Anchors: a.txt"
    model = ScriptedModel(make_answer(None, make_proxy_call(1)), refuse, said, "Welcome.")
    async with run_upstream(model) as upstream, run_proxy_with_tools(upstream.port, "rolling") as proxy:
        played = PlayedConversation(proxy, model, stream=stream)
        found = await played.turn("Hello")
        assert await proxy.rows("SELECT text FROM states") == []
    assert found.message["content"] == said
    assert b"### STATE" in model.received[0].body
    assert b"### STATE" not in model.received[2].body


async def test_a_stream_that_has_begun_ends_with_an_error() -> None:
    model = ScriptedModel(make_answer("Let me look.", make_proxy_call(1)), refuse, "Not asked.")
    async with run_upstream(model) as upstream, run_proxy_with_tools(upstream.port) as proxy:
        body = {"model": "m", "messages": [{"role": "user", "content": "Hello"}], "tools": TOOLS, "stream": True}
        found = await proxy.post(body)
        assert (await proxy.outcome())[0] == "partial"
    assert len(model.received) == 2
    assert json.loads(found.events[-1])["error"]["code"] == "upstream_broken"
    assert SECRET.encode() not in found.body
    assert b"[DONE]" not in found.body
    assert not found.whole


async def test_a_body_that_waited_is_answered_by_the_original_whatever_was_said() -> None:
    model = ScriptedModel(make_answer("Let me look.", make_proxy_call(1)), refuse, "It is so.")
    async with run_upstream(model) as upstream, run_proxy_with_tools(upstream.port) as proxy:
        found = await PlayedConversation(proxy, model, stream=False).turn("Hello")
    assert found.message["content"] == "It is so."


@pytest.mark.parametrize(("status", "is_told"), [(b"529 Overloaded", True), (b"400 Bad Request", False)])
async def test_why_a_round_was_refused_is_recorded_and_told_where_it_is_not_about_hidden_messages(
    status: bytes, is_told: bool
) -> None:
    async def refuses(request: RawRequest, connection: Connection) -> None:
        await send_reply(connection, status, b'{"error":{"message":"Try later, please."}}', JSON)

    for said, stream in (("Let me look.", True), (None, True), (None, False)):
        model = ScriptedModel(make_answer(said, make_proxy_call(1)), refuses, "It is so.")
        async with run_upstream(model) as upstream, run_proxy_with_tools(upstream.port) as proxy:
            body = {"model": "m", "messages": [{"role": "user", "content": "Hello"}], "tools": TOOLS, "stream": stream}
            found = await proxy.post(body)
            assert (await proxy.outcome())[0] == ("partial" if said else "complete")
            [(note,)] = await proxy.rows("SELECT note FROM exchanges")
        assert f"a round of the proxy's tools was refused: http {status[:3].decode()}: Try later, please." in note
        assert (b"Try later" in found.body) == (is_told and said is not None)


async def test_a_refusal_in_an_unknown_compression_is_reported_by_its_status_alone() -> None:
    async def refuses(request: RawRequest, connection: Connection) -> None:
        await send_reply(connection, b"500 Broken", b"\x80packed", JSON, b"content-encoding: x-own")

    model = ScriptedModel(make_answer("Let me look.", make_proxy_call(1)), refuses)
    async with run_upstream(model) as upstream, run_proxy_with_tools(upstream.port) as proxy:
        body = {"model": "m", "messages": [{"role": "user", "content": "Hello"}], "tools": TOOLS, "stream": True}
        found = await proxy.post(body)
        await proxy.outcome()
        assert await proxy.rows("SELECT note FROM exchanges") == [
            ("upstream_broken; a round of the proxy's tools was refused: http 500",)
        ]
    assert b"packed" not in found.body


async def test_the_cost_of_a_body_has_the_rounds_that_were_given_up() -> None:
    for third in (None, {"choices": [], "usage": {"prompt_tokens": 20, "completion_tokens": 5, "total_tokens": 25}}):

        async def fails(request: RawRequest, connection: Connection, third: Any = third) -> None:
            status = b"500 Broken" if third is None else b"200 OK"
            await send_reply(connection, status, json.dumps(third).encode(), JSON)

        model = ScriptedModel(make_answer(None, make_proxy_call(1)), fails, "It is so.")
        async with run_upstream(model) as upstream, run_proxy_with_tools(upstream.port) as proxy:
            await PlayedConversation(proxy, model, stream=False).turn("Hello")
            await proxy.outcome()
            assert proxy.count("completion_tokens_total") == (6 if third is None else 11)
            [(raw,)] = await proxy.rows("SELECT meter FROM exchanges")
        assert json.loads(raw)["outputs"] == ([3, 3] if third is None else [3, 5, 3])


@pytest.mark.parametrize(("said", "stream"), [(None, False), (None, True), ("Let me look.", True)])
async def test_an_exchange_that_fails_after_a_round_has_the_cost_of_the_round(said: str | None, stream: bool) -> None:
    model = ScriptedModel(make_answer(said, make_proxy_call(1)), refuse, refuse)
    async with run_upstream(model) as upstream, run_proxy_with_tools(upstream.port) as proxy:
        body = {"model": "m", "messages": [{"role": "user", "content": "Hello"}], "tools": TOOLS, "stream": stream}
        await proxy.post(body)
        assert (await proxy.outcome())[0] == ("partial" if stream else "rejected")
        [(raw, prompt)] = await proxy.rows("SELECT meter, prompt_tokens FROM exchanges")
        meter = json.loads(raw)
        assert (meter["outputs"], len(meter["rounds"]), prompt) == ([3], 1, None)
        assert proxy.count("completion_tokens_total") == 3
        assert proxy.count("prompt_tokens_total") == meter["rounds"][0][0]


@pytest.mark.parametrize("said", ["", "Let me look."])
async def test_a_later_stream_that_breaks_off(said: str) -> None:
    async def breaks(request: RawRequest, connection: Connection) -> None:
        model.received.append(request)
        await connection.send(STREAM)
        await connection.chunk(make_chunk({"role": "assistant", "content": ""}))
        await connection.reset()

    model = ScriptedModel(make_answer(said or None, make_proxy_call(1)), breaks, "It is so.")
    async with run_upstream(model) as upstream, run_proxy_with_tools(upstream.port) as proxy:
        body = {"model": "m", "messages": [{"role": "user", "content": "Hello"}], "tools": TOOLS, "stream": True}
        found = await proxy.post(body)
        status, _, fallback = await proxy.outcome()
    assert (status, fallback) == (("partial", None) if said else ("complete", "rounds"))
    assert found.whole is not bool(said)
    assert SECRET.encode() not in found.body


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_with_our_tools_that_is_refused_goes_out_once_more_without(stream: bool) -> None:
    async def script(request: RawRequest, connection: Connection) -> None:
        if len(json.loads(request.body)["tools"]) > len(TOOLS):
            await send_reply(connection, b"400 Bad", b'{"error":{"message":"no"}}', JSON)
        else:
            await ScriptedModel.__call__(model, request, connection)

    model = ScriptedModel(
        make_answer(None, make_proxy_call(1))
    )  # what is not offered is the client's, whatever its name
    async with run_upstream(script) as upstream, run_proxy_with_tools(upstream.port) as proxy:
        played = PlayedConversation(proxy, model, stream=stream)
        found = await played.turn("Hello")
        assert found.message["tool_calls"] == [make_proxy_call(1)]
        await played.turn(None)
        assert [row[2] for row in await proxy.outcomes()] == ["upstream_reject", None]
    assert [list_offered_tools(model, at) for at in range(2)] == [CLIENTS, CLIENTS]


async def gone(first: Any, monkeypatch: pytest.MonkeyPatch, where: str) -> list[str]:
    """Everything ends when a client leaves in a hidden round (`round`) or while a tool runs (`tool`)."""
    ended: list[str] = []
    at = asyncio.Event()

    async def forever(call: Any, tool_context: Any) -> str:
        at.set()
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            ended.append("tool")
            raise
        return ""

    async def silent(request: RawRequest, connection: Connection) -> None:
        at.set()
        await connection.send(STREAM)
        await connection.left()
        ended.append("round")

    if where == "tool":
        monkeypatch.setattr(tool_loop, "run_tool_call", forever)
    model = ScriptedModel(first, silent)
    async with run_upstream(model) as upstream, run_proxy_with_tools(upstream.port) as proxy:
        body = json.dumps(
            {"model": "m", "messages": [{"role": "user", "content": "Hello"}], "tools": TOOLS, "stream": True}
        )
        client = await connect(proxy.port)
        await client.send(make_post("/v1/chat/completions", body.encode(), JSON, b"authorization: Bearer a"))
        await asyncio.wait_for(at.wait(), 5)
        client.writer.transport.abort()
        await wait_until(lambda: bool(ended))
        assert (await proxy.outcome(5))[0] == "client_gone"
        assert where == "tool" or await upstream.none_open(2)  # the tool's connection is kept for others
    return ended


@pytest.mark.parametrize("where", ["round", "tool"])
async def test_a_client_that_leaves_ends_the_round_and_the_tool(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await gone(make_answer("Look.", make_proxy_call(1)), monkeypatch, where) == [where]


def children() -> set[str]:
    """The processes that this one has started and that still run."""
    found = Path("/proc/self/task").glob("*/children")
    return {name for path in found for name in path.read_text().split()}


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs Linux to see the processes")
async def test_a_client_that_leaves_ends_the_process_that_runs_sql_for_it() -> None:
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    arguments = json.dumps({"sql": endless})
    call = {"id": "a", "type": "function", "function": {"name": "query_db", "arguments": arguments}}
    model = ScriptedModel(make_answer(None, call), "Not asked.")
    async with run_upstream(model) as upstream, run_proxy_with_tools(upstream.port, "rolling") as proxy:
        body = {"model": "m", "messages": [{"role": "user", "content": "Hello"}], "tools": TOOLS, "stream": True}
        before = children()
        client = await connect(proxy.port)
        await client.send(
            make_post("/v1/chat/completions", json.dumps(body).encode(), JSON, b"authorization: Bearer a")
        )
        await wait_until(lambda: bool(children() - before))
        client.writer.transport.abort()
        await wait_until(lambda: not children() - before)
        assert (await proxy.outcome(5))[0] == "client_gone"
        assert all(
            proxy.count("tools_total", tool="query_db", outcome=one) == 0 for one in ("done", "limited", "failed")
        )
    assert len(model.received) == 1


@pytest.mark.parametrize("before", [[], [make_answer("Look. ", make_proxy_call(2))]])
async def test_a_call_that_was_cut_off_is_nothing_that_is_put_back(before: list[Any]) -> None:
    """It has no result, and a call without one is refused."""

    async def cut(request: RawRequest, connection: Connection) -> None:
        model.received.append(request)
        choice = {"index": 0, "message": make_answer("Long.", make_proxy_call(1)), "finish_reason": "length"}
        await send_reply(connection, b"200 OK", json.dumps({"id": "a", "choices": [choice]}).encode(), JSON)

    model = ScriptedModel(*before, cut, "Well.")
    async with run_upstream(model) as upstream, run_proxy_with_tools(upstream.port) as proxy:
        played = PlayedConversation(proxy, model, stream=False)
        found = await played.turn("Hello")
        assert SECRET.encode() not in found.body
        await played.turn("Go on")
    assert [json.loads(raw).get("tool_calls") for raw in list_sent_messages(model, -1)] == [None, None, None]


async def test_definitions_are_those_of_the_catalog() -> None:
    model = ScriptedModel("Well.")
    async with run_upstream(model) as upstream, run_proxy_with_tools(upstream.port, "rolling") as proxy:
        await PlayedConversation(proxy, model, stream=False).turn("Hello", b"x-context-session: a")
    tools = json_spans.read_value(model.received[0].body, "tools") or b""
    assert tools.endswith(b"," + registry.join_definitions(list(registry.TOOLS)) + b"]")


@pytest.mark.parametrize("stream", [False, True])
async def test_each_round_has_an_idempotency_key_of_its_own(stream: bool) -> None:
    model = ScriptedModel(make_answer(None, make_proxy_call(1)), make_answer(None, make_proxy_call(2)), "It is so.")
    seen: dict[bytes, bytes] = {}

    async def refuse_other_bodies(request: RawRequest, connection: Connection) -> None:
        (key,) = request.all(b"idempotency-key")
        if seen.setdefault(key, request.body) != request.body:
            await send_reply(connection, b"422 Unprocessable Content", b'{"error":{"message":"another body"}}', JSON)
            return
        await model(request, connection)

    async with run_upstream(refuse_other_bodies) as upstream, run_proxy_with_tools(upstream.port) as proxy:
        found = await PlayedConversation(proxy, model, stream=stream).turn("Hello", b"Idempotency-Key: k")
        assert found.message["content"] == "It is so."
    assert list(seen) == [b"k", b"k-1", b"k-2"]
