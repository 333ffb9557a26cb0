"""Operator's view of a tenant's memos, and changes of them: list, show, save, edit, delete."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Sequence

from proxy.errors import Conflict, NotFound, Unprocessable
from proxy.exchange import publish_events
from proxy.exchange.services import Services
from proxy.notes import memo_matching
from proxy.notes.memo_matching import Memo
from proxy.operator.response_models import DeletedMemo, MemoDetails
from proxy.store.session_notes import MemoRow
from proxy.tools import stored_memos

PAGE_SIZE = 200
"""Memos that are read at a time."""


async def iterate_memos(
    services: Services, tenant: str, *, project: str | None, text: str = "", after: str = ""
) -> AsyncIterator[MemoDetails]:
    """Yield a tenant's memos in the order of their ids. text: in content or tags. after: the id before them."""
    wanted = text.casefold()
    while rows := await services.store.read_memos(tenant, project, PAGE_SIZE, after):
        for row in rows:
            if wanted in f"{row.content} {row.tags}".casefold():
                yield _describe_memo(row)
        if len(rows) < PAGE_SIZE:
            return
        after = rows[-1].memo


async def read_memo(services: Services, tenant: str, memo: str) -> MemoDetails:
    """Return a memo. Raises NotFound; StoreUnavailable passes through, here and below."""
    return _describe_memo(await _read_row(services, tenant, memo))


async def save_memo(
    services: Services, tenant: str, content: str, *, tags: Sequence[str] = (), project: str = ""
) -> MemoDetails:
    """Save a memo; a memo that says nearly the same is updated instead. Raises Unprocessable for an unusable content,
    Conflict where the project has as many as may be."""
    content, project, now = (
        memo_matching.normalize_text(content),
        memo_matching.normalize_project(project),
        services.now(),
    )
    _check_content(content)
    most = services.settings.memos.keep
    known = await stored_memos.load_project_memos(services.store, tenant, project, most)
    new = Memo(secrets.token_hex(5), content, memo_matching.normalize_tags(tags), "", now, now, project)
    # A thousand comparisons, and chat goes on meanwhile.
    old = await asyncio.to_thread(memo_matching.find_duplicate, known, new)
    if old is None and len(known) >= most:
        raise Conflict(f"{len(known)} memos are kept in a project, and no more can be", hint="Delete one.")
    row = stored_memos.make_memo_row(tenant, new if old is None else memo_matching.merge_memos(old, new))
    await services.store.put([row])
    publish_events.publish_memo_changed(services, tenant, row.memo, merged=old is not None)
    return _describe_memo(row)


async def edit_memo(
    services: Services, tenant: str, memo: str, *, content: str | None = None, tags: Sequence[str] | None = None
) -> MemoDetails:
    """Replace the content or the tags of a memo. Raises NotFound, Unprocessable."""
    old = stored_memos.read_memo(await _read_row(services, tenant, memo))
    new_content = old.content if content is None else memo_matching.normalize_text(content)
    new_tags = old.tags if tags is None else memo_matching.normalize_tags(tags)
    _check_content(new_content)
    now = max(services.now(), old.updated_at)
    new = Memo(old.id, new_content, new_tags, old.session, old.created_at, now, old.project)
    row = stored_memos.make_memo_row(tenant, new)
    await services.store.put([row])
    publish_events.publish_memo_changed(services, row.tenant, row.memo)
    return _describe_memo(row)


async def delete_memo(services: Services, tenant: str, memo: str) -> DeletedMemo:
    """Remove a memo, so that it does not come back, whoever writes to it. Raises NotFound."""
    row = await _read_row(services, tenant, memo)
    gone = MemoRow(
        row.tenant, row.session, row.memo, row.project, "", "[]", "", row.created_at, services.now(), deleted=True
    )
    await services.store.put([gone])
    return DeletedMemo(memo)


async def _read_row(services: Services, tenant: str, memo: str) -> MemoRow:
    row = await services.store.read_memo(tenant, memo)
    if row is None:
        raise NotFound(f"there is no memo {memo!r}", hint="GET /api/memos lists them.")
    return row


def _check_content(content: str) -> None:
    reason = memo_matching.find_refusal_reason(content)
    if reason is not None:
        raise Unprocessable(f"the memo would be {reason}")


def _describe_memo(row: MemoRow) -> MemoDetails:
    memo = stored_memos.read_memo(row)
    return MemoDetails(
        memo.id, memo.project, memo.content, list(memo.tags), memo.session, memo.created_at, memo.updated_at
    )
