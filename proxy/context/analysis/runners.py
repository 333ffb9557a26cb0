"""Table of the usual runners: the lines with which each reports the outcome of a run.

A pattern is matched at the beginning of a line, without its indentation, its colours and the name of the task in front.
Each pattern matches a text that the runner itself prints, so that a text about failures is no failure. Words alone
never make a success.
"""

from __future__ import annotations

from dataclasses import dataclass


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
    begins: tuple[str, ...] = ()
    """Lines that begin a part of a run: a success above the last of them proves nothing of that part."""
    whole: tuple[tuple[str, str], ...] = ()
    """Pairs of (a line that reports the success of the whole run, a line that has to stand before it)."""
    below: tuple[tuple[str, str], ...] = ()
    """Pairs of (a line, the beginning of one of the few lines above it): together they report a failure of the run."""
    detail: tuple[tuple[str, int], ...] = ()
    """Pairs of (the first line on a failure, the number of following lines that belong to it)."""


_CONFLICT = (
    r"(?:CONFLICT|KONFLIKT|CONFLIT|CONFLICTO|\u041a\u041e\u041d\u0424\u041b\u0418\u041a\u0422) \(|\u51b2\u7a81\uff08"
)
"""A conflict of a merge, as Git reports it in several languages."""
RUNNERS = (
    Runner(
        "pytest",
        failed=(
            r"=+ .*\b[1-9]\d* (?:failed|errors?)\b.*=+$", r"[1-9]\d* (?:failed|errors?)\b.*\bin [\d.]+",
            r"[1-9]\d* (?:failed|errors?), .*\bpassed\b", r"(?:FAILED|ERROR) \S+(?:::|\.py)",
            r"=+ (?:FAILURES|ERRORS) =+$", r"!+ .*(?:Interrupted|stopping after|KeyboardInterrupt|\.Exit: ).* !+$",
            r"ERROR: (?:not found|file or directory not found|usage)", r"(?:=+ )?no tests ran in [\d.]+",
            r"(?:ERROR: )?Coverage failure: ", r"ERROR: Coverage for \w+ ", r"FAIL Required test coverage",
            r"INTERNALERROR>", r"\++ Timeout \++$",
        ),
        # A test may print or log such a line. The total has a failure of the runner's own.
        printed=(r"(?:FAILED|ERROR) \S+(?:::|\.py)",),
        begins=(r"=+ test session starts =+$",),
        passed=(r"=+ .*\b[1-9]\d* passed\b.*=+$", r"[1-9]\d* passed\b.*\bin [\d.]+"),
        detail=((r"E {3,}\S", 0), (r"(?:FAILED|ERROR) \S+(?:::|\.py)", 0), (r"ERROR: ", 0),
                (r"worker '\w+' crashed ", 0)),
    ),
    Runner(
        "unittest",
        failed=(r"FAILED \((?:failures|errors|unexpected successes)=", r"(?:FAIL|ERROR): \w+ \([\w.]+\)",
                r"\*{3}Test Failed\*{3} [1-9]"),
        passed=(r"OK(?: \((?:skipped|expected failures).*\))?$",),
        detail=((r"(?:FAIL|ERROR): \S+ \(", 0), (r"Failed example:$", 5)),
    ),
    Runner(
        "go",
        failed=(
            r"--- FAIL: ", r"FAIL$", r"FAIL\s+\S+(?:\s|$)", r"(?:\S+: )?exit status [1-9]",
            r"panic: ", r"fatal error: ", r"signal: \w+",
            r"go: .*(?:cannot find|errors parsing|no required module|unknown revision)",
            r"\{\"(?:Time|ImportPath|Action)\":.*\"Action\":\"(?:build-)?fail\"",
        ),
        printed=(r"panic: ", r"fatal error: ", r"\S+_test\.go:\d+: (?:fatal )?error: "),
        part=(r"ok\s+\S+\s+(?:[\d.]+s|\(cached\))(?!.*no tests to run)",
              r"\{\"Time\":\"[^\"]*\",\"Action\":\"pass\",\"Package\":\"[^\"]*\",\"Elapsed\""),
        begins=(r"=== RUN ",),
        last=(r"PASS$",),
        detail=((r"--- FAIL: ", 1), (r"panic: ", 0), (r"\S+\.go:\d+:\d+: ", 0), (r"\S+_test\.go:\d+: ", 0),
                (r"Error:\s", 1), (r"FAIL\s+\S+ \[", 0), (r"go: ", 0)),
    ),
    Runner(
        "cargo",
        failed=(
            r"test result: FAILED",
            r"error: (?:could not compile|aborting due|test failed|\d+ targets? failed|process didn't)",
            r"error(?:\[E\d+\])?: (?![-+]?[\d.]+%?$)", r"test \S.* \.\.\. FAILED$", r"thread '.*' .*panicked at",
            r"Diff in \S+:\d+:$",
        ),
        # A test prints a plain `error: `, too. Cargo's own lines end the run, so that no success is below them.
        printed=(r"thread '.*' .*panicked at", r"error: (?!could not compile|aborting|test failed|\d+ target|process)"),
        begins=(r"running [1-9]\d* tests?$",),
        part=(r"test result: ok\b(?!\. 0 passed)",),
        last=(r"Finished .*\btarget",),
        detail=((r"error(?:\[E\d+\])?: ", 1), (r"thread '.*' .*panicked at", 1), (r"test \S.* \.\.\. FAILED$", 0)),
    ),
    Runner(
        "npm",
        failed=(
            r"npm (?:ERR!|error)(?:\s|$)", r"(?:Error: )?\S*\bERR_PNPM", r"\W*ELIFECYCLE",
            r"error (?:Command \"|Command failed|Couldn't find |An unexpected error)",
            r"error: script \".*\" exited", r"\W*Lifecycle script .* failed", r"[\w@./-]+ [\w:.-]+: Failed$",
            r"\u27a4 YN0000: \W*Failed with errors", r"husky - .*\b(?:exited with|failed)",
        ),
        last=(r"(?:added|changed|removed|up to date)\b.*\bin \d", r"audited \d+ packages", r"found 0 vulnerabilities",
              r"Done in [\d.]+", r"[1-9]\d* packages? installed \["),
        detail=((r"npm (?:ERR!|error) (?!A complete log|code E?LIFECYCLE)\S", 0), (r"\S*\bERR_PNPM", 0),
                (r"\u27a4 YN(?!0000)\d{4}: \u2502 (?!.*(?:fetched|deprecated))\S", 0)),
    ),
    Runner(
        "jest",
        failed=(
            r"Test(?:s|\ Suites):\s.*\b[1-9]\d* failed", r"FAIL\s+\S+\.\w+",
            r"Snapshot(?:s|\ Summary).*\b[1-9]\d* .*failed",
            r"(?:Jest: )?\"?global\"? coverage threshold .* not met", r"Jest: .*threshold .* not met",
            r"No tests found, exiting with code [1-9]",
        ),
        # A suite that could not be loaded has failed, and its tests do not count: `Tests:` alone proves nothing.
        passed=(r"Test Suites:\s++(?!.*\bfailed).*\b[1-9]\d* passed, (?:\d+ of )?\d+ total",),
        detail=((r"No tests found, exiting", 0), (r"\u203a \d+ snapshots? (?:failed|obsolete)", 1),
                (r"\u25cf (?!Console)\S.*", 2), (r"Expected(?: \w+)?: ", 1)),
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
        failed=(r"[1-9]\d* failing\b", r"not ok \d(?!.*# (?i:todo|skip)\b)", r"[#\u2139] (?:fail|cancelled) +[1-9]",
                r"\d+ specs?, [1-9]\d* failures?", r"Could not find '\S+'$"),
        passed=(r"[#\u2139] fail 0$",),
        part=(r"ok \d+ ",),
        last=(r"[1-9]\d* passing \([\d.]+\w+\)$",),
        detail=((r"\d+\) \S", 2), (r"not ok \d(?!.*# (?i:todo|skip)\b)", 2)),
    ),
    Runner(
        "cypress, ava, tap-spec, nx",
        failed=(
            r"\W*[1-9]\d* of \d+ failed \(", r"failing: +[1-9]\d*$", r"Failed Tests: There w\w+ [1-9]",
            r"[1-9]\d* (?:uncaught exceptions?|unhandled rejections?)$",
            r"\W*\d+/\d+ targets? failed", r"NX +(?:Ran|Running) .*\bfailed$",
        ),
        passed=(r"\W*All specs passed!", r"NX +Successfully ran targets? "),
        last=(r"[1-9]\d* tests? passed$",),
        detail=((r"\u2718 \[fail\]: ", 0),),
    ),
    Runner(
        "rspec, phpunit, ctest, dotnet, swift, elixir",
        failed=(
            r"\d+ (?:examples?|tests?|runs|scenarios?|doctests?|propert\w+), .*\b[1-9]\d* (?:failures?|errors?|failed)",
            r"FAILURES!$", r"Failed examples:$", r"Errors while running CTest$", r"The --only option was given to ",
            r"Tests: \d+, Assertions: \d+, .*(?:Failures|Errors): [1-9]", r"The following tests FAILED",
            r"\d+% tests passed, [1-9]\d* tests failed", r"Test Run Failed",
            r"\W*(?:Failed|Fehler|\u00c9chec|\u5931[\u8d25\u6557]) ?!\s+[:-]\s*[^\W\d]+ ?: +[1-9]",
            r"Test summary: .*\bfailed: [1-9]", r"The active test run was aborted", r"Test Run Aborted",
            r"Build (?:FAILED|failed with)", r"Executed \d+ tests?, with [1-9]",
            r"Test Suite .* failed", r"\*\* \((?:[\w.]+Error|Mix)\)", r"== Compilation error in file ",
            r"Compilation failed due to warnings", r"\W*Test run with \d+ tests? .*\bfailed after", r"MSBUILD : error ",
        ),
        printed=(r"\*\* \([\w.]+Error\)",),
        passed=(
            r"[1-9]\d* (?:examples?|tests?|runs|doctests?|propert\w+)\b.*\b0 failures(?!.*[1-9]\d* errors)",
            r"OK \(\d+ tests?, \d+ assertions", r"100% tests passed", r"Build succeeded",
            r"\W*(?:Passed|Bestanden|R\u00e9ussi|\u5df2\u901a\u8fc7) ?!\s+[:-]\s*[^\W\d]+ ?: +0\b",
            r"Test summary: (?=.*\bsucceeded: [1-9]).*\bfailed: 0",
            r"Executed [1-9]\d* tests?, with 0 failures", r"\W*Test run with [1-9]\d* tests? .*\bpassed after",
        ),
        last=(r"Build complete!",),
        detail=((r"rspec \./", 0), (r"(?:Failed|Fehler|\u00c9chec|\u5931[\u8d25\u6557]) \S+ \[", 2),
                (r"Failure/Error: ", 2), (r"== Compilation error ", 1), (r".*: error TESTERROR:", 1),
                (r"\d+ - \S.* \((?:Failed|Timeout|SEGFAULT|Not Run|Subprocess)", 0)),
    ),
    Runner(
        "dialyzer, rebar3, ghc, cabal, stack, alcotest, javac",
        failed=(
            r"done \(warnings were emitted\)", r"===> (?:Failures|Warnings) occurred running ",
            r"Failed [1-9]\d* tests?\. Passed \d", r"Error: \[S-\d+\]$", r"[1-9]\d* failures?! in ",
        ),
        passed=(r"Test Successful in [\d.]+\w+\. [1-9]",),
        last=(r"done \(passed successfully\)",),
        # The reason is in the lines below the place.
        detail=((r"\S+\.l?hs:\d+:\d+(?:-\d+)?: error:", 2), (r"\S+\.java:\d+: error: cannot find symbol", 1),
                (r"%%% \S+ ==> .*FAILED", 1)),
    ),
    Runner(
        "pest, phpstan, composer, php",
        failed=(
            r"\[ERROR\] Found [1-9]", r"Your requirements could not be resolved", r"Errors parsing \S",
            r"(?:PHP )?(?:Parse|Fatal) error: ", r"Code coverage below (?:the )?(?:expected )?minimum",
        ),
        printed=(r"(?:PHP )?(?:Parse|Fatal) error: ",),
        passed=(
            r"Tests: +(?:[1-9]\d* (?!failed|errors?|passed)\w+, )*[1-9]\d* passed \(\d+ assertions?\)",
            r"(?:\[OK\] )?No errors$",
        ),
        last=(r"No syntax errors detected in ",),
        detail=((r"FAILED +\S+ > ", 1), (r"(?:PHP )?(?:Parse|Fatal) error: ", 0), (r"Problem \d+$", 1)),
    ),
    Runner(
        "ruby",
        failed=(
            r"\S*(?:rake|rails) aborted!", r"\S+:\d+:in ['`].*\([A-Z][\w:]+\)$", r"version solving has failed",
            r"Could not find (?:compatible versions|gem )", r"SimpleCov failed with exit [1-9]",
            r"(?:Line|Branch|Method) coverage .*\bbelow the expected minimum",
            r"[1-9]\d* files? inspected, [1-9]\d* offenses?\b(?!.*\bcorrected)",
        ),
        printed=(r"\S+:\d+:in ['`].*\([A-Z][\w:]+\)$",),
        passed=(r"[1-9]\d* files? inspected, no offenses detected",),
        last=(r"Bundle complete! ",),
        detail=((r"\S*(?:rake|rails) aborted!", 2), (r"\S+:\d+:in ['`].*\([A-Z][\w:]+\)$", 0),
                (r"Could not find (?:compatible versions|gem )", 2), (r"[\w:]+(?:Error|Exception): \S", 0)),
    ),
    Runner(
        "uncaught exceptions",
        failed=(
            r"Exception in thread \"main\" ", r"lua[\d.]*: \S+:\d+: ", r"BEGIN failed--compilation aborted",
            r"==\d+==ERROR: \w+Sanitizer", r"SUMMARY: \w+Sanitizer: ", r"\+ FullyQualifiedErrorId : ",
            r".*\bis not recognized as (?:an internal or|the name of)", r"Line \|$",
            r"[A-Za-z_]\w* {2,}Traceback \(most recent call last\)$",  # the head of an uncaught exception in IPython
            r"\+ Exception Group Traceback \(most recent call last\):",
        ),
        printed=(
            r"Exception in thread \"main\" ", r"\+ FullyQualifiedErrorId : ", r"lua[\d.]*: \S+:\d+: ",
            r"\+ Exception Group Traceback ",
        ),
        detail=(
            (r"Exception in thread \"", 0), (r"lua[\d.]*: \S+:\d+: ", 0), (r"Can't locate \S+ in @INC", 0),
            (r"==\d+==ERROR: \w+Sanitizer", 0), (r"\S+:\d+:\d+: runtime error: ", 0),
            (r"==\d+== (?:Invalid |Conditional jump|Use of uninit|Process terminating|.* definitely lost)", 2),
            (r"[A-Z][a-z]+-[A-Z]\w+ ?: \S", 0),
            (r".*\bis not recognized as ", 0),
        ),
    ),
    Runner(
        "catch2, doctest, boost",
        failed=(r"test cases: +\d+ \|.*[1-9]\d* failed", r"Status: FAILURE!$",
                r"\*{3} [1-9]\d* failures? (?:is|are) detected"),
        passed=(r"All tests passed \([1-9]\d* assertions? in ", r"Status: SUCCESS!$"),
        whole=((r"\*{3} No errors detected", r"Running [1-9]\d* test cases?"),),
        detail=((r"\S+:\d+: (?:FAILED|ERROR): ?", 1), (r"\S+:\d+: Failure$", 2)),
    ),
    Runner(
        "behave, cucumber, robot",
        failed=(
            r"\d+ (?:features?|scenarios?|steps?) passed, (?:[1-9]\d* failed|.*[1-9]\d* undefined)",
            r"\d+ (?:scenarios?|steps?) \(.*[1-9]\d* (?:failed|undefined|ambiguous)",
            r"\d+ tests?, \d+ passed, [1-9]\d* failed", r"ASSERT FAILED: ",
        ),
        printed=(r"ASSERT FAILED: ",),
        passed=(r"[1-9]\d* scenarios? passed, 0 failed", r"[1-9]\d* scenarios? \([1-9]\d* passed\)$"),
        part=(r"[1-9]\d* tests?, [1-9]\d* passed, 0 failed",),
        detail=((r"(?:Assertion Failed|ASSERT FAILED): ", 0), (r"Failing scenarios:", 2), (r".*\| FAIL \|$", 1)),
    ),
    Runner(
        "tsc",
        failed=(r"\S+\(\d+,\d+\): error [A-Z]+\d+", r"\S+:\d+:\d+ - error TS\d+", r"error TS\d+:",
                r"Found [1-9]\d* errors?\b(?!.*\b0 remaining)"),
        last=(r".*\bFound 0 errors\b",),
        detail=((r"\S+\(\d+,\d+\): error ", 0), (r"\S+:\d+:\d+ - error ", 0), (r"error TS\d+:", 0)),
    ),
    Runner(
        "gcc and clang",
        failed=(
            r"\S+:\d+(?::\d+)?: (?:fatal )?error: ", r"[1-9]\d* errors? generated",
            r"(?:collect2|clang|gcc|g\+\+|ld|cc1\w*): .*\berror\b", r".*\bundefined reference to ",
            r"\S*ld: .*(?:not found|cannot find)", r".*\bSegmentation fault\b", r".*\(core dumped\)",
            r"Undefined symbols for architecture", r"\S+: .*: Assertion .* failed\.$",
            r"terminate called (?:after throwing an instance|without an active exception)",
            r"\S+:\d+(?::\d+)?: (?:Fehler|erreur|errore|error fatal|\u9519\u8bef)\s?[:\uff1a]",
            r"\S+\(\d+\) ?: (?:fatal )?error C\d+: ", r"\S+ : (?:fatal )?error LNK\d+: ",
        ),
        printed=(r"\S+: .*: Assertion .* failed\.$", r"terminate called "),
        detail=((r"\S+:\d+(?::\d+)?: (?:fatal )?error: ", 0), (r"terminate called ", 1),
                (r"\S+(?:\(\d+\) ?| ): (?:fatal )?error (?:C|LNK)\d+: ", 0),
                (r".*\bundefined reference to ", 0), (r"\S*ld: ", 0),
                (r"\S+:\d+(?::\d+)?: (?:Fehler|erreur|errore|error fatal|\u9519\u8bef)\s?[:\uff1a]", 0)),
    ),
    Runner(
        "make, ninja",
        failed=(
            r"\S*make(?:\.exe)?(?:\[\d+\])?: \*\*\*", r"ninja: (?:build stopped|error)", r"FAILED: (?!\d+$|none$)\S",
            r"ERROR: Build did NOT complete", r"\S*make: .*\bError \d+(?! \(ignored\))(?!\d)",
            r"error: Recipe `", r"(?:\.\./)*(?:[\w-]+/)?meson\.build:\d+:\d+: ERROR: ",
            r"(?:Unexpected Pass|Fail|Timeout): +[1-9]\d*$",
        ),
        whole=((r"Timeout: +0$", r"Ok: +[1-9]"),),
        last=(r"\S*make(?:\[\d+\])?: (?:Nothing to be done for|.* is up to date)", r"ninja: no work to do",
              r"(?:scons: )?done building targets\."),
        detail=((r"\S*make(?:\[\d+\])?: \*\*\*", 0), (r"FAILED: (?!\d+$|none$)\S", 1),
                (r"\d+/\d+ \S.* (?:FAIL|TIMEOUT|ERROR) +[\d.]+s\b", 0)),
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
        detail=((r"\[ERROR\] +(?!->|Re-run|To see|For more|\[Help)\S", 0), (r"\S.*\.{3} FAILURE \[", 0)),
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
            r"Found [1-9]\d* errors?\b(?!.*\b0 remaining)", r"(?:\d+ files? )?would reformat", r"error\[[\w-]+\]: ",
            r"[1-9]\d* errors?, \d+ warnings?",
            r"\S+\.pyi?:\d+(?::\d+)?: (?:error|[EF]\d{4}: )", r"\d+ files? would be reformatted",
            r"Would reformat: ", r"Oh no! ", r"Found [1-9]\d* (?:diagnostics?|problems?)$", r"SystemCheckError: ",
            r"Total errors found: [1-9]", r">> Issue: \[", r"ERROR: \S+ Imports are incorrectly sorted",
        ),
        passed=(r"All checks passed!", r"Success: no issues found", r"0 errors, \d+ warnings?",
                r"Found [1-9]\d* errors? \([1-9]\d* fixed, 0 remaining\)"),
        last=(r"\d+ files? (?:already formatted|reformatted|left unchanged|would be left unchanged)", r"All done!"),
        detail=((r"\S+\.pyi?:\d+(?::\d+)?: ?(?:error|- error|[A-Z]{1,4}\d{3,4}\b)", 0)
                , (r"[A-Z]{1,4}\d{3,4} (?:\[\*\] )?\S", 1),
                (r">> Issue: \[", 0), (r"Location: \S+:\d+:\d+", 0), (r"In \S+ line \d+:$", 2),
                (r"would reformat \S", 0), (r"error\[[\w-]+\]: ", 1), (r"\S+: \(\w+\.E\d+\) ", 0)),
    ),
    Runner(
        "eslint, golangci-lint, prettier, pre-commit",
        failed=(
            r"\W*[1-9]\d* problems?\b.*\b[1-9]\d* errors?\b", r"[1-9]\d* issues?(?: found\b(?!\.$).*|:)?$",
            r"(?:error|warning) - \S+\.dart:\d+:\d+ - ",
            r"(?:\[error\] )?No files matching the pattern were found", r"(?:\[warn\] )?Code style issues",
            r"Error occurred when checking code style",
            r"ESLint found too many warnings", r"Oops! Something went wrong!", r"\S+\.go:\d+:\d+: .+ \([a-z]+\)$",
            r".*\.{3,}Failed$", r"\d+:\d+ +error +\S.* \([\w-]+\)$",
            r"Found \d+ warnings? and [1-9]\d* errors?\.$", r"\[?\w*\]? ?ERROR task failed",
        ),
        passed=(r"0 issues\.?$", r"All matched files use Prettier", r"No issues found!",
                r"Found \d+ warnings? and 0 errors\.$"),
        last=(r"Checked [1-9]\d* files? in [\d.]+\w+\. (?:No fixes applied|Fixed \d+ files?)\.$",),
        detail=((r"\d+:\d+\s+error\s", 0), (r"\S+:\d+:\d+:? \S", 0), (r"- hook id: ", 2)),
    ),
    Runner(
        "bundlers",
        failed=(
            r"(?:\S+ \()?webpack [\d.]+\)? compiled with [1-9]\d* errors?", r"Failed to compile\.$", r"Type error: ",
            r"error during build:", r"[x\u2717] Build failed in [\d.]+", r"[1-9]\d* errors?$",
            r"Application bundle generation failed", r"\[!\] (?:\([^)]{1,80}\) )?\w*Error: ",
        ),
        printed=(r"[1-9]\d* errors?$", r"Type error: "),
        part=(r"(?:\S+ \()?webpack [\d.]+\)? compiled (?:successfully|with [1-9]\d* warnings?) in ",),
        last=(r"\W*built in [\d.]+m?s$",),
        detail=((r"ERROR in \S", 1), (r"\[!\] (?:\([^)]{1,80}\) )?\w*Error: ", 1),
                (r"error during build:", 1), (r"Failed to compile\.$", 2)),
    ),
    Runner(
        "bun, deno, playwright, zig",
        failed=(r"[1-9]\d* fail$", r"FAILED \| \d+ passed", r"[1-9]\d* failed\.?$",
                r"\d+ passed; \d+ skipped; [1-9]\d* failed", r"[1-9]\d* (?:interrupted|did not run)$"),
        passed=(r"ok \| [1-9]\d* passed\b.*\| 0 failed",),
        whole=((r"[1-9]\d* passed \([\d.]+(?:ms|s|m|h)\)$", r"Running [1-9]\d* tests? using "),
               (r"0 fail$", r"[1-9]\d* pass$")),
        detail=((r"[1-9]\d* fail(?:ed)?\.?$", 1),),
    ),
    Runner(
        "gtest, nextest, xcodebuild, flutter, sbt, prove",
        failed=(
            r"\[  FAILED  \] ", r"\*\* (?:TEST|BUILD) FAILED \*\*", r"\d\d:\d\d \+\d+(?: ~\d+)? -[1-9]",
            r"Summary \[.*\b[1-9]\d* (?:failed|timed out)\b", r"Failed tests:$", r".*\bTests unsuccessful$",
            r"Result: (?:FAIL|NOTESTS)$", r"Tests: succeeded \d+, failed [1-9]",
            r"\((?:\S+ / )?(?:Compile|Test|\w+Test) / \w+\) ", r"(?:one|two|three|four|five|[1-9]\d*) errors? found$",
        ),
        passed=(
            r"\[  PASSED  \] [1-9]\d* tests?\.$", r"\*\* (?:TEST|BUILD) SUCCEEDED \*\*",
            r"\d\d:\d\d \+[1-9]\d*(?: ~\d+)?: All tests passed!", r"Result: PASS$",
            r"Summary \[.*\b[1-9]\d* tests? run: [1-9]\d* passed(?!.*(?:failed|timed out))",
        ),
        part=(r"Tests: succeeded [1-9]\d*, failed 0, canceled 0",),
        detail=((r"\[  FAILED  \] \S+", 0), (r"FAIL \[ +[\d.]+s\] ", 0), (r"- .*\*{3} FAILED \*{3}", 1),
                (r"# +Failed test\b", 3)),
    ),
    Runner(
        "leiningen, testthat, foundry",
        failed=(r"\[ FAIL [1-9]", r"\d+ failures, [1-9]\d* errors\.$", r"Suite result: FAILED",
                r"Encountered a total of [1-9]\d* failing"),
        passed=(r"\[ FAIL 0 \| WARN \d+ \| SKIP \d+ \| PASS [1-9]\d* \]",),
        part=(r"Suite result: ok\. [1-9]\d* passed; 0 failed",),
        whole=((r"0 failures, 0 errors\.$", r"Ran [1-9]\d* tests? containing "),),
        detail=((r"(?:FAIL|ERROR) in \(", 2), (r"\[FAIL\b", 0)),
    ),
    Runner(
        "tox, nox",
        failed=(r"\S+: FAIL code -?\d", r"\W*evaluation failed :\(", r"ROOT: HandledError\|",
                r"(?:nox > )?Session \S+.* failed\b", r"(?:nox > )?\* \S+: failed$", r"(?:nox > )?Sessions not found: ",
                r"ERROR: +\S+: (?:commands|could not|parallel child)"),
        last=(r"congratulations :\)", r"(?:nox > )?Session \S+.* was successful"),
        detail=((r"\S+: FAIL code -?\d", 0), (r"(?:nox > )?Session \S+.* failed\b", 0)),
    ),
    Runner(
        "terraform",
        failed=(r"\u2502 Error: \S",),
        passed=(r"(?:Apply|Destroy) complete! Resources: ",),
        last=(r"Success! The configuration is valid",),
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
            r"ERROR: failed to (?:solve|build)", r"failed to solve: ", r"dependency failed to start: ",
            r"The command '.*' returned a non-zero code: [1-9]", r"(?:docker: )?Error response from daemon",
            r"Cannot connect to the Docker daemon", r"(?:error )?Error: .*(?:did not complete|pull access denied)",
            r"\u2718 (?:Container|Image|Network|Volume|Service) \S+ +\S",
        ),
        last=(r"Successfully (?:built|tagged) \S+",),
        detail=((r"(?:ERROR: |dependency )?failed to (?:solve|build|start)", 0),
                (r"(?:docker: )?Error response from daemon", 0), (r"The command '.*' returned", 0)),
    ),
    Runner(
        "kubectl, ansible",
        failed=(r"Error from server\b", r"The connection to the server \S+ was refused", r"ERROR! ",
                r"\S+ +: ok=\d.*\b(?:unreachable|failed)=[1-9]", r"(?:\S+ \| )?(?:UNREACHABLE!|FAILED(?:!| \|)) ",
                r"Error: [1-9]\d* errors? occurred:", r"Phase: +Failed$"),
        detail=((r"(?:\S+ \| )?(?:UNREACHABLE!|FAILED(?:!| \|)) ", 2), (r"Error: [1-9]\d* errors? occurred:", 2),
                (r"Error from server\b", 0), (r"ERROR! ", 0), (r"\S+ +: ok=\d.*\b(?:unreachable|failed)=[1-9]", 0)),
    ),
    Runner(
        "bazel, buck2",
        failed=(r"Executed \d+ out of \d+ tests?: .*\b[1-9]\d* fails?\b",
                r"Tests finished: .*\b(?:Fail|Fatal|Build failure) [1-9]"),
        passed=(r"Executed \d+ out of [1-9]\d* tests?: [1-9]\d* tests? pass(?:es)?\.$",
                r"Tests finished: Pass [1-9]\d*\. Fail 0\. Fatal 0\.(?!.*Build failure [1-9])"),
        last=(r"(?:INFO: )?Build completed successfully, ",),
        detail=((r"//\S+ +(?:FAILED|TIMEOUT)\b", 0),),
    ),
    Runner(
        "git",
        failed=(
            # Ansible writes `fatal: [host]` for a task whose failure may be ignored; its recap says how the run ended.
            r"fatal: (?!\[)", _CONFLICT,
            r"Automatic merge failed", r"error: failed to push", r" ?! \[(?:remote )?rejected\]",
            r"error: (?:Your local changes|pathspec|patch failed|could not apply|cannot|src refspec|unable to)",
            r"error: The following ", r"You must edit all merge conflicts",
        ),
        printed=(r"fatal: ",),
        last=(r"Successfully rebased and updated ",),
        detail=((r"fatal: ", 0), (_CONFLICT, 0),
                (r"error: ", 0), (r"! \[(?:remote )?rejected\]", 0)),
    ),
    Runner(
        "checkers and test runners of further languages",
        failed=(
            r"svelte-check found [1-9]\d* errors?", r"TOTAL: [1-9]\d* FAILED", r"[1-9]\d* Error\(s\)$",
            r".*: Executed \d+ of \d+ \([1-9]\d* FAILED\)", r"NMAKE : fatal error ",
            r"(?:[\d:]+ +)?Done\. PASS=\d+ WARN=\d+ ERROR=[1-9]", r"Status: [1-9]\d* ERRORs?\b", r"TEST RUN FAILED",
            r"[1-9]\d*/\d+ test failures?$", r"\S+\(\d+, \d+\) Error: ", r"Unhandled exception[.:] ",
            r"error \S+: verification failed$",
            r"init terminating in do_boot", r"\S+ had compilation errors\.$",
            r"Execution of \S+ aborted due to", r"jq: error ",
            r"\S+: line \d+: .*(?:unbound variable|syntax error|unexpected (?:EOF|end))", r"\S+: \d+: Syntax error: ",
        ),
        printed=(r"Unhandled exception[.:] ",),
        passed=(r"svelte-check found 0 errors", r"TOTAL: [1-9]\d* SUCCESS$", r"TEST RUN PASSED",
                r"(?:[\d:]+ +)?Done\. PASS=[1-9]\d* WARN=\d+ ERROR=0\b"),
        below=((r"- [1-9]\d* errors?$", r"Result \(\d+ files?\)"),),
        detail=((r"(?:[\d:]+ +)?Failure in test ", 1),
                (r"error \d+ at \d+ depth lookup", 0), (r"Unhandled exception[.:] ", 0)),
    ),
    Runner(
        "deployments, migrations, monorepos",
        failed=(
            r"Waiter \w+ failed: ", r"\u274c +\S+ failed: ", r"Error: P\d{4}$", r"Failed: +[\w@./-]+#\S",
            r"ERROR: (?:Migration of|Script|Validate failed)", r"\S+ \.{3,} [\d.]+m?s FAIL$", r"lerna ERR! ",
            r"Failed with errors in ", r"\W*Deployment failed: ", r"==> Some builds didn't complete",
            # `aws lambda invoke` and `gh run watch` end with 0 all the same.
            r"Build \[[^\]]+\] failed: ", r"(?:\{.{0,80})?\"FunctionError\": ?\"\w",
            r"X .+ \(\d+\) completed with '(?!success)",
            r"ERROR +HTTPError: ", r"Failed to (?:start|stop|restart|reload|enable) \S+", r"task: Failed to run task",
        ),
        printed=(r"ERROR +HTTPError: ",),
        last=(r"Successfully applied [1-9]\d* migrations? to ", r"Got dependencies!$"),
        passed=(r"\u2713 .+ \(\d+\) completed with 'success'",),
        detail=((r"--> \S+: exit status", 0), (r"Message +: ERROR: ", 0), (r"Error: P\d{4}$", 3),
                (r"(?:\{.{0,80})?\"FunctionError\": ?\"\w", 0), (r"X .+ \(\d+\) completed with '(?!success)", 0),
                (r"SQLSTATE\[\w+\]: ", 0)),
    ),
    Runner(
        "package managers",
        failed=(
            r"E: (?:Unable|Package|The (?:repository|package)|Failed|Sub-process|Could not|Some|Version|dpkg)\b",
            r".*\bversion solving failed", r"ERROR: unable to select packages", r"\W*No solution found when resolving",
            r"(?:PackagesNotFound|LibMambaUnsatisfiable|ResolvePackageNotFound|Unsatisfiable|CondaHTTP)Error: ",
        ),
        last=(r"Successfully installed \S", r"Requirement already satisfied: "),
        detail=((r"E: \S", 0), (r"(?:PackagesNotFound|LibMambaUnsatisfiable|Unsatisfiable)Error: ", 2),
                (r"ERROR: unable to select packages", 1), (r"\W*No solution found when resolving", 1)),
    ),
    Runner(
        "databases, servers and documents",
        failed=(
            r"psql(?::\S+:\d+)?: (?:error|ERROR|FATAL): ", r"ERROR:  \S", r"(?:Parse|Runtime) error(?:: | near )",
            r"(?:Catalog|Binder|Parser|Conversion|Constraint) Error: ", r"Could not connect to Redis",
            r"Job for \S+ failed because", r"nginx: .* test failed$",
            r"tar: (?:Exiting with failure|Error is not recover)", r"rsync error: ", r"Latexmk: Errors,",
            r"!  ==> Fatal error",
            r"Aborted with \d+ warnings? in strict mode",
            r"Warning, treated as error:", r"build finished with problems, .*treated as errors",
        ),
        printed=(r"ERROR:  \S",),
        last=(r"nginx: .* test is successful$", r"[1-9]\d* chart\(s\) linted, 0 chart\(s\) failed"),
        detail=((r"(?:psql(?::\S+:\d+)?: )?(?:error|ERROR|FATAL): ", 0), (r"[A-Z]\w+ Error: ", 0),
                (r"nginx: \[emerg\] ", 0), (r"! \S", 1),
                (r"Warning, treated as error:", 1), (r"Job for \S+ failed", 0)),
    ),
    Runner(
        "reports in XML: JUnit, NUnit, TRX",
        failed=(
            r"<testsuites?\b[^>]*\b(?:failures|errors)=\"[1-9]", r"<test-run\b[^>]*\bfailed=\"[1-9]",
            r"<Counters\b[^>]*\b(?:failed|error)=\"[1-9]",
        ),
        passed=(
            r"<testsuites\b(?=[^>]*\bfailures=\"0\")(?=[^>]*\berrors=\"0\")[^>]*\btests=\"[1-9]",
            r"<test-run\b(?=[^>]*\bfailed=\"0\")[^>]*\bresult=\"Passed\"",
            r"<Counters\b(?=[^>]*\bfailed=\"0\")(?=[^>]*\berror=\"0\")[^>]*\bpassed=\"[1-9]",
        ),
        part=(r"<testsuite\b(?=[^>]*\bfailures=\"0\")(?=[^>]*\berrors=\"0\")[^>]*\btests=\"[1-9]",),
        detail=((r"<test-case\b[^>]*\bresult=\"Failed\"", 2), (r"(?:<testcase\b[^>]*>\s*)?<(?:failure|error)\b", 1),
                (r"<UnitTestResult\b[^>]*\boutcome=\"Failed\"", 3)),
    ),
    Runner(
        "pester",
        failed=(r"Tests Passed: \d+, Failed: [1-9]", r"Container failed: [1-9]"),
        passed=(r"Tests Passed: [1-9]\d*, Failed: 0\b",),
        detail=((r"\[-\] \S", 2),),
    ),
    Runner(
        "task runners",
        failed=(
            r"(?:ERROR|FAILED)(?::)? task .*failed", r"(?:Error|ERROR): (?:task|target|script|command) .*\bfailed",
            r"error: Recipe ", r"\W*(?:[Ss]ome|[1-9]\d*) (?:tests?|checks?|specs?|assertions?) failed",
            r"== \[.*\] FAIL$", r"\W*BUILD FAIL",
            r"\W*Command failed\b", r"\W*(?:BUILD|Build|TESTS?|Tests?) (?:FAILED|[Ff]ailed)\b",
            r"\W*(?:Process|Command|Script|Program) (?:exited|failed|terminated) with (?:exit )?\w+ -?[1-9]",
            r"Killed$", r"Aborted(?: \(core dumped\))?$", r"Terminated$", r"FAILED$", r"FAILED\s+\S+::",
        ),
        detail=((r"== \[.*\] FAIL$", 1),),
    ),
)  # fmt: skip
