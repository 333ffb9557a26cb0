"""D12: a turn cancelled at each of its awaits in turn. Nothing stays open, nothing is lost, nothing is there twice."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Generator
from typing import Any

import pytest

from proxy.errors import ClientGone
from proxy.exchange.handler import handle_chat
from proxy.exchange.services import Headers, Incoming, ResponseWriter
from tests.faults.killing import answer_with_mark
from tests.proxy_server import CHAT, RunningProxy, run_proxy
from tests.raw_upstream import run_upstream

MOST = 200
"""Awaits of a turn at which is cancelled; a turn that has more fails the test."""


class Sink(ResponseWriter):
    """The bytes that a client would get."""

    def __init__(self) -> None:
        self.data = b""
        self.status = 0

    async def start(self, status: int, headers: Headers) -> None:
        self.status = status
        await asyncio.sleep(0)

    async def write(self, data: bytes) -> None:
        self.data += data
        await asyncio.sleep(0)

    async def end(self, data: bytes = b"") -> None:
        self.data += data
        await asyncio.sleep(0)

    async def abort(self) -> None:
        await asyncio.sleep(0)


class Stepped:
    """A coroutine that is cancelled when it waits for the n-th time. steps: how often it has waited."""

    def __init__(self, work: Coroutine[Any, Any, None], cancel_at: int) -> None:
        self.steps = 0
        self._work = work
        self._cancel_at = cancel_at

    def __await__(self) -> Generator[Any, Any, None]:
        value: Any = None
        error: BaseException | None = None
        task = asyncio.current_task()
        assert task is not None
        while True:
            try:
                waited = self._work.send(value) if error is None else self._work.throw(error)
            except StopIteration:
                return
            self.steps += 1
            error = None
            if self.steps == self._cancel_at:
                task.cancel()
            try:
                value = yield waited
            except BaseException as caught:  # noqa: BLE001  handed on to where it belongs
                error = caught


async def once(proxy: RunningProxy, body: bytes, cancel_at: int) -> tuple[bool, int, Sink]:
    """(whether it came to its end, how often it waited, what was heard)."""
    sink = Sink()
    incoming = Incoming("POST", CHAT, b"", [(b"authorization", b"Bearer sk-one")], body, None, "t")
    stepped = Stepped(handle_chat(proxy.app.services, incoming, sink), cancel_at)

    async def run() -> None:
        await stepped

    task = asyncio.create_task(run())
    try:
        await task
    except (asyncio.CancelledError, ClientGone):
        return False, stepped.steps, sink
    return True, stepped.steps, sink


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("policy", ["passthrough", "rolling"])
async def test_d12_a_turn_may_be_cancelled_wherever_it_waits(policy: str, stream: bool, tmp_path: Any) -> None:
    db = str(tmp_path / "a.sqlite3")
    async with run_upstream(answer_with_mark) as upstream, run_proxy(upstream.port, policy=policy, db=db) as proxy:
        ended, steps, number, body = False, 0, 0, b""
        while not ended and number < MOST:
            number += 1
            messages = [{"role": "user", "content": f"m{number}"}]
            for turn in range(2):  # the second goes on from what the first has stored
                body = json.dumps({"model": "m", "messages": messages, "stream": stream}).encode()
                cancel_at = number if turn else 10 * MOST
                ended, steps, _ = await once(proxy, body, cancel_at)
                if not turn:
                    assert ended
                    messages += [{"role": "assistant", "content": f"answer to m{number}"}]
                    messages += [{"role": "user", "content": f"then m{number}"}]
            again, _, whole = await once(proxy, body, 10 * MOST)  # what was cancelled is asked for again
            assert again
            assert whole.status == 200
            assert b"then" in whole.data
        assert ended
        assert steps < number, "it was cancelled at every await that it has"
        assert number > 3
        await settled(proxy, number)


async def settled(proxy: RunningProxy, number: int) -> None:
    """Nothing is under way any more, and the store has each message once and no exchange without an end."""
    assert proxy.app.services.open_requests == 0
    left = await proxy.rows("SELECT count(*) FROM exchanges WHERE status = 'open'")
    twice = await proxy.rows("SELECT body, count(*) FROM messages GROUP BY tenant, session, body HAVING count(*) > 1")
    complete = await proxy.rows("SELECT count(*) FROM exchanges WHERE status = 'complete'")
    users = await proxy.rows("SELECT count(*) FROM messages WHERE role = 'user'")
    assert left == [(0,)]
    assert twice == []
    assert complete[0][0] >= 2 * number
    assert users == [(2 * number,)]
    assert proxy.count("internal_errors_total", where="prepare") == 0
    line = next(iter(proxy.app.services.client._transports.values()))
    assert line.open_responses == 0
    assert [one for one in asyncio.all_tasks() if "converse" in repr(one.get_coro())] == []
