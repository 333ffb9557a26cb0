from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from threading import Thread
from typing import Any

import pytest
from msgspec.structs import replace

from proxy.context.branch_state import BranchState, StateRequest
from proxy.context.plan import Edit
from proxy.sessions import live, packing
from proxy.sessions.branch import Branch, LiveSession, StorePosition, UnstoredValues
from proxy.sessions.hidden_rounds import HiddenRound
from proxy.sessions.live import LiveSessions
from proxy.sessions.packing import Node
from proxy.store.in_memory import InMemoryStore
from tests.proxy_server import Agent, run_proxy
from tests.raw_upstream import run_upstream
from tests.scripted_model import ScriptedModel


def key(number: int) -> bytes:
    return number.to_bytes(16, "big")


def stub(number: int) -> str:
    return f"[shortened: 600 of 3000 characters]\n{number}\tdef handler_{number}(request): return None\n" * 7


def remember(live_session: LiveSession, messages: int = 100) -> Branch:
    """A conversation of so many messages, with an edit of every third."""
    for n in range(messages):
        live_session.nodes[key(n)] = Node(key(n + 1000), "t", n > 3, "openai", 5.0 + n, 100 + n)
        live_session.hidden_rounds[key(n)] = ()
    edits = {key(n): Edit(key(n), "text", stub(n), "mask", f"{n} steps old", 900, 90) for n in range(0, messages, 3)}
    edits[key(1)] = Edit(key(1), "gone", None, "mask", "old", 900, 0)
    state = BranchState(
        edits=edits,
        states=((key(2), "Goal: go on"),),
        sent_marks=tuple(map(key, range(messages))),
        sent_sizes=tuple(range(messages)),
        sent_at=5.0,
        breakpoints=frozenset({3}),
        last_state_request=StateRequest(2, 1, key(9)),
        helper_answers={"a": "It is a summary."},
        pins=frozenset({key(7)}),
    )
    made = Branch("me", live_session.session, "t", "main", b"", live_session, state)
    made.store_position.edit_versions = dict.fromkeys(edits, 2)
    live_session.forms.update((key(5), key(6)))
    for n in range(80):
        made.record_move(key(n), key(n + 1) if n % 2 else None, 5.0 + n)
    return made


def begin(branches: LiveSessions, session: str) -> LiveSession:
    live_session = branches.open_session("me", session, explicit=False)
    branches.add_branch(remember(live_session))
    branches.update_size(live_session)
    return live_session


def is_packed(live_session: LiveSession) -> bool:
    return live_session.packed is not None


def find_all(one: LiveSession) -> Any:
    """The values of a session and its branches; looking at them unpacks them. A lock is none."""
    beside = ("live_session", "_texts", "planning")
    found = [getattr(one, each.name) for each in fields(one) if each.name not in ("branches")]
    for branch in one.branches.values():
        found += [getattr(branch, each.name) for each in fields(branch) if each.name not in beside]
    return found


def test_a_packed_session_is_small_and_is_restored_in_the_same_order() -> None:
    live_session, same = (LiveSession("me", "s", False, serial=1) for _ in "ab")
    for one in (live_session, same):
        one.branches["t"] = remember(one)
    size = live_session.size
    live_session.pack()
    assert live_session.size < size / 2
    assert is_packed(live_session), "to be measured it is not unpacked"
    assert find_all(live_session) == find_all(same)
    branch = live_session.branches["t"]
    assert list(branch.state.edits) == list(same.branches["t"].state.edits)
    assert list(live_session.nodes) == list(same.nodes)
    branch.record_move(b"tip", None, 99.0)
    same.branches["t"].record_move(b"tip", None, 99.0)
    assert branch.store_position == same.branches["t"].store_position, "as many as before are remembered"
    assert not is_packed(live_session)
    assert live_session.size == size
    assert len({id(node.strategy) for node in live_session.nodes.values()}) == 1, "the nodes share what was shared"


def test_a_branch_that_was_not_looked_at_is_not_packed_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    live_session = LiveSession("me", "s", False)
    live_session.branches["t"] = remember(live_session)
    live_session.pack()
    monkeypatch.setattr(packing, "pack_state", lambda *_: pytest.fail("it is packed"))
    live_session.pack()
    live_session.unpack()


def test_values_that_a_request_sets_while_packed_count() -> None:
    live_session = LiveSession("me", "s", False)
    branch = live_session.branches["t"] = remember(live_session)
    before = branch.state
    live_session.pack()
    branch.state = replace(before, sent_at=77.0)
    assert branch.store_position.edit_versions[key(3)] == 2
    assert branch.state.sent_at == 77.0
    live_session.pack()
    branch.store_position = StorePosition(edit_versions={key(3): 5})
    assert branch.state == replace(before, sent_at=77.0)
    branch.state = before
    live_session.pack()
    assert (branch.store_position.edit_versions, branch.state) == ({key(3): 5}, before)


@pytest.mark.parametrize("name", ["pack_nodes", "pack_state"])
def test_nothing_is_lost_where_a_thread_looks_at_a_session_that_is_being_packed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    live_session = LiveSession("me", "s", False)
    branch = live_session.branches["t"] = remember(live_session)
    nodes, state = dict(live_session.nodes), branch.state
    threads: list[Thread] = []
    pack = getattr(packing, name)

    def pack_late(*args: Any) -> bytes:
        threads.append(Thread(target=live_session.unpack))
        threads[-1].start()
        threads[-1].join(0.05)
        assert threads[-1].is_alive()  # it waits, so that it finds all of it packed, or nothing
        made: bytes = pack(*args)
        return made

    monkeypatch.setattr(packing, name, pack_late)
    live_session.pack()
    for thread in threads:
        thread.join()
    assert (live_session.nodes, branch.state) == (nodes, state)


def test_when_a_session_was_used_is_known_without_unpacking_it() -> None:
    branches = LiveSessions(9, InMemoryStore())
    old, new = begin(branches, "old"), begin(branches, "new")
    new.branches["t"].record_move(b"tip", None, 500.0)
    old.pack()
    new.pack()
    branches.forget_idle(100.0)
    assert is_packed(new)
    assert branches.find_session("me", "old") is None
    assert branches.find_session("me", "new") is new


def test_hidden_rounds_are_not_packed() -> None:
    live_session = LiveSession("me", "s", False)
    live_session.branches["t"] = remember(live_session)
    live_session.put_rounds(b"h", (HiddenRound(b"a", b"h", (b"x" * 500,)),))
    rounds, nodes = dict(live_session.hidden_rounds), dict(live_session.nodes)
    live_session.pack()
    assert live_session.hidden_rounds == rounds
    assert is_packed(live_session)
    assert (live_session.nodes, live_session.hidden_rounds) == (nodes, rounds)


@pytest.mark.parametrize(
    "change",
    [
        lambda state: {"state": replace(state, lasting_edits={})},
        lambda state: {"unstored": UnstoredValues(simulated_state=state)},
        lambda state: {"state": replace(state, edits={b"k": Edit(b"k", "text", "\ud800", "mask", "old", 9, 1)})},
    ],
    ids=["edits of a literal policy", "a simulated state", "a lone surrogate"],
)
def test_a_branch_with_a_rare_state_stays_as_it_is(change: Callable[[BranchState], dict[str, Any]]) -> None:
    live_session = LiveSession("me", "s", False)
    branch = live_session.branches["t"] = remember(live_session)
    for name, value in change(branch.state).items():
        setattr(branch, name, value)
    state = branch.state
    live_session.pack()
    assert branch.state is state


def test_threads_that_look_at_once_get_the_same_objects() -> None:
    for _ in range(20):
        live_session = LiveSession("me", "s", False)
        branch = live_session.branches["t"] = remember(live_session)
        live_session.pack()
        found: list[tuple[object, object]] = []
        threads = [Thread(target=lambda: found.append((live_session.nodes, branch.state))) for _ in range(4)]  # noqa: B023
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(one[0] is live_session.nodes and one[1] is branch.state for one in found)


@pytest.mark.parametrize(
    ("owner", "unpack", "name"), [(Branch, "unpack_values", "state"), (LiveSession, "unpack_values", "nodes")]
)
def test_a_thread_that_looks_while_memory_is_packed_gets_its_value(
    monkeypatch: pytest.MonkeyPatch, owner: type, unpack: str, name: str
) -> None:
    live_session = LiveSession("me", "s", False)
    branch = live_session.branches["t"] = remember(live_session)
    live_session.pack()
    as_it_was = getattr(owner, unpack)
    packers: list[Thread] = []

    def unpack_as_another_packs(one: Any) -> None:
        as_it_was(one)
        if not packers:
            packers.append(Thread(target=one.pack))
            packers[0].start()
            packers[0].join(0.1)

    monkeypatch.setattr(owner, unpack, unpack_as_another_packs)
    assert getattr(branch if owner is Branch else live_session, name)
    packers[0].join()
    assert live_session.nodes
    assert branch.state.edits
    assert branch.store_position.moves


def test_another_attribute_is_missing_as_usual() -> None:
    live_session: Any = LiveSession("me", "s", False)
    with pytest.raises(AttributeError, match="notes"):
        live_session.notes  # noqa: B018
    with pytest.raises(AttributeError, match="notes"):
        Branch("me", "s", "t", "main", b"", live_session).notes  # type: ignore[attr-defined]  # noqa: B018


def test_a_session_of_a_request_that_has_begun_is_not_packed_next() -> None:
    size = begin(LiveSessions(9, InMemoryStore()), "a").counted_size
    branches = LiveSessions(99, InMemoryStore(), max_bytes=round(2.5 * size / live.UNPACKED_SHARE))
    used, idle = begin(branches, "used"), begin(branches, "idle")
    assert branches.find_session("me", "used") is used
    begin(branches, "new")
    assert (is_packed(used), is_packed(idle)) == (False, True)


def test_long_sessions_that_were_not_used_lately_are_packed() -> None:
    size = begin(LiveSessions(9, InMemoryStore()), "a").counted_size
    branches = LiveSessions(99, InMemoryStore(), max_bytes=round(3 * size / live.UNPACKED_SHARE))
    short = branches.open_session("me", "short", explicit=False)
    branches.add_branch(Branch("me", "short", "t", "main", b"", short))
    made = [begin(branches, name) for name in "abcde"]
    assert [is_packed(one) for one in made] == [True, True, False, False, False]
    assert short.packed is None
    assert branches.size == sum(one.size for one in made)
    assert branches.find_session("me", "a") is made[0]
    assert [is_packed(one) for one in made] == [False, True, True, False, False], "a is used, so c is packed"
    assert branches.size == sum(one.size for one in made)
    branches.forget_session(made[0])
    branches.forget_session(made[1])
    begin(branches, "f")
    assert [is_packed(one) for one in made[2:]] == [True, False, False]
    for name in ("c", "d", "e", "f"):
        live_session = branches.find_session("me", name)
        assert live_session is not None
        branches.forget_session(live_session)
    assert (branches.size, branches._unpacked_size, len(branches._unpacked)) == (0, 0, 0)


def test_a_packed_session_leaves_with_its_index() -> None:
    branches = LiveSessions(9, InMemoryStore())
    live_session = begin(branches, "a")
    branches.add_node(live_session, b"answer", Node(b"", "t", True, "openai"))
    live_session.pack()
    branches.forget_session(live_session)
    assert branches.find_sessions_at("me", b"answer") == []


async def talk(*, packs: bool) -> list[bytes]:
    """The bodies that go upstream from two agents that take turns."""
    async with run_upstream(ScriptedModel(*(f"Done, {n}." for n in range(40)))) as upstream:
        async with run_proxy(upstream.port, policy="rolling") as proxy:
            agents = [Agent(proxy, (f"x-session-id: {name}".encode(),)) for name in "ab"]
            live_sessions = proxy.app.services.live_sessions
            for n in range(14):
                for agent in agents:
                    await agent.say(f"Look at it again, {n}: " + "some words " * 200)
                for one in live_sessions._sessions.values() if packs else ():
                    one.pack()
            for one in live_sessions._sessions.values():
                assert is_packed(one) == packs
                assert all(branch.state.edits for branch in one.branches.values())
        return [request.body for request in upstream.requests]


async def test_a_packed_conversation_continues_with_the_same_bytes() -> None:
    packed, usual = await talk(packs=True), await talk(packs=False)
    assert len(packed) == 28
    assert packed == usual
