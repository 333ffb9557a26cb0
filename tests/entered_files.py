"""The files of a package that some work enters, and how often it goes from one file to another: a measure of how far
a reader has to travel to follow one request."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import httpx2

from proxy.settings.load import Settings
from proxy.web.app import create_app
from tests.raw_upstream import run_upstream
from tests.scripted_model import ScriptedModel


@dataclass
class EnteredFiles:
    """calls: calls of functions by file, its path from the package's folder. switches: calls that led into another file
    than the call before them in the same thread."""

    calls: Counter[str] = field(default_factory=Counter)
    switches: int = 0


@contextmanager
def entered_files(package: Path) -> Iterator[EnteredFiles]:
    """Follow the calls of this thread, and of threads that begin meanwhile."""
    found, last, before = EnteredFiles(), dict[int, str](), sys.getprofile()
    root = f"{package.resolve()}/"

    def follow(frame: FrameType, event: str, _: Any) -> None:
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(root):
            found.calls[file.removeprefix(root)] += 1
            thread = threading.get_ident()
            found.switches += last.get(thread) != file
            last[thread] = file

    threading.setprofile(follow)
    sys.setprofile(follow)
    try:
        yield found
    finally:
        sys.setprofile(before)
        threading.setprofile(None)


def conversation(count: int) -> list[dict[str, str]]:
    """The first messages of a talk; with an even count the user asks last."""
    talk = [{"role": "system", "content": "Be brief."}]
    for n in range(count):
        talk.append({"role": "user", "content": f"question {n} " + "word " * 40})
        talk.append({"role": "assistant", "content": "answer " + "word " * 40})
    return talk[:count]


async def follow_warm_request(db: Path, messages: int = 42) -> EnteredFiles:
    """The files that one plain request of a conversation enters whose earlier requests have been answered."""
    package = Path(sys.modules[create_app.__module__].__file__ or "").parents[1]
    async with run_upstream(ScriptedModel("answer " + "word " * 40)) as upstream:
        app = create_app(Settings(db=str(db), upstream=f"http://127.0.0.1:{upstream.port}/v1"))
        await app.store.open()
        try:
            async with httpx2.AsyncClient(
                transport=httpx2.ASGITransport(app=app), base_url="http://127.0.0.1"
            ) as client:
                for count in (messages - 4, messages - 2):
                    await ask(client, count)
                with entered_files(package) as found:
                    await ask(client, messages)
        finally:
            app.services.workers.shutdown(wait=False)
            await app.services.client.close()
            await app.store.close()
    return found


async def ask(client: httpx2.AsyncClient, count: int) -> None:
    body = {"model": "m", "messages": conversation(count)}
    answer = await client.post("/v1/chat/completions", json=body, headers={"host": "127.0.0.1"})
    assert (answer.status_code, answer.headers.get("x-context-fallback")) == (200, None)
