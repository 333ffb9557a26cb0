"""Claude Code in a loop of 25 steps, with nothing set but its base URL. It streams each answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.clients.clouds import BedrockModel, MantleModel, VertexModel, on
from tests.clients.loops import POLICIES, PROMPT, FileTool, Json, Run, check_client, make_messages_model
from tests.clients.node import find_path, install, make_environment, make_work, run_client
from tests.strict_messages import StrictMessages

pytestmark = [pytest.mark.clients, pytest.mark.slow]


VERTEX = {
    "CLAUDE_CODE_USE_VERTEX": "1", "CLAUDE_CODE_SKIP_VERTEX_AUTH": "1", "ANTHROPIC_VERTEX_PROJECT_ID": "team",
    "CLOUD_ML_REGION": "us-east5",
}  # fmt: skip
"""A gateway in front of Vertex AI has the credentials."""


FOUNDRY = {"CLAUDE_CODE_USE_FOUNDRY": "1", "ANTHROPIC_FOUNDRY_API_KEY": "any"}
MANTLE = {"CLAUDE_CODE_USE_MANTLE": "1", "AWS_BEARER_TOKEN_BEDROCK": "ABSK-any", "AWS_REGION": "us-east-1"}
PLATFORM = {
    "CLAUDE_CODE_USE_ANTHROPIC_AWS": "1", "ANTHROPIC_AWS_API_KEY": "any", "ANTHROPIC_AWS_WORKSPACE_ID": "wrkspc_1",
    "AWS_REGION": "us-east-1",
}  # fmt: skip
BEDROCK = {"CLAUDE_CODE_USE_BEDROCK": "1", "AWS_BEARER_TOKEN_BEDROCK": "ABSK-any", "AWS_REGION": "us-east-1"}


CLOUD_MODELS: dict[str, type[Any]] = {"vertex": VertexModel, "bedrock": BedrockModel, "mantle": MantleModel}


async def run_claude_code(base: str, _stream: bool, *, program: Path, folder: Path, cloud: str = "") -> Run:
    """One prompt in print mode. Its messages and its tools' results are what it prints."""
    place = {
        "": {"ANTHROPIC_BASE_URL": base, "ANTHROPIC_API_KEY": "sk-ant-any"},
        "vertex": {"ANTHROPIC_VERTEX_BASE_URL": f"{base}/v1", **VERTEX},
        "foundry": {"ANTHROPIC_FOUNDRY_BASE_URL": base, **FOUNDRY},
        "bedrock": {"ANTHROPIC_BEDROCK_BASE_URL": base, **BEDROCK},
        "mantle": {"ANTHROPIC_BEDROCK_MANTLE_BASE_URL": base, **MANTLE},
        "aws": {"ANTHROPIC_AWS_BASE_URL": base, **PLATFORM},
    }[cloud]
    environment = make_environment(
        folder / "home", CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1", DISABLE_AUTOUPDATER="1", **place
    )
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


@pytest.mark.parametrize("cloud", ["", "vertex", "foundry", "bedrock", "mantle", "aws"])
async def test_the_agent_works_as_without_the_proxy(cloud: str, tmp_path: Path) -> None:
    program = install() / "node_modules" / ".bin" / "claude"
    client = partial(run_claude_code, program=program, folder=tmp_path, cloud=cloud)
    make_model: Callable[[], StrictMessages] = partial(make_messages_model, "Bash", make_command)
    if cloud in CLOUD_MODELS:
        make_model = on(CLOUD_MODELS[cloud], make_model)
    await check_client(client, make_model, POLICIES, tmp_path, stream=True)
