"""Tools of the proxy for programs outside of a conversation, for example the MCP server: one call, in one session.

The tools are those that a model is offered in its prompt, and `search`. A call sees its own tenant and session, and the
tenant's memos, as a call of the session's model does.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from proxy.errors import NotFound
from proxy.exchange import publish_events
from proxy.exchange.services import Services
from proxy.operator.find_session import find_last_exchange, read_session
from proxy.tools.registry import TOOLS
from proxy.tools.run_tool import is_error_result, run_tool_call
from proxy.tools.search_messages import SEARCH
from proxy.tools.tool import Tool
from proxy.tools.tool_context import ToolContext

OUTSIDE_TOOLS: Mapping[str, Tool[Any]] = MappingProxyType({SEARCH.name: SEARCH, **TOOLS})
"""The tools by name, in the order in which they are listed."""


class ToolDescription(msgspec.Struct, frozen=True):
    """A tool for a program that offers it to a model. parameters: JSON Schema of its arguments."""

    name: str
    description: str
    parameters: dict[str, Any]


class ToolResult(msgspec.Struct, frozen=True):
    """The result of a call. failed: the text is an error, for the model to read."""

    text: str
    failed: bool


class _Call(msgspec.Struct, frozen=True):
    name: str
    arguments: str


def list_tools() -> list[ToolDescription]:
    """Return every tool that may be called."""
    return [
        ToolDescription(
            tool.name,
            tool.description,
            {"type": "object", "properties": dict(tool.parameters), "required": list(tool.required)},
        )
        for tool in OUTSIDE_TOOLS.values()
    ]


async def call_tool(
    services: Services, tenant: str, session: str, name: str, arguments: Mapping[str, Any], *, project: str = ""
) -> ToolResult:
    """Run one call in a session. project: the namespace of memos. Raises NotFound for an unknown tool."""
    if name not in OUTSIDE_TOOLS:
        raise NotFound(f"there is no tool {name[:64]!r}", hint="GET /api/tools lists them.")
    context = ToolContext(
        tenant=tenant,
        session=session,
        branch=await _find_branch(services, tenant, session),
        explicit=True,
        project=project,
        store=services.store,
        settings=services.settings,
        metrics=services.metrics,
        now=services.now,
        sandbox=services.sandbox,
        read_slots=services.read_slots,
        on_memo_saved=lambda memo, merged: publish_events.publish_memo_changed(services, tenant, memo, merged=merged),
    )
    text = await run_tool_call(_Call(name, msgspec.json.encode(arguments).decode()), context, OUTSIDE_TOOLS)
    return ToolResult(text, is_error_result(text))


async def _find_branch(services: Services, tenant: str, session: str) -> str:
    """The branch last spoken in; "" where nothing was said yet. Raises NotFound if there is no such session."""
    record = await read_session(services, tenant, session)
    try:
        return (await find_last_exchange(services, record, None)).branch
    except NotFound:
        return ""
