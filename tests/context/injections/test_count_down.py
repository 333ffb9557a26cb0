"""Row B3: the countdown, and B7: how urgent it is."""

from __future__ import annotations

import pytest

from proxy.context.injections import BUILT_IN_INJECTIONS
from proxy.context.injections.count_down import CountDown
from proxy.context.stage import make_injection
from proxy.context.view import View
from proxy.errors import ConfigError
from tests.context.research import make_iterations
from tests.conversations import build_view, change_view


def insert_texts(view: View, injection: CountDown | None = None) -> list[str]:
    return [i.text.strip() for i in (injection or CountDown())(view)]


@pytest.mark.parametrize(
    ("iterations", "text"),
    [
        (0, None),
        (14, None),
        (15, "[15 iterations left. Complete your answer.]"),
        (19, "[11 iterations left. Complete your answer.]"),
        (20, "[EMERGENCY: 10 iterations remaining. Synthesize NOW.]"),
        (30, "[EMERGENCY: 0 iterations remaining. Synthesize NOW.]"),
        (37, "[EMERGENCY: 0 iterations remaining. Synthesize NOW.]"),
    ],
)
def test_b3_the_countdown_begins_at_15_and_is_an_emergency_from_20(iterations: int, text: str | None) -> None:
    assert insert_texts(build_view(make_iterations(iterations))) == ([text] if text else [])


def test_b3_boundaries_are_settings() -> None:
    injection = CountDown(aggressive=2, emergency=3, max_iterations=4)
    assert insert_texts(build_view(make_iterations(2)), injection) == ["[2 iterations left. Complete your answer.]"]
    assert insert_texts(build_view(make_iterations(3)), injection) == [
        "[EMERGENCY: 1 iterations remaining. Synthesize NOW.]"
    ]


def test_b2_the_request_overrides_how_many_there_may_be() -> None:
    view = change_view(build_view(make_iterations(15)), options={"max-iterations": "20"})
    assert insert_texts(view) == ["[5 iterations left. Complete your answer.]"]


def test_b7_the_words_are_settings() -> None:
    firm, gently = ("Noch <LEFT>.", "Nur noch <LEFT>!"), ("<LEFT>, bitte", "<LEFT>")
    injection = CountDown(firm=firm[0], firm_emergency=firm[1], gentle=gently[0], gentle_emergency=gently[1])
    assert [insert_texts(build_view(make_iterations(n)), injection) for n in (15, 20)] == [
        ["Noch 15."],
        ["Nur noch 10!"],
    ]
    gentle = [
        insert_texts(change_view(build_view(make_iterations(n)), options={"urgency": "gentle"}), injection)
        for n in (15, 20)
    ]
    assert gentle == [["15, bitte"], ["10"]]


@pytest.mark.parametrize("name", ["firm", "firm_emergency", "gentle", "gentle_emergency"])
@pytest.mark.parametrize("text", ["", "Hurry up.", "<LEFT> <MOST>"])
def test_b7_words_without_the_number_that_they_need_are_refused_at_the_start(name: str, text: str) -> None:
    with pytest.raises(ConfigError, match=rf"injections\.count_down\.{name}"):
        make_injection({"use": "count_down", name: text}, BUILT_IN_INJECTIONS)


def test_b7_gentle_is_polite_and_off_is_silent() -> None:
    for n in (15, 20):
        (gentle,) = insert_texts(build_view(make_iterations(n)), CountDown(urgency="gentle"))
        assert f"{30 - n} iterations" in gentle
        assert "NOW" not in gentle
        assert insert_texts(build_view(make_iterations(n)), CountDown(urgency="off")) == []
        assert insert_texts(change_view(build_view(make_iterations(n)), options={"urgency": "off"})) == []
    with pytest.raises(ConfigError, match="urgency"):
        CountDown(urgency="loud")
