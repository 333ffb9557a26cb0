"""`manage_scratchpad`: the session's plan and notes, kept by the model, readable and settable by the operator."""

from __future__ import annotations

from typing import Literal

import msgspec

from proxy.errors import ToolRefused
from proxy.notes import scratchpad
from proxy.store.session_notes import ScratchpadRow
from proxy.tools.tool import Tool
from proxy.tools.tool_context import ToolContext

MAX_TRIES = 4
"""Attempts at a change if another writer was first: two calls of one answer, or an operator."""


class ManageScratchpadArguments(msgspec.Struct, frozen=True):
    """content: for update and append."""

    action: Literal["read", "update", "append"]
    content: str = ""


async def manage_scratchpad(arguments: ManageScratchpadArguments, context: ToolContext) -> str:
    """Return the text, or the result of the change. Raises ToolRefused if there is no scratchpad, if it would be too
    long, or if others keep changing it."""
    if not context.has_scratchpad:
        raise ToolRefused("this conversation has no scratchpad: keep your notes in your answers.")
    if arguments.action == "read":
        row = await context.store.read_scratchpad(context.tenant, context.session)
        return row.text if row is not None and row.text else "[the scratchpad is empty]"
    if arguments.action == "append" and not arguments.content.strip():
        raise ToolRefused("append takes the text to add as content.")
    for _ in range(MAX_TRIES):
        text = await _try_change(arguments, context)
        if text is not None:
            return f"[saved: the scratchpad has {len(text)} of {context.settings.tools.scratchpad_chars} characters]"
    raise ToolRefused("the scratchpad is being changed by others; read it and try again.")


async def _try_change(arguments: ManageScratchpadArguments, context: ToolContext) -> str | None:
    """Write the change and return the text that is now stored. Return None if another version took the number: the
    scratchpad must be read again."""
    row = await context.store.read_scratchpad(context.tenant, context.session)
    current, number = (row.text, row.number) if row is not None else ("", 0)
    most = context.settings.tools.scratchpad_chars
    try:
        if arguments.action == "append":
            text = scratchpad.append_text(current, arguments.content, most)
        else:
            text = scratchpad.replace_text(arguments.content, most)
    except scratchpad.ScratchpadTooLong as reason:
        raise ToolRefused(str(reason), limited=True) from reason
    mine = ScratchpadRow(context.tenant, context.session, number + 1, text, "model", context.now())
    await context.store.put([mine])
    stands = next(
        iter(await context.store.read_scratchpad_versions(context.tenant, context.session, 1, number + 2)), None
    )
    is_mine = stands is not None and (stands.text, stands.author, stands.created_at) == (text, "model", mine.created_at)
    return text if is_mine else None


MANAGE_SCRATCHPAD = Tool(
    name="manage_scratchpad",
    description=(
        "Your own notes for this conversation, in Markdown: plan, checklist, findings. They stay in view when older"
        " messages leave it, and are kept across restarts. Keep them short and current."
    ),
    parameters={
        "action": {"type": "string", "enum": ["read", "update", "append"], "description": "update replaces all of it"},
        "content": {"type": "string"},
    },
    required=("action",),
    arguments_type=ManageScratchpadArguments,
    handler=manage_scratchpad,
)
