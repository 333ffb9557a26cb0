"""A prompt for people to read: each message with its status and reason, and the texts that the proxy inserted."""

from __future__ import annotations

import json
from typing import Any, Final

from rich.text import Text

from proxy.cli.terminal import (
    ROLE_STYLES,
    STATUS_STYLES,
    TableColumn,
    escape_controls,
    format_number,
    make_console,
    print_table,
    style_word,
)


def render_prompt(details: Any) -> Text:
    """Render a PromptDetails: its figures, then every message in full."""
    text = Text()
    text.append(f"{escape_controls(details['session'])}", "bold")
    which = f"exchange {details['exchange']}" if details["exchange"] else "the next prompt"
    text.append(f"  {which}, policy {escape_controls(details['policy'])}, model {escape_controls(details['model'])}\n")
    text.append(
        f"{format_number(details['tokens_before'])} tokens as the client sends it,"
        f" {format_number(details['tokens_after'])} sent\n"
    )
    if page := _describe_page(details):
        text.append(f"{page}\n", "bright_black")
    if details.get("refused"):
        text.append(f"the original went out: {escape_controls(details['refused'])}\n", "yellow")
    inserts: dict[int, list[Any]] = {}
    for one in details["inserts"]:
        inserts.setdefault(one["index"], []).append(one)
    for message in details["messages"]:
        text.append("\n")
        text.append(render_message(message))
        for insert in inserts.pop(message["index"], ()) if message["status"] in ("in", "changed") else ():
            text.append(_render_insert(insert))
    for rest in inserts.values():
        for insert in rest:
            text.append("\n")
            text.append(_render_insert(insert))
    return text


def print_outline(details: Any) -> None:
    """Print a PromptDetails with one line per message."""
    out = make_console()
    before, after = format_number(details["tokens_before"]), format_number(details["tokens_after"])
    out.print(
        Text(
            f"{escape_controls(details['session'])}: {before} tokens come, {after} go out,"
            f" policy {escape_controls(details['policy'])}"
        )
    )
    if page := _describe_page(details):
        out.print(Text(page))
    print_table(details["messages"], OUTLINE_COLUMNS, empty="no message")
    for insert in details["inserts"]:
        put_in = Text(f"+ {escape_controls(insert['source'])}: {join_lines(insert['text'])}", "blue")
        out.print(put_in, overflow="ellipsis", no_wrap=True)


def _describe_page(details: Any) -> str:
    """Return the line that says which messages are shown; empty if all are."""
    shown, count = details["messages"], details.get("count", len(details["messages"]))
    if len(shown) == count:
        return ""
    if not shown:
        return f"none of {format_number(count)} messages: --first is behind the last one"
    first, last = format_number(shown[0]["index"]), format_number(shown[-1]["index"])
    follow = f"; --first {details['next']} shows those that follow" if details["next"] is not None else ""
    return f"messages {first} to {last} of {format_number(count)}{follow}"


def render_message(message: Any) -> Text:
    """Render a PromptMessage in full. A message that is left out is shown with the reason and its content."""
    text = Text()
    text.append(escape_controls(message["role"]), f"bold {ROLE_STYLES.get(message['role'], '')}".strip())
    if message.get("id"):
        text.append(f"  {message['id']}", "cyan")
    text.append(f"  {format_number(message['tokens'])} tokens  ", "bright_black")
    text.append(message["status"], STATUS_STYLES.get(message["status"], ""))
    if message.get("pinned"):
        text.append("  pinned", "blue")
    if message.get("source", "client") != "client":
        text.append(f"  {'from the proxy' if message['source'] == 'proxy' else 'what the client will send'}", "blue")
    text.append("\n")
    if why := message.get("why"):
        text.append(f"  {_explain_edit(why)}\n", "yellow")
    is_out = message["status"] in ("out", "dropped", "removed")
    content = message.get("content") if message.get("content") is not None else message.get("whole")
    text.append(_quote_lines(render_body(content)) + "\n", "bright_black" if is_out else "")
    return text


def _quote_lines(text: str) -> str:
    """Return a text with a mark in front of each line: none passes for the head of another message."""
    return "\n".join(f"| {line}" for line in text.split("\n"))


def render_body(message: Any) -> str:
    """Return the text of a chat message with its reasoning and its calls. Other values become JSON."""
    if not isinstance(message, dict):
        return (
            escape_controls(message)
            if isinstance(message, str)
            else ""
            if message is None
            else escape_controls(json.dumps(message))
        )
    lines = []
    if isinstance(thought := message.get("reasoning_content") or message.get("reasoning"), str):
        lines.append(f"(thinking) {thought}")
    content = message.get("content")
    for part in content if isinstance(content, list) else [content]:
        if isinstance(part, str):
            lines.append(part)
        elif isinstance(part, dict):
            lines.append(str(part["text"]) if isinstance(part.get("text"), str) else f"[{part.get('type', 'part')}]")
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            lines.append(f"→ {function.get('name')}({function.get('arguments')})")
    return escape_controls("\n".join(lines))


def _render_insert(insert: Any) -> Text:
    text = Text()
    text.append(f"+ {escape_controls(insert['source'])}", "bold blue")
    text.append(", from the proxy\n", "bright_black")
    text.append(_quote_lines(escape_controls(insert["text"]).strip()) + "\n", "blue")
    return text


def _explain_edit(why: Any) -> str:
    figures = f"{format_number(why['tokens_before'])} → {format_number(why['tokens_after'])} tokens"
    parts = [f"{why['stage']}: {why['reason']} ({figures})", f"since {why['exchange']}" if why.get("exchange") else "",
             f"the whole: {why['find']}" if why.get("find") else ""]  # fmt: skip
    return escape_controls("; ".join(filter(None, parts)))


def _render_outline(message: Any) -> str:
    why = message.get("why")
    pinned = "pinned; " if message.get("pinned") else ""
    shown = message.get("content") if message.get("content") is not None else message.get("whole")
    return pinned + (f"{why['stage']}: {why['reason']}" if why else join_lines(render_body(shown)))


def join_lines(text: str) -> str:
    return " ".join(escape_controls(text).split())


BRIEF_CHARS: Final = 200
"""Characters of a message in a line of --brief, where no terminal has a width."""


def _shorten(text: str) -> str:
    return text if len(text) <= BRIEF_CHARS else text[: BRIEF_CHARS - 1] + "…"


OUTLINE_COLUMNS = (
    TableColumn("", lambda m: m["index"] if m["index"] >= 0 else "", is_number=True),
    TableColumn("id", lambda m: m.get("id", ""), style="cyan", is_never_cut=True),
    TableColumn("role", lambda m: style_word(m["role"], ROLE_STYLES)),
    # A message that is left out shows the tokens that it would have.
    TableColumn("tokens", lambda m: m["tokens"] or (m.get("why") or {}).get("tokens_before", 0), is_number=True),
    TableColumn("status", lambda m: style_word(m["status"])),
    TableColumn("", _render_outline, takes_rest=True, whole=lambda m: _shorten(_render_outline(m))),
)
"""Columns of `print_outline`, one line per message."""
