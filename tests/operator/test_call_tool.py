"""Tools called from outside of a conversation; with the MCP server: tests/cli/test_mcp.py."""

from __future__ import annotations

import pytest

from proxy.errors import NotFound
from proxy.operator.call_tool import call_tool, list_tools
from tests.operator.agent import run_conversation


async def test_every_tool_is_listed_with_a_schema_of_its_arguments() -> None:
    found = {tool.name: tool for tool in list_tools()}
    assert list(found)[:2] == ["search", "recall"]
    assert found["recall"].parameters["required"] == ["id"]


async def test_a_call_sees_its_session_and_a_fault_is_a_result() -> None:
    async with run_conversation("thrifty") as talk:
        place = (talk.parts, talk.tenant, talk.name)
        made = await call_tool(*place, "search", {"query": "Prompt"})
        assert "Prompt number 2?" in made.text
        assert not made.failed
        assert (await call_tool(*place, "recall", {"id": 7})).failed
        with pytest.raises(NotFound):
            await call_tool(*place, "format_disk", {})
        with pytest.raises(NotFound):
            await call_tool(talk.parts, "stranger", talk.name, "search", {"query": "printer"})
