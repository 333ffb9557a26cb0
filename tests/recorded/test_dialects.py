"""Recorded conversations in four wire formats through the running proxy: the same edits and tokens in each."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.proxy_server import run_proxy
from tests.raw_upstream import Connection, RawRequest, run_upstream
from tests.scripted_model import send_reply
from tests.strict_gemini import refuse as refuse_gemini
from tests.strict_messages import refuse
from tests.strict_responses import check_item, check_pairs

pytestmark = pytest.mark.slow

Json = dict[str, Any]
MOST_MESSAGES = 100
MODEL = "gpt-5.2"
FILES = ("livemcpbench", "mini-swe-agent", "swe-agent", "tau-bench")
TOOLS: Json = {"description": "A tool of the agent's.", "parameters": {"type": "object"}}


def list_calls(message: Json) -> list[Json]:
    return message.get("tool_calls") or []


def read_history(recorded: Sequence[Json]) -> list[Json]:
    """The messages with ids of calls that all three formats take: recordings use some of them twice."""
    made: list[Json] = []
    named: dict[str, str] = {}
    for message in recorded:
        one = {key: message[key] for key in ("role", "content") if key in message}
        calls: list[Json] = []
        for call in list_calls(message):
            named[call["id"]] = f"call_{len(made)}_{len(calls)}"
            arguments = json.dumps(json.loads(call["function"]["arguments"]))
            function = {"name": call["function"]["name"], "arguments": arguments}
            calls.append({"id": named[call["id"]], "type": "function", "function": function})
        more = {"tool_call_id": named[message["tool_call_id"]]} if "tool_call_id" in message else {}
        made.append(one | more | ({"tool_calls": calls} if calls else {}))
    return made


def to_blocks(message: Json) -> list[Json]:
    """An assistant message as blocks of Messages."""
    made: list[Json] = [{"type": "text", "text": message["content"]}] if message.get("content") else []
    for call in list_calls(message):
        called = json.loads(call["function"]["arguments"])
        made.append({"type": "tool_use", "id": call["id"], "name": call["function"]["name"], "input": called})
    return made


def to_items(message: Json) -> list[Json]:
    """An assistant message as items of Responses."""
    made: list[Json] = []
    if message.get("content"):
        made.append(
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": message["content"]}]}
        )
    for call in list_calls(message):
        named = {"name": call["function"]["name"], "arguments": call["function"]["arguments"]}
        made.append({"type": "function_call", "call_id": call["id"], **named})
    return made


def make_chat(history: Sequence[Json], tools: Sequence[str]) -> Json:
    named = [{"type": "function", "function": {"name": name, **TOOLS}} for name in tools]
    return {"model": MODEL, "messages": list(history), "tools": named}


def make_messages(history: Sequence[Json], tools: Sequence[str]) -> Json:
    made: list[Json] = []
    for message in history[1:]:
        role = "assistant" if message["role"] == "assistant" else "user"
        if role == "assistant":
            blocks = to_blocks(message)
        elif message["role"] == "tool":
            blocks = [{"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": message["content"]}]
        else:
            blocks = [{"type": "text", "text": message["content"]}]
        if made and made[-1]["role"] == role == "user" and message["role"] == "tool":
            made[-1]["content"] += blocks
        else:
            made.append({"role": role, "content": blocks})
    named = [{"name": name, "description": TOOLS["description"], "input_schema": TOOLS["parameters"]} for name in tools]
    return {"model": MODEL, "max_tokens": 4096, "system": history[0]["content"], "messages": made, "tools": named}


def make_responses(history: Sequence[Json], tools: Sequence[str]) -> Json:
    made: list[Json] = []
    for message in history[1:]:
        if message["role"] == "assistant":
            made += to_items(message)
        elif message["role"] == "tool":
            found = {"call_id": message["tool_call_id"], "output": message["content"]}
            made.append({"type": "function_call_output", **found})
        else:
            content = [{"type": "input_text", "text": message["content"]}]
            made.append({"type": "message", "role": "user", "content": content})
    named = [{"type": "function", "name": name, **TOOLS} for name in tools]
    return {"model": MODEL, "instructions": history[0]["content"], "input": made, "tools": named, "store": False}


def to_parts(message: Json) -> list[Json]:
    """An assistant message as parts of Gemini, with the ids that the other formats have."""
    made: list[Json] = [{"text": message["content"]}] if message.get("content") else []
    for call in list_calls(message):
        named = {"id": call["id"], "name": call["function"]["name"]}
        made.append({"functionCall": {**named, "args": json.loads(call["function"]["arguments"])}})
    return made


def make_gemini(history: Sequence[Json], tools: Sequence[str]) -> Json:
    made: list[Json] = []
    named = {call["id"]: call["function"]["name"] for message in history for call in list_calls(message)}
    for message in history[1:]:
        if message["role"] == "assistant":
            made.append({"role": "model", "parts": to_parts(message)})
        elif message["role"] == "tool":
            found = {"id": message["tool_call_id"], "name": named[message["tool_call_id"]]}
            parts = [{"functionResponse": {**found, "response": {"output": message["content"]}}}]
            if made[-1]["role"] == "user":
                made[-1]["parts"] += parts
            else:
                made.append({"role": "user", "parts": parts})
        else:
            made.append({"role": "user", "parts": [{"text": message["content"]}]})
    declared = [
        {"name": name, "description": TOOLS["description"], "parametersJsonSchema": TOOLS["parameters"]}
        for name in tools
    ]
    system = {"parts": [{"text": history[0]["content"]}]}
    return {"systemInstruction": system, "contents": made, "tools": [{"functionDeclarations": declared}]}


def answer_chat(message: Json) -> Json:
    reason = "tool_calls" if list_calls(message) else "stop"
    return {"id": "x", "model": "m", "choices": [{"index": 0, "message": message, "finish_reason": reason}]}


def answer_messages(message: Json) -> Json:
    reason = "tool_use" if list_calls(message) else "end_turn"
    head = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m"}
    return {**head, "content": to_blocks(message), "stop_reason": reason, "usage": {}}


def answer_responses(message: Json) -> Json:
    return {"id": "resp_1", "object": "response", "status": "completed", "model": "m", "output": to_items(message)}


def answer_gemini(message: Json) -> Json:
    content = {"role": "model", "parts": to_parts(message)}
    return {"candidates": [{"content": content, "finishReason": "STOP"}], "responseId": "r", "modelVersion": "m"}


def judge_gemini(body: Json) -> list[str]:
    return list(refuse_gemini(body, signs=False))


def judge_messages(body: Json) -> list[str]:
    return list(refuse(body))


def judge_responses(body: Json) -> list[str]:
    for n, item in enumerate(body["input"]):
        check_item(n, item, len(body["input"]))
    check_pairs(body["input"])
    return []


Form = tuple[str, Callable[..., Json], Callable[[Json], Json], Callable[[Json], list[str]]]
FORMS: dict[str, Form] = {
    "completions": ("/v1/chat/completions", make_chat, answer_chat, lambda _: []),
    "messages": ("/v1/messages", make_messages, answer_messages, judge_messages),
    "responses": ("/v1/responses", make_responses, answer_responses, judge_responses),
    "gemini": (f"/v1beta/models/{MODEL}:generateContent", make_gemini, answer_gemini, judge_gemini),
}


async def play(form: Form, history: list[Json], policy: str) -> tuple[list[Any], list[int], list[list[str]]]:
    """(the edits, the tokens that each request saved, the answers of the model in the last request)."""
    path, make, answer, judge = form
    tools = sorted({call["function"]["name"] for message in history for call in list_calls(message)})
    bodies: list[Json] = []
    turns = [n for n, message in enumerate(history) if message["role"] == "assistant" and n > 1]

    async def upstream_model(request: RawRequest, connection: Connection) -> None:
        bodies.append(json.loads(request.body))
        made = json.dumps(answer(history[turns[len(bodies) - 1]])).encode()
        await send_reply(connection, b"200 OK", made, b"content-type: application/json")

    saved = []
    async with run_upstream(upstream_model) as upstream, run_proxy(upstream.port, policy=policy) as proxy:
        for n in turns:
            lines = (b"x-context-session: a", b"x-api-key: k", b"anthropic-version: 2023-06-01")
            found = await proxy.post(make(history[:n], tools), *lines, path=path)
            assert found.status == 200, found.body
            assert found.header("x-context-fallback") is None
            before, after = map(int, (found.header("x-context-tokens") or "").split(","))
            saved.append(before - after)
        edits = await proxy.rows("SELECT stage, action, reason, text, before, after FROM edits ORDER BY number")
    for body in bodies:
        assert judge(body) == []
    return edits, saved, [find_answers(form[0], bodies[-1])]


def find_answers(path: str, body: Json) -> list[str]:
    """The texts and calls of the model, as the upstream gets them back."""
    made = []
    for one in body.get("contents") or ():
        if one["role"] == "model":
            made += [part["text"] for part in one["parts"] if "text" in part]
            made += [part["functionCall"]["id"] for part in one["parts"] if "functionCall" in part]
    for one in body.get("messages") or body.get("input") or ():
        if one.get("role") == "assistant" or one.get("type") == "function_call":
            blocks = one.get("content")
            parts = blocks if isinstance(blocks, list) else [{"text": blocks}] if blocks else []
            made += [part["text"] for part in parts if part.get("text")]
            made += [part["id"] for part in parts if part.get("type") == "tool_use"]
            made += [call["id"] for call in one.get("tool_calls") or ()]
            made += [one["call_id"]] if "call_id" in one else []
    return made


@pytest.mark.parametrize("policy", ["thrifty", "rolling"])
@pytest.mark.parametrize("name", FILES)
async def test_a_conversation_gets_the_same_edits_in_every_wire_format(name: str, policy: str, shared: Path) -> None:
    with (shared / "replay" / "open" / f"{name}.jsonl").open() as lines:
        found = [json.loads(line)["messages"] for line in lines]
    recorded = max((one for one in found if len(one) <= MOST_MESSAGES), key=lambda one: len(str(one)))
    history = read_history(recorded)
    played = {form: await play(FORMS[form], history, policy) for form in FORMS}
    edits, saved, answers = played["completions"]
    for form in ("messages", "responses", "gemini"):
        assert [row[:4] for row in played[form][0]] == [row[:4] for row in edits], form
        assert played[form][2] == answers, form
        # The proxy's tools are counted with the client's, which are written otherwise: a token may be rounded away.
        assert played[form][1] == pytest.approx(saved, abs=1), form
    if policy == "rolling" or name == "livemcpbench":  # `thrifty` finds nothing that pays in the others
        assert edits
        assert saved[-1] > 0


async def test_a_conversation_may_change_its_wire_format() -> None:
    text = "\n".join(f"{n}\tdef function_{n}(argument): return argument + {n}" for n in range(1, 260))
    history: list[Json] = [{"role": "system", "content": "Be careful."}, {"role": "user", "content": "Find the fault."}]
    for n in range(8):
        function = {"name": "read", "arguments": json.dumps({"path": f"a{n % 2}.py"})}
        call = {"id": f"call_{n}", "type": "function", "function": function}
        history.append({"role": "assistant", "content": f"Step {n}.", "tool_calls": [call]})
        history.append({"role": "tool", "tool_call_id": f"call_{n}", "content": text})
    history.append({"role": "assistant", "content": "Done."})
    turns = [n for n, message in enumerate(history) if message["role"] == "assistant"]
    forms = list(FORMS.values())
    sizes: list[int] = []

    async def upstream_model(request: RawRequest, connection: Connection) -> None:
        n = turns[len(sizes)]
        sizes.append(len(request.body))
        made = json.dumps(forms[len(sizes) % len(forms)][2](history[n])).encode()
        await send_reply(connection, b"200 OK", made, b"content-type: application/json")

    async with run_upstream(upstream_model) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        for k, n in enumerate(turns, 1):
            path, make, _, _ = forms[k % len(forms)]
            lines = (b"x-context-session: a", b"x-api-key: k", b"anthropic-version: 2023-06-01")
            body = make(history[:n], ["read"])
            found = await proxy.post(body, *lines, path=path)
            assert found.header("x-context-fallback") is None
            before, after = map(int, (found.header("x-context-tokens") or "").split(","))
            if k > 3:  # each format repeats the edits that were made in another
                assert before - after > 3000
                assert sizes[-1] < len(json.dumps(body)) - 10_000
        assert await proxy.rows("SELECT count(DISTINCT branch), count(*) FROM exchanges") == [(1, len(turns))]
        assert await proxy.rows("SELECT count(*) FROM messages") == [(len(history) - 1,)]
