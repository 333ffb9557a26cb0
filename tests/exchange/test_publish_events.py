"""Every kind of event, brought about by real traffic and heard on a real socket; and nothing in them that was said."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from proxy.chat.chain import public_id
from proxy.exchange import publish_events
from tests.event_stream_client import EventStreamClient, event_stream
from tests.exchange import test_hierarchical as hierarchical
from tests.exchange import test_importance as importance
from tests.exchange import test_summaries as summaries
from tests.exchange.hidden_calls import PlayedConversation, make_answer, run_proxy_with_tools
from tests.exchange.long_results import LONG, has_short_result, make_looking_model, work_until
from tests.exchange.test_handler import BLOCK
from tests.failing_store import FailingStore, use_store
from tests.operator.agent import run_conversation
from tests.proxy_server import Agent, RunningProxy, parse_answer, run_proxy
from tests.raw_upstream import run_upstream, send_raw
from tests.scripted_model import ScriptedModel, make_calls

NAMED = (b"x-context-session: a",)
FACT = "The printers only read UTF-16, since their firmware is from 2003"


async def once(stream: EventStreamClient, kind: str, count: int = 1) -> dict[str, Any]:
    """The payload of the one event of this kind; nothing more of it comes a little later."""
    await stream.wait(kind, count)
    await asyncio.sleep(0.03)
    found = stream.of(kind)
    assert len(found) == count, found
    return found[-1]


async def test_d6_pruned_has_what_left_the_prompt_and_comes_once(tmp_path: Path) -> None:
    async with (
        importance.serving(tmp_path, ScriptedModel("Well."), "importance", "always") as proxy,
        event_stream(proxy, "?session=a") as stream,
    ):
        for _ in range(2):
            await importance.ask(proxy, importance.TALK)
        told = await once(stream, "context:pruned")
        rows = await proxy.rows("SELECT DISTINCT key FROM edits WHERE action = 'gone'")
        assert sorted(told["removed_ids"]) == sorted(public_id(k) for (k,) in rows)
        assert told["removed"] == len(rows) > 3
        assert told["tokenReduction"] == told["original"] - told["final"] > 0
        ((exchange, branch),) = await proxy.rows("SELECT exchange, branch FROM exchanges ORDER BY started_at LIMIT 1")
        _, _, whole = stream.told[0]
        assert (whole["session"], whole["branch"], whole["exchange"]) == ("a", branch, exchange)


async def test_d6_summarized_has_the_summary_that_the_helper_wrote(tmp_path: Path) -> None:
    async with (
        summaries.serving(tmp_path, "They spoke of little things.") as (proxy, _, _),
        event_stream(proxy) as stream,
    ):
        await summaries.talk(proxy, 26)
        told = (await stream.wait("context:summarized"))[-1]
        assert "They spoke of little things." in told["summary"]
        assert told["summarized"] >= 20
        assert told["kept"] > 0


async def test_an_event_says_what_a_policy_shortened_and_how_many_tokens_that_saved() -> None:
    model = make_looking_model()
    async with (
        run_upstream(model) as upstream,
        run_proxy(upstream.port, policy="thrifty") as proxy,
        event_stream(proxy) as stream,
    ):
        await work_until(Agent(proxy, NAMED), lambda: has_short_result(model.last))
        told = (await stream.wait("context:edited"))[0]
        assert (told["by"], told["action"]) == ("policy", "shorten")
        assert told["count"] == len(told["messages"]) > 0
        assert told["tokens"] > 0
        assert LONG[:40] not in json.dumps([one for _, _, one in stream.told])


async def test_levels_that_are_compressed_are_reported(tmp_path: Path) -> None:
    model, clock = hierarchical.scripted(3), hierarchical.Clock()
    async with (
        hierarchical.serving(tmp_path, model, clock, recent=1) as proxy,
        event_stream(proxy, "?kind=context:*") as stream,
    ):
        agent = Agent(proxy, NAMED)
        await hierarchical.work(agent, "look around", 3)
        clock.at += 400
        await agent.say("next")
        told = await stream.wait("context:edited")
        assert told[0]["by"] == "policy"


async def call(proxy: RunningProxy, method: str, path: str, body: Any = None) -> Any:
    raw = json.dumps(body if body is not None else {}).encode()
    head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n"
    got = parse_answer(await send_raw(proxy.port, head.encode() + b"content-length: %d\r\n\r\n" % len(raw) + raw))
    assert got.status == 200, got.body
    return got.json()


async def test_a_decision_of_the_operator_over_the_api_is_an_event() -> None:
    async with run_conversation("thrifty") as talk, event_stream(talk.proxy) as stream:
        group = (await talk.groups())[0]
        await call(talk.proxy, "POST", f"/api/sessions/s/groups/{group}/drop")
        told = await once(stream, "context:edited")
        assert (told["by"], told["action"], told["groups"], told["count"]) == ("operator", "drop", [group], 4)
        assert len(told["messages"]) == 4
        assert told["tokens"] > 0
        await call(talk.proxy, "POST", f"/api/sessions/s/groups/{group}/restore")
        assert (await once(stream, "context:edited", 2))["action"] == "restore"
        await call(talk.proxy, "PATCH", "/api/sessions/s/settings", {"policy": "rolling"})
        told = await once(stream, "context:edited", 3)
        assert (told["action"], told["settings"]) == ("settings", {"policy": "rolling"})
        await call(talk.proxy, "POST", "/api/sessions/s/notes", {"text": "A canary of a note."})
        assert (await once(stream, "context:edited", 4))["action"] == "note"
        await call(talk.proxy, "PUT", "/api/sessions/s/scratchpad", {"text": "A canary of a plan."})
        assert (await once(stream, "context:edited", 5))["action"] == "scratchpad"
        await call(talk.proxy, "PUT", "/api/sessions/s/state", {"text": "A canary of a state."})
        assert (await once(stream, "state:updated")) == {"by": "operator", "characters": 20}
        assert "canary" not in json.dumps([one for _, _, one in stream.told])
        assert {one["session"] for _, _, one in stream.told} == {"s"}


async def test_a_loop_is_reported_when_the_model_is_told_of_it() -> None:
    model = ScriptedModel(*[make_calls((f"call_{n:09}", "search"), q="same") for n in range(6)])
    async with (
        run_upstream(model) as upstream,
        run_proxy(upstream.port, policy="progressive") as proxy,
        event_stream(proxy) as stream,
    ):
        agent = Agent(proxy, NAMED)
        await agent.say("Find it")
        for _ in range(5):
            agent.brings("nothing")
            await agent.say()
        noted = [texts for n in range(6) if "LOOP" in (texts := model.texts(n)[-1])]
        told = await stream.wait("loop:detected", len(noted))
        assert len(told) == len(noted) > 0
        assert told[0] == {"loop": "same_call", "count": 3}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_state_block_of_the_models_own_is_told_without_its_text(stream: bool) -> None:
    model = ScriptedModel("The answer.\n\n" + BLOCK, "Another.")
    async with (
        run_upstream(model) as upstream,
        run_proxy(upstream.port, policy="rolling") as proxy,
        event_stream(proxy) as told,
    ):
        agent = Agent(proxy, NAMED, stream=stream, messages=[{"role": "system", "content": "Be."}])
        await agent.say("Hello")
        await agent.say("Go on")
        size = len(BLOCK.partition("\n")[2])
        assert await once(told, "state:updated") == {"by": "model", "characters": size}


async def test_a_memo_that_the_model_saves_is_reported_by_its_id() -> None:
    arguments = json.dumps({"content": FACT, "tags": ["printers"]})
    hidden = {"id": "c1", "type": "function", "function": {"name": "save_memo", "arguments": arguments}}
    model = ScriptedModel(make_answer(None, hidden), "Noted.")
    async with (
        run_upstream(model) as upstream,
        run_proxy_with_tools(upstream.port, tools={"enabled": ["save_memo"]}) as proxy,
        event_stream(proxy) as stream,
    ):
        await PlayedConversation(proxy, model, stream=False).turn("Remember this.", *NAMED)
        told = await once(stream, "memo:saved")
        ((memo,),) = await proxy.rows("SELECT memo FROM memos")
        assert told == {"by": "model", "memo": memo, "merged": False}
        ((tenant,),) = await proxy.rows("SELECT tenant FROM memos")
        await call(
            proxy, "PUT", f"/api/memos/{memo}?tenant={tenant}", {"content": f"{FACT}, and newer ones UTF-16 too."}
        )
        assert (await once(stream, "memo:saved", 2))["by"] == "operator"
        assert "UTF-16" not in json.dumps([one for _, _, one in stream.told])


@asynccontextmanager
async def cached(**usage: int) -> AsyncIterator[tuple[RunningProxy, Agent, ScriptedModel, EventStreamClient]]:
    """An agent with a system prompt that a provider caches."""
    model = ScriptedModel("Well.")
    model.usage = {"prompt_tokens": 4000, "completion_tokens": 3, "prompt_tokens_details": dict(usage)}
    async with (
        run_upstream(model) as upstream,
        run_proxy(upstream.port, policy="thrifty") as proxy,
        event_stream(proxy) as stream,
    ):
        messages = [{"role": "system", "content": "Plain words of a prompt. " * 800}]
        yield proxy, Agent(proxy, NAMED, messages=messages), model, stream


async def test_a_cache_that_serves_far_less_than_predicted_is_reported() -> None:
    async with cached(cached_tokens=64) as (_, agent, _, stream):
        await agent.say("One")
        await agent.say("Two")
        told = await once(stream, "cache:broken")
        assert (told["by"], told["reported"], told["in_a_row"]) == ("upstream", 64, 1)
        assert told["predicted"] > 1000


async def test_a_cache_that_serves_what_was_predicted_is_not_an_event() -> None:
    async with cached(cached_tokens=3900) as (_, agent, _, stream):
        for text in ("One", "Two", "Three"):
            await agent.say(text)
        await asyncio.sleep(0.03)
        assert stream.of("cache:broken") == []


async def test_a_change_of_the_client_in_its_own_prefix_is_an_event() -> None:
    async with cached() as (_, agent, _, stream):
        await agent.say("One")
        await agent.say("Two")
        agent.messages[0] = {"role": "system", "content": "Other words of a prompt. " * 800}
        await agent.say("Three")
        assert (await once(stream, "cache:broken"))["changed"] == "system"
        await agent.say("Four", tools=[{"type": "function", "function": {"name": "look", "parameters": {}}}])
        assert (await once(stream, "cache:broken", 2))["changed"] == "tools"


async def test_a_history_that_the_client_rewrites_is_reported() -> None:
    async with cached() as (_, agent, _, stream):
        for text in ("One", "Two", "Three"):
            await agent.say(text)
        agent.messages[3:] = []  # back to behind the first answer
        await agent.say("Something else")
        told = await once(stream, "cache:broken")
        assert (told["by"], told["changed"]) == ("client", "history")


async def test_a_request_that_is_sent_unchanged_because_the_store_is_away_is_reported() -> None:
    store = FailingStore()
    async with (
        run_upstream(ScriptedModel("Well.")) as upstream,
        run_proxy(upstream.port, policy="rolling", before=use_store(store)) as proxy,
        event_stream(proxy) as stream,
    ):
        store.reads = False
        await Agent(proxy, NAMED).say("Hello")
        assert await once(stream, "fallback") == {"reason": "store"}
        assert stream.told[0][2]["session"] == "a"
        assert proxy.count("events_total", kind="fallback") == 1


async def test_a_mistake_in_telling_is_counted_and_harms_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*_: Any) -> None:
        raise RuntimeError("a mistake")

    monkeypatch.setattr(publish_events, "_publish_client_change", wrong)
    async with run_upstream(ScriptedModel("Well.")) as upstream, run_proxy(upstream.port, policy="rolling") as proxy:
        found = await Agent(proxy, NAMED).say("Hello")
        assert found.header("x-context-fallback") is None
        assert proxy.count("internal_errors_total", where="events") == 1


def test_long_lists_and_texts_are_cut_and_counts_stay() -> None:
    told = publish_events._shorten_payload({"removed": 5000, "removed_ids": ["x"] * 5000, "summary": "y" * 50_000})
    assert (told["removed"], len(told["removed_ids"])) == (5000, publish_events.MAX_LISTED)
    assert len(told["summary"]) == publish_events.MAX_TEXT + 1
