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


def says(text: str) -> Said:
    return {"role": "assistant", "content": text}


def calls(number: int, name: str = "read", **arguments: Any) -> Said:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": f"c{number}", "type": "function", "function": function}],
    }


def brings(number: int, text: str) -> Said:
    return {"role": "tool", "tool_call_id": f"c{number}", "content": text}


def messages(*said: Said) -> tuple[Message, ...]:
    return tuple(read_message(json.dumps(one).encode()) for one in said)


def conversation(*said: Said, source: str = "runs.jsonl", **more: Any) -> RecordedConversation:
    return RecordedConversation("one", source, tuple(json.dumps(one).encode() for one in said), **more)


def line(*said: Said, **more: Any) -> str:
    return json.dumps({"id": "one", "messages": said, **more})


def work(steps: int = 30, *, length: int = 4000, name: str = "a") -> list[Said]:
    """An agent that reads one file after the other and goes back to the first at the end."""
    found = [system("You fix things."), user("Fix the build.")]
    for n in range(steps):
        found.append(calls(n, path=f"src/{name}{n}.py"))
        code = f"def {name}_{n}_is_called_by_everybody():\n    return {n}\n"
        found.append(brings(n, f"src/{name}{n}.py\n{code}" + "x = 1 + 2 + 3 + 4\n" * (length // 18)))
    found.append(
        calls(steps, "edit", path=f"src/{name}0.py", old=f"def {name}_0_is_called_by_everybody():", new="pass")
    )
    return [*found, brings(steps, "done"), says("It is fixed.")]


def write(file: Path, *conversations: list[Said]) -> Path:
    file.write_text("".join(line(*said) + "\n" for said in conversations))
    return file
