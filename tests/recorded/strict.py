"""The rules of a strict upstream, written for the tests without the code of the proxy's own rules."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from proxy.tools import registry

Messages = Sequence[Mapping[str, Any]]


def text_of(content: Any) -> str:
    """The text of a message's content, whatever its form."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    return "".join(str(part.get("text", "")) for part in content)


def violations(messages: Messages) -> list[str]:
    """The violations of a prompt, in words."""
    wrong = []
    waiting: list[str] = []
    for n, message in enumerate(messages):
        role = message["role"]
        before = messages[n - 1]["role"] if n else ""
        if role == "tool":
            if message["tool_call_id"] in waiting:
                waiting.remove(message["tool_call_id"])
            else:
                wrong.append(f"{n}: a result without its call")
            continue
        if waiting:
            wrong.append(f"{n}: calls without a result before it")
            waiting = []
        if role == "assistant":
            waiting = [call["id"] for call in message.get("tool_calls") or ()]
            if not waiting and not text_of(message.get("content")):
                wrong.append(f"{n}: an empty assistant message")
        elif role == "user" and before == "tool":
            wrong.append(f"{n}: a user message after a result")
        elif role in ("system", "developer") and before not in ("", "system", "developer"):
            wrong.append(f"{n}: a system message that is not in front")
        elif role not in ("user", "system", "developer"):
            wrong.append(f"{n}: a role {role!r}")
    if waiting:
        wrong.append("the last calls have no result")
    if messages and messages[-1]["role"] == "assistant":
        wrong.append("the last message is the assistant's")
    if not any(m["role"] == "user" for m in messages):
        wrong.append("no user message")
    return wrong


def head_changed(sent: Mapping[str, Any], original: Mapping[str, Any]) -> list[str]:
    """The parts that do not begin as the client sent them: system prompt, tools, last user message, model."""
    wrong = [name for name in ("model", "tool_choice") if sent.get(name) != original.get(name)]
    theirs, ours = original.get("tools") or [], sent.get("tools") or []
    if ours[: len(theirs)] != theirs or (ours != theirs and not _offered(ours[len(theirs) :], theirs)):
        wrong.append("tools")
    for name, roles, at in (("system prompt", ("system", "developer"), 0), ("last user message", ("user",), -1)):
        asked = [text_of(m.get("content")) for m in original["messages"] if m["role"] in roles]
        came = [text_of(m.get("content")) for m in sent["messages"] if m["role"] in roles]
        if asked and not (came and came[at].startswith(asked[at])):
            wrong.append(name)
    return wrong


def _offered(more: Sequence[Any], theirs: Sequence[Any]) -> bool:
    """True if these are the client's tool definitions, followed by those of the proxy."""
    own = json.loads(b"[" + registry.join_definitions(list(registry.TOOLS)) + b"]")
    return bool(theirs) and all(one in own for one in more)
