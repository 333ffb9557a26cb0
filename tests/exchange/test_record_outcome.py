from __future__ import annotations

import asyncio
import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from proxy.context.plan import Note
from proxy.dialects.completions.stream import make_error_event
from proxy.exchange import record_outcome
from proxy.exchange.turn import UNPLANNED
from proxy.metrics import Metrics
from tests.exchange.hidden_calls import TOOLS, make_answer, make_proxy_call, run_proxy_with_tools
from tests.failing_store import FailingStore, use_store
from tests.proxy_server import CHAT, Agent, RunningProxy, run_proxy
from tests.raw_upstream import HANGS_S, STREAM, Connection, RawRequest, connect, make_post, run_upstream
from tests.scripted_model import ScriptedModel, make_calls, make_chunk, make_events, send_completion, send_reply
from tests.snapshot import snapshot

SYSTEM = {"role": "system", "content": "Be."}
HELLO: dict[str, Any] = {"model": "m", "messages": [SYSTEM, {"role": "user", "content": "Hello"}]}
BLOCK = "### STATE\nContext: as before\nGoal: go on"


def breaking(*deltas: dict[str, Any]) -> Any:
    """A stream that ends after these."""

    async def script(_: RawRequest, connection: Connection) -> None:
        await connection.send(STREAM)
        for delta in deltas:
            await connection.chunk(make_chunk(delta))
        await connection.reset()

    return script


async def answers(proxy: RunningProxy) -> list[Any]:
    return [json.loads(body) for (body,) in await proxy.rows("SELECT body FROM messages WHERE answer = 1 ORDER BY seq")]


async def test_finish_reason_and_usage_of_upstream_are_recorded() -> None:
    model = ScriptedModel(make_calls(("call_abcdef01", "look")))
    model.usage = {"prompt_tokens": 50, "completion_tokens": 7, "total_tokens": 57}
    model.usage["prompt_tokens_details"] = {"cached_tokens": 32}
    asked = "SELECT status, http_status, finish, prompt_tokens, completion_tokens, cached_tokens FROM exchanges"
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        for stream in (False, True):
            await proxy.post(HELLO | {"stream": stream})
        rows = await proxy.rows(asked)
        keys = await proxy.rows("SELECT e.answer = m.key FROM exchanges e JOIN messages m ON m.key = e.answer")
        heads = await proxy.rows("SELECT t.answer = e.answer FROM branches t JOIN exchanges e ON e.branch = t.branch")
        times = await proxy.rows("SELECT started_at, ended_at, first_byte_ms FROM exchanges")
        assert proxy.count("prompt_tokens_total") == 100
        assert proxy.count("cached_tokens_total", kind="reported") == 64
        named = {"model": "m", "policy": "thrifty", "upstream": "default"}
        assert proxy.count("prompt_tokens_total", **named) == 100
        assert proxy.count("completion_tokens_total", **named) == 14
        assert proxy.count("context_tokens_total", kind="before", **named) == proxy.count("tokens_before_sum") > 0
        assert proxy.count("request_duration_seconds_count", route="chat") == 2
        assert proxy.count("request_duration_seconds_sum") >= proxy.count("first_token_seconds_sum")
    assert rows == [("complete", 200, "tool_calls", 50, 7, 32)] * 2
    assert {one for (one,) in keys} == {1}
    assert heads == [(1,), (1,)]
    assert all(ended >= started and first >= 0 for started, ended, first in times)


async def test_tokens_of_a_prompt_are_counted_whether_or_not_its_answer_reports_usage() -> None:
    async with run_upstream(ScriptedModel("Well.")) as upstream, run_proxy(upstream.port) as proxy:
        await proxy.post(HELLO | {"stream": True})  # under passthrough nothing asks a stream for its usage
        before, after = proxy.count("tokens_before_sum"), proxy.count("tokens_after_sum")
        assert proxy.count("prompt_tokens_total") == 0
        assert proxy.count("context_tokens_total", kind="before", policy="passthrough") == before > 0
        assert proxy.count("context_tokens_total", kind="sent", policy="passthrough") == after > 0


async def test_an_answer_ends_when_the_store_has_it(tmp_path: Path) -> None:
    """The answer is read over another connection as soon as the client has its last byte."""
    db, patient = tmp_path / "store.sqlite3", {"commit_wait_ms": 10_000}
    async with (
        run_upstream(ScriptedModel("Well.")) as upstream,
        run_proxy(upstream.port, db=str(db), limits=patient) as proxy,
    ):
        for number, stream in enumerate((False, True), 1):
            heard = await proxy.post(HELLO | {"stream": stream})
            with closing(snapshot(db)) as beside:
                found = beside.execute("SELECT count(*) FROM messages WHERE answer = 1").fetchone()
            assert found == (number,)
            assert heard.header("x-context-persist") is None
            assert b"persist deferred" not in heard.body
        assert proxy.count("persist_deferred_total") == 0


async def test_the_numbers_of_a_request_are_in_the_metrics() -> None:
    async with run_upstream(ScriptedModel("Well.")) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        await proxy.post(HELLO)
        assert proxy.count("tokens_before_count") == proxy.count("tokens_after_count") == 1
        assert proxy.count("request_seconds_count", route="chat") == 1
        assert proxy.count("first_token_seconds_count", upstream="default") == 1
        assert proxy.count("live_branches") == 1
        assert proxy.count("message_cache_bytes") > 0


async def test_an_answer_is_given_whatever_goes_wrong_in_counting_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        run_upstream(ScriptedModel("Well.", "Well.")) as upstream,
        run_proxy(upstream.port, policy="thrifty") as proxy,
    ):
        monkeypatch.setattr(proxy.app.services.metrics, "tokens_before", None)  # as a wrong price did: it raises
        for stream in (False, True):
            heard = await proxy.post(HELLO | {"stream": stream})
            assert heard.status == 200
            assert b"Well." in heard.body
        assert proxy.count("internal_errors_total", where="counting") == 2
        assert [one["content"] for one in await answers(proxy)] == ["Well."] * 2


async def test_each_choice_is_stored_and_can_be_continued() -> None:
    body = {"id": "x", "object": "chat.completion", "created": 1, "model": "m"}
    texts = ["One.", "Another."]
    choices = [
        {"index": n, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        for n, text in enumerate(texts)
    ]

    async def several(_: RawRequest, connection: Connection) -> None:
        raw = json.dumps(body | {"choices": choices}).encode()
        await connection.send(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(raw), raw
        )

    async with run_upstream(several) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        session = (await proxy.post(HELLO | {"n": 2})).session
        assert [a["content"] for a in await answers(proxy)] == texts
        upstream.script = ScriptedModel("Fine.")
        for text in texts:
            agent = Agent(proxy, messages=[*HELLO["messages"], {"role": "assistant", "content": text}])
            assert (await agent.say("Go on")).session == session


@pytest.mark.parametrize("how", ["upstream", "client"])
async def test_an_answer_that_broke_off_is_stored_as_far_as_it_came_and_can_be_continued(how: str) -> None:
    begun = asyncio.Event()

    async def stalls(_: RawRequest, connection: Connection) -> None:
        await connection.send(STREAM)
        await connection.chunk(make_chunk({"role": "assistant", "content": "I was about"}))
        begun.set()
        await connection.left()
        connection.writer.close()

    script = breaking({"role": "assistant", "content": "I was"}, {"content": " about"}) if how == "upstream" else stalls
    async with run_upstream(script) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        if how == "upstream":
            session = (await proxy.post(HELLO | {"stream": True})).session
        else:
            session = await left_mid_stream(proxy)
        assert (await proxy.outcome())[0] == ("partial" if how == "upstream" else "client_gone")
        assert [a["content"] for a in await answers(proxy)] == ["I was about"]
        upstream.script = ScriptedModel("Fine.")
        again = Agent(proxy, messages=list(HELLO["messages"]))
        on = Agent(proxy, messages=[*HELLO["messages"], {"role": "assistant", "content": "I was about"}])
        assert (await on.say("Go on")).session == session
        assert [k for (k,) in await proxy.rows("SELECT kind FROM branches")] == ["main"]
        assert (await again.send()).session != session, "without a name, and without an answer of ours in it"


async def left_mid_stream(proxy: RunningProxy) -> str:
    """Leave when the first text has come; the session that the answer named."""
    client = await connect(proxy.port)
    raw = json.dumps(HELLO | {"stream": True}).encode()
    await client.send(make_post(CHAT, raw, b"authorization: Bearer sk-one", b"content-type: application/json"))
    async with asyncio.timeout(HANGS_S):
        head = await client.reader.readuntil(b"\r\n\r\n")
        await client.reader.readuntil(b"I was about")
    client.writer.transport.abort()
    return next(line for line in head.decode().split("\r\n") if line.startswith("x-context-session")).split(": ")[1]


async def test_of_an_answer_that_broke_off_before_it_said_anything_nothing_is_stored() -> None:
    script = breaking({"role": "assistant", "content": ""})
    async with run_upstream(script) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        await proxy.post(HELLO | {"stream": True})
        assert (await proxy.outcome())[0] == "partial"
        assert await answers(proxy) == []


async def test_a_state_in_an_answer_that_broke_off_is_not_taken() -> None:
    script = breaking({"role": "assistant", "content": "Yes.\n\n" + BLOCK + "\n"})
    async with run_upstream(script) as upstream, run_proxy(upstream.port, policy="rolling") as proxy:
        found = await proxy.post(HELLO | {"stream": True})
        assert b"Goal" not in found.body
        assert (await proxy.outcome())[0] == "partial"
        assert await proxy.rows("SELECT text FROM states") == []


async def test_of_several_blocks_the_one_at_the_end_is_kept_and_withheld() -> None:
    said = f"Yes.\n\n{BLOCK}: quoted\n\n## More\nand"
    text = f"{said}\n\n{BLOCK}: last"
    async with run_upstream(ScriptedModel(text)) as upstream, run_proxy(upstream.port, policy="rolling") as proxy:
        for stream in (False, True):
            found = await Agent(proxy, stream=stream, messages=[SYSTEM]).say("Hello")
            assert found.message["content"] == said
        assert await proxy.rows("SELECT DISTINCT text FROM states") == [(b"Context: as before\nGoal: go on: last",)]


async def test_an_answer_that_is_cut_or_only_calls_leaves_the_old_state() -> None:
    model = ScriptedModel("Yes.\n\n" + BLOCK, make_calls(("call_abcdef01", "look")), "Seen.")
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="rolling") as proxy:
        agent = Agent(proxy, messages=[SYSTEM])
        await agent.say("Hello")
        await agent.say("Look")
        agent.brings("It is there.")
        await agent.say()
        assert await proxy.rows("SELECT text FROM states") == [(BLOCK.partition("\n")[2].encode(),)]
    assert "Goal: go on" in model.texts()[0]


async def test_a_long_state_is_cut_at_a_line() -> None:
    block = BLOCK + "\n" + "\n".join(f"line {n} of the state" for n in range(100))
    model, short = ScriptedModel("Yes.\n\n" + block), {"max_chars": 500}
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="rolling", state=short) as proxy:
        await Agent(proxy, messages=[SYSTEM]).say("Hello")
        ((text,),) = await proxy.rows("SELECT text FROM states")
    assert 450 < len(text) <= 500
    assert text.endswith(b"of the state")


async def test_the_end_of_a_stream_waits_for_the_store_and_nothing_else_does() -> None:
    store = FailingStore()
    tree: dict[str, Any] = {"policy": "thrifty", "limits": {"commit_wait_ms": 5000}}
    async with (
        run_upstream(ScriptedModel("Well.")) as upstream,
        run_proxy(upstream.port, **tree, before=use_store(store)) as proxy,
    ):
        store.hold = True
        client = await connect(proxy.port)
        await client.send(make_post(CHAT, json.dumps(HELLO | {"stream": True}).encode()))
        expected = b"".join(make_events({"content": "Well."})[:-1])
        heard = b""
        async with asyncio.timeout(20):
            while expected.count(b"data:") > heard.count(b"data:"):
                heard += await client.reader.readuntil(b"\n\n")
        await asyncio.sleep(0.1)
        assert b"[DONE]" not in heard
        store.release()
        async with asyncio.timeout(20):
            await client.reader.readuntil(b"data: [DONE]\n\n")
        client.writer.close()


async def test_a_store_that_has_not_written_for_long_is_not_waited_for() -> None:
    store = FailingStore()
    tree: dict[str, Any] = {"policy": "thrifty", "limits": {"commit_wait_ms": 60_000}}
    async with (
        run_upstream(ScriptedModel("Well.")) as upstream,
        run_proxy(upstream.port, **tree, before=use_store(store)) as proxy,
    ):
        store.hold = store.stalls = True
        found = await proxy.post(HELLO, seconds=30)
        assert (found.status, found.header("x-context-persist")) == (200, "deferred")
        assert proxy.count("persist_deferred_total") == 1
        store.release()


def test_an_error_event_has_the_form_that_every_client_raises() -> None:
    event = make_error_event('it "broke"', "upstream_broken")
    assert event.startswith(b"data: ")
    assert event.endswith(b"\n\n")
    told = json.loads(event[6:])["error"]
    assert told == {"message": 'it "broke"', "type": "upstream_error", "param": None, "code": "upstream_broken"}


def test_e9_notes_become_metrics() -> None:
    metrics = Metrics()
    notes = (
        Note("levels", "", {"permanent": 10.0, "session": 20.0}),
        Note("compressed", "", {"before": 300.0, "after": 200.0, "ratio": 1.5}),
        Note("low_ratio", "", {"ratio": 1.5}),
        Note("retrieve", "", {"items": 2}),
        Note("over_budget", "nobody counts this"),
    )
    record_outcome.record_plan_metrics(metrics, replace(UNPLANNED, notes=notes))

    def count(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(f"context_proxy_{name}", labels)

    assert count("level_tokens_sum", level="session") == 20
    assert count("compressed_tokens_total", kind="before") == 300
    assert count("compressed_tokens_total", kind="after") == 200
    assert count("compression_ratio_sum") == 1.5
    assert count("low_ratio_total") == 1
    assert count("retrieved_items_total") == 2


async def test_an_answer_of_a_shape_that_no_provider_sends_reaches_the_client() -> None:
    thinking = {"type": "thinking", "thinking": {"a": 1}, "signature": "s"}
    body = {"id": "x", "type": "message", "role": "assistant", "content": [thinking], "stop_reason": "end_turn"}
    raw = json.dumps(body).encode()

    async def script(_: RawRequest, connection: Connection) -> None:
        await send_reply(connection, b"200 OK", raw, b"content-type: application/json")

    asked = {"model": "claude-opus-5-5", "max_tokens": 9, "messages": [{"role": "user", "content": "Hello"}]}
    async with run_upstream(script) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        found = await proxy.post(asked, path="/v1/messages")
    assert (found.status, found.body) == (200, raw)


async def test_a_session_that_was_forgotten_while_it_was_answered_is_read_back_with_the_answer() -> None:
    """Another request of the session reads it back before the answer is there, and must not hide what is behind it."""
    arrived, goes_on = asyncio.Event(), asyncio.Event()

    async def answer_late(_: RawRequest, connection: Connection) -> None:
        arrived.set()
        await goes_on.wait()
        await send_completion(connection, make_answer(None, make_proxy_call(1)), None)

    model = ScriptedModel("Hello.", answer_late, "Twin.", "Other.", "And?", "Found it.", "Well.")
    limits = {"live_branches": 1}
    async with run_upstream(model) as upstream, run_proxy_with_tools(upstream.port, limits=limits) as proxy:
        first = Agent(proxy, more={"tools": TOOLS})
        await first.say("Hi")
        twin = Agent(proxy, more={"tools": TOOLS}, messages=[*first.messages])
        late = asyncio.create_task(first.say("Search"))
        await arrived.wait()
        await twin.say("Search")
        await Agent(proxy, messages=[{"role": "user", "content": "Who?"}]).say("Else?")  # the first session leaves
        await twin.say("More")
        goes_on.set()
        assert (await late).message["content"] == "Found it."
        await first.say("Thanks")
    assert [message["role"] for message in model.last["messages"][3:]] == ["assistant", "tool", "assistant", "user"]
    assert model.last["messages"][3]["tool_calls"] == [make_proxy_call(1)]


async def test_an_answer_of_messages_that_broke_off_costs_at_least_what_came_of_it() -> None:
    text = "The river is wide and slow here. " * 40
    first = {"input_tokens": 50, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 0, "output_tokens": 1}
    start = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [], "usage": first}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": start},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}},
    ]

    async def breaks(_: RawRequest, connection: Connection) -> None:
        await connection.send(STREAM)
        for event in events:
            await connection.chunk(b"event: %b\ndata: %b\n\n" % (event["type"].encode(), json.dumps(event).encode()))
        await connection.reset()

    body = {"model": "m", "max_tokens": 2000, "stream": True, "messages": [{"role": "user", "content": "Tell."}]}
    async with run_upstream(breaks) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        await proxy.post(body, path="/v1/messages")
        assert (await proxy.outcome())[0] == "partial"
        ((prompt, completion),) = await proxy.rows("SELECT prompt_tokens, completion_tokens FROM exchanges")
        assert prompt == 50
        assert 300 <= completion <= 340, "eight tokens a sentence, where the provider had reported one in all"
        assert proxy.count("completion_tokens_total") == completion
