"""Gemini CLI in a loop of 25 steps, with nothing set but its base URL. It streams each answer."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.clients.loops import POLICIES, PROMPT, FileTool, Json, Run, check_client, make_gemini_model
from tests.clients.node import install, make_environment, make_work, run_client

pytestmark = [pytest.mark.clients, pytest.mark.slow]

SETTINGS: Json = {
    "security": {"auth": {"selectedType": "gemini-api-key"}},
    "general": {"disableAutoUpdate": True},
    "model": {"disableLoopDetection": True},
    "privacy": {"usageStatisticsEnabled": False},
}


async def run_gemini_cli(base: str, _stream: bool, *, program: Path, folder: Path) -> Run:
    """One prompt in print mode. Its messages and its tools' results are what it prints."""
    environment = make_environment(
        folder / "home", GOOGLE_GEMINI_BASE_URL=base, GEMINI_API_KEY="any", GEMINI_CLI_TRUST_WORKSPACE="true",
    )  # fmt: skip
    settings = folder / "home" / ".gemini" / "settings.json"
    settings.parent.mkdir(exist_ok=True)
    settings.write_text(json.dumps(SETTINGS))
    out, _ = await run_client(
        str(program), "-m", "gemini-3-pro-preview", "--yolo", "--output-format", "stream-json", "-p", PROMPT,
        folder=make_work(folder), environment=environment,
    )  # fmt: skip
    said: list[Any] = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    calls = [one["parameters"]["file_path"] for one in said if one["type"] == "tool_use"]
    shown = [
        {name: value for name, value in one.items() if name not in ("timestamp", "session_id", "tool_id", "stats")}
        for one in said
    ]
    texts = [one["content"] for one in said if one["type"] == "message" and one["role"] == "assistant"]
    final = "".join(texts).rpartition("Step 24.")[2]
    return Run(final, shown, FileTool(calls))


def make_arguments(n: int) -> Json:
    return {"file_path": f"file{n % 3}.py"}


async def test_the_agent_works_as_without_the_proxy(tmp_path: Path) -> None:
    program = install() / "node_modules" / ".bin" / "gemini"
    client = partial(run_gemini_cli, program=program, folder=tmp_path)
    make_model = partial(make_gemini_model, "read_file", make_arguments)
    await check_client(client, make_model, POLICIES, tmp_path, stream=True)
