"""The patterns of all runners, joined and compiled: for each kind of line one search.

The lines of each runner are in `runners`, those of many programs in `general_lines`, and the commands in
`runner_commands`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from proxy.context.analysis import general_lines, runner_commands
from proxy.context.analysis.runners import RUNNERS


@dataclass(frozen=True, slots=True)
class RunnerPatterns:
    """The patterns of the table, joined for the search of a line."""

    failed: re.Pattern[str]
    passed: re.Pattern[str]
    printed: re.Pattern[str]
    part: re.Pattern[str]
    last: re.Pattern[str]
    detail: re.Pattern[str]
    """One group for each pattern."""
    following_lines: tuple[int, ...]
    """For each group of `detail`, the number of following lines that belong to the failure."""
    error: re.Pattern[str]
    remark: re.Pattern[str]
    begins: re.Pattern[str]
    traceback: re.Pattern[str]
    ignored_error: re.Pattern[str]
    cut: re.Pattern[str]
    whole: tuple[tuple[re.Pattern[str], re.Pattern[str]], ...]
    success_words: re.Pattern[str]
    below: tuple[tuple[re.Pattern[str], re.Pattern[str]], ...]
    harmless: re.Pattern[str]
    failure_count: re.Pattern[str]
    runner_command: re.Pattern[str]
    starting_command: re.Pattern[str]
    repeating_command: re.Pattern[str]
    trial_command: re.Pattern[str]
    console_line: re.Pattern[str]
    broken_end: re.Pattern[str]
    failed_check: re.Pattern[str]
    failed_check_words: re.Pattern[str]
    closing: re.Pattern[str]
    log_header: re.Pattern[str]
    opened_runs: tuple[tuple[re.Pattern[str], re.Pattern[str]], ...]


@cache
def compile_patterns() -> RunnerPatterns:
    """Compile the patterns of all runners, once."""
    details = [pair for runner in RUNNERS for pair in runner.detail] + list(general_lines.GENERAL_FAILURES)
    return RunnerPatterns(
        failed=_compile_any(p for runner in RUNNERS for p in runner.failed),
        passed=_compile_any(p for runner in RUNNERS for p in runner.passed),
        printed=_compile_any(p for runner in RUNNERS for p in runner.printed),
        part=_compile_any(p for runner in RUNNERS for p in runner.part),
        last=_compile_any(p for runner in RUNNERS for p in runner.last),
        detail=re.compile("|".join(f"({p})" for p, _ in details)),
        following_lines=tuple(follow for _, follow in details),
        error=re.compile(general_lines.ERROR_LINES),
        remark=re.compile(general_lines.REMARK_LINES),
        begins=_compile_any(p for runner in RUNNERS for p in runner.begins),
        traceback=re.compile(general_lines.TRACEBACK),
        ignored_error=re.compile(general_lines.IGNORED_ERROR),
        cut=re.compile(general_lines.CUT_LINE, re.IGNORECASE),
        whole=tuple((re.compile(line), re.compile(above)) for runner in RUNNERS for line, above in runner.whole),
        success_words=re.compile(general_lines.SUCCESS_WORDS),
        below=tuple((re.compile(line), re.compile(above)) for runner in RUNNERS for line, above in runner.below),
        harmless=re.compile(general_lines.HARMLESS_LINES),
        failure_count=re.compile(general_lines.FAILURE_COUNT),
        runner_command=re.compile(runner_commands.RUNNER_COMMANDS),
        starting_command=re.compile(runner_commands.STARTING_COMMANDS),
        repeating_command=re.compile(runner_commands.REPEATING_COMMANDS),
        trial_command=re.compile(runner_commands.TRIAL_COMMANDS),
        console_line=re.compile(general_lines.CONSOLE_LINE),
        broken_end=re.compile(general_lines.BROKEN_END),
        failed_check=re.compile(general_lines.FAILED_CHECKS),
        failed_check_words=re.compile(general_lines.FAILED_CHECK_WORDS),
        closing=re.compile(general_lines.CLOSING_LINES),
        log_header=re.compile(general_lines.LOG_HEADERS),
        opened_runs=tuple((re.compile(begin), re.compile(end)) for begin, end in general_lines.OPENED_RUNS),
    )


def _compile_any(patterns: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{pattern})" for pattern in patterns))
