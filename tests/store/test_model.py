"""Any order of puts, reads and reopenings, against dictionaries that say what has to be there."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from proxy.errors import StoreUnavailable
from proxy.store import sql
from proxy.store.base import BranchTipRow, EditRow, MessageRow, StateRow
from proxy.store.in_memory import InMemoryStore
from proxy.store.reads import Store
from tests.postgres import drop_database, new_database
from tests.store.conftest import RowFactory, digest
from tests.stores import count_rows, postgres_store, sqlite_store

T = TypeVar("T")
Place = tuple[str, str]
PLACES: list[Place] = [("t1", "s1"), ("t1", "s2"), ("t2", "s1")]
places = st.sampled_from(PLACES)
branches = st.sampled_from(["main", "fork"])
picks = st.integers(0, 1 << 16)


class StoreMachine(RuleBasedStateMachine):
    """Both the model and the rules; `make` says which backend."""

    def make(self) -> Store:
        raise NotImplementedError

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.folder = tempfile.TemporaryDirectory()
        self.messages: dict[Place, dict[bytes, MessageRow]] = {place: {} for place in PLACES}
        self.edits: dict[tuple[Place, str], list[EditRow]] = {}
        self.states: dict[tuple[Place, str], list[StateRow]] = {}
        self.tips: dict[tuple[Place, str], BranchTipRow] = {}
        self.clock = 10.0
        self.store: Store = self.make()
        self.do(self.store.open())

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    def put(self, rows: list[Any]) -> None:
        async def work() -> None:
            await self.store.put(rows)

        self.do(work())

    def tick(self) -> float:
        self.clock += 1.0
        return self.clock

    @initialize()
    def begin(self) -> None:
        for tenant, session in PLACES:
            one = RowFactory(tenant, session)
            self.put([*one.begin(), one.branch("fork", 2.0, "main")])

    @rule(place=places, pick=picks, count=st.integers(1, 4), branch=branches)
    def grow(self, place: Place, pick: int, count: int, branch: str) -> None:
        """A branch of new messages from any node, or from the root."""
        known = self.messages[place]
        nodes = [b"root", *known]
        parent = nodes[pick % len(nodes)]
        rows = []
        for _ in range(count):
            position = known[parent].position + 1 if parent in known else 0
            at = self.tick()
            key = digest(parent, at % 7)
            row = RowFactory(*place).message(
                key, parent, position, body=b"%f" % at, branch=branch, at=at, answer=position % 2 == 1
            )
            rows.append(row)
            known.setdefault(key, row)
            parent = key
        self.put(rows)

    @rule(place=places, pick=picks, version=st.integers(1, 3), branch=branches, text=st.none() | st.text(max_size=5))
    def edit(self, place: Place, pick: int, version: int, branch: str, text: str | None) -> None:
        row = RowFactory(*place).edit(digest("edited", pick % 5), version, text, branch)
        self.put([row])
        rows = self.edits.setdefault((place, branch), [])
        if all((row.key, row.version) != (old.key, old.version) for old in rows):
            rows.append(row)

    @rule(place=places, pick=picks, branch=branches, text=st.text(max_size=5))
    def state(self, place: Place, pick: int, branch: str, text: str) -> None:
        row = RowFactory(*place).state(digest("answer", pick % 5), text, branch)
        self.put([row])
        rows = self.states.setdefault((place, branch), [])
        if all(row.key != old.key for old in rows):
            rows.append(row)

    @rule(place=places, pick=picks, branch=branches)
    def move(self, place: Place, pick: int, branch: str) -> None:
        row = RowFactory(*place).tip(digest("tip", pick), self.tick(), branch)
        self.put([row])
        self.tips[place, branch] = row

    @rule(place=places)
    def fail(self, place: Place) -> None:
        one = RowFactory(*place)
        with pytest.raises(StoreUnavailable):
            self.put([one.message(digest("never"), at=self.tick()), one.message(digest("bad"), position=1 << 80)])

    @rule()
    def reopen(self) -> None:
        if not isinstance(self.store, InMemoryStore):
            self.do(self.store.close())
            self.store = self.make()
            self.do(self.store.open())

    @rule(place=places, pick=picks)
    def chain(self, place: Place, pick: int) -> None:
        known = self.messages[place]
        if not known:
            return
        key = list(known)[pick % len(known)]
        expected: list[tuple[bytes, bytes]] = []
        row: MessageRow | None = known[key]
        while row is not None:
            expected.insert(0, (row.key, row.body))
            row = known.get(row.parent)
        assert [(r.key, r.body) for r in self.do(self.store.read_chain(*place, key))] == expected

    @rule(place=places, named=st.booleans(), wanted=st.lists(picks, max_size=12))
    def find(self, place: Place, named: bool, wanted: list[int]) -> None:
        tenant, session = place
        within = [place] if named else [p for p in PLACES if p[0] == tenant]
        pool = sorted({key for p in PLACES for key in self.messages[p]}) or [digest("none")]
        keys = list(dict.fromkeys(pool[pick % len(pool)] for pick in wanted))
        expected = [
            (-row.position, -self.last_at(p, row.branch), p[1], key)
            for p in within
            for key, row in self.messages[p].items()
            if key in keys and (named or row.answer)
        ]
        hits = self.do(self.store.find_chain_hits(tenant, keys, session if named else None))
        found = [(-hit.position, -hit.last_at, hit.session, hit.key) for hit in hits]
        assert sorted(found) == sorted(expected)[: sql.MAX_HITS] or len(expected) > sql.MAX_HITS
        assert [hit[:2] for hit in found] == sorted(hit[:2] for hit in found)
        assert set(self.do(self.store.find_known_messages(*place, keys))) == {
            key for key in keys if key in self.messages[place]
        }

    def last_at(self, place: Place, branch: str) -> float:
        tip = self.tips.get((place, branch))
        return tip.last_at if tip else 1.0 if branch == "main" else 2.0

    @rule(place=places, branch=branches)
    def branch(self, place: Place, branch: str) -> None:
        record = self.do(self.store.read_branch(*place, branch))
        assert record is not None
        tip = self.tips.get((place, branch))
        assert record.tip == (tip.tip if tip else b"")
        assert record.last_at == self.last_at(place, branch)
        rows = self.edits.get((place, branch), [])
        newest = {row.key: max(r.version for r in rows if r.key == row.key) for row in rows}
        in_force = [(row, number) for number, row in enumerate(rows, 1) if row.version == newest[row.key]]
        assert record.edits == in_force
        assert self.do(self.store.read_decisions(*place, branch)).edits == in_force
        assert record.states == self.states.get((place, branch), [])

    @invariant()
    def counts_agree(self) -> None:
        counts = self.do(count_rows(self.store))
        assert counts["messages"] == sum(map(len, self.messages.values()))
        assert counts["edits"] == sum(map(len, self.edits.values()))
        assert counts["states"] == sum(map(len, self.states.values()))

    def teardown(self) -> None:
        self.do(self.store.close())
        self.runner.close()
        self.folder.cleanup()


class SqliteMachine(StoreMachine):
    def make(self) -> Store:
        return sqlite_store(Path(self.folder.name) / "db", durability="normal", readers=1)


class PostgresMachine(StoreMachine):
    server = ""
    database = ""

    def make(self) -> Store:
        if not self.database:
            self.database = self.do(new_database(self.server))
        return postgres_store(self.database, readers=1)

    def teardown(self) -> None:
        self.do(self.store.close())
        self.do(drop_database(self.database))
        self.runner.close()
        self.folder.cleanup()


class MemoryMachine(StoreMachine):
    def make(self) -> Store:
        return InMemoryStore()


SHORT = settings(max_examples=25, stateful_step_count=25, suppress_health_check=list(HealthCheck), derandomize=True)
TestSqliteAgainstTheModel = SqliteMachine.TestCase
TestSqliteAgainstTheModel.settings = SHORT
TestMemoryAgainstTheModel = MemoryMachine.TestCase
TestMemoryAgainstTheModel.settings = SHORT


class TestPostgresAgainstTheModel(PostgresMachine.TestCase):  # type: ignore[misc,valid-type]
    settings = settings(SHORT, max_examples=8)

    @pytest.fixture(autouse=True)
    def server(self, postgres: str) -> None:
        PostgresMachine.server = postgres
