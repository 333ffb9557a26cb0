"""D1, P1: kill -9 under load, on both stores. Ten lives in every run, a thousand with `-m long`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.fork_server import ForkServer
from tests.faults.killing import (
    Acknowledged,
    Load,
    check_integrity,
    check_stored,
    kill_rounds,
    make_postgres_fetch,
    make_sqlite_fetch,
)

Record = Callable[[str, object], None]

LONG = int(os.environ.get("KILLS", "1000"))
"""Lives in the long form."""


def record_kills(load: Load, rounds: int, record: Record) -> None:
    record("measured", f"{rounds} kills, {len(load.acknowledged)} turns acknowledged, 0 lost, {load.deferred} deferred")
    assert load.unstored < rounds, "the store answered hardly anything in time"
    assert len(load.acknowledged) > 2 * rounds, "too little was under way to say anything"


async def test_d1_answers_that_clients_have_received_are_in_sqlite_after_kill_9(
    fork_server: ForkServer, tmp_path: Path, record_property: Record
) -> None:
    path = str(tmp_path / "store.sqlite3")
    record_kills(
        await kill_rounds(fork_server, path, 10, 1, make_sqlite_fetch(path), lambda: check_integrity(path)),
        10,
        record_property,
    )


async def test_d1_answers_that_clients_have_received_are_in_postgresql_after_kill_9(
    fork_server: ForkServer, database: str, record_property: Record
) -> None:
    record_kills(await kill_rounds(fork_server, database, 10, 2, make_postgres_fetch(database)), 10, record_property)


@pytest.mark.long
async def test_d1_a_thousand_kills_on_sqlite(
    fork_server: ForkServer,
    tmp_path: Path,
    record_property: Record,
) -> None:
    path = str(tmp_path / "store.sqlite3")
    record_kills(
        await kill_rounds(fork_server, path, LONG, 3, make_sqlite_fetch(path), lambda: check_integrity(path)),
        LONG,
        record_property,
    )


@pytest.mark.long
async def test_d1_a_thousand_kills_on_postgresql(
    fork_server: ForkServer,
    database: str,
    record_property: Record,
) -> None:
    record_kills(
        await kill_rounds(fork_server, database, LONG, 4, make_postgres_fetch(database)), LONG, record_property
    )


async def test_a_turn_that_is_not_there_is_noticed(fork_server: ForkServer, tmp_path: Path) -> None:
    path = str(tmp_path / "store.sqlite3")
    load = await kill_rounds(fork_server, path, 1, 5, make_sqlite_fetch(path))
    with pytest.raises(AssertionError, match="1 acknowledged turns lost of 1"):
        await check_stored({"m0.0": Acknowledged(b"{}", "answer to m0.0", 1)}, make_sqlite_fetch(path))
    mark, one = load.acknowledged.popitem()
    with pytest.raises(AssertionError, match="1 acknowledged turns lost of 1"):
        await check_stored({mark: Acknowledged(one.sent + b" ", one.answer, 1)}, make_sqlite_fetch(path))
