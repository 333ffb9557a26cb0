"""mini-swe-agent as its users start it, on a task that the scripted model knows how to do."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.proxy_server import run_proxy
from tests.raw_upstream import run_upstream
from tests.recorded.strict import violations
from tests.scripted_model import ScriptedModel, make_calls

pytestmark = [pytest.mark.clients, pytest.mark.slow]

FINISH = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


def steps(count: int) -> list[dict[str, Any]]:
    """Look at one file after the other, put right what is wrong in one of them, and say so."""
    commands = [f"grep -n . part{n}.txt" for n in range(count)]
    commands += ["sed -i s/wrong/right/ part3.txt", "cat part3.txt", FINISH]
    return [
        make_calls((f"call_{n:09}", "bash"), text=f"Step {n}.", command=command) for n, command in enumerate(commands)
    ]


async def solve(url: str, folder: Path, trajectory: Path) -> str:
    """Run `mini` on the files in the folder; what it printed."""
    config = {
        "model_name": "openai/gpt-5",
        "cost_tracking": "ignore_errors",
        # The second: LiteLLM 1.106 imports a package that it does not require as soon as a request has tools.
        "model_kwargs": {"api_base": url, "_skip_mcp_handler": True},
    }
    (folder.parent / "proxy.yaml").write_text(json.dumps({"model": config}))
    environment = os.environ | {
        "MSWEA_GLOBAL_CONFIG_DIR": str(folder.parent / "global"),
        "MSWEA_CONFIGURED": "true",
        "MSWEA_SILENT_STARTUP": "1",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "OPENAI_API_KEY": "sk-any",
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "minisweagent.run.mini", "-c", "mini.yaml", "-c", str(folder.parent / "proxy.yaml"),
        "-t", "One of the files has a mistake: put it right.", "-y", "--exit-immediately", "-l", "0",
        "-o", str(trajectory), cwd=folder, env=environment,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        out, _ = await asyncio.wait_for(process.communicate(), 120)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return out.decode()


@pytest.mark.parametrize("policy", ["thrifty", "rolling"])
async def test_the_agent_does_its_task_through_the_proxy(tmp_path: Path, policy: str) -> None:
    folder, trajectory = tmp_path / "work", tmp_path / "trajectory.json"
    folder.mkdir()
    for n in range(24):
        lines = [f"{n}.{line}: something that stands in file {n} at line {line}" for line in range(150)]
        (folder / f"part{n}.txt").write_text("\n".join(lines) + ("\nwrong\n" if n == 3 else "\n"))
    script = steps(24)
    model = ScriptedModel(*script)
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy=policy) as proxy:
        said = await solve(proxy.url, folder, trajectory)
        assert trajectory.exists(), said[-3000:]
        branches = await proxy.rows("SELECT kind FROM branches")
        outcomes = {status for status, _, _ in await proxy.outcomes()}
        before, after = (await proxy.rows("SELECT sum(tokens_before), sum(tokens_after) FROM exchanges"))[0]
    done = json.loads(trajectory.read_text())
    assert done["info"]["exit_status"] == "Submitted", said[-3000:]
    assert "right" in (folder / "part3.txt").read_text()
    assert len(model.chats) == len(script), "every step is asked once"
    assert branches == [("main",)], "one conversation, though it sends no header"
    assert outcomes == {"complete"}
    assert after < before
    for body in model.chats:
        assert violations(body["messages"]) == []
