from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest

from proxy.cli.logs import JsonFormatter, TextFormatter
from proxy.web.request_log import MAX_PATH_CHARS, render_path
from tests.faulty import STREAM, Connection, Request, ask, connect, faulty, post
from tests.running import CHAT, Agent, running
from tests.scripted import Scripted, reply

NAME = "proxy.requests"


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """The request lines so far, as JSON would have them."""
    return [json.loads(JsonFormatter().format(record)) for record in caplog.records if record.name == NAME]


async def some(caplog: pytest.LogCaptureFixture, count: int) -> list[dict[str, Any]]:
    async with asyncio.timeout(5):
        while len(lines(caplog)) < count:
            await asyncio.sleep(0.005)
    assert len(lines(caplog)) == count
    return lines(caplog)


async def test_a_managed_request_has_one_line_with_its_session_policy_tokens_and_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    model = Scripted("Well.")
    model.usage = {**model.usage, "prompt_tokens_details": {"cached_tokens": 7}}
    async with faulty(model) as upstream, running(upstream.port, policy="thrifty") as proxy:
        for stream in (True, False):
            agent = Agent(proxy, (b"x-context-session: s",), path=CHAT + "?api_key=canary", stream=stream)
            await agent.say(f"canary {stream}")
        first, second = await some(caplog, 2)
    for line in (first, second):
        assert (line["level"], line["method"], line["path"], line["status"]) == ("info", "POST", CHAT, 200)
        assert (line["session"], line["policy"], line["cached"]) == ("s", "thrifty", 7)
        assert line["tokens_before"] == line["tokens_after"] > 0
        assert 0 < line["ms"] < 10_000
        assert "outcome" not in line
        assert "broken_off" not in line
    assert "canary" not in json.dumps(lines(caplog))


async def test_what_passes_unmanaged_has_a_line_too_and_probes_have_one_at_debug(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    async with faulty(Scripted("Well.")) as upstream, running(upstream.port) as proxy:
        await proxy.get("/healthz")
        await proxy.post({"model": "m", "input": "canary"}, path="/v1/embeddings")
        await Agent(proxy).send(b"x-context-off: 1")
        passed, off = await some(caplog, 2)
        caplog.set_level(logging.DEBUG)
        await proxy.get("/healthz")
        assert (await some(caplog, 3))[2]["level"] == "debug"
    assert (passed["path"], passed["status"]) == ("/v1/embeddings", 200)
    assert "session" not in passed
    assert off["fallback"] == "off"


async def test_a_stream_that_the_upstream_cuts_is_a_warning_and_no_error(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def cut(_: Request, there: Connection) -> None:
        await there.send(STREAM)
        await there.chunk(b'data: {"choices":[{"index":0,"delta":{"content":"canary"}}]}\n\n')
        await there.reset()

    async with faulty(cut) as upstream, running(upstream.port) as proxy:
        found = await Agent(proxy, stream=True, messages=[{"role": "user", "content": "Hello"}]).send()
        assert not found.whole
        (line,) = await some(caplog, 1)
        await proxy.post({"model": "m"}, path="/v1/whatever")
        _, other = await some(caplog, 2)
    assert (line["status"], line["broken_off"], line["outcome"]) == (200, True, "partial")
    assert other["broken_off"] is True
    told = [(record.levelname, record.getMessage()) for record in caplog.records if record.name != NAME]
    assert ("WARNING", "upstream default broke off its answer: upstream_broken") in told
    assert not [text for level, text in told if level == "ERROR"], "nothing here is a mistake of the proxy's"
    assert "canary" not in caplog.text


@pytest.mark.parametrize("path", [CHAT, "/v1/embeddings"])
async def test_an_upstream_that_fails_is_told_at_warning(path: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def failing(_: Request, there: Connection) -> None:
        await reply(there, b"502 Bad Gateway", b'{"error":{"message":"canary"}}', b"content-type: application/json")

    async def silent(_: Request, there: Connection) -> None:
        await there.reset()

    body = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}
    for script, told in ((failing, "upstream default answered 502"), (silent, "upstream default failed: upstream_")):
        caplog.clear()
        async with faulty(script) as upstream, running(upstream.port) as proxy:
            assert (await proxy.post(body, path=path)).status == 502
            (line,) = await some(caplog, 1)
        assert line["status"] == 502
        warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        assert [text for text in warned if text.startswith(told)], warned
        assert "canary" not in caplog.text


async def test_a_client_that_leaves_before_its_answer_is_logged_as_gone(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    asked = asyncio.Event()

    async def waiting(_: Request, there: Connection) -> None:
        asked.set()
        await there.left()

    async with faulty(waiting) as upstream, running(upstream.port) as proxy:
        client = await connect(proxy.port)
        body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "Hello"}]}).encode()
        await client.send(post(CHAT, body, b"content-type: application/json"))
        await asyncio.wait_for(asked.wait(), 5)
        client.writer.transport.abort()
        (line,) = await some(caplog, 1)
    assert (line["status"], line["outcome"]) == (499, "client_gone")


async def test_a_path_is_cut_and_cannot_move_a_terminals_cursor(caplog: pytest.LogCaptureFixture) -> None:
    scope = {"path": "/", "raw_path": b"/a%1B[31m\x1b[31m\xff" + b"a" * 500 + b"?key=canary"}
    assert len(render_path(scope)) == MAX_PATH_CHARS
    assert render_path(scope).isprintable()
    caplog.set_level(logging.INFO)
    async with faulty(Scripted("Well.")) as upstream, running(upstream.port) as proxy:
        await ask(proxy.port, b"GET /v1/models?key=canary HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
        (line,) = await some(caplog, 1)
    assert line["path"] == "/v1/models"
    (record,) = [record for record in caplog.records if record.name == NAME]
    assert "GET /v1/models 200" in TextFormatter().format(record)
