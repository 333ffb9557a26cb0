"""`retrieve_memos`: notes of earlier sessions of the same tenant and project."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

import msgspec

from proxy.notes import memo_matching
from proxy.notes.memo_matching import Memo
from proxy.tools import stored_memos
from proxy.tools.tool import Tool
from proxy.tools.tool_context import ToolContext

MAX_MEMOS = 20
"""Memos in a result."""
MAX_TAGS = 30
"""Tags that are listed if no memo fits."""


class RetrieveMemosArguments(msgspec.Struct, frozen=True):
    """The arguments. query: words to look for, in addition to the tags."""

    tags: list[str] | str = []
    query: str = ""


async def find_memos(arguments: RetrieveMemosArguments, context: ToolContext) -> str:
    """Return the memos that have one of the tags, most matches first, then those that fit the words. If none fits,
    return the most frequent tags."""
    known = await stored_memos.load_memos(context)
    room = context.settings.tools.result_chars
    fitting = await asyncio.to_thread(select_memos, known, stored_memos.split_tags(arguments.tags), arguments.query)
    shown = memo_matching.fit_memos(fitting[:MAX_MEMOS], room - 100)
    if not shown:
        often = Counter(tag for memo in known for tag in memo.tags).most_common(MAX_TAGS)
        named = f" Tags: {', '.join(tag for tag, _ in often)}." if often else ""
        return f"[none of {len(known)} memos fits.{named}]"[:room]
    more = f"\n[{len(fitting) - len(shown)} more fit: name more tags]" if len(fitting) > len(shown) else ""
    return memo_matching.render_memos(shown) + more


def select_memos(known: Sequence[Memo], tags: Sequence[str], query: str) -> list[Memo]:
    """Return the memos that fit; all, newest first, if neither tags nor words are given."""
    asked_tags = set(memo_matching.normalize_tags(tags))
    if not asked_tags and not query.strip():
        return sorted(known, key=lambda memo: -memo.updated_at)
    tagged = [memo for memo in known if asked_tags.intersection(memo.tags)]
    tagged.sort(key=lambda memo: (-len(asked_tags.intersection(memo.tags)), -memo.updated_at))
    fitting = memo_matching.select_memos(known, " ".join((query, *tags)), MAX_MEMOS, 1 << 30, min_words=1)
    return [*tagged, *(memo for memo in fitting if memo not in tagged)]


RETRIEVE_MEMOS = Tool(
    name="retrieve_memos",
    description=(
        "Read what earlier conversations noted about this project. Look here before you assume how something is built"
        " or why. Without arguments: the newest."
    ),
    parameters={
        "tags": {"type": "array", "items": {"type": "string"}},
        "query": {"type": "string", "description": "words to look for"},
    },
    required=(),
    arguments_type=RetrieveMemosArguments,
    handler=find_memos,
)
