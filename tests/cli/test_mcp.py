"""`context-proxy mcp` with the official client of the protocol, over both transports, against a running proxy."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp_types import CallToolResult, TextContent

from proxy.cli.mcp import call_remote_tool, warn_of_absence
from proxy.cli.remote import AdminClient
from tests.proxy_server import CHAT, RunningProxy, parse_answer, run_proxy_in_thread
from tests.raw_upstream import make_post, send_raw

NAMES = ["search", "recall", "query_db", "describe_db", "manage_scratchpad", "save_memo", "retrieve_memos"]
SAID = "The invoice 8841 of Marlow was paid twice."


async def say(proxy: RunningProxy, text: str, session: str, key: str = "sk-one") -> None:
    body = b'{"model":"m","messages":[{"role":"user","content":"%b"}]}' % text.encode()
    head = (b"content-type: application/json", b"x-context-session: " + session.encode())
    answer = parse_answer(await send_raw(proxy.port, make_post(CHAT, body, *head, b"x-context-key: " + key.encode())))
    assert answer.status == 200, answer.body


def text_of(result: Any) -> str:
    assert isinstance(result, CallToolResult)
    (part,) = result.content
    assert isinstance(part, TextContent)
    return part.text


def command(proxy: RunningProxy, *more: str, key: str = "") -> list[str]:
    given = ["--url", f"http://127.0.0.1:{proxy.port}", *(("--key", key) if key else ())]
    return ["-m", "proxy.cli.main", "mcp", *given, *more]


@asynccontextmanager
async def over_stdio(proxy: RunningProxy, *more: str, key: str = "") -> AsyncIterator[Client]:
    parameters = StdioServerParameters(
        command=sys.executable, args=command(proxy, *more, key=key), env=dict(os.environ), cwd=str(Path.cwd())
    )
    async with Client(stdio_client(parameters)) as client:
        yield client


@contextmanager
def serving_http(proxy: RunningProxy, *more: str) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    child = subprocess.Popen([sys.executable, *command(proxy, "--http", "--port", str(port), *more)])
    try:
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        child.terminate()
        child.wait(10)


async def use_every_tool(client: Client) -> None:
    """One conversation with each tool, as a model has it."""
    listed = await client.list_tools()
    assert [tool.name for tool in listed.tools] == NAMES
    found = text_of(await client.call_tool("search", {"query": "Marlow"}))
    assert "paid twice" in found
    (name,) = re.findall(r"\[message (\w{10}), user", found)
    assert SAID in text_of(await client.call_tool("recall", {"id": name}))
    sql = "SELECT count(*) FROM messages WHERE role = 'user'"
    assert "[1]" in text_of(await client.call_tool("query_db", {"sql": sql}))
    await client.call_tool("manage_scratchpad", {"action": "update", "content": "- ask Marlow"})
    assert text_of(await client.call_tool("manage_scratchpad", {"action": "read"})) == "- ask Marlow"
    memo = "Invoices of Marlow are entered by two people, so compare numbers before paying."
    saved = await client.call_tool("save_memo", {"content": memo, "tags": ["invoices"]})
    assert not saved.is_error
    assert "two people" in text_of(await client.call_tool("retrieve_memos", {"tags": ["invoices"]}))
    wrong = await client.call_tool("query_db", {"sql": "DELETE FROM messages"})
    assert wrong.is_error
    assert (await client.call_tool("recall", {})).is_error


async def test_every_tool_works_over_stdio() -> None:
    with run_proxy_in_thread("demo") as proxy:
        await say(proxy, "Another conversation.", "other")
        await say(proxy, SAID, "audit")
        async with over_stdio(proxy) as client:  # the session used last
            await use_every_tool(client)


@pytest.mark.slow
async def test_every_tool_works_over_streamable_http() -> None:
    with run_proxy_in_thread("demo") as proxy:
        await say(proxy, SAID, "audit")
        await say(proxy, "Another conversation.", "other")
        with serving_http(proxy, "--session", "audit") as url:
            await wait_for(url)
            async with Client(url) as client:
                await use_every_tool(client)


async def wait_for(url: str) -> None:
    port = int(url.split(":")[2].split("/", maxsplit=1)[0])
    async with asyncio.timeout(30):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.05)
            else:
                writer.close()
                return


def key(name: str, tenant: str, plane: str) -> dict[str, str]:
    return {"name": name, "sha256": sha256(name.encode()).hexdigest(), "tenant": tenant, "plane": plane}


async def test_a_key_sees_no_session_of_another_tenant_and_a_session_no_other() -> None:
    keys = [key("anna", "a", "data"), key("bert", "b", "data"), key("boss-a", "a", "admin"), key("look-a", "a", "read")]
    with run_proxy_in_thread("demo", keys=keys) as proxy:
        await say(proxy, SAID, "audit", key="anna")
        await say(proxy, "The secret of Bert is 77.", "audit", key="bert")
        await say(proxy, "The secret of Carl is 78.", "third", key="anna")
        url = f"http://127.0.0.1:{proxy.port}"
        everything = {"query": "secret Marlow Bert Carl"}
        text, failed = call_remote_tool(AdminClient(url, "boss-a"), "audit", "", "search", everything)
        assert not failed
        assert "Marlow" in text
        assert "secret" not in text
        assert call_remote_tool(AdminClient(url, "look-a"), "audit", "", "search", everything)[1], "tools write, too"
        assert call_remote_tool(AdminClient(url, "anna"), "audit", "", "search", everything)[1]
        assert call_remote_tool(AdminClient(url), "audit", "", "search", everything)[1]


async def test_what_is_not_there_is_an_error_that_the_model_can_read() -> None:
    with run_proxy_in_thread("demo") as proxy:
        client = AdminClient(f"http://127.0.0.1:{proxy.port}")
        text, failed = call_remote_tool(client, "-", "", "search", {"query": "x"})
        assert failed
        assert "no session" in text
        await say(proxy, SAID, "audit")
        assert call_remote_tool(client, "audit", "", "format_disk", {})[1]
        assert call_remote_tool(client, "nobody", "", "search", {"query": "x"})[1]
    gone = AdminClient("http://127.0.0.1:1")
    text, failed = call_remote_tool(gone, "audit", "", "search", {"query": "x"})
    assert failed
    assert "context-proxy serve" in text


def test_a_proxy_that_cannot_be_reached_is_reported_at_the_start(capsys: pytest.CaptureFixture[str]) -> None:
    warn_of_absence(AdminClient("http://127.0.0.1:1"))
    told = capsys.readouterr()
    assert told.out == "", "the protocol's own"
    assert "no tools yet: http://127.0.0.1:1 cannot be reached" in told.err
    with run_proxy_in_thread("demo") as proxy:
        warn_of_absence(AdminClient(f"http://127.0.0.1:{proxy.port}"))
    assert capsys.readouterr().err == ""


def test_a_port_that_is_taken_is_reported_with_what_is_allowed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = [
            sys.executable,
            "-m",
            "proxy.cli.main",
            "mcp",
            "--url",
            "http://127.0.0.1:1",
            "--http",
            "--port",
            port,
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, f"port = {port} is not usable; allowed: a port that is free" in done.stderr) == (2, True)
