"""A tenant's memos: rows, values, and the rule for who may read them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from proxy.errors import ToolRefused
from proxy.notes import memo_matching
from proxy.notes.memo_matching import Memo
from proxy.store.reads import Store
from proxy.store.session_notes import MEMO_SESSION, MemoRow
from proxy.tools.tool_context import ToolContext

PAGE_SIZE = 1000


def read_memo(row: MemoRow) -> Memo:
    """Return the memo of a stored row."""
    try:
        tags = msgspec.json.decode(row.tags, type=tuple[str, ...])
    except ValueError:
        tags = ()
    return Memo(row.memo, row.content, tags, row.source_session, row.created_at, row.updated_at, row.project)


def make_memo_row(tenant: str, memo: Memo) -> MemoRow:
    tags = msgspec.json.encode(memo.tags).decode()
    return MemoRow(
        *(
            tenant,
            MEMO_SESSION,
            memo.id,
            memo.project,
            memo.content,
            tags,
            memo.session,
            memo.created_at,
            memo.updated_at,
        )
    )


def split_tags(tags: Sequence[str] | str) -> list[str]:
    """Return tags as a list: models also write them as one text, separated by commas."""
    return tags.split(",") if isinstance(tags, str) else list(tags)


async def load_memos(context: ToolContext) -> list[Memo]:
    """Return the memos of the project that the client named, else the tenant's own. Raises ToolRefused if this session
    may not use memos, and StoreUnavailable."""
    if not memo_matching.may_use_memos(context.explicit, context.settings.memos.scope):
        raise ToolRefused(
            "memos are not open to this conversation: the client has not named its session.",
            hint="Go on without them.",
        )
    return await load_project_memos(
        context.store, context.tenant, memo_matching.normalize_project(context.project), context.settings.memos.keep
    )


async def load_project_memos(store: Store, tenant: str, project: str, max_memos: int) -> list[Memo]:
    """Return at most `max_memos` memos of a project. Raises StoreUnavailable."""
    rows: list[MemoRow] = []
    after = ""
    while len(rows) < max_memos:
        page = await store.read_memos(tenant, project, min(PAGE_SIZE, max_memos - len(rows)), after)
        rows += page
        if len(page) < PAGE_SIZE:
            break
        after = page[-1].memo
    return [read_memo(row) for row in rows]
