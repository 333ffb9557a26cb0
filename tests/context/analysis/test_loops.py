"""Row B5: every kind of loop is seen, in the whole history, and what has good reasons is not taken for one."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from proxy.context.analysis.lexicon import LoopSettings
from proxy.context.analysis.loops import LOOP_KINDS, Loop, find_loops
from tests.context.loops import PLANTED, find_loops_by_request
from tests.context.research import make_iterations, make_step, make_tool_call
from tests.conversations import Json, assistant, build_view, make_messages, result, system, user

START = [system(), user("a")]


def loops_at_end(values: Sequence[Json], settings: LoopSettings | None = None) -> dict[str, Loop]:
    """The loops at the end of this history."""
    return {loop.kind: loop for loop in find_loops(build_view([*START, *values]), settings or LoopSettings())}


def repeat_three_times(*values: Json) -> list[Json]:
    return [*values, *values, *values]


@pytest.mark.parametrize("kind", LOOP_KINDS)
@pytest.mark.parametrize("seed", range(20))
def test_b5_a_planted_loop_is_found(kind: str, seed: int) -> None:
    chance = random.Random(f"{kind} {seed}")
    healthy = make_iterations(chance.randint(0, 12), before=chance.randint(0, 2), tools=True)[2:]
    assert kind in loops_at_end([*healthy, *PLANTED[kind](chance)])


@pytest.mark.parametrize("kind", LOOP_KINDS)
@pytest.mark.parametrize("seed", range(20))
def test_b5_a_loop_is_not_seen_before_it_is_one_nor_once_it_is_over(kind: str, seed: int) -> None:
    chance = random.Random(f"{kind} {seed}")
    planted = PLANTED[kind](chance)
    last = max(n for n, m in enumerate(planted) if m["role"] == "assistant")
    assert kind not in loops_at_end(planted[:last])
    assert kind not in loops_at_end([*planted, *make_step("search", "something new", "Aha.", "z", q="other")])


def test_b5_scenario_2_of_the_source() -> None:
    thoughts = ["I need to plan", "Let me plan my approach", "Planning to search"]
    found = loops_at_end([assistant(t) for t in thoughts])
    assert found["theme_loop"] == Loop("theme_loop", 3, 3, "planning")
    assert "theme_loop" not in loops_at_end([assistant(t) for t in thoughts[:2]])


@pytest.mark.parametrize(
    ("thought", "is_of"),
    [
        ("I PLAN it", "planning"),
        ("We search, then plan.", "planning"),
        ("an explanation of airplanes", "general"),
        ("Let me look for it and read it.", "search_intent"),
        ("Overall, I read it.", "synthesis"),
        ("the next pages", "read_intent"),
        ("already spread", "general"),
        ("Done.", "general"),
        ("I need  to go", "planning"),
    ],
)
def test_b5_the_first_theme_in_order_of_which_a_word_begins_a_word(thought: str, is_of: str) -> None:
    assert (
        loops_at_end(repeat_three_times(assistant(thought)), LoopSettings(looping=(is_of,)))["theme_loop"].subject
        == is_of
    )


def test_b5_which_themes_can_loop_is_a_setting() -> None:
    values = [assistant(f"Hm {n}") for n in range(3)]
    assert "theme_loop" not in loops_at_end(values)
    assert loops_at_end(values, LoopSettings(looping=("general",)))["theme_loop"].subject == "general"
    assert "theme_loop" not in loops_at_end([assistant("I plan")] * 3, LoopSettings(looping=()))
    assert "theme_loop" in loops_at_end([assistant("I plan"), assistant("A plan")], LoopSettings(theme_window=2))


def test_b5_a_theme_continues_over_calls_unless_new_results_end_it() -> None:
    values = [m for n in range(3) for m in make_step("search", f"r{n}", f"I need to look {n}", f"c{n}", q=n)]
    assert "theme_loop" in loops_at_end(values)
    assert "theme_loop" not in loops_at_end(values, LoopSettings(results_end_themes=True))


def test_b5_repeated_planning_counts_across_user_messages_and_a_call_resets_it() -> None:
    a, b, c = (assistant(t) for t in ("One.", "Two.", "Three."))
    assert "repeated_planning" in loops_at_end([a, user("so?"), a, user("so?"), a])
    assert "repeated_planning" not in loops_at_end([a, user("so?"), b, user("so?"), c])
    assert "repeated_planning" in loops_at_end([a, b, c, user("so?")])
    assert "repeated_planning" not in loops_at_end([a, b, *make_step("x", "y"), c])
    assert "repeated_planning" not in loops_at_end([a, b])


def test_b5_no_progress_is_five_iterations_without_a_new_result() -> None:
    same = [m for n in range(5) for m in make_step("search", "nothing", f"Try {n}", f"c{n}", q=n)]
    first = make_step("search", "nothing", None, "f", q="f")
    assert loops_at_end([*first, *same])["no_progress"].run_length == 5
    assert "no_progress" not in loops_at_end([*first, *same[:-2]])
    assert "no_progress" not in loops_at_end([*first, *same, *make_step("search", "new", None, "z")])
    assert "no_progress" not in loops_at_end([*first, *same, user("and now?"), *same[:2]])
    edits = [m for n in range(6) for m in make_step("edit_file", "ok", None, f"c{n}", path=f"{n}")]
    assert "no_progress" not in loops_at_end(edits)


def test_b5_the_same_call_is_reported_by_its_arguments_not_by_how_they_are_written() -> None:
    one, other = make_tool_call("read", "1"), make_tool_call("read", "2")
    one["tool_calls"][0]["function"]["arguments"] = '{"a":1,"b":[2]}'
    other["tool_calls"][0]["function"]["arguments"] = '{ "b": [2], "a": 1 }'
    values = [one, result("1", "x"), other, result("2", "x"), one, result("1", "x")]
    assert loops_at_end(values)["same_call"] == Loop("same_call", 3, 3, "read")
    assert loops_at_end([*values, other, result("2", "x"), one, result("1", "x")])["same_call_still"].run_length == 5


def test_b5_changed_results_do_not_count() -> None:
    values = [m for n in range(6) for m in make_step("read", f"x{n % 2}", None, f"c{n}", q=1)]
    assert "same_call" not in loops_at_end(values)
    assert not set(loops_at_end([m for n in range(12) for m in make_step("read", f"x{n}", None, f"c{n}", q=n % 2)])) - {
        "theme_loop"
    }


@pytest.mark.parametrize(
    "between",
    [
        make_step("write_file", "ok", None, "w", path="y"),
        make_step("Edit", "done", None, "w", path="y"),
        make_step("bash", "", None, "w", command="sed -i 's/a/b/' y"),
        make_step("run_tool", "ok", None, "w", tool_name="create_issue", params={}),
    ],
)
def test_b5_calls_with_a_write_between_do_not_count(between: list[Json]) -> None:
    read, fails = make_step("read", "x", None, "r", path="y"), make_step("test", "Error: red", None, "t")
    for values in ([*read, *between] * 3, [*fails, *between] * 3, [*read, *fails, *between] * 3):
        assert not set(loops_at_end(values[: -len(between)])) & {"same_call", "same_error", "cycle"}


def test_a_move_of_a_robot_that_answers_the_same_is_not_a_loop_and_one_that_fails_is() -> None:
    moves = make_step("move", '{"success": true}', None, "m", dx=1)
    assert not set(loops_at_end(moves * 6)) & {"same_call", "same_call_still", "cycle", "no_progress"}
    blocked = make_step("move", "Error: obstacle at 0.3 m", None, "m", dx=1)
    assert {"same_call", "same_error"} <= set(loops_at_end(repeat_three_times(*blocked)))


def test_a_call_is_not_a_repeat_where_what_another_call_shows_has_changed_in_between() -> None:
    pulse = make_step("thruster", "ok", None, "t", ms=10)

    def show(height: int) -> list[Json]:
        return make_step("get_pose", f"height {height}", None, "g")

    climbs = [one for height in range(6) for one in (*show(height), *pulse)]
    assert not set(loops_at_end(climbs)) & {"same_call", "same_call_still"}
    assert "same_call" in loops_at_end([*show(7), *pulse] * 3)


def test_b5_a_write_that_failed_is_none_and_one_that_is_repeated_is_a_loop_itself() -> None:
    failing = make_step("edit", "Error: text not found", None, "w", path="y")
    assert {"same_call", "same_error"} <= set(loops_at_end(repeat_three_times(*failing)))
    assert "same_call" in loops_at_end([*make_step("read", "x", None, "r"), *failing] * 3)
    assert "same_call" in loops_at_end(repeat_three_times(*make_step("book_flight", "booked", None, "w", to="X")))


@pytest.mark.parametrize("name", ["get_status", "wait", "TaskOutput", "poll_job", "press_key", "scroll"])
def test_b5_polling_tools_do_not_count(name: str) -> None:
    poll = make_step(name, "running", None, "p", id=1)
    assert not set(loops_at_end(poll * 6)) & {"same_call", "same_call_still", "cycle", "same_error"}
    assert "same_call" not in loops_at_end([*make_step("read", "x", None, "r"), *poll] * 4)
    assert "same_call" not in loops_at_end(make_step("bash", "", None, "b", command="sleep 5; cat log") * 4)
    assert "same_call" in loops_at_end(poll * 3, LoopSettings(polls=()))


@pytest.mark.parametrize("name", ["browser_click", "press_key", "tap"])
def test_clicks_that_fail_again_and_again_are_a_loop_and_others_none(name: str) -> None:
    clicks = [make_step(name, "clicked next", None, f"c{n}", ref="e5") for n in range(6)]
    assert not set(loops_at_end([m for step in clicks for m in step])) & {"same_call", "same_error", "cycle"}
    failing = make_step(name, "Error: Ref e5 not found in the current page snapshot", None, "c", ref="e5")
    assert {"same_call", "same_error"} <= set(loops_at_end(repeat_three_times(*failing)))


@pytest.mark.parametrize(
    "command", ["kubectl -n web get pods", "kubectl rollout status deploy/web", "docker ps", "gh run view 7"]
)
def test_commands_that_ask_for_a_state_are_not_repeated_calls(command: str) -> None:
    poll = make_step("bash", "web-1 0/1 ContainerCreating", None, "p", command=command)
    assert not set(loops_at_end(poll * 6)) & {"same_call", "same_call_still", "cycle", "same_error"}


def test_b5_a_round_of_up_to_four_calls_counts_when_it_was_gone_through_three_times() -> None:
    for length in (2, 3, 4, 5):
        once = [m for n in range(length) for m in make_step("read", f"x{n}", None, f"c{n}", q=n)]
        found = loops_at_end(once * 3)
        assert ("cycle" in found) == (length < 5)
        assert "cycle" not in loops_at_end(once * 2)
        if length < 5:
            assert found["cycle"].run_length == 3
            assert loops_at_end(once * 6)["cycle"].total == 6
    assert "cycle" not in loops_at_end(make_step("read", "x") * 12)


def test_b5_the_same_error_is_the_line_that_says_why() -> None:
    one = "Traceback (most recent call last):\n  File 'a.py', line {n}\nImportError: no numpy"
    values = [m for n in range(3) for m in make_step("run", one.format(n=n), None, f"c{n}", q=n)]
    assert loops_at_end(values)["same_error"].subject == "ImportError: no numpy"
    plain = [m for n in range(3) for m in make_step("read", f"{n}: def error(): ...", None, f"c{n}", q=n)]
    assert "same_error" not in loops_at_end(plain)


def test_the_same_error_is_not_a_loop_where_the_tool_did_what_it_was_asked_for_in_between() -> None:
    """A customer service: each exchange is refused once, and then done."""

    def exchange(n: int, *, done: bool) -> list[Json]:
        text = f'{{"order": {n}}}' if done else "Error: new item 910 not found or available"
        return [user(f"order {n}"), *make_step("exchange_items", text, None, f"c{n}{done}", order=n)]

    assert "same_error" not in loops_at_end(
        [m for n in range(6) for done in (False, True) for m in exchange(n, done=done)][:-2]
    )
    assert loops_at_end([m for n in range(3) for m in exchange(n, done=False)])["same_error"].run_length == 3
    other = make_step("find_user", '{"id": 3}', None, "o")
    assert "same_error" in loops_at_end([m for n in range(3) for m in (*other, *exchange(n, done=False))])
    shown = make_step("bash", "a.py", None, "l", command="ls")
    fails = make_step("bash", "ImportError: no numpy", None, "t", command="./test")
    assert "same_error" in loops_at_end([*shown, *fails] * 3)


def test_b5_a_run_that_fails_again_and_again_is_the_same_error_wherever_it_says_so() -> None:
    text = (
        "collected 3 items {n}\n" + "tests/test_a.py ..F\n" * 5 + "E       assert 1 == 2\n=== 1 failed, {n} passed ==="
    )
    values = [
        m for n in range(3) for m in make_step("bash", text.format(n=n), None, f"c{n}", command=f"pytest -q -p {n}")
    ]
    assert loops_at_end(values)["same_error"].subject == "E       assert 1 == 2"
    passed = "Error: this line is one of a log\n=== 3 passed in 0.{n}s ==="
    values = [m for n in range(3) for m in make_step("bash", passed.format(n=n), None, f"c{n}", command="pytest -q")]
    assert "same_error" not in loops_at_end(values)


GRADLE = """> Task :{n}:test FAILED

{n}Test > works FAILED
    java.lang.AssertionError at {n}Test.java:4

FAILURE: Build failed with an exception.

BUILD FAILED in 6s"""
MAVEN = """[ERROR]   {n}Test.works:9 expected: <1> but was: <2>
[ERROR] Tests run: 3, Failures: 1, Errors: 0, Skipped: 0
[INFO] BUILD FAILURE
[ERROR] Failed to execute goal org.apache:surefire:3.2.5:test (default-test) on project shop: There are test failures.
[ERROR] [Help 1] http://cwiki.apache.org/confluence/display/MAVEN/MojoFailureException"""


@pytest.mark.parametrize(
    ("command", "text", "subject"),
    [
        ("./gradlew", GRADLE, "java.lang.AssertionError at aTest.java:4"),
        ("mvn test", MAVEN, "[ERROR]   aTest.works:9 expected: <1> but was: <2>"),
        ("make", "{n}.c:4:5: error: x\nmake: *** [Makefile:8: all] Error 1", "a.c:4:5: error: x"),
        (
            "cargo test",
            (
                "error[E0425]: cannot find value `{n}` in this scope\n\nFor more information about this error, try"
                " `rustc --explain E0425`.\nerror: could not compile `shop` (lib) due to 1 previous error"
            ),
            "error[E0425]: cannot find value `a` in this scope",
        ),
        (
            "npm test",
            (
                "FAIL src/{n}.test.js\nTests: 1 failed, 2 total\nnpm error Lifecycle script `test` failed with error:\n"
                "npm error code 1\nnpm error path /w/web\nnpm error command sh -c jest"
            ),
            "FAIL src/a.test.js",
        ),
        (
            "sbt compile",
            "[error] {n}.scala:3: not found: value x\n[error] one error found",
            "[error] a.scala:3: not found: value x",
        ),
        ("mypy", "{n}.py:3: error: x\nFound 1 error in 1 file (checked 12 source files)", "a.py:3: error: x"),
        (
            "dotnet test",
            "  Failed {n}Test.Total [12 ms]\n  Error Message:\n   Values differ\nTest Run Failed.\n     Failed: 1",
            "Failed aTest.Total [12 ms]",
        ),
        ("dotnet build", "C.cs(3,1): error CS1061: {n}\nBuild FAILED.\n    1 Error(s)", "C.cs(3,1): error CS1061: a"),
        (
            "mvn verify",
            "[INFO] Tests run: 3, Failures: 0, Errors: 0\n[INFO] shop-{n} ...... FAILURE [1 s]\n[INFO] BUILD FAILURE",
            "shop-a ...... FAILURE [1 s]",
        ),
        ("./check", "Exit code 1\n{n} did not come up in time", "Exit code 1 a did not come up in time"),
        (
            "swift build",
            "{n}.swift:1:9: error: cannot find 'x'\nerror: fatalError",
            "a.swift:1:9: error: cannot find 'x'",
        ),
        (
            "alembic upgrade head",
            (
                "Traceback (most recent call last):\n  File 'e.py', l\nsqlalchemy.exc.ProgrammingError: no column {n}\n"
                "(Background on this error at: https://sqlalche.me/e/20/f405)"
            ),
            "sqlalchemy.exc.ProgrammingError: no column a",
        ),
        ("pytest", "E   KeyError: '{n}'\n!!!! Interrupted: 1 error during collection !!!!", "E   KeyError: 'a'"),
        (
            "helm lint",
            "[ERROR] templates/: bad {n}\nError: 1 chart(s) linted, 1 chart(s) failed",
            "[ERROR] templates/: bad a",
        ),
        ("cabal test", "  1) {n} works\n1 example, 1 failure\nError: [Cabal-7125]\nTests failed", "1) a works"),
        ("webpack", "ERROR in ./{n}.js 1:1\nwebpack 5.9.0 compiled with 1 error in 30 ms", "ERROR in ./a.js 1:1"),
        (
            "npm i",
            "npm error code ERESOLVE\nnpm error ERESOLVE could not resolve {n}",
            "npm error ERESOLVE could not resolve a",
        ),
    ],
)
def test_b5_a_line_that_ends_each_failed_run_is_not_the_error(command: str, text: str, subject: str) -> None:
    def fail(names: str) -> list[Json]:
        runs = [(f"c{n}", name) for n, name in enumerate(names)]
        return [m for n, k in runs for m in make_step("bash", text.format(n=k), None, n, command=f"{command} {n}")]

    assert "same_error" not in loops_at_end(fail("abc"))
    assert loops_at_end(fail("aaa"))["same_error"].subject == subject


def test_b5_calls_of_one_step_that_fail_together_are_one_error() -> None:
    ended = "<tool_use_error>Sibling tool call errored</tool_use_error>"
    together = [assistant(None, "a", "b", "c"), *(result(name, ended) for name in "abc")]
    assert "same_error" not in loops_at_end(together)
    assert loops_at_end(together * 3)["same_error"].run_length == 3


def test_b5_the_same_words_count_while_nothing_new_comes() -> None:
    values = repeat_three_times(assistant("Let me see."))
    assert loops_at_end(values)["same_text"].run_length == 3
    fresh = [m for n in range(3) for m in make_step("read", f"new {n}", "Let me see.", f"c{n}", q=n)]
    assert "same_text" not in loops_at_end(fresh)


def test_b5_results_with_images_are_never_the_same() -> None:
    shot = [{"type": "text", "text": "screen"}, {"type": "image_url", "image_url": {"url": "data:x"}}]
    values = [m for n in range(4) for m in (make_tool_call("look", f"c{n}"), result(f"c{n}", shot))]
    assert "same_call" not in loops_at_end(values)


def test_b6_the_count_of_a_loop_never_falls() -> None:
    loop = [assistant(t) for t in ("I plan", "A plan", "Planning")]
    values = [*loop, *make_step("search", "new", "Found it.", "z"), *loop]
    assert loops_at_end(values)["theme_loop"] == Loop("theme_loop", 6, 3, "planning")


def test_b5_loops_are_seen_in_the_whole_history() -> None:
    values = [*make_step("read", "x", None, "r"), *make_iterations(40)[2:], *make_step("read", "x", None, "r") * 2]
    assert loops_at_end(values)["same_call"].run_length == 3


def test_a_recording_shows_what_each_of_its_requests_would_have_shown() -> None:
    values = [*START, *(assistant(t) for t in ("I plan", "A plan", "Planning", "Done"))]
    talk = make_messages(*values)
    along_it = list(find_loops_by_request(talk, LoopSettings()))
    assert [n for n, _ in along_it] == [2, 3, 4, 5, 6]
    assert [[loop.kind for loop in found] for _, found in along_it][3] == ["theme_loop", "repeated_planning"]
    for n, found in along_it:
        view = build_view(values[:n])
        assert find_loops(view, LoopSettings()) == found
        assert find_loops(replace(view), LoopSettings()) == found


@pytest.mark.parametrize(
    "command",
    ["Start-Sleep 10; Get-Job 3", "timeout /t 10 & type status.txt", "ping -n 11 127.0.0.1 >nul & sc query web"],
)
def test_waiting_in_a_shell_of_windows_is_not_a_repeat(command: str) -> None:
    assert "same_call" not in loops_at_end(make_step("powershell", "PENDING", None, "p", command=command) * 6)


@pytest.mark.parametrize("text", ["ok", "UPDATE 1", "INSERT 0 1", "Query OK, 1 row affected (0.01 sec)"])
def test_other_calls_that_are_only_acknowledged_are_progress(text: str) -> None:
    done = [m for n in range(12) for m in make_step("x1", text, None, f"c{n}", q=n)]
    assert loops_at_end(done) == {}
    nothing = [m for n in range(12) for m in make_step("x1", "UPDATE 0", None, f"c{n}", q=n)]
    assert "no_progress" in loops_at_end(nothing)
    assert "same_call" in loops_at_end(repeat_three_times(*make_step("x1", text, None, "c", q=1)))


def test_a_call_that_the_user_asks_for_again_is_not_a_loop() -> None:
    step = make_step("get_weather", "3 degrees", None, "w", city="Oslo")
    asked = [m for n in range(6) for m in (user(f"How is it in Oslo at {n} o'clock?"), *step)]
    assert loops_at_end(asked) == {}
    assert "same_call" in loops_at_end([m for _ in range(3) for m in (user("Go on."), *step)])
    assert "same_call" in loops_at_end([m for _ in range(4) for m in (user("You must call a tool now."), *step)])
    assert "same_call" in loops_at_end([*asked, *step, *step])


def test_a_run_between_the_steps_of_a_bisection_is_not_a_repeat() -> None:
    run = make_step("bash", "FAIL: t", None, "r", command="make && ./t")
    steps = [[*run, *make_step("bash", f"{n} left", None, f"b{n}", command="git bisect bad")] for n in range(6)]
    assert not set(loops_at_end([m for one in steps for m in one])) & {"same_call", "same_error"}


@pytest.mark.parametrize("name", ["undo", "send_keys", "write_stdin", "zoom", "go_back"])
def test_tools_that_continue_from_where_they_stopped_are_not_repeats(name: str) -> None:
    assert "same_call" not in loops_at_end(make_step(name, "", None, "u", q=1) * 4)


@pytest.mark.parametrize(
    "text", ['{"state": "running"}', "compiling...", "The report is not ready yet", "status: IN_PROGRESS"]
)
def test_a_tool_that_says_that_work_is_in_progress_may_be_asked_again(text: str) -> None:
    assert loops_at_end(make_step("get_build", text, None, "g", id=1) * 12) == {}
    assert "same_call" in loops_at_end(
        repeat_three_times(*make_step("get_build", "Error: running is no state", None, "g", id=1))
    )
    assert "same_call" in loops_at_end(
        repeat_three_times(*make_step("get_build", '{"state": "done"}', None, "g", id=1))
    )


def test_a_build_that_fails_again_after_a_file_was_written_in_powershell_is_not_a_loop() -> None:
    build = make_step("powershell", "error CS1: x\nBuild FAILED.", None, "b", command="dotnet build")
    steps = [[*build, *make_step("powershell", "", None, f"s{n}", command=f"Set-Content a.cs {n}")] for n in range(6)]
    assert not set(loops_at_end([m for one in steps for m in one])) & {"same_call", "same_error"}


def test_a_request_in_chinese_is_a_request() -> None:
    step = make_step("get_weather", "3", None, "w", city="x")
    hours = "\u4e00\u4e8c\u4e09\u56db\u4e94"
    asked = [m for hour in hours for m in (user(f"\u73b0\u5728{hour}\u70b9\u5929\u6c14\u600e\u4e48\u6837"), *step)]
    assert loops_at_end(asked) == {}
