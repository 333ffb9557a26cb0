"""A session of each dialect is explained, searched, decided about, replayed and shown as one of chat completions is."""

from __future__ import annotations

import json
from typing import Any

import pytest
from aiohttp import ClientSession

from proxy.context.models import Model
from proxy.exchange.dialect import DIALECTS
from proxy.replay import stored
from proxy.replay.play import Contender, ReplaySettings, play_conversation
from tests.dialect_agents import MessagesAgent, ResponsesAgent, ThinkingAgent
from tests.gemini_agent import GeminiAgent
from tests.proxy_server import RunningProxy, run_proxy
from tests.raw_upstream import run_upstream
from tests.scripted_model import ScriptedModel, make_calls
from tests.strict_gemini import StrictGemini
from tests.strict_messages import StrictMessages
from tests.strict_responses import Ask, Say, StrictResponses

Json = dict[str, Any]
STEPS = 8
FACT = "The archive listens on port 5433."
LISTING = FACT + "\n" + "\n".join(f"{n}\tdef function_{n}(argument): return argument + {n}" for n in range(200))
SESSION = b"x-context-session: a"
PROMPTS = ("Find the fault in the archive.", "And the other one?")


def read(name: str, arguments: Json) -> str:
    assert name == "read", "a tool that is not the client's"
    return f"{LISTING}\n# {arguments['path']}"


def make_model(name: str) -> Any:
    """A model that reads files in eight steps for the first prompt, and then answers."""
    paths = [f"file{n % 3}.py" for n in range(STEPS)]
    if name == "completions":
        asked = [make_calls((f"call_{n:04}", "read"), text=f"Step {n}.", path=path) for n, path in enumerate(paths)]
        return ScriptedModel(*asked, "Done.")
    if name == "messages":
        blocks: list[list[Json]] = [
            [
                {"type": "text", "text": f"Step {n}."},
                {"type": "tool_use", "id": f"toolu_{n:04}", "name": "read", "input": {"path": path}},
            ]
            for n, path in enumerate(paths)
        ]
        return StrictMessages(*blocks, [{"type": "text", "text": "Done."}])
    if name == "responses":
        steps: list[list[Any]] = [[Say(f"Step {n}."), Ask("read", {"path": path})] for n, path in enumerate(paths)]
        return StrictResponses(*steps, "Done.")
    parts: list[list[Json]] = [
        [{"text": f"Step {n}."}, {"functionCall": {"name": "read", "args": {"path": path}}}]
        for n, path in enumerate(paths)
    ]
    return StrictGemini(*parts, "Done.")


def make_agent(name: str, proxy: RunningProxy) -> Any:
    if name == "gemini":
        return GeminiAgent(proxy, read, lines=(SESSION,))
    kinds: dict[str, Any] = {"completions": ThinkingAgent, "messages": MessagesAgent, "responses": ResponsesAgent}
    more: Json = {"include": []} if name == "responses" else {}
    return kinds[name](proxy, read, lines=(SESSION,), more=more)


def list_bodies(name: str, model: Any) -> list[bytes]:
    """The body that the upstream got."""
    return model.raw if name == "responses" else [request.body for request in model.received]


def list_refusals(name: str, model: Any) -> list[Any]:
    if name == "completions":
        return []
    return list(model.refused if name == "responses" else model.refusals)


def read_messages(name: str, body: bytes) -> list[Json]:
    """The messages of a body of this dialect, in the form of chat completions."""
    reader = DIALECTS[name].reader
    found = json.loads(body if reader is None else reader.read(body, None).chat_body)["messages"]
    return [{member: value for member, value in one.items() if member != "wire"} for one in found]


async def show(proxy: RunningProxy, path: str) -> Any:
    found = await proxy.get(f"/api/sessions/a{path}")
    assert found.status == 200, (path, found.body)
    return found.json()


async def act(proxy: RunningProxy, path: str, body: Json) -> Any:
    url = f"http://127.0.0.1:{proxy.port}/api/sessions/a{path}"
    async with ClientSession() as client, client.post(url, json=body) as found:
        assert found.status == 200, (path, await found.text())
        return await found.json()


@pytest.mark.parametrize("name", ["completions", "messages", "responses", "gemini"])
async def test_a_session_is_explained_searched_decided_about_replayed_and_shown(name: str) -> None:
    model = make_model(name)
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        agent = make_agent(name, proxy)
        for prompt in PROMPTS:
            assert await agent.work(prompt) == "Done."
        outcomes = await proxy.outcomes()
        assert {(status, fallback) for status, _, fallback in outcomes} == {("complete", None)}
        await check_records(name, proxy, list_bodies(name, model))
        await check_recall(proxy)
        await check_pages(proxy)
        await check_replay(proxy)
        await check_decisions(name, proxy, agent, model)
    assert list_refusals(name, model) == []


async def check_records(name: str, proxy: RunningProxy, bodies: list[bytes]) -> None:
    """Each past prompt is told as it was sent, and each edit of it has its reason."""
    exchanges = (await show(proxy, "/exchanges"))["items"][::-1]
    assert len(exchanges) == len(bodies) == STEPS + 2
    assert exchanges[-1]["tokens_after"] < 0.8 * exchanges[-1]["tokens_before"]
    for one, body in zip(exchanges, bodies, strict=True):
        told = await show(proxy, f"/exchanges/{one['exchange']}/prompt")
        sent = read_messages(name, body)
        rebuilt = [{k: v for k, v in each.items() if k != "wire"} for each in json.loads(told["body"])["messages"]]
        assert [plain(each) for each in rebuilt] == [plain(each) for each in sent]
        changed = [each for each in told["messages"] if each["status"] != "in"]
        assert all(each["why"]["stage"] for each in changed)
        assert bool(changed) == (one["tokens_after"] < one["tokens_before"])


def plain(message: Json) -> Json:
    """A message whose text is one string: a stage may have written it in parts."""
    content = message.get("content")
    if isinstance(content, list):
        message = message | {"content": "".join(part.get("text", "") for part in content)}
    return {member: value for member, value in message.items() if member != "cache_control"}


async def check_recall(proxy: RunningProxy) -> None:
    """The whole of what was shortened is found, and given back."""
    prompt = await show(proxy, "/prompt")
    shortened = [one for one in prompt["messages"] if one["status"] != "in"]
    assert shortened
    told = await act(proxy, "/tools/recall", {"arguments": {"id": shortened[-1]["id"]}})
    assert not told.get("failed"), told
    assert FACT in told["text"]
    found = await show(proxy, "/search?q=5433")
    assert FACT in json.dumps(found)


async def check_pages(proxy: RunningProxy) -> None:
    """The pages of the dashboard have their figures."""
    chart, stats = await show(proxy, "/prompt_chart"), await show(proxy, "/stats")
    assert chart["sent"] < chart["tokens"]
    kinds = {piece["kind"] for bar in chart["bars"] for piece in bar["pieces"]}
    assert {"user", "thinking", "tool"} <= kinds
    assert len(chart["bars"]) == len(PROMPTS)
    assert [one["title"] for one in (await show(proxy, "/groups"))["items"]] == list(PROMPTS)
    assert len(await show(proxy, "/points")) == STEPS + 2
    assert stats["exchanges"] == STEPS + 2
    assert len((await show(proxy, "/messages"))["items"]) == 2 * STEPS + 4


async def check_replay(proxy: RunningProxy) -> None:
    """The session is played again, and what was saved is found again."""
    ((tenant,),) = await proxy.rows("SELECT DISTINCT tenant FROM exchanges")
    contenders = (Contender("nothing"), Contender("thrifty", proxy.app.services.policies["thrifty"]))
    match = ReplaySettings(contenders, Model(tokenizer="estimate"), ((1.25, 0.1),))
    (one,) = [each async for each in stored.read_branches(proxy.app.store, (tenant, "a"), "store")]
    whole, saved = play_conversation(one, match).totals
    assert whole.requests == saved.requests == STEPS + 2
    assert (saved.refused, saved.failed) == (0, 0)
    assert saved.prompt < 0.9 * whole.prompt


async def check_decisions(name: str, proxy: RunningProxy, agent: Any, model: Any) -> None:
    """A group that is dropped, a message that is pinned and a note of the operator are in the next prompt."""
    first, _ = (await show(proxy, "/groups"))["items"]
    await act(proxy, f"/groups/{first['id']}/drop", {})
    await act(proxy, "/notes", {"text": "Mind the gap."})
    assert await agent.work("And now?") == "Done."
    last = list_bodies(name, model)[-1].decode()
    assert PROMPTS[0] not in last
    assert "file0.py" not in last
    assert PROMPTS[1] in last
    assert "Mind the gap." in last
    await act(proxy, f"/groups/{first['id']}/restore", {})
    assert await agent.work("And then?") == "Done."
    assert PROMPTS[0] in list_bodies(name, model)[-1].decode()
    outcomes = await proxy.outcomes()
    assert {(status, fallback) for status, _, fallback in outcomes} == {("complete", None)}
    assert await proxy.rows("SELECT count(*) FROM branches") == [(1,)]
