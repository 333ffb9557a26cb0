"""`save_memo`: store a finding or a decision for later sessions of the same tenant and project."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import Sequence

import msgspec

from proxy.errors import ToolRefused
from proxy.notes import memo_matching
from proxy.notes.memo_matching import Memo
from proxy.tools import stored_memos
from proxy.tools.tool import Tool
from proxy.tools.tool_context import ToolContext


class SaveMemoArguments(msgspec.Struct, frozen=True):
    """The arguments. tags: a few words to find the memo by."""

    content: str
    tags: list[str] | str = []


async def save_memo(arguments: SaveMemoArguments, context: ToolContext) -> str:
    """Save the memo and return a line that confirms it. Raises ToolRefused for junk, and if no more are kept."""
    known = await stored_memos.load_memos(context)
    now = context.now()
    content, project = memo_matching.normalize_text(arguments.content), memo_matching.normalize_project(context.project)
    new = Memo(
        _make_memo_id(content, context),
        content,
        memo_matching.normalize_tags(stored_memos.split_tags(arguments.tags)),
        context.session,
        now,
        now,
        project,
    )
    # Comparing with a long prompt and with a thousand memos would block the event loop for too long.
    reason, old = await asyncio.to_thread(_compare_memo, known, new, [message.text for message in context.prompt])
    if reason is not None:
        context.metrics.memos_total.labels("refused").inc()
        raise ToolRefused(f"not saved, {reason}.")
    if old is None and len(known) >= context.settings.memos.keep:
        context.metrics.memos_total.labels("refused").inc()
        raise ToolRefused(f"not saved: {len(known)} memos are kept here, and no more can be.", limited=True)
    memo = new if old is None else memo_matching.merge_memos(old, new)
    await context.store.put([stored_memos.make_memo_row(context.tenant, memo)])
    context.metrics.memos_total.labels("saved" if old is None else "merged").inc()
    context.on_memo_saved(memo.id, old is not None)
    done = "saved" if old is None else "saved in place of one that said nearly the same"
    return f"[{done}: memo {memo.id}, tags {', '.join(memo.tags) or 'none'}]"


def _compare_memo(known: Sequence[Memo], new: Memo, prompt: Sequence[str]) -> tuple[str | None, Memo | None]:
    reason = memo_matching.find_refusal_reason(new.content, prompt)
    return reason, memo_matching.find_duplicate(known, new) if reason is None else None


def _make_memo_id(content: str, context: ToolContext) -> str:
    """Return a memo's id: the same on every replica for the same call."""
    parts = (context.tenant, context.project, context.session, content, repr(context.now()))
    named = "\x00".join(parts).encode("utf-8", "replace")
    return base64.b32encode(hashlib.blake2b(named, digest_size=7).digest())[:10].decode().lower()


SAVE_MEMO = Tool(
    name="save_memo",
    description=(
        "Note for later conversations what was found or decided, and why: a decision on the design, a trap, what a"
        " system really does. Only what the code itself does not show. One finding a memo, at most 2 KB."
    ),
    parameters={
        "content": {"type": "string"},
        "tags": {"type": "array", "items": {"type": "string"}, "description": "a few topics to find it by"},
    },
    required=("content", "tags"),
    arguments_type=SaveMemoArguments,
    handler=save_memo,
)
