"""The lengths of earlier conversations are known after a restart."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from proxy.chat.message import Request
from proxy.dialects.completions.request import read_request
from proxy.errors import StoreUnavailable
from proxy.exchange.learned_lengths import load_lengths
from proxy.store.reads import Store
from tests.proxy_server import RunningProxy, run_proxy
from tests.raw_upstream import run_upstream
from tests.scripted_model import ScriptedModel
from tests.sessions.test_conversation_lengths import TOOLS, count_steps_until_cut, send_history

SYSTEM = {"role": "system", "content": "You mend code. " * 8 + "The folder is /home/dev/1."}


def make_request(*messages: dict[str, Any], tools: list[dict[str, Any]] = TOOLS) -> Request:
    return read_request(json.dumps({"model": "m", "messages": messages, "tools": tools}).encode())


async def list_lengths(proxy: RunningProxy, request: Request) -> list[int]:
    """The lengths that the proxy knows of this agent, once what it began at its start is done."""
    tasks = [task for task in proxy.app.services.background_tasks if task.get_name() == "learned-lengths"]
    await asyncio.gather(*tasks)
    ((tenant,),) = await proxy.rows("SELECT DISTINCT tenant FROM sessions")
    return sorted(proxy.app.services.known_agents.find(tenant, request).list_lengths())


async def test_after_a_restart_the_next_task_is_shortened_as_early_as_before(tmp_path: Path) -> None:
    model = ScriptedModel()
    model.usage = {}  # none is reported, so that the proxy's own prediction of the cache stands
    db = str(tmp_path / "store.sqlite3")
    async with run_upstream(model) as upstream:
        async with run_proxy(upstream.port, policy="thrifty", db=db) as proxy:
            for key in ("sk-one", "sk-two"):  # from its second task on, an agent has the tools that come with edits
                await count_steps_until_cut(proxy, model, "first", key)
            for n in range(3):
                await send_history(proxy, f"long{n}", 200, "sk-one")
        async with run_proxy(upstream.port, policy="thrifty", db=db) as proxy:
            early = await count_steps_until_cut(proxy, model, "next", "sk-one")
            assert early < await count_steps_until_cut(proxy, model, "next", "sk-two"), "another tenant's task waits"


async def test_agents_are_distinguished_as_before_and_side_calls_do_not_count(tmp_path: Path) -> None:
    model = ScriptedModel("Done.")
    db = str(tmp_path / "store.sqlite3")
    asked, answered = {"role": "user", "content": "Go."}, {"role": "assistant", "content": "Done."}
    plain, mended = make_request(asked), make_request({**SYSTEM, "content": SYSTEM["content"][:-1] + "2."}, asked)
    async with run_upstream(model) as upstream:
        async with run_proxy(upstream.port, policy="thrifty", db=db) as proxy:
            for name, steps, system in (("a", 1, []), ("b", 3, [SYSTEM]), ("c", 2, [SYSTEM])):
                for n in range(steps):
                    history = [*system, asked, *[answered, asked] * n]
                    body = {"model": "m", "messages": history, "tools": TOOLS}
                    assert (await proxy.post(body, f"x-context-session: {name}".encode())).status == 200
            title = {"model": "m", "messages": [{"role": "system", "content": "Make a title."}, asked]}
            assert (await proxy.post(title, b"x-context-session: b")).status == 200
        async with run_proxy(upstream.port, policy="thrifty", db=db) as proxy:
            assert await list_lengths(proxy, plain) == [1]
            assert await list_lengths(proxy, mended) == [2, 3]
            assert await list_lengths(proxy, make_request(asked, tools=[])) == []


async def test_without_the_store_lengths_are_learned_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: Any, **__: Any) -> Any:
        raise StoreUnavailable("the disk is gone")

    model = ScriptedModel("Done.")
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        monkeypatch.setattr(Store, "list_sessions", fail)
        await load_lengths(proxy.app.services)
        counted = proxy.app.services.metrics.internal_errors_total.labels(where="learned_lengths")
        assert counted._value.get() == 1
        assert (await proxy.post({"model": "m", "messages": [{"role": "user", "content": "Go."}]})).status == 200
