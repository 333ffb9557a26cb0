from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from proxy.context.plan import Edit
from proxy.errors import StoreUnavailable
from proxy.sessions.branch import NODE_BYTES, Branch, LastRequest, LiveSession, StorePosition
from proxy.sessions.live import LiveSessions
from proxy.sessions.packing import Node
from proxy.sessions.stored_branch import adopt_stored_edits
from proxy.store.base import BranchRow, BranchTipRow, EditRow, Row, SessionRow, StateRow
from proxy.store.branch_positions import BranchPosition
from proxy.store.in_memory import InMemoryStore
from tests.proxy_server import Agent, run_proxy
from tests.raw_upstream import run_upstream
from tests.scripted_model import ScriptedModel

NODE = Node(b"form", "t", True, "openai")


def begin(branches: LiveSessions, session: str, name: str = "t") -> Branch:
    live_session = branches.open_session("me", session, False)
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


def test_only_what_is_behind_an_answer_of_ours_can_be_found_without_a_name() -> None:
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


def test_what_they_take_in_memory_is_bounded_too_and_the_least_recently_used_leaves() -> None:
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


async def test_a_branch_is_read_back_with_its_edits_and_states() -> None:
    store = InMemoryStore()
    await store.open()
    rows: list[Row] = [
        SessionRow("me", "a", True, 1.0),
        BranchRow("me", "a", "t", None, None, "main", b"sys", 1.0),
        EditRow("me", "a", "t", b"k1", 1, "s", "r", "text", "short", 90, 9, "x", 2.0),
        EditRow("me", "a", "t", b"k2", 1, "s", "r", "gone", None, 90, 0, "x", 2.0),
        EditRow("me", "a", "t", b"k2", 2, "s", "r", "withdrawn", None, 90, 0, "y", 3.0),
        EditRow("me", "a", "t", b"k3", 1, "state", "r", "append", "note", 5, 9, "y", 3.0),
        StateRow("me", "a", "t", b"k4", "Goal: go on", 4.0),
        BranchTipRow("me", "a", "t", b"head", b"answer", 5.0, "upstream_reject"),
    ]
    await store.put(rows)
    branches = LiveSessions(9, store)
    live_session = branches.open_session("me", "a", True)
    both = await asyncio.gather(branches.load_branch(live_session, "t"), branches.load_branch(live_session, "t"))
    branch = both[0]
    assert branch is not None
    assert both[1] is branch, "two requests at once get the same branch"
    assert len(branches) == 1
    assert branch.state.edits == {
        b"k1": Edit(b"k1", "text", "short", "s", "r", 90, 9),
        b"k3": Edit(b"k3", "append", "note", "state", "r", 5, 9),
    }
    assert branch.store_position.edit_versions == {b"k1": 1, b"k2": 2, b"k3": 1}
    assert branch.store_position.edit_number == 4
    assert (branch.state.last_state_request.lossy_edits, branch.state.sent_at) == (1, 5.0)
    assert branch.state.state == "Goal: go on"
    assert branch.last_request == LastRequest(b"head", b"answer", failed=None)
    assert branch.state.stopped == "upstream_reject"
    assert await branches.load_branch(live_session, "nobody") is None
    await store.close()


async def test_memory_stays_bounded_whatever_comes() -> None:
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
    made = [branches.open_session("me", name, True) for name in "ab"]
    assert branches.open_session("me", "a", False) is made[0]
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
    other = branches.open_session("you", "a", False)
    branches.forget_tenant("me")
    assert branches.find_session("me", "a") is None
    assert branches.find_sessions_at("me", b"b") == []
    assert branches.find_session("you", "a") is other
    assert len(branches) == 0


class Shared(InMemoryStore):
    """One that other processes write to as well."""

    shared = True
    away = False

    async def read_branch_position(self, tenant: str, session: str, branch: str) -> BranchPosition | None:
        if self.away:
            raise StoreUnavailable("away")
        return await super().read_branch_position(tenant, session, branch)


Two = tuple[Shared, LiveSessions, Branch, LiveSessions, Branch]


@pytest.fixture
async def two() -> AsyncIterator[Two]:
    """The same stored branch, as two processes remember it."""
    store = Shared()
    await store.open()
    head = BranchTipRow("me", "a", "t", b"h1", b"a1", 2.0, None)
    await store.put([SessionRow("me", "a", True, 1.0), BranchRow("me", "a", "t", None, None, "main", b"s", 1.0), head])
    found: list[Any] = [store]
    for _ in range(2):
        branches = LiveSessions(9, store)
        branch = await branches.load_branch(branches.open_session("me", "a", True), "t")
        assert branch is not None
        found += [branches, branch]
    yield tuple(found)
    await store.close()


async def test_what_another_process_has_moved_on_is_read_again(two: Two) -> None:
    store, ours, mine, theirs, other = two
    assert await ours.refresh_branch(mine.live_session, "t") is mine
    await store.put([mine.record_move(b"h2", None, 3.0)])
    assert await ours.refresh_branch(mine.live_session, "t") is mine, "our own move is none of another's"
    other.state = replace(other.state, note_counts={"loop": 3}, cache_miss_streak=1)
    found = await theirs.refresh_branch(other.live_session, "t")
    assert found is not None
    assert found is not other
    assert (found.state.note_counts, found.state.cache_miss_streak) == ({"loop": 3}, 1), (
        "what is not stored is not lost by that"
    )
    assert found.last_request.tip_key == b"h2"
    assert len(theirs) == 1
    assert (await theirs.refresh_branch(other.live_session, "t")) is found


async def test_what_is_on_its_way_to_the_store_is_not_forgotten(two: Two) -> None:
    _, ours, mine, _, _ = two
    mine.record_move(b"h2", None, 3.0)
    assert await ours.refresh_branch(mine.live_session, "t") is mine
    fresh = begin(ours, "b")
    fresh.stored = True
    assert await ours.refresh_branch(fresh.live_session, "t") is fresh


async def test_edits_and_states_made_elsewhere_are_read_though_the_head_is_the_same(two: Two) -> None:
    store, ours, mine, _, _ = two
    await store.put([StateRow("me", "a", "t", b"a1", "Goal: more", 3.0)])
    found = await ours.refresh_branch(mine.live_session, "t")
    assert found is not None
    assert found.state.state == "Goal: more"
    await store.put([edit_row(b"k", 1, "short")])
    again = await ours.refresh_branch(found.live_session, "t")
    assert again is not None
    assert [e.text for e in again.state.edits.values()] == ["short"]


async def test_what_another_process_has_deleted_is_forgotten_with_its_session(two: Two) -> None:
    store, ours, mine, _, _ = two
    await store.delete_session("me", "a")
    assert await ours.refresh_branch(mine.live_session, "t") is None
    assert ours.find_session("me", "a") is None
    assert len(ours) == 0


async def test_while_the_store_is_away_what_is_remembered_counts_and_that_is_counted(two: Two) -> None:
    store, ours, mine, _, _ = two
    seen: list[str] = []
    ours.on_lookup_failed = seen.append
    store.away = True
    assert await ours.refresh_branch(mine.live_session, "t") is mine
    assert seen == ["standing"]


async def test_of_two_that_decide_on_one_message_the_first_counts_and_both_go_by_it(two: Two) -> None:
    store, _, mine, _, other = two
    for branch, text in ((mine, "first"), (other, "second")):
        branch.state = replace(branch.state, edits={b"k": edit(b"k", text)})
        branch.store_position = StorePosition(edit_versions={b"k": 1}, edit_number=1)
        await store.put([edit_row(b"k", 1, text)])
    await store.put([edit_row(b"j", 1, "another")])
    rows = await store.read_edits("me", "a", "t")
    assert not adopt_stored_edits(mine, rows, {b"k": edit(b"k", "first")})
    assert adopt_stored_edits(other, rows, {b"k": edit(b"k", "second")})
    assert other.state.edits[b"k"].text == "first"
    assert sorted(other.state.edits) == [b"j", b"k"]
    assert (mine.store_position.edit_number, other.store_position.edit_number) == (2, 2)


def test_who_was_not_there_for_long_is_let_go_and_others_are_not() -> None:
    branches = LiveSessions(9, InMemoryStore())
    for name, at in (("old", 5.0), ("used", 20.0)):
        begin(branches, name).record_move(b"h", None, at)
    begin(branches, "begun")
    branches.forget_idle(10.0)
    assert branches.find_session("me", "old") is None
    assert branches.find_session("me", "used") is not None
    assert branches.find_session("me", "begun") is not None, "its first request is under way"


def edit(k: bytes, text: str) -> Edit:
    return Edit(k, "text", text, "mask", "old", 100, 10)


def edit_row(k: bytes, version: int, text: str) -> EditRow:
    return EditRow("me", "a", "t", k, version, "mask", "old", "text", text, 100, 10, "x", 2.0)
