"""Through the running proxy: a run that failed never reads as a success, in its result or in the record of work."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.proxy_server import Agent, run_proxy
from tests.raw_upstream import run_upstream
from tests.scripted_model import ScriptedModel, make_calls

TOOLS = {"tools": [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}]}


def specs(what: str) -> str:
    """Two hundred lines, others for each run, so that none refers to another."""
    return "\n".join(f"ok {what} number {n} works as it should and says so at length" for n in range(200))


FAILED = {
    "npm test": f"{specs('one')}\nAssertionError: expected 3 to equal 4\nnpm ERR! Test failed.  See above.",
    "pytest -q": f"{specs('two')}\nE       assert 3 == 4\n=== 2 failed, 198 passed in 4.31s ===",
    "go test ./...": f"{specs('three')}\n--- FAIL: TestResume (0s)\n    a_test.go:41: resumed at 3, want 4\nFAIL",
    "cargo build": f"{specs('four')}\nerror: could not compile `app` (lib) due to 1 previous error",
    "make build": f"{specs('five')}\nmake: *** [all] Segmentation fault",
    "make | tail -300": f"<returncode>0</returncode>\n<output>\n{specs('six')}\nmake: *** [all] Error 2\n</output>",
}
WHY = (
    "expected 3 to equal 4", "npm ERR! Test failed", "assert 3 == 4", "2 failed, 198 passed", "--- FAIL: TestResume",
    "resumed at 3, want 4", "could not compile", "Segmentation fault", "[all] Error 2",
)  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
async def test_t1_t4_failed_runs_are_reported_as_failed_after_their_results_were_shortened(stream: bool) -> None:
    looks = [f"ls {n}" for n in range(6)]
    asked = [*FAILED, *looks]
    answers: list[Any] = [make_calls((f"c{n}", "bash"), command=command) for n, command in enumerate(asked)]
    model = ScriptedModel(*answers, "Well.")
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        agent = Agent(proxy, (b"x-context-session: a",), stream=stream)
        await agent.say("mend it", **TOOLS)
        for command in asked:
            agent.brings(FAILED.get(command, "a\nb"))
            await agent.say(None, **TOOLS)
    prompt = "\n".join(filter(None, model.texts()))
    assert prompt.count("[shortened: ") >= len(FAILED) - 1
    assert [part for part in WHY if part not in prompt] == []
    assert "[From the record of your own work so far" in prompt
    for command in FAILED:
        assert f"`{command}` ok" not in prompt
    assert "`npm test` failed" in prompt


NOT_OK = {
    "pytest -q tests/db": f"{specs('db')}\n====== 200 skipped in 0.52s ======",
    "go test -run Resume ./...": "\n".join(f"ok  \tshop/p{n}\t0.0{n}s [no tests to run]" for n in range(90)),
    "find src -name '*.py' -exec python -m py_compile {} \\;": f"{specs('py')}\nSyntaxError: '(' was never closed",
    "aws lambda invoke --function-name warm out.json": json.dumps(
        {"FunctionError": "Unhandled", "Payload": specs("aws")}, indent=1
    ),
    "gh run watch 12": f"{specs('ci')}\nX Run CI (12) completed with 'failure'",
}


async def test_a_run_without_tests_or_with_a_failure_that_its_code_hides_is_not_reported_as_ok() -> None:
    calls = [make_calls((f"c{n}", "bash"), command=command)["tool_calls"][0] for n, command in enumerate(NOT_OK)]
    together: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": calls}
    model = ScriptedModel(together, *(make_calls((f"d{n}", "bash"), command=f"ls {n}") for n in range(3)), "Well.")
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        agent = Agent(proxy, (b"x-context-session: a",))
        await agent.say("mend it", **TOOLS)
        agent.brings(*(f"<returncode>0</returncode>\n<output>\n{output}\n</output>" for output in NOT_OK.values()))
        for _ in range(3):
            await agent.say(None, **TOOLS)
            agent.brings("a\nb")
    prompt = "\n".join(filter(None, model.texts()))
    assert "[From the record of your own work so far" in prompt
    assert [command for command in NOT_OK if f"`{command[:40]}" not in prompt] == []
    assert "` ok" not in prompt
