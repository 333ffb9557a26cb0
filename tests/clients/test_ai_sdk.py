"""The AI SDK in loops of 25 steps: `openai()`, which is Responses, and `anthropic()`."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path

import pytest

from tests.clients.loops import (
    POLICIES,
    PROMPT,
    FileTool,
    Json,
    Run,
    check_client,
    make_messages_model,
    make_responses_model,
)
from tests.clients.node import LOCKED, install, make_environment, make_work, run_client

pytestmark = [pytest.mark.clients, pytest.mark.slow]

ENCRYPTED: Json = {"openai": {"store": False, "include": ["reasoning.encrypted_content"]}}
"""Options with which each request has the whole history. By default messages are references to what OpenAI stores."""
THINKING: Json = {"anthropic": {"thinking": {"type": "adaptive"}}}


async def run_ai_sdk(base: str, stream: bool, *, folder: Path, provider: str, model: str, options: Json) -> Run:
    packages = install()
    script = shutil.copy(LOCKED / "loop.mjs", packages / "loop.mjs")
    asked = {
        "base": f"{base}/v1", "stream": stream, "provider": provider, "model": model, "options": options,
        "prompt": PROMPT,
    }  # fmt: skip
    out, _ = await run_client(
        "node", str(script), json.dumps(asked), folder=make_work(folder), environment=make_environment(folder / "home")
    )
    said = json.loads(out)
    return Run(said["final"], said["messages"], FileTool(said["calls"]))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("options", [{}, ENCRYPTED], ids=["stored", "whole"])
async def test_openai_works_as_without_the_proxy(options: Json, stream: bool, tmp_path: Path) -> None:
    client = partial(run_ai_sdk, folder=tmp_path, provider="openai", model="gpt-5.5", options=options)
    await check_client(client, make_responses_model, POLICIES, tmp_path, stream=stream, is_managed=options is ENCRYPTED)


@pytest.mark.parametrize("stream", [False, True])
async def test_references_to_stored_items_are_managed_where_chains_are_taken_over(stream: bool, tmp_path: Path) -> None:
    client = partial(run_ai_sdk, folder=tmp_path, provider="openai", model="gpt-5.5", options={})
    await check_client(client, make_responses_model, "thrifty", tmp_path, stream=stream, responses={"takeover": True})


@pytest.mark.parametrize("stream", [False, True])
async def test_anthropic_works_as_without_the_proxy(stream: bool, tmp_path: Path) -> None:
    client = partial(run_ai_sdk, folder=tmp_path, provider="anthropic", model="claude-opus-5-5", options=THINKING)
    await check_client(client, make_messages_model, POLICIES, tmp_path, stream=stream)
