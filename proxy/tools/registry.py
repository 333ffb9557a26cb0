"""Every tool that the proxy can run for the model, in the order in which the tools are offered."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

from proxy.tools.describe_db import DESCRIBE_DB
from proxy.tools.manage_scratchpad import MANAGE_SCRATCHPAD
from proxy.tools.query_db import QUERY_DB
from proxy.tools.recall import RECALL
from proxy.tools.retrieve_memos import RETRIEVE_MEMOS
from proxy.tools.save_memo import SAVE_MEMO
from proxy.tools.tool import Tool

_ALL: tuple[Tool[Any], ...] = (RECALL, QUERY_DB, DESCRIBE_DB, MANAGE_SCRATCHPAD, SAVE_MEMO, RETRIEVE_MEMOS)

TOOLS: Mapping[str, Tool[Any]] = MappingProxyType({tool.name: tool for tool in _ALL})

MEMO_TOOLS = frozenset({SAVE_MEMO.name, RETRIEVE_MEMOS.name})
"""The tools that see other sessions of the tenant."""


def choose_tool_names(
    enabled: Literal["policy"] | Sequence[str], policy: Iterable[str], taken: Container[str], *, memos: bool
) -> tuple[str, ...]:
    """Return the names to offer, in the catalog's order. enabled: the setting, which precedes the policy. taken: names
    of the client's own tools, which win. memos: True if this session may use memos."""
    wanted = set(policy if enabled == "policy" else enabled)
    return tuple(name for name in TOOLS if name in wanted and name not in taken and (memos or name not in MEMO_TOOLS))


def join_definitions(names: Sequence[str]) -> bytes:
    """Return these tools as members of a JSON array, with a comma between them. Raises KeyError for an unknown name."""
    return b",".join(TOOLS[name].definition for name in names)
