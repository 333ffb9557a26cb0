"""Stores on real files, and rows to put into them. A backend joins by one more entry in BACKENDS."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from proxy.store import sqlite_files
from proxy.store.base import (
    BranchRow,
    BranchTipRow,
    EditRow,
    ExchangeRow,
    FormRow,
    MessageRow,
    OutcomeRow,
    SessionRow,
    StateRow,
)
from proxy.store.in_memory import InMemoryStore
from proxy.store.migrate import migrate
from proxy.store.reads import Store
from tests.postgres import drop_database, new_store_database
from tests.stores import postgres_store, sqlite_store

BACKENDS: dict[str, Callable[[str], Store]] = {
    "sqlite": sqlite_store,
    "memory": lambda _: InMemoryStore(),
    "postgres": postgres_store,
}
"""Each from the address of a database: a path, nothing, a URL."""


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    """The file of a new store: with its tables, and not open."""
    made = tmp_path / "store.sqlite3"
    sqlite_files.prepare_files(made)
    await migrate(made)
    return made


@pytest.fixture(params=sorted(BACKENDS))
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    address = f"{tmp_path}/store.sqlite3"
    if request.param == "postgres":
        address = await new_store_database(request.getfixturevalue("postgres"))
    made = BACKENDS[request.param](address)
    await made.open()
    yield made
    await made.close()
    if request.param == "postgres":
        await drop_database(address)


@pytest.fixture
async def begun(store: Store) -> None:
    """The sessions of most tests are there: a row is stored only where its session is."""
    await store.put([SessionRow(tenant, session, True, 1.0) for tenant in ("t1", "t2") for session in ("s1", "s2")])


def digest(*parts: object) -> bytes:
    return hashlib.blake2b(repr(parts).encode(), digest_size=16).digest()


class RowFactory:
    """Rows of one tenant and session with the fields that a test does not care about filled in."""

    def __init__(self, tenant: str = "t1", session: str = "s1") -> None:
        self.tenant = tenant
        self.session = session

    def begin(self, at: float = 1.0, branch: str = "main") -> list[SessionRow | BranchRow]:
        return [SessionRow(self.tenant, self.session, True, at), self.branch(branch, at)]

    def branch(self, branch: str = "main", at: float = 1.0, parent: str | None = None) -> BranchRow:
        kind = "main" if parent is None else "fork"
        fork_key = None if parent is None else b"fork"
        return BranchRow(self.tenant, self.session, branch, parent, fork_key, kind, b"system", at)  # type: ignore[arg-type]

    def tip(self, tip: bytes, at: float, branch: str = "main", stopped: str | None = None) -> BranchTipRow:
        return BranchTipRow(self.tenant, self.session, branch, tip, b"answer", at, stopped)

    def message(
        self,
        key: bytes,
        parent: bytes = b"root",
        position: int = 0,
        *,
        body: bytes = b'{"role":"user","content":"hi"}',
        branch: str = "main",
        at: float = 1.0,
        answer: bool = False,
        reached: bool = True,
    ) -> MessageRow:
        return MessageRow(
            self.tenant,
            self.session,
            key,
            parent,
            position,
            branch,
            "user",
            "g1",
            body,
            digest(body),
            None,
            "completed",
            "openai",
            7,
            answer,
            reached,
            at,
        )

    def line(self, count: int, name: str = "m", start: float = 1.0) -> list[MessageRow]:
        """`count` messages, each the child of the one before."""
        keys = [digest(name, n) for n in range(count)]
        return [
            self.message(key, keys[n - 1] if n else b"root", n, body=b"body %d" % n, at=start + n, answer=n % 2 == 1)
            for n, key in enumerate(keys)
        ]

    def form(self, body: bytes) -> FormRow:
        return FormRow(self.tenant, self.session, digest(body), body)

    def edit(
        self, key: bytes, version: int = 1, text: str | None = "short", branch: str = "main", stage: str = "mask"
    ) -> EditRow:
        return EditRow(self.tenant, self.session, branch, key, version, stage, "old", "text", text, 100, 10, "x1", 2.0)

    def state(self, key: bytes, text: str, branch: str = "main", at: float = 3.0) -> StateRow:
        return StateRow(self.tenant, self.session, branch, key, text, at)

    def exchange(self, exchange: str, at: float = 4.0, model: str = "gpt-5") -> ExchangeRow:
        return ExchangeRow(
            self.tenant,
            self.session,
            exchange,
            "main",
            b"head",
            12,
            b"envelope",
            b"[]",
            3,
            b"[]",
            "thrifty",
            "when_it_pays",
            model,
            "default",
            "openai",
            1000,
            800,
            None,
            at,
        )

    def outcome(self, exchange: str, at: float = 5.0) -> OutcomeRow:
        return OutcomeRow(
            self.tenant, self.session, exchange, "complete", 200, "stop", 900, 50, 700, b"answer", None, 12.5, at, None
        )


@pytest.fixture
def make() -> RowFactory:
    return RowFactory()
