"""The table of runners: each pattern is one, and begins where a line does."""

from __future__ import annotations

import re

import pytest

from proxy.context.analysis import runners
from proxy.context.analysis.runners import RUNNERS, Runner


@pytest.mark.parametrize("runner", RUNNERS, ids=lambda runner: runner.name)
def test_each_pattern_compiles_without_groups_of_its_own(runner: Runner) -> None:
    for pattern in (*runner.failed, *runner.passed, *runner.part, *runner.last, *(p for p, _ in runner.detail)):
        assert re.compile(pattern).groups == 0, pattern


def test_a_detail_names_how_many_lines_follow() -> None:
    patterns = runners.compile_patterns()
    match = patterns.detail.match("--- FAIL: TestResume (0.0s)")
    assert match is not None
    assert match.lastindex is not None
    assert patterns.following_lines[match.lastindex - 1] == 1


def test_no_line_of_success_is_one_of_failure() -> None:
    patterns = runners.compile_patterns()
    for line in (
        "3 passed in 1s",
        "ok  \tpkg\t0.1s",
        "test result: ok. 3 passed; 0 failed",
        "Tests:  3 passed, 3 total",
    ):
        assert patterns.failed.match(line) is None, line
    for line in ("0 failing", "Found 0 errors", "0 problems", "0 issues."):
        assert patterns.failed.match(line) is None, line
