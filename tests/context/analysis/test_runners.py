"""The table of runners: each pattern is one, and begins where a line does."""

from __future__ import annotations

import re

import pytest

from proxy.context.analysis import result_lines, shell_commands
from proxy.context.analysis.runners import RUNNERS, Runner
from tests.context.analysis.runs import Run, read_text_outcome, xml

NUNIT = """<?xml version="1.0" encoding="utf-8"?>
<test-run id="2" testcasecount="3" result="{result}" total="3" passed="{passed}" failed="{failed}" skipped="0">
  <test-case id="1000" name="Waits" fullname="Platforms.Waits" result="Passed" duration="0.01"></test-case>
{last}
</test-run>"""
NUNIT_FAILURE = """  <test-case id="1001" name="Moves" fullname="Platforms.Moves" result="Failed">
<failure><message><![CDATA[
  Expected: 1.0f +/- 0.05f
  But was:  -3.2f
]]></message></failure></test-case>"""
LAMBDA_FAILED = '{\n    "StatusCode": 200,\n    "FunctionError": "Unhandled",\n    "ExecutedVersion": "$LATEST"\n}'
WATCHED_FAILED = "X Run CI (12) completed with 'failure'"
GERMAN = """  Bestanden First [1 ms]
  Fehler Total_of_an_order [12 ms]
  Fehlermeldung:
   Assert.Equal() Failure: Values differ
  Bestanden Last [1 ms]

Fehler!      : Fehler:     1, erfolgreich:     2, gesamt:     3 - a.dll (net8.0)"""
DOUBTFUL = (
    Run("aws", "aws lambda invoke out", LAMBDA_FAILED, "failed", ("FunctionError",)),
    Run("aws", "aws lambda invoke out", xml(0, LAMBDA_FAILED), "unknown", ("FunctionError",)),
    Run("aws", "aws lambda invoke out", xml(0, " ".join(LAMBDA_FAILED.split())), "unknown", ("FunctionError",)),
    Run("gh", "gh run watch 1", f"X build in 3s (ID 1)\n\n{WATCHED_FAILED}", "failed", (WATCHED_FAILED,)),
    Run("gh", "gh run watch 1", xml(0, WATCHED_FAILED), "unknown", (WATCHED_FAILED,)),
    Run("gh", "gh run watch 1", "\u2713 Run CI (12) completed with 'success'", "succeeded"),
    Run("dart", "dart analyze", "   info - lib/a.dart:3:8 - Unused. - unused\n\n1 issue found.", "unknown"),
    Run("dart", "dart analyze", "  error - lib/a.dart:3:8 - No. - no\n\n1 issue found.", "failed"),
    Run(
        "msbuild",
        "msbuild a.sln",
        "C:\\a.cs(3,5): error CS1002: ; expected\r\n    1 Error(s)\r\n",
        "failed",
        ("CS1002",),
    ),
    Run("msbuild", "msbuild a.sln", "    0 Warning(s)\r\n    1 Error(s)\r\n", "failed"),
    Run("nmake", "nmake", "NMAKE : fatal error U1077: 'cl' : return code '0x2'\r\nStop.\r\n", "failed", ("U1077",)),
    Run("dotnet", "dotnet test", GERMAN, "failed", ("Fehler Total_of_an_order", "Assert.Equal() Failure")),
    Run(
        "mocha",
        "node --test",
        "\u2139 tests 3\n\u2139 pass 2\n\u2139 fail 0\n\u2139 cancelled 1",
        "failed",
        ("cancelled 1",),
    ),
    Run("mocha", "node --test", "\u2139 tests 3\n\u2139 pass 3\n\u2139 fail 0\n\u2139 cancelled 0", "succeeded"),
    Run("dotnet", "dotnet test", "Build succeeded in 3.4s\nTest summary: total: 3, failed: 1, succeeded: 2", "failed"),
    Run("dotnet", "dotnet test", "Test summary: total: 3, failed: 0, succeeded: 3, skipped: 0", "succeeded"),
    Run("dotnet", "dotnet test | tail -1", "Passed!  - Failed:     0, Passed:     2, Total:     2 - B.dll", "unknown"),
    Run("jest", "npm test | tail -4", "Tests:       6 passed, 6 total\nSnapshots:   0 total\nTime:   1.2 s", "unknown"),
    Run("jest", "npm test", "Test Suites: 1 failed, 1 passed, 2 total\nTests:       6 passed, 6 total", "failed"),
    Run("jest", "npm test -ws | tail -2", "Test Suites: 2 passed, 2 total\nTests:       6 passed, 6 total", "unknown"),
    Run("vitest", "npx vitest run | tail -2", "      Tests  3 passed (3)\n   Duration  400ms", "unknown"),
    Run("make", "make clean", "make: [Makefile:3: clean] Error 1 (ignored)\nrm -f x", "unknown"),
    Run("make", "make -k test | tail -1", "4 passed in 0.1s", "unknown"),
    Run("ruff", "ruff format --check .", "1 file would be reformatted, 3 files already formatted", "failed"),
    Run(
        "pytest",
        "coverage report --fail-under=90",
        "Coverage failure: total of 70 is less than fail-under=90",
        "failed",
    ),
    Run(
        "pytest",
        "pytest -q && ./deploy.sh",
        "5 passed in 0.1s\nconnecting\nrsync: some files were left (code 23)",
        "unknown",
    ),
    Run(
        "pytest",
        "pytest -q",
        "5 passed in 0.1s\n<system>Command interrupted by user</system>",
        "unknown",
        ("interrupted",),
    ),
    Run("cargo", "cargo build && ./target/debug/a", "    Finished `dev` profile target(s) in 1.2s", "unknown"),
    Run(
        "cargo",
        "cargo test -- --nocapture",
        "thread 'tests::x' panicked at src/a.rs:3:5:\nboom\ntest x ... ok\n\ntest result: ok. 1 passed; 0 failed",
        "succeeded",
    ),
    Run(
        "cargo", "cargo run", "thread 'main' panicked at src/main.rs:3:5:\nboom\nnote: run with x", "failed", ("boom",)
    ),
    Run("go", "go test -v ./...", "panic: recovered\n--- PASS: TestX (0.00s)\nPASS\nok  \tex/a\t0.1s", "succeeded"),
    Run("go", "go test ./...", "panic: boom\nFAIL\tex/a\t0.1s\nok  \tex/b\t0.1s", "failed", ("panic: boom",)),
    Run(
        "gtest",
        "./a_test",
        "[  PASSED  ] 1 test.\n[  FAILED  ] 1 test, listed below:\n[  FAILED  ] A.y",
        "failed",
        ("A.y",),
    ),
    Run("gtest", "./a_test", "[==========] 2 tests ran.\n[  PASSED  ] 2 tests.", "succeeded"),
    Run("nextest", "cargo nextest run", "     Summary [   0.2s] 2 tests run: 1 passed, 1 failed, 0 skipped", "failed"),
    Run("nextest", "cargo nextest run", "     Summary [   0.2s] 2 tests run: 2 passed, 0 skipped", "succeeded"),
    Run("flutter", "flutter test", "00:02 +3 -1: Some tests failed.", "failed"),
    Run("flutter", "flutter test", "00:02 +3: All tests passed!", "succeeded"),
    Run("xcodebuild", "xcodebuild test", "** TEST FAILED **\n", "failed"),
    Run("prove", "prove", "t/a.t .. ok\nAll tests successful.\nResult: PASS", "succeeded"),
    Run("logs", "docker logs web --tail 20", "npm ERR! code ELIFECYCLE\nnpm ERR! errno 1", "unknown"),
    Run("logs", "docker compose logs test", "test-1  | ==== 5 passed in 0.1s ====", "unknown"),
    Run("logs", "kubectl logs job/test", "==== 5 passed in 0.1s ====", "unknown"),
    Run("logs", "gh run view 12 --log-failed | tail -30", "1 failed, 3 passed in 0.1s", "unknown"),
    Run("logs", "zcat ci.log.gz | tail -3", "5 passed in 0.1s", "unknown"),
    Run("logs", "Get-Content build.log -Tail 5", "BUILD FAILED in 3s", "unknown"),
    Run(
        "nunit",
        "",
        NUNIT.format(result="Failed(Child)", passed=2, failed=1, last=NUNIT_FAILURE),
        "failed",
        ('failed="1"', 'fullname="Platforms.Moves"', "But was:  -3.2f"),
    ),
    Run("nunit", "", NUNIT.format(result="Passed", passed=3, failed=0, last=""), "succeeded", ('passed="3"',)),
    Run(
        "junit",
        "cat build/report.xml; make report",
        '<testsuites tests="9" failures="1" errors="0">\n<testcase name="a"><failure message="3 != 4"/></testcase>',
        "failed",
        ("3 != 4",),
    ),
    Run(
        "junit",
        "make report",
        '<?xml version="1.0"?>\n<testsuites name="all" tests="9" failures="0" errors="0">\n</testsuites>',
        "succeeded",
        ('tests="9"',),
    ),
    Run("trx", "dotnet test", '<Counters total="9" passed="8" failed="1" error="0" />', "failed"),
    Run(
        "pester",
        "Invoke-Pester tests",
        "[+] C:\\src\\A.Tests.ps1 45ms\n[-] Ledger.rounds half away from zero 41ms\n Expected 12.35, but got 12.34.\n"
        " at <ScriptBlock>, C:\\src\\L.Tests.ps1:88\nTests Passed: 211, Failed: 1, Skipped: 0 NotRun: 0",
        "failed",
        ("[-] Ledger", "Expected 12.35", "Failed: 1"),
    ),
    Run("pester", "Invoke-Pester tests", "Tests Passed: 212, Failed: 0, Skipped: 0 NotRun: 0", "succeeded"),
    Run(
        "logrus",
        "k6 run load.js",
        "checks: 98 % 48133 / 871\nERRO[0061] thresholds on metrics 'http_req_duration' have been crossed",
        "failed",
        ("have been crossed",),
    ),
)
"""Runs whose success or failure is easily misread: parts of a run, logs of other runs, and runners that few use."""


@pytest.mark.parametrize("runner", RUNNERS, ids=lambda runner: runner.name)
def test_each_pattern_compiles_without_groups_of_its_own(runner: Runner) -> None:
    for pattern in (*runner.failed, *runner.passed, *runner.part, *runner.last, *(p for p, _ in runner.detail)):
        assert re.compile(pattern).groups == 0, pattern


@pytest.mark.parametrize("run", DOUBTFUL, ids=lambda run: f"{run.command} -> {run.verdict}")
def test_a_doubtful_run_is_read_as_it_ended(run: Run) -> None:
    command = shell_commands.parse_command(run.command) if run.command else shell_commands.TOOL_RUN
    read = read_text_outcome(run.output, command)
    assert read.verdict == run.verdict
    lines = result_lines.split_lines(run.output)
    kept = "\n".join(lines[n] for n in read.kept_lines)
    assert [part for part in run.must if part not in kept] == []
