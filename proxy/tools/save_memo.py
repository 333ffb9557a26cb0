"""`save_memo`: store a finding or a decision for later sessions of the same tenant and project."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import Sequence

import msgspec

from proxy.errors import ToolRefused
from proxy.memory import memos
from proxy.memory.memos import Memo
from proxy.tools import notebook
from proxy.tools.desk import Desk
from proxy.tools.tool import Tool


class Takes(msgspec.Struct, frozen=True):
    """The arguments. tags: a few words to find the memo by."""

    content: str
    tags: list[str] | str = []


async def answer(takes: Takes, desk: Desk) -> str:
    """Save the memo and return a line that confirms it. Raises ToolRefused for junk, and if no more are kept."""
    known = await notebook.load(desk)
    now = desk.now()
    content, project = memos.tidy(takes.content), memos.tidy_project(desk.project)
    new = Memo(
        _name(content, desk), content, memos.tidy_tags(notebook.listed(takes.tags)), desk.session, now, now, project
    )
    # Comparing with a long prompt and with a thousand memos would block the event loop for too long.
    reason, old = await asyncio.to_thread(_compared, known, new, [message.text for message in desk.prompt])
    if reason is not None:
        desk.metrics.memos_total.labels("refused").inc()
        raise ToolRefused(f"not saved, {reason}.")
    if old is None and len(known) >= desk.settings.memos.keep:
        desk.metrics.memos_total.labels("refused").inc()
        raise ToolRefused(f"not saved: {len(known)} memos are kept here, and no more can be.", limited=True)
    memo = new if old is None else memos.merged(old, new)
    await desk.store.put([notebook.write(desk.tenant, memo)])
    desk.metrics.memos_total.labels("saved" if old is None else "merged").inc()
    desk.saved(memo.id, old is not None)
    done = "saved" if old is None else "saved in place of one that said nearly the same"
    return f"[{done}: memo {memo.id}, tags {', '.join(memo.tags) or 'none'}]"


def _compared(known: Sequence[Memo], new: Memo, prompt: Sequence[str]) -> tuple[str | None, Memo | None]:
    reason = memos.junk(new.content, prompt)
    return reason, memos.twin(known, new) if reason is None else None


def _name(content: str, desk: Desk) -> str:
    """Return a memo's id: the same on every replica for the same call."""
    parts = (desk.tenant, desk.project, desk.session, content, repr(desk.now()))
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
    takes=Takes,
    answer=answer,
)
