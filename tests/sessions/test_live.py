from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from proxy.context.plan import Edit
from proxy.errors import StoreUnavailable
from proxy.sessions.branch import NODE_BYTES, Branch, LiveSession, Node, adopt_stored_edits
from proxy.sessions.live import LiveSessions
from proxy.store.base import BranchRow, BranchTipRow, EditRow, Row, SessionRow, StateRow
from proxy.store.branch_positions import BranchPosition
from proxy.store.in_memory import InMemoryStore
from tests.faulty import faulty
from tests.running import Agent, running
from tests.scripted import Scripted

NODE = Node(b"form", "t", True, "openai")


def begin(threads: LiveSessions, session: str, name: str = "t") -> Branch:
    memory = threads.open_session("me", session, False)
    return threads.add_branch(Branch("me", session, name, "main", b"", memory))


def indexes(threads: LiveSessions) -> list[Any]:
    return [threads._by_node, threads._by_first_tip]


def test_the_least_recently_used_session_leaves_with_all_that_is_known_of_it() -> None:
    threads = LiveSessions(2, InMemoryStore())
    for name in ("a", "b"):
        thread = begin(threads, name)
        threads.add_node(thread.live_session, name.encode(), NODE)
        threads.record_first_tip(thread, name.encode())
    assert threads.find_session("me", "a") is not None  # so b is the one that was used longest ago
    begin(threads, "c")
    assert threads.find_session("me", "b") is None
    assert threads.find_sessions_at("me", b"b") == []
    assert threads.find_branches_by_tip("me", b"b") == []
    assert threads.find_sessions_at("me", b"a") == ["a"]
    assert len(threads) == 2


def test_one_session_may_have_more_threads_than_the_limit() -> None:
    threads = LiveSessions(2, InMemoryStore())
    for n in range(5):
        begin(threads, "a", f"t{n}")
    assert threads.find_session("me", "a") is not None
    assert len(threads) == 5
    begin(threads, "b")
    assert len(threads) == 1


def test_only_what_is_behind_an_answer_of_ours_can_be_found_without_a_name() -> None:
    threads = LiveSessions(9, InMemoryStore())
    memory = begin(threads, "a").live_session
    threads.add_node(memory, b"asked", Node(b"", "t", False, "openai"))
    threads.add_node(memory, b"answered", NODE)
    assert threads.find_sessions_at("me", b"asked") == []
    assert threads.find_sessions_at("me", b"answered") == ["a"]
    assert threads.find_sessions_at("you", b"answered") == []


def test_a_session_that_has_left_is_neither_counted_nor_indexed_again() -> None:
    threads = LiveSessions(1, InMemoryStore())
    old = begin(threads, "a")
    begin(threads, "b")  # a leaves while a request of it is under way
    threads.add_node(old.live_session, b"late", NODE)
    threads.record_first_tip(old, b"late")
    threads.add_branch(Branch("me", "a", "t2", "fork", b"", old.live_session))
    threads.forget_session(old.live_session)
    assert len(threads) == 1
    assert indexes(threads) == [{}, {}]
    assert old.live_session.nodes == {b"late": NODE}, "the request itself still finds what it noted"


def test_a_session_that_has_left_is_let_go_without_the_garbage_collector() -> None:
    threads = LiveSessions(1, InMemoryStore())
    begin(threads, "leaves")
    gc.disable()
    try:
        begin(threads, "stays")
        held = [one.session for one in gc.get_objects() if isinstance(one, LiveSession)]
    finally:
        gc.enable()
    assert "stays" in held
    assert "leaves" not in held


def test_what_they_take_in_memory_is_bounded_too_and_the_least_recently_used_leaves() -> None:
    threads = LiveSessions(99, InMemoryStore(), max_bytes=10 * NODE_BYTES)
    two = [begin(threads, name).live_session for name in ("a", "b")]
    for memory in two:
        for n in range(4):
            threads.add_node(memory, b"%d" % n, NODE)
        threads.update_size(memory)
    assert threads.size == 8 * NODE_BYTES
    assert threads.find_session("me", "a") is not None
    long = begin(threads, "c").live_session
    for n in range(20):
        threads.add_node(long, b"%d" % n, NODE)
        threads.update_size(long)
        assert threads.size <= max(10, n + 1) * NODE_BYTES
    assert [name for name in "abc" if threads.find_session("me", name) is not None] == ["c"], "one may take more"
    threads.add_node(two[1], b"late", NODE)
    threads.update_size(two[1])  # one that has left
    assert threads.size == long.size == 20 * NODE_BYTES
    threads.forget_session(long)
    assert threads.size == 0


def test_forgetting_takes_a_session_out_and_only_the_one_that_is_meant() -> None:
    threads = LiveSessions(9, InMemoryStore())
    old = begin(threads, "a").live_session
    threads.add_node(old, b"k", NODE)
    threads.forget_session(old)
    assert threads.find_session("me", "a") is None
    new = begin(threads, "a").live_session
    threads.add_node(new, b"k", NODE)
    threads.forget_session(old)
    assert threads.find_session("me", "a") is new
    assert threads.find_sessions_at("me", b"k") == ["a"]


async def test_a_thread_is_read_back_with_its_edits_and_states() -> None:
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
    threads = LiveSessions(9, store)
    memory = threads.open_session("me", "a", True)
    both = await asyncio.gather(threads.load_branch(memory, "t"), threads.load_branch(memory, "t"))
    thread = both[0]
    assert thread is not None
    assert both[1] is thread, "two requests at once get the same thread"
    assert len(threads) == 1
    assert thread.state.edits == {
        b"k1": Edit(b"k1", "text", "short", "s", "r", 90, 9),
        b"k3": Edit(b"k3", "append", "note", "state", "r", 5, 9),
    }
    assert thread.edit_versions == {b"k1": 1, b"k2": 2, b"k3": 1}
    assert (thread.edit_number, thread.state.last_state_request.lossy_edits, thread.state.sent_at) == (4, 1, 5.0)
    assert thread.state.state == "Goal: go on"
    assert (thread.tip_key, thread.answer_key, thread.state.stopped) == (b"head", b"answer", "upstream_reject")
    assert await threads.load_branch(memory, "nobody") is None
    await store.close()


async def test_memory_stays_bounded_whatever_comes() -> None:
    async with faulty(Scripted("Well.")) as upstream, running(upstream.port, limits={"live_threads": 5}) as proxy:
        threads = proxy.app.services.live_sessions
        agents = [Agent(proxy) for _ in range(20)]
        for n, agent in enumerate(agents):
            await agent.say(f"Hello {n}")
        await asyncio.gather(*(agent.say("Go on") for agent in agents))
        for agent in agents:
            await agent.say("And?")
        assert len(threads) == 5
        assert len(threads._sessions) == 5
        assert {s for sessions in threads._by_node.values() for s in sessions} <= {s for _, s in threads._sessions}
        assert await proxy.rows("SELECT count(*) FROM threads") == [(20,)]


async def test_first_requests_at_once_are_sessions_of_their_own() -> None:
    model = Scripted(*(f"Answer {n}." for n in range(40)))
    async with faulty(model) as upstream, running(upstream.port) as proxy:
        agents = [Agent(proxy, stream=bool(n % 2)) for n in range(10)]
        first = await asyncio.gather(*(agent.say("Hello") for agent in agents))
        second = await asyncio.gather(*(agent.say("Go on") for agent in agents))
        assert len({f.session for f in first}) == 10
        assert [f.session for f in second] == [f.session for f in first]


async def test_first_requests_at_once_under_one_name_are_twins_in_one_session() -> None:
    model = Scripted(*(f"Answer {n}." for n in range(40)))
    async with faulty(model) as upstream, running(upstream.port) as proxy:
        agents = [Agent(proxy, (b"x-session-id: s",)) for n in range(5)]
        await asyncio.gather(*(agent.say("Hello") for agent in agents))
        await asyncio.gather(*(agent.say("Go on") for agent in agents))
        kinds = await proxy.rows("SELECT session, kind FROM threads")
        assert sorted(kinds) == sorted([("s", "main")] + [("s", "twin")] * 4)
        assert await proxy.rows("SELECT count(*) FROM messages WHERE position = 0") == [(1,)]


def test_a_session_in_memory_is_moved_up_when_it_is_asked_for() -> None:
    threads = LiveSessions(9, InMemoryStore())
    made = [threads.open_session("me", name, True) for name in "ab"]
    assert threads.open_session("me", "a", False) is made[0]
    assert isinstance(made[0], LiveSession)
    assert [session for _, session in threads._sessions] == ["b", "a"]


def test_forgetting_a_tenant_takes_all_its_sessions_out_and_nobody_elses() -> None:
    threads = LiveSessions(9, InMemoryStore())
    for name in ("a", "b"):
        thread = begin(threads, name)
        threads.add_node(thread.live_session, name.encode(), NODE)
    other = threads.open_session("you", "a", False)
    threads.forget_tenant("me")
    assert threads.find_session("me", "a") is None
    assert threads.find_sessions_at("me", b"b") == []
    assert threads.find_session("you", "a") is other
    assert len(threads) == 0


class Shared(InMemoryStore):
    """One that other processes write to as well."""

    shared = True
    away = False

    async def read_branch_position(self, tenant: str, session: str, thread: str) -> BranchPosition | None:
        if self.away:
            raise StoreUnavailable("away")
        return await super().read_branch_position(tenant, session, thread)


Two = tuple[Shared, LiveSessions, Branch, LiveSessions, Branch]


@pytest.fixture
async def two() -> AsyncIterator[Two]:
    """The same stored thread, as two processes remember it."""
    store = Shared()
    await store.open()
    head = BranchTipRow("me", "a", "t", b"h1", b"a1", 2.0, None)
    await store.put([SessionRow("me", "a", True, 1.0), BranchRow("me", "a", "t", None, None, "main", b"s", 1.0), head])
    found: list[Any] = [store]
    for _ in range(2):
        threads = LiveSessions(9, store)
        thread = await threads.load_branch(threads.open_session("me", "a", True), "t")
        assert thread is not None
        found += [threads, thread]
    yield tuple(found)
    await store.close()


async def test_what_another_process_has_moved_on_is_read_again(two: Two) -> None:
    store, ours, mine, theirs, other = two
    assert await ours.refresh_branch(mine.live_session, "t") is mine
    await store.put([mine.record_position(b"h2", None, 3.0)])
    assert await ours.refresh_branch(mine.live_session, "t") is mine, "our own move is none of another's"
    other.state = replace(other.state, note_counts={"loop": 3}, cache_miss_streak=1)
    found = await theirs.refresh_branch(other.live_session, "t")
    assert found is not None
    assert found is not other
    assert (found.state.note_counts, found.state.cache_miss_streak) == ({"loop": 3}, 1), (
        "what is not stored is not lost by that"
    )
    assert found.tip_key == b"h2"
    assert len(theirs) == 1
    assert (await theirs.refresh_branch(other.live_session, "t")) is found


async def test_what_is_on_its_way_to_the_store_is_not_forgotten(two: Two) -> None:
    _, ours, mine, _, _ = two
    mine.record_position(b"h2", None, 3.0)
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
    seen: list[int] = []
    ours.on_lookup_failed = lambda: seen.append(1)
    store.away = True
    assert await ours.refresh_branch(mine.live_session, "t") is mine
    assert seen == [1]


async def test_of_two_that_decide_on_one_message_the_first_counts_and_both_go_by_it(two: Two) -> None:
    store, _, mine, _, other = two
    for thread, text in ((mine, "first"), (other, "second")):
        thread.state = replace(thread.state, edits={b"k": edit(b"k", text)})
        thread.edit_versions, thread.edit_number = {b"k": 1}, 1
        await store.put([edit_row(b"k", 1, text)])
    await store.put([edit_row(b"j", 1, "another")])
    rows = await store.read_edits("me", "a", "t")
    assert not adopt_stored_edits(mine, rows, {b"k": edit(b"k", "first")})
    assert adopt_stored_edits(other, rows, {b"k": edit(b"k", "second")})
    assert other.state.edits[b"k"].text == "first"
    assert sorted(other.state.edits) == [b"j", b"k"]
    assert (mine.edit_number, other.edit_number) == (2, 2)


def test_who_was_not_there_for_long_is_let_go_and_others_are_not() -> None:
    threads = LiveSessions(9, InMemoryStore())
    for name, at in (("old", 5.0), ("used", 20.0)):
        begin(threads, name).record_position(b"h", None, at)
    begin(threads, "begun")
    threads.forget_idle(10.0)
    assert threads.find_session("me", "old") is None
    assert threads.find_session("me", "used") is not None
    assert threads.find_session("me", "begun") is not None, "its first request is under way"


def edit(k: bytes, text: str) -> Edit:
    return Edit(k, "text", text, "mask", "old", 100, 10)


def edit_row(k: bytes, version: int, text: str) -> EditRow:
    return EditRow("me", "a", "t", k, version, "mask", "old", "text", text, 100, 10, "x", 2.0)
