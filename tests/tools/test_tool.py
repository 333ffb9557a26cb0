from __future__ import annotations

import json

import msgspec
import pytest

from proxy.tools.tool import Tool
from proxy.tools.tool_context import ToolContext
from tests.tools.stored_session import in_memory, make_tool_context


class Takes(msgspec.Struct, frozen=True):
    word: str
    times: int = 1


async def answer(takes: Takes, context: ToolContext) -> str:
    return takes.word * takes.times + context.tenant


ECHO = Tool("echo", "Says it again.", {"word": {"type": "string"}}, ("word",), Takes, answer)


def test_its_definition_is_what_it_is_told_to_be() -> None:
    assert json.loads(ECHO.definition) == {
        "type": "function",
        "function": {
            "name": "echo",
            "description": "Says it again.",
            "parameters": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
        },
    }


async def test_arguments_are_read_into_what_it_takes() -> None:
    async with in_memory() as store:
        assert await ECHO.call('{"word": "a", "times": "3"}', make_tool_context(store)) == "aaat1"
        with pytest.raises(msgspec.ValidationError, match="word"):
            await ECHO.call("", make_tool_context(store))
