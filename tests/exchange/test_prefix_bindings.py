"""Bound reasoning before it is sent: a prompt that would break a binding is known, and another one goes out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from proxy.exchange.prefix_bindings import find_run
from tests.dialect_agents import LISTING, MessagesAgent, ResponsesAgent, ThinkingAgent, read_listing
from tests.failing_store import FailingStore, use_store
from tests.proxy_server import RunningProxy, run_proxy
from tests.raw_upstream import Connection, RawRequest, Script, run_upstream, wait_until
from tests.scripted_model import send_reply
from tests.strict_messages import StrictMessages, read_step
from tests.strict_responses import Ask, Say, StrictResponses, Think
from tests.strict_thinking import StrictThinking, make_chat_message

Json = dict[str, Any]
Agent = MessagesAgent | ThinkingAgent
THINKING: Json = {"thinking": {"type": "adaptive"}}
STREAMING = pytest.mark.parametrize("stream", [False, True], ids=["body", "stream"])
WIRES = pytest.mark.parametrize("wire", ["messages", "completions"])
STEPS = 4


def answers(first: int = 0) -> list[list[Json]]:
    """Pieces of work, each of `STEPS` calls and an answer. first: the number of the first call."""
    made: list[list[Json]] = []
    for n in range(first, first + 10 * STEPS):
        made.append(read_step(n, "a.py"))
        if n % STEPS == STEPS - 1:
            made.append([{"type": "thinking", "thinking": f"So {n}."}, {"type": "text", "text": f"Done {n}."}])
    return made


def make(wire: str) -> StrictMessages:
    return (StrictMessages if wire == "messages" else StrictThinking)(*answers())


def begin(wire: str, proxy: RunningProxy, *, stream: bool = False, **more: Any) -> Agent:
    make = MessagesAgent if wire == "messages" else ThinkingAgent
    return make(proxy, read_listing, stream=stream, more=THINKING, **more)


def direct(port: int) -> AbstractAsyncContextManager[RunningProxy]:
    """The upstream without the proxy: another one that changes nothing and knows nothing of the first."""
    return run_proxy(port, policy="passthrough")


def count_tokens(model: StrictMessages, at: int = -1) -> int:
    return json.dumps(model.bodies[at]["messages"]).count('"signature"')


def forget_reasoning(agent: Agent) -> None:
    """Send the history without any reasoning, as a client does whose reasoning is refused."""
    for message in agent.messages:
        message.pop("thinking_blocks", None)
        if isinstance(message["content"], list):
            message["content"] = [one for one in message["content"] if one["type"] != "thinking"]


def test_reasoning_leaves_from_the_front_or_from_the_end() -> None:
    assert find_run("abcd", ()) == ()
    assert find_run("abcd", "a") == ("a",)
    assert find_run("abcd", "cd") == ("c", "d")
    assert find_run("abcd", "b") == ("a", "b")
    assert find_run("abcd", "c") == ("c", "d")
    assert find_run("abcd", "bc") == ("a", "b", "c"), "the newest ones are worth most"


@WIRES
@STREAMING
@pytest.mark.parametrize("policy", ["thrifty", "rolling"])
async def test_a_proxy_in_the_middle_of_a_conversation_breaks_nothing(wire: str, stream: bool, policy: str) -> None:
    model = make(wire)
    async with run_upstream(model) as upstream:
        async with direct(upstream.port) as elsewhere:
            agent = begin(wire, elsewhere, stream=stream)
            await agent.work("Find the fault.")
        async with run_proxy(upstream.port, policy=policy, tools={"offer": "first_request"}) as proxy:
            agent.proxy = proxy
            await agent.work("Mend it.")
            await agent.work("Test it.")
            assert proxy.count("edits_total") > 0, "what comes now is edited all the same"
            assert await proxy.rows("SELECT count(*) FROM bindings") == [(len(model.bodies),)]
    assert model.refusals == []
    assert count_tokens(model) == len(model.bodies) - 1


@STREAMING
@pytest.mark.parametrize(("policy", "lost"), [("thrifty", 0), ("rolling", 1)])
async def test_a_request_may_not_say_that_its_model_thinks(policy: str, lost: int, stream: bool) -> None:
    """The first answer shows it: a literal policy has planned that prompt, and cannot plan the next in the same way."""
    model = make("completions")
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy=policy) as proxy:
        agent = ThinkingAgent(proxy, read_listing, stream=stream, more={"reasoning_effort": "high"})
        await agent.work("Find the fault.")
        await agent.work("Mend it.")
        assert proxy.count("dropped_reasoning_total", reason="left_out") == lost
    assert model.refusals == []
    assert count_tokens(model) == len(model.bodies) - 1 - lost


@WIRES
async def test_a_proxy_may_leave_a_conversation_and_come_back(wire: str) -> None:
    model = make(wire)
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        agent = begin(wire, proxy)
        await agent.work("Find the fault.")
        async with direct(upstream.port) as agent.proxy:
            forget_reasoning(agent)
            await agent.work("Mend it.")
        made = len(model.bodies)
        assert count_tokens(model) == STEPS
        agent.proxy = proxy
        await agent.work("Test it.")
        assert model.refusals == []
        assert count_tokens(model) >= len(model.bodies) - made - 1, "new reasoning stays"
        assert [one.header("x-context-fallback") for one in agent.heard[-STEPS:]] == [None] * STEPS


@WIRES
async def test_edits_that_cost_more_than_they_save_are_withdrawn(wire: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.exchange.bound_reasoning.TOKENS_PER_CHARACTER", 1000)  # reasoning is worth all
    model = make(wire)
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        agent = begin(wire, proxy)
        await agent.work("Find the fault.")
        async with direct(upstream.port) as agent.proxy:
            forget_reasoning(agent)
            await agent.work("Mend it.")
        agent.proxy = proxy
        await agent.work("Test it.")
        taken_back = await proxy.rows("SELECT count(*) FROM edits WHERE action = 'withdrawn'")
        assert taken_back[0][0] > 0
        assert {one.header("x-context-fallback") for one in agent.heard} == {None}
    assert model.refusals == []
    assert count_tokens(model) == 2 * (STEPS + 1) - 1, "nothing of it is lost"


def write_eager_policy(folder: Path) -> None:
    """`thrifty`, with every edit at once."""
    text = (Path(__file__).parents[2] / "config" / "policies" / "thrifty.toml").read_text()
    text = text.replace('"when_it_pays"', '"always"').replace('name = "thrifty"', 'name = "eager"')
    (folder / "eager.toml").write_text(text)


def write_leaving_policy(folder: Path) -> None:
    """`thrifty` for which every batch pays, and which leaves reasoning out for its edits."""
    text = (Path(__file__).parents[2] / "config" / "policies" / "thrifty.toml").read_text()
    text = text.replace('name = "thrifty"', 'name = "leaving"\nbound_reasoning = "leave_out"')
    text = text.replace("rent = 1.0\npayback = 0.5\npredicted_rent = 8.0", "rent = 1000.0")
    (folder / "leaving.toml").write_text(text)


def translate(messages: list[Json]) -> list[Json]:
    """A history of Messages as a client of chat completions has it that knows of no thinking."""
    made: list[Json] = [{"role": "system", "content": "You are a careful engineer."}]
    for message in messages:
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        made += [
            {"role": "tool", "tool_call_id": one["tool_use_id"], "content": one["content"]}
            for one in blocks
            if one["type"] == "tool_result"
        ]
        told = make_chat_message([one for one in blocks if one["type"] in ("text", "tool_use")])
        if told["content"] or "tool_calls" in told:
            made.append(told | {"role": message["role"]})
    return made


@pytest.mark.parametrize("wire", ["messages", "completions", "responses"])
async def test_reasoning_leaves_for_edits_with_a_prompt_of_the_user_where_the_policy_says_so(
    wire: str, tmp_path: Path
) -> None:
    write_leaving_policy(tmp_path)
    model, agent = make_model(wire), None
    tree: Json = {"policy": "leaving", "policies_dir": str(tmp_path), "db": str(tmp_path / "a.sqlite3")}
    async with run_upstream(model) as upstream:
        for n in range(5):  # each prompt with a proxy that has read the conversation back from its store
            async with run_proxy(upstream.port, **tree) as proxy:
                agent = agent or begin_any(wire, proxy)
                agent.proxy = proxy
                await agent.work(f"Do part {n}.")
                assert {heard.header("x-context-fallback") for heard in agent.heard} == {None}
    assert agent is not None
    sizes = [[int(k) for k in str(heard.header("x-context-tokens")).split(",")] for heard in agent.heard]
    assert count_refusals(model) == 0
    before, sent = sizes[-1]
    assert sent < 0.6 * before
    moved = [n for n in range(1, len(sizes)) if not goes_on(read_prompt(model, n - 1), read_prompt(model, n))]
    assert moved
    assert all(n % (STEPS + 1) == 0 for n in moved), "only with a prompt of the user"
    assert 0 < count_reasoning(model) < len(sizes) - 1


@pytest.mark.parametrize("wire", ["messages", "completions", "responses"])
async def test_reasoning_stays_where_it_has_more_tokens_than_the_edits_save(
    wire: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.exchange.bound_reasoning.TOKENS_PER_CHARACTER", 1000)
    write_leaving_policy(tmp_path)
    model = make_model(wire)
    async with (
        run_upstream(model) as upstream,
        run_proxy(upstream.port, policy="leaving", policies_dir=str(tmp_path)) as proxy,
    ):
        agent = begin_any(wire, proxy)
        for n in range(3):
            await agent.work(f"Do part {n}.")
    assert count_refusals(model) == 0
    assert count_reasoning(model) == len(agent.heard) - 1


def make_model(wire: str) -> StrictMessages | StrictResponses:
    """A model of any wire format that reads another file in each step."""
    steps = [
        [{**block, "input": {"path": f"part_{n}.py"}} if block["type"] == "tool_use" else block for block in answer]
        for n, answer in enumerate(answers())
    ]
    if wire != "responses":
        return (StrictMessages if wire == "messages" else StrictThinking)(*steps)
    return StrictResponses(*[
        [
            Think(block["thinking"]) if block["type"] == "thinking"
            else Say(block["text"]) if block["type"] == "text"
            else Ask(block["name"], block["input"])
            for block in answer
        ]
        for answer in steps
    ])  # fmt: skip


def begin_any(wire: str, proxy: RunningProxy) -> Agent | ResponsesAgent:
    """An agent of any wire format, whose files have nothing in common."""
    if wire == "responses":
        return ResponsesAgent(proxy, read_unlike)
    return (MessagesAgent if wire == "messages" else ThinkingAgent)(proxy, read_unlike, more=THINKING)


def read_unlike(_: str, arguments: Json) -> str:
    return "\n".join(f"{n}\tdef {arguments['path'][:-3]}_{n}(): return {n * n}" for n in range(1, 160))


def read_prompt(model: StrictMessages | StrictResponses, n: int) -> list[Json]:
    """The history in the n-th prompt that was answered, without reasoning and cache marks."""
    bodies = model.received if isinstance(model, StrictResponses) else model.bodies
    text = json.dumps(bodies[n]["input" if isinstance(model, StrictResponses) else "messages"])
    return [plain for one in json.loads(text) if (plain := leave_out_marks(one)) is not None]


def leave_out_marks(message: Json) -> Json | None:
    if message.get("type") == "reasoning":
        return None
    message.pop("thinking_blocks", None)
    message.pop("id", None)
    if isinstance(content := message.get("content"), list):
        blocks = [block for block in content if block.get("type") != "thinking"]
        blocks = [{k: v for k, v in block.items() if k != "cache_control"} for block in blocks]
        is_text = [block["type"] for block in blocks] == ["text"]
        message["content"] = blocks[0]["text"] if is_text else blocks
    return message


def goes_on(earlier: list[Json], later: list[Json]) -> bool:
    return later[: len(earlier)] == earlier


def count_refusals(model: StrictMessages | StrictResponses) -> int:
    return len(model.refused if isinstance(model, StrictResponses) else model.refusals)


def count_reasoning(model: StrictMessages | StrictResponses) -> int:
    """Pieces of reasoning in the last prompt."""
    if isinstance(model, StrictResponses):
        return sum(item.get("type") == "reasoning" for item in model.received[-1]["input"])
    return count_tokens(model)


async def test_edits_in_another_wire_format_cost_no_more_than_the_reasoning_after_them(tmp_path: Path) -> None:
    """Under one name a session goes on in another format, in which nothing is bound and old messages are edited."""
    write_eager_policy(tmp_path)
    model = make("messages")
    plain = StrictThinking("It is the first one.")

    async def upstream_of_both(request: RawRequest, connection: Connection) -> None:
        await (model if b"/messages" in request.line else plain)(request, connection)

    name = (b"x-context-session: one",)
    tree: Json = {"policy": "eager", "policies_dir": str(tmp_path)}
    async with run_upstream(upstream_of_both) as upstream, run_proxy(upstream.port, **tree) as proxy:
        agent = begin("messages", proxy, lines=name)
        await agent.work("Find the fault.")
        await agent.work("Mend it.")
        other = ThinkingAgent(proxy, lambda *_: LISTING + "\nmore", lines=name, messages=translate(agent.messages))
        plain.answers = [[one for one in made if one["type"] != "thinking"] for made in answers(400)]
        for message in other.messages:
            assert "thinking_blocks" not in message
        edits = proxy.count("edits_total")
        await other.work("Look elsewhere.")
        assert proxy.count("edits_total") > edits
        await agent.work("Test it.")
        assert agent.heard[-1].header("x-context-fallback") is None
    assert model.refusals == []
    assert plain.refusals == []
    assert count_tokens(model) >= STEPS, "new reasoning stays"


@WIRES
@STREAMING
async def test_a_client_may_fork_ask_again_and_compact(wire: str, stream: bool) -> None:
    model = make(wire)
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        agent = begin(wire, proxy, stream=stream)
        await agent.work("Find the fault.")
        await agent.work("Mend it.")
        # The last answer once more, then the last piece of work in other words.
        agent.messages.pop()
        await agent.ask()
        at = next(n for n, one in enumerate(agent.messages) if one["content"] == "Mend it.")
        del agent.messages[at:]
        await agent.work("Mend it well.")
        assert model.refusals == []
        assert count_tokens(model) == sum(1 for one in agent.messages if one["role"] == "assistant") - 1
        # A summary in the place of the history.
        del agent.messages[1 if wire == "completions" else 0 :]
        await agent.work("This is what was done: nothing yet. Go on.")
        assert model.refusals == []
        assert count_tokens(model) == STEPS
        assert {one.header("x-context-fallback") for one in agent.heard} == {None}


@WIRES
async def test_a_change_of_the_client_before_reasoning_ends_no_conversation(wire: str, tmp_path: Path) -> None:
    """Without the proxy the upstream refuses it; where the proxy has edited, the reasoning goes and stays away."""
    model = make(wire)
    path = str(tmp_path / "a.sqlite3")
    async with run_upstream(model) as upstream:
        async with run_proxy(upstream.port, policy="thrifty", db=path) as proxy:
            agent = begin(wire, proxy)
            await agent.work("Find the fault.")
            at = next(n for n, one in enumerate(agent.messages) if one["content"] == "Find the fault.")
            agent.messages[at] = {"role": "user", "content": "Find the error."}
            await agent.work("Mend it.")
            refused = len(model.refusals)
            assert refused <= 2
        async with run_proxy(upstream.port, policy="thrifty", db=path) as proxy:  # the fork is read back
            agent.proxy = proxy
            await agent.work("Test it.")
    assert len(model.refusals) == refused, "what was refused is not sent again"
    assert count_tokens(model) == 2 * (STEPS + 1) - 1


@WIRES
async def test_a_restart_knows_what_was_bound(wire: str, tmp_path: Path) -> None:
    model = make(wire)
    async with run_upstream(model) as upstream:
        agent: Agent | None = None
        for _ in range(4):
            async with run_proxy(upstream.port, policy="thrifty", db=str(tmp_path / "a.sqlite3")) as proxy:
                agent = agent or begin(wire, proxy)
                agent.proxy = proxy
                await agent.work("Go on.")
                assert await proxy.rows("SELECT count(*) FROM bindings") == [(len(model.bodies),)]
    assert model.refusals == []
    assert count_tokens(model) == len(model.bodies) - 1


@WIRES
async def test_two_replicas_keep_one_conversation_whole(wire: str, database: str) -> None:
    model = make(wire)
    tree: Json = {"policy": "thrifty", "db": database}
    async with (
        run_upstream(model) as upstream,
        run_proxy(upstream.port, **tree) as one,
        run_proxy(upstream.port, **tree) as other,
    ):
        agent = begin(wire, one)
        agent.messages.append({"role": "user", "content": "Find the fault."})
        for n in range(12):
            agent.proxy = other if n % 2 else one
            message = await agent.ask()
            _bring(wire, agent, message)
        assert one.count("edits_total") > 0
        assert other.count("edits_total") > 0
        assert await one.rows("SELECT count(*) FROM bindings") == [(12,)]
    assert model.refusals == []
    assert count_tokens(model) == 11


def _bring(wire: str, agent: Agent, message: Json) -> None:
    """The results of an answer's calls, or the next prompt."""
    if wire == "messages":
        calls = [one["id"] for one in message["content"] if one["type"] == "tool_use"]
        results: list[Json] = [{"type": "tool_result", "tool_use_id": one, "content": LISTING} for one in calls]
        agent.messages.append({"role": "user", "content": results or "Go on."})
        return
    calls = [one["id"] for one in message.get("tool_calls") or ()]
    agent.messages += [{"role": "tool", "tool_call_id": one, "content": LISTING} for one in calls]
    if not calls:
        agent.messages.append({"role": "user", "content": "Go on."})


def refuse_edits(model: StrictMessages, find_agent: Callable[[], Agent | None]) -> Script:
    """An upstream that refuses edited prompts as long as there is an agent, for a reason that is nobody's business."""

    async def answer(request: RawRequest, connection: Connection) -> None:
        agent = find_agent()
        if agent is not None and request.body.count(b"function_7(") < json.dumps(agent.messages).count("function_7("):
            model.received.append(request)
            text = b'{"type":"error","error":{"type":"invalid_request_error","message":"I do not like this"}}'
            await send_reply(connection, b"400 Bad Request", text, b"content-type: application/json")
            return
        await model(request, connection)

    return answer


@asynccontextmanager
async def working_agent(wire: str) -> AsyncIterator[tuple[StrictMessages, Agent, Callable[[], None]]]:
    """A model, an agent whose first piece of work has edits, and a function: from its call on the upstream refuses the
    edited prompts."""
    model = make(wire)
    refused: list[Agent] = []
    script = refuse_edits(model, lambda: refused[0] if refused else None)
    async with run_upstream(script) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        agent = begin(wire, proxy)
        agent.messages.append({"role": "user", "content": "Find the fault."})
        for _ in range(STEPS):
            _bring(wire, agent, await agent.ask())
        yield model, agent, lambda: refused.append(agent)


@WIRES
async def test_a_plan_that_is_refused_for_another_reason_costs_no_conversation(wire: str) -> None:
    """The client's own bytes go out then, without the reasoning that was made behind edits."""
    async with working_agent(wire) as (model, agent, refuse):
        refuse()
        for n in range(6):
            message = await agent.ask()
            assert agent.heard[-1].header("x-context-fallback") == (None if n else "upstream_reject")
            _bring(wire, agent, message)
    assert model.refusals == []


@WIRES
async def test_the_first_reasoning_after_what_was_left_out_is_known_to_be_made_after_edits(wire: str) -> None:
    """The client's bytes have another reasoning in front of it than what goes out; that is no change of the client."""
    async with working_agent(wire) as (model, agent, refuse):
        at = next(n for n, one in enumerate(agent.messages) if one["content"] == "Find the fault.")
        agent.messages[at] = {"role": "user", "content": "Find the error."}
        for _ in range(2):
            _bring(wire, agent, await agent.ask())
        refused = [*model.refusals]
        assert refused, "the client's own change has cost the reasoning before it"
        refuse()
        await agent.ask()
        assert agent.heard[-1].header("x-context-fallback") == "upstream_reject"
    assert model.refusals == refused


async def test_responses_leaves_broken_reasoning_out_itself_and_the_price_is_counted() -> None:
    steps: list[list[Any]] = [[Think(f"file {n}"), Ask("read", {"path": "a.py"})] for n in range(3)]
    model = StrictResponses(*steps, [Think("So"), Say("Done.")])
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        agent = ResponsesAgent(proxy, read_listing)
        await agent.work("Find the fault.")
        async with direct(upstream.port) as agent.proxy:
            await agent.work("Mend it.")
        dropped = len(model.dropped)
        assert dropped > 0, "the edits of the proxy are not there"
        agent.proxy = proxy
        await agent.work("Test it.")
        assert len(model.dropped) > dropped
        assert proxy.count("dropped_reasoning_total", reason="prefix_mismatch") == len(model.dropped) - dropped
        assert proxy.count("dropped_reasoning_total", reason="left_out") == 0
    assert model.refused == []


@STREAMING
@WIRES
async def test_the_thinking_of_a_hidden_round_goes_back_as_it_was_signed(wire: str, stream: bool) -> None:
    hidden: Json = {"type": "tool_use", "id": "toolu_hidden", "name": "recall", "input": {"id": "abcdef"}}
    made: list[Json] = [{"type": "thinking", "thinking": "What was in that listing?"}, hidden]
    model = (StrictMessages if wire == "messages" else StrictThinking)(made, *answers())
    tree: dict[str, Any] = {"policy": "thrifty", "tools": {"offer": "first_request"}}
    async with run_upstream(model) as upstream, run_proxy(upstream.port, **tree) as proxy:
        agent = begin(wire, proxy, stream=stream)
        assert await agent.work("Look at the files.") == f"Done {STEPS - 1}."
        assert {found for *_, found in await proxy.outcomes()} == {None}
    assert model.refusals == []
    assert count_tokens(model) == STEPS + 1


@pytest.mark.parametrize("leaves", [False, True], ids=["both answered", "the first given up"])
async def test_a_retry_has_the_edits_that_the_first_attempt_is_storing(leaves: bool) -> None:
    """Its answer would be bound to a prompt without them, and the next prompt has them."""
    model, store = make("messages"), FailingStore()
    tree: Json = {"policy": "thrifty", "limits": {"commit_wait_ms": 20_000}}
    async with run_upstream(model) as upstream, run_proxy(upstream.port, **tree, before=use_store(store)) as proxy:
        agent = MessagesAgent(proxy, read_listing, more=THINKING)
        agent.messages.append({"role": "user", "content": "Find the fault."})
        await agent.ask()
        await go_on(agent)
        bring_results(agent)
        store.hold = True
        first = asyncio.create_task(agent.ask())
        while not await proxy.rows("SELECT 1 FROM edits"):
            await asyncio.sleep(0.005)
        other = MessagesAgent(proxy, read_listing, more=THINKING, messages=[*agent.messages])
        other.lines = (b"x-stainless-retry-count: 1",)
        second = asyncio.create_task(other.ask())
        await wait_until(lambda: proxy.app.concurrency.taken == 2)
        await asyncio.sleep(0.05)  # it finds its branch
        if leaves:
            first.cancel()
            await wait_until(lambda: proxy.app.concurrency.taken == 1)
        store.release()
        await second
        await asyncio.gather(first, return_exceptions=True)
        other.lines = ()
        for _ in range(3):
            await go_on(other)
        assert [heard.header("x-context-fallback") for heard in other.heard] == [None] * 4
    assert count_tokens(model) == len([one for one in other.messages if one["role"] == "assistant"]) - 1
    assert (model.refusals, model.dropped) == ([], [])


def bring_results(agent: MessagesAgent) -> None:
    """Run the calls of the last answer, or give the next prompt."""
    calls = [block["id"] for block in agent.messages[-1]["content"] if block["type"] == "tool_use"]
    results = [{"type": "tool_result", "tool_use_id": one, "content": LISTING} for one in calls]
    agent.messages.append({"role": "user", "content": results or "Go on."})


async def go_on(agent: MessagesAgent) -> None:
    bring_results(agent)
    await agent.ask()
