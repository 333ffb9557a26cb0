"""Row E4: deterministic extracts, and what a helper model is asked."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.chat.chain import public_id
from proxy.context.summaries import extracts
from proxy.context.view import View
from tests.context.ranking.test_memory_levels import call, step
from tests.conversations import Json, assistant, build_view, result, user
from tests.conversations import call as call_of

LOG = """
starting run 7
reading src/app.py
ValueError: bad id 4711 in src/app.py
all fine
Test failed: test_x
id a1b2c3d4"""


def view_of(text: str = LOG) -> View:
    return build_view([user("a"), call("pytest", 1), result("c1", text), assistant("on"), user("b")])


def test_e4_a_line_has_the_call_the_first_line_the_errors_and_the_ids() -> None:
    view = view_of()
    assert extracts.extract_step(view, view.steps[1]) == extracts.StepExtract(
        'pytest({"n": 1})',
        "starting run 7",
        ("ValueError: bad id 4711 in src/app.py", "Test failed: test_x"),
        ("a1b2c3d4",),
    )
    assert extracts.extract_step(view, view.steps[2]) == extracts.StepExtract("on", "", (), ())


def test_e4_a_line_names_the_images_that_leave_with_a_step() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:"}}
    shot = [{"type": "text", "text": "The page\nhas a button"}, image, image]
    view = build_view(
        [user([{"type": "text", "text": "See this"}, image]), call("shoot", 1), result("c1", shot), user("b")]
    )
    assert extracts.extract_step(view, view.steps[0]).call == "See this, with an image or file"
    assert extracts.extract_step(view, view.steps[1]).first_line == "The page, with 2 images or files"


def test_e4_an_extract_says_of_which_message_it_is_and_how_long_that_was() -> None:
    view = view_of()
    text = extracts.extract_result(view, view.steps[1], 2)
    assert text.splitlines() == [
        f"[extract of message {public_id(view.keys[2])}, {len(LOG)} characters]",
        "starting run 7",
        "ValueError: bad id 4711 in src/app.py",
        "Test failed: test_x",
        "also there: a1b2c3d4",
    ]


def test_the_ends_of_a_wrapper_s_elements_are_not_names_of_an_extract() -> None:
    text = (
        "<returncode>0</returncode>\n<output>\n302: for sql in deferred_sql\nsee /etc/hosts and /returncodes\n</output>"
    )
    ids = extracts.extract_step(view := view_of(text), view.steps[1]).ids
    assert ids == ("deferred_sql", "/etc/hosts", "/returncodes") or ids == ("/etc/hosts", "/returncodes")


def test_a7_an_extract_names_recall_where_the_model_has_it() -> None:
    view = build_view([user("a"), call("pytest", 1), result("c1", LOG), user("b")], offered=frozenset({"recall"}))
    name = public_id(view.keys[2])
    first = extracts.extract_result(view, view.steps[1], 2).splitlines()[0]
    assert first == f'[extract of message {name}, {len(LOG)} characters; recall("{name}") has all]'
    assert extracts.shorten_text("a b c d", 3, name) == f'a\n[... 6 characters left out; recall("{name}") has all]'


@given(st.text(alphabet="ab/._ \n0123456789error:", max_size=400))
def test_e4_extracts_show_only_text_of_the_result(text: str) -> None:
    """Every identifier and every error line that is shown was there."""
    view = view_of(text)
    found = extracts.extract_step(view, view.steps[1])
    lines = [row.strip() for row in text.splitlines()]
    assert all(name in text for name in found.ids)
    assert all(error in lines or error.endswith("...") for error in found.errors)
    assert not found.first_line or found.first_line in lines or found.first_line.endswith("...")


def test_e4_several_steps_share_the_room_and_say_which_messages_they_were() -> None:
    view = build_view([user("a"), *step(1, "one\nerror: E1"), *step(2, "two"), *step(3, "three"), user("b")])
    steps = view.steps[1:4]
    text = extracts.extract_steps(view, steps, [False, True, False], 400)
    head, *rows = text.splitlines()
    assert head == f"[summary of 6 messages, {public_id(view.keys[1])} to {public_id(view.keys[6])}]"
    assert rows == ['- run({"n": 1}) -> error: E1 | one', '- run({"n": 2})', '- run({"n": 3}) -> three']


@given(st.integers(60, 600), st.lists(st.text(max_size=300), min_size=1, max_size=12))
def test_e4_a_summary_never_has_more_than_its_limit(limit: int, results: list[str]) -> None:
    view = build_view([user("a"), *(m for n, text in enumerate(results) for m in step(n, text)), user("b")])
    steps = view.steps[1:-1]
    text = extracts.extract_steps(view, steps, [False] * len(steps), limit)
    assert len(text) <= max(limit, len(extracts.render_heading(view, steps)))


def test_a_summary_of_more_steps_than_it_has_lines_for_says_how_many_it_leaves_out() -> None:
    steps = [
        one
        for n in range(60)
        for one in (
            {**assistant(None), "tool_calls": [call_of(f"c{n}", "look", f'{{"n": {n}}}')]},
            result(f"c{n}", "ok"),
        )
    ]
    view = build_view([user("a"), *steps, user("b")])
    made = extracts.extract_steps(view, view.steps[1:-1], [True] * 60, 400)
    rows = made.splitlines()[1:]
    mark = next(n for n, row in enumerate(rows) if row.startswith("[... "))
    assert rows[0] == '- look({"n": 0})'
    assert rows[-1] == '- look({"n": 59})'
    assert rows[mark] == f"[... {60 - (len(rows) - 1)} steps]"
    assert len(made) <= 400
    few = extracts.extract_steps(view, view.steps[1:9], [True] * 8, 400)
    assert "[... " not in few


def test_an_extract_says_how_many_more_names_there_are() -> None:
    listed = "\n".join(f"subnet-{1000 + 7 * n}" for n in range(30))
    told = extract_of("list_subnets", {"vpc": "v"}, listed)
    assert told[-1] == "also there: " + " ".join(f"subnet-{1000 + 7 * n}" for n in range(1, 9)) + "; 21 more"
    assert extract_of("list_subnets", {"vpc": "v"}, listed[:35])[-1] == "also there: subnet-1007 subnet-1014"


def test_an_extract_has_the_line_that_is_unlike_all_others_and_reported_states() -> None:
    nodes = [f"node-{n:<4} {n * 7919 % 997:>6}  ok" for n in range(30)]
    told = extract_of("list_nodes", {}, "\n".join(["host  cpu  state", *nodes, "node-99  99.9  DEGRADED", *nodes]))
    assert told[:2] == ["host  cpu  state", "node-99  99.9  DEGRADED"]
    pods = [f"app-{n}  1/1  Running  {n}h" for n in range(20)]
    told = extract_of(
        "bash", {"command": "kubectl get pods"}, "\n".join(["NAME", *pods, "w-1  0/1  CrashLoopBackOff  7", *pods])
    )
    assert told[1] == "w-1  0/1  CrashLoopBackOff  7"


def test_a_failed_call_with_long_arguments_still_says_how_it_ended() -> None:
    edit = {"path": "src/billing/api/rate.cs", "old_text": "WebRequest.Create(url)", "new_text": "client.GetAsync(url)"}
    failed = "Error: rate.cs is being used by another process."
    values = [user("a")]
    for n in range(3):
        asked = {**assistant(None), "tool_calls": [call_of(str(n), "edit_file", json.dumps(edit))]}
        values += [asked, result(str(n), failed)]
    view = build_view([*values, user("b")])
    steps = [step for step in view.steps if view.messages[step.start].calls]
    text = extracts.extract_steps(view, steps, [False] * 3, 420)
    assert len(text) <= 420
    assert text.count("-> Error: rate.cs is being used") == 3


def test_a_step_that_is_shown_by_its_call_alone_says_that_it_failed() -> None:
    refused = '{"error": {"code": 409, "message": "The organiser has locked this event"}}'
    answers = [refused, '{"id": "evt_2", "status": "confirmed"}']
    steps = [
        one
        for n, text in enumerate(answers)
        for one in (
            {**assistant(None), "tool_calls": [call_of(f"c{n}", "move_event", f'{{"id": "evt_{n}"}}')]},
            result(f"c{n}", text),
        )
    ]
    view = build_view([user("a"), *steps, user("b")])
    rows = extracts.extract_steps(view, view.steps[1:-1], [True, True], 900).splitlines()
    assert rows[1] == f'- move_event({{"id": "evt_0"}}) -> {refused}'
    assert rows[2] == '- move_event({"id": "evt_1"})'
    assert refused in extracts.extract_messages(view, view.steps[1:-1], 900)
    assert extracts.extract_messages(view, view.steps[1:-1], 150).splitlines()[1:] == [
        '- assistant: move_event({"id": "... -> failed',
        '- assistant: move_event({"id": "evt_1"})',
    ]


def test_e4_a_helper_is_asked_with_the_sources_prompt_and_every_message_is_named() -> None:
    view = build_view([user("a"), *step(1, "x" * 9000), *step(2, "short, see src/mod_7.py and 4711-22"), user("b")])
    ask = extracts.build_ask(view, view.steps[1:3], 1200, 2)
    assert ask.kind == "summary"
    assert ask.prompt.startswith(
        "Summarize the following conversation, preserving: key decisions, action items, errors encountered, and "
        "current task state. Be concise."
    )
    assert ask.message_keys == tuple(view.keys[1:5])
    assert ask.required_names == ("src/mod_7.py", "4711-22")
    assert ask.max_chars == 1200
    assert "short, see src/mod_7.py" in ask.prompt
    assert len(ask.prompt) < 3000


def test_e4_a_summary_of_summaries_is_another_question() -> None:
    view = build_view([user("a"), *step(1), *step(2), user("b")])
    again = extracts.build_merge_ask(view, view.steps[0:3], ["first summary", "second"], 400)
    assert again.kind == "summary"
    assert again.prompt.startswith(extracts.SUMMARY_PROMPT.replace("<CHARACTERS>", "400") + "\n\n")
    assert again.prompt.endswith("first summary\n\nsecond")
    assert again.id != extracts.build_ask(view, view.steps[1:3], 400, 0).id


def test_e4_an_answer_bears_the_ids_of_its_sources_and_is_cut_at_its_limit() -> None:
    view = build_view([user("a"), *step(1), user("b")])
    text = extracts.render_answer(view, view.steps[1:2], "  It worked. ", 200)
    assert text == f"[summary of 2 messages, {public_id(view.keys[1])} to {public_id(view.keys[2])}]\nIt worked."
    assert len(extracts.render_answer(view, view.steps[1:2], "word " * 100, 150)) <= 150


def test_a_shortened_text_says_how_much_is_missing() -> None:
    assert extracts.shorten_text("short", 10) == "short"
    text = extracts.shorten_text("one two three four", 10)
    assert text == "one two\n[... 11 characters left out]"
    assert extracts.shorten_text("x" * 20, 10) == "x" * 10 + "\n[... 10 characters left out]"


def test_error_lines_are_found_once_and_not_where_there_are_none() -> None:
    assert extracts.find_errors("fine\nerrorless? no\nterror") == ()
    assert extracts.find_errors("Error: a\nError: a\nfatal: b") == ("Error: a", "fatal: b")
    assert extracts.find_errors("Error: a\nfatal: b", excluded="Error: a") == ("fatal: b",)


def extract_of(name: str, arguments: dict[str, str], text: str) -> list[str]:
    made = {**assistant(None), "tool_calls": [call_of("c1", name, json.dumps(arguments))]}
    view = build_view([user("a"), made, result("c1", text), user("b")])
    return extracts.extract_result(view, view.steps[1], 2).splitlines()[1:]


def test_t4_an_extract_of_a_run_has_its_end_whatever_it_printed_before() -> None:
    printed = [f"ERROR request {n} failed as it should" for n in range(20)]
    failed = [*printed, "E   assert 3 == 4", "FAILED a.py::test_x - assert 3 == 4", "== 1 failed, 40 passed in 2s =="]
    shown = extract_of("bash", {"command": "pytest -q"}, "\n".join(failed))
    assert "== 1 failed, 40 passed in 2s ==" in shown
    passed = "\n".join(["Saved working directory", *printed, "== 24 passed in 1s ==", "Dropped refs/stash"])
    assert "== 24 passed in 1s ==" in extract_of("bash", {"command": "git stash; pytest -q; git stash pop"}, passed)
    running = "\n".join(["<status>running</status>", *printed, "4 passed in 1s"])
    assert "<status>running</status>" in extract_of("BashOutput", {"bash_id": "b1"}, running)
    told = extract_of("bash", {"command": "./deploy.sh"}, "start\none\ntwo\nuploaded 3 files")
    assert told[:2] == ["start", "uploaded 3 files"]


def test_an_extract_of_a_run_has_the_error_whose_message_ends_the_output() -> None:
    message = ["ImportError: Unable to find a usable engine; tried using: 'pyarrow'.", "A version of it is required."]
    text = "\n".join(["reading", *["row"] * 9, "Traceback (most recent call last):", '  File "a.py", line 1', *message])
    assert extract_of("bash", {"command": "python a.py"}, text) == ["reading", *message]
    coloured = "\x1b[31m\u2502\x1b[0m \x1b[1m\x1b[31mError: \x1b[0mUnsupported argument"
    assert extract_of("bash", {"command": "terraform validate"}, coloured) == ["\u2502 Error: Unsupported argument"]


def test_t2_code_that_handles_errors_is_not_an_error_of_an_extract() -> None:
    code = ["import os", *(f"        raise ValueError('number {n} not found')" for n in range(9))]
    for name, arguments in (("Read", {"file_path": "a.py"}), ("bash", {"command": "cat a.py"}), ("Grep", {"p": "x"})):
        assert not any("raise" in line for line in extract_of(name, arguments, "\n".join(code)))
    assert extract_of("Read", {"file_path": "a.py"}, "Error: a.py not found") == ["Error: a.py not found"]


@pytest.mark.parametrize(
    ("output", "ended"),
    [
        ("  1) test total (CartTest)\n     test/cart_test.exs:14\n6 tests, 1 failure\n", "6 tests, 1 failure"),
        ("6 tests, 0 failures\n", "6 tests, 0 failures"),
        ("PLAY RECAP\nweb1     : ok=2    changed=0    unreachable=0    failed=1\n", "web1 : ok=2 changed=0"),
        ("psql:a.sql:3: ERROR:  relation x does not exist\nINSERT 0 1\n", "psql:a.sql:3: ERROR: relation x"),
        ("DbError: no column x\n\n[SQL: SELECT x]\n(Background on this error at: y)\n", "DbError: no column x"),
    ],
)
def test_a_short_line_of_a_run_has_its_end_before_its_beginning(output: str, ended: str) -> None:
    noise = "".join(f"compiling module m{n} with {n} symbols, cached in /var/cache/build/m{n}.o\n" for n in range(40))
    made = [user("a"), *(one for _ in range(4) for one in run_of("./run", noise + output))]
    view = build_view([*made, user("b")])
    text = extracts.extract_steps(view, view.steps[1:-1], [False] * len(view.steps[1:-1]), 520)
    assert len(text) <= 520
    assert text.count(f"-> {ended}") == 4, text


def run_of(command: str, output: str) -> list[Json]:
    arguments = json.dumps({"command": command})
    return [{**assistant(None), "tool_calls": [call_of("c1", "bash", arguments)]}, result("c1", output)]


def test_a_summary_says_where_a_call_is_cut_and_how_many_calls_of_a_step_it_leaves_out() -> None:
    note = json.dumps({"name": "plan", "text": "Paint the shed and the fence. " * 8})
    asked = [call_of(f"c{n}", "save_note", note) for n in range(3)]
    values = [user("a"), {**assistant(None), "tool_calls": asked}, *(result(f"c{n}", "Saved.") for n in range(3))]
    view = build_view([*values, user("b")])
    row = extracts.extract_steps(view, view.steps[1:-1], [True], 900).splitlines()[1]
    assert row.startswith('- save_note({"name": "plan", "text": "Paint the shed')
    assert row.endswith("...); 2 more calls")
