"""Codex in a loop of 25 steps, over WebSocket with nothing set but its base URL, and over HTTP. It always streams."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from tests.clients.loops import POLICIES, PROMPT, FileTool, Json, Run, check_client, make_responses_model
from tests.clients.node import find_path, install, make_environment, make_work, run_client

pytestmark = [pytest.mark.clients, pytest.mark.slow]

MODEL = "gpt-6.1-sol"
"""A model that this Codex knows."""


BASE_URL = 'openai_base_url = "{base}/v1"'
"""Codex tries WebSocket first."""
PROVIDER = (
    'model_provider = "own"\n[model_providers.own]\nname = "own"\nbase_url = "{base}/v1"\nwire_api = "responses"\n'
    'env_key = "CODEX_API_KEY"'
)
"""Codex uses HTTP."""


async def run_codex(
    base: str, _stream: bool, *, program: Path, folder: Path, errors: list[list[str]], config: str = BASE_URL
) -> Run:
    """One prompt. Its messages and commands are what it prints; the errors that it logs are put on a list."""
    home = folder / "home"
    environment = make_environment(home, CODEX_API_KEY="sk-any", CODEX_HOME=str(home / ".codex"))
    (home / ".codex").mkdir(exist_ok=True)
    (home / ".codex" / "config.toml").write_text(config.format(base=base) + "\n")
    out, logged = await run_client(
        str(program), "exec", "--json", "--skip-git-repo-check", "-s", "danger-full-access", "-m", MODEL, PROMPT,
        folder=make_work(folder), environment=environment,
    )  # fmt: skip
    errors.append([line for line in logged.splitlines() if "ERROR" in line])
    said = [json.loads(line) for line in out.splitlines()]
    assert said[-1]["type"] == "turn.completed", said[-1]
    items = [one["item"] for one in said if one["type"] == "item.completed"]
    assert all(item["type"] != "error" for item in items), items
    calls = [find_path(item["command"]) for item in items if item["type"] == "command_execution"]
    return Run(items[-1]["text"], items, FileTool(calls))


def make_command(n: int) -> Json:
    return {"cmd": f"cat file{n % 3}.py"}


@pytest.mark.parametrize("config", [BASE_URL, PROVIDER], ids=["websocket", "http"])
async def test_the_agent_works_as_without_the_proxy_and_shows_no_error(config: str, tmp_path: Path) -> None:
    program = install() / "node_modules" / ".bin" / "codex"
    errors: list[list[str]] = []
    client = partial(run_codex, program=program, folder=tmp_path, errors=errors, config=config)
    make_model = partial(make_responses_model, "exec_command", make_command)
    await check_client(client, make_model, POLICIES, tmp_path, stream=True, is_repeatable=False)
    assert not any(errors[1:]), "no red line in the runs through the proxy, which follow the one without it"
