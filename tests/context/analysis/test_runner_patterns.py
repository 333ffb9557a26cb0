from __future__ import annotations

from proxy.context.analysis import runner_patterns


def test_a_failure_pattern_says_how_many_lines_follow() -> None:
    patterns = runner_patterns.compile_patterns()
    match = patterns.detail.match("--- FAIL: TestResume (0.0s)")
    assert match is not None
    assert match.lastindex is not None
    assert patterns.following_lines[match.lastindex - 1] == 1


def test_no_line_of_success_is_one_of_failure() -> None:
    patterns = runner_patterns.compile_patterns()
    for line in (
        "3 passed in 1s",
        "ok  \tpkg\t0.1s",
        "test result: ok. 3 passed; 0 failed",
        "Tests:  3 passed, 3 total",
    ):
        assert patterns.failed.match(line) is None, line
    for line in ("0 failing", "Found 0 errors", "0 problems", "0 issues."):
        assert patterns.failed.match(line) is None, line
