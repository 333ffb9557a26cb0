"""A tenant's memos: rows, values, and the rule for who may read them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from proxy.errors import ToolRefused
from proxy.memory import memos
from proxy.memory.memos import Memo
from proxy.store.base import Store
from proxy.store.written import SHARD, MemoRow
from proxy.tools.desk import Desk

PAGE = 1000


def read(row: MemoRow) -> Memo:
    """Return the memo of a stored row."""
    try:
        tags = msgspec.json.decode(row.tags, type=tuple[str, ...])
    except ValueError:
        tags = ()
    return Memo(row.memo, row.content, tags, row.source_session, row.created_at, row.updated_at, row.project)


def write(tenant: str, memo: Memo) -> MemoRow:
    """Return the row of a memo."""
    tags = msgspec.json.encode(memo.tags).decode()
    return MemoRow(
        *(tenant, SHARD, memo.id, memo.project, memo.content, tags, memo.session, memo.created_at, memo.updated_at)
    )


def listed(tags: Sequence[str] | str) -> list[str]:
    """Return tags as a list: models also write them as one text, separated by commas."""
    return tags.split(",") if isinstance(tags, str) else list(tags)


async def load(desk: Desk) -> list[Memo]:
    """Return the memos of the project that the client named, else the tenant's own. Raises ToolRefused if this session
    may not use memos, and StoreUnavailable."""
    if not memos.reachable(desk.explicit, desk.settings.memos.scope):
        raise ToolRefused(
            "memos are not open to this conversation: the client has not named its session.",
            hint="Go on without them.",
        )
    return await all_of(desk.store, desk.tenant, memos.tidy_project(desk.project), desk.settings.memos.keep)


async def all_of(store: Store, tenant: str, project: str, most: int) -> list[Memo]:
    """Return at most so many memos of a project. Raises StoreUnavailable."""
    rows: list[MemoRow] = []
    after = ""
    while len(rows) < most:
        page = await store.memos(tenant, project, min(PAGE, most - len(rows)), after)
        rows += page
        if len(page) < PAGE:
            break
        after = page[-1].memo
    return [read(row) for row in rows]
