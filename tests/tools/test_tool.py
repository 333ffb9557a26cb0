from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from proxy.tools.run_tool import run_tool_call
from proxy.tools.tool import Tool
from proxy.tools.tool_context import ToolContext
from tests.conversations import assistant, make_messages, user
from tests.documentation.blocks import titled
from tests.tools.stored_session import Call, in_memory, make_tool_context


class Takes(msgspec.Struct, frozen=True):
    word: str
    times: int = 1


async def answer(takes: Takes, context: ToolContext) -> str:
    return takes.word * takes.times + context.tenant


ECHO = Tool("echo", "Says it again.", {"word": {"type": "string"}}, ("word",), Takes, answer)


def test_a_tool_has_the_definition_that_it_was_made_with() -> None:
    assert json.loads(ECHO.definition) == {
        "type": "function",
        "function": {
            "name": "echo",
            "description": "Says it again.",
            "parameters": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
        },
    }


async def test_arguments_of_a_tool_call_are_converted_to_its_types() -> None:
    async with in_memory() as store:
        assert await ECHO.call('{"word": "a", "times": "3"}', make_tool_context(store)) == "aaat1"
        with pytest.raises(msgspec.ValidationError, match="word"):
            await ECHO.call("", make_tool_context(store))


async def test_the_tool_of_the_documentation_works() -> None:
    space: dict[str, Any] = {}
    exec(titled("count_messages.py").text, space)
    tool = space["COUNT_MESSAGES"]
    async with in_memory() as store:
        context = make_tool_context(store, prompt=make_messages(user("Hi"), assistant("Yes."), user("So?")))
        counted = [
            await run_tool_call(Call("count_messages", arguments), context, {tool.name: tool})
            for arguments in ('{"role": "user"}', "{}")
        ]
    assert counted[0] == "2 messages of the role user"
    assert json.loads(counted[1])["error"].startswith("the arguments of count_messages cannot be used")
    assert b'"required":["role"]' in tool.definition
