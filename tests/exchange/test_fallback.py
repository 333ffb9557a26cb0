from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest

from proxy.exchange.fallback import REASON_TEXTS, FallbackReason
from tests.proxy_server import run_proxy
from tests.raw_upstream import Connection, RawRequest, run_upstream
from tests.scripted_model import ScriptedModel, send_reply

HELLO: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"{", FallbackReason.UNREADABLE),
        (b'{"model": "m", "messages": 5}', FallbackReason.SHAPE),
        (json.dumps(HELLO | {"messages": HELLO["messages"] * 40}).encode(), FallbackReason.SIZE),
    ],
)
async def test_a_request_that_is_not_managed_goes_out_byte_for_byte_with_its_reason(
    body: bytes, reason: FallbackReason
) -> None:
    model = ScriptedModel("Well.")
    async with run_upstream(model) as upstream, run_proxy(upstream.port, limits={"messages": 30}) as proxy:
        found = await proxy.post(body)
        assert found.header("x-context-fallback") == reason
        assert proxy.count("fallbacks_total", reason=reason) == 1
        assert await proxy.outcomes() == []
    assert [request.body for request in model.received] == [body]


def test_a_word_that_is_no_reason_is_an_error_of_ours() -> None:
    assert FallbackReason("chain") is FallbackReason.CHAIN
    assert FallbackReason("a word of somebody's own stage") is FallbackReason.ERROR
    with pytest.raises(ValueError, match="5"):
        FallbackReason(5)  # type: ignore[arg-type]


def test_each_reason_is_explained_in_the_order_of_the_reasons() -> None:
    assert list(REASON_TEXTS) == list(FallbackReason)
    assert all(text.endswith(".") for text in REASON_TEXTS.values())


def think(n: int, name: str, arguments: str) -> dict[str, Any]:
    """A response of reasoning and a call that was made after it."""
    reasoning = {"type": "reasoning", "id": f"rs_{n}", "summary": [], "encrypted_content": f"gAAA{n}" * 9}
    call = {"type": "function_call", "id": f"fc_{n}", "call_id": f"call_{n}", "name": name, "arguments": arguments}
    return {"id": f"resp_{n}", "object": "response", "status": "completed", "output": [reasoning, call]}


class Strict:
    """An upstream that calls the proxy's `recall` first, and refuses what the providers refuse."""

    def __init__(self) -> None:
        self.statuses: list[int] = []

    async def __call__(self, request: RawRequest, there: Connection) -> None:
        body = json.loads(request.body)
        made, problem = self.respond(body) if "input" in body else self.complete(body)
        self.statuses.append(400 if problem else 200)
        answer = {"error": {"message": problem}} if problem else made
        status = b"400 Bad Request" if problem else b"200 OK"
        await send_reply(there, status, json.dumps(answer).encode(), b"content-type: application/json")

    def respond(self, body: dict[str, Any]) -> tuple[dict[str, Any], str]:
        items = body["input"]
        for one, following in pairwise([*items, {}]):
            if one.get("type") == "reasoning" and following.get("type") != "function_call":
                return {}, f"Item '{one['id']}' of type 'reasoning' was provided without its required following item."
        n = len(self.statuses) + 1
        is_first = not any(one.get("type") == "function_call_output" for one in items)
        return think(n, "recall" if is_first else "read_file", '{"id": "x"}'), ""

    def complete(self, body: dict[str, Any]) -> tuple[dict[str, Any], str]:
        called = [one["tool_calls"] for one in body["messages"] if one.get("tool_calls")]
        if any("extra_content" not in calls[0] for calls in called):
            return {}, "Function call is missing a thought_signature"
        signed = {"extra_content": {"google": {"thought_signature": "SIG"}}}
        named: tuple[tuple[str, str, dict[str, Any]], ...] = (
            ("call_own", "recall", signed),
            ("call_read", "read_file", {}),
        )
        calls = [
            {"id": at, "type": "function", "function": {"name": name, "arguments": '{"id": "x"}'}, **more}
            for at, name, more in named
        ]
        message = {"role": "assistant", "content": None, "tool_calls": calls}
        return {"object": "chat.completion", "choices": [{"index": 0, "message": message}]}, ""


SCHEMA = {"type": "object", "properties": {}}
RECALLS: dict[str, Any] = {"tools": {"enabled": ["recall"], "offer": "first_request"}}


async def test_a_history_with_a_hidden_round_is_accepted_where_it_goes_on_as_received() -> None:
    upstream = Strict()
    body: dict[str, Any] = {"model": "gpt-5", "store": False, "include": ["reasoning.encrypted_content"]}
    body["tools"] = [{"type": "function", "name": "read_file", "parameters": SCHEMA}]
    items: list[dict[str, Any]] = [{"role": "user", "content": "Read a.py."}]
    async with run_upstream(upstream) as there, run_proxy(there.port, policy="thrifty", **RECALLS) as proxy:
        first = await proxy.post({**body, "input": items}, path="/v1/responses")
        output = json.loads(first.body)["output"]
        assert [one["type"] for one in output] == ["reasoning", "reasoning", "function_call"]
        items += [*output, {"type": "function_call_output", "call_id": output[-1]["call_id"], "output": "text"}]
        found = await proxy.post({**body, "input": items}, b"x-context-off: 1", path="/v1/responses")
        assert (found.status, found.header("x-context-fallback")) == (200, "off")
    assert upstream.statuses == [200, 200, 400, 200], "as received, then repaired"


async def test_a_call_whose_signature_stood_on_a_hidden_call_is_accepted_where_it_goes_on_as_received() -> None:
    upstream = Strict()
    body: dict[str, Any] = {"model": "gemini-3-pro"}
    body["tools"] = [{"type": "function", "function": {"name": "read_file", "parameters": SCHEMA}}]
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Read a.py."}]
    async with run_upstream(upstream) as there, run_proxy(there.port, policy="thrifty", **RECALLS) as proxy:
        first = await proxy.post({**body, "messages": messages})
        message = json.loads(first.body)["choices"][0]["message"]
        assert [one["id"] for one in message["tool_calls"]] == ["call_read"]
        messages += [message, {"role": "tool", "tool_call_id": "call_read", "content": "text"}]
        found = await proxy.post({**body, "messages": messages}, b"x-context-off: 1")
        assert (found.status, found.header("x-context-fallback")) == (200, "off")
    assert upstream.statuses == [200, 400, 200]


async def test_another_400_is_passed_on_after_one_request() -> None:
    upstream = Strict()
    call = {"id": "x", "function": {"name": "f", "arguments": "{}"}}
    called = {"role": "assistant", "content": None, "tool_calls": [call]}
    messages = [{"role": "user", "content": "a"}, called, {"role": "tool", "tool_call_id": "x", "content": "b"}]
    body = {"model": "gpt-5", "messages": messages}
    async with run_upstream(upstream) as there, run_proxy(there.port) as proxy:
        assert (await proxy.post(body, b"x-context-off: 1")).status == 400
    assert upstream.statuses == [400]


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/responses/compact"])
async def test_items_that_the_proxy_cannot_read_get_the_upstreams_own_refusal(path: str) -> None:
    refusal = b'{"error":{"message":"input[0]: unknown item"}}'
    asked = json.dumps({"model": "m", "input": [{"content": "Hello"}], "store": False}).encode()
    seen: list[bytes] = []

    async def script(request: RawRequest, there: Connection) -> None:
        seen.append(request.body)
        await send_reply(there, b"400 Bad Request", refusal, b"content-type: application/json")

    async with run_upstream(script) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        found = await proxy.post(asked, path=path)
    assert (found.status, found.body) == (400, refusal)
    assert seen == [asked]


DEPLOYMENT = "/openai/deployments/%s/chat/completions"


async def test_the_model_of_azures_path_chooses_the_upstream_with_a_plan_and_without() -> None:
    first, second = ScriptedModel("First."), ScriptedModel("Second.")
    async with run_upstream(first) as one, run_upstream(second) as two:
        upstreams = {
            name: {"base_url": f"http://127.0.0.1:{port}/openai/v1", "models": [pattern]}
            for name, port, pattern in (("one", one.port, "gpt-5*"), ("two", two.port, "o4*"))
        }
        body = {"messages": HELLO["messages"]}
        async with run_proxy("", upstreams=upstreams) as proxy:
            for model, lines, fallback in (("o4-team", (), None), ("o4-team", (b"x-context-off: 1",), "off")):
                found = await proxy.post(body, *lines, path=DEPLOYMENT % model)
                assert (found.message["content"], found.header("x-context-fallback")) == ("Second.", fallback)
            for lines, deployment in (((), "o4-team"), ((b"x-context-off: 1",), "o4-team"), ((), "team")):
                await proxy.post({"model": "gpt-5-mini", **body}, *lines, path=DEPLOYMENT % deployment)
            named = await proxy.rows("SELECT model, upstream FROM exchanges ORDER BY started_at")
    assert named == [("o4-team", "two"), ("gpt-5-mini", "two"), ("gpt-5-mini", "one")], (
        "the deployment is that of one upstream; the body tells what the prompt costs"
    )
    assert [one.line.split()[1] for one in first.received] == [DEPLOYMENT.encode() % b"team"]
