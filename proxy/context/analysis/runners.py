"""Table of the usual runners: the lines with which each reports the outcome of a run.

A pattern is matched at the beginning of a line, without its indentation, its colours and the name of the task in front.
Each pattern matches a text that the runner itself prints, so that a text about failures is no failure. Words alone
never make a success.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True, slots=True)
class Runner:
    """The outcome lines of one runner, as regular expressions."""

    name: str
    failed: tuple[str, ...] = ()
    """Lines that report the failure of the run or of a part of it."""
    passed: tuple[str, ...] = ()
    """Lines that report the success of the whole run."""
    part: tuple[str, ...] = ()
    """Lines that report the success of a part. They count only if nothing was cut from the output."""
    printed: tuple[str, ...] = ()
    """Lines of `failed` that a tested program may print itself: a later line of success overrules them."""
    last: tuple[str, ...] = ()
    """Lines that report success only as the last line."""
    below: tuple[tuple[str, str], ...] = ()
    """Pairs of (a line, the beginning of one of the few lines above it): together they report a failure of the run."""
    detail: tuple[tuple[str, int], ...] = ()
    """Pairs of (the first line on a failure, the number of following lines that belong to it)."""


RUNNERS = (
    Runner(
        "pytest",
        failed=(
            r"=+ .*\b[1-9]\d* (?:failed|errors?)\b.*=+$",
            r"[1-9]\d* (?:failed|errors?)\b.*\bin [\d.]+",
            r"[1-9]\d* (?:failed|errors?), .*\bpassed\b",
            r"(?:FAILED|ERROR) \S+(?:::|\.py)",
            r"=+ (?:FAILURES|ERRORS) =+$",
            r"!+ .*(?:Interrupted|stopping after).* !+$",
            r"ERROR: (?:not found|file or directory not found|usage)", r"(?:=+ )?no tests ran in [\d.]+",
            r"(?:ERROR: )?Coverage failure: ", r"ERROR: Coverage for \w+ ",
            r"FAIL Required test coverage", r"INTERNALERROR>",
        ),
        passed=(r"=+ .*\b[1-9]\d* passed\b.*=+$", r"[1-9]\d* passed\b.*\bin [\d.]+"),
        detail=((r"E {3,}\S", 0), (r"(?:FAILED|ERROR) \S+(?:::|\.py)", 0), (r"ERROR: ", 0)),
    ),
    Runner(
        "unittest",
        failed=(r"FAILED \((?:failures|errors|unexpected successes)=", r"(?:FAIL|ERROR): \w+ \([\w.]+\)"),
        passed=(r"OK(?: \((?:skipped|expected failures).*\))?$",),
        detail=((r"(?:FAIL|ERROR): \S+ \(", 0),),
    ),
    Runner(
        "go",
        failed=(
            r"--- FAIL: ", r"FAIL$", r"FAIL\s+\S+(?:\s|$)", r"(?:\S+: )?exit status [1-9]",
            r"panic: ", r"fatal error: ", r"signal: \w+",
            r"go: .*(?:cannot find|errors parsing|no required module|unknown revision)",
        ),
        printed=(r"panic: ", r"fatal error: "),
        part=(r"ok\s+\S+\s+(?:[\d.]+s|\(cached\))(?!.*no tests to run)",),
        last=(r"PASS$",),
        detail=((r"--- FAIL: ", 1), (r"panic: ", 0), (r"\S+\.go:\d+:\d+: ", 0), (r"\S+_test\.go:\d+: ", 0),
                (r"Error:\s", 1), (r"FAIL\s+\S+ \[", 0), (r"go: ", 0)),
    ),
    Runner(
        "cargo",
        failed=(
            r"test result: FAILED",
            r"error: (?:could not compile|aborting due|test failed|\d+ targets? failed|process didn't)",
            r"error(?:\[E\d+\])?: ", r"test \S.* \.\.\. FAILED$", r"thread '.*' .*panicked at",
        ),
        printed=(r"thread '.*' .*panicked at",),
        part=(r"test result: ok\b(?!\. 0 passed)",),
        last=(r"Finished .*\btarget",),
        detail=((r"error(?:\[E\d+\])?: ", 1), (r"thread '.*' .*panicked at", 1), (r"test \S.* \.\.\. FAILED$", 0)),
    ),
    Runner(
        "npm",
        failed=(
            r"npm (?:ERR!|error)(?:\s|$)", r"\S*\bERR_PNPM", r"\W*ELIFECYCLE", r"error Command failed",
            r"error: script \".*\" exited", r"\W*Lifecycle script .* failed",
        ),
        last=(r"(?:added|changed|removed|up to date)\b.*\bin \d", r"audited \d+ packages", r"found 0 vulnerabilities",
              r"Done in [\d.]+"),
        detail=((r"npm (?:ERR!|error) (?!A complete log|code E?LIFECYCLE)\S", 0), (r"\S*\bERR_PNPM", 0)),
    ),
    Runner(
        "jest",
        failed=(
            r"Test(?:s|\ Suites):\s.*\b[1-9]\d* failed", r"FAIL\s+\S+\.\w+",
            r"Snapshot(?:s|\ Summary).*\b[1-9]\d* .*failed",
            r"(?:Jest: )?\"?global\"? coverage threshold .* not met", r"Jest: .*threshold .* not met",
        ),
        # A suite that could not be loaded has failed, and its tests do not count: `Tests:` alone proves nothing.
        passed=(r"Test Suites:\s+(?!.*\bfailed).*\b[1-9]\d* passed, \d+ total",),
        detail=((r"\u25cf (?!Console)\S.*", 2), (r"Expected(?: \w+)?: ", 1)),
    ),
    Runner(
        "vitest",
        failed=(
            r"(?:Tests|Test Files|Errors)\s+[1-9]\d* (?:failed|errors?)",
            r"(?:\u276f|\u00d7|\u2717|FAIL) +\S+\.\w+ .*\bfailed",
            r"\W*Unhandled (?:Error|Rejection)s?", r"\W*Failed (?:Tests|Suites) \d",
            r"No test files found, exiting with code [1-9]",
        ),
        passed=(r"Test Files\s+[1-9]\d* passed(?!.*\bfailed)",),
        detail=((r"FAIL\s+\S+ > ", 1), (r"[\u2715\u2716\u2717\u2718\u00d7] ?\S", 0)),
    ),
    Runner(
        "mocha",
        failed=(r"[1-9]\d* failing\b", r"not ok \d", r"[#\u2139] (?:fail|cancelled) [1-9]"),
        passed=(r"[#\u2139] fail 0$",),
        part=(r"ok \d+ ",),
        last=(r"[1-9]\d* passing\b",),
        detail=((r"\d+\) \S", 2), (r"not ok \d", 2)),
    ),
    Runner(
        "rspec, phpunit, ctest, dotnet, swift, elixir",
        failed=(
            r"\d+ (?:examples?|tests?|runs|scenarios?), .*\b[1-9]\d* (?:failures?|errors?|failed)", r"FAILURES!$",
            r"Tests: \d+, Assertions: \d+, .*(?:Failures|Errors): [1-9]", r"The following tests FAILED",
            r"\d+% tests passed, [1-9]\d* tests failed", r"\W*Failed!\s+- Failed:", r"Test Run Failed",
            r"Test summary: .*\bfailed: [1-9]", r"The active test run was aborted", r"Test Run Aborted",
            r"No tests were found!!!",
            r"Build (?:FAILED|failed with)", r"Executed \d+ tests?, with [1-9]", r"Test Suite .* failed",
            r"\*\* \(\w+Error\)",
        ),
        passed=(
            r"[1-9]\d* (?:examples?|tests?|runs)\b.*\b0 failures(?!.*[1-9]\d* errors)",
            r"OK \(\d+ tests?, \d+ assertions",
            r"100% tests passed", r"\W*Passed!\s+- Failed:\s+0", r"Build succeeded",
            r"Test summary: (?=.*\bsucceeded: [1-9]).*\bfailed: 0",
            r"Executed [1-9]\d* tests?, with 0 failures",
        ),
        detail=((r"rspec \./", 0), (r"\s*Failed \S+ \[", 2)),
    ),
    Runner(
        "tsc",
        failed=(r"\S+\(\d+,\d+\): error TS\d+", r"\S+:\d+:\d+ - error TS\d+", r"error TS\d+:",
                r"Found [1-9]\d* errors?\b(?!.*\b0 remaining)"),
        last=(r".*\bFound 0 errors\b",),
        detail=((r"\S+\(\d+,\d+\): error ", 0), (r"\S+:\d+:\d+ - error ", 0), (r"error TS\d+:", 0)),
    ),
    Runner(
        "gcc and clang",
        failed=(
            r"\S+:\d+(?::\d+)?: (?:fatal )?error: ", r"[1-9]\d* errors? generated",
            r"(?:collect2|clang|gcc|g\+\+|ld|cc1\w*): .*\berror\b",
            r".*\bundefined reference to ", r"\S*ld: .*(?:not found|cannot find)", r".*\bSegmentation fault\b",
            r".*\(core dumped\)",
            r"Undefined symbols for architecture",
        ),
        detail=((r"\S+:\d+(?::\d+)?: (?:fatal )?error: ", 0), (r".*\bundefined reference to ", 0), (r"\S*ld: ", 0)),
    ),
    Runner(
        "make, ninja",
        failed=(
            r"\S*make(?:\.exe)?(?:\[\d+\])?: \*\*\*", r"ninja: (?:build stopped|error)", r"FAILED: \S",
            r"ERROR: Build did NOT complete", r"\S*make: .*\bError \d+(?! \(ignored\))(?!\d)",
            r"error: Recipe `",
        ),
        last=(r"\S*make(?:\[\d+\])?: (?:Nothing to be done for|.* is up to date)", r"ninja: no work to do"),
        detail=((r"\S*make(?:\[\d+\])?: \*\*\*", 0), (r"FAILED: \S", 1)),
    ),
    Runner(
        "cmake",
        failed=(r"CMake Error\b", r"-- Configuring incomplete"),
        last=(r"-- Build files have been written to", r"\[100%\] Built target "),
        detail=((r"CMake Error\b", 2),),
    ),
    Runner(
        "maven",
        failed=(r"(?:\[\w+\] )?BUILD FAILURE", r"(?:\[ERROR\] )?Tests run: \d.*\b(?:Failures|Errors): [1-9]",
                r"\[ERROR\] (?:Failed to execute|COMPILATION ERROR|There are test)"),
        passed=(r"(?:\[\w+\] )?BUILD SUCCESS$",),
        detail=((r"\[ERROR\] +(?!->|Re-run|To see|For more|\[Help)\S", 0),),
    ),
    Runner(
        "gradle",
        failed=(r"BUILD FAILED\b", r"FAILURE: Build (?:failed|completed with)",
                r"> Task \S+ FAILED$", r"\S+ > \S.* FAILED$"),
        passed=(r"BUILD SUCCESSFUL in ",),
        detail=((r"\S+ > \S.* FAILED$", 1), (r"\* What went wrong:", 2), (r"e: (?:file:)?\S+", 0)),
    ),
    Runner(
        "ruff, mypy, black, pyright, pylint, flake8",
        failed=(
            r"Found [1-9]\d* errors?\b(?!.*\b0 remaining)", r"(?:\d+ files? )?would reformat",
            r"[1-9]\d* errors?, \d+ warnings?",
            r"\S+\.pyi?:\d+(?::\d+)?: error", r"\d+ files? would be reformatted", r"Would reformat: ", r"Oh no! ",
        ),
        passed=(r"All checks passed!", r"Success: no issues found", r"0 errors, \d+ warnings?",
                r"Found [1-9]\d* errors? \([1-9]\d* fixed, 0 remaining\)"),
        last=(r"\d+ files? (?:already formatted|left unchanged|would be left unchanged)", r"All done!"),
        detail=((r"\S+\.pyi?:\d+(?::\d+)?: ?(?:error|- error|[A-Z]{1,4}\d{3,4}\b)", 0)
                , (r"[A-Z]{1,4}\d{3,4} (?:\[\*\] )?\S", 1),
                (r"would reformat \S", 0)),
    ),
    Runner(
        "eslint, golangci-lint, prettier, pre-commit",
        failed=(
            r"\W*[1-9]\d* problems?\b.*\b[1-9]\d* errors?\b", r"[1-9]\d* issues?:?$", r"\[warn\] Code style issues",
            r".*\.{3,}Failed$",
            r"\[?\w*\]? ?ERROR task failed",
        ),
        passed=(r"0 issues\.?$", r"All matched files use Prettier"),
        detail=((r"\d+:\d+\s+error\s", 0), (r"\S+:\d+:\d+:? \S", 0), (r"- hook id: ", 2)),
    ),
    Runner(
        "bun, deno, playwright, zig",
        failed=(r"[1-9]\d* fail$", r"FAILED \| \d+ passed", r"[1-9]\d* failed\.?$",
                r"\d+ passed; \d+ skipped; [1-9]\d* failed"),
        passed=(r"ok \| [1-9]\d* passed\b.*\| 0 failed",),
        detail=((r"[1-9]\d* fail(?:ed)?\.?$", 1),),
    ),
    Runner(
        "gtest, nextest, xcodebuild, flutter, sbt, prove",
        failed=(
            r"\[  FAILED  \] ", r"\*\* (?:TEST|BUILD) FAILED \*\*", r"\d\d:\d\d \+\d+(?: ~\d+)? -[1-9]",
            r"Summary \[.*\b[1-9]\d* (?:failed|timed out)\b", r"Failed tests:$", r".*\bTests unsuccessful$",
            r"Result: (?:FAIL|NOTESTS)$",
        ),
        passed=(
            r"\[  PASSED  \] [1-9]\d* tests?\.$", r"\*\* (?:TEST|BUILD) SUCCEEDED \*\*",
            r"\d\d:\d\d \+[1-9]\d*(?: ~\d+)?: All tests passed!", r"Result: PASS$",
            r"Summary \[.*\b[1-9]\d* tests? run: [1-9]\d* passed(?!.*(?:failed|timed out))",
        ),
        detail=((r"\[  FAILED  \] \S+", 0), (r"FAIL \[ +[\d.]+s\] ", 0)),
    ),
    Runner(
        "tox, nox",
        failed=(r"\S+: FAIL code -?\d", r"\W*evaluation failed :\(", r"(?:nox > )?Session \S+.* failed\b",
                r"(?:nox > )?\* \S+: failed$", r"ERROR: +\S+: (?:commands|could not|parallel child)"),
        detail=((r"\S+: FAIL code -?\d", 0), (r"(?:nox > )?Session \S+.* failed\b", 0)),
    ),
    Runner(
        "terraform",
        failed=(r"\u2502 Error: \S",),
        passed=(r"Apply complete! Resources: ",),
        below=((r"(?:\u2502 *)?on \S+\.(?:tf|tfvars|tf\.json|hcl) line \d", r"(?:\u2502 )?Error: \S"),),
        detail=((r"\u2502 Error: \S", 1),),
    ),
    Runner(
        "patch",
        failed=(r"[1-9]\d* out of \d+ hunks? (?:FAILED|failed)", r"Hunk #\d+ FAILED", r"patch: \*{4} "),
        detail=((r"[1-9]\d* out of \d+ hunks? (?:FAILED|failed)", 0), (r"Hunk #\d+ FAILED", 0)),
    ),
    Runner(
        "docker",
        failed=(
            r"ERROR: failed to (?:solve|build)", r"failed to solve: ",
            r"The command '.*' returned a non-zero code: [1-9]",
            r"(?:docker: )?Error response from daemon", r"(?:error )?Error: .*(?:did not complete|pull access denied)",
            r"\u2718 (?:Container|Image|Network|Volume|Service) \S+ +\S",
        ),
        last=(r"Successfully (?:built|tagged) \S+",),
        detail=((r"(?:ERROR: )?failed to (?:solve|build)", 0), (r"(?:docker: )?Error response from daemon", 0),
                (r"The command '.*' returned", 0)),
    ),
    Runner(
        "kubectl, ansible",
        failed=(r"Error from server\b", r"\S+ +: ok=\d.*\b(?:unreachable|failed)=[1-9]"),
        detail=((r"Error from server\b", 0), (r"\S+ +: ok=\d.*\b(?:unreachable|failed)=[1-9]", 0)),
    ),
    Runner(
        "bazel",
        failed=(r"Executed \d+ out of \d+ tests?: .*\b[1-9]\d* fails?\b",),
        passed=(r"Executed [1-9]\d* out of \d+ tests?: [1-9]\d* tests? pass(?:es)?\.$",),
        detail=((r"//\S+ +(?:FAILED|TIMEOUT)\b", 0),),
    ),
    Runner(
        "git",
        failed=(
            r"fatal: ", r"CONFLICT \(", r"Automatic merge failed", r"error: failed to push",
            r" ?! \[(?:remote )?rejected\]",
            r"error: (?:Your local changes|pathspec|patch failed|could not apply|cannot|src refspec|unable to)",
            r"error: The following ",
        ),
        detail=((r"fatal: ", 0), (r"CONFLICT \(", 0), (r"error: ", 0), (r"! \[(?:remote )?rejected\]", 0)),
    ),
    Runner(
        "task runners",
        failed=(
            r"(?:ERROR|FAILED)(?::)? task .*failed", r"(?:Error|ERROR): (?:task|target|script|command) .*\bfailed",
            r"error: Recipe ", r"\W*(?:[Ss]ome|[1-9]\d*) (?:tests?|checks?|specs?|assertions?) failed",
            r"== \[.*\] FAIL$",
            r"Command failed(?: with exit code [1-9]\d*)?", r"(?:BUILD|Build|TESTS?|Tests?) (?:FAILED|failed)\b",
            r"\W*BUILD FAIL",
            r"\W*(?:Process|Command|Script|Program) (?:exited|failed|terminated) with (?:exit )?\w+ -?[1-9]",
            r"Killed$", r"Aborted(?: \(core dumped\))?$", r"Terminated$", r"FAILED$", r"FAILED\s+\S+::",
        ),
        detail=((r"== \[.*\] FAIL$", 1),),
    ),
)  # fmt: skip

GENERAL_FAILURES: tuple[tuple[str, int], ...] = (
    (r"(?:[\w.]+\.)?\w*(?:Error|Exception|Exit|Interrupt)(?: \[\w+\])?(?::|$)", 0),
    (r"[\w.]+\.(?:exceptions?|errors?)\.\w+: ", 0),
    (r"(?:fatal )?[Ee]rror(?:\[\w+\])?: ", 0),
    (r"(?:FAIL|FAILED|ERROR|FATAL|CRITICAL):? +\S", 0),
    (r"\W*(?:panic|fatal): ", 0),
    (r".*\bpanicked at\b", 1),
    (r".*: (?:fatal )?error:? ", 0),
    (r"\S+:\d+:\d+:? \S", 0),
    (r"\S+: can(?:not|'t) ", 0),
    (r".*(?:: command not found|: not found$|\bNo such file or directory|\bPermission denied)", 0),
    (r".*(?:\bdoes not exist|\bNo module named )", 0),
    (r"[\u2715\u2716\u2717\u2718\u00d7] ?\S", 0),
    (r"<tool_use_error>", 0),
)  # fmt: skip
"""First lines on a failure that many programs print, each with the number of following lines that belong to it."""

ERROR_LINES = (
    r"(?:[\w.]+\.)?\w*(?:Error|Exception|Interrupt)(?: \[\w+\])?(?::|$)|[\w.]+\.(?:exceptions?|errors?)\.\w+: "
    r"|(?:fatal )?[Ee]rror(?:\[\w+\])?: |(?:FAIL|FAILED|ERROR|FATAL):? +\S|\W*(?:panic|fatal): |<tool_use_error>"
    r"|.*(?:: command not found|: not found$|\bNo such file or directory|\bPermission denied|\bNo module named )"
    r"|.*: (?:fatal )?error: |\S+: can(?:not|'t) |\S+\.\w+:\d+:\d+: \S"
    r"|Traceback \(most recent call last\):"
)
"""Last lines that report an error."""

HARMLESS_LINES = (
    r"\d+\) |\S*\d\d:\d\d:\d\d\b|\S+:\d+(?::\d+)?:? (?:warning|note|info|remark)\b"
    r"|go: (?:downloading|finding|extracting|added|upgraded)|\S*ld: warning|[\u2715\u2716\u2717\u2718\u00d7] ?0\b"
)
"""Lines that look like the first line on a failure but are none: numbered lists, times, warnings, downloads."""

FAILURE_COUNT = r"(?<![\w.])[1-9]\d* (?:failed|failures?|failing|errors?)\b(?!.*\b0 remaining)"
"""A count of failures other than 0, anywhere in a line: it turns a line that begins like a success into a failure."""

RUNNER_COMMANDS = (
    r"(?:(?:uv|poetry|pipenv|hatch|pdm|rye) run (?:-m )?|(?:npx|bunx|yarn|pnpm(?: exec)?) (?:-\S+ )*"
    r"|python[\d.]* (?:-\w )*-m |coverage run -m )*(?:\S*/)?"
    r"(?:pytest|py\.test|unittest|jest|vitest|mocha|ava|playwright test|rspec|phpunit|ctest|ruff|mypy|black|pyright"
    r"|pylint|flake8|eslint|prettier|tsc|cmake|mvnw?|gradlew?|golangci-lint|terraform|node --test"
    r"|(?:go|cargo|dotnet|swift|mix|deno|bun|zig) (?:test|build|check|clippy))(?: |$)"
)
"""Commands that are runners themselves, and not scripts that start runners."""

STARTING_COMMANDS = r"(?:npm|pnpm|yarn|bun|make|gmake|just|task|rake|invoke|hatch|pdm|poetry|uv|tox|nox|bazel)(?: |$)"
"""Commands that start runners and pass on their failure: a line of success at the end of their output is theirs."""

REPEATING_COMMANDS = (
    r"\b(?:for|while|until)\s.*\bdone\b|\bxargs\b|\s-exec(?:dir)?\b|\bparallel\b"
    r"|\b(?:npm|pnpm|yarn|bun)\b.*\s(?:-ws|--workspaces|-r|--recursive|workspaces|--filter)\b"
    r"|\b(?:lerna|turbo) run\b|\bnx run-many\b|\bmake\b.*\s(?:-k|-i|--keep-going|--ignore-errors)\b"
    r"|\bdotnet test\b.*\|\s*tail\b"
)
"""Commands that may run one program many times: the success of the last run proves nothing of the others. `dotnet test`
reports each project in a line of its own, of which `tail` may show the last one alone."""

CONSOLE_LINE = r"console\.\w+(?: \S+)?$"
"""The line with which jest and vitest begin the log of a test; the log is indented below it."""


SUCCESS_WORDS = (
    r"\W*[Aa]ll (?:\S+ ){0,4}(?:tests?|checks?|specs?)\b.*\b(?:pass|succe|work)"
    r"|(?:--- )?PASS(?:ED)?\b|ok \d|Tests?:? .*\bpassed"
)
"""Lines with words of success. They are kept, but prove nothing."""

OUTCOME_WORDS = (
    "fail", "error", "err!", "err_", "elifecycle", "***", "panic", "fault", "abort", "core dumped", "killed",
    "terminated",
    "not ok", "issue", "problem", "reformat", "stopped", "exit", "incomplete", "not met", "interrupted", "not found",
    "rejected", "conflict", "fatal", "undefined", "non-zero", "cannot", "unhandled", "pass", "ok", "succe", "finished",
    "done", "found 0", "files have been", "built", "nothing to be", "up to date", "no work", "added ", "changed ",
    "removed ", "audited", "already formatted", "unchanged", "matched files", "code ", "lifecycle script",
    "cannot find",
    "apply complete", "\u2718", "hunk", ".tf", ".hcl", "no required",
    "unknown revision", "parsing", "cancelled", "no tests", "exceeded", "interrupted", "summary", "-1:", "notests",
    "status", "timed out", "file or dir",
)  # fmt: skip
"""Words in lower case. Each line that reports an outcome holds at least one of them."""


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
    success_words: re.Pattern[str]
    below: tuple[tuple[re.Pattern[str], re.Pattern[str]], ...]
    harmless: re.Pattern[str]
    failure_count: re.Pattern[str]
    runner_command: re.Pattern[str]
    starting_command: re.Pattern[str]
    repeating_command: re.Pattern[str]
    console_line: re.Pattern[str]


@lru_cache(maxsize=8)
def compile_patterns(runners: tuple[Runner, ...] = RUNNERS) -> RunnerPatterns:
    """Compile the patterns of these runners."""
    details = [pair for runner in runners for pair in runner.detail] + list(GENERAL_FAILURES)
    return RunnerPatterns(
        failed=_compile_any(p for runner in runners for p in runner.failed),
        passed=_compile_any(p for runner in runners for p in runner.passed),
        printed=_compile_any(p for runner in runners for p in runner.printed),
        part=_compile_any(p for runner in runners for p in runner.part),
        last=_compile_any(p for runner in runners for p in runner.last),
        detail=re.compile("|".join(f"({p})" for p, _ in details)),
        following_lines=tuple(follow for _, follow in details),
        error=re.compile(ERROR_LINES),
        success_words=re.compile(SUCCESS_WORDS),
        below=tuple((re.compile(line), re.compile(above)) for runner in runners for line, above in runner.below),
        harmless=re.compile(HARMLESS_LINES),
        failure_count=re.compile(FAILURE_COUNT),
        runner_command=re.compile(RUNNER_COMMANDS),
        starting_command=re.compile(STARTING_COMMANDS),
        repeating_command=re.compile(REPEATING_COMMANDS),
        console_line=re.compile(CONSOLE_LINE),
    )


def _compile_any(patterns: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{pattern})" for pattern in patterns))
