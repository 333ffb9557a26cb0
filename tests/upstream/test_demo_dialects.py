"""The demo model in the other wire formats: what it answers reads as the strict upstreams' answers do."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import openai
import pytest

from proxy.upstream.demo import DemoTransport
from proxy.upstream.demo_dialects import find_demo_dialect
from tests.dialect_agents import MessagesAgent, ResponsesAgent
from tests.gemini_agent import GeminiAgent, join_gemini_chunks
from tests.proxy_server import run_proxy

Json = dict[str, Any]
PROMPT = "Read src/main.py"
DECLARED: Json = {"name": "read", "description": "Read a file"}
SCHEMA: Json = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}


def ask(path: str, demo: DemoTransport | None = None, **body: Any) -> tuple[int, Any]:
    answer = (demo or DemoTransport()).answer_request("POST", path, json.dumps(body).encode())
    found = b"".join(answer.body.parts)
    return answer.status, found if dict(answer.headers)[b"content-type"].startswith(b"text/") else json.loads(found)


def read(name: str, arguments: Json) -> str:
    return f"{name}: {arguments}"


def test_each_path_has_its_form() -> None:
    for path in ("/v1/messages", "/messages?beta=true", "/v1/responses", "/v1beta/models/g:generateContent"):
        assert find_demo_dialect(path) is not None
    for path in ("/v1/chat/completions", "/v1/models", "/v1/messages/batches", "/v1beta/models"):
        assert find_demo_dialect(path) is None


def test_the_demo_answers_messages_with_a_tool_call() -> None:
    asked: Json = {"model": "claude-x", "max_tokens": 99, "messages": [{"role": "user", "content": PROMPT}]}
    asked["tools"] = [{**DECLARED, "input_schema": SCHEMA}]
    status, message = ask("/v1/messages", **asked)
    assert status == 200
    (block,) = anthropic.types.Message.model_validate(message).content
    assert block.type == "tool_use"
    assert (block.name, block.input, message["stop_reason"]) == ("read", {"path": "src/main.py"}, "tool_use")
    assert ask("/v1/messages/count_tokens", **asked)[1]["input_tokens"] == message["usage"]["input_tokens"]
    cut = ask("/v1/messages", **{**asked, "tools": [], "max_tokens": 2})[1]
    assert cut["stop_reason"] == "max_tokens"


def test_the_demo_answers_responses_with_a_function_call() -> None:
    asked: Json = {"model": "gpt-x", "input": PROMPT, "tools": [{"type": "function", **DECLARED, "parameters": SCHEMA}]}
    status, response = ask("/v1/responses", **asked)
    assert status == 200
    (item,) = openai.types.responses.Response.model_validate(response).output
    assert item.type == "function_call"
    assert (item.name, json.loads(item.arguments)) == ("read", {"path": "src/main.py"})
    assert ask("/v1/responses/input_tokens", **asked)[1]["input_tokens"] == response["usage"]["input_tokens"]
    custom = {**asked, "tools": [{"type": "custom", "name": "read"}]}
    assert ask("/v1/responses", **custom)[1]["output"][0]["type"] == "custom_tool_call"


def test_the_demo_answers_gemini_with_a_function_call() -> None:
    contents = [{"role": "user", "parts": [{"text": PROMPT}]}]
    asked: Json = {"contents": contents, "tools": [{"functionDeclarations": [{**DECLARED, "parameters": SCHEMA}]}]}
    status, response = ask("/v1beta/models/gemini-x:generateContent", **asked)
    assert status == 200
    assert response["modelVersion"] == "gemini-x"
    wanted = [{"functionCall": {"name": "read", "args": {"path": "src/main.py"}}}]
    assert response["candidates"][0]["content"]["parts"] == wanted
    assert join_gemini_chunks(ask("/v1beta/models/g:streamGenerateContent", **asked)[1])["parts"] == wanted
    counted = ask("/v1beta/models/g:countTokens", **asked)[1]["totalTokens"]
    assert counted == response["usageMetadata"]["promptTokenCount"]


@pytest.mark.parametrize(
    ("path", "key"),
    [("/v1/messages", "type"), ("/v1/responses", "error"), ("/v1beta/models/g:generateContent", "error")],
)
def test_a_body_that_is_not_understood_gets_an_error_in_its_form(path: str, key: str) -> None:
    status, error = ask(path, nothing=1)
    assert status == 400
    assert key in error
    assert error["error"]["message"]


def test_a_chain_is_refused_with_what_to_do() -> None:
    status, body = ask("/v1/responses", input="And then?", previous_response_id="resp_1")
    assert status == 400
    assert body["error"]["message"].startswith("The demo model keeps no history: send the whole conversation")
    assert body["error"]["message"].endswith("(the provider holds the history: previous_response_id).")
    assert body["error"]["type"] == "invalid_request_error"


def test_the_same_request_gives_the_same_bytes_and_a_known_prompt_is_cached() -> None:
    for path, body in (
        ("/v1/messages", {"messages": [{"role": "user", "content": PROMPT * 99}], "stream": True}),
        ("/v1/responses", {"input": PROMPT * 99, "stream": True}),
        ("/v1beta/models/g:streamGenerateContent?alt=sse", {"contents": [{"parts": [{"text": PROMPT * 99}]}]}),
    ):
        demo = DemoTransport()
        assert ask(path, **body) == ask(path, demo, **body)
        _, again = ask(path, demo, **body)
        lines = [line[6:] for line in again.splitlines() if line.startswith(b"data: ")]
        found = json.loads(lines[-2 if path == "/v1/messages" else -1])
        assert any(count > 0 for name, count in _list_numbers(found) if "cache" in name)


def _list_numbers(value: Any, name: str = "") -> list[tuple[str, float]]:
    if isinstance(value, dict):
        return [pair for key, one in value.items() for pair in _list_numbers(one, key)]
    return [(name, value)] if isinstance(value, int) else []


@pytest.mark.parametrize("stream", [False, True])
async def test_agents_of_each_form_work_on_it_through_the_proxy(stream: bool) -> None:
    async with run_proxy("demo") as proxy:
        for agent in (
            MessagesAgent(proxy, read, stream=stream),
            ResponsesAgent(proxy, read, stream=stream),
            GeminiAgent(proxy, read, stream="events" if stream else ""),
        ):
            assert "scripted demo model" in await agent.work("Use read on src/main.py")
            assert "read" in json.dumps(agent.answers[0] if not isinstance(agent, GeminiAgent) else agent.contents)
            assert len(agent.answers) == 2
        outcomes = await proxy.outcomes()
    assert {(status, fallback) for status, _, fallback in outcomes} == {("complete", None)}
