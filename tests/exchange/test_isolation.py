"""Nothing is used that belongs to another upstream's tool traffic, to another branch, or to another client."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from proxy.chat.chain import public_id
from proxy.notes.state_block import build_prompt
from tests.proxy_server import Agent, run_proxy
from tests.raw_upstream import Connection, RawRequest, run_upstream
from tests.scripted_model import ScriptedModel, make_calls

SYSTEM = {"role": "system", "content": "Be."}
LINES = 200


@asynccontextmanager
async def two(
    one: ScriptedModel, other: ScriptedModel, strategy: str, db: str = ":memory:"
) -> AsyncIterator[tuple[int, dict[str, Any]]]:
    """Two upstreams that speak different formats, and the settings for them."""
    async with run_upstream(one) as first, run_upstream(other) as second:
        upstreams = {
            "openai": {"base_url": f"http://127.0.0.1:{first.port}/v1", "models": ["gpt-*"]},
            "other": {"base_url": f"http://127.0.0.1:{second.port}/v1", "models": ["*"], "strategy": strategy},
        }
        yield first.port, {"upstreams": upstreams, "policy": "thrifty", "db": db, "state": {"ask": "never"}}


def shape(body: dict[str, Any]) -> list[str]:
    """Role and text of each message, a star where it calls."""
    return [
        f"{m['role']} {m.get('content') or ''}{'*' if m.get('tool_calls') else ''}".strip() for m in body["messages"]
    ]


async def work_with_calls(agent: Agent, model: str) -> None:
    """A prompt answered with a call with text, a call without, and an answer."""
    await agent.say("Look", model=model)
    agent.brings("It is there.")
    await agent.say(model=model)
    agent.brings("So it is.")
    await agent.say(model=model)


def worker(start: str) -> ScriptedModel:
    first = make_calls((f"call_{start}0001", "look"), text="I will look.")
    return ScriptedModel(first, make_calls((f"call_{start}0002", "look")), "Found.", "Fine.")


WHOLE = [
    "user Look",
    "assistant I will look.*",
    "tool It is there.",
    "assistant *",
    "tool So it is.",
    "assistant Found.",
]
TEXTS = ["user Look", "assistant I will look.", "assistant Found."]


@pytest.mark.parametrize("restart", [False, True])
async def test_tool_traffic_goes_to_upstreams_of_its_own_strategy_only(tmp_path: Path, restart: bool) -> None:
    one, other = worker("a"), worker("b")
    db = str(tmp_path / "store.sqlite3") if restart else ":memory:"
    async with two(one, other, "gemini", db) as (port, tree):
        async with run_proxy(port, **tree) as proxy:
            agent = Agent(proxy, (b"x-session-id: s",))
            await work_with_calls(agent, "gpt-5")
            if not restart:
                await crossed(agent, one, other)
        if restart:
            async with run_proxy(port, **tree) as proxy:
                agent.proxy = proxy
                await crossed(agent, one, other)


async def crossed(agent: Agent, one: ScriptedModel, other: ScriptedModel) -> None:
    """The same conversation goes on at the other upstream, and comes back."""
    await work_with_calls(agent, "gemini-3")
    assert shape(other.chats[0]) == [*TEXTS, "user Look"]
    assert shape(other.chats[2]) == TEXTS + WHOLE[:-1], "the active group goes out whole"
    await agent.say("And now?", model="gpt-5")
    assert shape(one.last) == WHOLE + TEXTS + ["user And now?"]
    stored = await agent.proxy.rows("SELECT strategy, count(*) FROM messages GROUP BY strategy ORDER BY strategy")
    assert stored == [("gemini", 6), ("openai", 8)]


async def test_compatible_strategies_share_their_tool_traffic() -> None:
    one, other = worker("a"), worker("b")
    async with two(one, other, "gemini_gca") as (port, tree):
        tree["upstreams"]["openai"]["strategy"] = "gemini"
        async with run_proxy(port, **tree) as proxy:
            agent = Agent(proxy, (b"x-session-id: s",))
            await work_with_calls(agent, "gpt-5")
            await agent.say("And now?", model="any")
            assert shape(other.last) == [*WHOLE, "user And now?"]


class Worker(ScriptedModel):
    """Calls on and on, until it is asked for a STATE block: then it says its text and gives one."""

    def __init__(self, text: str) -> None:
        super().__init__("Fine.")
        self.text = text

    async def __call__(self, request: RawRequest, connection: Connection) -> None:
        last = json.loads(request.body)["messages"][-1]["content"]
        step = make_calls((f"call_{len(self.received):08}", "look"))
        self.answers = [f"{self.text}\n\n### STATE\nContext: x\nGoal: {self.text}" if build_prompt() in last else step]
        await super().__call__(request, connection)


async def until_done(agent: Agent, upto: int = 60) -> None:
    await agent.say("Look at all of it")
    for number in range(upto):
        if "tool_calls" not in agent.messages[-1]:
            return
        agent.brings("\n".join(f"line {n} of result {number}" for n in range(LINES)))
        await agent.say()
    raise AssertionError("thrifty never asked")


def shortened(body: dict[str, Any]) -> int:
    """Number of results that are not as the client sent them, apart from an insert at the end."""
    return sum(m["role"] == "tool" and m["content"].count(" of result ") < LINES for m in body["messages"])


def prefix(earlier: dict[str, Any], later: dict[str, Any]) -> bool:
    return bool(later["messages"][: len(earlier["messages"]) - 1] == earlier["messages"][:-1])


@pytest.mark.parametrize("line", [(), (b"x-session-id: s",)])
@pytest.mark.parametrize("restart", [False, True])
async def test_edits_are_repeated_byte_for_byte_for_ever(
    tmp_path: Path, restart: bool, line: tuple[bytes, ...]
) -> None:
    model = Worker("Seen")
    db = str(tmp_path / "store.sqlite3")
    async with run_upstream(model) as upstream:
        async with run_proxy(upstream.port, policy="thrifty", db=db) as proxy:
            agent = Agent(proxy, line)
            await until_done(agent)
            before = model.last
            if not restart:
                await agent.say("Go on")
        if restart:
            async with run_proxy(upstream.port, policy="thrifty", db=db) as proxy:
                agent.proxy = proxy
                await agent.say("Go on")
    assert shortened(before) > 0
    assert prefix(before, model.last)
    assert "Goal: Seen" in model.last["messages"][-1]["content"], "its own note comes back"


@pytest.mark.parametrize("line", [(), (b"x-session-id: s",)])
async def test_a_fork_inherits_the_edits_on_what_both_share_and_nothing_after_it(line: tuple[bytes, ...]) -> None:
    model = Worker("Seen")
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        agent = Agent(proxy, line)
        await until_done(agent)
        before = model.last
        at = max(n for n, m in enumerate(agent.messages) if m["role"] == "assistant" and "tool_calls" in m)
        branch = Agent(proxy, line, messages=agent.messages[:at])
        await branch.say("Stop. Something else.")
        assert model.last["messages"][:at] == before["messages"][:at]
        assert "Goal: Seen" not in json.dumps(model.last), "the note was written after the fork"
        assert [k for (k,) in await proxy.rows("SELECT kind FROM branches ORDER BY created_at")] == ["main", "fork"]
        shared = await proxy.rows("SELECT count(DISTINCT key) FROM edits GROUP BY branch")
        assert len(set(shared)) == 1


async def test_without_a_name_nothing_of_another_conversation_is_ever_used() -> None:
    """Many conversations of one credential, all without a name, that begin alike, fork, and copy from each other:
    whatever reaches the upstream was sent by the client in this very request, or is a note of this very branch."""
    for seed in range(4):
        await mixed(random.Random(seed))


async def mixed(dice: random.Random) -> None:
    names = [f"secret{n}" for n in range(6)]
    model = ScriptedModel()
    foreign = 0

    async def script(request: RawRequest, connection: Connection) -> None:
        nonlocal foreign
        body = request.body.decode()
        own = {name for name in names if name in sent[-1]}
        foreign += sum(name in body for name in set(names) - own)
        mine = next(iter(sorted(own)), "nobody")
        note = f"### STATE\nGoal: {mine} is the goal of {sorted(own)}\nContext: as before"
        model.answers = [f"Yes. {dice.choice(['', mine])}\n\n{note}"]
        await model(request, connection)

    sent: list[str] = []
    async with run_upstream(script) as upstream, run_proxy(upstream.port, policy="rolling") as proxy:
        agents = [Agent(proxy, messages=[SYSTEM]) for _ in names]
        for _ in range(60):
            n = dice.randrange(len(agents))
            agent = agents[n]
            said = dice.choice(["Hello", "Go on", f"About {names[n]}", f"About {names[n]}"])
            if dice.random() < 0.2:
                agent.messages = agent.messages[: dice.randrange(1, len(agent.messages) + 1) // 2 * 2 + 1]
            if dice.random() < 0.1:
                agents[n] = agent = Agent(proxy, messages=[SYSTEM])
            sent.append(json.dumps(agent.messages) + said)
            await agent.say(said, stream=dice.random() < 0.5)
    assert foreign == 0


@pytest.mark.parametrize("first", [True, False])
async def test_conversations_that_begin_alike_read_nothing_of_each_other(first: bool) -> None:
    """Many people may use one credential, and greetings are answered alike. Without a name one session may hold two of
    their conversations. first: the other one has asked its first question through the proxy too."""
    model = ScriptedModel("Hello! How can I help?")
    tools = {"tools": [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]}
    greeted = [SYSTEM, {"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hello! How can I help?"}]
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="rolling") as proxy:
        mine, theirs = (Agent(proxy, messages=[SYSTEM], more=tools) for _ in range(2))
        await mine.say("Hello")
        if first:
            await theirs.say("Hello")
        theirs.messages = greeted
        model.answers = [make_calls(("call_k3y0w1", "manage_scratchpad"), action="update", content="canary"), "Noted."]
        session = (await mine.say("It is the canary.")).session
        (secret,) = await proxy.rows("SELECT key FROM messages WHERE role = 'user' ORDER BY seq DESC LIMIT 1")
        before = len(model.received)
        model.answers = [
            make_calls(("call_k3y0w2", "query_db"), sql="SELECT content FROM messages"),
            make_calls(("call_k3y0w3", "recall"), id=public_id(secret[0])),
            make_calls(("call_k3y0w4", "manage_scratchpad"), action="read"),
            make_calls(("call_k3y0w5", "manage_scratchpad"), action="append", content="More."),
            "Done.",
        ]
        assert ((await theirs.say("What do you know?")).session == session) is not first
        assert [b"canary" in request.body for request in model.received[before:]] == [False] * 5
        model.answers = [make_calls(("call_k3y0w6", "query_db"), sql="SELECT content FROM messages"), "Done."]
        await mine.say("And now?")
        assert b"canary" in model.received[-1].body, "of its own conversation the model reads all"
        assert b"What do you know?" not in model.received[-1].body
        assert b"More." not in model.received[-1].body


async def test_a_conversation_without_a_name_reads_no_notes_of_a_session_that_has_one() -> None:
    model = ScriptedModel("Hello! How can I help?")
    tools = {"tools": [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]}
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="rolling") as proxy:
        named = (b"x-context-session: mine",)
        model.answers = [make_calls(("call_k3y0w1", "manage_scratchpad"), action="update", content="canary"), "Noted."]
        await Agent(proxy, named, messages=[SYSTEM], more=tools).say("It is the canary.")
        model.answers = ["Hello! How can I help?"]
        mine = Agent(proxy, named, messages=[SYSTEM], more=tools)
        await mine.say("Hello")
        theirs = Agent(proxy, messages=[*mine.messages], more=tools)
        before = len(model.received)
        model.answers = [make_calls(("call_k3y0w2", "manage_scratchpad"), action="read"), "Done."]
        assert (await theirs.say("What do you know?")).session == "mine"
        assert [b"canary" in request.body for request in model.received[before:]] == [False] * 2


async def test_one_name_under_two_credentials_shares_nothing() -> None:
    model = ScriptedModel("One.\n\n### STATE\nContext: x\nGoal: mine")
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="rolling") as proxy:
        mine = Agent(proxy, (b"x-session-id: s",), key="sk-a", messages=[SYSTEM])
        theirs = Agent(proxy, (b"x-session-id: s",), key="sk-b", messages=[SYSTEM])
        await mine.say("Hello")
        model.answers = ["Two."]
        await theirs.say("Hello")
        await theirs.say("Go on")
        assert "Goal: mine" not in "".join(r.body.decode() for r in model.received[1:])
        await mine.say("Go on")
        assert "Goal: mine" in model.received[-1].body.decode()
