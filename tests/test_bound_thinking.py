"""A thinking model under each policy, in each wire format that binds reasoning: nothing fails and nothing is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks.bound_thinking import (
    BEGIN,
    END,
    PAGE,
    STEPS,
    WIRES,
    Run,
    keep_table,
    list_bound_policies,
    make_table,
    run_work,
    write_schedules,
)

BOTH_WAYS = pytest.mark.parametrize("is_stream", [False, True], ids=["body", "stream"])


@pytest.mark.parametrize("wire", WIRES)
async def test_some_steps_of_work_lose_nothing_and_save_something(wire: str) -> None:
    run = await run_work("thrifty", wire, is_stream=wire != "responses", steps=20)
    assert run.is_whole, run
    assert run.sent < run.before


async def test_an_agent_that_reads_its_files_again_and_again_goes_on_saving() -> None:
    run = await run_work("thrifty", "messages", is_stream=False, steps=STEPS)
    assert run.is_whole, run
    assert run.sent < 0.8 * run.before


@pytest.mark.slow
@BOTH_WAYS
@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("policy", ["rolling", "progressive", "hierarchical"])
async def test_literal_policies_break_no_bound_thinking(policy: str, wire: str, is_stream: bool) -> None:
    assert (await run_work(policy, wire, is_stream=is_stream, steps=20)).is_whole


@pytest.mark.long
@BOTH_WAYS
@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("policy", list_bound_policies())
async def test_seventy_steps_with_bound_thinking_lose_nothing_under_each_policy(
    policy: str, wire: str, is_stream: bool
) -> None:
    assert (await run_work(policy, wire, is_stream=is_stream, steps=STEPS)).is_whole


@pytest.mark.long
@BOTH_WAYS
@pytest.mark.parametrize("wire", WIRES)
async def test_seventy_steps_with_bound_thinking_lose_nothing_under_each_schedule(
    wire: str, is_stream: bool, tmp_path: Path
) -> None:
    for policy in write_schedules(tmp_path):
        run = await run_work(policy, wire, is_stream=is_stream, steps=STEPS, policies_dir=str(tmp_path))
        assert run.is_whole, run
        assert run.sent < run.before


def test_a_line_of_the_table_has_all_runs_of_a_policy(tmp_path: Path) -> None:
    runs = [
        Run("thrifty", wire, is_stream, requests=10, failed=0, refused=0, dropped=dropped, before=1000, sent=sent)
        for wire, is_stream, dropped, sent in [("messages", False, 1, 500), ("messages", True, 0, 1000), *_RESPONSES]
    ]
    lines = make_table(runs).splitlines()
    assert lines[2:] == ["| `thrifty` | 25.0% | 50.0% |  | 30 | 0 | 0 | 1 |"]
    page = tmp_path / "page.md"
    page.write_text(f"Front.\n\n{BEGIN}\nold\n{END}\n\nEnd.\n")
    keep_table("| new |", page)
    assert page.read_text() == f"Front.\n\n{BEGIN}\n\n| new |\n\n{END}\n\nEnd.\n"


_RESPONSES = [("responses", False, 0, 500)]


def test_the_page_has_every_policy() -> None:
    table = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
    for policy in list_bound_policies():
        assert f"| `{policy}` |" in table
