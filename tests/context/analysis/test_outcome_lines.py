"""The lines that report how a run ended are found."""

from __future__ import annotations

import pytest

from proxy.context.analysis import outcome_lines, result_lines, runner_patterns
from proxy.context.analysis.output_wrappers import strip_line
from tests.context.analysis.runs import RUNS
from tests.context.analysis.test_tool_outputs import OUTPUTS


@pytest.mark.parametrize("text", [*(run.output for run in RUNS), *(run["output"] for run in OUTPUTS)])
def test_the_search_for_words_misses_no_line_of_a_runner(text: str) -> None:
    patterns = runner_patterns.compile_patterns()
    rows = result_lines.split_lines(text)
    told = {
        n
        for n, row in enumerate(rows)
        for line in [strip_line(row)]
        if any(pattern.match(line) for pattern in (patterns.failed, patterns.passed, patterns.part))
    }
    assert told <= set(outcome_lines.find_candidates(rows))


def test_the_final_line_is_not_a_remark_if_there_is_another_line() -> None:
    assert outcome_lines.find_final_line(["added 3 packages in 1s", "", "Run `npm audit` for details."]) == 0
    assert outcome_lines.find_final_line(["Run `npm audit` for details.", ""]) == 0
    assert outcome_lines.find_final_line([""]) is None


def test_a_block_ends_with_its_first_line_that_is_not_indented() -> None:
    header = runner_patterns.compile_patterns().traceback
    rows = ["Traceback (most recent call last):", "  File 'a.py'", "    f()", "OutOfStock: 3", "bye"]
    assert outcome_lines.ends_block(rows, 3, header)
    assert not outcome_lines.ends_block(rows, 4, header)
    assert not outcome_lines.ends_block(rows, None, header)


def test_the_middle_of_a_result_with_too_many_lines_is_not_read() -> None:
    rows = ["ok"] * (outcome_lines.HEAD_LINES + outcome_lines.TAIL_LINES + 50)
    rows[outcome_lines.HEAD_LINES + 50] = "first of the end: ok"
    found = outcome_lines.find_candidates(rows)
    head, end = found[: outcome_lines.HEAD_LINES], found[outcome_lines.HEAD_LINES :]
    assert head == list(range(outcome_lines.HEAD_LINES))
    assert rows[end[0]] == "first of the end: ok"
    assert end[-1] == len(rows) - 1
