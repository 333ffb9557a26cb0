"""Facts that a policy may use beside the request: times, pins, the hits of a search, vectors."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from proxy.errors import StoreUnavailable
from proxy.exchange.lookups import WHOLE_LINE, find_lines
from proxy.store.branch_positions import BranchFork
from proxy.store.full_text_search import SearchMatch
from tests.proxy_server import Agent, RunningProxy, run_proxy
from tests.raw_upstream import Connection, RawRequest, run_upstream, wait_until
from tests.scripted_model import ScriptedModel, send_reply

NAMED = (b"x-context-session: a",)


@pytest.mark.parametrize(
    ("value", "pins"), [(b"true", 1), (b"1", 1), (b" TRUE ", 1), (b"yes", 1), (b"false", 0), (b"0", 0), (b"", 0)]
)
async def test_e7_the_header_pins_the_last_user_message_and_only_it(value: bytes, pins: int) -> None:
    async with run_upstream(ScriptedModel("ok")) as upstream, run_proxy(upstream.port) as proxy:
        agent = Agent(proxy, NAMED)
        await agent.say("first")
        await agent.say("second", b"x-context-pin: " + value)
        await agent.say("third")
        found = await proxy.rows(
            "SELECT m.body FROM edits e JOIN messages m ON m.key = e.key WHERE e.action = 'pin' AND e.stage = 'pin'"
        )
        assert [json.loads(body)["content"] for (body,) in found] == ["second"] * pins


async def test_e7_the_same_message_is_pinned_once() -> None:
    async with run_upstream(ScriptedModel("ok")) as upstream, run_proxy(upstream.port) as proxy:
        agent = Agent(proxy, (*NAMED, b"x-context-pin: true"))
        await agent.say("first")
        await agent.send()
        assert len(await proxy.rows("SELECT 1 FROM edits WHERE action = 'pin'")) == 1


async def test_e6_a_prompt_is_searched_for_once_and_only_in_a_session_with_a_name() -> None:
    asked: list[str] = []
    async with run_upstream(ScriptedModel("ok")) as upstream, run_proxy(upstream.port, policy="hierarchical") as proxy:
        store: Any = proxy.app.store
        search = store.search

        async def counted(tenant: str, session: str, query: str, limit: int) -> Any:
            asked.append(query)
            return await search(tenant, session, query, limit)

        store.search = counted
        await Agent(proxy).say("nameless question")
        assert asked == []
        agent = Agent(proxy, NAMED)
        await agent.say("zebra handshake port")
        agent.messages[-1:] = [{"role": "assistant", "content": "so"}]
        await agent.say("other thing")
        await agent.send()
        assert asked == ["handshake port zebra", "other thing"]


@pytest.mark.parametrize("policy", ["chat", "hierarchical"])
async def test_what_the_client_has_gone_back_behind_is_not_found_any_more(policy: str) -> None:
    """The client edits its second message: what it said there, and after it, has others in its place."""
    model = ScriptedModel("Noted.")
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy=policy) as proxy:
        agent = Agent(proxy, NAMED)
        await agent.say("the zebra lives in the north garden")
        await agent.say("the zebra handshake uses port 4711")
        await agent.say("the zebra password is hunter2")
        del agent.messages[2:]
        await agent.say("the zebra handshake uses port 5822")
        await agent.say("the zebra sleeps at noon")
        agent.messages = []  # the client begins anew under the same name, as after a compaction of its own
        await agent.say("tell me the port of the zebra handshake and its garden and its password")
        last = model.texts()[-1]
        assert "uses port 5822" in last
        assert policy != "chat" or "north garden" in last
        assert "4711" not in last
        assert "hunter2" not in last


async def test_a_fork_finds_what_it_shares_before_it_is_stored(tmp_path: Path) -> None:
    """The client sends the end of its history alone, and has gone back there."""
    model = ScriptedModel("Noted.")
    db = str(tmp_path / "store.sqlite3")
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="chat", db=db) as proxy:
        agent = Agent(proxy, NAMED)
        await agent.say("the zebra lives in the north garden")
        agent.messages = []
        await agent.say("the zebra sleeps at noon")
        await agent.say("the zebra handshake uses port 4711")
        del agent.messages[2:]
        await agent.say("tell me the garden and the port of the zebra handshake")
        last = model.texts()[-1]
        assert "north garden" in last
        assert "4711" not in last


def test_the_lines_of_a_session_leave_out_what_was_left_behind() -> None:
    assert find_lines([BranchFork("a", None, None)]) == {"a": WHOLE_LINE}
    forks = [BranchFork(*one) for one in (("c", "b", 7), ("d", "a", 2), ("b", "a", 4), ("a", None, None))]
    assert find_lines(forks) == {"c": WHOLE_LINE, "b": 7, "a": 4}
    assert find_lines([forks[1], forks[0], *forks[2:]]) == {"d": WHOLE_LINE, "a": 2}
    other = [BranchFork("y", "x", 3), BranchFork("z", "x", 1), BranchFork("x", None, None)]
    assert find_lines([*forks, *other]) == {"c": WHOLE_LINE, "b": 7, "a": 4, "y": WHOLE_LINE, "x": 3}
    assert find_lines([BranchFork("new", "a", 1), *forks]) == {"new": WHOLE_LINE, "a": 1}
    assert find_lines([BranchFork("a", "b", 1), BranchFork("b", "a", 1)]) == {}, "a circle is a fault"
    assert find_lines([BranchFork("b", "gone", 3), BranchFork("b", None, None)]) == {"b": WHOLE_LINE}


async def test_a_match_whose_text_was_not_read_is_not_a_hit() -> None:
    matches = [
        SearchMatch("message", b"a" * 16, "user", "the port", -2.0),
        SearchMatch("message", b"b" * 16, "tool", "", -1.0, has_text=False),
    ]

    async def search(*_: Any) -> list[SearchMatch]:
        return matches

    def put_in(app: Any) -> None:
        app.store.search = search

    async with (
        run_upstream(ScriptedModel("ok")) as upstream,
        run_proxy(upstream.port, before=put_in, policy="hierarchical") as proxy,
    ):
        await Agent(proxy, NAMED).say("zebra handshake port")
        ((tenant,),) = await proxy.rows("SELECT tenant FROM sessions")
        live = proxy.app.services.live_sessions.find_session(tenant, "a")
        assert live is not None
        (branch,) = live.branches.values()
        assert branch.lookups.search_hits is not None
        assert [hit.text for hit in branch.lookups.search_hits.texts] == ["the port"]


@pytest.mark.parametrize("fault", [StoreUnavailable("away"), None])
async def test_e6_a_search_that_fails_or_is_late_finds_nothing_and_holds_nobody_up(fault: Exception | None) -> None:

    async def broken(*_: Any) -> Any:
        if fault is not None:
            raise fault
        await asyncio.sleep(5)

    def put_in(app: Any) -> None:
        app.store.search = broken

    tree: dict[str, Any] = {"policy": "hierarchical", "limits": {"commit_wait_ms": 50}}
    async with run_upstream(ScriptedModel("ok")) as upstream, run_proxy(upstream.port, before=put_in, **tree) as proxy:
        found = await Agent(proxy, NAMED).say("zebra handshake port")
        assert found.header("x-context-fallback") is None
        assert proxy.count("internal_errors_total", where="search") == 1


class Model:
    """Chats, and embeds: a text is near to the task when it speaks of zebras."""

    def __init__(self) -> None:
        self.chat = ScriptedModel("ok")
        self.embedded: list[str] = []

    async def __call__(self, request: RawRequest, connection: Connection) -> None:
        if b"/embeddings" not in request.line:
            await self.chat(request, connection)
            return
        texts = json.loads(request.body)["input"]
        self.embedded += texts
        rows = [{"index": n, "embedding": [1.0, 0.0 if "zebra" in t else 1.0]} for n, t in enumerate(texts)]
        body = {"data": rows, "usage": {"prompt_tokens": 1, "total_tokens": 1}}
        await send_reply(connection, b"200 OK", json.dumps(body).encode(), b"content-type: application/json")


def near(proxy: RunningProxy) -> dict[bytes, float]:
    (live_session,) = proxy.app.services.live_sessions._sessions.values()
    (branch,) = live_session.branches.values()
    return branch.lookups.relevance.nearness if branch.lookups.relevance is not None else {}


async def test_e3_vectors_are_made_beside_the_request_once_a_message_and_count_for_the_next() -> None:
    model = Model()
    async with run_upstream(model) as upstream:
        tree: dict[str, Any] = {
            "upstreams": {"main": {"base_url": f"http://127.0.0.1:{upstream.port}/v1"}},
            "helper": {"dollars_a_day": 1.0},
            "embeddings": {"enabled": True, "upstream": "main", "model": "demo"},
            "policy": "hierarchical",
        }
        async with run_proxy(0, **tree) as proxy:
            agent = Agent(proxy, NAMED)
            agent.messages += [{"role": "user", "content": "striped zebra"}, {"role": "assistant", "content": "tulip"}]
            await agent.say("about a zebra")
            await wait_until(lambda: len(near(proxy)) == 3)
            assert sorted(round(v, 2) for v in near(proxy).values()) == [0.71, 1.0, 1.0]
            count = len(model.embedded)
            await agent.send()
            await wait_until(lambda: len(model.embedded) > count)
            assert model.embedded[count:] == ["ok"]  # what is new
            assert len(model.chat.chats) == 2


async def test_a_clients_key_does_not_go_to_an_upstream_for_embeddings_elsewhere() -> None:
    model, other = Model(), Model()
    async with run_upstream(model) as upstream, run_upstream(other) as elsewhere:
        tree: dict[str, Any] = {
            "upstreams": {
                "main": {"base_url": f"http://127.0.0.1:{upstream.port}/v1"},
                "vectors": {"base_url": f"http://127.0.0.1:{elsewhere.port}/v1", "models": ()},
            },
            "helper": {"dollars_a_day": 1.0},
            "embeddings": {"enabled": True, "upstream": "vectors", "model": "demo"},
            "policy": "hierarchical",
        }
        async with run_proxy(0, **tree) as proxy:
            await Agent(proxy, NAMED).say("about a zebra")
            await wait_until(lambda: bool(other.embedded))
    assert [request.all(b"authorization") for request in elsewhere.requests] == [[]]
    assert upstream.requests[0].all(b"authorization") == [b"Bearer sk-one"]


async def test_e3_without_embeddings_nothing_is_asked() -> None:
    model = Model()
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="hierarchical") as proxy:
        await Agent(proxy, NAMED).say("about a zebra")
        assert near(proxy) == {}
        assert model.embedded == []
