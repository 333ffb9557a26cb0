"""The vocabulary of the model that was used last is read soon after the start."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from proxy.errors import StoreUnavailable
from proxy.exchange import warm_vocabulary
from tests.proxy_server import Agent, RunningProxy, run_proxy
from tests.raw_upstream import run_upstream
from tests.scripted_model import ScriptedModel

EXACT: dict[str, Any] = {"tokens": {"count": "exact"}}


async def wait_for_vocabulary(proxy: RunningProxy) -> int:
    """The number of vocabularies that are read, once what began at the start is done."""
    tasks = [task for task in proxy.app.services.background_tasks if task.get_name() == "vocabulary"]
    await asyncio.gather(*tasks)
    return len(proxy.app.services.warm_counters)


async def test_a_restart_reads_the_vocabulary_of_the_last_model_before_a_request_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = {**EXACT, "db": str(tmp_path / "store.sqlite3")}
    async with run_upstream(ScriptedModel()) as upstream:
        monkeypatch.setattr(warm_vocabulary, "QUIET_S", 60.0)
        async with run_proxy(upstream.port, **tree) as proxy:
            await Agent(proxy, more={"model": "gpt-5"}).say("Hello")
        monkeypatch.setattr(warm_vocabulary, "QUIET_S", 0.01)
        async with run_proxy(upstream.port, **tree) as proxy:
            assert await wait_for_vocabulary(proxy) == 1
            before = set(proxy.app.services.warm_counters)
            await Agent(proxy, more={"model": "gpt-5"}).say("Hello again")
            assert proxy.app.services.warm_counters == before, "it is the counter of the requests"


async def test_a_store_without_conversations_reads_no_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_vocabulary, "QUIET_S", 0.01)
    async with run_upstream(ScriptedModel()) as upstream, run_proxy(upstream.port, **EXACT) as proxy:
        assert await wait_for_vocabulary(proxy) == 0


async def test_a_store_that_does_not_answer_reads_no_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: Any, **__: Any) -> Any:
        raise StoreUnavailable("away")

    monkeypatch.setattr(warm_vocabulary, "QUIET_S", 0.01)

    def put_in(app: Any) -> None:
        app.store.list_sessions = fail

    async with run_upstream(ScriptedModel()) as upstream, run_proxy(upstream.port, before=put_in, **EXACT) as proxy:
        assert await wait_for_vocabulary(proxy) == 0
