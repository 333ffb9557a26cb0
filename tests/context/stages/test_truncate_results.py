"""Rows A6 and A7: three tiers, cut 20 % from the head and 80 % from the tail, the hint not counted."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.chat.chain import public_id
from proxy.context.branch_state import BranchState
from proxy.context.plan import Edit, Proposal
from proxy.context.policy import Policy
from proxy.context.stages.truncate_results import QUERY_HINT, TruncateResults
from proxy.context.view import View
from tests.conversations import Json, assistant, build_view, result, user

LITERAL = Policy("p", schedule="always")
LONG = "".join(chr(ord("a") + n % 26) for n in range(10_000))


def rounds(count: int, text: str = LONG) -> list[Json]:
    return [m for _ in range(count) for m in (assistant(None, "1"), result("1", text))]


def cuts(view: View, stage: TruncateResults | None = None) -> dict[int, Proposal]:
    found = list((stage or TruncateResults())(view))
    assert len({p.index for p in found}) == len(found)
    return {p.index: p for p in found}


def count_kept_chars(proposal: Proposal) -> int:
    """Characters of the result that are left."""
    head, _, rest = (proposal.text or "").partition("\n[...]\n")
    tail, _, hint = rest.rpartition("\n")
    assert "TRUNCATED" in hint
    return len(head) + len(tail)


def test_the_newest_five_older_ones_and_inactive_groups_are_cut_to_5000_1000_and_300() -> None:
    view = build_view([user("a"), *rounds(2), assistant("b"), user("c"), *rounds(7)], policy=LITERAL)
    results = [n for n, is_result in enumerate(view.is_result) if is_result]
    found = cuts(view)
    assert [count_kept_chars(found[n]) for n in results] == [300, 300, 1000, 1000, 5000, 5000, 5000, 5000, 5000]


@pytest.mark.parametrize("limit", [5000, 1000, 300])
def test_a_result_at_its_limit_stays_and_one_over_it_is_cut(limit: int) -> None:
    behind = {5000: [], 1000: rounds(5, ""), 300: [assistant("b"), user("c")]}[limit]
    for over in (0, 100):
        view = build_view([user("a"), *rounds(1, "x" * (limit + over)), *behind], policy=LITERAL)
        found = cuts(view)
        assert list(found) == [2] * (over > 0)
        assert all(count_kept_chars(p) == limit for p in found.values())


def test_a_result_that_its_hint_would_make_longer_stays() -> None:
    lengths = range(300, 400)
    texts = [
        [one.text or "" for one in cuts(build_view(values, policy=LITERAL)).values()]
        for length in lengths
        for values in [[user("a"), *rounds(1, "x" * length), assistant("b"), user("c")]]
    ]
    assert all(len(text) < length for length, made in zip(lengths, texts, strict=True) for text in made)
    assert texts[-1], "it is cut where that makes it shorter"


def test_a_fifth_of_what_is_kept_is_from_the_head_and_the_rest_from_the_tail() -> None:
    view = build_view([user("a"), *rounds(1), user("b")], policy=LITERAL, offered=frozenset({"query_db"}))
    text = cuts(view)[2].text or ""
    hint = (
        "... [TRUNCATED. Use query_db(sql=\"SELECT content FROM messages WHERE id='"
        f"{public_id(view.keys[2])}'\") to see full output]"
    )
    assert text == f"{LONG[:60]}\n[...]\n{LONG[-240:]}\n{hint}"


def test_the_hint_names_the_message_and_how_much_is_missing() -> None:
    text = TruncateResults(head=0.5).cut("a" * 80 + "b" * 80, 100, "abc", "<MISSING> left out of <ID>")
    assert text == f"{'a' * 50}\n[...]\n{'b' * 50}\n60 left out of abc"


def test_a7_a_hint_names_no_tool_that_the_model_does_not_have() -> None:
    values = [user("a"), *rounds(1), user("b")]

    def hint(*offered: str) -> str:
        view = build_view(values, policy=LITERAL, offered=frozenset(offered))
        return (cuts(view)[2].text or "").rpartition("\n")[2].replace(public_id(view.keys[2]), "<ID>")

    missing = len(LONG) - 300
    assert hint() == f"... [TRUNCATED. {missing} characters are missing]"
    assert hint("recall", "save_memo") == f'... [TRUNCATED. {missing} characters are missing; recall("<ID>") has all]'
    assert hint("recall", "query_db") == QUERY_HINT


@given(st.text(min_size=1, max_size=300), st.integers(0, 250), st.floats(0, 1))
def test_a_cut_keeps_exactly_its_limit_from_both_ends(text: str, limit: int, head: float) -> None:
    if len(text) > limit:
        first = int(limit * head)
        made = TruncateResults(head=head).cut(text, limit, "id", "!")
        last = text[len(text) - (limit - first) :]
        assert made == text[:first] + "\n[...]\n" + last + "\n!"
        assert len(made) == limit + len("\n[...]\n") + len("\n!")


def test_cuts_are_made_between_characters_not_inside_them() -> None:
    view = build_view([user("a"), *rounds(1, "ä😀" * 1000), user("b")], policy=LITERAL)
    text = cuts(view)[2].text or ""
    assert text.startswith("ä😀" * 30 + "\n")
    assert count_kept_chars(cuts(view)[2]) == 300
    text.encode()


def test_under_always_a_result_is_cut_again_as_it_ages() -> None:
    talk = [user("a"), *rounds(1)]
    ages: list[list[Json]] = [[], rounds(4), rounds(5), [*rounds(5), assistant("b"), user("c")]]
    limits = [count_kept_chars(cuts(build_view([*talk, *more], policy=LITERAL))[2]) for more in ages]
    assert limits == [5000, 5000, 1000, 300]


def test_else_a_result_is_cut_once_when_it_has_left_the_first_tier() -> None:
    talk = [user("a"), *rounds(1)]
    assert 2 not in cuts(build_view([*talk, *rounds(4)]))
    view = build_view([*talk, *rounds(5)])
    first = cuts(view)[2]
    assert count_kept_chars(first) == 1000
    edit = Edit(view.keys[2], "text", first.text, first.stage, first.reason, 10_004, first.after)
    later = build_view([*talk, *rounds(5), assistant("b"), user("c")], state=BranchState(edits={edit.key: edit}))
    assert 2 not in cuts(later)
    assert count_kept_chars(cuts(later)[4]) == 300


def test_else_a_result_that_was_never_cut_is_cut_to_the_tier_in_which_it_is_now() -> None:
    assert count_kept_chars(cuts(build_view([user("a"), *rounds(1), assistant("b"), user("c")]))[2]) == 300


def test_a_proposal_says_since_when_it_was_possible() -> None:
    active = build_view([user("a"), *rounds(8)])
    # Results at 2, 4, ...: the first has been out of the newest five since the sixth, at 12.
    assert {n: p.since for n, p in cuts(active).items()} == {2: 12, 4: 14, 6: 16}
    groups = build_view([user("a"), *rounds(1), assistant("b"), user("c"), *rounds(1), assistant("d"), user("e")])
    # The first group has been inactive since the second began, at 4, not since the third.
    assert {n: p.since for n, p in cuts(groups).items()} == {2: 4, 6: 8}


def test_a_proposal_says_why() -> None:
    found = cuts(build_view([user("a"), *rounds(6), assistant("b"), user("c"), *rounds(6)], policy=LITERAL))
    reasons = [p.reason for p in found.values()]
    assert reasons[0] == "inactive group: 10000 characters cut to 300"
    assert {r.split(":")[0] for r in reasons} == {"inactive group", "older results", "newest results"}
    assert {p.stage for p in found.values()} == {"truncate_results"}
    assert {p.action for p in found.values()} == {"text"}


def test_the_limits_of_all_three_tiers_are_settings() -> None:
    stage = TruncateResults(recent=1, recent_chars=90, active_chars=80, inactive_chars=70)
    view = build_view([user("a"), *rounds(1), user("b"), *rounds(2)], policy=LITERAL)
    assert [count_kept_chars(p) for p in cuts(view, stage).values()] == [70, 80, 90]
    none = TruncateResults(recent=0)
    assert [count_kept_chars(p) for p in cuts(build_view([user("b"), *rounds(2)], policy=LITERAL), none).values()] == [
        1000,
        1000,
    ]


def test_results_as_parts_are_cut_and_those_with_images_are_not() -> None:
    parts = [{"type": "text", "text": LONG}, {"type": "text", "text": LONG}]
    picture = {"type": "image_url", "image_url": {"url": "u"}}
    talk = [user("a"), assistant(None, "1", "2"), result("1", parts), result("2", [*parts, picture]), user("b")]
    assert list(cuts(build_view(talk))) == [2]


def test_user_messages_that_are_really_tool_output_are_cut_too() -> None:
    talk = [user("fix"), assistant("ls"), user("OBS " + LONG), assistant("ls"), user("OBS 2"), user("next")]
    assert list(cuts(build_view(talk, policy=Policy("p", observation=re.compile("^OBS"))))) == [2]
    assert list(cuts(build_view(talk))) == []
