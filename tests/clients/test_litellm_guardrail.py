"""LiteLLM's guardrail class for compressors, as its gateway runs it, against the running proxy."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from itertools import pairwise
from typing import Any

import pytest

from tests.proxy_server import run_proxy
from tests.raw_upstream import run_upstream
from tests.scripted_model import ScriptedModel

pytestmark = [pytest.mark.clients, pytest.mark.slow]
TURNS = 20


async def play(port: int) -> dict[str, Any]:
    environment = os.environ | {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.clients.guardrail_turns", f"http://127.0.0.1:{port}",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=environment,
    )  # fmt: skip
    out, error = await asyncio.wait_for(child.communicate(), 120)
    line = next((one for one in out.decode().splitlines() if one.startswith("RESULT ")), None)
    assert line is not None, error.decode()[-2000:]
    found: dict[str, Any] = json.loads(line.removeprefix("RESULT "))
    return found


async def test_twenty_turns_are_shortened_and_their_cached_prefix_never_moves() -> None:
    async with run_upstream(ScriptedModel("x")) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        told = await play(proxy.port)
        sessions = await proxy.rows("SELECT count(*) FROM sessions")
    prompts, came = told["prompts"], told["messages"]
    assert len(prompts) == TURNS
    for before, after in pairwise(prompts):
        # The newest exchange is withheld from the proxy, which first sees it one turn later.
        same = len(before) - 2
        assert after[:same] == before[:same]
    last = prompts[-1]
    shortened = [(row, got) for row, got in zip(came, last, strict=True) if row != got]
    assert len(shortened) >= 3
    assert all(row["role"] == got["role"] == "tool" for row, got in shortened)
    assert len(json.dumps(last)) < 0.75 * len(json.dumps(came))
    assert sessions == [(1,)]
    assert told["tools"][0] == 0
    assert told["tools"][-1] == 1, "the gateway offers its own tool once there is something to retrieve"
    assert set(told["originals"]) == {row["content"] for row, _ in shortened}
