"""The lines of a result that report how a run ended: the last ones, and those that the table of runners knows."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

from proxy.chat.message import checkpoint
from proxy.context.analysis import general_lines, output_wrappers, runner_patterns
from proxy.context.analysis.output_wrappers import MAX_LINE_CHARS, SHORT_LINE_CHARS, has_content, strip_line

MAX_LAST_LINES = 3
"""Number of last lines with content that stay."""
MAX_SUMMARIES = 3
"""Number of summary lines that stay: the last ones."""
MAX_FAILURES = 8
"""Maximum number of failures whose first lines stay: half from the front, half from the end."""
MAX_FAILURE_CHARS = 1600
"""Maximum number of characters of these lines."""
HEAD_LINES, TAIL_LINES = 2000, 6000
"""Numbers of lines at the front and at the end that are examined. A result with more lines never proves success."""
MAX_TRACEBACK = 100
"""Maximum number of lines of a traceback that are examined."""
OUTCOME_WORDS = (
    "fail", "error", "err!", "err_", "elifecycle", "***", "panic", "fault", "abort", "core dumped", "killed",
    "not ok", "issue", "problem", "reformat", "stopped", "exit", "incomplete", "not met", "interrupt", "not found",
    "rejected", "conflict", "fatal", "undefined", "non-zero", "cannot", "unhandled", "pass", "ok", "succe", "finished",
    "done", "found 0", "files have been", "built", "nothing to be", "up to date", "no work", "added ", "changed ",
    "removed ", "audited", "already formatted", "unchanged", "matched files", "code ", "lifecycle script",
    "cannot find", "session starts", "apply complete", "\u2718", "hunk", ".tf", ".hcl", "no required",
    "unknown revision", "parsing", "cancelled", "no tests", "exceeded", "fixes applied", "fixed ", "summary", "-1:",
    "notests", "uncaught", "could not", "oh no", "truncated", "omitted", "elided", "clipped", "snipped", " lines",
    "total: ", "running", "ran ", " pass", "ok: ", "do_boot", "unbound", "syntax", "unexpected",
    "status", "timed out", "file or dir", "offense", "solving", "detected", "resolved", "exception in thread", "lua",
    "sanitizer", "fullyqualified", "recognized", "scenario", "installed", "konflikt", "conflit", "\u51b2\u7a81",
    "fehler", "erreur", "errore", "\u9519\u8bef", "targets", "diagnostic", "too many warnings", "something went wrong",
    ".go:", "below", "terminate", "diff in ", "timeout", "requirements", "did not run", "congratulations",
    "complete", "satisfied",
    "=== run", "e: ", "unable", "no solution", "refused", "errors", "warnings", "rebased", "linted", ":in ",
    "compiled with", "got dependencies", "(mix)", "signal: ", "ambiguous", ": e0", ": e1", ": f0",
    "plan: ", "no changes", ".dll", "--only", ".dart:", "line |", "traceback (", "unreachable!",
    "\u043a\u043e\u043d\u0444\u043b\u0438\u043a\u0442",
)  # fmt: skip
"""Words in lower case. Each line that reports an outcome holds at least one of them."""
MAX_LOGGED = 500
"""Maximum number of lines that count as the output of one test."""
_LOG_WORDS = ("console.", "stdout", "stderr", "- Captured ", "<system-")
"""A word that each heading above the output of a test has."""
_OPENING = re.compile(r"session starts|running \d")
"""A word of each line with which a runner begins."""
_RULER = re.compile(r"-{5}|={5}|_{5}")
_COUNTED_TESTS = re.compile(r"Ran ([1-9]\d*)")
"""The line with which unittest reports the number of its tests. It counts those that it skipped, too."""


class OutcomeLines(NamedTuple):
    """The lines that report the outcome of a run."""

    failed: list[int]
    """Lines that report a failure."""
    passed: list[int]
    """Lines that report full success."""
    part: list[int]
    """Lines that report a success in part."""
    last: list[int]
    """Lines that report success as the last line of a run."""
    words: list[int]
    """Lines that have words of success and no figure."""
    ends: list[int]
    """The last lines with content."""
    final: int | None
    """The last line with content that is no remark."""
    has_success: bool = False
    """A line reports success, also one that proves nothing of what ran after it."""

    @property
    def success(self) -> int:
        """The last line that reports success, -1 if none does."""
        return max([*self.passed, *self.part, *self.last], default=-1)

    @property
    def ends_last(self) -> bool:
        """True if nothing but remarks and words of success stand below a line of success."""
        return self.success >= 0 and max(self.success, *self.words, -1) == self.final

    @property
    def ends_well(self) -> bool:
        """True if a line of success is among the last lines."""
        return bool(self.ends) and self.success >= self.ends[0]


def find_outcome_lines(rows: Sequence[str], but: set[int]) -> OutcomeLines:
    """Return the lines that report the outcome of a run. but: lines that do not count."""
    patterns = runner_patterns.compile_patterns()
    found = OutcomeLines([], [], [], [], [], find_last_lines(rows, MAX_LAST_LINES), find_final_line(rows))
    begins = cut = -1
    logged = find_logged_lines(rows) - {found.final}
    above: set[int] = set()  # the pairs of `whole` whose line to stand above was seen, so that no line is read twice
    for n in find_candidates(rows):
        if n in but or n in logged or len(rows[n]) > MAX_LINE_CHARS:
            continue
        line = strip_line(rows[n])
        if len(line) > SHORT_LINE_CHARS or not line:
            continue
        checkpoint()
        above.update(k for k, (_, other) in enumerate(patterns.whole) if k not in above and other.match(line))
        begins = n if patterns.begins.match(line) else begins
        cut = n if patterns.cut.match(line) else cut
        kind = (
            found.passed if patterns.passed.match(line)
            else found.part if patterns.part.match(line)
            else found.last if n == found.final and patterns.last.match(line)
            else found.passed if any(k in above and below.match(line) for k, (below, _) in enumerate(patterns.whole))
            else None
        )  # fmt: skip
        if patterns.failed.match(line) or _stands_below(rows, n, line):
            found.failed.append(n)
        elif kind is not None:
            (found.failed if patterns.failure_count.search(line) else kind).append(n)
        elif patterns.success_words.match(line):
            found.words.append(n)
    ends = max([*found.passed, *found.part], default=-1)
    found = found._replace(has_success=bool(found.passed or found.part or found.last))
    # A total below a cut counts all parts. Nothing is known of what ran after a total and was cut.
    found.part[:] = [n for n in found.part if n > begins and cut < 0]
    for told in (found.passed, found.last):
        told[:] = [n for n in told if n > max(begins, cut)]
    found.failed[:] = [n for n in found.failed if n > ends or not patterns.printed.match(strip_line(rows[n]))]
    # `OK` is a line of unittest only after the number of tests that it ran.
    is_ok = bool(found.passed) and all(strip_line(rows[n]).startswith("OK") for n in found.passed)
    if is_ok and not any(_ran_counted_tests(rows, n) for n in found.passed):
        found.words[:0] = [n for n in found.passed if "test" not in rows[n]]
        found.passed[:] = [n for n in found.passed if "test" in rows[n]]
    return found


def _ran_counted_tests(rows: Sequence[str], n: int) -> bool:
    """True if unittest reports above a line of success that it ran tests, and skipped not all of them."""
    counts = (found[1] for row in rows[max(0, n - 4) : n] if (found := _COUNTED_TESTS.match(strip_line(row))))
    return any(f"skipped={count})" not in rows[n] for count in counts)


def ran_no_tests(rows: Sequence[str], found: OutcomeLines) -> bool:
    """True if a run that succeeded reports that no test ran. found: the lines that report its outcome."""
    word, none_ran, some_ran, built = _compile_no_tests()
    short = [row for row in rows if len(row) <= SHORT_LINE_CHARS]
    if not any(none_ran.match(strip_line(row)) for row in short if word.search(row)):
        return False
    ends = (strip_line(rows[n]) for n in (*found.passed, *found.part))
    if any(not built.match(line) and not none_ran.match(line) for line in ends):
        return False
    return not any(some_ran.match(strip_line(row)) for row in short)


@lru_cache(maxsize=1)
def _compile_no_tests() -> tuple[re.Pattern[str], ...]:
    lines = general_lines
    return tuple(map(re.compile, (lines.NO_TESTS_WORDS, lines.NO_TESTS, lines.TESTS_RAN, lines.BUILT)))


def find_logged_lines(rows: Sequence[str]) -> set[int]:
    """Return the lines that a test has printed, where its runner shows them under a heading of their own."""
    header = runner_patterns.compile_patterns().log_header
    found: set[int] = set()
    examined = _list_examined(rows)
    text = "\n".join([rows[n] for n in examined])
    if not any(word in text for word in _LOG_WORDS):  # most results: one look at all lines is quicker than one at each
        return found
    for n in examined:
        if n in found or not any(word in rows[n] for word in _LOG_WORDS):
            continue
        checkpoint()
        match = header.match(output_wrappers.remove_colours(rows[n][:SHORT_LINE_CHARS]).rstrip())
        if match is None:
            continue
        for k in range(n + 1, min(len(rows), n + MAX_LOGGED)):
            line = output_wrappers.remove_colours(rows[k][:SHORT_LINE_CHARS]).rstrip()
            if match["vitest"]:
                is_end = not line
            elif match["xml"]:
                is_end = line.lstrip().startswith("</system-")
            elif match["indent"] is None:
                is_end = _RULER.match(line) is not None
            else:
                is_end = bool(line) and len(line) - len(line.lstrip()) <= len(match["indent"])
            if is_end:
                break
            found.add(k)
    return found


def lacks_end(rows: Sequence[str]) -> bool:
    """True if a runner has begun and did not write its total, and nothing says that the output was cut."""
    patterns = runner_patterns.compile_patterns()
    openings = [n for n, row in enumerate(rows) if len(row) <= SHORT_LINE_CHARS and _OPENING.search(row)]
    for begin, end in patterns.opened_runs if openings else ():
        starts = [n for n in openings if begin.match(strip_line(rows[n]))]
        if starts and not any(
            end.match(line) or patterns.cut.match(line)
            for row in rows[starts[-1] + 1 :]
            if len(row) <= SHORT_LINE_CHARS and (line := strip_line(row))
        ):
            return True
    return False


def find_final_line(rows: Sequence[str]) -> int | None:
    """Return the last line with content that is no remark after the outcome; else the last line with content."""
    ends = find_last_lines(rows, general_lines.MAX_REMARKS)[::-1]
    remark = runner_patterns.compile_patterns().remark
    return next((n for n in ends if remark.match(strip_line(rows[n])) is None), ends[0] if ends else None)


def ends_block(rows: Sequence[str], last: int | None, header: re.Pattern[str]) -> bool:
    """True if all lines between a header and this line are indented, as those above a traceback's exception."""
    for n in range((last or 0) - 1, max(-1, (last or 0) - MAX_TRACEBACK), -1):
        line = strip_line(rows[n])
        if header.match(line):
            return True
        if line and not rows[n][0].isspace() and not line.startswith("Traceback"):
            return False
    return False


def find_last_lines(rows: Sequence[str], most: int) -> list[int]:
    """Return the last `most` lines with content, in order."""
    found: list[int] = []
    for n in reversed(range(max(0, len(rows) - TAIL_LINES), len(rows))):
        if has_content(strip_line(rows[n])):
            found.append(n)
            if len(found) == most:
                break
    return found[::-1]


def _stands_below(rows: Sequence[str], n: int, line: str) -> bool:
    """True if a line and one of the four above it together report a failure of the run."""
    return any(
        below.match(line) and any(above.match(strip_line(row)) for row in rows[max(0, n - 4) : n])
        for below, above in runner_patterns.compile_patterns().below
    )


def find_candidates(rows: Sequence[str]) -> list[int]:
    """Return the examined lines that may report the outcome of a run: those with one of `OUTCOME_WORDS`."""
    examined = _list_examined(rows)
    lines = [rows[n].lower() for n in examined]
    small = "\n".join(lines)
    starts = list(accumulate((len(line) + 1 for line in lines), initial=0))
    found: set[int] = set()
    for word in OUTCOME_WORDS:
        checkpoint()
        at = small.find(word)
        while at >= 0:
            n = bisect_right(starts, at) - 1
            found.add(n)
            at = small.find(word, starts[n + 1])
    return [examined[n] for n in sorted(found)]


def _list_examined(rows: Sequence[str]) -> list[int]:
    """Return the lines of a result that are examined: those at its front and at its end."""
    return [*range(min(HEAD_LINES, len(rows))), *range(max(HEAD_LINES, len(rows) - TAIL_LINES), len(rows))]


def find_failure_lines(rows: Sequence[str], patterns: runner_patterns.RunnerPatterns) -> tuple[int, ...]:
    """Return the first lines on each failure; only of the first and last failures if there are many."""
    groups: list[tuple[int, ...]] = []
    seen: set[str] = set()
    until = -1
    for n in _list_examined(rows):
        if n <= until or len(rows[n]) > MAX_LINE_CHARS:
            continue
        checkpoint()
        stripped = strip_line(rows[n])
        match = patterns.detail.match(stripped) if stripped else None
        if match is None or stripped in seen:
            continue
        seen.add(stripped)
        follow = patterns.following_lines[(match.lastindex or 1) - 1]
        ends = (patterns.success_words, patterns.part)
        group = (n, *find_next_lines(rows, n, follow, ends))
        # Below `Error: ...` stands `Expected: 2`, to which the next line belongs.
        if len(group) > 1 and (inner := patterns.detail.match(strip_line(rows[group[-1]]))) is not None:
            group += (*find_next_lines(rows, group[-1], patterns.following_lines[(inner.lastindex or 1) - 1], ends),)
        until = group[-1]
        groups.append(group)
    if len(groups) > MAX_FAILURES:
        groups = groups[: MAX_FAILURES // 2] + groups[-(MAX_FAILURES // 2) :]
    found: list[int] = []
    room = MAX_FAILURE_CHARS
    for group in (*(g[:1] for g in groups), *(g[1:] for g in groups)):  # the first lines have priority
        for n in group:
            room -= min(len(rows[n]), SHORT_LINE_CHARS)
            if room >= 0:
                found.append(n)
    return tuple(sorted(found))


def find_next_lines(rows: Sequence[str], n: int, count: int, ends: Sequence[re.Pattern[str]] = ()) -> Iterator[int]:
    """Yield the next `count` lines with content, among the five lines after `n`. ends: patterns of a line that is no
    part of the failure any more."""
    for k in range(n + 1, min(len(rows), n + 6)):
        line = strip_line(rows[k]) if count > 0 else ""
        if count <= 0 or any(end.match(line) for end in ends):
            return
        if has_content(line):
            count -= 1
            yield k
