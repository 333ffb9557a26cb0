"""Agents that speak Messages and Responses, on upstreams that refuse what the providers refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from proxy.chat import json_spans
from proxy.dialects.responses.items import make_items
from proxy.dialects.responses.request import read_wire_request
from proxy.exchange.dialect import DIALECTS, RESPONSES, repair_cut_answers
from proxy.stream.answer_relay import RelayOptions
from tests.dialect_agents import LISTING, MessagesAgent, ResponsesAgent
from tests.proxy_server import run_proxy
from tests.raw_upstream import Connection, RawRequest, run_upstream
from tests.scripted_model import send_reply
from tests.strict_messages import StrictMessages
from tests.strict_responses import Ask, Say, StrictResponses, Think

Json = dict[str, Any]
STEPS = 25


def read(name: str, arguments: dict[str, Any]) -> str:
    """A file; each fifth file is the same as the one before."""
    return f"{LISTING}\n# {arguments.get('path', '')[:6]}"


def think(n: int) -> list[dict[str, Any]]:
    """An answer in Messages: thinking, a text, a call."""
    return [
        {"type": "thinking", "thinking": f"I look at file {n}."},
        {"type": "text", "text": f"Step {n}."},
        {"type": "tool_use", "id": f"toolu_{n:04}", "name": "read", "input": {"path": f"file{n % 3}.py"}},
    ]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("policy", ["thrifty", "rolling", "observe"])
async def test_an_agent_on_messages_works_as_without_the_proxy_and_cheaper(
    policy: str, stream: bool, tmp_path: Path
) -> None:
    model = StrictMessages(*(think(n) for n in range(STEPS)), [{"type": "text", "text": "All done."}])
    tree: dict[str, Any] = {"policy": policy, "db": str(tmp_path / "a.sqlite3")}
    async with run_upstream(model) as upstream, run_proxy(upstream.port, **tree) as proxy:
        agent = MessagesAgent(proxy, read, stream=stream, more={"thinking": {"type": "adaptive"}})
        assert await agent.work("Find the fault.") == "All done."
        outcomes = await proxy.outcomes()
    assert model.refusals == []
    assert model.dropped == []
    assert len(outcomes) == STEPS + 1
    assert {(status, fallback) for status, _, fallback in outcomes} == {("complete", None)}
    assert len({found.session for found in agent.heard}) == 1
    assert [one["id"] for m in agent.answers for one in m["content"] if one["type"] == "tool_use"] == [
        f"toolu_{n:04}" for n in range(STEPS)
    ]
    sent, whole = len(model.received[-1].body), len(str(agent.messages))
    if policy == "observe":
        assert model.bodies[-1]["messages"] == agent.messages[:-1]
    else:
        assert sent < 0.9 * whole, "repeats are sent once"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("policy", ["thrifty", "rolling", "observe"])
async def test_an_agent_on_responses_works_as_without_the_proxy_and_cheaper(
    policy: str, stream: bool, tmp_path: Path
) -> None:
    steps: list[list[Any]] = [
        [Think(f"file {n}"), Say(f"Step {n}."), Ask("read", {"path": f"file{n % 3}.py"})] for n in range(STEPS)
    ]
    model = StrictResponses(*steps, [Think(), Say("All done.")])
    tree: dict[str, Any] = {"policy": policy, "db": str(tmp_path / "a.sqlite3")}
    async with run_upstream(model) as upstream, run_proxy(upstream.port, **tree) as proxy:
        agent = ResponsesAgent(proxy, read, stream=stream)
        assert await agent.work("Find the fault.") == "All done."
        outcomes = await proxy.outcomes()
    assert model.refused == []
    assert model.dropped == []
    assert {(status, fallback) for status, _, fallback in outcomes} == {("complete", None)}
    assert len({found.session for found in agent.heard}) == 1
    sent, whole = len(str(model.received[-1]["input"])), len(str(agent.items))
    if policy == "observe":
        assert model.received[-1]["input"] == agent.items[: len(model.received[-1]["input"])]
    else:
        assert sent < 0.9 * whole, "repeats are sent once"


@pytest.mark.parametrize("refers", [False, True])
@pytest.mark.parametrize("policy", ["thrifty", "rolling"])
async def test_reasoning_that_is_stored_at_the_provider_is_bound_too(policy: str, refers: bool, tmp_path: Path) -> None:
    steps: list[list[Any]] = [[Think(), Say(f"Step {n}."), Ask("read", {"path": f"file{n % 3}.py"})] for n in range(12)]
    model = StrictResponses(*steps, [Think(), Say("All done.")])
    tree: dict[str, Any] = {"policy": policy, "db": str(tmp_path / "a.sqlite3")}
    async with run_upstream(model) as upstream, run_proxy(upstream.port, **tree) as proxy:
        agent = ResponsesAgent(proxy, read, more={"store": True, "include": []}, refers=refers)
        assert await agent.work("Find the fault.") == "All done."
    assert model.refused == []
    assert model.dropped == []
    if refers:
        assert model.received[-1]["input"] == agent.items[: len(model.received[-1]["input"])]
        assert [found.header("x-context-fallback") for found in agent.heard] == [None, *["chain"] * 12]
    else:
        assert len(str(model.received[-1]["input"])) < 0.9 * len(str(agent.items))


@pytest.mark.parametrize(
    "more",
    [b'"content":[{"type":"server_tool_use","id":{"a":1}}]', b'"content":"So.","n":' + b"9" * 6000],
    ids=["id", "number"],
)
async def test_values_of_odd_types_are_passed_on_and_cause_no_fault_of_the_proxy(more: bytes) -> None:
    received: list[bytes] = []

    async def answer(request: RawRequest, connection: Connection) -> None:
        received.append(request.body)
        await send_reply(connection, b"200 OK", b"{}", b"content-type: application/json")

    asked = b'{"role":"user","content":"Go."}'
    body = b'{"model":"m","max_tokens":900,"messages":[%b,{"role":"assistant",%b},%b]}' % (asked, more, asked)
    async with run_upstream(answer) as upstream, run_proxy(upstream.port, policy="rolling") as proxy:
        found = await proxy.post(body, b"x-api-key: sk-one", path="/v1/messages")
        assert found.status == 200
        assert proxy.count("internal_errors_total") == 0
    assert received == [body]


@pytest.mark.parametrize("head", [b"", b'"instructions":null,', b'"instructions":"Theirs.",'])
@pytest.mark.parametrize("tail", [b"", b',"instructions":"Behind."'])
def test_the_clients_instructions_are_echoed_where_others_were_sent(head: bytes, tail: bytes) -> None:
    if head and tail:
        return  # a member that is there twice is not read
    body = b'{%b"model":"m","input":[{"role":"user","content":"Do."}]%b}' % (head, tail)
    request = read_wire_request(body)
    own = json_spans.read_value(body, "instructions")
    for sent in (body, body.replace(b"Do.", b"Cut."), body.replace(b"Theirs.", b"Ours."), body.replace(b"Beh", b"H")):
        same = json_spans.read_value(sent, "instructions") == own
        assert RESPONSES.answers.find_changed_instructions(request, sent) == (None if same else own)


@pytest.mark.parametrize("policy", ["hierarchical", "progressive"])
async def test_a_search_that_continues_in_a_later_answer_leaves_whole(policy: str) -> None:
    """The provider runs the search while the client runs its own call: the result stands in the next answer."""
    model = StrictMessages([{"type": "text", "text": "Done."}])
    messages: list[Json] = [{"role": "user", "content": "Find the fault."}]
    for n in range(40):
        search = {"type": "server_tool_use", "id": f"srvtoolu_{n}", "name": "web_search", "input": {"query": "q"}}
        found = {"type": "web_search_tool_result", "tool_use_id": f"srvtoolu_{n}", "content": []}
        calls = [{"type": "tool_use", "id": f"toolu_{n}_{k}", "name": "read", "input": {"n": n}} for k in range(2)]
        results = [{"type": "tool_result", "tool_use_id": one["id"], "content": LISTING[n:4000]} for one in calls]
        messages += [
            {"role": "assistant", "content": [search, calls[0]]},
            {"role": "user", "content": results[:1]},
            {"role": "assistant", "content": [found, {"type": "text", "text": f"Found {n}."}, calls[1]]},
            {"role": "user", "content": results[1:]},
        ]
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy=policy) as proxy:
        agent = MessagesAgent(proxy, read, messages=messages)
        await agent.ask()
    assert (model.refusals, agent.heard[0].header("x-context-fallback")) == ([], None)
    sent = [block for message in model.bodies[0]["messages"] for block in message["content"]]
    asked = {one["id"] for one in sent if isinstance(one, dict) and one["type"] == "server_tool_use"}
    answered = {one["tool_use_id"] for one in sent if isinstance(one, dict) and one["type"] == "web_search_tool_result"}
    assert asked == answered
    assert 0 < len(asked) < 40


@pytest.mark.parametrize("policy", ["rolling", "chat"])
async def test_system_messages_in_a_conversation_keep_it_managed(policy: str) -> None:
    """Claude Code sends one as its second message. Prompts and answers around it left, so that no plan could go out."""
    model, fallbacks, messages = StrictMessages(), [], list[Json]()
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy=policy) as proxy:
        for n in range(36):
            messages.append({"role": "user", "content": f"Question {n}: {LISTING[:400]}"})
            if n in (0, 3, 4):
                messages.append({"role": "system", "content": f"Note {n}."})
            body = {"model": "claude-3-5-sonnet", "max_tokens": 99, "system": "Be.", "messages": messages}
            found = await proxy.post(body, b"x-api-key: k", b"anthropic-version: 2023-06-01", path="/v1/messages")
            fallbacks.append(found.header("x-context-fallback"))
            messages.append({"role": "assistant", "content": found.json()["content"]})
    assert model.refusals == []
    assert set(fallbacks) == {None}
    assert len(model.bodies[-1]["messages"]) < len(messages) - 1
    assert next(one["content"] for one in model.bodies[-1]["messages"] if one["role"] == "system") == "Note 0."


async def test_edits_stay_as_they_were_sent_when_the_provider_compacts_the_history() -> None:
    seal = {"id": "cmp_1", "type": "compaction", "encrypted_content": "sealed"}

    async def compact(_: RawRequest, connection: Connection) -> None:
        made = {"id": "resp_1", "object": "response", "status": "completed", "model": "gpt-5.1", "output": [seal]}
        await send_reply(connection, b"200 OK", json.dumps(made).encode(), b"content-type: application/json")

    model = StrictResponses(compact, [Say("Done.")], binds=False)
    items: list[Json] = [{"role": "user", "content": "Find the fault."}]
    for n in range(4):
        call = {"type": "function_call", "call_id": f"call_{n}", "name": "read", "arguments": "{}"}
        items += [call, {"type": "function_call_output", "call_id": f"call_{n}", "output": LISTING}]
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        agent = ResponsesAgent(proxy, read, items=items, more={"model": "gpt-5.1", "include": []})
        await agent.ask()
        agent.items.append({"role": "user", "content": "Go on."})
        await agent.ask()
    assert (model.refused, [one.header("x-context-fallback") for one in agent.heard]) == ([], [None, None])
    first, second = (one["input"] for one in model.received)
    assert len(str(first)) < 0.8 * len(str(items[:9])), "a repeated result is sent once"
    assert second == [*first, *agent.items[9:-1]]


async def test_the_pages_of_a_search_are_not_bound_reasoning() -> None:
    """They are sealed, but bound to nothing: the policy of the request plans it."""
    model = StrictMessages([{"type": "text", "text": "Done."}])
    search = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "q"}}
    page = {"type": "web_search_result", "url": "https://a", "title": "A", "encrypted_content": "EoXy"}
    found = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [page]}
    messages: list[Json] = [{"role": "user", "content": "Look."}, {"role": "assistant", "content": [search, found]}]
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="rolling") as proxy:
        agent = MessagesAgent(proxy, read, messages=[*messages, {"role": "user", "content": "Go on."}])
        await agent.ask()
    assert (model.refusals, agent.heard[0].header("x-context-policy-used")) == ([], None)
    assert model.bodies[0]["messages"][1] == messages[1]


async def test_a_text_of_the_proxy_joins_no_result_that_has_no_place_for_one() -> None:
    """A screenshot holds no text: the plan goes out without the note that would stand behind it."""
    model = StrictResponses([Say("Done.")], binds=False)
    items: list[Json] = [{"role": "user", "content": "Look."}]
    for n in range(9):
        screen = {"type": "computer_screenshot", "image_url": f"https://x/{n}.png"}
        call = {"type": "computer_call", "id": f"cu_{n}", "call_id": f"call_{n}", "pending_safety_checks": []}
        more = {"action": {"type": "wait"}, "status": "completed"}
        items += [call | more, {"type": "computer_call_output", "call_id": f"call_{n}", "output": screen}]
    async with (
        run_upstream(model) as upstream,
        run_proxy(upstream.port, policy="progressive", state={"ask": "always"}) as proxy,
    ):
        agent = ResponsesAgent(proxy, read, items=list(items), more={"model": "gpt-5.1", "include": []})
        await agent.ask()
    assert (model.refused, agent.heard[0].header("x-context-fallback")) == ([], None)
    assert model.received[0]["input"][-1] == items[-1]


NAMED: dict[str, tuple[Json, Json]] = {
    "messages": (
        {"type": "message", "role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": {}, "input": {}}]},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use", "id": "c", "name": {}}},
    ),
    "responses": (
        {"status": "completed", "output": [{"type": "function_call", "call_id": "c", "name": [], "arguments": "{}"}]},
        {"type": "response.output_item.added", "output_index": 0, "item": {"type": "function_call", "name": []}},
    ),
    "gemini": (
        {"candidates": [{"content": {"role": "model", "parts": [{"functionCall": {"name": {}}}]}}]},
        {"candidates": [{"content": {"role": "model", "parts": [{"functionCall": {"name": {}}}]}}]},
    ),
}
"""By dialect, a body and an event with the call of a tool whose name is no text."""


@pytest.mark.parametrize("name", NAMED)
def test_the_call_of_a_tool_whose_name_is_not_text_is_not_the_proxys(name: str) -> None:
    dialect, (body, event) = DIALECTS[name], NAMED[name]
    hidden = frozenset({"recall"})
    assert not dialect.answers.read_round(json.dumps(body).encode(), hidden, ()).hidden_calls
    relay = dialect.answers.make_relay(RelayOptions(hidden_tools=hidden), None)
    data = b"event: %b\ndata: %b\n\n" % (str(event.get("type", "x")).encode(), json.dumps(event).encode())
    relay.feed(data)
    relay.end()
    assert relay.hidden_calls == []


@pytest.mark.parametrize(
    ("name", "body"), [("gemini", b'{"contents":[1]}'), ("responses", b'{"input":[{"content":"Hi."}]}')]
)
def test_a_body_that_cannot_be_read_is_not_repaired(name: str, body: bytes) -> None:
    assert repair_cut_answers(DIALECTS[name], body) is body


def test_an_answer_with_an_item_that_is_not_an_object_is_not_written_as_items() -> None:
    assert make_items(b'{"role":"assistant","content":"Hi.","wire":[null]}', {})[0].startswith(b'{"type":"message"')
