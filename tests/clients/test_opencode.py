"""opencode in a loop of 25 steps on Messages, by the AI SDK's provider of Anthropic. It streams each answer."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from tests.clients.loops import POLICIES, PROMPT, Desk, Json, Run, check_client, make_messages_model
from tests.clients.node import find_path, install, make_environment, make_work, run_client
from tests.faulty import Connection, Request
from tests.strict_messages import StrictMessages

pytestmark = [pytest.mark.clients, pytest.mark.slow]

MODEL = "claude-opus-4-5"


class Titled(StrictMessages):
    """A model that also names the conversation: opencode asks for a title, without tools, beside its first request.

    opencode does not ask this model to think. A model that does so unasked is known by its first answer alone, and a
    literal policy has then changed the prompt behind that answer.
    """

    def __init__(self, model: StrictMessages, *, thinks: bool) -> None:
        answers = [one for one in model.answers if isinstance(one, list)]
        super().__init__(*[[block for block in one if thinks or block["type"] != "thinking"] for one in answers])
        self._titles = StrictMessages("A title.")
        self._titles.refusals = self.refusals

    async def __call__(self, request: Request, there: Connection) -> None:
        await (super().__call__(request, there) if b'"tools"' in request.body else self._titles(request, there))


async def run_opencode(base: str, _stream: bool, *, program: Path, folder: Path) -> Run:
    """One prompt. Its parts are what it prints, without names and times."""
    options = {"baseURL": f"{base}/v1", "apiKey": "sk-any"}
    models = {MODEL: {"name": "m", "tool_call": True, "limit": {"context": 200_000, "output": 32_000}}}
    config: Json = {
        "model": f"anthropic/{MODEL}", "small_model": f"anthropic/{MODEL}", "autoupdate": False, "share": "disabled",
        "permission": {"bash": "allow"}, "provider": {"anthropic": {"options": options, "models": models}},
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
    return Run(parts[-1]["text"], told, Desk(calls))


def make_command(n: int) -> Json:
    return {"command": f"cat file{n % 3}.py", "description": "Print a file"}


@pytest.mark.parametrize("policy", POLICIES)
async def test_it_works_as_without_the_proxy(policy: str, tmp_path: Path) -> None:
    program = install() / "node_modules" / "opencode-linux-x64" / "bin" / "opencode"
    if not program.exists():
        pytest.skip("opencode's package is for Linux on x64")
    client = partial(run_opencode, program=program, folder=tmp_path)

    def make_model() -> Titled:
        return Titled(make_messages_model("bash", make_command), thinks=policy != "rolling")

    await check_client(client, make_model, policy, tmp_path, stream=True, is_repeatable=False)
