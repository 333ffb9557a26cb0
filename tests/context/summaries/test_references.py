"""References in the prompt: those that are read from it, and those whose text has left it."""

from __future__ import annotations

import json
import time

import pytest

from proxy.chat.chain import public_id
from proxy.chat.message import cancellation_check
from proxy.context.plan import Edit
from proxy.context.summaries.references import (
    LineReference,
    find_dangling_edits,
    find_references,
    find_referred_calls,
    find_referred_lines,
    has_broken_reference,
    has_reference,
    is_thinned,
    mark_broken_references,
)
from tests.context.stages.test_refer_repeats import FILE, ROWS, make_plan, running
from tests.conversations import assistant, build_view, call, result, user


def test_the_references_of_a_text_are_read() -> None:
    text = (
        "first\n[80 lines (1-80): as lines 1-80 of result k3j2h5g7a4, 2 steps before this: read {}]\n"
        "[9 lines: as lines 3-11 of call abcdefghij, content, in this step: write {}]"
    )
    assert find_references(text) == [
        LineReference(0, 80, "result", "k3j2h5g7a4"),
        LineReference(2, 11, "call", "abcdefghij"),
    ]
    assert (has_reference(text), has_broken_reference(text)) == (True, False)
    broken = '[80 lines (1-80): lines 1-80 of result k3j2h5g7a4, which has left; recall("k3j2h5g7a4")]'
    assert (has_reference(broken), has_broken_reference(broken)) == (False, True)
    made = [Edit(b"k", "text", one, "refer_repeats", "", 9, 8) for one in (text, broken, "1\tx\ny")]
    assert [is_thinned(edit) for edit in made] == [False, False, True]


def test_the_arguments_that_a_reference_names_are_found() -> None:
    written = {
        **assistant(None),
        "tool_calls": [call("1", "write", json.dumps({"path": "a", "content": "\n".join(ROWS)}))],
    }
    read = {**assistant(None), "tool_calls": [call("2", "read", '{"path": "a"}')]}
    view, _ = make_plan([user("a"), written, result("1", "ok"), read, result("2", "\n".join(FILE))])
    assert find_referred_calls(view) == {public_id(view.keys[1])}
    assert find_referred_lines(view) == {}


def test_a_reference_to_what_the_budget_has_cut_is_found() -> None:
    view, edits = make_plan(running("\n".join(ROWS), "\n".join(ROWS)))
    before = build_view(running("\n".join(ROWS), "\n".join(ROWS)))
    key = view.keys[4]
    cut = Edit(view.keys[2], "text", "a part", "fit_budget", "", 999, 9)
    assert find_dangling_edits(before, edits, edits) == frozenset()
    assert find_dangling_edits(before, edits, {**edits, cut.key: cut}) == {key}
    assert find_dangling_edits(view, edits, {**edits, cut.key: cut}) == frozenset(), "it was in force before, and stays"


LONG_NUMBER = "9" * 5000
"""A number that Python refuses to read."""


@pytest.mark.parametrize("lines", [f"{LONG_NUMBER}-2", f"1-{LONG_NUMBER}"])
def test_a_result_that_imitates_a_reference_with_a_long_number_is_made_shorter_all_the_same(lines: str) -> None:
    imitated = f"[8 lines: as lines {lines} of result abcdefghij, in this step: read {{}}]"
    view, edits = make_plan([*running("\n".join(ROWS), "\n".join([imitated, *ROWS])), assistant("a"), user("b")])
    assert set(edits) == {view.keys[4]}
    assert find_referred_lines(view) == {public_id(view.keys[2]).encode(): [(0, 80)]}
    assert mark_broken_references(view, edits) == edits


def test_references_are_marked_in_linear_time_where_a_result_imitates_them() -> None:
    beginning = "[8 lines: as lines 1-8 of result abcdefghij"
    imitated = beginning + ", in this step: " * 30_000 + "x"
    view, edits = make_plan(running("\n".join(ROWS), "\n".join([imitated, *ROWS])))
    began = time.thread_time()
    assert mark_broken_references(view, edits) == edits
    assert time.thread_time() - began < 5


@pytest.mark.parametrize("of", ["result", "call"])
def test_a_reference_whose_text_has_left_is_marked_whatever_its_call_says(of: str) -> None:
    step = {
        **assistant(None),
        "tool_calls": [call("1", "read, in this step: a", '{"path": "a, 2 steps before this: b]"}')],
    }
    written = {
        **assistant(None),
        "tool_calls": [call("1", "write", json.dumps({"path": "a", "a, b": "\n".join(ROWS)}))],
    }
    values = [user("a"), *((step, result("1", "\n".join(FILE))) if of == "result" else (written, result("1", "ok")))]
    values += [{**assistant(None), "tool_calls": [call("1", "read", '{"path": "b"}')]}, result("1", "\n".join(FILE))]
    view, edits = make_plan(values)
    key = view.keys[2 if of == "result" else 1]
    gone = {**edits, key: Edit(key, "gone", None, "operator", "", 999, 0)}
    text = mark_broken_references(view, gone)[view.keys[4]].text or ""
    assert text.endswith(", which has left]")
    assert f"of {of} {public_id(key)}" in text


def test_marking_many_references_can_be_stopped() -> None:
    name = public_id(build_view(running("\n".join(ROWS), "a")).keys[2])
    pointers = [f"[1 lines: as lines {k}-{k} of result {name}, in this step: bash {k}]" for k in range(1, 81)]
    view, edits = make_plan(running("\n".join(ROWS), "\n".join([*ROWS, *pointers])))
    assert "\n".join(pointers) in (edits[view.keys[4]].text or "")
    edits[view.keys[2]] = Edit(view.keys[2], "text", "\n".join(ROWS[:40]), "fit_budget", "", 999, 9)
    asked: list[int] = []
    with cancellation_check(lambda: asked.append(1)):
        marked = mark_broken_references(view, edits)[view.keys[4]].text or ""
    assert marked.count(", which has left") == 1, "the tool wrote the others"
    assert len(asked) >= len(pointers)


def test_each_reference_to_a_result_of_which_a_part_has_left_is_marked_by_its_lines() -> None:
    view = build_view(running("\n".join(ROWS), "\n".join(ROWS)))
    name = public_id(view.keys[2])
    text = "\n".join(f"[1 lines: as lines {k}-{k} of result {name}, in this step: bash {k}]" for k in range(1, 81))
    edits = {
        view.keys[2]: Edit(view.keys[2], "text", "\n".join(ROWS[:40]), "fit_budget", "", 999, 9),
        view.keys[4]: Edit(view.keys[4], "text", text, "refer_repeats", "", 999, 999),
    }
    marked = (mark_broken_references(view, edits)[view.keys[4]].text or "").split("\n")
    assert [", which has left" in line for line in marked] == [False] * 40 + [True] * 40
