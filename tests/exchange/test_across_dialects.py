"""One conversation under one session name, in which the client changes its dialect: tools, rounds and state go on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.dialect_agents import join_messages_events, join_responses_events
from tests.proxy_server import CHAT, RawAnswer, RunningProxy, run_proxy
from tests.raw_upstream import Connection, RawRequest, run_upstream
from tests.scripted_model import ScriptedModel, make_calls
from tests.strict_messages import StrictMessages
from tests.strict_responses import Ask, Say, StrictResponses

Json = dict[str, Any]

SYSTEM = "You are a careful engineer."
FACT = "The server of the archive listens on port 5433 since the old one was taken by the metrics."
PARAMETERS: Json = {"type": "object", "properties": {"path": {"type": "string"}}}
PATHS = {"completions": CHAT, "responses": "/v1/responses", "messages": "/v1/messages"}


def note(number: str) -> str:
    goal = f"Goal: reach step {number}\nContext: as before\nResolved: none\nTechnical Anchors: {number}.txt"
    return f"\n\n### STATE\n{goal}"


class Model:
    """An upstream of all three dialects, strict where there are rules."""

    def __init__(self) -> None:
        memo: Json = {"content": FACT, "tags": ["archive"]}
        block = {"type": "tool_use", "id": "toolu_recall", "name": "recall", "input": {"id": "third"}}
        self.chat = ScriptedModel(
            make_calls(("call_memo", "save_memo"), **memo),
            make_calls(("call_theirs", "read"), text="First." + note("1"), path="a.py"),
            make_calls(("call_late", "recall"), id="fourth"),
            "Fourth.",
        )
        self.responses = StrictResponses(
            [Ask("recall", {"id": "second"})], [Say("Second." + note("2")), Ask("read", {"path": "b.py"})]
        )
        self.messages = StrictMessages([block], [{"type": "text", "text": "Third." + note("3")}])

    async def __call__(self, request: RawRequest, connection: Connection) -> None:
        wire = self.chat if b"/chat/" in request.line else self.messages
        await (self.responses if b"/responses" in request.line else wire)(request, connection)


class Client:
    """Keeps its history in a form of its own, and writes it in the dialect of each request."""

    def __init__(self, stream: bool) -> None:
        self.stream = stream
        self.history: list[Json] = []
        self.heard: list[RawAnswer] = []

    def write(self, dialect: str) -> Json:
        rows = [one for row in self.history for one in getattr(self, f"write_{dialect}")(row)]
        tool: Json = {"name": "read", "description": "Read a file."}
        if dialect == "completions":
            tools = [{"type": "function", "function": {**tool, "parameters": PARAMETERS}}]
            return {"messages": [{"role": "system", "content": SYSTEM}, *rows], "tools": tools}
        if dialect == "responses":
            tools = [{"type": "function", **tool, "parameters": PARAMETERS}]
            return {"instructions": SYSTEM, "input": rows, "tools": tools, "store": False}
        merged: list[Json] = []
        for row in rows:
            if merged and merged[-1]["role"] == row["role"]:
                merged[-1]["content"] += row["content"]
            else:
                merged.append(row)
        return {
            "system": SYSTEM,
            "messages": merged,
            "max_tokens": 1000,
            "tools": [{**tool, "input_schema": PARAMETERS}],
        }

    def write_completions(self, row: Json) -> list[Json]:
        if row["kind"] == "call":
            function = {"name": "read", "arguments": json.dumps(row["arguments"])}
            call = {"id": row["id"], "type": "function", "function": function}
            return [{"role": "assistant", "content": row["text"], "tool_calls": [call]}]
        if row["kind"] == "result":
            return [{"role": "tool", "tool_call_id": row["id"], "content": row["text"]}]
        return [{"role": row["kind"], "content": row["text"]}]

    def write_responses(self, row: Json) -> list[Json]:
        if row["kind"] == "call":
            call = {"type": "function_call", "call_id": row["id"], "name": "read"}
            said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": row["text"]}]}
            return [said, {**call, "arguments": json.dumps(row["arguments"])}]
        if row["kind"] == "result":
            return [{"type": "function_call_output", "call_id": row["id"], "output": row["text"]}]
        return [{"type": "message", "role": row["kind"], "content": row["text"]}]

    def write_messages(self, row: Json) -> list[Json]:
        text = {"type": "text", "text": row["text"]}
        if row["kind"] == "call":
            call = {"type": "tool_use", "id": row["id"], "name": "read", "input": row["arguments"]}
            return [{"role": "assistant", "content": [text, call]}]
        if row["kind"] == "result":
            result = {"type": "tool_result", "tool_use_id": row["id"], "content": row["text"]}
            return [{"role": "user", "content": [result]}]
        return [{"role": row["kind"], "content": [text]}]

    async def ask(self, proxy: RunningProxy, dialect: str, prompt: str) -> None:
        """One request; its answer, and the result of a call in it, are kept."""
        self.history.append({"kind": "user", "text": prompt})
        body = {"model": "m", **self.write(dialect), "stream": self.stream}
        lines = (b"x-context-session: one", b"anthropic-version: 2023-06-01")
        heard = await proxy.post(body, *lines, path=PATHS[dialect])
        assert heard.status == 200, heard.body
        assert heard.session == "one"
        self.heard.append(heard)
        text, call = getattr(self, f"read_{dialect}")(heard)
        if call is None:
            self.history.append({"kind": "assistant", "text": text})
            return
        name, arguments = call
        self.history.append({"kind": "call", "text": text, "id": name, "arguments": arguments})
        self.history.append({"kind": "result", "text": f"the text of {arguments['path']}", "id": name})

    def read_completions(self, heard: RawAnswer) -> tuple[str, Any]:
        message = heard.message
        made = [(one["id"], json.loads(one["function"]["arguments"])) for one in message.get("tool_calls") or ()]
        return message["content"], made[0] if made else None

    def read_responses(self, heard: RawAnswer) -> tuple[str, Any]:
        output = (join_responses_events(heard) if self.stream else heard.json())["output"]
        text = "".join(part["text"] for one in output if one["type"] == "message" for part in one["content"])
        made = [(one["call_id"], json.loads(one["arguments"])) for one in output if one["type"] == "function_call"]
        return text, made[0] if made else None

    def read_messages(self, heard: RawAnswer) -> tuple[str, Any]:
        content = (join_messages_events(heard) if self.stream else heard.json())["content"]
        return "".join(one["text"] for one in content if one["type"] == "text"), None


@pytest.mark.parametrize("restarts", [False, True], ids=["one process", "restarts"])
@pytest.mark.parametrize("stream", [False, True], ids=["body", "stream"])
async def test_a_client_that_changes_its_dialect_continues_with_its_conversation(
    stream: bool, restarts: bool, tmp_path: Path
) -> None:
    model, client = Model(), Client(stream)
    tools: Json = {"offer": "first_request", "enabled": ["recall", "save_memo"]}
    tree: Json = {"policy": "rolling", "db": str(tmp_path / "a"), "tools": tools, "state": {"ask": "always"}}
    turns = [
        ("completions", "Look at a.py."),
        ("responses", "And b.py."),
        ("messages", "Which port has the server of the archive?"),
        ("completions", "Sum it up."),
    ]
    outcomes, branches, states = list[Any](), list[Any](), list[str]()
    async with run_upstream(model) as upstream:
        for begin, end in [(n, n + 1) for n in range(4)] if restarts else [(0, 4)]:
            async with run_proxy(upstream.port, **tree) as proxy:
                for dialect, prompt in turns[begin:end]:
                    await client.ask(proxy, dialect, prompt)
                outcomes = await proxy.outcomes()
                branches = await proxy.rows("SELECT session, kind FROM branches")
                states = [text.decode() for (text,) in await proxy.rows("SELECT text FROM states ORDER BY created_at")]
    assert [row["text"] for row in client.history if row["kind"] in ("assistant", "call")] == [
        "First.", "Second.", "Third.", "Fourth.",
    ]  # fmt: skip
    assert (model.responses.refused, model.messages.refusals) == ([], [])
    assert branches == [("one", "main")], "one conversation, one branch"
    assert {(status, fallback) for status, _, fallback in outcomes} == {("complete", None)}
    assert [text.partition("\n")[0] for text in states] == [f"Goal: reach step {n}" for n in (1, 2, 3)]
    for heard in client.heard:
        for word in (b"recall", b"save_memo", b"STATE", b"Technical Anchors"):
            assert word not in heard.body
    last = {"responses": model.responses.received[-1], "messages": model.messages.bodies[-1], "chat": model.chat.last}
    rounds = {"responses": ["call_memo"], "messages": ["call_memo"], "chat": ["call_memo", "toolu_recall", "call_late"]}
    for name, body in last.items():
        text = json.dumps(body)
        for call in rounds[name]:
            assert text.count(f'"{call}"') == 2, f"the round of {call} is in {name}, a call and its result"
        assert '"wire"' not in text
        assert name == "messages" or '"is_error"' not in text
        assert "recall" in text
        assert "save_memo" in text
    assert "Goal: reach step 1" in json.dumps(last["responses"])
    assert "Goal: reach step 2" in json.dumps(last["messages"])
    assert "Goal: reach step 3" in json.dumps(last["chat"])
    assert json.dumps(last["messages"]).count(FACT) >= 2, "the memo is quoted, beside the call that saved it"
