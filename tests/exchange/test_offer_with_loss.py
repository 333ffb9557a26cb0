"""The proxy's tools come with the first edit that takes something out of the prompt, and not with a reference."""

from __future__ import annotations

import json
from typing import Any

from tests.proxy_server import run_proxy
from tests.raw_upstream import run_upstream
from tests.scripted_model import ScriptedModel

READ = [{"type": "function", "function": {"name": "read_file", "parameters": {"type": "object"}}}]
SYSTEM = {"role": "system", "content": "Keep to the style of the project. " * 1500}


def read_again(steps: int) -> list[dict[str, Any]]:
    """An agent that reads three files in turn, again and again."""
    made: list[dict[str, Any]] = [SYSTEM, {"role": "user", "content": "Find the fault."}]
    for n in range(steps):
        path = f"file{n % 3}.py"
        text = "\n".join(f"{k}\tdef {path[:5]}_{k}(argument): return argument + {k}" for k in range(1, 160))
        call = {"name": "read_file", "arguments": json.dumps({"path": path})}
        made.append({"role": "assistant", "tool_calls": [{"id": f"c{n}", "type": "function", "function": call}]})
        made.append({"role": "tool", "tool_call_id": f"c{n}", "content": text})
    return made


async def test_a_repeat_is_replaced_by_a_reference_before_a_long_prompt_without_tools_of_the_proxy() -> None:
    """The definitions of tools stand in front of all else: with them, the whole prompt would have to be cached anew."""
    history = read_again(8)
    tree: dict[str, Any] = {"policy": "thrifty", "tokens": {"count": "estimate"}}
    async with run_upstream(ScriptedModel("Well.")) as upstream, run_proxy(upstream.port, **tree) as proxy:
        for end in range(2, len(history) + 1, 2):
            await proxy.post({"model": "gpt-5", "messages": history[:end], "tools": READ}, b"x-context-session: s")
        sent = [json.loads(one.body) for one in upstream.requests]
        references = await proxy.rows("SELECT stage FROM edits")
    assert references, "the fourth read of a file says what the first one said"
    assert {stage for (stage,) in references} == {"refer_repeats"}
    assert [one["tools"] for one in sent] == [READ] * len(sent)
    assert len(json.dumps(sent[-1])) < 0.8 * len(json.dumps({"messages": history}))
