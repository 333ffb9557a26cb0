"""Outputs of runners as they look in agents' results, each with how the run ended. Written for these tests.

Each is (runner, command, output, verdict). An empty command is a tool that runs things by its name.
"""

from __future__ import annotations

from typing import NamedTuple

from proxy.context.analysis.outcome import ToolOutcome, Verdict, read_outcome
from proxy.context.analysis.shell_commands import PLAIN_CALL, ShellCommand
from tests.conversations import make_message, result


class Run(NamedTuple):
    """One recorded-looking run. must: parts of lines that a shortened result may not lose."""

    runner: str
    command: str
    output: str
    verdict: Verdict
    must: tuple[str, ...] = ()


def read_text_outcome(text: str, command: ShellCommand = PLAIN_CALL) -> ToolOutcome:
    """The outcome of a call whose result has this text."""
    return read_outcome(make_message(result("1", text)), command)


def xml(code: int, output: str) -> str:
    return f"<returncode>{code}</returncode>\n<output>\n{output}\n</output>"


RED, GREEN, OFF = "\x1b[31m", "\x1b[32m", "\x1b[0m"
DOTS = "\n".join(f"tests/unit/test_part_{n}.py {'.' * 40} [{n:3}%]" for n in range(30))
PYTEST_FAILED = f"""============================= test session starts ==============================
platform linux -- Python 3.11.5, pytest-8.1.1, pluggy-1.4.0
collected 200 items

{DOTS}

=================================== FAILURES ===================================
___________________________ test_total_of_an_order ____________________________

    def test_total_of_an_order():
>       assert total([1, 2]) == 4
E       assert 3 == 4
E        +  where 3 = total([1, 2])

tests/test_orders.py:14: AssertionError
=========================== short test summary info ============================
FAILED tests/test_orders.py::test_total_of_an_order - assert 3 == 4
FAILED tests/test_orders.py::test_refund - KeyError: 'id'
======================== 2 failed, 198 passed in 4.31s ========================="""
PYTEST_PASSED = f"""============================= test session starts ==============================
collected 198 items

{DOTS}

============================= 198 passed in 4.12s =============================="""
UNITTEST_FAILED = """..F.
======================================================================
FAIL: test_area (tests.test_shapes.ShapeTest.test_area)
----------------------------------------------------------------------
Traceback (most recent call last):
  File "/app/tests/test_shapes.py", line 9, in test_area
    self.assertEqual(area(2, 3), 7)
AssertionError: 6 != 7

----------------------------------------------------------------------
Ran 4 tests in 0.002s

FAILED (failures=1)"""
UNITTEST_PASSED = """....
----------------------------------------------------------------------
Ran 4 tests in 0.002s

OK"""
GO_FAILED = """=== RUN   TestResume
    resume_test.go:41: resumed at step 3, want step 4
--- FAIL: TestResume (0.01s)
=== RUN   TestStart
--- PASS: TestStart (0.00s)
FAIL
FAIL\texample.com/app/session\t0.214s
ok  \texample.com/app/store\t0.101s
FAIL"""
GO_PASSED = """ok  \texample.com/app/session\t0.214s
?   \texample.com/app/cmd\t[no test files]
ok  \texample.com/app/store\t(cached)"""
GO_BUILD = """# example.com/app/session
session/resume.go:18:2: undefined: nextStep
session/resume.go:25:9: cannot use x (variable of type int) as string value in return statement"""
CARGO_BUILD = """   Compiling app v0.1.0 (/srv/app)
error[E0308]: mismatched types
 --> src/lib.rs:12:5
  |
12 |     "three"
  |     ^^^^^^^ expected `u32`, found `&str`

error: could not compile `app` (lib) due to 1 previous error"""
CARGO_FAILED = """running 2 tests
test tests::adds ... ok
test tests::subtracts ... FAILED

failures:

---- tests::subtracts stdout ----
thread 'tests::subtracts' panicked at src/lib.rs:22:9:
assertion `left == right` failed
  left: 1
 right: 2

test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s

error: test failed, to rerun pass `--lib`"""
CARGO_PASSED = """    Finished `test` profile [unoptimized + debuginfo] target(s) in 0.52s
     Running unittests src/lib.rs (target/debug/deps/app-1a2b)
running 2 tests
test tests::adds ... ok
test tests::subtracts ... ok

test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s"""
SPECS = "\n".join(f"ok spec number {n} works as it should" for n in range(198))
NPM_FAILED = f"""{SPECS}
AssertionError: expected 3 to equal 4
npm ERR! Test failed.  See above for more details."""
NPM_ERROR = """npm error code ERESOLVE
npm error ERESOLVE unable to resolve dependency tree
npm error Found: react@18.2.0
npm error A complete log of this run can be found in: /root/.npm/_logs/debug-0.log"""
JEST_FAILED = f"""{RED}FAIL{OFF} src/cart.test.js
  {RED}\u25cf cart \u203a adds an item{OFF}

    expect(received).toBe(expected) // Object.is equality

    Expected: 2
    Received: 1

      12 |   expect(cart.size()).toBe(2);

Test Suites: 1 failed, 4 passed, 5 total
Tests:       1 failed, 31 passed, 32 total
Snapshots:   0 total
Time:        2.31 s
Ran all test suites."""
JEST_PASSED = f"""{GREEN}PASS{OFF} src/cart.test.js
{GREEN}PASS{OFF} src/user.test.js

Test Suites: 2 passed, 2 total
Tests:       32 passed, 32 total
Snapshots:   0 total
Time:        2.31 s
Ran all test suites."""
MOCHA_FAILED = """  cart
    \u2714 starts empty
    1) adds an item

  1 passing (12ms)
  1 failing

  1) cart
       adds an item:
      AssertionError: expected 1 to equal 2
      at Context.<anonymous> (test/cart.js:9:20)"""
MOCHA_PASSED = """  cart
    \u2714 starts empty
    \u2714 adds an item

  2 passing (12ms)"""
VITEST_FAILED = """ \u276f src/sum.test.ts (2 tests | 1 failed) 4ms
   \u00d7 sum > adds 3ms
     \u2192 expected 3 to be 4 // Object.is equality

 FAIL  src/sum.test.ts > sum > adds
AssertionError: expected 3 to be 4 // Object.is equality

 Test Files  1 failed (1)
      Tests  1 failed | 1 passed (2)
   Duration  310ms"""
VITEST_PASSED = """ \u2713 src/sum.test.ts (2 tests) 2ms

 Test Files  1 passed (1)
      Tests  2 passed (2)
   Duration  310ms"""
TSC_FAILED = """src/api.ts(12,7): error TS2322: Type 'string' is not assignable to type 'number'.
src/api.ts(40,3): error TS2554: Expected 2 arguments, but got 1."""
GCC_FAILED = """gcc -O2 -c main.c -o main.o
main.c: In function 'main':
main.c:7:5: error: expected ';' before 'return'
    7 |     return 0
main.c:4:9: warning: unused variable 'x' [-Wunused-variable]"""
LINK_FAILED = """/usr/bin/ld: main.o: in function `main':
main.c:(.text+0x9): undefined reference to `start_engine'
collect2: error: ld returned 1 exit status"""
CLANG_FAILED = """a.cpp:3:1: error: unknown type name 'strng'
strng name;
^
1 error generated."""
MAKE_FAILED = """cc -c parse.c
cc -c eval.c
Segmentation fault
make: *** [Makefile:12: eval.o] Segmentation fault (core dumped)"""
CMAKE_FAILED = """-- The C compiler identification is GNU 13.2.0
CMake Error at CMakeLists.txt:14 (find_package):
  By not providing "FindFoo.cmake" in CMAKE_MODULE_PATH this project has

-- Configuring incomplete, errors occurred!"""
CMAKE_PASSED = """-- The C compiler identification is GNU 13.2.0
-- Configuring done (0.4s)
-- Generating done (0.0s)
-- Build files have been written to: /srv/app/build"""
MAVEN_FAILED = """[INFO] Running com.example.OrderTest
[ERROR] Tests run: 3, Failures: 1, Errors: 0, Skipped: 0, Time elapsed: 0.05 s <<< FAILURE!
[ERROR] OrderTest.total:21 expected:<4> but was:<3>
[INFO] BUILD FAILURE
[INFO] Total time:  3.102 s"""
MAVEN_PASSED = """[INFO] Tests run: 12, Failures: 0, Errors: 0, Skipped: 0
[INFO] ------------------------------------------------------------------------
[INFO] BUILD SUCCESS
[INFO] ------------------------------------------------------------------------
[INFO] Total time:  3.102 s"""
GRADLE_FAILED = """> Task :compileJava
> Task :test FAILED

OrderTest > total() FAILED
    org.opentest4j.AssertionFailedError at OrderTest.java:21

FAILURE: Build failed with an exception.

* What went wrong:
Execution failed for task ':test'.
> There were failing tests.

BUILD FAILED in 4s
3 actionable tasks: 2 executed, 1 up-to-date"""
GRADLE_PASSED = """> Task :compileJava
> Task :test

BUILD SUCCESSFUL in 4s
3 actionable tasks: 3 executed"""
RUFF_FAILED = """app/main.py:3:8: F401 [*] `os` imported but unused
app/main.py:9:89: E501 Line too long (101 > 88)
Found 2 errors.
[*] 1 fixable with the `--fix` option."""
MYPY_FAILED = """app/main.py:12: error: Incompatible return value type (got "str", expected "int")  [return-value]
Found 1 error in 1 file (checked 14 source files)"""
ESLINT_FAILED = """
/srv/app/src/cart.js
   3:7   error    'total' is assigned a value but never used  no-unused-vars
  12:15  warning  Unexpected console statement               no-console

\u2716 2 problems (1 error, 1 warning)
"""
DOCKER_FAILED = """#7 [3/4] RUN pip install -r requirements.txt
#7 1.234 ERROR: Could not find a version that satisfies the requirement nosuch==1.0
#7 ERROR: process "/bin/sh -c pip install -r requirements.txt" did not complete successfully: exit code: 1
------
ERROR: failed to solve: process "/bin/sh -c pip install" did not complete successfully: exit code: 1"""
DOCKER_PASSED = """Step 4/4 : CMD ["python", "app.py"]
 ---> Running in 1a2b3c
Successfully built 9f8e7d6c5b4a"""
GIT_CONFLICT = """Auto-merging app/main.py
CONFLICT (content): Merge conflict in app/main.py
Automatic merge failed; fix conflicts and then commit the result."""
GIT_REJECTED = """To github.com:example/app.git
 ! [rejected]        main -> main (fetch first)
error: failed to push some refs to 'github.com:example/app.git'"""
TRACEBACK = """starting
Traceback (most recent call last):
  File "/app/run.py", line 3, in <module>
    main()
KeyError: 'user_id'"""
JSON_FAILED = (
    '{"exit_code": 1, "stdout": "collected 3 items\\n\\ntests/test_a.py ..F\\n\\n'
    'E       assert 1 == 2\\n=== 1 failed, 2 passed in 0.10s ===\\n", "stderr": ""}'
)
JSON_PASSED = '{"exit_code": 0, "stdout": "collected 3 items\\n\\n=== 3 passed in 0.10s ===\\n", "stderr": ""}'
JSON_PRETTY = '{\n  "output": "2 tests ran",\n  "metadata": {\n    "exit_code": 3,\n    "duration_seconds": 0.2\n  }\n}'

COVERAGE = "ERROR: Coverage failure: total of 71 is less than fail-under=90"
REQUIRED = "FAIL Required test coverage of 90% not reached. Total coverage: 71.00%"
DATABASE = "psycopg2.OperationalError: could not connect to server: Connection refused"
CONSOLE = """  console.error
    Error: Not implemented: navigation (except hash changes)
        at module.exports (node_modules/jsdom/lib/not-implemented.js:9:17)
"""
NODE = """node:assert:126
  throw new AssertionError(obj);
  ^

AssertionError [ERR_ASSERTION]: 1 == 2
    at Object.<anonymous> (/srv/app/check.js:2:8)

Node.js v20.11.0"""
PLAYWRIGHT = """Running 4 tests using 1 worker

  1 failed
    [chromium] \u203a cart.spec.ts:3:1 \u203a adds an item
  3 passed (3s)"""
TERRAFORM = """
Error: Unsupported argument

  on main.tf line 3, in resource "null_resource" "a":
   3:   colour = "red"

An argument named "colour" is not expected here."""
TERRAFORM_BOX = """\u2577
\u2502 Error: Unsupported argument
\u2502
\u2502   on main.tf line 3, in resource "null_resource" "a":
\u2575"""

RUNS = (
    Run(
        "pytest",
        "pytest -q",
        PYTEST_FAILED,
        "failed",
        ("2 failed, 198 passed", "E       assert 3 == 4", "KeyError: 'id'"),
    ),
    Run("pytest", "pytest -q", xml(1, PYTEST_FAILED), "failed", ("<returncode>1", "2 failed, 198 passed")),
    Run("pytest", "pytest -q 2>&1 | tail -40", xml(0, PYTEST_FAILED), "failed", ("2 failed, 198 passed",)),
    Run("pytest", "pytest -q || true", xml(0, PYTEST_FAILED), "failed", ("2 failed, 198 passed",)),
    Run("pytest", "", "2 failed, 198 passed", "failed", ("2 failed, 198 passed",)),
    Run("pytest", "pytest -q", PYTEST_PASSED, "succeeded", ("198 passed in",)),
    Run("pytest", "pytest -q", xml(0, PYTEST_PASSED), "succeeded", ("<returncode>0", "198 passed in")),
    Run("pytest", "pytest -q | tail -5", xml(0, "198 passed, 2 warnings in 4.12s"), "succeeded", ("198 passed",)),
    Run("pytest", "pytest -q | tail -5", xml(0, "tests/test_a.py ......"), "unknown"),
    Run("pytest", "pytest -q | head -5", xml(0, DOTS), "unknown"),
    Run("pytest", "pytest -q", xml(5, "no tests ran in 0.01s"), "failed", ("no tests ran",)),
    Run(
        "pytest",
        "pytest -q",
        "collected 0 items / 1 error\nERROR tests/test_a.py - ImportError: no\n1 error in 0.1s",
        "failed",
    ),
    Run(
        "pytest",
        "pytest -q",
        f"{RED}FAILED{OFF} tests/test_a.py::test_b - assert 1 == 2\n{RED}1 failed{OFF}, 3 passed in 0.1s",
        "failed",
    ),
    Run(
        "pytest", "pytest -q", f"{GREEN}=== {OFF}{GREEN}3 passed{OFF}{GREEN} in 0.10s{OFF}{GREEN} ==={OFF}", "succeeded"
    ),
    Run("unittest", "python -m unittest", UNITTEST_FAILED, "failed", ("FAILED (failures=1)", "AssertionError: 6 != 7")),
    Run("unittest", "python -m unittest", UNITTEST_PASSED, "succeeded", ("OK",)),
    Run("unittest", "python manage.py check", "OK", "unknown"),
    Run("go", "go test ./...", GO_FAILED, "failed", ("--- FAIL: TestResume", "resumed at step 3, want step 4")),
    Run("go", "go test ./... 2>&1 | tail -20", GO_FAILED, "failed"),
    Run("go", "go test ./...", GO_PASSED, "succeeded", ("example.com/app/store",)),
    Run("go", "go test ./... | grep ok", GO_PASSED, "unknown"),
    Run("go", "go test ./... | head -3", GO_PASSED, "unknown"),
    Run("go", "go build ./...", GO_BUILD, "failed", ("undefined: nextStep",)),
    Run("go", "go build ./...", "", "unknown"),
    Run(
        "go",
        "go run .",
        "panic: runtime error: index out of range [3] with length 2\n\ngoroutine 1 [running]:\nexit status 2",
        "failed",
    ),
    Run(
        "cargo",
        "cargo build",
        CARGO_BUILD,
        "failed",
        ("error[E0308]: mismatched types", "src/lib.rs:12:5", "could not compile"),
    ),
    Run(
        "cargo",
        "cargo test",
        CARGO_FAILED,
        "failed",
        ("panicked at src/lib.rs:22:9", "assertion `left == right` failed", "test result: FAILED"),
    ),
    Run("cargo", "cargo test", CARGO_PASSED, "succeeded", ("test result: ok",)),
    Run(
        "cargo",
        "cargo build",
        "   Compiling app v0.1.0\n    Finished `dev` profile [unoptimized] target(s) in 1.20s",
        "succeeded",
    ),
    Run(
        "cargo",
        "cargo run",
        "    Finished `dev` profile [unoptimized] target(s) in 1.20s\n     Running `target/debug/app`\nhello",
        "unknown",
    ),
    Run("npm", "npm test", NPM_FAILED, "failed", ("npm ERR! Test failed", "expected 3 to equal 4")),
    Run("npm", "npm install", NPM_ERROR, "failed", ("unable to resolve dependency tree",)),
    Run(
        "npm",
        "npm install",
        "added 120 packages, and audited 121 packages in 3s\n\nfound 0 vulnerabilities",
        "succeeded",
    ),
    Run("npm", "npm run build", "> app@1.0.0 build\n> webpack\n\nbuilt it all", "unknown"),
    Run("jest", "npx jest", JEST_FAILED, "failed", ("Tests:       1 failed", "Expected: 2", "adds an item")),
    Run("jest", "npx jest", JEST_PASSED, "succeeded", ("Tests:       32 passed",)),
    Run("mocha", "npx mocha", MOCHA_FAILED, "failed", ("1 failing", "expected 1 to equal 2")),
    Run("mocha", "npx mocha", MOCHA_PASSED, "succeeded", ("2 passing",)),
    Run("vitest", "npx vitest run", VITEST_FAILED, "failed", ("1 failed | 1 passed", "expected 3 to be 4")),
    Run("vitest", "npx vitest run", VITEST_PASSED, "succeeded", ("2 passed (2)",)),
    Run(
        "tap",
        "node --test",
        "TAP version 13\nok 1 - adds\nnot ok 2 - subtracts\n# pass 1\n# fail 1",
        "failed",
        ("not ok 2",),
    ),
    Run("tsc", "npx tsc --noEmit", TSC_FAILED, "failed", ("error TS2322",)),
    Run("tsc", "npx tsc --noEmit", "", "unknown"),
    Run("tsc", "npx tsc --noEmit", "Exit code 2\n" + TSC_FAILED, "failed", ("Exit code 2", "TS2554")),
    Run("gcc", "make", GCC_FAILED, "failed", ("expected ';' before 'return'",)),
    Run("gcc", "cc main.c -o main", LINK_FAILED, "failed", ("undefined reference to `start_engine'",)),
    Run("clang", "clang++ a.cpp", CLANG_FAILED, "failed", ("unknown type name 'strng'", "1 error generated")),
    Run("make", "make build", MAKE_FAILED, "failed", ("Segmentation fault (core dumped)",)),
    Run("make", "make", "make: Nothing to be done for 'all'.", "succeeded"),
    Run("make", "make", "cc -c parse.c\ncc -o app parse.o", "unknown"),
    Run("make", "make", xml(0, "cc -c parse.c\ncc -o app parse.o"), "succeeded"),
    Run("cmake", "cmake -B build", CMAKE_FAILED, "failed", ("CMake Error at CMakeLists.txt:14", "FindFoo.cmake")),
    Run("cmake", "cmake -B build", CMAKE_PASSED, "succeeded"),
    Run("maven", "mvn -q test", MAVEN_FAILED, "failed", ("BUILD FAILURE", "expected:<4> but was:<3>")),
    Run("maven", "mvn test", MAVEN_PASSED, "succeeded", ("BUILD SUCCESS",)),
    Run(
        "gradle",
        "./gradlew test",
        GRADLE_FAILED,
        "failed",
        ("BUILD FAILED in 4s", "Execution failed for task", "AssertionFailedError"),
    ),
    Run("gradle", "./gradlew test", GRADLE_PASSED, "succeeded", ("BUILD SUCCESSFUL",)),
    Run("ruff", "ruff check .", RUFF_FAILED, "failed", ("F401", "Found 2 errors")),
    Run("ruff", "ruff check .", "All checks passed!", "succeeded"),
    Run("mypy", "mypy app", MYPY_FAILED, "failed", ("Incompatible return value type", "Found 1 error")),
    Run("mypy", "mypy app", "Success: no issues found in 14 source files", "succeeded"),
    Run("eslint", "npx eslint src", ESLINT_FAILED, "failed", ("'total' is assigned", "2 problems")),
    Run("eslint", "npx eslint src", "", "unknown"),
    Run("docker", "docker build .", DOCKER_FAILED, "failed", ("failed to solve", "nosuch==1.0")),
    Run("docker", "docker build .", DOCKER_PASSED, "succeeded"),
    Run("docker", "docker ps", "Error response from daemon: permission denied", "failed"),
    Run(
        "docker",
        "docker compose up",
        "web-1  | npm ERR! code 1\nweb-1  | npm ERR! missing script: start",
        "failed",
        ("missing script",),
    ),
    Run("git", "git merge topic", GIT_CONFLICT, "failed", ("CONFLICT (content): Merge conflict in app/main.py",)),
    Run("git", "git push", GIT_REJECTED, "failed", ("failed to push", "[rejected]")),
    Run("git", "git checkout nowhere", "error: pathspec 'nowhere' did not match any file(s) known to git", "failed"),
    Run("git", "git commit -m x", "[main 1a2b3c] x\n 1 file changed, 2 insertions(+)", "unknown"),
    Run("git", "git log -3", "1a2b3c FAILED tests mended\n4d5e6f error: could not compile", "unknown"),
    Run("python", "python run.py", TRACEBACK, "failed", ("KeyError: 'user_id'",)),
    Run("python", "python run.py", xml(0, TRACEBACK), "unknown", ("KeyError: 'user_id'",)),
    Run("python", "python run.py | tail -3", xml(0, TRACEBACK), "failed", ("KeyError: 'user_id'",)),
    Run("shell", "frobnicate", "bash: frobnicate: command not found", "failed"),
    Run("shell", "sleep 500 && make", "Command timed out after 2m 0s", "failed"),
    Run("shell", "make", xml(124, "cc -c x.c"), "failed"),
    Run("shell", "rm -rf build", "", "unknown"),
    Run("shell", "rm -rf build", xml(0, ""), "succeeded"),
    Run("shell", "./check.sh", "all tests passed", "unknown"),
    Run("shell", "./check.sh", "success! everything works, done, ok", "unknown"),
    Run("shell", "make a; make b", xml(0, "cc -c b.c"), "unknown"),
    Run("shell", "make a && make b", xml(0, "cc -c b.c"), "succeeded"),
    Run("shell", "set -eo pipefail; make | tee log; echo made", xml(0, "made"), "succeeded"),
    Run("shell", "make; echo exit: $?", "cc -c b.c\nexit: 2", "failed", ("exit: 2",)),
    Run("shell", "python server.py &", xml(0, ""), "unknown"),
    Run("shell", "for f in a b; do python $f.py; done", xml(0, "x"), "unknown"),
    Run("shell", "cat build.log", PYTEST_FAILED, "unknown"),
    Run("shell", "cat build.log", xml(0, PYTEST_PASSED), "succeeded"),
    Run("shell", "grep -rn nothing src", xml(1, ""), "unknown"),
    Run("shell", "grep -rn x nowhere", xml(2, "grep: nowhere: No such file or directory"), "failed"),
    Run("shell", "ls nowhere", "ls: cannot access 'nowhere': No such file or directory", "failed"),
    Run("shell", "make test | grep nothing", xml(1, ""), "unknown"),
    Run("json", "pytest -q", JSON_FAILED, "failed", ("1 failed, 2 passed", "E       assert 1 == 2")),
    Run("json", "pytest -q", JSON_PASSED, "succeeded", ("3 passed",)),
    Run("json", "./run", JSON_PRETTY, "failed", ('"exit_code": 3',)),
    Run("", "", "Process exited with code 2\nOutput:\nboom", "failed", ("exited with code 2",)),
    Run("", "", "Wall time: 0.2 seconds\nProcess exited with code 0\nOutput:\nhello", "succeeded"),
    Run("pytest", "pytest -q", "900 passed, 3 warnings, 2 errors in 3.21s", "failed", ("2 errors",)),
    Run("pytest", "pytest -q", "1 passed, 1 error in 0.19s", "failed"),
    Run("pytest", "pytest -q | tail -1", "1 passed, 1 error in 0.19s", "failed"),
    Run("pytest", "pytest -q", "=== 4 passed, 1 skipped, 1 failed in 2.10s ===", "failed"),
    Run("pytest", "pytest -q", "4 passed, 1 xfailed in 2.10s", "succeeded"),
    Run("pytest", "pytest --cov", f"{COVERAGE}\n=== 30 passed in 1.02s ===", "failed", ("fail-under=90",)),
    Run("pytest", "pytest --cov", f"{REQUIRED}\n30 passed in 1.02s", "failed", ("Required test coverage",)),
    Run("pytest", "pytest -s", "ValueError: as the test wants\n.\n1 passed in 0.02s", "succeeded"),
    Run("pytest", "pytest -q", "1 passed in 0.02s\nOSError: the report was not written", "failed"),
    Run("pytest", "pytest -q", "1 passed in 0.02s\nOSError: the report was not written\nbye", "unknown"),
    Run("script", "./ci.sh", f"212 passed in 9.11s\n{DATABASE}\nnext step\nbye", "unknown", ("OperationalError",)),
    Run("script", "./ci.sh", f"{TRACEBACK}\n212 passed in 9.11s", "unknown"),
    Run("script", "./ci.sh", "collected 212 items\n212 passed in 9.11s", "succeeded"),
    Run("script", "./ci.sh", "main.c:4:9: warning: unused variable 'x'\n212 passed in 9.11s", "succeeded"),
    Run("script", "npm test", f"{CONSOLE}\n{JEST_PASSED}", "succeeded"),
    Run("script", "npm test", f"{CONSOLE}\nTypeError: x is not a function\n{JEST_PASSED}", "unknown"),
    Run("script", "make test", f"30 passed in 1.02s\n{NODE}", "failed", ("ERR_ASSERTION",)),
    Run("chain", "flake8 app; python tools/gen.py; pytest -q tests/g", f"{TRACEBACK}\n412 passed in 8.03s", "unknown"),
    Run(
        "chain", "mypy app; ruff check app", "mypy: can't read file 'app': No such file\nAll checks passed!", "unknown"
    ),
    Run("chain", "go vet ./...; go test ./a", "a/x.go:41:2: unreachable code\nok  \tex.com/a\t0.1s", "unknown"),
    Run("chain", "pytest a | tail -1; pytest b | tail -1", "usage of a\n3 passed in 0.10s", "unknown"),
    Run("chain", "pytest a; pytest b", "3 passed in 0.10s", "unknown"),
    Run("chain", "make lib && pytest b", "cc -c a.c\n3 passed in 0.10s", "succeeded"),
    Run("loop", "for d in a b; do pytest -q $d; done", "3 passed in 0.10s", "unknown"),
    Run("loop", "ls | xargs -n1 pytest -q", "3 passed in 0.10s", "unknown"),
    Run("loop", "find . -name 't_*' -exec pytest -q {} +", "3 passed in 0.10s", "unknown"),
    Run("go", "go vet ./...", "# example.com/a\nvet: exit status 1\ndone", "failed"),
    Run(
        "go",
        "go test -v ./...",
        "    a_test.go:41: a note\n--- PASS: TestA (0.0s)\nPASS\nok  \tex.com/a\t0.1s",
        "succeeded",
    ),
    Run(
        "patch",
        "patch -p1 < a.diff",
        "patching file a.py\n1 out of 1 hunk FAILED -- saving rejects to a.py.rej",
        "failed",
    ),
    Run("patch", "patch -p1 < a.diff", "Hunk #1 FAILED at 12.\npatching file b.py", "failed"),
    Run(
        "bun",
        "bun test",
        " 3 pass\n 1 fail\n 4 expect() calls\nRan 4 tests across 1 files. [12.00ms]",
        "failed",
        ("1 fail",),
    ),
    Run("bun", "bun test", " 3 pass\n 0 fail\nRan 3 tests across 1 files. [12.00ms]", "succeeded"),
    Run("deno", "deno test", "FAILED | 3 passed | 1 failed (12ms)\n\nsee above", "failed", ("1 failed",)),
    Run("deno", "deno test", "ok | 3 passed | 0 failed (12ms)", "succeeded"),
    Run(
        "tox",
        "tox",
        "  py311: OK (1.20=setup[0.50]+cmd[0.70] seconds)\n  py312: FAIL code 1 (1.10 seconds)\nbye",
        "failed",
    ),
    Run("tox", "tox", "  py312: commands\n  evaluation failed :( (2.31 seconds)", "failed"),
    Run("nox", "nox", "nox > Running session tests\nnox > Session tests failed.\nbye", "failed", ("Session tests",)),
    Run("nox", "nox", "nox > Session tests(python='3.12') failed.", "failed"),
    Run("playwright", "npx playwright test", PLAYWRIGHT, "failed", ("1 failed",)),
    Run("zig", "zig test a.zig", "2 passed; 0 skipped; 1 failed.\nsee the log", "failed"),
    Run("zig", "zig test a.zig", "1 failed.\nsee the log", "failed"),
    Run("terraform", "terraform plan", TERRAFORM, "failed", ("Error: Unsupported argument", "main.tf line 3")),
    Run("terraform", "terraform plan", TERRAFORM_BOX, "failed", ("Error: Unsupported argument",)),
    Run("terraform", "terraform plan", TERRAFORM.replace("Error:", "Warning:"), "unknown"),
    Run("ruff", "ruff check --fix .", "Found 3 errors (3 fixed, 0 remaining).", "succeeded"),
    Run("ruff", "ruff check --fix .", "Found 3 errors (2 fixed, 1 remaining).", "failed"),
    Run("chain", "cd a && make lib && pytest -q 2>&1 | tail -5", "cc -c a.c\n3 passed in 0.10s", "succeeded"),
    Run("chain", "make lib | tail -1 && pytest -q | tail -5", "cc -c a.c\n3 passed in 0.10s", "unknown"),
    Run("chain", "make lib\ncat a && pytest -q | tail -5", "cc -c a.c\n3 passed in 0.10s", "unknown"),
    Run("chain", "cd a && make lib\npytest -q | tail -5", "cc -c a.c\n3 passed in 0.10s", "unknown"),
    Run("chain", "make lib && make b; pytest -q | tail -5", "cc -c a.c\n3 passed in 0.10s", "unknown"),
    Run("cargo", "cargo test nothing", "running 0 tests\n\ntest result: ok. 0 passed; 0 failed; 0 ignored", "unknown"),
    Run("go", "go test -v -run X .", "PASS\nok  \texample.com/app\t0.01s [no tests to run]", "unknown"),
    Run("unittest", "python manage.py test", "Ran 0 tests in 0.000s\n\nOK", "unknown"),
    Run(
        "maven",
        "mvn test",
        "[ERROR] Tests run: 3, Failures: 1, Errors: 0\n[INFO] BUILD SUCCESS",
        "failed",
        ("Tests run",),
    ),
    Run("maven", "mvn test", "[WARNING] Tests run: 3, Failures: 0, Errors: 2\n[INFO] BUILD SUCCESS", "failed"),
    Run("maven", "mvn test", "[INFO] Tests run: 3, Failures: 0, Errors: 0\n[INFO] BUILD SUCCESS", "succeeded"),
    Run("eslint", "npx eslint .", "\u2716 3 problems (0 errors, 3 warnings)", "unknown"),
    Run("kubectl", "kubectl apply -f k8s/", "service/a configured\nError from server (Forbidden): no\ndone", "failed"),
    Run("docker", "docker compose up -d", " \u2714 Container db  Started\n \u2718 Container web  Error\nbye", "failed"),
    Run(
        "ansible", "ansible-playbook a.yml", "PLAY RECAP ***\nh1 : ok=3 changed=1 unreachable=1 failed=0\nbye", "failed"
    ),
    Run("ansible", "ansible-playbook a.yml", "PLAY RECAP ***\nh1 : ok=3 changed=1 unreachable=0 failed=0", "unknown"),
    Run("bazel", "bazel test //...", "Executed 2 out of 2 tests: 1 test passes and 1 fails locally.\nbye", "failed"),
    Run("bazel", "bazel test //...", "Executed 2 out of 2 tests: 2 tests pass.", "succeeded"),
    Run(
        "terraform",
        "terraform apply -auto-approve",
        "Apply complete! Resources: 1 added, 0 changed, 0 destroyed.",
        "succeeded",
    ),
    Run("terraform", "terraform apply", "Plan: 1 to add, 0 to change, 0 to destroy.\n\nApply cancelled.", "unknown"),
    Run("test", "[ -f a ] && echo there", "exit code: 1", "unknown"),
    Run("test", "[ -f a ] && cat b", "cat: b: No such file or directory\nexit code: 1", "failed"),
)
