"""D2, D5: the power goes, and a disk that takes two seconds for a sync."""

from __future__ import annotations

import asyncio
import json
import random
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.faults.fork_server import ForkServer
from tests.faults.killing import answer_with_mark
from tests.faults.power_loss import TRACE, Cut, Disk, Event, Said, Sync, Write, events
from tests.faults.tracing import injected, need_tracing
from tests.proxy_server import CHAT, parse_answer
from tests.raw_upstream import make_post, run_upstream, send_raw
from tests.snapshot import snapshot
from tests.store import child


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> list[Event]:
    """The changes that a store made to its files while it acknowledged 40 turns and was closed."""
    need_tracing()
    folder = tmp_path_factory.mktemp("traced")
    path, trace = folder / "store.sqlite3", folder / "trace"
    command = [*TRACE, "-o", str(trace), sys.executable, "-W", "error", child.__file__, "sync_fails", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("closed\n")
    # New names are taken to be certain at once, removed ones when their folder is synced.
    return [e for e in events(trace) if isinstance(e, Said) or "store.sqlite3" in e.path or e.path == str(folder)]


def find_lost_turns(written: list[Event], at: int, folder: Path, chance: random.Random) -> list[int]:
    """The turns that were acknowledged before this event and are not there after the power went."""
    disk = Disk()
    acknowledged = []
    for event in written[:at]:
        disk.take(event)
        if isinstance(event, Said) and event.text.startswith("acknowledged"):
            acknowledged.append(int(event.text.split()[1]))
    disk.crash(folder, chance)
    for name in ("store.sqlite3-shm", "store.sqlite3.lock"):
        (folder / name).unlink(missing_ok=True)
    if not acknowledged:
        return []
    with closing(sqlite3.connect(folder / "store.sqlite3")) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    with closing(snapshot(folder / "store.sqlite3")) as connection:
        there = {row[0] for row in connection.execute("SELECT exchange FROM exchanges")}
        bodies = {bytes(row[0]) for row in connection.execute("SELECT body FROM messages")}
    return [n for n in acknowledged if f"x{n}" not in there or child.body(2 * n + 1) not in bodies]


def test_d2_the_trace_holds_what_was_written(written: list[Event]) -> None:
    assert sum(isinstance(e, Said) and e.text.startswith("acknowledged") for e in written) == 40
    assert sum(isinstance(e, Write) for e in written) > 100
    assert sum(isinstance(e, Sync) for e in written) > 40
    assert any(isinstance(e, Cut) for e in written)


def test_d2_no_acknowledged_turn_is_lost_whenever_the_power_goes(written: list[Event], tmp_path: Path) -> None:
    chance = random.Random(7)
    told = [n for n, e in enumerate(written) if isinstance(e, Said)]
    moments = sorted({*(n + 1 for n in told), *(chance.randrange(told[0], len(written)) for _ in range(160))})
    for number, at in enumerate(moments):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert find_lost_turns(written, at, folder, chance) == []


@pytest.mark.long
def test_d2_nothing_is_lost_at_ten_thousand_moments_of_power_loss(written: list[Event], tmp_path: Path) -> None:
    chance = random.Random(8)
    first = next(n for n, e in enumerate(written) if isinstance(e, Said))
    for _ in range(10_000):
        assert find_lost_turns(written, chance.randrange(first, len(written)), tmp_path, chance) == []
        for file in tmp_path.iterdir():
            file.unlink()


def test_d2_without_syncs_turns_would_be_lost(written: list[Event], tmp_path: Path) -> None:
    """That the replay can lose something at all: the same writes, with nothing of the log ever made certain."""
    careless = [e for e in written if not (isinstance(e, Sync) and e.path.endswith("-wal"))]
    gone = 0
    chance = random.Random(9)
    for number in range(30):
        folder = tmp_path / str(number)
        folder.mkdir()
        half = next(n for n, e in enumerate(careless) if isinstance(e, Said) and e.text.startswith("acknowledged 30"))
        try:
            gone += bool(find_lost_turns(careless, half + 1, folder, chance))
        except sqlite3.DatabaseError:
            gone += 1
    assert gone > 5


async def test_d5_a_disk_that_takes_two_seconds_delays_no_token_and_the_end_by_a_quarter_of_one(
    fork_server: ForkServer, tmp_path: Path
) -> None:
    need_tracing()
    db = str(tmp_path / "store.sqlite3")
    async with run_upstream(answer_with_mark) as upstream:
        pid, port = await fork_server.started(upstream=f"http://127.0.0.1:{upstream.port}/v1", db=db)
        loop = asyncio.get_running_loop()
        # The first request loads modules, and each system call of that takes long while the process is traced.
        assert parse_answer(
            await send_raw(port, make_post(CHAT, b'{"model":"m","messages":[{"role":"user","content":"a"}]}'))
        ).whole
        async with injected(pid, "fsync,fdatasync", "delay_enter=2000000"):
            for number in range(4):
                messages = [{"role": "user", "content": f"m{number}"}]
                body = {"model": "m", "stream": number % 2 == 0, "messages": messages}
                began = loop.time()
                raw = await send_raw(
                    port, make_post(CHAT, json.dumps(body).encode(), b"content-type: application/json")
                )
                got = parse_answer(raw)
                assert loop.time() - began < 4 * 0.25 + 0.9, "it did not wait for the disk"
                assert (got.status, got.whole) == (200, True)
                if body["stream"]:
                    assert b": persist deferred\n\ndata: [DONE]\n\n" in got.body
                else:
                    assert got.header("x-context-persist") == "deferred"
        answer = parse_answer(
            await send_raw(port, make_post(CHAT, b'{"model":"m","messages":[{"role":"user","content":"z"}]}'), 20)
        )
        assert answer.header("x-context-persist") is None
        with closing(snapshot(db)) as connection:
            found = connection.execute("SELECT status, count(*) FROM exchanges GROUP BY status").fetchall()
        assert found == [("complete", 6)], "what was deferred was not lost"
        await asyncio.to_thread(fork_server.kill, pid)
