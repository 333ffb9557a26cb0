"""The lines that report how a run ended are found."""

from __future__ import annotations

import re
from re import _parser  # there is no public one
from typing import Any

import pytest

from proxy.context.analysis import outcome_lines, result_lines, runner_patterns
from proxy.context.analysis.outcome_lines import OUTCOME_WORDS
from proxy.context.analysis.output_wrappers import strip_line
from proxy.context.analysis.runners import RUNNERS, Runner
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


WHOLE_LINES = (
    "!!!!!! stopping after 1 failures !!!!!!",
    "added 5 packages in 2s",
    "\xc9chec! - \xc9chec : 1, r\xe9ussite : 3, ignor\xe9e(s) : 0, total : 4, dur\xe9e : 12 ms - a.dll (net8.0)",
    "R\xe9ussi! - \xc9chec : 0, r\xe9ussite : 3, ignor\xe9e(s) : 0, total : 3, dur\xe9e : 12 ms - a.dll (net8.0)",
    "Executed 3 tests, with 1 failure (0 unexpected) in 0.1 seconds",
    "a.py:26:10: E1101: Instance of 'A' has no 'foo' member (no-member)",
    '[error] No files matching the pattern were found: "a".',
    "00:05 +1 -1: Some tests failed.",
    "(Test / test) sbt.TestsFailedException: Tests unsuccessful",
)
"""Lines of runners whose pattern ends before the first of the words."""


def list_texts(parsed: Any) -> set[str]:
    """The shortest texts of a regular expression, in small letters; 0 stands for what may be one of many characters."""
    found = {""}
    for op, value in parsed:
        name, parts = str(op), {"0"}
        if name == "LITERAL":
            parts = {chr(value).lower()}
        elif name == "IN" and all(str(kind) == "LITERAL" for kind, _ in value):
            parts = {chr(code).lower() for _, code in value}
        elif name == "BRANCH":
            parts = {text for branch in value[1] for text in list_texts(branch)}
        elif name in ("SUBPATTERN", "ASSERT"):
            parts = list_texts(value[-1])
        elif name in ("MAX_REPEAT", "MIN_REPEAT"):
            parts = {text * value[0] for text in list_texts(value[2])}
        elif name in ("AT", "ASSERT_NOT"):
            parts = {""}
        found = {begin + part for begin in found for part in parts}
    return found


def has_word(line: str) -> bool:
    return any(word in line.lower() for word in OUTCOME_WORDS)


@pytest.mark.parametrize("runner", RUNNERS, ids=lambda runner: runner.name)
def test_every_line_of_a_runner_has_a_word_by_which_it_is_found(runner: Runner) -> None:
    """A pattern without one is never compared with a line."""
    pairs = [line for line, _ in (*runner.whole, *runner.below)]
    for pattern in (*runner.failed, *runner.passed, *runner.part, *runner.last, *pairs):
        for text in list_texts(_parser.parse(pattern)):
            lines = [line for line in WHOLE_LINES if re.match(pattern, line)]
            assert has_word(text) or any(map(has_word, lines)), (pattern, text)
