"""Bytes of a stream that are read between two turns of the event loop: other requests wait for so many."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from proxy.stream.sse import SseEvent, SseParser


@asynccontextmanager
async def count_bytes_read() -> AsyncIterator[Counter[int]]:
    """Count the bytes that parsers of events are given, by the turn of the loop."""
    turn, read = 0, Counter[int]()
    feed = SseParser.feed

    def count(parser: SseParser, data: bytes) -> list[SseEvent]:
        read[turn] += len(data)
        return feed(parser, data)

    async def take_turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    turns = asyncio.create_task(take_turns())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SseParser, "feed", count)
        yield read
    turns.cancel()
