"""A session's stored messages for its own model: one by its id, or all as rows for a query.

Besides the messages of the client, the store holds hidden rounds: calls of the proxy's tools and their results.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from proxy.chat import chain
from proxy.chat.message import Message
from proxy.chat.unicode_text import replace_surrogates
from proxy.context.analysis.provenance import Provenance, find_provenance
from proxy.dialects.completions.request import read_message
from proxy.errors import NotManaged
from proxy.notes.call_summaries import count_media
from proxy.store.base import WHOLE_SESSION, MessageRecord, is_last_page
from proxy.store.session_notes import HiddenRoundRow
from proxy.tools.tool_context import ToolContext

PAGE_SIZE = 200
"""Messages read from the store at a time, so that one list never blocks the event loop for long."""
MAX_COPIED_BYTES = 64 << 20
"""Bytes of a session that are copied for a query, the newest messages first."""
MAX_ROUND_BYTES = 32 << 20
"""Bytes of hidden rounds that are copied for a query."""
CALL_LOOKBACK = 40
"""Messages before a result that are searched for its call."""
MAX_PAGES = 10
MAX_SEARCHED_BYTES = 32 << 20
"""Pages after a message, and bytes of them, that are searched for edits of the same file."""
MESSAGES_PER_YIELD = 10
"""Messages after which the thread yields the interpreter to others."""
MAX_CELL_BYTES = 900_000
"""Bytes of a message's content in a query: SQLite limits it to a million. `recall` returns all of it."""

COLUMNS = (
    *("seq", "id", "group_id", "role", "content", "tool_call_id", "status", "parsing_strategy", "tokens", "created_at"),
    "in_prompt",
)


class _Round(msgspec.Struct, frozen=True):
    replaces: list[str] = []
    results: list[str] = []


_ROUND = msgspec.json.Decoder(_Round)


def format_message(message: Message) -> str:
    """Return all that a message says: text, reasoning and calls, and which images or files it had."""
    parts = [message.text] if message.text else []
    if message.reasoning:
        parts.append(f"[reasoning]\n{message.reasoning}")
    parts += [f"[call {call.id}] {call.name} {call.arguments}" for call in message.calls]
    if message.media_count:
        parts.append(f"[{count_media(message.media_count)} of this message cannot be shown here]")
    return "\n\n".join(parts)


def format_stored_message(raw: bytes) -> str:
    """Return `format_message` of a stored message; its bytes as text if the message cannot be read."""
    try:
        return format_message(read_message(raw))
    except NotManaged:
        return raw.decode("utf-8", "replace")


def read_hidden_messages(row: HiddenRoundRow) -> Iterator[tuple[str, Message]]:
    """Yield the messages of a round that the client does not have, each with its public id. They form separate chains:
    one from the end of the request, one from the answer. The ids are therefore the same whatever the client puts next
    to them."""
    try:
        found = _ROUND.decode(row.body)
        before = [read_message(raw.encode()) for raw in found.replaces]
        ours = [read_message(raw.encode()) for raw in found.results]
    except (ValueError, RecursionError, NotManaged):
        return
    places = {call.id: place for place, call in enumerate(before[-1].calls)} if before else {}
    ours.sort(key=lambda message: places.get(message.call_id or "", 0))
    for at, messages in ((row.tip, before[:-1]), (row.key, ours)):
        for message in messages:
            at = chain.derive_next_key(at, message.digest)  # noqa: PLW2901  a chain
            yield chain.public_id(at), message


async def find_message(context: ToolContext, name: str) -> tuple[str, str] | None:
    """Return (role, all that it says) of the message with this id, of this session alone; None if there is none, or if
    it may be another conversation's."""
    place, own = (context.tenant, context.session), context.readable_keys
    is_known = own is None or name in map(chain.public_id, own)
    stored = await context.store.find_message(*place, name) if is_known else None
    if stored is not None:
        return stored.role, await asyncio.to_thread(format_stored_message, stored.body)
    after = b""
    while rounds := await context.store.read_rounds_page(*place, after):
        after = rounds[-1].key
        if own is not None and not is_known:  # rounds that are not in this prompt, after answers that are
            rounds = [row for row in rounds if row.key in own]
        found = await asyncio.to_thread(_find_hidden_message, rounds, name)
        if found is not None:
            return found
    return None


def _find_hidden_message(rounds: Sequence[HiddenRoundRow], name: str) -> tuple[str, str] | None:
    found = (message for row in rounds for public, message in read_hidden_messages(row) if public == name)
    return next(((message.role, format_message(message)) for message in found), None)


async def load_provenance(context: ToolContext, name: str) -> Provenance | None:
    """Return the origin of a message: the call that it is the result of, its age, and later changes. The source is the
    prompt of this request. If the client has shortened its history, the source is the store. None if neither has the
    message."""
    keys = [chain.public_id(one) for one in context.prompt_keys]
    if name in keys:
        return await asyncio.to_thread(find_provenance, context.prompt, len(keys) - 1 - keys[::-1].index(name))
    place = (context.tenant, context.session)
    stored = await context.store.find_message(*place, name)
    if stored is None:
        return None
    before = await context.store.read_messages(*place, stored.seq, CALL_LOOKBACK, newest=True)
    since: list[MessageRecord] = []
    for _ in range(MAX_PAGES):
        page = await context.store.read_messages(*place, since[-1].seq if since else stored.seq, PAGE_SIZE)
        since += page
        if is_last_page(page, PAGE_SIZE) or sum(len(record.body) for record in since) >= MAX_SEARCHED_BYTES:
            break
    return await asyncio.to_thread(_find_stored_origin, [*reversed(before), stored, *since], len(before))


def _find_stored_origin(records: Sequence[MessageRecord], index: int) -> Provenance | None:
    messages = []
    for n, record in enumerate(records):
        if n % MESSAGES_PER_YIELD == 0:
            time.sleep(0)
        try:
            messages.append(read_message(record.body))
        except NotManaged:
            return None
    return find_provenance(messages, index)


async def load_newest(context: ToolContext, max_bytes: int = MAX_COPIED_BYTES) -> tuple[list[MessageRecord], bool]:
    """Return (the session's messages for tools, newest first, within `max_bytes` bytes; True if all)."""
    records: list[MessageRecord] = []
    own = context.readable_keys
    size, after = 0, 0
    while True:
        page = await context.store.read_messages(context.tenant, context.session, after, PAGE_SIZE, newest=True)
        for record in page:
            size += len(record.body) + 200
            if size > max_bytes and records:
                return records, False
            if own is None or record.key in own:
                records.append(record)
        if is_last_page(page, PAGE_SIZE):
            return records, True
        after = page[-1].seq


async def load_rounds(context: ToolContext) -> tuple[list[HiddenRoundRow], bool]:
    """Return (the session's hidden rounds up to MAX_ROUND_BYTES and the one over it, True if these are all)."""
    found: list[HiddenRoundRow] = []
    size, after = 0, b""
    while page := await context.store.read_rounds_page(context.tenant, context.session, after):
        for row in page:
            found.append(row)
            size += len(row.body)
            if size >= MAX_ROUND_BYTES:
                return found, False
        after = page[-1].key
    return found, True


class PromptMembership(msgspec.Struct, frozen=True):
    """The status of a session's messages, by their keys."""

    left_keys: frozenset[bytes] = frozenset()
    """The messages that have left the prompt."""
    dropped_keys: frozenset[bytes] = frozenset()
    """The messages that the operator has removed, or that were undone."""
    prompt_keys: frozenset[bytes] = frozenset()
    """The messages of the prompt's own history, empty if unknown. A message of another branch is in no prompt."""


UNKNOWN_MEMBERSHIP = PromptMembership()


async def load_prompt_membership(context: ToolContext) -> PromptMembership:
    """Return the status of a session's messages, as its branch has them."""
    place = (context.tenant, context.session)
    left = await context.store.read_left_out(*place, context.branch)
    decided = await context.store.read_edits(*place, WHOLE_SESSION)
    return PromptMembership(
        left_keys=frozenset(message.key for message in left),
        dropped_keys=frozenset(row.key for row, _ in decided if row.action == "gone"),
        prompt_keys=frozenset(context.prompt_keys),
    )


def make_table_rows(
    records: Sequence[MessageRecord],
    rounds: Sequence[HiddenRoundRow],
    membership: PromptMembership = UNKNOWN_MEMBERSHIP,
) -> list[bytes]:
    """Return the lines that fill the table `messages`, in the order of COLUMNS, oldest first. records: newest first.
    This takes long for long sessions: do not call it on the event loop.

    Messages that the client never saw stand before the answer that they led to, under that answer's number.
    """
    behind = {row.key: row for row in rounds}
    table_rows: list[bytes] = []
    for n, record in enumerate(reversed(records)):
        if n % MESSAGES_PER_YIELD == 0:
            time.sleep(0)  # the event loop can then run before this thread's switch interval ends
        if record.status == "removed":
            continue
        name = chain.public_id(record.key)
        status = "dropped" if record.key in membership.dropped_keys else record.status
        stands = status != "dropped" and record.key not in membership.left_keys
        stands = stands and (not membership.prompt_keys or record.key in membership.prompt_keys)
        row = behind.get(record.key)
        for public, message in read_hidden_messages(row) if row is not None else ():
            kind = "tool_call" if message.calls else "completed"
            weight = len(message.raw) // 4
            kind = "dropped" if status == "dropped" else kind
            table_rows.append(
                _make_table_row(
                    record, public, message.role, format_message(message), message.call_id, kind, weight, stands
                )
            )
        cells = (format_stored_message(record.body), record.call_id, status, record.tokens, stands)
        table_rows.append(_make_table_row(record, name, record.role, *cells))
    return table_rows


def _make_table_row(
    record: MessageRecord,
    name: str,
    role: str,
    content: str,
    call_id: str | None,
    status: str,
    tokens: int,
    stands: bool,
) -> bytes:
    text = content.encode("utf-8", "replace")
    if len(text) > MAX_CELL_BYTES:
        text = text[:MAX_CELL_BYTES] + f'\n[cut here; recall(id="{name}") has all of it]'.encode()
    at = datetime.fromtimestamp(record.created_at, UTC).strftime("%Y-%m-%d %H:%M:%S")
    cells: tuple[Any, ...] = (
        *(
            record.seq,
            name,
            record.group_id,
            role,
            text.decode("utf-8", "ignore"),
            None if call_id is None else replace_surrogates(call_id),
            status,
        ),
        *(record.strategy, tokens, at, int(stands)),
    )
    return msgspec.json.encode(cells)
