"""Run in-band commands and write their replies."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from proxy.errors import ProxyError
from proxy.exchange.command_syntax import HELP, REPLY_MARK, InbandCommand, parse_command
from proxy.exchange.services import Services
from proxy.operator import edit_messages, give_notes, rebuild_state, session_settings, show
from proxy.operator.response_models import DecisionResult, GroupListItem, PromptDetails, PromptInsert, PromptMessage

MAX_REPLY_CHARS = 200_000
"""Limit in characters on a reply."""


async def run_command(services: Services, tenant: str, session: str, line: str, *, thread: str | None = None) -> str:
    """Return the reply to a command; the help where the line is no command. Raises nothing of ours: the reply says why
    a command failed."""
    command = parse_command(line) or InbandCommand("help")
    try:
        text = await _run(services, tenant, session, command, thread)
    except ProxyError as problem:
        text = str(problem)
    if len(text) > MAX_REPLY_CHARS:
        text = text[:MAX_REPLY_CHARS] + "\n[cut here: the admin API and the command line show all of it]"
    return f"{REPLY_MARK} {text}"


async def _run(services: Services, tenant: str, session: str, command: InbandCommand, thread: str | None) -> str:
    place = (services, tenant, session)
    match command.name:
        case "window":
            await session_settings.set_window(*place, command.number)
            return "The whole history stays." if not command.number else f"The last {command.number} groups stay."
        case "show":
            shown = await show.preview_next_prompt(*place, thread=thread)
            return f"{shown.tokens_after} of {shown.tokens_before} tokens\n\n" + _whole(shown)
        case "rebuild":
            rebuilt = await rebuild_state.rebuild(*place, thread=thread)
            return rebuilt.text or f"The next answer is asked for a new state ({rebuilt.outcome})."
        case "undo":
            return _changed("Undone", await edit_messages.undo(*place, thread=thread))
        case "drop":
            return _changed("Dropped", await edit_messages.drop(*place, [command.group], thread=thread))
        case "restore":
            return _changed("Restored", await edit_messages.restore(*place, [command.group], thread=thread))
        case "remove":
            return _changed("Removed for good", await edit_messages.remove(*place, [command.group], thread=thread))
        case "list":
            return _listed((await show.list_groups(*place, thread=thread))[-command.number :])
        case "show_group":
            return _prompt(await show.read_group(*place, command.group, thread=thread))
        case "scratchpad":
            pad = await give_notes.read_scratchpad(*place)
            return pad.text or "The scratchpad is empty."
        case _:
            return HELP


def _changed(what: str, changed: DecisionResult) -> str:
    note = f" ({changed.note})" if changed.note else ""
    return f"{what}: group {', '.join(changed.groups)}, {len(changed.messages)} messages, {changed.tokens} tokens{note}"


def _listed(lines: Sequence[GroupListItem]) -> str:
    made = [
        f"{line.id}  {line.status:<8} {line.sent:>7} of {line.tokens:>7} tokens"
        f"  {line.snapshot if line.snapshot is not None else '-':>8}  {line.title}"
        for line in lines
    ]
    return "\n".join(["group       status      prompt    whole           reported  prompt", *made])


def _whole(shown: PromptDetails) -> str:
    """Return the prompt with each text of ours behind the message that it is appended to, as it goes out."""
    behind = {n: [_insert(one) for one in shown.inserts if one.index == n] for n in {i.index for i in shown.inserts}}
    there = range(len(shown.messages))
    made = [text for n in there for text in (_message(shown.messages[n]), *behind.get(n, ()))]
    return "\n\n".join([*made, *(text for n, texts in sorted(behind.items()) if n not in there for text in texts)])


def _insert(insert: PromptInsert) -> str:
    return f"[+ {insert.source}, from the proxy]\n{insert.text.strip()}"


def _prompt(messages: Sequence[PromptMessage]) -> str:
    return "\n\n".join(_message(message) for message in messages)


def _message(message: PromptMessage) -> str:
    why = f" ({message.why.stage}: {message.why.reason})" if message.why is not None else ""
    head = f"[{message.role} {message.id or '-'} {message.status}{why}]"
    said = message.content if message.content is not None else None
    if not isinstance(said, dict):
        return head
    content = said.get("content")
    text = content if isinstance(content, str) else "" if content is None else msgspec.json.encode(content).decode()
    calls = "".join(f"\n-> {msgspec.json.encode(call).decode()}" for call in said.get("tool_calls") or ())
    return f"{head}\n{text}{calls}"
