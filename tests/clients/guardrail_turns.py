"""LiteLLM's own guardrail for compressors, 20 turns of an agent's conversation through it: `URL` -> JSON on stdout.

A program of its own: importing LiteLLM's proxy takes ten seconds and warns.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from litellm.proxy.guardrails.guardrail_hooks.headroom.headroom import HeadroomGuardrail
from litellm.types.guardrails import GuardrailEventHooks

TURNS = 20
FILE = "\n".join(f"line {n}: def function_{n}(a, b): return compute(a, {n})" for n in range(120))


def result(turn: int) -> str:
    return FILE if turn % 4 == 0 else "\n".join(f"src/part{turn}/module_{n}.py:{n * turn}: {n}" for n in range(40))


async def play(url: str) -> dict[str, Any]:
    """The prompts that the guardrail makes, and what its tool brings back."""
    guard: Any = HeadroomGuardrail(
        api_base=url,
        api_key="sk-gateway",
        guardrail_name="compressor",
        event_hook=GuardrailEventHooks.pre_call,
        default_on=True,
    )
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "You are an agent."}, {"role": "user", "content": "Find the fault."},
    ]  # fmt: skip
    prompts, tools, hashes = [], [], set()
    for turn in range(TURNS):
        call = {"name": "read", "arguments": json.dumps({"path": f"file{turn}"})}
        asked = {"id": f"call_{turn:08}", "type": "function", "function": call}
        messages.append({"role": "assistant", "content": f"Step {turn}.", "tool_calls": [asked]})
        messages.append({"role": "tool", "tool_call_id": f"call_{turn:08}", "content": result(turn)})
        if turn == 12:
            messages.append({"role": "assistant", "content": "I have found it."})
            messages.append({"role": "user", "content": "Now mend it."})
        data: dict[str, Any] = {"model": "gpt-5", "messages": messages, "metadata": {}, "litellm_call_id": f"c{turn}"}
        made = await guard.apply_guardrail(
            inputs={"structured_messages": [dict(m) for m in messages]}, request_data=data, input_type="request"
        )
        prompts.append(made["structured_messages"])
        tools.append(len(made.get("tools") or ()))
        hashes |= guard._issued_hashes_by_call_id.get(f"c{turn}", (frozenset(), 0))[0]
    originals = [await guard._call_retrieve(name) for name in sorted(hashes)]
    return {"messages": messages, "prompts": prompts, "tools": tools, "originals": originals}


if __name__ == "__main__":
    print("RESULT " + json.dumps(asyncio.run(play(sys.argv[1]))))
