"""One conversation in each format that people have: read back, it is the same."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from proxy.cli.main import app
from proxy.errors import ConfigError
from proxy.replay import formats
from proxy.replay.read import count_requests, read_conversations

Json = dict[str, Any]
TOOLS = [{"type": "function", "function": {"name": "read", "description": "Read.", "parameters": {"type": "object"}}}]


def call(n: int) -> Json:
    return {
        "id": f"call_{n}",
        "type": "function",
        "function": {"name": "read", "arguments": json.dumps({"path": f"f{n}"})},
    }


CHAT: list[Json] = [{"role": "system", "content": "Careful."}, {"role": "user", "content": "What is in the files?"}]
for number in range(1, 7):
    CHAT += [
        {"role": "assistant", "content": f"I read file {number}.", "tool_calls": [call(number)]},
        {"role": "tool", "tool_call_id": f"call_{number}", "content": f"line {number} of a file\n" * 40},
    ]
CHAT.append({"role": "assistant", "content": "Six files."})


def own() -> Any:
    return json.dumps({"id": "one", "messages": CHAT, "tools": TOOLS})


def requests() -> list[tuple[Json, Json]]:
    """(body, answer) of each request."""
    made = []
    for at, message in enumerate(CHAT):
        if message["role"] == "assistant":
            answer = {"choices": [{"index": 0, "message": {**message, "refusal": None}}]}
            made.append(({"model": "gpt-5", "messages": CHAT[:at], "tools": TOOLS}, answer))
    return made


def blocks(message: Json) -> Json:
    """A chat message as Anthropic has it."""
    if message["role"] == "tool":
        result = {"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": message["content"]}
        return {"role": "user", "content": [result]}
    if message["role"] != "assistant":
        return message
    made: list[Json] = [{"type": "thinking", "thinking": "hm", "signature": "s"}]
    made += [{"type": "text", "text": message["content"]}]
    made += [
        {"type": "tool_use", "id": c["id"], "name": "read", "input": json.loads(c["function"]["arguments"])}
        for c in message.get("tool_calls", ())
    ]
    return {"role": "assistant", "content": made}


def items(messages: list[Json]) -> list[Json]:
    """Chat messages as Responses has them."""
    made: list[Json] = []
    for m in messages:
        if m["role"] == "tool":
            made.append({"type": "function_call_output", "call_id": m["tool_call_id"], "output": m["content"]})
            continue
        kind = "output_text" if m["role"] == "assistant" else "input_text"
        made.append({"type": "message", "role": m["role"], "content": [{"type": kind, "text": m["content"]}]})
        made += [
            {"type": "function_call", "call_id": c["id"], "name": "read", "arguments": c["function"]["arguments"]}
            for c in m.get("tool_calls", ())
        ]
    return made


def lines(values: list[Any]) -> str:
    return "".join(json.dumps(one) + "\n" for one in values)


def claude_code() -> str:
    made: list[Json] = [{"type": "queue-operation", "sessionId": "s"}]
    for n, message in enumerate(CHAT[1:]):
        whole = blocks(message)
        parts = whole["content"] if isinstance(whole["content"], list) else [whole["content"]]
        for part in parts:  # a line for each block
            content = [part] if isinstance(part, dict) else part
            made.append({
                "type": message["role"], "sessionId": "s", "isSidechain": False, "uuid": f"u{n}",
                "message": {"id": f"msg_{n}", "role": whole["role"], "content": content},
            })  # fmt: skip
    return lines(made)


def codex() -> str:
    meta = {"type": "session_meta", "payload": {"id": "c", "base_instructions": {"text": "Careful."}}}
    rest = [{"type": "reasoning", "encrypted_content": "x"}, *items(CHAT[1:])]
    told = {"type": "event_msg", "payload": {"type": "task_started"}}
    return lines([meta, told, *({"type": "response_item", "payload": one} for one in rest)])


def langchain(message: Json) -> Json:
    names = {"system": "SystemMessage", "user": "HumanMessage", "assistant": "AIMessage", "tool": "ToolMessage"}
    fields = {"content": message["content"]}
    if "tool_calls" in message:
        fields["tool_calls"] = [
            {"id": c["id"], "name": "read", "args": json.loads(c["function"]["arguments"]), "type": "tool_call"}
            for c in message["tool_calls"]
        ]
    if "tool_call_id" in message:
        fields["tool_call_id"] = message["tool_call_id"]
    path = ["langchain", "schema", "messages", names[message["role"]]]
    return {"lc": 1, "type": "constructor", "id": path, "kwargs": fields}


def langsmith() -> str:
    runs: list[Json] = [{"id": "r0", "run_type": "chain", "inputs": {}, "outputs": {}}]
    for body, answer in requests():
        generation = {"generations": [[{"message": langchain(answer["choices"][0]["message"])}]]}
        params = {"invocation_params": {"tools": TOOLS}}
        messages = [[langchain(one) for one in body["messages"]]]
        runs.append({"run_type": "llm", "inputs": {"messages": messages}, "outputs": generation, "extra": params})
    return json.dumps(runs, indent=1)


def langfuse() -> str:
    made = [
        {"type": "GENERATION", "traceId": "t", "input": json.dumps(body), "output": answer["choices"][0]["message"]}
        for body, answer in requests()
    ]
    return json.dumps({"id": "t", "observations": [{"type": "SPAN", "input": {}}, *made]})


def sharegpt() -> str:
    turns: list[Json] = []
    for m in CHAT[1:]:
        if m["role"] == "tool":
            turns.append({"from": "observation", "value": m["content"]})
        else:
            turns.append({"from": {"user": "human", "assistant": "gpt"}[m["role"]], "value": m["content"]})
        for c in m.get("tool_calls", ()):
            value = json.dumps({"name": "read", "arguments": json.loads(c["function"]["arguments"])})
            turns.append({"from": "function_call", "value": value})
    return json.dumps([{"id": "g", "system": "Careful.", "tools": json.dumps(TOOLS), "conversations": turns}])


def har() -> str:
    entries: list[Json] = [{"request": {"method": "GET", "url": "https://x/"}, "response": {"content": {}}}]
    for n, (body, answer) in enumerate(requests()):
        text = json.dumps(answer)
        content: Json = {"mimeType": "application/json", "text": text}
        if n % 3 == 1:
            content = {"text": base64.b64encode(text.encode()).decode(), "encoding": "base64"}
        if n % 3 == 2:
            message = answer["choices"][0]["message"]
            delta = {"content": message["content"]}
            deltas = [delta, *({"tool_calls": [{"index": 0, **c}]} for c in message.get("tool_calls", ()))]
            content = {
                "text": "".join(f"data: {json.dumps({'choices': [{'delta': d}]})}\n\n" for d in deltas)
                + "data: [DONE]\n"
            }
        request = {"method": "POST", "url": "https://x/v1/chat/completions", "postData": {"text": json.dumps(body)}}
        entries.append({"request": request, "response": {"content": content}})
    return json.dumps({"log": {"version": "1.2", "entries": entries}})


def mini_swe_agent() -> str:
    messages = [{**one, "extra": {"timestamp": 1.0}} for one in CHAT]
    done = {"role": "exit", "content": "", "extra": {"exit_status": "Submitted"}}
    return json.dumps({"trajectory_format": "mini-swe-agent-1.1", "info": {}, "messages": [*messages, done]}, indent=2)


def batch() -> str:
    asked = [
        {"custom_id": f"r{n}", "method": "POST", "url": "/v1/chat/completions", "body": body}
        for n, (body, _) in enumerate(requests())
    ]
    answered = {"custom_id": "r6", "response": {"status_code": 200, "body": requests()[-1][1]}}
    return lines([*asked, answered])


def log() -> str:
    return lines([{"time": 1, "request": body, "response": answer} for body, answer in requests()])


def log_of_texts() -> str:
    return lines([{"request_body": json.dumps(body), "response_body": json.dumps(a)} for body, a in requests()])


def log_of_messages() -> str:
    function: Json = TOOLS[0]["function"]  # type: ignore[assignment]  # JSON
    tool = {"name": "read", "description": "Read.", "input_schema": function["parameters"]}
    made = []
    for body, answer in requests():
        asked = {"system": "Careful.", "tools": [tool], "messages": [blocks(m) for m in body["messages"][1:]]}
        made.append({"request": asked, "response": blocks(answer["choices"][0]["message"])})
    return lines(made)


def log_of_responses() -> str:
    function: Json = TOOLS[0]["function"]  # type: ignore[assignment]  # JSON
    made = []
    for body, answer in requests():
        tools = [{"type": "function", **function}]
        asked = {"instructions": "Careful.", "tools": tools, "input": items(body["messages"][1:])}
        made.append({"request": asked, "response": {"output": items([answer["choices"][0]["message"]])}})
    return lines(made)


FORMATS: dict[str, Callable[[], str]] = {
    "own": own,
    "array of conversations": lambda: json.dumps([json.loads(own())], indent=2),
    "array of messages": lambda: json.dumps(CHAT),
    "messages a line": lambda: lines(CHAT),
    "batch": batch,
    "log": log,
    "log of texts": log_of_texts,
    "log of Messages": log_of_messages,
    "log of Responses": log_of_responses,
    "Claude Code": claude_code,
    "Codex": codex,
    "mini-swe-agent": mini_swe_agent,
    "LangSmith": langsmith,
    "Langfuse": langfuse,
    "ShareGPT": sharegpt,
    "HAR": har,
}
WITHOUT_SYSTEM = {"Claude Code"}
"""Its session files do not hold the system prompt."""
WITHOUT_TOOLS = {"array of messages", "messages a line", "Claude Code", "Codex", "mini-swe-agent"}


def plain(message: Json) -> Json:
    """A message for comparison, without keys that say nothing."""
    return {key: value for key, value in message.items() if value not in (None, "", [])}


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gz"])
@pytest.mark.parametrize("name", FORMATS)
def test_each_format_gives_the_same_conversation(tmp_path: Path, name: str, packed: bool) -> None:
    file = tmp_path / "recording"
    text = FORMATS[name]().encode()
    file.write_bytes(gzip.compress(text) if packed else text)
    [found] = read_conversations(file)
    messages = [plain(json.loads(one)) for one in found.messages]
    wanted = [plain(one) for one in (CHAT[1:] if name in WITHOUT_SYSTEM else CHAT)]
    assert messages == wanted
    tools = json.loads(found.tools) if found.tools else []
    assert tools == ([] if name in WITHOUT_TOOLS else TOOLS)
    assert count_requests([file]) == sum(one["role"] == "assistant" for one in wanted)


def test_a_named_model_gives_dollars_and_every_whole_format_the_same(tmp_path: Path) -> None:
    told = []
    for name in ("own", "log", "HAR", "LangSmith"):
        file = tmp_path / "recording.json"
        file.write_text(FORMATS[name]())
        done = CliRunner().invoke(
            app, ["replay", str(file), "--model", "gpt-5", "--policy", "thrifty", "--jobs", "1"], env={"COLUMNS": "200"}
        )
        assert done.exit_code == 0, done.output
        told.append(" ".join(done.output.split()).rpartition("The prompts of")[2])
    assert told[0].startswith(" 7 requests,")
    assert "to gpt-5* cost $" in told[0]
    assert len(set(told)) == 1


def stamp(text: str, begin: str) -> str:
    """The lines of a session file with the times at which they were written, a second apart."""
    first = datetime.fromisoformat(begin)
    return lines([
        {**json.loads(line), "timestamp": (first + timedelta(seconds=n)).isoformat()}
        for n, line in enumerate(text.splitlines())
    ])  # fmt: skip


@pytest.mark.parametrize("name", ["Claude Code", "Codex"])
def test_session_files_have_the_times_of_their_messages(tmp_path: Path, name: str) -> None:
    file = tmp_path / "session.jsonl"
    file.write_text(stamp(FORMATS[name](), "2026-11-27T03:00:00+00:00"))
    [found] = read_conversations(file)
    assert len(found.times) == len(found.messages)
    assert list(found.times) == sorted(found.times)
    begin = datetime(2026, 11, 27, 3, tzinfo=UTC).timestamp()
    assert begin < found.times[0] < found.times[-1] < begin + 60


def test_times_that_go_back_stand_still_and_a_line_without_one_gives_none(tmp_path: Path) -> None:
    file = tmp_path / "session.jsonl"
    listed = stamp(claude_code(), "2026-11-27T03:00:00+00:00").splitlines()
    copied = json.loads(listed[-1]) | {"timestamp": "2026-11-26T00:00:00.000Z"}
    file.write_text("\n".join([*listed[:-1], json.dumps(copied)]))
    [found] = read_conversations(file)
    assert found.times[-1] == found.times[-2]
    bare = {key: value for key, value in copied.items() if key != "timestamp"}
    file.write_text("\n".join([*listed[:-1], json.dumps(bare)]))
    [found] = read_conversations(file)
    assert found.times == ()


def test_stdin_is_read_and_an_unknown_price_is_said() -> None:
    done = CliRunner().invoke(app, ["replay", "-", "--policy", "thrifty", "--jobs", "1"], input=own())
    assert done.exit_code == 0, done.output
    assert "1 conversation, 7 requests: stdin (1)" in done.output
    assert "Name the model with --model to see dollars." in " ".join(done.output.split())


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "this one is empty"),
        ("  \n\n", "this one is empty"),
        ("name,price\na,1\n", "sessions of Claude Code and Codex"),
        ('{"hello": "world"}', "mini-swe-agent"),
        ("[1, 2, 3]", "HAR"),
        ("[]", "an empty list"),
        ('{"log": {"entries": []}}', "nothing was said"),
        ('{"sessionId": "s", "message": {"role": "user", "content": ""}}', "nothing was said"),
    ],
)
def test_a_wrong_file_is_distinguished_from_an_empty_one(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "x.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match=told):
        list(read_conversations(file))


def test_a_broken_archive_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "x.gz"
    file.write_bytes(gzip.compress(own().encode())[:-20])
    with pytest.raises(ConfigError, match=r"a whole \.gz file"):
        list(read_conversations(file))


def test_conversations_that_go_apart_are_both_there(tmp_path: Path) -> None:
    other = [*CHAT[:4], {"role": "assistant", "content": "Another way."}]
    file = tmp_path / "log.jsonl"
    file.write_text(FORMATS["log"]() + lines([{"request": {"messages": other[:-1]}, "response": other[-1]}]))
    assert [len(one.messages) for one in read_conversations(file)] == [len(CHAT), len(other)]


def test_the_words_of_an_error_name_every_reader() -> None:
    for name in (
        "array",
        "batch",
        "Claude Code",
        "Codex",
        "mini-swe-agent",
        "LangSmith",
        "Langfuse",
        "ShareGPT",
        "HAR",
        ".gz",
    ):
        assert name in formats.READABLE
