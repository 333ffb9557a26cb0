"""opencode in a loop of 25 steps on Messages and on Responses, by the AI SDK's providers. It streams each answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.clients.loops import (
    PROMPT,
    FileTool,
    Json,
    Run,
    check_client,
    make_messages_model,
    make_responses_model,
)
from tests.clients.node import find_path, install, make_environment, make_work, run_client
from tests.raw_upstream import Connection, RawRequest
from tests.strict_messages import StrictMessages
from tests.strict_responses import StrictResponses, Think

pytestmark = [pytest.mark.clients, pytest.mark.slow]

MODELS = {"anthropic": "claude-opus-4-5", "openai": "gpt-5.5"}


class Titled(StrictMessages):
    """A model that also names the conversation: opencode asks for a title, without tools, beside its first request."""

    def __init__(self, *answers: Any) -> None:
        super().__init__(*answers)
        self._titles = StrictMessages("A title.")
        self._titles.refusals = self.refusals

    async def __call__(self, request: RawRequest, connection: Connection) -> None:
        await (
            super().__call__(request, connection) if b'"tools"' in request.body else self._titles(request, connection)
        )


class TitledResponses(StrictResponses):
    """The same on Responses."""

    def __init__(self, *answers: Any) -> None:
        super().__init__(*answers)
        self._titles = StrictResponses("A title.")
        self._titles.refused = self.refused

    async def __call__(self, request: RawRequest, connection: Connection) -> None:
        await (
            super().__call__(request, connection) if b'"tools"' in request.body else self._titles(request, connection)
        )


def make_model(provider: str, *, thinks: bool) -> Titled | TitledResponses:
    """A model of the provider. opencode does not ask it to think. One that does so unasked is known by its first answer
    alone, and a literal policy has then changed the prompt behind that answer."""
    if provider == "anthropic":
        blocks: Any = make_messages_model("bash", make_command).answers
        return Titled(*[[block for block in one if thinks or block["type"] != "thinking"] for one in blocks])
    pieces: Any = make_responses_model("bash", make_command).answers
    return TitledResponses(*[[piece for piece in one if thinks or not isinstance(piece, Think)] for one in pieces])


async def run_opencode(base: str, _stream: bool, *, program: Path, folder: Path, provider: str) -> Run:
    """One prompt. Its parts are what it prints, without names and times."""
    options = {"baseURL": f"{base}/v1", "apiKey": "sk-any"}
    model = MODELS[provider]
    models = {model: {"name": "m", "tool_call": True, "limit": {"context": 200_000, "output": 32_000}}}
    config: Json = {
        "model": f"{provider}/{model}", "small_model": f"{provider}/{model}", "autoupdate": False, "share": "disabled",
        "permission": {"bash": "allow"}, "provider": {provider: {"options": options, "models": models}},
    }  # fmt: skip
    work = make_work(folder)
    (work / "opencode.json").write_text(json.dumps(config))
    environment = make_environment(
        folder / "home", OPENCODE_DISABLE_AUTOUPDATE="1", OPENCODE_DISABLE_MODELS_FETCH="1",
        OPENCODE_DISABLE_LSP_DOWNLOAD="1", OPENCODE_DISABLE_DEFAULT_PLUGINS="1",
    )  # fmt: skip
    out, _ = await run_client(str(program), "run", "--format", "json", PROMPT, folder=work, environment=environment)
    parts: list[Json] = [
        one["part"] for one in map(json.loads, out.splitlines()) if one["type"] in ("text", "tool_use")
    ]
    calls = [find_path(one["state"]["input"]["command"]) for one in parts if one["type"] == "tool"]
    told = [
        {"text": one["text"]} if one["type"] == "text" else {name: one["state"][name] for name in ("input", "output")}
        for one in parts
    ]
    return Run(parts[-1]["text"], told, FileTool(calls))


def make_command(n: int) -> Json:
    return {"command": f"cat file{n % 3}.py", "description": "Print a file"}


@pytest.mark.parametrize("policies", [("thrifty", "observe"), ("rolling",)], ids=["bound", "rolling"])
@pytest.mark.parametrize("provider", MODELS)
async def test_the_agent_works_as_without_the_proxy(provider: str, policies: Sequence[str], tmp_path: Path) -> None:
    program = install() / "node_modules" / "opencode-linux-x64" / "bin" / "opencode"
    if not program.exists():
        pytest.skip("opencode's package is for Linux on x64")
    client = partial(run_opencode, program=program, folder=tmp_path, provider=provider)
    make = partial(make_model, provider, thinks="rolling" not in policies)
    await check_client(client, make, policies, tmp_path, stream=True, is_repeatable=False)
