"""`search`: messages of the session by their words, for a model that writes no SQL. Offered over MCP alone."""

from __future__ import annotations

from typing import Annotated

import msgspec

from proxy.chat import chain
from proxy.errors import ToolRefused
from proxy.tools.tool import Tool
from proxy.tools.tool_context import ToolContext

MAX_MATCHES = 20
"""Matches in a result."""
SHOWN_CHARS = 300
"""Characters of a match that are shown; `recall` has all of it."""


class SearchArguments(msgspec.Struct, frozen=True):
    """query: words. limit: matches at most."""

    query: str
    limit: Annotated[int, msgspec.Meta(ge=1, le=MAX_MATCHES)] = 10


async def search_messages(arguments: SearchArguments, context: ToolContext) -> str:
    """Return the messages that have words of the query, best first, a line each. Raises ToolRefused for no words."""
    if not arguments.query.strip():
        raise ToolRefused("search takes words as query.")
    async with context.read_slots.hold(context.tenant):
        matches = await context.store.search(context.tenant, context.session, arguments.query, arguments.limit)
        lines = [
            f"[message {chain.public_id(match.key)}, {match.role or match.kind}, "
            + (f"{len(match.text)} characters] " if match.has_text else "long: see recall]")
            + " ".join(match.text[:SHOWN_CHARS].split())
            for match in matches
        ]
    return "\n".join(lines) or "[no message of this conversation has one of these words]"


SEARCH = Tool(
    name="search",
    description=(
        "Search this conversation's stored messages by words, those that have left the prompt too. Best matches first;"
        " recall(id) reads one whole."
    ),
    parameters={"query": {"type": "string"}, "limit": {"type": "integer", "minimum": 1, "maximum": MAX_MATCHES}},
    required=("query",),
    arguments_type=SearchArguments,
    handler=search_messages,
)
