from __future__ import annotations

import msgspec

from proxy.store import create_store
from proxy.store.base import BranchRow, ExchangeRow, Row
from proxy.store.branch_positions import (
    BranchFork,
    BranchKind,
    BranchKindRecord,
    BranchKindRow,
    BranchLength,
    BranchPosition,
    WorkingBranchRow,
)
from proxy.store.reads import Store
from tests.store.conftest import RowFactory


def test_only_a_postgresql_store_is_shared_by_replicas() -> None:
    assert not create_store(":memory:").shared
    assert not create_store("store.sqlite3").shared
    assert create_store("postgresql://nobody@127.0.0.1:1/none").shared


async def test_where_a_branch_stands_is_what_was_stored_last(store: Store, make: RowFactory) -> None:
    await store.put([*make.begin(), make.edit(b"k1"), make.edit(b"k2"), make.state(b"k3", "text")])
    await store.put([make.branch("other"), make.edit(b"k1", branch="other")])
    assert await store.read_branch_position("t1", "s1", "main") == BranchPosition(b"", None, 1.0, 2, 1)
    await store.put([make.tip(b"tip", 2.25)])
    assert await store.read_branch_position("t1", "s1", "main") == BranchPosition(b"tip", b"answer", 2.25, 2, 1)
    assert await store.read_branch_position("t1", "s1", "other") == BranchPosition(b"", None, 1.0, 1, 0)
    for place in (("t1", "s1", "nobody"), ("t1", "s2", "main"), ("t2", "s1", "main")):
        assert await store.read_branch_position(*place) is None


async def test_the_branches_of_a_session_and_what_they_are(store: Store, make: RowFactory) -> None:
    await store.put([*make.begin(), make.branch("other", at=2.0)])
    assert await store.read_branch_kinds("t1", "s1") == [
        BranchKindRecord(name, "main", b"system", works=False) for name in ("other", "main")
    ]
    assert await store.read_branch_kinds("t1", "s2") == await store.read_branch_kinds("t2", "s1") == []


async def test_where_the_branches_of_a_session_fork(store: Store, make: RowFactory) -> None:
    fork = msgspec.structs.replace(make.branch("fork", at=2.0), parent="main", fork_key=b"k7")
    lost = msgspec.structs.replace(make.branch("lost", at=3.0), parent="main", fork_key=b"not stored")
    await store.put([*make.begin(), make.message(b"k7", position=7), fork, lost])
    assert await store.read_branch_forks("t1", "s1") == [
        BranchFork("lost", "main", None), BranchFork("fork", "main", 7), BranchFork("main", None, None),
    ]  # fmt: skip
    assert await store.read_branch_forks("t1", "s2") == await store.read_branch_forks("t2", "s1") == []


async def test_the_lengths_of_a_sessions_branches_without_its_side_calls(store: Store, make: RowFactory) -> None:
    envelopes = {name: make.form(b'{"model":"%s","messages":[]}' % name.encode()) for name in ("old", "new", "b", "c")}

    def asked(name: str, at: float, branch: str) -> ExchangeRow:
        return msgspec.structs.replace(make.exchange(name, at), branch=branch, envelope=envelopes[name].form)

    answers = [
        msgspec.structs.replace(make.message(f"{branch} {n}".encode(), position=n, branch=branch), role=role)
        for branch, count in (("main", 4), ("b", 2), ("c", 2))
        for n, role in enumerate(["user", "assistant"] * count)
    ]
    await store.put([
        *make.begin(), make.branch("b"), branch(make, "c", b"c", "side"), *envelopes.values(), *answers,
        asked("old", 2.0, "main"), asked("b", 3.0, "b"), asked("new", 4.0, "main"), asked("c", 5.0, "c"),
    ])  # fmt: skip
    assert await store.read_branch_lengths("t1", "s1") == [
        BranchLength(envelopes["new"].body, b"[]", 4), BranchLength(envelopes["b"].body, b"[]", 2),
    ]  # fmt: skip
    assert await store.read_branch_lengths("t1", "s2") == await store.read_branch_lengths("t2", "s1") == []


def branch(make: RowFactory, name: str, system: bytes, kind: BranchKind = "main") -> BranchRow:
    return msgspec.structs.replace(make.branch(name), system=system, kind=kind)


async def kinds(store: Store) -> dict[str, tuple[str, bool]]:
    return {row.branch: (row.kind, row.works) for row in await store.read_branch_kinds("t1", "s1")}


async def test_a_branch_that_works_leaves_those_beside_it_that_never_did(store: Store, make: RowFactory) -> None:
    def said(name: str, *positions: int, answer: int) -> list[Row]:
        return [
            make.message(f"{name} {n}".encode(), position=n, branch=name, answer=n == answer, reached=n >= answer)
            for n in positions
        ]

    await store.put([
        *make.begin(), branch(make, "title", b"t"), branch(make, "same", b"w"), branch(make, "long", b"l"),
        branch(make, "grown", b"g"), branch(make, "called", b"c"), branch(make, "work", b"w", "side"),
        branch(make, "twin", b"x", "twin"),
        *said("title", 0, 1, 2, 3, answer=3), *said("same", 0, 1, answer=1), *said("long", 0, 1, 2, 3, 4, answer=4),
        *said("grown", 0, 1, 2, answer=1), *said("called", 0, answer=1), *said("work", 0, answer=1),
        msgspec.structs.replace(make.message(b"call", position=1, branch="called", answer=True), status="tool_call"),
    ])  # fmt: skip
    await store.put([WorkingBranchRow("t1", "s1", "work", b"w", 3), WorkingBranchRow("t1", "s2", "work", b"w", 3)])
    assert await kinds(store) == {
        "main": ("side", False), "title": ("side", False), "same": ("main", False), "long": ("main", False),
        "grown": ("main", True), "called": ("main", True), "work": ("main", False), "twin": ("twin", False),
    }  # fmt: skip


async def test_a_branch_turns_out_to_be_a_side_call_and_a_fork_never(store: Store, make: RowFactory) -> None:
    await store.put([*make.begin(), make.branch("fork", parent="main")])
    await store.put([BranchKindRow("t1", "s1", "main", "side"), BranchKindRow("t1", "s1", "fork", "side")])
    assert await kinds(store) == {"main": ("side", False), "fork": ("fork", False)}
    await store.put([BranchKindRow("t1", "s1", "main", "main"), BranchKindRow("t1", "s2", "main", "side")])
    assert (await kinds(store))["main"] == ("main", False)


async def test_how_the_newest_request_at_a_message_came_out(store: Store, make: RowFactory) -> None:
    await store.put([*make.begin(), make.exchange("x1", at=1.0), make.outcome("x1")])
    assert await store.read_last_status("t1", "s1", "main", b"head") == "complete"
    await store.put([make.exchange("x2", at=2.0)])
    assert await store.read_last_status("t1", "s1", "main", b"head") == "open"
    assert await store.read_last_status("t1", "s1", "main", b"another") == ""
