"""Attacks by a model's SQL through the tool: it reads no data of others, writes nothing, and holds nobody up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from proxy.tools import stored_history
from proxy.tools.sandbox import Sandbox
from proxy.tools.tool_context import ToolContext
from tests.tools.attacks import ALLOWED, BOMBS, RESULT, Grammar, Many, changed, escapes, given, lag
from tests.tools.stored_session import (
    CANARY,
    assistant,
    assistant_call,
    make_tool_context,
    result,
    run_call,
    shared_file,
    store_messages,
    user,
)

MINE = [
    user("please read a.py"),
    assistant_call("read", '{"path": "a.py"}'),
    result("def parse(): pass\n" * 40),
    assistant("It defines a parser; e is in it. " * 5),
] * 15

NAMES = list(escapes(Path("store"), Path("target")))

LAYERS: dict[str, list[tuple[str, str]]] = {
    "statements begin with SELECT": [("if not STATEMENT.match(statement):", "if not statement:")],
    "the authorizer": [("    database.set_authorizer(lambda", "    print(end='') or (lambda")],
    "the functions": [('(second or "").lower() in FUNCTIONS', "second")],
    "the limits of SQLite": [("    for limit, most in LIMITS:", "    for limit, most in ():")],
    "the memory of SQLite": [('    database.execute(f"PRAGMA hard_heap_limit = {HEAP_BYTES}")\n', "")],
    "the limits of the process": [
        ("    confine()\n", ""),
        ("        _limit_cpu(CPU_S)\n", ""),
    ],
}
"""Each layer with what takes it out of the child. The parent's clock is taken out by another argument."""


@pytest.fixture
async def context(tmp_path: Path) -> AsyncIterator[ToolContext]:
    (tmp_path / "db").mkdir()
    async with shared_file(tmp_path / "db") as store:
        await store_messages(store, MINE)
        yield make_tool_context(store, tools={"result_chars": 64_000})


def written(folder: Path) -> set[str]:
    """The files under a folder."""
    return {str(file) for file in folder.rglob("*")}


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Path]:
    """A file that must not come to be, nor any other in its folder."""
    (tmp_path / "out").mkdir()
    yield tmp_path / "out" / "evil.db"
    assert not written(tmp_path / "out")


async def rows(context: ToolContext) -> list[bytes]:
    records, _ = await stored_history.load_newest(context)
    return stored_history.make_table_rows(records, [])


@pytest.mark.timed
@pytest.mark.parametrize("name", NAMES)
async def test_no_sql_statement_escapes_from_the_sandbox(
    context: ToolContext, target: Path, tmp_path: Path, name: str
) -> None:
    before = written(tmp_path / "db")
    sql = escapes(tmp_path / "db" / "store.sqlite3", target)[name]
    began = time.monotonic()
    found = await run_call(context, "query_db", sql=sql)
    assert time.monotonic() - began < ALLOWED
    assert CANARY not in found
    assert len(found) <= RESULT
    if not name.startswith("a CTE"):
        assert found.startswith('{"error": '), found
    assert written(tmp_path / "db") == before
    assert "parse" in await run_call(context, "query_db", sql="SELECT max(content) FROM messages WHERE role = 'tool'")


@pytest.mark.timed
@pytest.mark.parametrize("name", BOMBS)
async def test_no_sql_statement_exceeds_its_time_limit(context: ToolContext, target: Path, name: str) -> None:
    began = time.monotonic()
    found = await run_call(context, "query_db", sql=BOMBS[name])
    assert time.monotonic() - began < ALLOWED
    assert len(found) <= RESULT
    assert found.startswith('{"error": ') or name == "a large result"


@pytest.mark.timed
async def test_the_event_loop_keeps_running_meanwhile(context: ToolContext) -> None:
    worst = []
    for _ in range(3):  # the machine's own pauses are no concern of ours
        async with lag() as away:
            await asyncio.gather(
                *(run_call(context, "query_db", sql=sql) for sql in ["SELECT * FROM messages", *BOMBS.values()][:3])
            )
            worst.append(away())
        if worst[-1] < 4 * 0.02:
            return
    pytest.fail(f"the event loop was away for {worst} seconds")


def generated(
    desk_rows: list[bytes], count: int, seed: int, target: Path, child: Path | None = None
) -> dict[str, float]:
    """Asks so many statements of the grammar, and says what came of them."""
    many = Many(desk_rows, child) if child else Many(desk_rows)
    grammar = Grammar(seed, target)
    counts = {"answered": 0.0, "refused": 0.0, "ended": 0.0, "slowest": 0.0}
    try:
        for _ in range(count):
            statement = grammar.statement()
            began = time.monotonic()
            found = many.ask(statement)
            counts["slowest"] = max(counts["slowest"], time.monotonic() - began)
            assert CANARY not in str(found), statement
            counts["ended" if found is None else "refused" if "error" in found else "answered"] += 1
    finally:
        many.close()
    return counts


@pytest.mark.timed
async def test_two_thousand_generated_statements_read_and_write_nothing_of_others(
    context: ToolContext, target: Path
) -> None:
    counts = await asyncio.to_thread(generated, await rows(context), 2000, 1, target)
    assert counts["slowest"] < ALLOWED
    # Both kinds have to come, or the grammar would show nothing.
    assert min(counts["answered"], counts["refused"]) > 200, counts


@pytest.mark.timed
@pytest.mark.long
async def test_a_hundred_thousand_generated_statements(context: ToolContext, target: Path) -> None:
    counts = await asyncio.to_thread(generated, await rows(context), 100_000, 2, target)
    print(counts)
    assert counts["slowest"] < ALLOWED
    assert min(counts["answered"], counts["refused"]) > 10_000, counts


@pytest.mark.timed
@pytest.mark.slow
@pytest.mark.parametrize("layer", LAYERS)
async def test_without_one_layer_the_others_hold(
    context: ToolContext, target: Path, tmp_path: Path, layer: str
) -> None:
    child = changed(tmp_path, *LAYERS[layer])
    mine = await rows(context)
    before = written(tmp_path / "db")
    many = Many(mine, child)
    try:
        for name, sql in escapes(tmp_path / "db" / "store.sqlite3", target).items():
            found = await asyncio.to_thread(many.ask, sql)
            assert CANARY not in str(found), name
    finally:
        many.close()
    assert written(tmp_path / "db") == before
    sandbox = Sandbox(child, wall=1.5)  # the clock here is set for a busy machine; it has to be seen to end things
    for name in ("recursion", "printf (M3)", "instr (M3)", "a big sort", "a large result"):
        began = time.monotonic()
        answer = await sandbox.query(given(mine), BOMBS[name], search=False)
        assert time.monotonic() - began < ALLOWED, name
        assert len(str(answer.rows)) <= 2 * RESULT, name


@pytest.mark.timed
@pytest.mark.slow
async def test_without_the_parents_clock_the_childs_own_holds(context: ToolContext) -> None:
    sandbox = Sandbox(wall=60.0)
    for name in ("recursion", "instr (M3)"):
        began = time.monotonic()
        answer = await sandbox.query(given(await rows(context)), BOMBS[name], search=False)
        assert time.monotonic() - began < ALLOWED
        assert answer.error is not None
