"""Routes of the proxy's tools for programs outside of a conversation: the list, and one call in one session."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Response
from pydantic import BaseModel, ConfigDict, Field

from proxy.operator.call_tool import ToolDescription, ToolResult, call_tool, list_tools
from proxy.web.api import json_answers
from proxy.web.api.admin_context import SessionContextDep
from proxy.web.api.json_answers import ERROR_RESPONSES
from proxy.web.routes import READ

router = APIRouter(tags=["tools"], responses=ERROR_RESPONSES)

TOOL_LIST: Final = list[json_answers.describe(ToolDescription)]  # type: ignore[misc]  # the class is made at import
TOOL_RESULT: Final = json_answers.describe(ToolResult)


class ToolCallBody(BaseModel):
    """The arguments of a call, and the project whose memos it sees."""

    model_config = ConfigDict(extra="forbid")

    arguments: Annotated[dict[str, Any], Field(examples=[{"query": "build"}])] = {}
    project: Annotated[str, Field(max_length=100)] = ""


@router.get("/api/tools", openapi_extra=READ, response_model=TOOL_LIST)
async def show_tools() -> Response:
    """List the tools that may be called in a session, with JSON Schemas of their arguments."""
    return json_answers.render(list_tools())


@router.post("/api/sessions/{session}/tools/{tool}", response_model=TOOL_RESULT)
async def run_tool(
    context: SessionContextDep,
    tool: Annotated[str, Path(max_length=64, description="The tool's name.")],
    body: ToolCallBody,
) -> Response:
    """Run a tool as the session's model would. A fault of the call is a result too, with `failed`."""
    result = await call_tool(
        context.services, context.tenant, context.session, tool, body.arguments, project=body.project
    )
    return json_answers.render(result)
