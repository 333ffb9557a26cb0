from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from typing import Any

from proxy.sessions.branch import NODE_BYTES, Branch, LiveSession
from proxy.sessions.live import LiveSessions
from proxy.sessions.packing import Node
from proxy.store.in_memory import InMemoryStore
from tests.proxy_server import Agent, run_proxy
from tests.raw_upstream import run_upstream
from tests.scripted_model import ScriptedModel

NODE = Node(b"form", "t", True, "openai")


def begin(branches: LiveSessions, session: str, name: str = "t") -> Branch:
    live_session = branches.open_session("me", session, explicit=False)
    return branches.add_branch(Branch("me", session, name, "main", b"", live_session))


def indexes(branches: LiveSessions) -> list[Any]:
    return [branches._by_node, branches._by_first_tip]


def test_the_least_recently_used_session_leaves_with_all_that_is_known_of_it() -> None:
    branches = LiveSessions(2, InMemoryStore())
    for name in ("a", "b"):
        branch = begin(branches, name)
        branches.add_node(branch.live_session, name.encode(), NODE)
        branches.record_first_tip(branch, name.encode())
    assert branches.find_session("me", "a") is not None  # so b is the one that was used longest ago
    begin(branches, "c")
    assert branches.find_session("me", "b") is None
    assert branches.find_sessions_at("me", b"b") == []
    assert branches.find_branches_by_tip("me", b"b") == []
    assert branches.find_sessions_at("me", b"a") == ["a"]
    assert len(branches) == 2


def test_one_session_may_have_more_branches_than_the_limit() -> None:
    branches = LiveSessions(2, InMemoryStore())
    for n in range(5):
        begin(branches, "a", f"t{n}")
    assert branches.find_session("me", "a") is not None
    assert len(branches) == 5
    begin(branches, "b")
    assert len(branches) == 1


def test_of_thousands_of_branches_of_one_session_the_last_used_stay() -> None:
    branches = LiveSessions(400, InMemoryStore())
    for n in range(1000):
        branch = begin(branches, "a", f"t{n}")
        branch.stored = n != 3
        branch.store_position.moves.append((b"", None, float(n)))
    live_session = branches.open_session("me", "a", explicit=False)
    assert 25 <= len(branches) == len(live_session.branches) <= 50
    assert {"t3", "t999"} <= live_session.branches.keys(), "one that is in memory alone, and the newest"
    assert live_session.partial, "the others are looked for in the store"


async def test_each_of_many_runs_under_one_name_goes_on_in_its_branch(tmp_path: Path) -> None:
    model = ScriptedModel(*(f"Answer {n}." for n in range(80)))
    tree: dict[str, Any] = {"db": str(tmp_path / "a.sqlite3"), "limits": {"live_branches": 1}}
    async with run_upstream(model) as upstream, run_proxy(upstream.port, **tree) as proxy:
        runs = [Agent(proxy, (b"x-session-id: s",)) for _ in range(40)]
        for run in runs:
            await run.say("Hello")
        assert len(proxy.app.services.live_sessions) <= 17
        for run in runs:
            await run.say("Go on")
        rows = await proxy.rows("SELECT kind, count(*) FROM branches GROUP BY kind ORDER BY kind")
        assert rows == [("main", 1), ("twin", 39)]


def test_without_a_name_only_a_history_after_a_known_answer_is_found() -> None:
    branches = LiveSessions(9, InMemoryStore())
    live_session = begin(branches, "a").live_session
    branches.add_node(live_session, b"asked", Node(b"", "t", False, "openai"))
    branches.add_node(live_session, b"answered", NODE)
    assert branches.find_sessions_at("me", b"asked") == []
    assert branches.find_sessions_at("me", b"answered") == ["a"]
    assert branches.find_sessions_at("you", b"answered") == []


def test_a_session_that_has_left_is_neither_counted_nor_indexed_again() -> None:
    branches = LiveSessions(1, InMemoryStore())
    old = begin(branches, "a")
    begin(branches, "b")  # a leaves while a request of it is under way
    branches.add_node(old.live_session, b"late", NODE)
    branches.record_first_tip(old, b"late")
    branches.add_branch(Branch("me", "a", "t2", "fork", b"", old.live_session))
    branches.forget_session(old.live_session)
    assert len(branches) == 1
    assert indexes(branches) == [{}, {}]
    assert old.live_session.nodes == {b"late": NODE}, "the request itself still finds what it noted"


def test_a_session_that_has_left_is_let_go_without_the_garbage_collector() -> None:
    branches = LiveSessions(1, InMemoryStore())
    begin(branches, "leaves")
    gc.disable()
    try:
        begin(branches, "stays")
        held = [one.session for one in gc.get_objects() if isinstance(one, LiveSession)]
    finally:
        gc.enable()
    assert "stays" in held
    assert "leaves" not in held


def test_memory_of_live_sessions_is_bounded_and_the_least_recently_used_leaves() -> None:
    branches = LiveSessions(99, InMemoryStore(), max_bytes=10 * NODE_BYTES)
    two = [begin(branches, name).live_session for name in ("a", "b")]
    for live_session in two:
        for n in range(4):
            branches.add_node(live_session, b"%d" % n, NODE)
        branches.update_size(live_session)
    assert branches.size == 8 * NODE_BYTES
    assert branches.find_session("me", "a") is not None
    long = begin(branches, "c").live_session
    for n in range(20):
        branches.add_node(long, b"%d" % n, NODE)
        branches.update_size(long)
        assert branches.size <= max(10, n + 1) * NODE_BYTES
    assert [name for name in "abc" if branches.find_session("me", name) is not None] == ["c"], "one may take more"
    branches.add_node(two[1], b"late", NODE)
    branches.update_size(two[1])  # one that has left
    assert branches.size == long.size == 20 * NODE_BYTES
    branches.forget_session(long)
    assert branches.size == 0


def test_forgetting_takes_a_session_out_and_only_the_one_that_is_meant() -> None:
    branches = LiveSessions(9, InMemoryStore())
    old = begin(branches, "a").live_session
    branches.add_node(old, b"k", NODE)
    branches.forget_session(old)
    assert branches.find_session("me", "a") is None
    new = begin(branches, "a").live_session
    branches.add_node(new, b"k", NODE)
    branches.forget_session(old)
    assert branches.find_session("me", "a") is new
    assert branches.find_sessions_at("me", b"k") == ["a"]


async def test_the_number_of_live_branches_stays_within_its_limit() -> None:
    async with (
        run_upstream(ScriptedModel("Well.")) as upstream,
        run_proxy(upstream.port, limits={"live_branches": 5}) as proxy,
    ):
        branches = proxy.app.services.live_sessions
        agents = [Agent(proxy) for _ in range(20)]
        for n, agent in enumerate(agents):
            await agent.say(f"Hello {n}")
        await asyncio.gather(*(agent.say("Go on") for agent in agents))
        for agent in agents:
            await agent.say("And?")
        assert len(branches) == 5
        assert len(branches._sessions) == 5
        indexed = {session for index in branches._by_node.values() for session in index.values()}
        assert indexed <= {session for _, session in branches._sessions}
        assert await proxy.rows("SELECT count(*) FROM branches") == [(20,)]


async def test_first_requests_at_once_are_sessions_of_their_own() -> None:
    model = ScriptedModel(*(f"Answer {n}." for n in range(40)))
    async with run_upstream(model) as upstream, run_proxy(upstream.port) as proxy:
        agents = [Agent(proxy, stream=bool(n % 2)) for n in range(10)]
        first = await asyncio.gather(*(agent.say("Hello") for agent in agents))
        second = await asyncio.gather(*(agent.say("Go on") for agent in agents))
        assert len({f.session for f in first}) == 10
        assert [f.session for f in second] == [f.session for f in first]


async def test_first_requests_at_once_under_one_name_are_twins_in_one_session() -> None:
    model = ScriptedModel(*(f"Answer {n}." for n in range(40)))
    async with run_upstream(model) as upstream, run_proxy(upstream.port) as proxy:
        agents = [Agent(proxy, (b"x-session-id: s",)) for n in range(5)]
        await asyncio.gather(*(agent.say("Hello") for agent in agents))
        await asyncio.gather(*(agent.say("Go on") for agent in agents))
        kinds = await proxy.rows("SELECT session, kind FROM branches")
        assert sorted(kinds) == sorted([("s", "main")] + [("s", "twin")] * 4)
        assert await proxy.rows("SELECT count(*) FROM messages WHERE position = 0") == [(1,)]


def test_a_session_in_memory_is_moved_up_when_it_is_asked_for() -> None:
    branches = LiveSessions(9, InMemoryStore())
    made = [branches.open_session("me", name, explicit=True) for name in "ab"]
    assert branches.open_session("me", "a", explicit=False) is made[0]
    assert isinstance(made[0], LiveSession)
    assert [session for _, session in branches._sessions] == ["b", "a"]


def test_sessions_with_a_node_in_common_are_all_found_there_until_they_leave() -> None:
    branches = LiveSessions(9, InMemoryStore())
    sessions = [begin(branches, name).live_session for name in "abc"]
    for live_session in sessions:
        branches.add_node(live_session, b"k", NODE)
    for left in (["a", "b", "c"], ["b", "c"], ["c"], []):
        assert branches.find_sessions_at("me", b"k") == left
        if left:
            branches.forget_session(sessions["abc".index(left[0])])
    assert indexes(branches) == [{}, {}]


def test_forgetting_a_tenant_takes_all_its_sessions_out_and_nobody_elses() -> None:
    branches = LiveSessions(9, InMemoryStore())
    for name in ("a", "b"):
        branch = begin(branches, name)
        branches.add_node(branch.live_session, name.encode(), NODE)
    other = branches.open_session("you", "a", explicit=False)
    branches.forget_tenant("me")
    assert branches.find_session("me", "a") is None
    assert branches.find_sessions_at("me", b"b") == []
    assert branches.find_session("you", "a") is other
    assert len(branches) == 0


def test_idle_sessions_are_released_and_others_are_not() -> None:
    branches = LiveSessions(9, InMemoryStore())
    for name, at in (("old", 5.0), ("used", 20.0)):
        begin(branches, name).record_move(b"h", None, at)
    begin(branches, "begun")
    branches.forget_idle(10.0)
    assert branches.find_session("me", "old") is None
    assert branches.find_session("me", "used") is not None
    assert branches.find_session("me", "begun") is not None, "its first request is under way"
