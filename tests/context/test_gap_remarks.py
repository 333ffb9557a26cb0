from __future__ import annotations

from msgspec.structs import replace

from proxy.context.fit import REMARK_NAME, add_gap_remarks
from proxy.context.plan import Edit
from proxy.context.policy import GAP_REMARK
from tests.conversations import Json, assistant, build_view, result, system, user

TALK: list[Json] = [system(), user("a"), assistant("b"), user("c"), assistant(None, "1"), result("1", "r"), user("d")]


def make_removals(values: list[Json], *places: int, stage: str = "fit_budget") -> dict[bytes, Edit]:
    view = build_view(values)
    return {view.keys[n]: Edit(view.keys[n], "gone", None, stage, "", view.original_tokens[n], 0) for n in places}


def list_remark_places(values: list[Json], edits: dict[bytes, Edit], old: dict[bytes, Edit] | None = None) -> list[int]:
    """The messages with a remark."""
    view = build_view(values)
    found = add_gap_remarks(view, edits, old or {}, GAP_REMARK)
    return [n for n, k in enumerate(view.keys) if k in found and GAP_REMARK in (found[k].text or "") and n]


def test_the_user_message_or_result_before_the_gap_bears_it() -> None:
    assert list_remark_places(TALK, make_removals(TALK, 2, 3)) == [1]
    assert list_remark_places(TALK, make_removals(TALK, 3, 4, 5)) == [1], "an answer is never written into"
    assert list_remark_places(TALK, make_removals(TALK, 4, 5)) == [3]
    more = [*TALK[:6], assistant("e"), *TALK[6:]]
    assert list_remark_places(more, make_removals(more, 6)) == [5]
    assert list_remark_places(TALK, make_removals(TALK, 1, 2)) == [], "nothing stands before it"
    assert list_remark_places(TALK, make_removals(TALK, 2, 4, 5)) == [1, 3]


def test_a_gap_that_another_text_explains_gets_no_remark() -> None:
    for stage in ("summarize_old", "compress_levels", "distil_results", "refer_repeats"):
        assert list_remark_places(TALK, make_removals(TALK, 2, 3, stage=stage)) == []


def test_a_gap_remark_is_inserted_once_and_stays() -> None:
    view = build_view(TALK)
    first = add_gap_remarks(view, make_removals(TALK, 2, 3), {}, GAP_REMARK)
    edit = first[view.keys[1]]
    assert (edit.action, edit.text, edit.stage) == ("append", GAP_REMARK, REMARK_NAME)
    assert edit.after == view.original_tokens[1] + len(GAP_REMARK)
    grown = {**first, **make_removals(TALK, 4, 5)}
    assert add_gap_remarks(view, grown, first, GAP_REMARK) == grown


def test_a_gap_that_was_there_before_is_left_as_it_went_out() -> None:
    old = make_removals(TALK, 2, 3)
    assert list_remark_places(TALK, {**old, **make_removals(TALK, 4, 5)}, old) == [1], "the gap has grown"
    view = build_view(TALK)
    shorter = {**old, view.keys[5]: Edit(view.keys[5], "text", "s", "shorten_results", "", 5, 4)}
    assert list_remark_places(TALK, shorter, old) == []


def test_a_text_that_takes_the_place_of_another_bears_it_too() -> None:
    talk = [
        user("a"),
        assistant(None, "1"),
        result("1", "r" * 90),
        assistant("b"),
        user("c"),
        assistant("d"),
        user("e"),
    ]
    view = build_view(talk)
    k = view.keys[2]
    first = add_gap_remarks(view, make_removals(talk, 3, 4, 5), {}, GAP_REMARK)
    assert first[k].text == GAP_REMARK
    stub = Edit(k, "text", "short", "shorten_results", "stale", view.original_tokens[2], 9)
    again = add_gap_remarks(view, {**first, k: stub}, first, GAP_REMARK)
    assert again[k] == replace(stub, text="short" + GAP_REMARK, after=9 + len(GAP_REMARK))


def test_a_gap_remark_is_never_written_into_pinned_or_guarded_messages() -> None:
    talk = [user("a"), assistant("x"), user("[pin] b"), assistant("c"), user("d")]
    assert list_remark_places(talk, make_removals(talk, 3)) == []
    view = build_view(talk)
    assert view.keys[0] in add_gap_remarks(view, make_removals(talk, 3), {}, GAP_REMARK)
