from __future__ import annotations

import asyncio

import pytest

from proxy.exchange import client_stream
from tests.exchange.hidden_calls import (
    PlayedConversation,
    assert_hidden,
    make_answer,
    make_proxy_call,
    run_proxy_with_tools,
)
from tests.raw_upstream import STREAM, Connection, RawRequest, run_upstream
from tests.scripted_model import ScriptedModel, make_events


async def test_a_silent_stream_says_that_it_is_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_stream, "KEEPALIVE_S", 0.05)

    async def slow(request: RawRequest, connection: Connection) -> None:
        model.received.append(request)
        await asyncio.sleep(0.4)
        await connection.send(STREAM)
        for event in make_events({"content": "It is so."}):
            await connection.chunk(event)
        await connection.chunk(b"")

    model = ScriptedModel(make_answer("Look. ", make_proxy_call(1)), slow)
    async with run_upstream(model) as upstream, run_proxy_with_tools(upstream.port) as proxy:
        played = PlayedConversation(proxy, model, stream=True)
        found = await played.turn("Hello")
    assert 1 <= found.body.count(b": keepalive\n\n") <= 9
    assert found.message["content"] == "Look. It is so."
    assert_hidden(played.heard)
