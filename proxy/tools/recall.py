"""`recall`: one stored message, whole, in pages. The marks of shortened messages name this tool by default."""

from __future__ import annotations

import msgspec

from proxy.errors import ToolRefused
from proxy.tools import stored_history
from proxy.tools.tool import Tool
from proxy.tools.tool_context import ToolContext

HEADER_CHARS = 500
"""Characters of a result reserved for its description."""


class RecallArguments(msgspec.Struct, frozen=True):
    """The arguments. page counts from 1."""

    id: str
    page: int = 1


async def recall_message(arguments: RecallArguments, context: ToolContext) -> str:
    """Return a page of the message under a line that gives its place, its call, and its age. All pages without that
    line are the message. Raises ToolRefused if there is no such message or page."""
    async with context.read_slots.hold(context.tenant):  # each may read tens of MB for one line
        return await _render_page(arguments, context)


async def _render_page(arguments: RecallArguments, context: ToolContext) -> str:
    name = arguments.id.strip().strip("\"'<>[]").lower()
    message = await stored_history.find_message(context, name)
    if message is None:
        raise ToolRefused(
            f"no message of this conversation has the id {arguments.id[:40]!r}.",
            hint="An id has 10 characters and stands in the mark of what was shortened or left out; copy it exactly.",
        )
    role, text = message
    size = context.settings.tools.result_chars - HEADER_CHARS
    pages = max(1, -(-len(text) // size))
    if not 1 <= arguments.page <= pages:
        known = "one page" if pages == 1 else f"{pages} pages, from 1 on"
        raise ToolRefused(f"message {name} has {known}; there is no page {arguments.page}.")
    start = (arguments.page - 1) * size
    next_call = f'; next: recall(id="{name}", page={arguments.page + 1})' if arguments.page < pages else ""
    seen = await stored_history.load_provenance(context, name)
    origin = f"; {seen.describe_origin()}" if seen is not None else ""
    if seen is not None and seen.edits:
        origin += "; the old text follows"
    head = (
        f"[message {name} of role {role[:20]}, page {arguments.page} of {pages},"
        f" {len(text)} characters in all{origin}{next_call}]"
    )
    return f"{head}\n{text[start : start + size]}"


RECALL = Tool(
    name="recall",
    # Few words, because every request carries this default. The mark and the first page give the rest.
    description="Read a message that was shortened or left out again, whole, by the id in its mark.",
    parameters={
        "id": {"type": "string"},
        "page": {"type": "integer"},
    },
    required=("id",),
    arguments_type=RecallArguments,
    handler=recall_message,
)
