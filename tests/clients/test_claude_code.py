"""Claude Code in a loop of 25 steps, with nothing set but its base URL. It streams each answer."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.clients.loops import POLICIES, PROMPT, FileTool, Json, Run, check_client, make_messages_model
from tests.clients.node import find_path, install, make_environment, make_work, run_client

pytestmark = [pytest.mark.clients, pytest.mark.slow]


async def run_claude_code(base: str, _stream: bool, *, program: Path, folder: Path) -> Run:
    """One prompt in print mode. Its messages and its tools' results are what it prints."""
    environment = make_environment(
        folder / "home", ANTHROPIC_BASE_URL=base, ANTHROPIC_API_KEY="sk-ant-any",
        CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1", DISABLE_AUTOUPDATER="1",
    )  # fmt: skip
    out, _ = await run_client(
        str(program), "-p", PROMPT, "--output-format", "stream-json", "--verbose", "--allowedTools", "Bash",
        "--model", "claude-opus-5-5", folder=make_work(folder), environment=environment,
    )  # fmt: skip
    said = [json.loads(line) for line in out.splitlines()]
    blocks: list[Any] = [
        block for one in said if one["type"] in ("assistant", "user") for block in one["message"]["content"]
    ]
    calls = [find_path(block["input"]["command"]) for block in blocks if block["type"] == "tool_use"]
    assert said[-1]["type"] == "result"
    assert said[-1]["subtype"] == "success", said[-1]
    return Run(said[-1]["result"], blocks, FileTool(calls))


def make_command(n: int) -> Json:
    return {"command": f"cat file{n % 3}.py", "description": "Print a file"}


async def test_the_agent_works_as_without_the_proxy(tmp_path: Path) -> None:
    program = install() / "node_modules" / ".bin" / "claude"
    client = partial(run_claude_code, program=program, folder=tmp_path)
    make_model = partial(make_messages_model, "Bash", make_command)
    await check_client(client, make_model, POLICIES, tmp_path, stream=True)
