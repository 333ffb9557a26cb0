"""Lines that many programs print are read for what they are at their place."""

from __future__ import annotations

import re

import pytest

from proxy.context.analysis import general_lines, runner_patterns, shell_commands
from tests.context.analysis.runs import read_text_outcome, xml

NO_TESTS = (
    ("pytest -q", "====== 3 skipped in 0.02s ======"),
    ("pytest -q; true", "12 deselected in 0.12s"),
    ("go test ./...", "?   \texample.com/a\t[no test files]\n?   \texample.com/b\t[no test files]"),
    ("go test -run X ./...", "ok  \texample.com/a\t0.002s [no tests to run]"),
    ("cargo test x", "running 0 tests\n\ntest result: ok. 0 passed; 0 failed; 31 filtered out; finished in 0.00s"),
    ("npx jest -t x", "Test Suites: 3 skipped, 0 of 3 total\nTests:       31 skipped, 31 total"),
    ("npx jest --passWithNoTests", "No tests found, exiting with code 0"),
    ("npx vitest run -t x", " Test Files  3 skipped (3)\n      Tests  31 skipped (31)"),
    ("mvn test -Dtest=X", "[INFO] Tests run: 0, Failures: 0, Errors: 0, Skipped: 0\n[INFO] BUILD SUCCESS"),
    ("mvn test", "[INFO] No tests to run.\n[INFO] BUILD SUCCESS"),
    ("gradle test", "> Task :compileJava\n> Task :test NO-SOURCE\n\nBUILD SUCCESSFUL in 1s"),
    ("python -m unittest", "Ran 0 tests in 0.000s\n\nNO TESTS RAN"),
    ("python -m unittest", "Ran 0 tests in 0.000s\n\nOK"),
    ("dotnet test --filter X", "No test matches the given testcase filter `X` in /a/b.dll"),
    ("rspec -e x", "All examples were filtered out\n\n0 examples, 0 failures"),
    ("npx mocha -g x", "  0 passing (2ms)"),
    ("phpunit --filter x", "PHPUnit 9\n\nNo tests executed!"),
    ("swift test --filter x", "Build complete!\n\t Executed 0 tests, with 0 failures (0 unexpected) in 0.000 seconds"),
    ("node --test", "# tests 0\n# pass 0\n# fail 0"),
    ("deno test x", "ok | 0 passed | 0 failed | 14 filtered out (2ms)"),
    ("bun test x", " 0 pass\n 0 fail\nRan 0 tests across 0 files. [2.00ms]"),
    ("flutter test --name x", "00:01 +0: All tests passed!"),
    ("mix test --only x", "All tests have been excluded.\n\n5 tests, 0 failures, 5 excluded"),
    ("./all_tests --gtest_filter=x", "[==========] 0 tests from 0 test suites ran.\n[  PASSED  ] 0 tests."),
    ("prove -r t", "t/a.t .. skipped: no database\n1..0 # SKIP"),
)
SOME_TESTS = (
    ("pytest -q", "====== 1 passed, 3 skipped in 0.02s ======"),
    ("go test ./...", "?   \ta/a\t[no test files]\nok  \ta/b\t0.010s"),
    ("cargo test", "test result: ok. 31 passed; 0 failed\n\nrunning 0 tests\n\ntest result: ok. 0 passed; 0 failed"),
    ("npx jest", "Test Suites: 1 skipped, 2 passed, 2 of 3 total\nTests:       3 skipped, 28 passed, 31 total"),
    ("mvn test", "[INFO] No tests to run.\n[INFO] Tests run: 31, Failures: 0, Errors: 0\n[INFO] BUILD SUCCESS"),
    ("gradle test", "> Task :a:test NO-SOURCE\n> Task :b:test\n\nBUILD SUCCESSFUL in 1s"),
    ("gradle build", "> Task :compileJava\n\nBUILD SUCCESSFUL in 1s"),
    ("node --test", "# tests 3\n# pass 3\n# fail 0\n# todo 0\n# skipped 0"),
    ("mix test", "5 tests, 0 failures, 2 excluded"),
    ("make", "removed 0 files\ncopied 3 files"),
)


@pytest.mark.parametrize(
    "line",
    [
        "... [truncated 200 lines] ...", "[Output truncated - 500 lines remaining]", "(Output truncated)",
        "[... omitted 1200 of 3000 lines ...]", "<response clipped>", "... [output truncated] ...", "... +120 lines",
        "[... 4000 lines omitted ...]", "... 3,421 tokens truncated ...",
    ],
)  # fmt: skip
def test_a_line_in_place_of_a_part_of_the_output_is_known(line: str) -> None:
    text = f"ok  \tex.com/a\t0.1s\n{line}\n"
    assert re.match(general_lines.CUT_LINE, line, re.IGNORECASE) is not None
    assert read_text_outcome(text, shell_commands.parse_command("go test ./...")).verdict == "unknown"
    assert read_text_outcome(f"{line}\n5 passed in 0.1s", shell_commands.parse_command("pytest")).verdict == (
        "succeeded"
    )


@pytest.mark.parametrize("line", ["Truncated table orders", "120 lines in 3 files", "ok 3 - lines omitted nothing"])
def test_a_line_about_other_things_is_not_a_cut(line: str) -> None:
    text = f"{line}\n5 passed in 0.1s"
    assert read_text_outcome(text, shell_commands.parse_command("pytest")).verdict == "succeeded"


@pytest.mark.parametrize(
    ("line", "verdict"),
    [
        ("error: 0.02", "unknown"),
        ("Error: 3.1%", "unknown"),
        ("Error: no such model", "failed"),
        ("mean squared error: 1e-3", "unknown"),
    ],
)
def test_a_figure_called_error_is_not_a_failure(line: str, verdict: str) -> None:
    text = f"epoch 3 done\n{line}\n"
    assert read_text_outcome(text, shell_commands.parse_command("python train.py")).verdict == verdict


def test_a_remark_after_the_outcome_does_not_hide_it() -> None:
    text = "DatabaseError: no such column\n\n[SQL: SELECT x]\n(Background on this error at: https://example.com)\n"
    assert read_text_outcome(text, shell_commands.parse_command("alembic upgrade head")).verdict == "failed"
    remark = runner_patterns.compile_patterns().remark
    assert remark.match("[SQL: SELECT x]") is not None
    assert remark.match("5 passed in 0.1s") is None


@pytest.mark.parametrize(("command", "output"), NO_TESTS)
def test_a_run_without_a_test_is_not_reported_as_ok(command: str, output: str) -> None:
    assert read_text_outcome(xml(0, output), shell_commands.parse_command(command)).verdict == "unknown"


@pytest.mark.parametrize(("command", "output"), SOME_TESTS)
def test_a_run_with_some_tests_is_ok(command: str, output: str) -> None:
    assert read_text_outcome(xml(0, output), shell_commands.parse_command(command)).verdict == "succeeded"
