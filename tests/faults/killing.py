"""kill -9 under load: clients that hold conversations through a proxy that dies at random, and what they have got.

A client counts a turn as acknowledged when it has the last frame of its answer (`data: [DONE]`, or the whole body of
one that is not streamed). Every such turn has to be in the store: the message as the client sent it, byte for byte, the
answer, and one exchange that is complete.
"""

from __future__ import annotations

import asyncio
import json
import random
import sqlite3
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import asyncpg

from tests.faults.fork_server import ForkServer
from tests.proxy_server import CHAT, join_chunks, parse_answer
from tests.raw_upstream import HEAD, STREAM, Connection, RawRequest, make_post, run_upstream, send_raw, wait_until
from tests.snapshot import snapshot

CLIENTS = 6
TURNS = 6
"""Of a conversation; then the client begins another."""
LONG, BEFORE = 8, 1000
"""One conversation of so many begins with a history of so many messages: more than the store writes at once."""
LEAST = 3
"""Turns that are acknowledged in each life. Else a busy machine would kill proxies that have nothing to lose."""
SOUND = 10
"""After every so many lives the whole file is checked."""

Fetch = Callable[[str], Awaitable[list[tuple[Any, ...]]]]
"""Rows of a store, by SQL of ours."""


@dataclass
class Acknowledged:
    """A turn that was confirmed to a client: its message as bytes, the answer's text, the number of tries, and
    the messages before it that were never sent before."""

    sent: bytes
    answer: str
    tries: int
    before: tuple[bytes, ...] = ()


@dataclass
class Load:
    """Clients, and what they have seen over all lives of the proxy."""

    chance: random.Random
    acknowledged: dict[str, Acknowledged] = field(default_factory=dict)
    deferred: int = 0
    unstored: int = 0
    broken: int = 0
    number: int = 0

    def has_acknowledged(self, count: int) -> bool:
        """So many turns, in all lives."""
        return len(self.acknowledged) >= count

    async def client(self, port: int) -> None:
        """One conversation after the other, until it is cancelled; a turn that breaks off is asked once more."""
        while True:
            messages: list[dict[str, Any]] = []
            tag = self.number = self.number + 1
            if not tag % LONG:
                messages += [{"role": ("user", "assistant")[n % 2], "content": f"h{tag}.{n}"} for n in range(BEFORE)]
            for turn in range(TURNS):
                mark = f"m{tag}.{turn}"
                messages.append({"role": "user", "content": f"{mark} " + "text " * self.chance.randrange(300)})
                answer = None
                tries = 0
                while answer is None:
                    tries += 1
                    answer = await self._ask(port, messages, mark, tries)
                messages.append({"role": "assistant", "content": answer})

    async def _ask(self, port: int, messages: list[dict[str, Any]], mark: str, tries: int) -> str | None:
        stream = self.chance.random() < 0.5
        raw = json.dumps({"model": "m", "messages": messages, "stream": stream}).encode()
        try:
            got = parse_answer(await send_raw(port, make_post(CHAT, raw, b"content-type: application/json"), 20))
        except (OSError, IndexError, ValueError, TimeoutError):
            self.broken += 1
            await asyncio.sleep(0.01)  # the proxy is dying: this client is about to be cancelled
            return None
        ended = b"data: [DONE]\n\n" in got.body if stream else got.whole
        if got.status != 200 or not ended:
            self.broken += 1
            await asyncio.sleep(0.01)
            return None
        message = join_chunks(json.loads(e) for e in got.events if e != b"[DONE]") if stream else got.message
        answer = str(message["content"])
        assert answer == f"answer to {mark}", "another's answer"
        if got.header("x-context-persist") or b"persist deferred" in got.body:
            self.deferred += 1
        elif got.header("x-context-fallback") == "store":
            self.unstored += 1  # the store did not answer in time: the proxy says so, and records a gap
        else:
            *before, last = (json.dumps(message).encode() for message in messages)
            history = tuple(before) if mark.endswith(".0") else ()
            self.acknowledged[mark] = Acknowledged(last, answer, tries, history)
        return answer


async def answer_with_mark(request: RawRequest, connection: Connection) -> None:
    """Answers with the mark of the last user message."""
    asked = json.loads(request.body)
    said = next(m["content"] for m in reversed(asked["messages"]) if m["role"] == "user")
    text = f"answer to {said.split()[0]}"
    if not asked.get("stream"):
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        body = json.dumps({"id": "c", "object": "chat.completion", "choices": [choice]}).encode()
        await connection.send(HEAD + b"content-length: %d\r\n\r\n" % len(body) + body)
        return
    await connection.send(STREAM)
    for delta, finish in (
        ({"role": "assistant"}, None),
        ({"content": text[:9]}, None),
        ({"content": text[9:]}, "stop"),
    ):
        chunk = {"id": "c", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}
        await connection.chunk(b"data: " + json.dumps(chunk).encode() + b"\n\n")
    await connection.chunk(b"data: [DONE]\n\n")
    await connection.send(b"0\r\n\r\n")


async def kill_rounds(
    fork_server: ForkServer, db: str, rounds: int, seed: int, check: Fetch, sound: Callable[[], None] | None = None
) -> Load:
    """So many lives of a proxy on `db`, each under load and ended by -9; what each acknowledged is looked for after it,
    and everything once more at the end. sound: raises where the store is damaged."""
    load = Load(random.Random(seed))
    checked: set[str] = set()
    async with run_upstream(answer_with_mark) as upstream:
        url = f"http://127.0.0.1:{upstream.port}/v1"
        for number in range(rounds):
            began = time.time()
            pid, port = await fork_server.started(
                upstream=url, db=db, tokens={"count": "estimate"}, log_level="warning"
            )
            clients = [asyncio.create_task(load.client(port)) for _ in range(CLIENTS)]
            known = len(load.acknowledged)
            await asyncio.sleep(load.chance.uniform(0.05, 0.9))
            if len(load.acknowledged) < known + LEAST:  # a busy machine takes longer
                await wait_until(partial(load.has_acknowledged, known + LEAST))
                await asyncio.sleep(load.chance.uniform(0.0, 0.1))  # or each life would end behind a turn
            await asyncio.to_thread(fork_server.kill, pid)
            await asyncio.sleep(0.05)  # what was in the sockets arrives
            for client in clients:
                client.cancel()
            for result in await asyncio.gather(*clients, return_exceptions=True):
                assert isinstance(result, asyncio.CancelledError), result
            fresh = {mark: load.acknowledged[mark] for mark in load.acknowledged.keys() - checked}
            if number % SOUND == 0 and sound is not None:
                await asyncio.to_thread(sound)
            await check_stored(fresh, check, began)
            checked |= fresh.keys()
    if sound is not None:
        await asyncio.to_thread(sound)
    await check_stored(load.acknowledged, check)
    return load


async def check_stored(acknowledged: dict[str, Acknowledged], fetch: Fetch, since: float = 0.0) -> None:
    """All of these turns are stored, as they were, once. since: seconds of the wall clock before any of them."""
    bodies = Counter(
        bytes(body) for (body,) in await fetch(f"SELECT body FROM messages WHERE created_at >= {since:.3f} - 1")
    )
    answers = Counter(
        json.loads(bytes(body))["content"]
        for (body,) in await fetch(
            "SELECT m.body FROM exchanges e JOIN messages m ON m.tenant = e.tenant AND m.session = e.session"
            f" AND m.key = e.answer WHERE e.status = 'complete' AND e.started_at >= {since:.3f} - 1"
        )
    )
    lost = [
        mark
        for mark, one in acknowledged.items()
        if one.answer not in answers or any(body not in bodies for body in (one.sent, *one.before))
    ]
    assert not lost, f"{len(lost)} acknowledged turns lost of {len(acknowledged)}: {lost[:5]}"
    for mark, one in acknowledged.items():
        assert bodies[one.sent] == 1, f"{mark} is stored {bodies[one.sent]} times"
        assert answers[one.answer] <= one.tries, f"the answer to {mark} is stored more often than it was asked for"


def make_sqlite_fetch(path: str) -> Fetch:
    """Reads the file as it was left."""

    async def fetch(text: str) -> list[tuple[Any, ...]]:
        with closing(snapshot(path)) as connection:
            found: list[tuple[Any, ...]] = connection.execute(text).fetchall()
        return found

    return fetch


def check_integrity(path: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def make_postgres_fetch(url: str) -> Fetch:
    async def fetch(text: str) -> list[tuple[Any, ...]]:
        connection = await asyncpg.connect(url)
        try:
            return [tuple(row) for row in await connection.fetch(text)]
        finally:
            await connection.close(timeout=5)

    return fetch
