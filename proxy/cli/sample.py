"""Sample sessions for `serve --sample`: recordings of a coding agent, played through the proxy into a store.

They are played, not copied: policies plan them, and the demo upstream counts their tokens and its cache. So what the
dashboard shows is what this version of the proxy does with them. The clock is moved back, so that they lie in the last
hour. Their model is the demo model, with its made-up prices.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import msgspec

from proxy.errors import ConfigError, StoreRefused
from proxy.settings.load import Settings, find_shipped_file
from proxy.settings.model import DEMO
from proxy.upstream.demo import DemoTransport
from proxy.upstream.script import ScriptedCall, ScriptedTurn
from proxy.web.app import ContextProxy

SAMPLE_FILE: Final = "sample.jsonl.gz"
STEP_S: Final = 40.0
"""Seconds between two requests of a sample."""


class SampleClock:
    """The clock of the requests that are played. Between two requests it is moved on. During one it goes as any other
    clock, so that each has the time that it took."""

    def __init__(self, at: float) -> None:
        self._offset = at - time.monotonic()

    def __call__(self) -> float:
        return self._offset + time.monotonic()

    def move(self, seconds: float) -> None:
        """Move the clock on."""
        self._offset += seconds


def read_samples() -> list[dict[str, Any]]:
    """Return the recorded conversations of the package, the longest one last: `-` stands for the session used last."""
    lines = gzip.decompress(find_shipped_file(SAMPLE_FILE).read_bytes()).splitlines()
    return sorted((json.loads(line) for line in lines), key=lambda one: len(one["messages"]))


def check_empty(db: str) -> None:
    """Raises ConfigError if a store holds something: samples would stand among a person's own sessions."""
    if "://" in db or db == ":memory:":
        raise ConfigError("db", "***" if "://" in db else db, "a SQLite file that is empty or not there, for --sample")
    if not Path(db).exists() or Path(db).stat().st_size == 0:
        return
    if not Path(db).is_file():
        raise ConfigError("db", db, "a SQLite file that is empty or not there, for --sample")
    try:
        with closing(sqlite3.connect(f"file:{db}?mode=ro", uri=True)) as database:
            [count] = database.execute("SELECT count(*) FROM sessions").fetchone()
    except sqlite3.Error as problem:
        raise StoreRefused(f"{db} is no store of context-proxy: {problem}") from None
    if count:
        raise ConfigError("db", db, f"a store without sessions, for --sample; this one has {count}")


async def fill_store(settings: Settings) -> int:
    """Play the samples into the store of the settings. Return the number of requests. Raises StoreRefused if the store
    cannot be opened."""
    samples = read_samples()
    answers = [[message for message in sample["messages"] if message["role"] == "assistant"] for sample in samples]
    clock = SampleClock(time.time() - STEP_S * (1 + sum(map(len, answers))))
    app = ContextProxy(settings.model_copy(update={"upstream": DEMO, "keys": ()}))
    app.services.now = clock
    await app.store.open()
    try:
        for sample, answer in zip(samples, answers, strict=True):
            turns = iter([_make_turn(message) for message in answer])
            recorded = DemoTransport(take=lambda _, turns=turns: next(turns))  # type: ignore[misc]  # a bound value
            app.services.client.replace_transport(app.services.client.targets[0].name, recorded)
            await _play(app, clock, sample)
    finally:
        await app.services.client.close()
        app.services.workers.shutdown()
        await app.store.close()
    return sum(map(len, answers))


def _make_turn(message: dict[str, Any]) -> ScriptedTurn:
    calls = [one["function"] for one in message.get("tool_calls", ())]
    return ScriptedTurn(message["content"] or "", tuple(ScriptedCall(one["name"], one["arguments"]) for one in calls))


async def _play(app: ContextProxy, clock: SampleClock, sample: dict[str, Any]) -> None:
    """Send the requests of one conversation, as its agent did. Results get the ids of the real answers."""
    history: list[dict[str, Any]] = []
    ids: Iterator[str] = iter(())
    for message in sample["messages"]:
        if message["role"] == "assistant":
            clock.move(STEP_S)
            body = {"model": DEMO, "messages": history, "tools": sample["tools"]}
            answer = await _ask(app, sample["id"], msgspec.json.encode(body))
            history.append(answer["choices"][0]["message"])
            ids = iter([one["id"] for one in history[-1].get("tool_calls", ())])
        elif message["role"] == "tool":
            history.append({**message, "tool_call_id": next(ids)})
        else:
            history.append(message)


async def _ask(app: ContextProxy, session: str, body: bytes) -> Any:
    """Send a request to the application itself, and return its answer."""
    sent: list[bytes] = []
    status = 0
    given = False

    async def receive() -> dict[str, Any]:
        nonlocal given
        if given:
            await asyncio.Event().wait()  # the client stays until its answer has come
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        elif message["type"] == "http.response.body":
            sent.append(message.get("body", b""))

    headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json"),
               (b"content-length", b"%d" % len(body)), (b"x-context-session", session.encode())]  # fmt: skip
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
        "path": "/v1/chat/completions", "raw_path": b"/v1/chat/completions", "query_string": b"", "root_path": "",
        "headers": headers, "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8080), "state": {},
    }  # fmt: skip
    await app(scope, receive, send)
    if status != 200:  # the sample is the package's own
        raise StoreRefused(f"a sample could not be played: {b''.join(sent)[:200]!r}")
    return json.loads(b"".join(sent))
