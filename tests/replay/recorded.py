"""Recorded conversations for tests, made by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from proxy.chat.message import Message
from proxy.dialects.completions.request import read_message
from proxy.replay.read import RecordedConversation

Said = dict[str, Any]


def system(text: str) -> Said:
    return {"role": "system", "content": text}


def user(text: str) -> Said:
    return {"role": "user", "content": text}


def assistant(text: str) -> Said:
    return {"role": "assistant", "content": text}


def assistant_call(number: int, name: str = "read", **arguments: Any) -> Said:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": f"c{number}", "type": "function", "function": function}],
    }


def tool_result(number: int, text: str) -> Said:
    return {"role": "tool", "tool_call_id": f"c{number}", "content": text}


def messages(*said: Said) -> tuple[Message, ...]:
    return tuple(read_message(json.dumps(one).encode()) for one in said)


def make_conversation(*said: Said, source: str = "runs.jsonl", **more: Any) -> RecordedConversation:
    return RecordedConversation("one", source, tuple(json.dumps(one).encode() for one in said), **more)


def make_line(*said: Said, **more: Any) -> str:
    return json.dumps({"id": "one", "messages": said, **more})


def make_run(steps: int = 30, *, length: int = 4000, name: str = "a") -> list[Said]:
    """An agent that reads one file after the other and goes back to the first at the end."""
    found = [system("You fix things."), user("Fix the build.")]
    for n in range(steps):
        found.append(assistant_call(n, path=f"src/{name}{n}.py"))
        code = f"def {name}_{n}_is_called_by_everybody():\n    return {n}\n"
        found.append(tool_result(n, f"src/{name}{n}.py\n{code}" + "x = 1 + 2 + 3 + 4\n" * (length // 18)))
    found.append(
        assistant_call(steps, "edit", path=f"src/{name}0.py", old=f"def {name}_0_is_called_by_everybody():", new="pass")
    )
    return [*found, tool_result(steps, "done"), assistant("It is fixed.")]


def write_runs(file: Path, *conversations: list[Said]) -> Path:
    file.write_text("".join(make_line(*said) + "\n" for said in conversations))
    return file
