"""`context-proxy mcp`: an MCP server with the proxy's tools, for agents that do not get them in their prompt.

It runs next to the agent and asks a running proxy, which alone writes to the store. The session is fixed at the start
or is the one used last. No argument of a model can name another session or tenant.
"""

from __future__ import annotations

import asyncio
import importlib.util
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
import uvicorn

from proxy.cli.remote import AdminClient, RemoteCommand, RemoteRefused, RemoteUnreachable, quote_id, remote_command
from proxy.cli.serve import open_listener
from proxy.cli.terminal import print_notice
from proxy.errors import ConfigError
from proxy.version import VERSION

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

HOST = "127.0.0.1"
"""The only address of the HTTP transport: it has no keys of its own."""
START_S: Final = 5.0
"""Seconds in which the proxy has to answer at the start."""
INSTRUCTIONS = (
    "These tools read and write what context-proxy stores of this conversation: messages that have left the prompt,"
    " a scratchpad, and memos for later conversations."
)


@remote_command
def mcp(
    command: RemoteCommand,
    session: Annotated[str, typer.Option("--session", help="The session; - for the one used last.")] = "-",
    project: Annotated[str, typer.Option("--project", help="The project whose memos the tools see.")] = "",
    http: Annotated[bool, typer.Option("--http", help="Serve streamable HTTP on 127.0.0.1, not stdio.")] = False,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port of --http.")] = 8089,
) -> None:
    """Serve the proxy's tools over MCP: recall, search, query_db, scratchpad and memos of a session."""
    if importlib.util.find_spec("mcp") is None:
        raise ConfigError("mcp", "(not installed)", 'the package `mcp`: pip install "agent-context-proxy[mcp]"')
    warn_of_absence(command.client)
    server = create_server(command.client, session, project)
    if http:
        app = server.streamable_http_app(host=HOST, stateless_http=True, json_response=True)
        with open_listener(HOST, port) as listener:
            uvicorn.Server(uvicorn.Config(app, log_level="warning", ws="none")).run(sockets=[listener])
        return
    asyncio.run(_serve_stdio(server))


def warn_of_absence(client: AdminClient) -> None:
    """Print a warning on stderr if the proxy gives no tools now. The server starts all the same: agents start their
    servers once, and the proxy may come later."""
    try:
        replace(client, seconds=START_S).request("GET", "/api/tools")
    except (RemoteRefused, RemoteUnreachable) as problem:
        print_notice(f"no tools yet: {problem}")


def create_server(client: AdminClient, session: str, project: str) -> Server[dict[str, Any]]:
    """Return a server whose tools are those of the proxy. session: its name, or `-`."""
    import mcp_types as types  # noqa: PLC0415  optional: only this command needs it
    from mcp.server.lowlevel import Server  # noqa: PLC0415  optional: only this command needs it

    async def list_tools(_: Any, __: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        tools = await asyncio.to_thread(client.request, "GET", "/api/tools")
        return types.ListToolsResult(
            tools=[
                types.Tool(name=one["name"], description=one["description"], input_schema=one["parameters"])
                for one in tools
            ]
        )

    async def call_tool(_: Any, asked: types.CallToolRequestParams) -> types.CallToolResult:
        text, failed = await asyncio.to_thread(
            call_remote_tool, client, session, project, asked.name, asked.arguments or {}
        )
        return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=failed)

    return Server(
        "context-proxy",
        version=VERSION,
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


def call_remote_tool(
    client: AdminClient, session: str, project: str, name: str, arguments: dict[str, Any]
) -> tuple[str, bool]:
    """Return (the text of a call's result, True if it is an error). A proxy that is away is an error too."""
    try:
        path = f"{client.find_session_path(session)}/tools/{quote_id(name)}"
        made = client.request("POST", path, {"arguments": arguments, "project": project})
    except (RemoteRefused, RemoteUnreachable) as problem:
        return str(problem), True
    return made["text"], made["failed"]


async def _serve_stdio(server: Server[dict[str, Any]]) -> None:
    from mcp.server.stdio import stdio_server  # noqa: PLC0415  optional: only this command needs it

    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())
