"""D6: another process holds the write lock, and a reader holds an old snapshot, while answers are to be stored. Half a
minute and ten minutes with `-m long`, some seconds in every run."""

from __future__ import annotations

import asyncio
import os
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.faults.fork_server import ForkServer
from tests.faults.killing import answer_with_mark, check_integrity, make_sqlite_fetch
from tests.faults.test_stores import Asked, healed
from tests.raw_upstream import run_upstream, send_raw

Record = Callable[[str, object], None]

LOCK_S = float(os.environ.get("LOCK_S", "30"))
SNAPSHOT_S = float(os.environ.get("SNAPSHOT_S", "600"))
LOG_LIMIT = 64 << 20
"""Bytes to which the log is cut once a reader lets it be (`journal_size_limit`)."""


@pytest.mark.parametrize("how", ["lock", "snapshot"])
@pytest.mark.parametrize("long", [False, pytest.param(True, marks=pytest.mark.long)], ids=["short", "long"])
async def test_d6_while_another_process_holds_the_file_every_request_is_answered_and_nothing_is_lost(
    fork_server: ForkServer, tmp_path: Path, record_property: Record, how: str, long: bool
) -> None:
    db = tmp_path / "store.sqlite3"
    seconds = (LOCK_S if how == "lock" else SNAPSHOT_S) if long else 2.0
    loop = asyncio.get_running_loop()
    async with run_upstream(answer_with_mark) as upstream:
        url = f"http://127.0.0.1:{upstream.port}/v1"
        pid, port = await fork_server.started(upstream=url, db=str(db), log_level="error")
        asked = Asked(port)
        await asked.many("before", 4)
        with closing(sqlite3.connect(db, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE" if how == "lock" else "BEGIN")
            other.execute("SELECT count(*) FROM messages").fetchone()
            began, number, largest = loop.time(), 0, 0
            while loop.time() < began + seconds:
                number += 1
                await asked.many(f"during{number}.", 8 if how == "snapshot" else 2)
                largest = max(largest, Path(f"{db}-wal").stat().st_size)
                await asyncio.sleep(seconds / 100)
            told = await send_raw(port, b"GET /metrics HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n")
            size = re.search(rb"^context_proxy_store_log_bytes (\S+)$", told, re.MULTILINE)
            assert size, "what the alert looks at"
            assert float(size[1]) >= largest
            other.execute("ROLLBACK")
        if how == "snapshot":
            assert len(asked.deferred) <= asked.answered / 10, "a reader holds nobody up"
        await healed(asked)
        await asked.many("after", 4)
        async with asyncio.timeout(20):
            while Path(f"{db}-wal").stat().st_size > LOG_LIMIT:
                await asyncio.sleep(0.1)
        await asyncio.to_thread(fork_server.end, pid)
    stored = await make_sqlite_fetch(str(db))("SELECT status, count(*) FROM exchanges GROUP BY status")
    assert stored == [("complete", asked.answered)], "nothing is lost, and nothing is there twice"
    assert asked.passed == 0
    check_integrity(str(db))
    record_property(
        "measured",
        f"{how} for {seconds:g} s: {asked.answered} of {asked.answered} answered and stored, {len(asked.deferred)} of"
        f" them late; the log had {largest / 1e6:.1f} MB",
    )
