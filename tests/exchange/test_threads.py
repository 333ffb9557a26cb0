from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from proxy.context.plan import Edit
from proxy.errors import StoreUnavailable
from proxy.exchange.thread import NODE_BYTES, Node, SessionMemory, Thread, adopt
from proxy.exchange.threads import Threads
from proxy.store.base import EditRow, HeadRow, Row, SessionRow, StateRow, ThreadRow
from proxy.store.memory import MemoryStore
from proxy.store.standing import Standing
from tests.faulty import faulty
from tests.running import Agent, running
from tests.scripted import Scripted

NODE = Node(b"form", "t", True, "openai")


def begin(threads: Threads, session: str, name: str = "t") -> Thread:
    memory = threads.open_session("me", session, False)
    return threads.add(Thread("me", session, name, "main", b"", memory))


def indexes(threads: Threads) -> list[Any]:
    return [threads._by_node, threads._first]


def test_the_least_recently_used_session_leaves_with_all_that_is_known_of_it() -> None:
    threads = Threads(2, MemoryStore())
    for name in ("a", "b"):
        thread = begin(threads, name)
        threads.note(thread.memory, name.encode(), NODE)
        threads.begun(thread, name.encode())
    assert threads.session("me", "a") is not None  # so b is the one that was used longest ago
    begin(threads, "c")
    assert threads.session("me", "b") is None
    assert threads.sessions_at("me", b"b") == []
    assert threads.answering("me", b"b") == []
    assert threads.sessions_at("me", b"a") == ["a"]
    assert len(threads) == 2


def test_one_session_may_have_more_threads_than_the_limit() -> None:
    threads = Threads(2, MemoryStore())
    for n in range(5):
        begin(threads, "a", f"t{n}")
    assert threads.session("me", "a") is not None
    assert len(threads) == 5
    begin(threads, "b")
    assert len(threads) == 1


def test_only_what_is_behind_an_answer_of_ours_can_be_found_without_a_name() -> None:
    threads = Threads(9, MemoryStore())
    memory = begin(threads, "a").memory
    threads.note(memory, b"asked", Node(b"", "t", False, "openai"))
    threads.note(memory, b"answered", NODE)
    assert threads.sessions_at("me", b"asked") == []
    assert threads.sessions_at("me", b"answered") == ["a"]
    assert threads.sessions_at("you", b"answered") == []


def test_a_session_that_has_left_is_neither_counted_nor_indexed_again() -> None:
    threads = Threads(1, MemoryStore())
    old = begin(threads, "a")
    begin(threads, "b")  # a leaves while a request of it is under way
    threads.note(old.memory, b"late", NODE)
    threads.begun(old, b"late")
    threads.add(Thread("me", "a", "t2", "fork", b"", old.memory))
    threads.forget(old.memory)
    assert len(threads) == 1
    assert indexes(threads) == [{}, {}]
    assert old.memory.nodes == {b"late": NODE}, "the request itself still finds what it noted"


def test_a_session_that_has_left_is_let_go_without_the_garbage_collector() -> None:
    threads = Threads(1, MemoryStore())
    begin(threads, "leaves")
    gc.disable()
    try:
        begin(threads, "stays")
        held = [one.session for one in gc.get_objects() if isinstance(one, SessionMemory)]
    finally:
        gc.enable()
    assert "stays" in held
    assert "leaves" not in held


def test_what_they_take_in_memory_is_bounded_too_and_the_least_recently_used_leaves() -> None:
    threads = Threads(99, MemoryStore(), most=10 * NODE_BYTES)
    two = [begin(threads, name).memory for name in ("a", "b")]
    for memory in two:
        for n in range(4):
            threads.note(memory, b"%d" % n, NODE)
        threads.grown(memory)
    assert threads.size == 8 * NODE_BYTES
    assert threads.session("me", "a") is not None
    long = begin(threads, "c").memory
    for n in range(20):
        threads.note(long, b"%d" % n, NODE)
        threads.grown(long)
        assert threads.size <= max(10, n + 1) * NODE_BYTES
    assert [name for name in "abc" if threads.session("me", name) is not None] == ["c"], "one may take more"
    threads.note(two[1], b"late", NODE)
    threads.grown(two[1])  # one that has left
    assert threads.size == long.size == 20 * NODE_BYTES
    threads.forget(long)
    assert threads.size == 0


def test_forgetting_takes_a_session_out_and_only_the_one_that_is_meant() -> None:
    threads = Threads(9, MemoryStore())
    old = begin(threads, "a").memory
    threads.note(old, b"k", NODE)
    threads.forget(old)
    assert threads.session("me", "a") is None
    new = begin(threads, "a").memory
    threads.note(new, b"k", NODE)
    threads.forget(old)
    assert threads.session("me", "a") is new
    assert threads.sessions_at("me", b"k") == ["a"]


async def test_a_thread_is_read_back_with_its_edits_and_states() -> None:
    store = MemoryStore()
    await store.open()
    rows: list[Row] = [
        SessionRow("me", "a", True, 1.0),
        ThreadRow("me", "a", "t", None, None, "main", b"sys", 1.0),
        EditRow("me", "a", "t", b"k1", 1, "s", "r", "text", "short", 90, 9, "x", 2.0),
        EditRow("me", "a", "t", b"k2", 1, "s", "r", "gone", None, 90, 0, "x", 2.0),
        EditRow("me", "a", "t", b"k2", 2, "s", "r", "withdrawn", None, 90, 0, "y", 3.0),
        EditRow("me", "a", "t", b"k3", 1, "state", "r", "append", "note", 5, 9, "y", 3.0),
        StateRow("me", "a", "t", b"k4", "Goal: go on", 4.0),
        HeadRow("me", "a", "t", b"head", b"answer", 5.0, "upstream_reject"),
    ]
    await store.put(rows)
    threads = Threads(9, store)
    memory = threads.open_session("me", "a", True)
    both = await asyncio.gather(threads.load(memory, "t"), threads.load(memory, "t"))
    thread = both[0]
    assert thread is not None
    assert both[1] is thread, "two requests at once get the same thread"
    assert len(threads) == 1
    assert thread.state.edits == {
        b"k1": Edit(b"k1", "text", "short", "s", "r", 90, 9),
        b"k3": Edit(b"k3", "append", "note", "state", "r", 5, 9),
    }
    assert thread.versions == {b"k1": 1, b"k2": 2, b"k3": 1}
    assert (thread.number, thread.state.asked.losses, thread.state.sent_at) == (4, 1, 5.0)
    assert thread.state.state == "Goal: go on"
    assert (thread.head, thread.answer, thread.state.stopped) == (b"head", b"answer", "upstream_reject")
    assert await threads.load(memory, "nobody") is None
    await store.close()


async def test_memory_stays_bounded_whatever_comes() -> None:
    async with faulty(Scripted("Well.")) as upstream, running(upstream.port, limits={"live_threads": 5}) as proxy:
        threads = proxy.app.parts.threads
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
    threads = Threads(9, MemoryStore())
    made = [threads.open_session("me", name, True) for name in "ab"]
    assert threads.open_session("me", "a", False) is made[0]
    assert isinstance(made[0], SessionMemory)
    assert [session for _, session in threads._sessions] == ["b", "a"]


def test_forgetting_a_tenant_takes_all_its_sessions_out_and_nobody_elses() -> None:
    threads = Threads(9, MemoryStore())
    for name in ("a", "b"):
        thread = begin(threads, name)
        threads.note(thread.memory, name.encode(), NODE)
    other = threads.open_session("you", "a", False)
    threads.forget_tenant("me")
    assert threads.session("me", "a") is None
    assert threads.sessions_at("me", b"b") == []
    assert threads.session("you", "a") is other
    assert len(threads) == 0


class Shared(MemoryStore):
    """One that other processes write to as well."""

    shared = True
    away = False

    async def standing(self, tenant: str, session: str, thread: str) -> Standing | None:
        if self.away:
            raise StoreUnavailable("away")
        return await super().standing(tenant, session, thread)


Two = tuple[Shared, Threads, Thread, Threads, Thread]


@pytest.fixture
async def two() -> AsyncIterator[Two]:
    """The same stored thread, as two processes remember it."""
    store = Shared()
    await store.open()
    head = HeadRow("me", "a", "t", b"h1", b"a1", 2.0, None)
    await store.put([SessionRow("me", "a", True, 1.0), ThreadRow("me", "a", "t", None, None, "main", b"s", 1.0), head])
    found: list[Any] = [store]
    for _ in range(2):
        threads = Threads(9, store)
        thread = await threads.load(threads.open_session("me", "a", True), "t")
        assert thread is not None
        found += [threads, thread]
    yield tuple(found)
    await store.close()


async def test_what_another_process_has_moved_on_is_read_again(two: Two) -> None:
    store, ours, mine, theirs, other = two
    assert await ours.current(mine.memory, "t") is mine
    await store.put([mine.moved(b"h2", None, 3.0)])
    assert await ours.current(mine.memory, "t") is mine, "our own move is none of another's"
    other.state = replace(other.state, said={"loop": 3}, drift=1)
    found = await theirs.current(other.memory, "t")
    assert found is not None
    assert found is not other
    assert (found.state.said, found.state.drift) == ({"loop": 3}, 1), "what is not stored is not lost by that"
    assert found.head == b"h2"
    assert len(theirs) == 1
    assert (await theirs.current(other.memory, "t")) is found


async def test_what_is_on_its_way_to_the_store_is_not_forgotten(two: Two) -> None:
    _, ours, mine, _, _ = two
    mine.moved(b"h2", None, 3.0)
    assert await ours.current(mine.memory, "t") is mine
    fresh = begin(ours, "b")
    fresh.stored = True
    assert await ours.current(fresh.memory, "t") is fresh


async def test_edits_and_states_made_elsewhere_are_read_though_the_head_is_the_same(two: Two) -> None:
    store, ours, mine, _, _ = two
    await store.put([StateRow("me", "a", "t", b"a1", "Goal: more", 3.0)])
    found = await ours.current(mine.memory, "t")
    assert found is not None
    assert found.state.state == "Goal: more"
    await store.put([edit_row(b"k", 1, "short")])
    again = await ours.current(found.memory, "t")
    assert again is not None
    assert [e.text for e in again.state.edits.values()] == ["short"]


async def test_what_another_process_has_deleted_is_forgotten_with_its_session(two: Two) -> None:
    store, ours, mine, _, _ = two
    await store.delete_session("me", "a")
    assert await ours.current(mine.memory, "t") is None
    assert ours.session("me", "a") is None
    assert len(ours) == 0


async def test_while_the_store_is_away_what_is_remembered_counts_and_that_is_counted(two: Two) -> None:
    store, ours, mine, _, _ = two
    seen: list[int] = []
    ours.unseen = lambda: seen.append(1)
    store.away = True
    assert await ours.current(mine.memory, "t") is mine
    assert seen == [1]


async def test_of_two_that_decide_on_one_message_the_first_counts_and_both_go_by_it(two: Two) -> None:
    store, _, mine, _, other = two
    for thread, text in ((mine, "first"), (other, "second")):
        thread.state = replace(thread.state, edits={b"k": edit(b"k", text)})
        thread.versions, thread.number = {b"k": 1}, 1
        await store.put([edit_row(b"k", 1, text)])
    await store.put([edit_row(b"j", 1, "another")])
    rows = await store.edits("me", "a", "t")
    assert not adopt(mine, rows, {b"k": edit(b"k", "first")})
    assert adopt(other, rows, {b"k": edit(b"k", "second")})
    assert other.state.edits[b"k"].text == "first"
    assert sorted(other.state.edits) == [b"j", b"k"]
    assert (mine.number, other.number) == (2, 2)


def test_who_was_not_there_for_long_is_let_go_and_others_are_not() -> None:
    threads = Threads(9, MemoryStore())
    for name, at in (("old", 5.0), ("used", 20.0)):
        begin(threads, name).moved(b"h", None, at)
    begin(threads, "begun")
    threads.forget_idle(10.0)
    assert threads.session("me", "old") is None
    assert threads.session("me", "used") is not None
    assert threads.session("me", "begun") is not None, "its first request is under way"


def edit(k: bytes, text: str) -> Edit:
    return Edit(k, "text", text, "mask", "old", 100, 10)


def edit_row(k: bytes, version: int, text: str) -> EditRow:
    return EditRow("me", "a", "t", k, version, "mask", "old", "text", text, 100, 10, "x", 2.0)
