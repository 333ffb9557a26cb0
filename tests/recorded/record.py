"""Writes the project's own recordings: an agent with tools at work with the package's scripted model.

    python -m tests.recorded.record        # from the project's root

Nothing of it is random, so that the files can be made again. The agent's files are made up: long enough, and with
enough that stands in one place only, that a prompt can lose something.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from proxy.upstream.demo import DemoTransport

FOLDER = Path(__file__).with_name("recordings")
SYSTEM = "You are a careful engineer. Look before you change anything, and say what you found."


def tool(name: str, description: str, **properties: str) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {key: {"type": "string", "description": text} for key, text in properties.items()},
        "required": list(properties),
    }
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


TOOLS = [
    tool("read_file", "Read a file.", path="The file's path"),
    tool("search_code", "Search all files for a text.", query="What is looked for"),
    tool("list_files", "List the files of a folder.", directory="The folder"),
]
AREAS = (
    "billing",
    "orders",
    "search",
    "users",
    "mail",
    "export",
    "cache",
    "audit",
    "limits",
    "tokens",
    "jobs",
    "hooks",
)


def name_of(*parts: object) -> str:
    """An identifier that stands nowhere else."""
    return hashlib.blake2b(repr(parts).encode(), digest_size=4).hexdigest()


def source(area: str) -> str:
    """A made-up source file."""
    lines = [f'"""How {area} are kept."""', ""]
    for n in range(9):
        ident = name_of(area, n)
        lines += [
            f"def {area}_{ident}(value: int, *, limit: int = {int(ident, 16) % 900}) -> int:",
            f'    """Part {n} of {area}; see ticket {area.upper()}-{int(ident[:4], 16)}."""',
            f"    if value > limit: raise ValueError('{area} {ident} is over its limit')",
            f"    return value * {n + 2} + {int(ident[4:], 16) % 77}",
            "",
        ]
    return "\n".join(lines)


def hits(area: str) -> str:
    """A made-up result of a search."""
    return "\n".join(
        f"src/{area}/part{n}.py:{int(name_of(area, n), 16) % 400}: {area}_{name_of(area, n)}(value)" for n in range(14)
    )


def result(call: dict[str, Any], area: str) -> str:
    """The result of a tool of the agent."""
    name = call["function"]["name"]
    if name == "read_file":
        return source(area)
    if name == "search_code":
        return hits(area)
    return "\n".join(f"src/{area}/part{n}.py" for n in range(12))


def prompts(areas: tuple[str, ...], *, parallel: bool) -> Iterator[tuple[str, str]]:
    """(what the user says, the area that it is about)."""
    for n, area in enumerate(areas):
        if parallel and n % 2:
            yield f'Use read_file and search_code on src/{area}/part0.py for "{area}_" please.', area
        else:
            yield f"Use read_file on src/{area}/part0.py, then search_code for `{area}_`, and compare.", area
        if n % 4 == 3:
            yield "Hello? Thanks so far.", area
        if n % 3 == 2:
            yield f"Use list_files on src/{area} and tell me what is new.", area


class Agent:
    """Asks the scripted model, runs what it calls, and keeps everything."""

    def __init__(self) -> None:
        self.demo = DemoTransport()
        self.messages: list[dict[str, Any]] = [{"role": "system", "content": SYSTEM}]

    def ask(self) -> dict[str, Any]:
        body = json.dumps({"model": "demo", "messages": self.messages, "tools": TOOLS}).encode()
        answer = self.demo.answer_request("POST", "/v1/chat/completions", body)
        message: dict[str, Any] = json.loads(b"".join(answer.body.parts))["choices"][0]["message"]
        kept = {k: v for k, v in message.items() if k != "refusal"}
        self.messages.append(kept)
        return kept

    def work(self, text: str, area: str) -> None:
        """One prompt, and all that it causes."""
        self.messages.append({"role": "user", "content": text})
        for _ in range(6):
            calls = self.ask().get("tool_calls") or ()
            for call in calls:
                self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": result(call, area)})
            if not calls:
                return


def conversations() -> Iterator[dict[str, Any]]:
    """All recordings, each with the name of its file."""
    plans: dict[str, tuple[tuple[str, ...], bool]] = {
        "one-after-the-other": (AREAS * 2, False),
        "side-by-side": (AREAS, True),
        "short": (AREAS[:2], False),
    }
    for name, (areas, parallel) in plans.items():
        agent = Agent()
        for text, area in prompts(areas, parallel=parallel):
            agent.work(text, area)
        yield {"id": name, "messages": agent.messages, "tools": TOOLS}


def write(folder: Path = FOLDER) -> None:
    folder.mkdir(exist_ok=True)
    for conversation in conversations():
        (folder / f"{conversation['id']}.jsonl").write_text(json.dumps(conversation) + "\n")


if __name__ == "__main__":
    write()
