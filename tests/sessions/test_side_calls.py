from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from proxy.sessions.side_calls import BranchTraits, classify_branch
from tests.postgres import drop_database, new_store_database
from tests.proxy_server import Agent, RunningProxy, parse_answer, run_proxy
from tests.raw_upstream import HANGS_S, Connection, RawRequest, run_upstream, send_raw
from tests.scripted_model import ScriptedModel, make_calls

LINE = (b"x-session-id: ses_1",)
TITLE = [
    {"role": "system", "content": "You are a title generator. You output ONLY a branch title."},
    {"role": "user", "content": "Generate a title for this conversation:\nMend the parser"},
]
CODER = {"role": "system", "content": "You are a coding agent. Today's date: Sat Nov 21 2026."}
EXPLORER = {"role": "system", "content": "You are a file search specialist. Report what you find."}
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]
LOOK = make_calls(("call_abcdef01", "look"), path="a.py")


@pytest.fixture(params=["sqlite", "postgres"])
async def db(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str]:
    """The address of a store that outlives its proxy."""
    if request.param == "sqlite":
        yield f"{tmp_path}/store.sqlite3"
        return
    url = await new_store_database(request.getfixturevalue("postgres"))
    yield url
    await drop_database(url)


@asynccontextmanager
async def served(port: int, db: str, **tree: Any) -> AsyncIterator[RunningProxy]:
    async with run_proxy(port, db=db, policy="rolling", tools={"offer": "first_request"}, **tree) as proxy:
        yield proxy


def titler(proxy: RunningProxy) -> Agent:
    return Agent(proxy, LINE, stream=True, more={"model": "small"}, messages=list(TITLE))


def worker(proxy: RunningProxy, system: dict[str, Any] = CODER) -> Agent:
    return Agent(proxy, LINE, stream=True, more={"tools": TOOLS}, messages=[system])


async def kinds(proxy: RunningProxy) -> list[str]:
    """Of the session's branches as the API shows them, oldest first."""
    return [line["kind"] for line in (await get_json(proxy, ""))["branches"]]


async def get_json(proxy: RunningProxy, path: str) -> Any:
    """The answer of the API; of the session, if the path begins with a slash."""
    path = "sessions/ses_1" + path if path[:1] in ("", "/") else path
    async with asyncio.timeout(HANGS_S):
        while proxy.app.store.queued:
            await asyncio.sleep(0.005)
    raw = b"GET /api/%b HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n" % path.encode()
    found = parse_answer(await send_raw(proxy.port, raw))
    assert found.status == 200, found.body
    return found.json()


async def page(proxy: RunningProxy) -> str:
    """The system prompt that the session's page shows; its parts agree on the branch."""
    prompt, branches = await get_json(proxy, "/prompt"), (await get_json(proxy, "/branches"))["items"]
    assert [one["branch"] for one in branches if one["is_newest"]] == [prompt["branch"]]
    assert (await get_json(proxy, "/prompt_chart"))["branch"] == prompt["branch"]
    (line,) = (await get_json(proxy, "live"))["items"]
    assert line["figures"]["model"] == "m", "the list of sessions shows the work"
    return json.dumps(prompt["messages"][0]["content"])


def list_offered_tools(model: ScriptedModel) -> list[list[str]]:
    """The tools of each request that reached the model."""
    return [[tool["function"]["name"] for tool in chat.get("tools", [])] for chat in model.chats]


async def test_the_work_after_a_title_request_is_the_conversation(db: str) -> None:
    model = ScriptedModel("Mending the parser", LOOK, "Done.", "Fine.")
    async with run_upstream(model) as upstream:
        async with served(upstream.port, db) as proxy:
            await titler(proxy).send()
            agent = worker(proxy)
            await agent.say("Mend the parser")
            agent.brings("def parse(): ...")
            await agent.say()
            assert await kinds(proxy) == ["side", "main"]
            assert "coding agent" in await page(proxy)
            assert all("recall" in names for names in list_offered_tools(model)[1:])
            assert list_offered_tools(model)[0] == []
        async with served(upstream.port, db) as agent.proxy:
            await agent.say("And the tests")
            assert await kinds(agent.proxy) == ["side", "main"]
            assert "coding agent" in await page(agent.proxy)
            assert "recall" in list_offered_tools(model)[-1]


async def test_a_restart_between_the_title_and_the_work_changes_nothing(db: str) -> None:
    model = ScriptedModel("Mending the parser", "Hello! What shall I do?", LOOK, "Done.")
    async with run_upstream(model) as upstream:
        async with served(upstream.port, db) as proxy:
            await titler(proxy).send()
        async with served(upstream.port, db) as proxy:
            agent = worker(proxy)
            await agent.say("Hello")
            assert await kinds(proxy) == ["main", "main"], "neither has worked yet"
            await agent.say("Mend the parser")
            assert await kinds(proxy) == ["side", "main"]
            agent.brings("def parse(): ...")
        async with served(upstream.port, db) as agent.proxy:
            await agent.say()
            assert await kinds(agent.proxy) == ["side", "main"]


async def test_a_title_request_beside_the_first_answer_ends_as_the_side_call(db: str) -> None:
    """The title is asked for first, and its answer comes after the work has begun."""
    late = asyncio.Event()

    async def title(request: RawRequest, connection: Connection) -> None:
        await late.wait()
        await ScriptedModel("Mending the parser")(request, connection)

    model = ScriptedModel(title, LOOK, "Done.")
    async with run_upstream(model) as upstream, served(upstream.port, db) as proxy:
        asked = asyncio.create_task(titler(proxy).send())
        while not model.received:
            await asyncio.sleep(0.005)
        agent = worker(proxy)
        await agent.say("Mend the parser")
        late.set()
        await asked
        assert await kinds(proxy) == ["side", "main"]
        assert "coding agent" in await page(proxy)


async def test_a_title_request_after_the_work_is_a_side_call(db: str) -> None:
    async with run_upstream(ScriptedModel(LOOK, "A title", "Done.", "Another title")) as upstream:
        async with served(upstream.port, db) as proxy:
            agent = worker(proxy)
            await agent.say("Mend the parser")
            await titler(proxy).send()
            agent.brings("def parse(): ...")
            await agent.say()
        async with served(upstream.port, db) as proxy:
            again = titler(proxy)
            again.messages[1] = {"role": "user", "content": "Generate a title for:\nSomething else"}
            await again.send()
            assert await kinds(proxy) == ["main", "side", "side"]
            assert "coding agent" in await page(proxy)


async def test_a_sub_agent_that_calls_tools_is_not_a_side_call_and_one_that_only_answers_is(db: str) -> None:
    model = ScriptedModel(LOOK, LOOK, "It is in b.py.", "Nothing there.", "Done.")
    async with run_upstream(model) as upstream:
        async with served(upstream.port, db) as proxy:
            agent, explorer = worker(proxy), worker(proxy, EXPLORER)
            await agent.say("Mend the parser")
            await explorer.say("Find the parser")
            explorer.brings("b.py")
            await explorer.say()
            assert await kinds(proxy) == ["main", "main"]
            assert "recall" in list_offered_tools(model)[1], "it may need what leaves its prompt"
        async with served(upstream.port, db) as agent.proxy:
            await worker(agent.proxy, {"role": "system", "content": "You judge."}).say("Is it safe?")
            assert await kinds(agent.proxy) == ["main", "main", "side"]
            agent.brings("The parser is in b.py.")
            await agent.say()
            assert await kinds(agent.proxy) == ["main", "main", "side"]
            assert "coding agent" in await page(agent.proxy)


@pytest.mark.parametrize("tools", [True, False])
async def test_a_name_that_is_used_again_the_next_day_is_not_a_side_call(db: str, tools: bool) -> None:
    model = ScriptedModel("One.", "Two.", "Three.", "Four.")
    async with run_upstream(model) as upstream:
        days = ["Today's date: Sat Nov 21 2026, 23:59.", "Today's date: Sunday, December 1 2026, 8:00 AM."]
        for n, day in enumerate(days, 1):
            async with served(upstream.port, db) as proxy:
                agent = worker(proxy, {"role": "system", "content": f"You are a coding agent. {day}"})
                agent.more = {"tools": TOOLS} if tools else {}
                await agent.say(f"Mend the parser on day {n}")
                assert await kinds(proxy) == ["main"] * n
                assert day in await page(proxy)
                await agent.say("Go on")
                assert await kinds(proxy) == ["main"] * n
        assert all(("recall" in names) == tools for names in list_offered_tools(model))


async def test_a_short_call_without_tools_that_continues_is_a_conversation_after_all(db: str) -> None:
    """A chat without tools, whose client asks for the title first."""
    async with run_upstream(ScriptedModel("A title", "Hello!", "Well.")) as upstream:
        async with served(upstream.port, db) as proxy:
            await titler(proxy).send()
            chat = Agent(proxy, LINE, messages=[{"role": "system", "content": "Be kind."}])
            await chat.say("Hello")
            assert await kinds(proxy) == ["main", "side"]
        async with served(upstream.port, db) as chat.proxy:
            await chat.say("And then?")
            assert await kinds(chat.proxy) == ["side", "main"]
            assert "Be kind." in await page(chat.proxy)


async def test_an_operators_note_reaches_the_work_after_a_title_request() -> None:
    model = ScriptedModel("A title", LOOK, "Done.")
    async with run_upstream(model) as upstream, served(upstream.port, ":memory:", commands={"in_band": False}) as proxy:
        await titler(proxy).send()
        agent = worker(proxy)
        await agent.say("Mend the parser")
        body = json.dumps({"text": "Mind the encoding."}).encode()
        raw = b"POST /api/sessions/ses_1/notes HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        told = parse_answer(
            await send_raw(proxy.port, raw + b"content-length: %d\r\nconnection: close\r\n\r\n" % len(body) + body)
        )
        assert told.status < 300, told.body
        agent.brings("def parse(): ...")
        await agent.say()
        assert "Mind the encoding." in json.dumps(model.last)


@pytest.mark.parametrize(
    ("short", "tools", "others", "kind", "beside"),
    [
        (True, False, [], "main", False),
        (True, False, [BranchTraits("main", b"other", works=False)], "side", False),
        (True, False, [BranchTraits("fork", b"other", works=True)], "side", False),
        (True, False, [BranchTraits("side", b"other", works=False)], "main", False),
        (
            True,
            False,
            [BranchTraits("main", b"other", works=True), BranchTraits("main", b"mine", works=False)],
            "main",
            False,
        ),
        (True, True, [BranchTraits("main", b"other", works=False)], "main", False),
        (True, True, [BranchTraits("main", b"other", works=True)], "main", True),
        (True, True, [BranchTraits("side", b"other", works=True)], "main", False),
        (False, False, [BranchTraits("main", b"other", works=True)], "main", False),
    ],
)
def test_a_new_branch_is_classified_as_main_or_side_call(
    short: bool, tools: bool, others: list[BranchTraits], kind: str, beside: bool
) -> None:
    assert classify_branch(b"mine", others, short=short, tools=tools) == (kind, beside)


async def test_kilo_asks_for_a_title_under_a_name_that_it_makes_of_the_sessions(tmp_path: Path) -> None:
    """Kilo CLI 7.7.9: both headers have the session's name, with `title-` before it for the title."""
    model = ScriptedModel(LOOK, "A title.", "Done.")
    async with run_upstream(model) as upstream, served(upstream.port, f"{tmp_path}/store.sqlite3") as proxy:
        agent = worker(proxy)
        await agent.say("Mend the parser")
        side = (b"x-session-affinity: title-ses_1", b"x-session-id: title-ses_1")
        told = await Agent(proxy, side, stream=True, more={"model": "small"}, messages=list(TITLE)).say()
        assert told.session == "ses_1"
        agent.brings("It is so.")
        await agent.say()
        assert await kinds(proxy) == ["main", "side"]
        own = await Agent(proxy, (b"x-context-session: title-ses_1",), messages=list(TITLE)).say()
        assert own.session == "title-ses_1", "a name that a person chose is left as it is"
