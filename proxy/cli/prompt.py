"""A prompt for people to read: each message with its status and reason, and the texts that the proxy inserted."""

from __future__ import annotations

import json
from typing import Any

from rich.text import Text

from proxy.cli.terminal import ROLES, STATUS, Column, console, marked, number, plain, table


def whole(found: Any) -> Text:
    """Render a ShownPrompt: its figures, then every message in full."""
    text = Text()
    text.append(f"{plain(found['session'])}", "bold")
    which = f"exchange {found['exchange']}" if found["exchange"] else "the next prompt"
    text.append(f"  {which}, policy {plain(found['policy'])}, model {plain(found['model'])}\n")
    text.append(
        f"{number(found['tokens_before'])} tokens as the client sends it, {number(found['tokens_after'])} sent\n"
    )
    if found.get("refused"):
        text.append(f"the original went out: {plain(found['refused'])}\n", "yellow")
    inserts: dict[int, list[Any]] = {}
    for one in found["inserts"]:
        inserts.setdefault(one["index"], []).append(one)
    for message in found["messages"]:
        text.append("\n")
        text.append(one_message(message))
        for insert in inserts.pop(message["index"], ()) if message["status"] in ("in", "changed") else ():
            text.append(_insert(insert))
    for rest in inserts.values():
        for insert in rest:
            text.append("\n")
            text.append(_insert(insert))
    return text


def outline(found: Any) -> None:
    """Print a ShownPrompt with one line per message."""
    out = console()
    before, after = number(found["tokens_before"]), number(found["tokens_after"])
    out.print(Text(f"{plain(found['session'])}: {before} tokens come, {after} go out, policy {plain(found['policy'])}"))
    table(found["messages"], OUTLINE, empty="no message")
    for insert in found["inserts"]:
        put_in = Text(f"+ {plain(insert['source'])}: {line(insert['text'])}", "blue")
        out.print(put_in, overflow="ellipsis", no_wrap=True)


def one_message(message: Any) -> Text:
    """Render a ShownMessage in full. A message that is left out is shown with the reason and its content."""
    text = Text()
    text.append(plain(message["role"]), f"bold {ROLES.get(message['role'], '')}".strip())
    if message.get("id"):
        text.append(f"  {message['id']}", "cyan")
    text.append(f"  {number(message['tokens'])} tokens  ", "bright_black")
    text.append(message["status"], STATUS.get(message["status"], ""))
    if message.get("pinned"):
        text.append("  pinned", "blue")
    if message.get("source", "client") != "client":
        text.append(f"  {'from the proxy' if message['source'] == 'proxy' else 'what the client will send'}", "blue")
    text.append("\n")
    if why := message.get("why"):
        text.append(f"  {_why(why)}\n", "yellow")
    is_out = message["status"] in ("out", "dropped", "removed")
    content = message.get("content") if message.get("content") is not None else message.get("whole")
    text.append(body(content) + "\n", "bright_black" if is_out else "")
    return text


def body(message: Any) -> str:
    """Return the text of a chat message with its reasoning and its calls. A text stays as it is; other values become
    JSON."""
    if not isinstance(message, dict):
        return plain(message) if isinstance(message, str) else "" if message is None else plain(json.dumps(message))
    lines = []
    if isinstance(thought := message.get("reasoning_content") or message.get("reasoning"), str):
        lines.append(f"(thinking) {thought}")
    content = message.get("content")
    for part in content if isinstance(content, list) else [content]:
        if isinstance(part, str):
            lines.append(part)
        elif isinstance(part, dict):
            lines.append(str(part["text"]) if isinstance(part.get("text"), str) else f"[{part.get('type', 'part')}]")
    for call in message.get("tool_calls") or ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            lines.append(f"→ {function.get('name')}({function.get('arguments')})")
    return plain("\n".join(lines))


def _insert(insert: Any) -> Text:
    text = Text()
    text.append(f"+ {plain(insert['source'])}", "bold blue")
    text.append(", from the proxy\n", "bright_black")
    text.append(plain(insert["text"]).strip() + "\n", "blue")
    return text


def _why(why: Any) -> str:
    figures = f"{number(why['tokens_before'])} → {number(why['tokens_after'])} tokens"
    parts = [f"{why['stage']}: {why['reason']} ({figures})", f"since {why['exchange']}" if why.get("exchange") else "",
             f"the whole: {why['find']}" if why.get("find") else ""]  # fmt: skip
    return plain("; ".join(filter(None, parts)))


def _outlined(message: Any) -> str:
    why = message.get("why")
    pinned = "pinned; " if message.get("pinned") else ""
    shown = message.get("content") if message.get("content") is not None else message.get("whole")
    return pinned + (f"{why['stage']}: {why['reason']}" if why else line(body(shown)))


def line(text: str) -> str:
    """Return a text on one line."""
    return " ".join(plain(text).split())


OUTLINE = (
    Column("", lambda m: m["index"] if m["index"] >= 0 else "", number=True),
    Column("id", lambda m: m.get("id", ""), style="cyan", fits=True),
    Column("role", lambda m: marked(m["role"], ROLES)),
    # A message that is left out shows the tokens that it would have.
    Column("tokens", lambda m: m["tokens"] or (m.get("why") or {}).get("tokens_before", 0), number=True),
    Column("status", lambda m: marked(m["status"])),
    Column("", _outlined, fills=True),
)
"""Columns of `outline`, one line per message."""
