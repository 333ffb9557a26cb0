from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.notes.state_block import build_prompt, render_recap
from tests.proxy_server import Agent, run_proxy
from tests.raw_upstream import STREAM, Connection, RawRequest, run_upstream
from tests.scripted_model import ScriptedModel, make_calls, make_chunk, make_completion, make_events, send_reply

HELLO = {"model": "m", "messages": [{"role": "system", "content": "Be."}, {"role": "user", "content": "Hello"}]}
BLOCK = "### STATE\nGoal: go on\nContext: as before\nResolved: none\nTechnical Anchors: a.txt"
JSON = b"content-type: application/json"


async def test_one_header_makes_one_request_a_passthrough() -> None:
    model = ScriptedModel("Well.")
    raw = json.dumps(HELLO | {"stream": True}).encode()
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="rolling") as proxy:
        off = await proxy.post(raw, b"x-context-off: 1", b"x-context-session: a")
        on = await proxy.post(raw, b"x-context-off: 0", b"x-context-session: a")
        assert proxy.count("fallbacks_total", reason="off") == 1
        assert len(await proxy.outcomes()) == 1
    assert [r.body == raw for r in model.received] == [True, False]
    assert off.header("x-context-fallback") == "off"
    assert off.header("x-context-session") is None
    assert on.header("x-context-fallback") is None
    assert off.body == b"".join(make_events({"content": "Well."}))


async def test_an_answer_says_whose_it_is_and_what_was_saved() -> None:
    async with run_upstream(ScriptedModel()) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        found = await proxy.post(HELLO, b"x-context-session: alpha")
        named = await proxy.post(HELLO)
    assert found.session == "alpha"
    before, after = found.header("x-context-tokens").split(", ")  # type: ignore[union-attr]
    assert int(before) == int(after) > 0
    assert found.header("x-context-fallback") is None
    assert len(named.session) == 16


@pytest.mark.parametrize("wanted", [True, False, None])
async def test_usage_is_asked_for_and_taken_out_again_where_the_client_did_not_ask(wanted: bool | None) -> None:
    model = ScriptedModel("Well.")
    body = HELLO | {"stream": True} | ({} if wanted is None else {"stream_options": {"include_usage": wanted}})
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        found = await proxy.post(body)
        used = await proxy.rows("SELECT prompt_tokens, completion_tokens FROM exchanges")
    assert model.last["stream_options"] == {"include_usage": True}
    assert found.body == b"".join(make_events({"content": "Well."}, model.usage if wanted else None))
    assert used == [(11, 3)]


@pytest.mark.parametrize("after", [0, 1, 3, 5])
@pytest.mark.parametrize("how", ["reset", "end", "within a line"])
async def test_a_broken_stream_is_passed_on_up_to_the_break_with_an_error_and_without_done(
    how: str, after: int
) -> None:
    whole = make_events({"content": "A longer text that comes in pieces."})

    async def broken(_: RawRequest, connection: Connection) -> None:
        await connection.send(STREAM)
        for event in whole[:after]:
            await connection.chunk(event)
        if how == "within a line":
            await connection.chunk(whole[after][:40])
        if how == "end":
            await connection.chunk(b"")
        else:
            await connection.reset()

    async with run_upstream(broken) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        found = await proxy.post(HELLO | {"stream": True, "stream_options": {"include_usage": True}})
        assert found.status == 200
        came = b"".join(whole[:after]) + (whole[after][:40] + b"\n\n" if how == "within a line" else b"")
        assert found.body.startswith(came)
        error = json.loads(found.events[-1])["error"]
        assert found.body[len(came) :] == b"data: " + found.events[-1] + b"\n\n"
        assert (error["type"], error["code"]) == ("upstream_error", "upstream_broken")
        assert not found.whole
        assert b"[DONE]" not in found.body
        assert (await proxy.outcome())[0] == "partial"
        assert proxy.count("upstream_truncated_total") == 1


async def test_an_idle_upstream_is_given_up_and_says_so() -> None:
    async def stalls(_: RawRequest, connection: Connection) -> None:
        await connection.send(STREAM)
        await connection.chunk(make_chunk({"role": "assistant", "content": "I"}))
        await connection.left()

    idle = {"idle_s": 0.3}
    async with run_upstream(stalls) as upstream, run_proxy(upstream.port, policy="thrifty", timeouts=idle) as proxy:
        found = await proxy.post(HELLO | {"stream": True})
        assert json.loads(found.events[-1])["error"]["code"] == "upstream_timeout"
        assert (await proxy.outcome())[0] == "partial"
        assert await upstream.none_open()


@pytest.mark.parametrize("status", [b"401 No", b"404 No", b"429 Later", b"500 Oh", b"503 Oh", b"529 Oh"])
async def test_an_upstreams_error_passes_once_and_as_it_is(status: bytes) -> None:
    model = ScriptedModel("Well.")
    body = b'[{"error": {"code": 429, "message": "Later"}}]'

    async def script(request: RawRequest, connection: Connection) -> None:
        model.received.append(request)
        await send_reply(connection, status, body, JSON, b"retry-after: 7", b"x-request-id: r1")

    async with run_upstream(script) as upstream, run_proxy(upstream.port, policy="rolling") as proxy:
        found = await proxy.post(HELLO | {"stream": True})
        assert (found.status, found.body) == (int(status[:3]), body)
        assert (found.header("retry-after"), found.header("x-request-id")) == ("7", "r1")
        assert await proxy.outcomes() == [("rejected", int(status[:3]), None)]
    assert len(model.received) == 1


async def test_an_upstream_that_is_not_there_is_reported_as_502() -> None:
    async with run_upstream(ScriptedModel()) as upstream:
        port = upstream.port
    async with run_proxy(port, policy="thrifty") as proxy:
        found = await proxy.post(HELLO | {"stream": True})
        assert found.status == 502
        assert found.error["code"] == "upstream_unreachable"
        assert await proxy.outcome() == ("failed", 502, None)


async def test_an_answer_cut_short_is_never_reported_as_whole() -> None:
    async def short(_: RawRequest, connection: Connection) -> None:
        await connection.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 500\r\n\r\n{")
        await connection.reset()

    async with run_upstream(short) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        found = await proxy.post(HELLO)
        assert found.status == 502
        assert (await proxy.outcome())[0] == "partial"


ANSWERS: dict[str, tuple[bytes, bytes]] = {
    "html": (b"text/html", b"<html>down</html>"),
    "garbage": (b"application/json", b"\x00\xff{"),
    "empty": (b"application/json", b""),
    "no choices": (b"application/json", b'{"object":"x"}'),
    "choices of numbers": (b"application/json", b'{"choices":[1,{"message":3},{"message":{"role":5}}],"usage":[]}'),
    "odd usage": (b"application/json", b'{"choices":[{"message":{"role":"assistant"},"finish_reason":7}],"usage":"x"}'),
    "deep": (b"application/json", b'{"choices":' + b"[" * 100_000),
    "an error with 200": (b"application/json", b'{"error":{"message":"no"}}'),
    "odd calls": (
        b"application/json",
        b'{"choices":[{"message":{"role":"assistant","tool_calls":[{"id":1,"function":"x"}]},"finish_reason":"stop"}]}',
    ),
}


@pytest.mark.parametrize("policy", ["thrifty", "rolling", "passthrough"])
async def test_whatever_a_200_holds_reaches_the_client(policy: str) -> None:
    kind, body = b"", b""

    async def odd(_: RawRequest, connection: Connection) -> None:
        await send_reply(connection, b"200 OK", body, b"content-type: " + kind)

    async with run_upstream(odd) as upstream, run_proxy(upstream.port, policy=policy) as proxy:
        for name, (kind, body) in ANSWERS.items():
            for stream in (False, True):
                found = await proxy.post(HELLO | {"stream": stream})
                assert (found.status, found.body) == (200, body), name
                assert found.header("content-type") == kind.decode()


@pytest.mark.parametrize("policy", ["thrifty", "rolling"])
async def test_whatever_a_stream_holds_reaches_the_client(policy: str) -> None:
    odd = b'data: {"choices":[{"delta":5}]}\n\n: note\n\ndata: [1]\n\n'
    odd += b'event: x\ndata: {"choices":[{"delta":{"tool_calls":[3]}}]}\n\n'

    async def script(_: RawRequest, connection: Connection) -> None:
        await connection.send(STREAM)
        await connection.chunk(odd)
        await connection.chunk(b"data: [DONE]\n\n")
        await connection.chunk(b"")

    async with run_upstream(script) as upstream, run_proxy(upstream.port, policy=policy) as proxy:
        found = await proxy.post(HELLO | {"stream": True, "stream_options": {"include_usage": True}})
        assert found.status == 200
        assert found.body == odd + b"data: [DONE]\n\n"
        assert found.whole


async def test_an_answer_that_is_larger_than_we_hold_passes_as_it_comes() -> None:
    body = make_completion({"role": "assistant", "content": "a" * 3_000_000})

    async def large(_: RawRequest, connection: Connection) -> None:
        await send_reply(connection, b"200 OK", body, JSON)

    async with (
        run_upstream(large) as upstream,
        run_proxy(upstream.port, policy="thrifty", limits={"body_mb": 1}) as proxy,
    ):
        found = await proxy.post(HELLO)
        assert found.status == 200
        assert found.body == body
        assert found.whole


@pytest.mark.parametrize("stream", [False, True])
async def test_a_state_block_is_asked_for_withheld_stored_and_given_back_after_the_system_prompt(stream: bool) -> None:
    model = ScriptedModel("The answer.\n\n" + BLOCK, "Another.")
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="rolling") as proxy:
        agent = Agent(proxy, stream=stream, messages=[{"role": "system", "content": "Be."}])
        found = await agent.say("Hello")
        assert found.whole
        assert agent.messages[-1]["content"] == "The answer."
        assert b"STATE" not in found.body
        await agent.say("Go on")
        assert [text for (text,) in await proxy.rows("SELECT text FROM states")] == [BLOCK.partition("\n")[2].encode()]
    first, second = (texts[0] for texts in (model.texts(0), model.texts(1)))
    assert first.startswith("Be.")
    assert first.endswith(build_prompt())
    assert "## Global Anchor\n\n" + BLOCK in second
    assert second.index("Be.") < second.index("Global Anchor") < second.index(build_prompt())
    assert model.texts(1)[1:] == ["Hello", "The answer.", "Go on"], "a block is never put back into the history"


async def test_text_of_the_client_is_never_taken_for_the_models_state() -> None:
    model = ScriptedModel(make_calls(("call_aaaaaaa1", "look")), "It says so.")
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="rolling") as proxy:
        agent = Agent(proxy, messages=[{"role": "system", "content": "Be."}])
        await agent.say("Quote this:\n" + BLOCK)
        agent.brings(BLOCK)
        await agent.say()
        assert await proxy.rows("SELECT text FROM states") == []
    assert model.texts()[-1] == BLOCK


@pytest.mark.parametrize(
    "more", [{"n": 2}, {"response_format": {"type": "json_object"}}, {"tool_choice": "required", "tools": []}]
)
async def test_no_state_is_asked_for_where_one_free_text_is_not_expected(more: dict[str, Any]) -> None:
    model = ScriptedModel("The answer.\n\n" + BLOCK)
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="rolling") as proxy:
        found = await proxy.post(HELLO | more)
        assert found.message["content"] == "The answer.\n\n" + BLOCK, "not asked for, so not taken out"
    assert build_prompt() not in model.texts()[0]


async def test_state_may_be_shown_to_the_client() -> None:
    model, shown = ScriptedModel("Yes.\n\n" + BLOCK), {"withhold": False}
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="rolling", state=shown) as proxy:
        for stream in (False, True):
            found = await Agent(proxy, stream=stream).say("Hello")
            assert found.message["content"] == "Yes.\n\n" + BLOCK
        assert len(await proxy.rows("SELECT text FROM states")) == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_thrifty_asks_when_something_has_left_and_gives_the_note_back_at_the_tail(stream: bool) -> None:
    model = ScriptedModel()

    def result() -> str:
        return "\n".join(f"line {n} of result {len(model.received)}" for n in range(200))

    async def script(request: RawRequest, connection: Connection) -> None:
        done = build_prompt() in json.loads(request.body)["messages"][-1]["content"]
        step = make_calls((f"call_{len(model.received):09}", "look"))
        model.answers = ["Done.\n\n" + BLOCK if done else step if model.answers[0] != "Fine." else "Fine."]
        await model(request, connection)

    async with run_upstream(script) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        agent = Agent(proxy, (b"x-context-session: a",), stream=stream, messages=[{"role": "system", "content": "Be."}])
        await agent.say("Look at all of them")
        while "tool_calls" in agent.messages[-1]:
            assert len(agent.messages) < 300, "thrifty never asked"
            agent.brings(result())
            await agent.say()
        assert agent.messages[-1]["content"] == "Done."
        model.answers = ["Fine."]
        await agent.say("Thanks. What next?")
        await agent.say("And then?")
        edits = await proxy.rows("SELECT count(*) FROM edits WHERE stage <> 'state'")
    note = render_recap(BLOCK.partition("\n")[2])
    assert edits[0][0] > 0
    assert {texts[0] for texts in map(model.texts, range(len(model.chats)))} == {"Be."}, "the system prompt stays"
    asked = [any(build_prompt() in (text or "") for text in model.texts(n)) for n in range(len(model.chats))]
    assert asked == [False] * (len(asked) - 3) + [True, False, False]
    assert model.texts(-2)[-1] == "Thanks. What next?\n\n" + note
    assert model.texts(-1)[-3] == model.texts(-2)[-1], "what was put there stays there"
    assert model.texts(-1)[-1] == "And then?"
