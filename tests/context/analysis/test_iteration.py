"""Row B2: iterations are assistant messages since the last user message."""

from __future__ import annotations

import re

import pytest

from proxy.context.analysis.iteration import check_urgency, find_iteration_message, read_iteration, read_urgency
from proxy.context.policy import Policy
from proxy.errors import ConfigError
from tests.context.research import make_iterations, make_step
from tests.conversations import assistant, build_view, change_view, system, user


def test_b2_an_iteration_is_an_assistant_message_since_the_last_user_message() -> None:
    for n in (0, 1, 7, 30):
        assert read_iteration(build_view(make_iterations(n, before=3, tools=True)), 30).number == n
    again = [*make_iterations(7), assistant("Done."), user("And now?")]
    assert read_iteration(build_view(again), 30).number == 0
    assert read_iteration(build_view([*again, *make_step("search", "x")]), 30).number == 1


def test_b2_a_message_before_the_first_prompt_is_not_an_iteration() -> None:
    assert read_iteration(build_view([system(), assistant("Welcome!"), user("a")]), 30).number == 0
    assert read_iteration(build_view([assistant("Welcome!"), user("a"), assistant("b")]), 30).number == 1
    assert read_iteration(build_view([system(), assistant("a"), assistant("b")]), 30).number == 2


def test_b2_observations_are_not_user_messages() -> None:
    talk = [user("fix it"), assistant("ls"), user("OBS a"), assistant("cat a"), user("OBS b")]
    assert read_iteration(build_view(talk, policy=Policy("p", observation=re.compile("^OBS"))), 30).number == 2
    assert read_iteration(build_view(talk), 30).number == 0


@pytest.mark.parametrize(
    ("given", "most"),
    [("50", 50), (" 7 ", 7), ("0", 30), ("-3", 30), ("many", 30), ("", 30), ("1e9", 30), ("9" * 30, 30), ("²", 30)],
)
def test_b2_a_request_may_say_how_many_iterations_it_has(given: str, most: int) -> None:
    view = change_view(build_view(make_iterations(3)), options={"max-iterations": given})
    assert read_iteration(view, 30).maximum == most


def test_the_iterations_left_are_never_negative() -> None:
    assert read_iteration(build_view(make_iterations(12)), 30).remaining == 18
    assert read_iteration(build_view(make_iterations(12)), 12).remaining == 0
    assert read_iteration(build_view(make_iterations(12)), 5).remaining == 0


def test_the_message_with_which_an_iteration_was_reached_is_found() -> None:
    view = build_view(make_iterations(6, before=2))
    at = read_iteration(view, 30)
    assert at.start == 6
    assert [find_iteration_message(view, at, n) for n in (1, 2, 6)] == [6, 8, 16]


def test_b7_the_request_may_say_how_urgent_to_be() -> None:
    view = build_view(make_iterations(1))
    assert read_urgency(view, "firm") == "firm"
    assert read_urgency(change_view(view, options={"urgency": " Gentle"}), "firm") == "gentle"
    assert read_urgency(change_view(view, options={"urgency": "very"}), "off") == "off"
    with pytest.raises(ConfigError, match="gentle"):
        check_urgency("very")
