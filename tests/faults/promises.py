"""The table of promises, written by the tests that show them: `pytest --promises docs/development/promises.md ...`.

A promise holds where each of its tests was run and passed; what was measured is what the tests recorded. What was not
run is told as that, so that no table says more than the run that wrote it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

START, END = "<!-- promises -->", "<!-- /promises -->"
MEASURED = "measured"
"""The name under which a test records what it has measured (`record_property`)."""


@dataclass(frozen=True)
class Promise:
    """words: as the table has them. tests: files or functions under tests/, as `file` or `file::name`."""

    name: str
    words: str
    tests: tuple[str, ...]


PROMISES = (
    Promise(
        "P1",
        "A turn whose last frame reached the client is in the store after `kill -9`, on SQLite and on PostgreSQL.",
        ("faults/test_killed.py",),
    ),
    Promise(
        "P2",
        'It is there after a loss of power too (`store.durability = "full"`), or all but the last second (`normal`).',
        ("faults/test_disks.py", "store/test_writer.py::test_normal_durability_syncs_the_log_within_a_second"),
    ),
    Promise(
        "P3",
        "An answer that failed never becomes one that succeeded, nor the reverse.",
        (
            "upstream/test_client_replies.py",
            "exchange/test_handler.py::test_a_broken_stream_is_passed_on_up_to_the_break_with_an_error_and_without_done",
            "exchange/test_handler.py::test_an_answer_cut_short_is_never_reported_as_whole",
            "web/test_passthrough.py::test_u4_u5_u11_a_broken_answer_never_looks_whole",
        ),
    ),
    Promise(
        "P4",
        "A fault of the store, of planning or of counting never fails a request that works without the proxy.",
        (
            "exchange/test_prepare_request.py",
            "exchange/test_plan_request.py",
            "faults/test_content.py",
            "faults/test_stores.py",
            "store/test_crash.py",
        ),
    ),
    Promise(
        "P5",
        "Memory is flat: every queue, cache and buffer has a bound (docs/reference/limits.md).",
        (
            "faults/test_load.py::test_r1_c9_two_thousand_requests_with_faults_get_their_own_answers_and_nothing_grows",
            "faults/test_answers.py",
            "web/test_server.py",
            "store/test_write_queue.py",
            "exchange/test_message_cache.py",
            "sessions/test_live.py::test_memory_of_live_sessions_is_bounded_and_the_least_recently_used_leaves",
        ),
    ),
    Promise(
        "P6",
        "The upstream is closed within 500 ms after the client has left, before the first byte too.",
        (
            "web/test_passthrough.py::test_c1_c2_c4_a_client_that_leaves_closes_the_upstream_within_half_a_second",
            "web/test_chat.py::test_upstream_is_closed_when_the_client_leaves_before_the_first_byte",
            "web/test_chat.py::test_upstream_is_closed_when_the_client_leaves_mid_stream",
        ),
    ),
    Promise(
        "P7",
        "Nothing is read across sessions or tenants.",
        ("exchange/test_isolation.py", "store/test_schema.py", "web/test_access.py", "tools/test_escape.py"),
    ),
)


@dataclass
class Results:
    """The outcome of each test of a run, by `file::name` under tests/ without its parameters."""

    passed: dict[str, int] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)
    skipped: dict[str, int] = field(default_factory=dict)
    measured: dict[str, list[str]] = field(default_factory=dict)

    def note(self, test: str, outcome: str, measured: Iterable[str] = ()) -> None:
        if outcome == "failed":
            self.failed.add(test)
        else:
            counts = self.passed if outcome == "passed" else self.skipped
            counts[test] = counts.get(test, 0) + 1
        self.measured.setdefault(test, []).extend(measured)

    def of(self, promise: Promise) -> str:
        """The result, in words."""

        def mine(test: str, wanted: str) -> bool:
            return test == wanted or test.startswith(f"{wanted}::")

        if any(mine(test, wanted) for test in self.failed for wanted in promise.tests):
            return "**broken**"
        missing = [w for w in promise.tests if not any(mine(test, w) for test in self.passed)]
        if missing:
            return "not run: " + ", ".join(f"`{test}`" for test in missing)
        count = sum(n for test, n in self.passed.items() if any(mine(test, w) for w in promise.tests))
        skipped = sum(n for test, n in self.skipped.items() if any(mine(test, w) for w in promise.tests))
        told = [m for test, all_ in self.measured.items() if any(mine(test, w) for w in promise.tests) for m in all_]
        return "; ".join([f"{count} passed" + (f", {skipped} skipped" if skipped else ""), *told])


def table(results: Results) -> str:
    """Markdown."""
    lines = ["| promise | shown by (tests/) | result |", "|---|---|---|"]
    for one in PROMISES:
        tests = ", ".join(f"`{test}`" for test in one.tests)
        lines.append(f"| **{one.name}** {one.words} | {tests} | {results.of(one)} |")
    return "\n".join(lines)


def write(path: Path, results: Results) -> None:
    """Between the markers of a file that has them; else the file is the table."""
    text = path.read_text("utf-8") if path.is_file() else ""
    content = f"{START}\n\n{table(results)}\n\n{END}"
    between = re.compile(re.escape(START) + ".*?" + re.escape(END), re.DOTALL)
    path.write_text(between.sub(lambda _: content, text) if between.search(text) else content + "\n", "utf-8")


class Writer:
    """The plugin. path: the file to write when the run has ended."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._results = Results()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            test = report.nodeid.partition("[")[0].removeprefix("tests/")
            measured = [str(value) for name, value in report.user_properties if name == MEASURED]
            self._results.note(test, report.outcome, measured if report.when == "call" else ())

    def pytest_sessionfinish(self) -> None:
        write(self._path, self._results)
