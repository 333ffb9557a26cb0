"""Row B1: tool results, thoughts and research kept apart."""

from __future__ import annotations

import re

from proxy.context.analysis.streams import find_research, find_streams
from proxy.context.policy import Policy
from tests.context.research import make_step, make_tool_call
from tests.conversations import assistant, build_view, result, system, user


def test_b1_results_thoughts_and_research_are_streams_of_their_own() -> None:
    talk = [
        system(),
        user("a"),
        *make_step("search", "found"),  # 2, 3: a call without a word is no thought
        *make_step("get_page", "a page", "I open it"),  # 4, 5: a thought with a call
        assistant(None, "c1", "c2", reasoning_content="Both."),  # 6: so is reasoning
        result("c1", "one"),
        result("c2", "two"),
        assistant("I see"),  # 9
    ]
    found = find_streams(build_view(talk))
    assert found.results == (3, 5, 7, 8)
    assert found.thoughts == (4, 6, 9)
    done = find_research(build_view(talk), 2, "read|get")
    assert (done.call_count, [call.name for call in done.page_calls]) == (4, ["get_page"])


def test_b1_a_result_stays_with_its_call_and_with_what_came_with_it() -> None:
    talk = [user("a"), assistant(None, "c1", "c2"), result("c1", "one"), result("c2", "two"), *make_step("x", "y")]
    found = find_streams(build_view(talk))
    assert list(found.find_step_positions(2)) == list(found.find_step_positions(3)) == [1, 2, 3]
    assert list(found.find_step_positions(5)) == [4, 5]


def test_b1_observations_belong_to_the_message_before_them() -> None:
    talk = [user("a"), assistant("ls"), user("OBS 1"), assistant("done")]
    view = build_view(talk, policy=Policy("p", observation=re.compile("^OBS")))
    found = find_streams(view)
    assert (found.results, list(found.find_step_positions(2))) == ((2,), [1, 2])
    assert find_research(view, 1, "read").call_count == 1


def test_a_result_without_a_call_stands_alone() -> None:
    assert list(find_streams(build_view([user("a"), result("c9", "lost"), assistant("b")])).find_step_positions(1)) == [
        1
    ]


def test_b4_pages_are_words_in_the_names_of_tools() -> None:
    names = [
        "get_page",
        "Read",
        "WebFetch",
        "http.open",
        "browseTo",
        "READ_FILE",
        "search",
        "budget",
        "thread",
        "target",
    ]
    talk = [user("a"), *(message for name in names for message in make_step(name, "x"))]
    assert [call.name for call in find_research(build_view(talk), 1, "read|get|fetch|open|browse").page_calls] == names[
        :6
    ]


def test_b4_calls_without_an_answer_and_those_before_the_prompt_do_not_count() -> None:
    talk = [user("a"), *make_step("read", "x"), user("b"), *make_step("read", "y"), make_tool_call("read", "c2")]
    done = find_research(build_view(talk), 4, "read")
    assert (done.call_count, len(done.page_calls)) == (1, 1)


def test_b4_a_read_that_failed_was_a_call_and_read_no_page() -> None:
    failures = [
        "Error: page not found",
        "<tool_use_error>File does not exist.</tool_use_error>",
        '{"error": "HTTP 404"}',
        "ENOENT: no such file or directory, open 'a.py'",
    ]
    talk = [
        user("a"),
        *(message for text in (*failures, "a page on errors") for message in make_step("read_page", text)),
    ]
    done = find_research(build_view(talk), 1, "read")
    assert (done.call_count, len(done.page_calls)) == (5, 1)
