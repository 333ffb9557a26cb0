"""D8: the wall clock is set, by a day, back to before 1970, or in the middle of an answer."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from proxy.web.app import ContextProxy
from tests.faults.killing import answer_with_mark
from tests.proxy_server import Agent, run_proxy
from tests.raw_upstream import Connection, RawRequest, run_upstream

DAY = 86_400.0


@pytest.mark.parametrize("policy", ["passthrough", "thrifty", "rolling"])
@pytest.mark.parametrize("stream", [False, True])
async def test_d8_a_clock_that_is_set_changes_neither_order_nor_who_is_who(
    policy: str, stream: bool, tmp_path: Path
) -> None:
    offset = 0.0

    def set_clock(app: ContextProxy) -> None:
        app.services.now = lambda: time.time() + offset

    async def answer(request: RawRequest, connection: Connection) -> None:
        nonlocal offset
        offset = -offset  # it jumps while an answer is under way
        await asyncio.sleep(0.01)
        await answer_with_mark(request, connection)

    db = str(tmp_path / "a.sqlite3")
    async with (
        run_upstream(answer) as upstream,
        run_proxy(upstream.port, policy=policy, db=db, before=set_clock) as proxy,
    ):
        agent = Agent(proxy, stream=stream)
        sessions = set()
        for number, clock in enumerate((0.0, DAY, -DAY, -time.time() - DAY, 0.0)):
            offset = clock
            got = await agent.say(f"m{number}")
            assert got.whole
            sessions.add(got.session)
        assert len(sessions) == 1, "one conversation"
        stored = await proxy.rows("SELECT body FROM messages WHERE role = 'user' ORDER BY seq")
        assert [bytes(body).count(b"m%d" % n) for n, (body,) in enumerate(stored)] == [1] * 5
        assert {row[0] for row in await proxy.outcomes()} == {"complete"}
        assert proxy.count("internal_errors_total", where="prepare") == 0
        assert all(b"m0" in request.body for request in upstream.requests), "nothing has aged out of it"
