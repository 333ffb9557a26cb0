"""The schedules that choose, on numbers that are worked out by hand. PLAIN's prices: w 1.25, r 0.1."""

from __future__ import annotations

import dataclasses

import pytest
from msgspec.structs import replace

from proxy.context.branch_state import BranchState
from proxy.context.plan import ContentKind, LossLimit, Proposal
from proxy.context.schedule import count_saved_tokens, estimate_requests_left, over_budget, when_it_pays
from proxy.context.view import View, compute_mark
from tests.conversations import Json, assistant, build_view, change_view, make_messages, result, user

SINCE = 4
"""Index of the second call in `talk`: from it on, the first result could have been shortened."""


def talk(rounds: int, size: int = 996) -> list[Json]:
    """A prompt of 10 tokens and rounds of 127: a call of 27 and a result of 100; the first result has size + 4."""
    made = [user("u" * 6)]
    for n in range(rounds):
        made += [assistant(None, "1"), result("1", "r" * (96 if n else size))]
    return made


def build_cached_view(values: list[Json], *, warm: bool = True, tool_tokens: int = 0) -> View:
    """The view in which all but the last round is in the provider's cache."""
    if not warm:
        return build_view(values)
    marks = tuple(compute_mark(m, None) for m in make_messages(*values[:-2]))
    return build_view(values, state=BranchState(sent_marks=marks, sent_at=0.0), now=1.0, tool_tokens=tool_tokens)


def shorten(index: int, after: int, since: int = SINCE) -> Proposal:
    return Proposal(index, "text", "test", "", after, "", since)


def test_what_a_proposal_saves_is_never_less_than_nothing() -> None:
    view = build_cached_view(talk(3))
    assert count_saved_tokens(view, shorten(2, 100)) == 900
    assert count_saved_tokens(view, shorten(2, 2000)) == 0


# over_budget. talk(4): 10 + (27 + 1000) + 3 * 127 = 1418 tokens.


def test_over_budget_takes_nothing_while_the_prompt_is_at_the_high_mark() -> None:
    view = build_cached_view(talk(4))
    assert view.total == 1418
    assert over_budget(view, [shorten(2, 0)], 1418, 100) == []


def test_over_budget_takes_the_oldest_down_to_the_low_mark() -> None:
    view = build_cached_view(talk(4))
    found = [shorten(2, 900), shorten(4, 50), shorten(6, 50), shorten(8, 50)]
    # 1418 - 100 = 1318, - 50 = 1268, - 50 = 1218, - 50 = 1168
    assert over_budget(view, found, 1417, 1318) == found[:1]
    assert over_budget(view, found, 1417, 1317) == found[:2]
    assert over_budget(view, found, 1417, 1218) == found[:3]
    assert over_budget(view, found, 1417, 0) == found


# when_it_pays. The first result of 1000 can go down to 100: 900 tokens are saved, with 10 + 27 = 37 in front of it.
# With k rounds the prompt has 10 + 1027 + 127 (k - 1) tokens, and all but the last 127 are cached.


def price(rounds: int) -> float:
    total = 10 + 1027 + 127 * (rounds - 1)
    cached = total - 127
    keep = 1.25 * 127 + 0.1 * cached
    cut = 1.25 * (total - 900 - 37) + 0.1 * 37
    return cut - keep


def rent(rounds: int) -> float:
    return 0.1 * 900 * (rounds - 2)  # `since` is in the second round: one request is one of its assistant messages


def test_the_price_of_an_edit_is_what_this_request_costs_more_and_the_rent_is_what_carrying_has_cost() -> None:
    # 3 rounds: 1291 tokens, 1164 cached. Keep: 158.75 + 116.4 = 275.15. Cut: 1.25 * 354 + 3.7 = 446.2.
    assert [price(3), rent(3)] == pytest.approx([171.05, 90.0])
    assert when_it_pays(build_cached_view(talk(3)), [shorten(2, 100)]) == []
    # 4 rounds: 1418 tokens, 1291 cached. Keep: 158.75 + 129.1 = 287.85. Cut: 1.25 * 481 + 3.7 = 604.95.
    assert [price(4), rent(4)] == pytest.approx([317.1, 180.0])
    # The rent grows by 90 a round, the price by 127 * 1.15 = 146.05: with such a stub it never pays.
    assert all(when_it_pays(build_cached_view(talk(n)), [shorten(2, 100)]) == [] for n in range(3, 12))


def test_an_edit_is_made_in_the_round_in_which_its_rent_has_reached_its_price() -> None:
    # A result of 2004 that goes down to 4: rent 200 a round. Price: 1.25 * (354 - 96 + 127 (k - 3)) + ... by hand:
    # k = 3: total 2295, cached 2168, keep 158.75 + 216.8 = 375.55, cut 1.25 * 258 + 3.7 = 326.2: price below nothing.
    proposal = shorten(2, 4)
    assert when_it_pays(build_cached_view(talk(3, 2000)), [proposal]) == [proposal]
    # A result of 1204 that goes down to 4: k = 3: total 1495, cached 1368, keep 295.55, cut 326.2: 30.65; rent 120.
    assert when_it_pays(build_cached_view(talk(3, 1200)), [proposal]) == [proposal]
    # One of 704 that goes down to 4: k = 3: total 995, cached 868, keep 245.55, cut 326.2: 80.65; rent 70. Not yet.
    # k = 4: total 1122, cached 995, keep 258.25, cut 1.25 * 385 + 3.7 = 484.95: 226.7; rent 140. And so on: never.
    assert when_it_pays(build_cached_view(talk(3, 700)), [proposal]) == []
    assert when_it_pays(build_cached_view(talk(4, 700)), [proposal]) == []
    # Half the price is enough where that is asked for: 2 * 70 >= 80.65.
    assert when_it_pays(build_cached_view(talk(3, 700)), [proposal], rent=2) == [proposal]


def test_tools_that_come_with_the_first_edit_are_part_of_its_price() -> None:
    # As above with 2004: keep 375.55, rent 200. Nothing is served any more: 1.25 * (295 + 80) = 468.75: 93.2.
    proposal = shorten(2, 4)
    assert when_it_pays(build_cached_view(talk(3, 2000), tool_tokens=80), [proposal]) == [proposal]
    # 1.25 * (295 + 164) = 573.75: 198.2, and a token more is 199.45, two 200.7.
    assert when_it_pays(build_cached_view(talk(3, 2000), tool_tokens=165), [proposal]) == [proposal]
    assert when_it_pays(build_cached_view(talk(3, 2000), tool_tokens=166), [proposal]) == []


def test_references_need_no_tools_and_do_not_pay_for_them() -> None:
    stub = shorten(2, 4)
    reference = replace(shorten(6, 4, 6), refers_to_view=True)
    view = build_cached_view(talk(3, 2000), tool_tokens=2000)
    # The newest result was never sent, so its reference costs no cached token. The stub would bring the tools along.
    assert when_it_pays(view, [stub, reference]) == [reference]
    assert when_it_pays(view, [stub]) == []
    assert when_it_pays(view, [stub, replace(reference, refers_to_view=False)]) == [], "a record is looked up again"


def test_a_cold_cache_makes_every_edit_free() -> None:
    found = [shorten(2, 100), shorten(4, 99)]
    assert when_it_pays(build_cached_view(talk(3), warm=False), found) == found


def test_a_front_that_the_client_moved_makes_every_edit_behind_it_free() -> None:
    values = talk(4)
    marks = tuple(compute_mark(m, None) for m in make_messages(user("another"), *values[1:-2]))
    moved = build_view(values, state=BranchState(sent_marks=marks, sent_at=0.0), now=1.0)
    assert moved.cached_tokens == 0
    found = [shorten(2, 999)]
    assert when_it_pays(moved, found) == found


def test_what_saves_nothing_is_not_taken_even_where_it_is_free() -> None:
    assert when_it_pays(build_cached_view(talk(3), warm=False), [shorten(2, 1000), shorten(4, 2000)]) == []
    assert when_it_pays(build_cached_view(talk(3)), []) == []


def test_edits_that_do_not_pay_alone_pay_together() -> None:
    values = talk(12)
    view = build_cached_view(values)
    # 12 rounds: 2434 tokens, 2307 cached, keep 158.75 + 230.7 = 389.45. Each of results 2 to 11 saves 96 of 100.
    # The batch from result j (1 is the first) saves 96 (12 - j), and its rent is 0.1 * 96 a round and result.
    found = [shorten(2 * j, 4, since=2 * j + 1) for j in range(2, 12)]
    assert when_it_pays(view, found[:1]) == []
    # All ten: left 2434 - 960 = 1474 behind 10 + 1027 + 27 = 1064: cut 1.25 * 410 + 106.4 = 618.9: price 229.45.
    # Their rent: `since` is the call after each, in round j + 1: 12 - (j + 1) requests: 0.1 * 96 * (9 + 8 + ... + 0)
    # = 432. It pays, from the oldest on.
    assert when_it_pays(view, found) == found


def test_the_longest_batch_that_has_paid_is_taken() -> None:
    values = talk(12)
    view = build_cached_view(values)
    late = [shorten(2 * j, 4, since=2 * j + 1) for j in range(2, 12)]
    # The first result could save 10 of 1000 since just now: cut 1.25 * (2434 - 970 - 37) + 3.7 = 1787.45, price 1398;
    # rent 432 + 0. The batch without it pays, so that is the longest.
    assert when_it_pays(view, [shorten(2, 990, since=23), *late]) == late
    # Had it been possible from the second round on with 900 saved: 0.1 * 900 * 10 = 900 of rent more, 1332 in all;
    # left 2434 - 960 - 900 = 574: cut 1.25 * 537 + 3.7 = 674.95, price 285.5.
    whole = [shorten(2, 100, since=3), *late]
    assert when_it_pays(view, whole) == whole


def test_a_batch_loses_no_more_than_the_limit() -> None:
    # As above with 1204: the price is 30.65. To fetch the result again costs 1.25 * 1204 = 1505.
    view, proposal = build_cached_view(talk(3, 1200)), replace(shorten(2, 4), content="other")
    for most, chance, wanted in (
        (1535.7, 1.0, [proposal]),
        (1535.6, 1.0, []),
        (632.7, 0.4, [proposal]),
        (632.6, 0.4, []),
    ):
        assert when_it_pays(view, [proposal], loss_limit=LossLimit(most, chance)) == wanted
    # A reference leaves its text in the prompt: only the price can be lost.
    reference = shorten(2, 4)
    assert when_it_pays(view, [reference], loss_limit=LossLimit(30.7)) == [reference]
    assert when_it_pays(view, [reference], loss_limit=LossLimit(30.6)) == []


def test_a_part_of_a_batch_is_taken_where_the_whole_could_lose_more() -> None:
    view = build_cached_view(talk(12), warm=False)
    found = [replace(shorten(2 * j, 4, since=2 * j + 1), content="other") for j in range(2, 12)]
    # On a cold cache nothing but the results can be lost, each 1.25 * 100.
    assert when_it_pays(view, found, loss_limit=LossLimit(1250.0)) == found
    assert when_it_pays(view, found, loss_limit=LossLimit(500.0)) == found[6:]
    assert when_it_pays(view, found, loss_limit=LossLimit(124.0)) == []
    riders = [replace(one, rider=True) for one in found[:-1]] + found[-1:]
    assert when_it_pays(view, riders, loss_limit=LossLimit(500.0)) == found[-1:], "what goes along can be lost too"


def test_a_prompt_that_an_edit_makes_too_short_for_the_cache_is_written_again() -> None:
    # As above with 2004: keep 375.55, rent 200. The prompt of 295 is cut 368.75 where its front is not served, price
    # -6.8. It has grown by 765 a request, so it is too short once more: 1.15 * 295 = 339.25.
    view, proposal = build_cached_view(talk(3, 2000)), shorten(2, 4)
    for least, wanted in ((0, [proposal]), (295, [proposal]), (296, []), (2295, [])):
        assert when_it_pays(replace(view, model=dataclasses.replace(view.model, min=least)), [proposal]) == wanted
    assert view.count_served_tokens()[2] == 37
    assert replace(view, model=dataclasses.replace(view.model, min=38)).count_served_tokens()[2] == 0


def test_an_eager_policy_shortens_a_result_that_was_sent_once_without_waiting_for_its_rent() -> None:
    view = build_cached_view(talk(12))
    # 12 rounds: 2434 tokens, 2307 cached, keep 389.45. The result of round 11 goes from 100 to 30 behind 2207 tokens:
    # cut 1.25 * (2434 - 70 - 2207) + 220.7 = 416.95: price 27.5. It was possible just now: no rent.
    newest = [shorten(22, 30, since=23)]
    assert when_it_pays(view, newest, payback=0.5) == []
    # Within half of the 12 requests it saves 0.1 * 70 * 6 = 42, within a quarter 21.
    assert when_it_pays(view, newest, payback=0.5, eager=True) == newest
    assert when_it_pays(view, newest, payback=0.25, eager=True) == []
    # Page faults that eat half of the saving leave 21.
    assert when_it_pays(view, newest, payback=0.5, fault_cost=lambda _: 3.5, eager=True) == []
    # A stage may make it wait.
    waiting = [replace(one, waits_for_rent=True) for one in newest]
    assert when_it_pays(view, waiting, payback=0.5, eager=True) == []


def test_an_eager_policy_waits_for_the_rent_of_a_result_with_sent_messages_behind_it() -> None:
    # The same result of round 10, in front of 2080: cut 1.25 * (2434 - 70 - 2080) + 208 = 563: price 173.55. Within 500
    # times the requests it saves enough, and still it waits.
    assert when_it_pays(build_cached_view(talk(12)), [shorten(20, 30, since=23)], payback=500.0, eager=True) == []


@pytest.mark.parametrize("requests", [1, 2, 10, 40, 63, 64, 65, 100, 130])
def test_renting_until_the_price_is_reached_costs_at_most_twice_the_best_in_hindsight(requests: int) -> None:
    """One stale result of 404 tokens in a prompt of 2445, all of it cached: with each request its rent is paid once
    more, or the price of its edit. In hindsight: the whole rent, or the price at the first request. The prompt grows
    by 4 tokens a request, and what that adds to the price is allowed for."""
    proposal = shorten(2, 4, since=1)
    base, rent = talk(1, 400), 0.1 * 400
    paid, first, price, bought = 0.0, 0.0, 0.0, 0
    for n in range(1, requests + 1):
        values = [*base, *[assistant("") for _ in range(n)], user("u" * 1996)]
        marks = tuple(compute_mark(m, None) for m in make_messages(*values))
        view = build_view(values, state=BranchState(sent_marks=marks, sent_at=0.0), now=1.0)
        price = 1.25 * (view.total - 400 - 37) + 0.1 * 37 - 0.1 * view.total
        first = first or price
        if when_it_pays(view, [proposal]):
            paid, bought = paid + price, n
            break
        paid += rent
    # The price is 2264.6 + 4.6 n, the rent paid 40 n: they meet between 63 and 64.
    assert bought == (64 if requests >= 64 else 0)
    assert paid <= 2 * (min(rent * requests, first) + price - first)


# Page faults. A proposal saves 0.1 * 900 = 90 a request.


def test_a_proposal_that_saves_no_more_than_its_page_faults_cost_is_left_out() -> None:
    view = build_cached_view(talk(4), warm=False)
    assert when_it_pays(view, [shorten(2, 100)], fault_cost=lambda _: 89.0) == [shorten(2, 100)]
    assert when_it_pays(view, [shorten(2, 100)], fault_cost=lambda _: 90.0) == []
    assert when_it_pays(view, [shorten(2, 100)], fault_cost=lambda _: float("inf")) == []


def test_what_page_faults_cost_is_taken_off_the_rent() -> None:
    # It saves 0.1 * 1900 = 190 a request, of which 20 are lost again, while the price grows by 146 a request.
    found = [shorten(2, 100, since=11)]
    first = next(n for n in range(7, 60) if when_it_pays(build_cached_view(talk(n, 1996)), found))
    later = next(
        n for n in range(7, 60) if when_it_pays(build_cached_view(talk(n, 1996)), found, fault_cost=lambda _: 20.0)
    )
    assert (first, later) == (18, 28)


def test_riders_are_left_out_the_same_way() -> None:
    view = build_cached_view(talk(4), warm=False)
    rider = replace(shorten(4, 50), rider=True)
    assert when_it_pays(view, [shorten(2, 100), rider]) == [shorten(2, 100), rider]
    assert when_it_pays(view, [shorten(2, 100), rider], fault_cost=lambda p: 60.0 if p.rider else 0.0) == [
        shorten(2, 100)
    ]


# A cold cache: `cached` is 0, `warm` is what it would be had nothing expired.


def cold(values: list[Json]) -> View:
    marks = tuple(compute_mark(m, None) for m in make_messages(*values[:-2]))
    return build_view(values, state=BranchState(sent_marks=marks, sent_at=0.0), now=301.0)


@pytest.mark.parametrize("content", ["other", None])
def test_searches_and_command_output_are_cut_at_once_on_a_cold_cache(content: ContentKind | None) -> None:
    view = cold(talk(4))
    assert (view.cached_tokens, view.warm_tokens) == (0, 1418 - 127)
    found = [replace(shorten(2, 100), content=content)]
    assert when_it_pays(view, found) == found


@pytest.mark.parametrize("content", ["view", "unknown"])
def test_file_views_are_cut_on_a_cold_cache_when_they_would_be_on_a_warm_one(content: ContentKind) -> None:
    found = [replace(shorten(2, 100, since=11), content=content)]
    assert [bool(when_it_pays(build_cached_view(talk(n, 1996)), found)) for n in (8, 17, 18)] == [False, False, True]
    assert [bool(when_it_pays(cold(talk(n, 1996)), found)) for n in (8, 17, 18)] == [False, False, True]


def test_on_a_cold_cache_searches_go_without_the_views() -> None:
    view = cold(talk(8, 1996))
    late = [replace(shorten(n, 50), content="other") for n in (12, 14)]
    assert when_it_pays(view, [replace(shorten(2, 100, since=11), content="view"), *late]) == late


# Earlier conversations of the same kind. The first result can go from 1,000 tokens to 100, and 300 tokens of another
# one stand behind it from its request on. Each further request adds two short messages.


def test_requests_left_are_those_that_three_quarters_of_the_longer_conversations_went_past() -> None:
    assert estimate_requests_left((), 5) is None
    assert estimate_requests_left((5, 5, 4, 9, 9), 5) is None, "two were longer"
    assert estimate_requests_left((9, 7, 12, 3), 5) == 2
    assert estimate_requests_left(range(6, 14), 5) == 3
    assert estimate_requests_left(range(6, 14), 12) is None


CUT = replace(shorten(2, 100), content="other")


def make_steps(requests: int) -> View:
    """The view of the request after so many answers."""
    first = [user("u" * 6), assistant(None, "1"), result("1", "r" * 996), assistant(None, "2"), result("2", "s" * 296)]
    return build_cached_view(first + [assistant("a"), user("b")] * (requests - 2))


def find_first_cut(*lengths: int, predicted_rent: float = 4.0) -> int:
    """The request at which the first result is cut; 0 if it is not in the first 40."""
    for now in range(2, 41):
        view = change_view(make_steps(now), conversation_lengths=lengths)
        if when_it_pays(view, [CUT], 1.0, 0.5, predicted_rent=predicted_rent):
            return now
    return 0


def compute_steps_price(now: int) -> float:
    view = make_steps(now)
    cached = view.total - sum(view.tokens[-2:])
    keep = 1.25 * (view.total - cached) + 0.1 * cached
    return 1.25 * (view.total - 900 - 37) + 0.1 * 37 - keep


def test_a_part_of_the_rent_is_enough_where_earlier_conversations_went_on_for_long() -> None:
    by_rent = next(n for n in range(2, 41) if min(90 * (n - 2), 0.5 * 90 * n) >= compute_steps_price(n))
    by_part = next(n for n in range(2, 41) if 4 * 90 * (n - 2) >= compute_steps_price(n))
    assert 2 < by_part < by_rent
    assert find_first_cut() == by_rent
    assert find_first_cut(100, 100, 100) == by_part
    assert find_first_cut(100, 100) == by_rent, "two conversations are no evidence"
    assert find_first_cut(100, 100, 100, predicted_rent=0.0) == by_rent


def test_small_results_and_failed_runs_wait_for_the_whole_rent_all_the_same() -> None:
    by_rent, long = find_first_cut(), (100, 100, 100)
    waiting = replace(CUT, waits_for_rent=True)
    cut = next(
        n
        for n in range(2, 41)
        if when_it_pays(change_view(make_steps(n), conversation_lengths=long), [waiting], 1.0, 0.5, predicted_rent=4.0)
    )
    assert find_first_cut(*long) < cut <= by_rent
    assert cut == next(n for n in range(2, 41) if 90 * (n - 2) >= compute_steps_price(n)), "with time to pay back"


def test_a_batch_is_not_made_where_earlier_conversations_ended_before_it_would_have_paid_back() -> None:
    by_rent = find_first_cut()
    assert 90 * 2 < compute_steps_price(by_rent) <= 90 * 6
    soon, later = (change_view(make_steps(by_rent), conversation_lengths=[by_rent + left] * 3) for left in (2, 6))
    assert not when_it_pays(soon, [CUT], 1.0, 0.5, predicted_rent=4.0)
    assert when_it_pays(later, [CUT], 1.0, 0.5, predicted_rent=4.0)
    assert find_first_cut(8, 8, 8) == by_rent, "what goes on for longer than any before is judged by itself"


def test_references_to_repeated_text_wait_for_the_usual_rent_or_go_along() -> None:
    by_part, long = find_first_cut(100, 100, 100), (100, 100, 100)
    view = change_view(make_steps(by_part), conversation_lengths=long)
    reference = replace(CUT, content=None)
    assert not when_it_pays(view, [reference], 1.0, 0.5, predicted_rent=4.0), "what was read again is wanted there"
    second = Proposal(4, "text", "test", "", 50, "", SINCE)
    assert when_it_pays(view, [CUT, second], 1.0, 0.5, predicted_rent=4.0) == [CUT, second]
    later = change_view(make_steps(find_first_cut()), conversation_lengths=long)
    assert when_it_pays(later, [reference], 1.0, 0.5, predicted_rent=4.0) == [reference]
