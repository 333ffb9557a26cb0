"""The type of a tool: its description for the model, its arguments, and the function that answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from proxy.tools.tool_context import ToolContext

Arguments = TypeVar("Arguments", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class Tool(Generic[Arguments]):
    """One tool. `handler` raises ToolRefused with what was wrong and what to do, in words for the model."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """JSON Schema of each argument, in order."""
    required: tuple[str, ...]
    arguments_type: type[Arguments]
    """The type that its arguments are decoded into."""
    handler: Callable[[Arguments, ToolContext], Awaitable[str]]

    @property
    def definition(self) -> bytes:
        """The tool's member of the `tools` array: the same bytes for the same words."""
        schema = {"type": "object", "properties": self.parameters, "required": self.required}
        function = {"name": self.name, "description": self.description, "parameters": schema}
        return msgspec.json.encode({"type": "function", "function": function})

    async def call(self, arguments: str, context: ToolContext) -> str:
        """Return the result for arguments as a model wrote them. Raises ToolRefused, msgspec.DecodeError (the base of
        ValidationError), and any error of the store."""
        read = msgspec.json.decode(arguments.strip() or "{}", type=self.arguments_type, strict=False)
        return await self.handler(read, context)
