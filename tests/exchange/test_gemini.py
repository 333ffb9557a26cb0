"""An agent that speaks Gemini, on an upstream that refuses what Google refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.dialect_agents import LISTING
from tests.exchange.hidden_calls import SECRET
from tests.exchange.test_dialect_rounds import (
    BLOCK,
    END,
    NOTE,
    SCENARIOS,
    THINK,
    Piece,
    assert_hidden,
    number,
    offering,
)
from tests.gemini_agent import GeminiAgent
from tests.proxy_server import run_proxy
from tests.raw_upstream import Connection, RawRequest, run_upstream
from tests.scripted_model import send_reply
from tests.strict_gemini import StrictGemini

Json = dict[str, Any]
STEPS = 25
END_TEXT: Json = {"text": "All done."}
STREAMING = pytest.mark.parametrize("stream", ["", "events", "list"], ids=["body", "events", "list"])


def look(name: str, arguments: Json) -> str:
    assert name == "read"
    return f"{LISTING}\n# {arguments['path'][:6]}"


def read(name: str, arguments: Json) -> str:
    assert name == "read", "a call that is not the client's"
    return f"the text of {arguments['path']}"


def step(n: int) -> list[Json]:
    call = {"name": "read", "args": {"path": f"file{n % 3}.py"}}
    return [{"text": f"I look at file {n}.", "thought": True}, {"text": f"Step {n}."}, {"functionCall": call}]


def make_part(piece: Piece) -> Json:
    kind, value = piece
    if kind == "think":
        return {"text": value, "thought": True}
    if kind == "say":
        return {"text": value}
    made = {"recall": {"id": f"{SECRET}-{value}"}} if kind == "ours" else {"read": {"path": f"{value}.py"}}
    ((name, arguments),) = made.items()
    return {"functionCall": {"name": name, "args": arguments}}


def play(answers: list[list[Piece]], **options: Any) -> StrictGemini:
    return StrictGemini(*([make_part(piece) for piece in answer] for answer in answers), **options)


@pytest.mark.parametrize(
    ("stream", "in_chunks"), [("", False), ("events", False), ("events", True)], ids=["body", "events", "chunks"]
)
@pytest.mark.parametrize("policy", ["thrifty", "rolling", "observe"])
async def test_an_agent_on_gemini_works_as_without_the_proxy_and_cheaper(
    policy: str, stream: str, in_chunks: bool, tmp_path: Path
) -> None:
    model = StrictGemini(*(step(n) for n in range(STEPS)), [{"text": "All done."}])
    tree: dict[str, Any] = {"policy": policy, "db": str(tmp_path / "a.sqlite3")}
    async with run_upstream(model) as upstream, run_proxy(upstream.port, **tree) as proxy:
        agent = GeminiAgent(proxy, look, stream=stream, in_chunks=in_chunks)
        assert await agent.work("Find the fault.") == "All done."
        outcomes = await proxy.outcomes()
    assert model.refusals == []
    assert len(outcomes) == STEPS + 1
    assert {(status, fallback) for status, _, fallback in outcomes} == {("complete", None)}
    assert len({found.session for found in agent.heard}) == 1
    called = [
        part["functionCall"]["args"]["path"] for one in agent.answers for part in one["parts"] if "functionCall" in part
    ]
    assert called == [f"file{n % 3}.py" for n in range(STEPS)]
    sent, whole = len(model.received[-1].body), len(json.dumps(agent.contents))
    if policy == "observe":
        assert model.bodies[-1]["contents"] == agent.contents[: len(model.bodies[-1]["contents"])]
    else:
        assert sent < 0.9 * whole, "repeats are sent once"


@pytest.mark.parametrize(
    ("stream", "in_chunks", "with_ids"),
    [("", False, False), ("events", False, False), ("events", True, True), ("list", True, False)],
    ids=["body-cli", "events-cli", "events-sdk-ids", "list-sdk"],
)
@pytest.mark.parametrize("scenario", list(SCENARIOS))
async def test_upstream_refuses_nothing_and_the_client_sees_nothing_of_the_proxy(
    scenario: str, stream: str, in_chunks: bool, with_ids: bool
) -> None:
    answers = number([*SCENARIOS[scenario], END, END, [THINK, ("ours", 9)], END])
    model = play(answers, with_ids=with_ids)
    async with run_upstream(model) as upstream, offering(upstream.port) as proxy:
        agent = GeminiAgent(proxy, read, stream=stream, in_chunks=in_chunks)
        for prompt in ("Hello", "Thank you", "One more thing"):
            assert (await agent.work(prompt)).endswith("It is so.")
        outcomes = await proxy.outcomes()
    assert model.refusals == []
    assert {(status, fallback) for status, _, fallback in outcomes} == {("complete", None)}
    assert len(model.bodies) == len(answers)
    assert_hidden(agent.heard)
    texts = "".join(piece[1] for answer in answers for piece in answer if piece[0] == "say")
    assert texts == "".join(part.get("text", "") for one in agent.answers for part in one["parts"])


@STREAMING
async def test_a_call_of_a_proxy_tool_that_failed_is_sent_back_as_an_error(stream: str) -> None:
    model = play(number([[("ours", 1)], END, END]))
    async with run_upstream(model) as upstream, offering(upstream.port) as proxy:
        agent = GeminiAgent(proxy, read, stream=stream)
        await agent.work("Hello")
        await agent.work("Thank you")
    assert model.refusals == []
    for body in model.bodies[1:]:
        (response,) = [
            part["functionResponse"]
            for one in body["contents"]
            for part in one["parts"]
            if len(part) == 1 and "functionResponse" in part
        ]
        assert set(response["response"]) == {"error"}


def assert_grows(model: StrictGemini) -> None:
    before: list[Json] = []
    for at, body in enumerate(model.bodies):
        assert body["contents"][: len(before)] == before, f"request {at} has another beginning than the one before"
        before = body["contents"]


@pytest.mark.parametrize("made", ["pyd_ai_{:032x}", "{:016}"])
async def test_calls_that_the_client_gives_random_ids_leave_the_conversation_one(made: str) -> None:
    calls = [[{"functionCall": {"name": "read", "args": {"path": f"{n % 3}.py"}}}] for n in range(STEPS)]
    model = StrictGemini(*calls, [END_TEXT])
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        agent = GeminiAgent(proxy, look, make_id=lambda _, number: made.format(number))
        assert await agent.work("Find the fault.") == "All done."
    assert model.refusals == []
    assert len({one.session for one in agent.heard}) == 1
    assert len(json.dumps(model.bodies[-1])) < 0.9 * len(json.dumps(agent.contents))


@STREAMING
async def test_each_request_begins_as_the_one_before(stream: str) -> None:
    answers = number([*SCENARIOS["three rounds of ours"], END, *SCENARIOS["ours between the client's"], END])
    model = play(answers, with_ids=True)
    async with run_upstream(model) as upstream, offering(upstream.port) as proxy:
        agent = GeminiAgent(proxy, read, stream=stream)
        for prompt in ("Hello", "Thank you"):
            await agent.work(prompt)
    for body in model.bodies:  # chunks of one answer are one content here, or several
        joined: list[Json] = []
        for content in body["contents"]:
            if joined and joined[-1]["role"] == content["role"]:
                joined[-1]["parts"] = [*joined[-1]["parts"], *content["parts"]]
            else:
                joined.append(dict(content))
        for content in joined:
            content["parts"] = [part for part in content["parts"] if not part.get("thought")]
        body["contents"] = joined
    assert_grows(model)


@STREAMING
@pytest.mark.parametrize("scenario", ["three rounds of ours", "ours between the client's", "ours, then both"])
async def test_rounds_are_put_back_after_a_restart(scenario: str, stream: str, tmp_path: Path) -> None:
    answers = number([*SCENARIOS[scenario], END, END])
    model = play(answers)
    async with run_upstream(model) as upstream:
        agent = GeminiAgent(None, read, stream=stream)  # type: ignore[arg-type]
        agent.contents.append({"role": "user", "parts": [{"text": "Hello"}]})
        ended = False
        while not ended:  # each request is that of another process
            async with offering(upstream.port, db=str(tmp_path / "a.sqlite3")) as proxy:
                agent.proxy = proxy
                ended = not agent.bring(await agent.ask())
        async with offering(upstream.port, db=str(tmp_path / "a.sqlite3")) as proxy:
            agent.proxy = proxy
            assert await agent.work("Thank you") == "It is so."
            outcomes = await proxy.outcomes()
    assert model.refusals == []
    assert {(status, fallback) for status, _, fallback in outcomes} == {("complete", None)}
    assert len(model.bodies) == len(answers)
    assert_hidden(agent.heard)


@STREAMING
@pytest.mark.parametrize(
    "answers",
    [
        [[("say", "Well.\n\n" + BLOCK)]],
        [[("say", BLOCK)]],
        [[("say", "Well.\n\n" + BLOCK), ("theirs", 1)], [("say", "Done.")]],
        [[("say", BLOCK), ("theirs", 1)], [("say", "Done.")]],
        [[("ours", 1)], [("say", "Well.\n\n" + BLOCK)]],
        [[("ours", 1)], [("say", BLOCK)]],
        [[("say", BLOCK), ("ours", 1)], [("say", "Well.\n\n" + BLOCK.replace("go on", "end"))]],
        [[("say", "First.\n\n" + BLOCK), ("ours", 1), ("theirs", 1)], [("say", "Done.")]],
    ],
    ids=[
        "behind a text",
        "alone",
        "before a call",
        "alone and a call",
        "behind ours",
        "alone behind ours",
        "twice",
        "mixed",
    ],
)
async def test_a_state_block_is_withheld_stored_and_comes_back_in_the_next_prompt(
    answers: list[list[Piece]], stream: str
) -> None:
    model = play(number([*answers, [("say", "Fine.")], [("say", "Fine.")]]))
    async with run_upstream(model) as upstream, offering(upstream.port, policy="rolling") as proxy:
        agent = GeminiAgent(proxy, read, stream=stream, lines=(b"x-context-session: a",))
        for prompt in ("Hello", "Thank you", "And then?"):
            await agent.work(prompt)
        outcomes = await proxy.outcomes()
        states = [text.decode() for (text,) in await proxy.rows("SELECT text FROM states ORDER BY created_at")]
    assert model.refusals == []
    assert {(status, fallback) for status, _, fallback in outcomes} == {("complete", None)}
    assert_hidden(agent.heard)
    for one in agent.heard:
        assert b"STATE" not in one.body
        assert b"Technical Anchors" not in one.body
    assert states[-1].startswith("Goal: ")
    assert NOTE.split("\n")[1] in json.dumps(model.bodies[-1])


@STREAMING
async def test_usage_adds_up_over_rounds(stream: str) -> None:
    model = play(number([[THINK, ("ours", 1)], [THINK, ("say", "So. "), ("ours", 2)], END]))
    spent: list[Json] = []
    made = model.make_response

    def record(*given: Any) -> Json:
        found = made(*given)
        spent.append(found["usageMetadata"])
        return found

    model.make_response = record  # type: ignore[assignment, method-assign]
    async with run_upstream(model) as upstream, offering(upstream.port) as proxy:
        agent = GeminiAgent(proxy, read, stream=stream)
        await agent.work("Hello")
    usage = agent.answers[-1]["usage"]
    assert len(spent) == 3
    assert usage["candidatesTokenCount"] == sum(one["candidatesTokenCount"] for one in spent)
    assert usage["promptTokenCount"] == spent[-1]["promptTokenCount"]
    assert usage["totalTokenCount"] == usage["promptTokenCount"] + usage["candidatesTokenCount"]


async def test_a_count_is_of_the_prompt_that_would_be_sent(tmp_path: Path) -> None:
    model = StrictGemini(*(step(n) for n in range(STEPS)), [{"text": "All done."}])
    async with (
        run_upstream(model) as upstream,
        run_proxy(upstream.port, policy="thrifty", db=str(tmp_path / "a.db")) as proxy,
    ):
        agent = GeminiAgent(proxy, look)
        await agent.work("Find the fault.")
        asked = {
            "model": "models/gemini-3-pro",
            "contents": [*agent.contents, {"role": "user", "parts": [{"text": "Next."}]}],
            "systemInstruction": {"parts": [{"text": "You are a careful engineer."}]},
            "tools": model.bodies[0]["tools"],
        }
        path = "/v1beta/models/gemini-3-pro:countTokens"
        found = await proxy.post({"generateContentRequest": asked}, b"x-goog-api-key: sk-one", path=path, key="")
        whole = await proxy.post({"generateContentRequest": asked}, b"x-goog-api-key: other", path=path, key="")
    assert found.status == 200
    assert found.json()["totalTokens"] < 0.9 * whole.json()["totalTokens"]
    assert len(model.counted) == 2
    assert len(json.dumps(model.counted[0])) < 0.9 * len(json.dumps({"generateContentRequest": asked}))


async def test_a_key_in_the_query_is_sent_as_a_header_and_identifies_the_tenant() -> None:
    model = StrictGemini()
    async with run_upstream(model) as upstream, run_proxy(upstream.port) as proxy:
        body = {"contents": [{"role": "user", "parts": [{"text": "Hello"}]}]}
        for query in ("?key=sk%2Done", "?alt=sse&key=sk-two", "?alt=json"):
            path = f"/v1beta/models/gemini-3-pro:generateContent{query}"
            found = await proxy.post(body, *([b"x-goog-api-key: sk-one"] if "json" in query else []), path=path, key="")
            assert found.status == 200, found.body
        tenants = await proxy.rows("SELECT tenant, count(*) FROM exchanges GROUP BY tenant ORDER BY 2")
    assert [count for _, count in tenants] == [1, 2]
    assert [request.all(b"x-goog-api-key") for request in model.received] == [[b"sk-one"], [b"sk-two"], [b"sk-one"]]
    assert all(b"key=" not in request.line for request in model.received)


async def test_a_prompt_that_is_partly_at_the_provider_passes_unmanaged() -> None:
    model = StrictGemini()
    async with run_upstream(model) as upstream, run_proxy(upstream.port) as proxy:
        agent = GeminiAgent(proxy, read, more={"cachedContent": "cachedContents/1"})
        await agent.work("Hello")
    assert agent.heard[0].header("x-context-fallback") == "chain"
    assert model.bodies[0]["contents"] == agent.contents[:1]


async def test_errors_have_googles_shape() -> None:
    async def fail(_: RawRequest, connection: Connection) -> None:
        error = {"error": {"code": 429, "message": "Quota", "status": "RESOURCE_EXHAUSTED"}}
        await send_reply(
            connection, b"429 Too Many Requests", json.dumps(error).encode(), b"content-type: application/json"
        )

    async with run_upstream(StrictGemini(fail)) as upstream, run_proxy(upstream.port) as proxy:
        body = {"contents": [{"role": "user", "parts": [{"text": "Hello"}]}]}
        path = "/v1beta/models/gemini-3-pro:generateContent"
        found = await proxy.post(body, b"x-goog-api-key: k", path=path, key="")
        assert (found.status, found.json()["error"]["status"]) == (429, "RESOURCE_EXHAUSTED")
    async with run_proxy(1) as proxy:  # nothing listens there
        found = await proxy.post(body, b"x-goog-api-key: k", path=path, key="")
        assert found.json()["error"].keys() == {"code", "message", "status"}
        assert found.json()["error"]["code"] == found.status >= 500


async def test_a_prompt_begins_with_the_users_content_whatever_leaves_it(tmp_path: Path) -> None:
    """`progressive` keeps old results and lets their prompts go: the first call then had no prompt before it."""
    model = StrictGemini(*(step(n) for n in range(3)), [{"text": "Done."}], *(step(n) for n in range(25)), [END_TEXT])
    tree: dict[str, Any] = {"policy": "progressive", "db": str(tmp_path / "a.sqlite3")}
    async with run_upstream(model) as upstream, run_proxy(upstream.port, **tree) as proxy:
        agent = GeminiAgent(proxy, look)
        await agent.work("Find the fault.")
        await agent.work("Mend it.")
        outcomes = await proxy.outcomes()
    assert model.refusals == []
    assert {fallback for _, _, fallback in outcomes} == {None}


@pytest.mark.parametrize("stream", ["", "events"])
async def test_the_original_of_a_turn_whose_signature_stood_on_a_hidden_call_is_taken(stream: str) -> None:
    """The model signs the first call of a step. Where that is one of the proxy's, the client's history lacks it."""

    async def refuse(_: RawRequest, connection: Connection) -> None:
        await send_reply(
            connection, b"400 Bad Request", b'{"error":{"message":"busy"}}', b"content-type: application/json"
        )

    ours = {"functionCall": {"name": "recall", "args": {"id": f"{SECRET}-1"}}}
    model = StrictGemini([{"text": "I look."}, ours, step(1)[2]], refuse, step(2), [END_TEXT])
    async with run_upstream(model) as upstream, offering(upstream.port) as proxy:
        agent = GeminiAgent(proxy, read, stream=stream)
        assert await agent.work("Find the fault.") == END_TEXT["text"]
        outcomes = await proxy.outcomes()
    assert model.refusals == []
    assert [fallback for _, _, fallback in outcomes][:2] == [None, "upstream_reject"]
