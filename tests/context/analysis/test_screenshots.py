"""Images that newer ones have replaced."""

from __future__ import annotations

import json

import pytest

from proxy.context.analysis.screenshots import find_replaced_images
from tests.conversations import Json, assistant, build_view, call, result, user


def show(number: int) -> list[Json]:
    return [
        {"type": "text", "text": f"state {number}"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{number:04}"}},
    ]


def history(*steps: tuple[str, Json]) -> list[Json]:
    """One call a step, each with an image: the n-th result is message 2n + 2."""
    talk: list[Json] = [user("go")]
    for n, (name, arguments) in enumerate(steps):
        talk += [{**assistant(None), "tool_calls": [call("c", name, json.dumps(arguments))]}, result("c", show(n))]
    return talk


def find(*steps: tuple[str, Json], newest: int = 3) -> dict[int, int]:
    talk = history(*steps)
    results = [n for n, message in enumerate(talk) if message["role"] == "tool"]
    return dict(find_replaced_images(build_view(talk), results, newest))


@pytest.mark.parametrize(
    "names",
    [
        ["computer"] * 5,
        ["browser_navigate", "browser_click", "browser_take_screenshot", "browser_type", "browser_hover"],
        ["navigate", "click_at", "type_text_at", "scroll_document", "wait_5_seconds"],
        ["mcp__playwright__browser_take_screenshot"] * 5,
    ],
)
def test_the_newest_screens_stay_whatever_the_actions(names: list[str]) -> None:
    steps = [(name, {"number": n}) for n, name in enumerate(names)]
    assert find(*steps) == {4: 10, 2: 8}
    assert find(*steps, newest=5) == {}
    assert find(*steps, newest=1) == {8: 10, 6: 8, 4: 6, 2: 4}


def test_a_drawing_that_was_read_from_a_file_stays_until_the_file_is_read_again() -> None:
    drawings = [("read_file", {"path": f"design/{n}.png"}) for n in range(5)]
    assert find(*drawings) == {}
    assert find(*drawings, ("read_file", {"path": "design/1.png"})) == {4: 12}


def test_another_page_of_a_file_replaces_none_of_its_images() -> None:
    pages = [("read_file", {"path": "plan.pdf", "page": n}) for n in range(5)]
    assert find(*pages) == {}
    assert find(*pages, pages[0]) == {2: 12}


def test_the_newest_images_stay_although_equal_calls_have_returned_them() -> None:
    assert find(*[("go_back", {})] * 5) == {4: 10, 2: 8}
    assert find(*[("go_back", {}), ("computer", {"n": 1})] * 3, newest=2) == {6: 10, 4: 12, 2: 6}


def test_images_that_the_model_has_not_answered_stay_however_many_they_are() -> None:
    calls = [call(f"c{n}", "browser_take_screenshot", json.dumps({"page": n})) for n in range(5)]
    talk = [user("go"), {**assistant(None), "tool_calls": calls}, *[result(f"c{n}", show(n)) for n in range(5)]]
    assert dict(find_replaced_images(build_view(talk), range(2, 7), 3)) == {}
    talk.append(assistant("I see."))
    assert dict(find_replaced_images(build_view(talk), range(2, 7), 3)) == {3: 6, 2: 5}


def test_an_image_of_any_other_tool_stays_until_the_same_call_is_made_again() -> None:
    charts = [("plot", {"column": name}) for name in "abcde"]
    assert find(*charts) == {}
    assert find(*charts, ("plot", {"column": "a"})) == {2: 12}


def test_screens_and_files_do_not_replace_each_other() -> None:
    assert find(("read_file", {"path": "a.png"}), *[("computer", {"n": n}) for n in range(3)]) == {}


def test_a_result_without_its_call_and_one_without_an_image_count_for_nothing() -> None:
    talk = history(*[("computer", {"n": n}) for n in range(4)])
    talk[8] = result("c", [{"type": "text", "text": "a"}, {"type": "file", "file": {"file_data": "QQ=="}}])
    assert dict(find_replaced_images(build_view(talk), [2, 4, 6, 8], 3)) == {}
    assert dict(find_replaced_images(build_view([user("go"), result("x", show(0))]), [1], 0)) == {}
