"""Row B4: the model sees how far it is."""

from __future__ import annotations

import pytest

from proxy.context.injections.report_progress import ReportProgress
from proxy.context.view import View
from proxy.errors import ConfigError
from tests.context.research import make_iterations, make_step
from tests.conversations import assistant, build_view, change_view, user


def insert_texts(view: View, injection: ReportProgress | None = None) -> list[str]:
    return [i.text.strip() for i in (injection or ReportProgress())(view)]


def test_b4_the_sources_example_word_for_word() -> None:
    values = [user("a"), *(m for n in range(4) for m in (assistant(f"thought {n}"),))]
    values += [*make_step("search", "x"), *make_step("read_page", "y"), *make_step("get_page", "z")]
    assert insert_texts(build_view(values)) == ["[PROGRESS: Iteration 7/30 | 3 tools used | 2 pages read]"]


def test_b4_one_of_something_is_singular() -> None:
    values = [user("a"), *(assistant(f"t{n}") for n in range(6)), *make_step("get_wikipedia_page", "x")]
    assert insert_texts(build_view(values)) == ["[PROGRESS: Iteration 7/30 | 1 tool used | 1 page read]"]


@pytest.mark.parametrize(("iterations", "is_told"), [(0, False), (4, False), (5, True), (29, True), (40, True)])
def test_b4_progress_is_reported_from_the_fifth_iteration_on(iterations: int, is_told: bool) -> None:
    assert bool(insert_texts(build_view(make_iterations(iterations)))) is is_told


def test_b4_numbers_and_what_counts_as_a_page_are_settings() -> None:
    injection = ReportProgress(since=1, max_iterations=12, pages="search")
    assert insert_texts(build_view(make_iterations(2)), injection) == [
        "[PROGRESS: Iteration 2/12 | 2 tools used | 2 pages read]"
    ]
    with pytest.raises(ConfigError, match="pages"):
        ReportProgress(pages="(")


def test_b2_the_request_overrides_how_many_there_may_be() -> None:
    view = change_view(build_view(make_iterations(5)), options={"max-iterations": "50"})
    assert insert_texts(view) == ["[PROGRESS: Iteration 5/50 | 5 tools used | 0 pages read]"]


def test_the_progress_note_is_inserted_again_at_the_tail() -> None:
    (insert,) = ReportProgress()(build_view(make_iterations(5)))
    assert (insert.place, insert.persistent, insert.note_count) == ("tail", False, None)
