from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from proxy.errors import ToolRefused
from proxy.tools.sandbox import MAX_SQL_BYTES, Sandbox, TenantSlots
from tests.tools.attacks import ALLOWED, BOMBS, changed, given, lag, make_row

ROWS = [make_row(n, f"message {n}") for n in range(1, 101)]


def children() -> list[psutil.Process]:
    """Those that live."""
    found = []
    for one in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):  # which a zombie is too
            found += [one] if "child.py" in " ".join(one.cmdline()) else []
    return found


async def test_a_query_is_answered_by_a_child_that_is_gone_afterwards() -> None:
    found = await Sandbox().query(given(ROWS), "SELECT count(*), max(content) FROM messages", search=False)
    assert (found.rows, found.error) == ([[100, "message 99"]], None)
    assert not children()


async def test_the_word_index_is_built_only_where_it_is_asked_for() -> None:
    sql = "SELECT id FROM messages_fts WHERE messages_fts MATCH 'message AND 7'"
    assert (await Sandbox().query(given(ROWS), sql, search=True)).rows == [["id7"]]
    assert "no such table" in str((await Sandbox().query(given(ROWS), sql, search=False)).error)


@pytest.mark.timed
async def test_a_statement_that_takes_too_long_is_ended_and_the_model_told() -> None:
    began = time.monotonic()
    found = await Sandbox().query(given(ROWS), BOMBS["recursion"], search=False)
    assert time.monotonic() - began < ALLOWED
    assert "ended" in str(found.error)
    assert not children()


async def test_a_child_that_gets_no_processor_for_long_is_not_ended(tmp_path: Path) -> None:
    say = "        _print(run_statement(database, json.loads(line)))"
    slow = changed(tmp_path, (say, "        time.sleep(2.5)\n" + say))
    assert (await Sandbox(slow).query(given(ROWS), "SELECT 1", search=False)).rows == [[1]]


@pytest.mark.timed
async def test_a_child_that_never_answers_is_ended_by_the_clock_here(tmp_path: Path) -> None:
    idle = changed(tmp_path, ("        _print(run_statement(database, json.loads(line)))", "        time.sleep(60)"))
    began = time.monotonic()
    found = await Sandbox(idle, wall=0.3).query(given(ROWS), "SELECT 1", search=False)
    assert 0.3 <= time.monotonic() - began < 4 * 0.3 + 5
    assert found.error is not None
    assert not children()


@pytest.mark.timed
async def test_a_child_that_reads_nothing_holds_nobody_up(tmp_path: Path) -> None:
    deaf = changed(
        tmp_path, ("    given = json.loads(next(lines))\n", "    time.sleep(60)\n    given = json.loads(next(lines))\n")
    )
    large = [make_row(n, "x" * 10_000) for n in range(100)]
    began = time.monotonic()
    found = await Sandbox(deaf, wall=0.3).query(given(large), "SELECT 1", search=False)
    assert time.monotonic() - began < ALLOWED
    assert found.error is not None


@pytest.mark.parametrize(
    "instead",
    [
        "        sys.exit(3)",
        "        print('no JSON', flush=True)",
        "        print('x' * 3_000_000, flush=True)",
        "        _print([])",
    ],
)
async def test_a_child_that_answers_with_rubbish_is_an_error_for_the_model(tmp_path: Path, instead: str) -> None:
    broken = changed(tmp_path, ("        _print(run_statement(database, json.loads(line)))", instead))
    found = await Sandbox(broken).query(given(ROWS), "SELECT 1", search=False)
    assert "ended" in str(found.error)


async def test_a_cancelled_query_ends_its_child_process(tmp_path: Path) -> None:
    idle = changed(tmp_path, ("        _print(run_statement(database, json.loads(line)))", "        time.sleep(60)"))
    sandbox = Sandbox(idle, wall=60.0, children=1)
    asking = asyncio.ensure_future(sandbox.query(given(ROWS), "SELECT 1", search=False))
    while not children():
        await asyncio.sleep(0.005)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    for _ in range(200):
        if not children():
            break
        await asyncio.sleep(0.01)
    assert not children()
    assert sandbox._slots.free == 1


async def test_tenants_have_their_turns_however_many_queries_one_of_them_has() -> None:
    slots, order = TenantSlots(2), list[str]()

    async def run(tenant: str) -> None:
        await slots.acquire(tenant)
        order.append(tenant)
        await asyncio.sleep(0)
        slots.release(tenant)

    await asyncio.gather(*(run("a") for _ in range(8)), *(run("b") for _ in range(2)), run("c"))
    assert order == [*"aabacb", *"a" * 5]
    assert slots.free == 2


async def test_a_query_that_is_given_up_while_it_waits_takes_no_slot() -> None:
    slots = TenantSlots(1)
    await slots.acquire("a")
    waiting = [asyncio.ensure_future(slots.acquire(tenant)) for tenant in "abb"]
    await asyncio.sleep(0)
    waiting[1].cancel()
    slots.release("a")
    waiting[2].cancel()  # it has its slot already
    await asyncio.wait(waiting)
    assert [one.cancelled() for one in waiting] == [False, True, True]
    slots.release("a")
    assert slots.free == 1


async def test_no_more_sandbox_processes_run_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.tools.sandbox.START_S", 60.0)  # on a busy machine the eighth waits for long
    sandbox = Sandbox(children=2)
    most = 0

    async def watch() -> None:
        nonlocal most
        while True:
            most = max(most, len(children()))
            await asyncio.sleep(0.002)

    watching = asyncio.ensure_future(watch())
    found = await asyncio.gather(
        *(sandbox.query(given(ROWS), "SELECT count(*) FROM messages", search=False) for _ in range(8))
    )
    watching.cancel()
    assert [one.rows for one in found] == [[[100]]] * 8
    assert 1 <= most <= 2


async def test_queries_that_wait_for_their_turn_hold_no_rows() -> None:
    sandbox, loads, most = Sandbox(children=2), 0, 0

    async def ask() -> None:
        nonlocal loads

        async def load_rows() -> Sequence[bytes]:
            nonlocal loads, most
            loads += 1
            most = max(most, loads)
            await asyncio.sleep(0.01)
            return ROWS

        await sandbox.query(load_rows, "SELECT 1", search=False)
        loads -= 1

    await asyncio.gather(*(ask() for _ in range(8)))
    assert (loads, most) == (0, 2)


async def test_a_statement_that_is_too_long_starts_nothing() -> None:
    with pytest.raises(ToolRefused, match="longer than"):
        await Sandbox().query(given(ROWS), "SELECT '" + "é" * MAX_SQL_BYTES + "'", search=False)


@pytest.mark.timed
async def test_ten_megabytes_of_rows_leave_the_event_loop_free() -> None:
    large = [make_row(n, "lorem ipsum " * 420) for n in range(2000)]
    worst = []
    for _ in range(3):  # the machine's own pauses are no concern of ours
        async with lag() as away:
            found = await Sandbox().query(
                given(large), "SELECT count(*), sum(length(content)) FROM messages", search=False
            )
            worst.append(away())
        assert found.rows == [[2000, 2000 * 12 * 420]]
        if worst[-1] < 4 * 0.02:
            return
    pytest.fail(f"the event loop was away for {worst} seconds")
