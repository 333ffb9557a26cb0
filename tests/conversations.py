"""Conversations to test with: short words for messages, and requests and views made of them.

Sizes are counted in characters (`WEIGH`), so that every number in a test can be worked out by hand: a message weighs 4
more than its text, a call 12 more than its name and arguments.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from proxy.chat import chain
from proxy.chat.message import Message, Request
from proxy.chat.tokens import TokenCounter
from proxy.context.branch_state import BranchState
from proxy.context.build_view import build_view as build_known_view
from proxy.context.models import Model
from proxy.context.plan import RewriteInputs
from proxy.context.policy import Policy
from proxy.context.view import View
from proxy.dialects.completions.request import build_prefix_cache, read_message, read_request
from proxy.notes.memo_matching import Memo

Json = dict[str, Any]

COUNTER = TokenCounter(len)
INPUTS = RewriteInputs(COUNTER)
"""The inputs of a rewrite of which nothing else is known."""
PLAIN_MODEL = Model("plain", w=1.25, r=0.1, min=0, block=1)
"""A model with Anthropic's price ratios, no window, and a cache that holds every prefix to the token."""


def system(text: Any = "Be brief.", **more: Any) -> Json:
    return {"role": "system", "content": text, **more}


def user(text: Any, **more: Any) -> Json:
    return {"role": "user", "content": text, **more}


def assistant(text: Any = None, *calls: str, **more: Any) -> Json:
    """An assistant message; each of `calls` is the id of a call of the tool `run`."""
    made = [{"id": c, "type": "function", "function": {"name": "run", "arguments": '{"n": 1}'}} for c in calls]
    return {"role": "assistant", "content": text, **({"tool_calls": made} if made else {}), **more}


def call(name: str, tool: str, arguments: str) -> Json:
    """One tool call: its id, the tool's name, the arguments as a string."""
    return {"id": name, "type": "function", "function": {"name": tool, "arguments": arguments}}


def result(call: str, text: Any, **more: Any) -> Json:
    return {"role": "tool", "tool_call_id": call, "content": text, **more}


def call_tool(tool: str, arguments: Json, text: str = "The file has been updated.") -> list[Json]:
    """One step: an answer that calls a tool, and its result."""
    return [{**assistant(None), "tool_calls": [call("c", tool, json.dumps(arguments))]}, result("c", text)]


def encode_json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


def make_message(value: Json) -> Message:
    return read_message(encode_json(value))


def make_messages(*values: Json) -> tuple[Message, ...]:
    return tuple(make_message(v) for v in values)


def make_request(values: Sequence[Json], **more: Any) -> Request:
    return read_request(encode_json({"model": "m", "messages": list(values), **more}))


def make_next_request(before: Request | None, values: Sequence[Json], **more: Any) -> Request:
    """The request that goes on from another. As in the running proxy, only what follows that one is read anew."""
    prefix = None if before is None else build_prefix_cache(before)
    return read_request(encode_json({"model": "m", "messages": list(values), **more}), prefix=prefix)


def build_view(
    values: Sequence[Json],
    *,
    state: BranchState | None = None,
    policy: Policy | None = None,
    model: Model = PLAIN_MODEL,
    now: float = 0.0,
    strategy: str = "openai",
    strategies: Sequence[str] | None = None,
    offered: frozenset[str] = frozenset(),
    guarded: Sequence[int] = (),
    tool_tokens: int = 0,
    scratchpad: str = "",
    memos: Sequence[Memo] = (),
    **more: Any,
) -> View:
    """The View of a conversation."""
    asked = make_request(values, **more)
    keys = chain.compute_keys("", asked.messages)
    inputs = RewriteInputs(
        COUNTER,
        keys,
        strategy,
        strategies or [strategy] * len(keys),
        offered_tools=offered,
        guarded_keys=frozenset(keys[n] for n in guarded),
        tool_tokens=tool_tokens,
        scratchpad=scratchpad,
        memos=memos,
    )
    return build_known_view(asked, state or BranchState(), policy or Policy("test"), model, now, inputs)


def change_view(seen: View, **changes: Any) -> View:
    """The View with other values of its own fields, or of the fields of its `inputs`, `branch` and `faults`."""
    for part in ("inputs", "branch", "faults"):
        inner = getattr(seen, part)
        own = {name: changes.pop(name) for name in inner.__struct_fields__ if name in changes}
        changes |= {part: replace(inner, **own)} if own else {}
    return replace(seen, **changes)
