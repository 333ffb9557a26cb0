from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.store import sqlite as module
from proxy.store.base import SessionRow
from proxy.store.reads import Store
from proxy.store.removal import RemovalStepRow
from proxy.store.session_notes import MEMO_SESSION, HiddenRoundRow, MemoRow, ScratchpadRow
from proxy.store.sqlite import NegativeCache, SqliteStore
from tests.store.conftest import RowFactory


def pad(session: str, tenant: str = "t1", number: int = 1) -> ScratchpadRow:
    return ScratchpadRow(tenant, session, number, "text", "model", 1.0)


def memo(name: str, tenant: str = "t1", at: float = 1.0, *, deleted: bool = False) -> MemoRow:
    return MemoRow(tenant, MEMO_SESSION, name, "p", "content", "[]", "s1", 1.0, at, deleted)


def hidden(session: str, tenant: str = "t1", key: bytes = b"key") -> HiddenRoundRow:
    return HiddenRoundRow(tenant, session, key, b"tip", "x1", b"{}", 1.0)


class Counting(SqliteStore):
    """Counts what is really asked."""

    asked = 0

    async def _fetch(self, text: str, args: Sequence[Any]) -> list[tuple[Any, ...]]:
        self.asked += 1
        return await super()._fetch(text, args)


async def opened(path: Path) -> Counting:
    store = Counting(path)
    await store.open()
    store.asked = 0
    return store


async def test_the_store_is_not_read_for_a_session_known_to_have_nothing(tmp_path: Path) -> None:
    store = await opened(tmp_path / "db")
    assert await store.read_scratchpad("t1", "s1") is None
    assert await store.read_hidden_rounds("t1", "s1", [b"tip"]) == []
    assert await store.read_memos("t1") == []
    assert store.asked == 0
    await store.put([*RowFactory().begin(), pad("s1"), memo("m"), hidden("s1")])
    assert await store.read_scratchpad("t1", "s1") == pad("s1")
    assert await store.read_hidden_rounds("t1", "s1", [b"tip"]) == [hidden("s1")]
    assert await store.read_memos("t1") == [memo("m")]
    asked = store.asked
    assert asked == 3
    assert await store.read_scratchpad("t1", "s2") is await store.read_scratchpad("t2", "s1") is None
    assert await store.read_memos("t2") == []
    assert store.asked == asked
    await store.close()


async def test_what_is_there_from_before_is_known_when_it_is_opened(tmp_path: Path) -> None:
    store = await opened(tmp_path / "db")
    await store.put([SessionRow("t1", "s1", True, 1.0), pad("s1"), pad("s1", number=2), memo("m")])
    await store.close()
    store = await opened(tmp_path / "db")
    assert await store.read_scratchpad("t1", "s1") == pad("s1", number=2)
    assert await store.read_scratchpad("t1", "s2") is None
    assert await store.read_memos("t1") == [memo("m")]
    assert store.asked == 2
    await store.close()


@pytest.mark.parametrize("bound", ["MAX_SESSIONS", "_MAX_SCANNED_ROWS"])
async def test_where_many_have_some_all_are_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str) -> None:
    monkeypatch.setattr(module, bound, 3)
    store = await opened(tmp_path / "db")
    for number in range(4):
        await store.put([SessionRow("t1", f"s{number}", True, 1.0), pad(f"s{number}")])
    asked = store.asked
    assert await store.read_scratchpad("t1", "other") is None
    assert store.asked == asked + (bound == "MAX_SESSIONS")
    await store.close()
    store = await opened(tmp_path / "db")
    assert await store.read_scratchpad("t1", "other") is None
    assert await store.read_memos("t1") == []
    assert store.asked == 1
    await store.close()


def test_a_negative_cache_that_was_not_loaded_claims_nothing() -> None:
    absent = NegativeCache()
    absent.add_sessions([pad("s1")])
    assert not absent.has_none("scratchpads", "t1", "s2")


SESSIONS = ["s1", "s2", "s3"]
sessions = st.sampled_from(SESSIONS)
tenants = st.sampled_from(["t1", "t2"])
numbers = st.integers(1, 3)
steps = st.one_of(
    st.tuples(st.sampled_from(["put", "later"]), st.builds(pad, sessions, tenants, numbers)),
    st.tuples(st.sampled_from(["put", "later"]), st.builds(hidden, sessions, tenants, st.sampled_from([b"a", b"b"]))),
    st.tuples(
        st.sampled_from(["put", "later"]),
        st.builds(memo, st.sampled_from(["m", "n"]), tenants, st.floats(1, 3), deleted=st.booleans()),
    ),
    st.tuples(
        st.just("put"),
        st.builds(
            RemovalStepRow,
            tenants,
            st.sampled_from([*SESSIONS, MEMO_SESSION]),
            st.sampled_from(["memos", "scratchpads"]),
        ),
    ),
    st.tuples(st.just("reopen"), st.none()),
    st.tuples(st.just("look"), st.none()),
)


@given(st.lists(steps, max_size=25))
@settings(max_examples=25, derandomize=True)
def test_the_negative_cache_never_hides_a_stored_row(taken: list[tuple[str, Any]]) -> None:
    """Reads with the cache and without it are equal, whatever was put before and whenever the store is reopened."""

    async def work(path: Path) -> None:
        store = await opened(path)
        for step, row in [*taken, ("look", None)]:
            if step == "reopen":
                await store.close()
                store = await opened(path)
            elif step == "look":
                await store.put([RowFactory().form(b"all that was put before is stored now")])
                for tenant in ("t1", "t2"):
                    assert await store.read_memos(tenant) == await Store.read_memos(store, tenant)
                    for session in SESSIONS:
                        place = tenant, session
                        assert await store.read_scratchpad_versions(*place) == await Store.read_scratchpad_versions(
                            store, *place
                        )
                        assert await store.read_rounds_page(*place) == await Store.read_rounds_page(store, *place)
            elif step == "put":
                await store.put([row])
            else:
                store.put_deferred([row])
        await store.close()

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(work(Path(folder) / "db"))
