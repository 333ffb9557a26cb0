"""Detection of page faults, their expected cost, and the sorts of results that are not cut any more."""

from __future__ import annotations

import dataclasses
import json

import pytest
from msgspec.structs import replace

from proxy.chat.chain import public_id
from proxy.context import page_faults
from proxy.context.branch_state import BranchState
from proxy.context.pipeline import rewrite
from proxy.context.plan import Edit, Proposal
from proxy.context.policy import Policy
from proxy.context.stages.shorten_results import ShortenResults
from proxy.context.view import View
from tests.context.agent import load_policy
from tests.conversations import (
    INPUTS,
    PLAIN_MODEL,
    Json,
    assistant,
    build_view,
    call,
    change_view,
    make_request,
    result,
    user,
)

RECORD = json.dumps(
    {"customer": "C1001", "orders": [{"order": f"O-{n:04d}", "cents": n * 17} for n in range(60)]}, indent=1
)


def lookup(name: str, number: int, text: str = RECORD, **arguments: str) -> list[Json]:
    made = call(str(number), name, json.dumps(arguments))
    return [{"role": "assistant", "content": None, "tool_calls": [made]}, result(str(number), text)]


def chatter(count: int) -> list[Json]:
    return [m for n in range(count) for m in (assistant("fine"), user(f"go on {n}"))]


def make_keys(values: list[Json]) -> list[bytes]:
    return [*build_view(values).keys]


def with_cut(values: list[Json], index: int = 2) -> View:
    view = build_view(values)
    edit = Edit(view.keys[index], "text", "{", "shorten_results", "", view.original_tokens[index], 5)
    return build_view(values, state=BranchState(edits={edit.key: edit}))


FIRST = [user("Refund O-0004 of C1001."), *lookup("get_customer", 1, customer="C1001"), *chatter(3)]


def test_a_cut_result_that_is_fetched_again_by_the_same_call_is_a_page_fault() -> None:
    again = [*FIRST, *lookup("get_customer", 2, customer="C1001")]
    found = page_faults.find_new_faults(with_cut(again), 0)
    assert [(one.kind, one.earlier_index, sort) for one, sort in found] == [("repeat", 2, "get_customer looks")]


def test_results_are_counted_by_the_beginning_of_a_long_name() -> None:
    """The counts of a tenant stay in memory, and a client chooses the names of its tools."""
    name = "get_" + "x" * 100_000
    made = [FIRST[0], *lookup(name, 1, customer="C1001"), *chatter(3), *lookup(name, 2, customer="C1001")]
    ((fault, sort),) = page_faults.find_new_faults(with_cut(made), 0)
    assert fault.earlier_index == 2
    assert len(sort) < 200


def test_a_result_that_stands_whole_and_is_fetched_again_is_none() -> None:
    assert page_faults.find_new_faults(build_view([*FIRST, *lookup("get_customer", 2, customer="C1001")]), 0) == []


def test_another_text_by_the_same_call_is_none() -> None:
    again = [*FIRST, *lookup("get_customer", 2, "\n".join(f"now it is {n}" for n in range(60)), customer="C1001")]
    assert page_faults.find_new_faults(with_cut(again), 0) == []


def test_what_was_counted_with_an_earlier_request_is_not_counted_again() -> None:
    again = [*FIRST, *lookup("get_customer", 2, customer="C1001")]
    assert page_faults.find_new_faults(with_cut(again), len(again)) == []


def test_each_recall_counts_as_a_page_fault() -> None:
    view = build_view(FIRST)
    name = public_id(view.keys[2])
    again = [*FIRST, *lookup("recall", 2, "[message]\nanything", id=name)]
    assert [one.kind for one, _ in page_faults.find_new_faults(with_cut(again), 0)] == ["recall"]


def test_a_recalled_text_is_of_the_sort_of_the_result_that_it_is_of() -> None:
    view = build_view(FIRST)
    again = build_view([*FIRST, *lookup("recall", 2, "[message]\nanything", id=public_id(view.keys[2]))])
    kinds = {n: one.result_kind for n, one in page_faults.find_result_lookups(again).by_result.items()}
    assert kinds == {2: "get_customer looks", 10: "get_customer looks"}
    unknown = build_view([*FIRST, *lookup("recall", 2, "no such message", id="aaaaaaaaaa")])
    assert page_faults.find_result_lookups(unknown).by_result[10].result_kind == "recall"


ROWS = [f"opt_{n:02d}_max = {n * 7919 + 100_003}" for n in range(60)]


def shell(command: str, number: int, text: str) -> list[Json]:
    return lookup("bash", number, text, command=command)


def cut_file(*more: Json) -> View:
    """A session that has cut a file of rows, and what it does later."""
    return with_cut([user("x"), *shell("cat a/b.ini", 1, "\n".join(ROWS)), *chatter(3), *more])


def find_kinds(view: View) -> list[tuple[str, int, str]]:
    return [(one.kind, one.earlier_index, sort) for one, sort in page_faults.find_new_faults(view, 0)]


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("grep -n opt_07 a/b.ini", f"8:{ROWS[7]}"),
        ("grep -rn opt_07 a", f"a/b.ini:8:{ROWS[7]}\na/c.ini:1:[first section]"),
        ("sort -r a/b.ini | head -3", "\n".join(ROWS[:-4:-1])),
    ],
)
def test_a_part_of_a_cut_result_by_another_call_is_an_excerpt(command: str, text: str) -> None:
    view = cut_file(*shell(command, 2, text))
    assert find_kinds(view) == [("excerpt", 2, "bash shows")]


def test_excerpts_are_looked_for_at_the_end_alone() -> None:
    """After a restart all results are new: to compare each with all cut ones took 6.5 s for 1,000."""
    excerpt = shell("grep -n opt_07 a/b.ini", 2, f"8:{ROWS[7]}")
    assert find_kinds(cut_file(*excerpt, *chatter(page_faults.MAX_NEW_MESSAGES))) == []
    assert find_kinds(cut_file(*excerpt, *chatter(3))) == [("excerpt", 2, "bash shows")]


def test_a_row_of_a_table_in_another_layout_is_an_excerpt() -> None:
    table = "\n".join(f"{k} north-{k:03d}   {k * 7919 + 10_007}   {k * 104_729}" for k in range(40))
    row = f"{{'of': 'north-011', 'sold': {11 * 7919 + 10_007}, 'made': {11 * 104_729}}}"
    made = lookup("run_python", 1, table, code="print(df)"), lookup("run_python", 2, row, code="df.loc['north-011']")
    assert find_kinds(with_cut([user("x"), *made[0], *chatter(3), *made[1]])) == [("excerpt", 2, "run_python runs")]


def test_a_sentence_of_a_page_is_an_excerpt() -> None:
    page = "\n".join(f"The {word} of the river moves the sand to the delta." for word in ("flow", "tide", "storm") * 9)
    found = shell("grep tide page.txt", 2, "The tide of the river moves the sand to the delta.")
    values = [user("x"), *lookup("fetch_page", 1, page, url="page"), *chatter(3), *found]
    assert find_kinds(with_cut(values)) == [("excerpt", 2, "fetch_page looks")]


@pytest.mark.parametrize(
    "later",
    [
        shell("grep -n opt_07 a/c.ini", 2, f"8:{ROWS[7].replace('=', '= 4 *')[:14]}"),  # has nothing new of it
        shell("cat a/c.ini", 2, ROWS[7]),  # another file
        shell("ls", 2, "a/b.ini a/c.ini and some more"),
        shell("echo 5 > a/b.ini", 2, ROWS[7]),
        [*shell("cat n.txt", 2, "\n".join(ROWS)), *shell("grep -n opt_07 n.txt", 3, f"8:{ROWS[7]}")],  # it is there
        [*shell("sed -i s/a/b/ x.py", 2, ""), *shell("make rows", 3, ROWS[7])],  # a run after a change
    ],
    ids=["other value", "other file", "paths", "written", "in plain sight", "run again"],
)
def test_what_shows_no_missing_part_again_is_no_excerpt(later: list[Json]) -> None:
    assert find_kinds(cut_file(*later)) == []


def test_what_the_stub_still_has_is_no_excerpt() -> None:
    view = build_view(values := [user("x"), *shell("cat a", 1, "\n".join(ROWS)), *shell("grep opt_07 a", 2, ROWS[7])])
    edit = Edit(view.keys[2], "text", ROWS[7], "shorten_results", "", view.original_tokens[2], 5)
    assert find_kinds(build_view(values, state=BranchState(edits={edit.key: edit}))) == []


def test_excerpts_cost_turns_by_the_tokens_of_what_was_cut_and_stop_no_sort() -> None:
    values = [user("x"), *shell("cat a/b.ini", 1, "\n".join(ROWS)), *chatter(48)]
    proposal = replace(shorten(2), content="other")
    view = build_view(values)
    quiet = page_faults.make_fault_cost(view)(proposal)
    turn = (page_faults.make_fault_cost(view)(proposal) / page_faults.PRIOR_RATES["other"]) - (
        PLAIN_MODEL.w * view.original_tokens[2]
    )
    tokens = view.original_tokens[2]
    sort = "bash shows" + page_faults.IN_PART
    for own, others, parts in (
        ((9 * tokens, 1), (0, 0), 0),
        ((9 * tokens, 4), (0, 0), 3),
        ((0, 0), (9 * tokens, 4), 3),
    ):
        seen = change_view(view, exposed={sort: own[0]}, refetched={sort: own[1]}, of_agent={sort: others})
        wanted = quiet + page_faults.TIME_FACTOR * turn * parts / 9
        assert page_faults.make_fault_cost(seen)(proposal) == pytest.approx(wanted)
        assert "bash shows" not in page_faults.find_stopped_kinds(seen)


def referred(*, again_after: int | None = None) -> View:
    """A record, the same one by reference after three requests, and once more after so many."""
    values = [*FIRST, *lookup("get_customer", 2, customer="C1001"), *chatter(again_after or 0)]
    view = build_view(values + (lookup("get_customer", 3, customer="C1001") if again_after is not None else []))
    reason = "stands in an earlier result"
    edit = Edit(view.keys[10], "text", "[as above]", "refer_repeats", reason, view.original_tokens[10], 5)
    return build_view([json.loads(m.raw) for m in view.messages], state=BranchState(edits={edit.key: edit}))


def test_references_count_once_and_not_with_each_request() -> None:
    view = referred()
    first = page_faults.count_exposed_results(view)
    tokens = view.original_tokens[10]
    part = "get_customer looks" + page_faults.IN_PART
    assert first == {"get_customer looks": 1, part: tokens, "reference": 1}
    again = page_faults.count_exposed_results(change_view(view, exposed=first))
    assert again == {"get_customer looks": 2, part: 2 * tokens, "reference": 1}


def test_an_agent_that_fetches_most_texts_again_to_which_it_was_referred_is_referred_to_none() -> None:
    view = referred(again_after=1)
    found = page_faults.find_new_faults(view, 0)
    assert page_faults.count_faults(view, found) == {"get_customer looks": 1, "reference": 1}
    for own, others, follows in (((1, 1), (0, 0), True), ((3, 1), (1, 1), True), ((3, 2), (0, 0), False)):
        seen = change_view(
            view, exposed={"reference": own[0]}, refetched={"reference": own[1]}, of_agent={"reference": others}
        )
        assert page_faults.are_references_followed(seen) is follows
    assert not page_faults.are_references_followed(change_view(view, of_agent={"reference": (5, 3)}))


PACES = pytest.mark.parametrize(("again_after", "is_fault"), [(0, True), (2, True), (3, False), (4, False)])


@PACES
def test_an_agent_that_fetches_a_text_again_at_its_usual_pace_may_have_followed_the_reference(
    again_after: int, is_fault: bool
) -> None:
    view = referred(again_after=again_after)
    counts = page_faults.count_faults(view, page_faults.find_new_faults(view, 0))
    assert ("reference" in counts) is is_fault


@PACES
def test_a_text_that_is_fetched_again_at_the_usual_pace_is_no_page_fault(again_after: int, is_fault: bool) -> None:
    """The second look came three requests after the first one, which was whole in the prompt then."""
    second = [*FIRST, *lookup("get_customer", 2, customer="C1001")]
    view = with_cut([*second, *chatter(again_after), *lookup("get_customer", 3, customer="C1001")], len(second) - 1)
    assert bool(page_faults.find_new_faults(view, 0)) is is_fault
    if not is_fault:
        caused = change_view(view, refetched_keys=frozenset({view.keys[len(second) - 1]}))
        assert page_faults.find_new_faults(caused, 0), "an edit had caused the second look"


def shorten(index: int, after: int = 20) -> Proposal:
    return Proposal(index, "text", "shorten_results", "", after, "", index, content="unknown")


def test_the_price_is_a_turn_times_its_chance() -> None:
    view = build_view([user("x"), *lookup("fetch", 1, key="abcd"), *chatter(5)])
    turn = (
        PLAIN_MODEL.r * view.total
        + PLAIN_MODEL.output_ratio * view.original_tokens[1]
        + PLAIN_MODEL.w * (view.original_tokens[1] + view.original_tokens[2])
    )
    # One result, 5 requests old, of which the last is counted: (1 of the prior + 0) / (20 of the prior + 1).
    assert page_faults.make_fault_cost(view)(shorten(2)) == pytest.approx(turn * 1 / 21)


def test_a_record_that_the_user_comes_back_to_is_dearer_to_cut() -> None:
    quiet = build_view([user("x"), *lookup("fetch", 1, key="C1001"), *chatter(6)])
    named = build_view(
        [user("x"), *lookup("fetch", 1, key="C1001"), *chatter(5), assistant("fine"), user("and C1001?")]
    )
    assert page_faults.make_fault_cost(named)(shorten(2)) > 1.9 * page_faults.make_fault_cost(quiet)(shorten(2))


def test_a_short_result_that_names_an_old_record_is_a_return_as_a_message_of_the_user_is() -> None:
    """An agent may get its tasks from a tool."""
    values = [user("x"), *lookup("fetch", 1, key="C1001"), *chatter(5)]

    def count(*more: Json) -> dict[str, int]:
        return dict(page_faults.find_result_lookups(build_view([*values, *more])).return_counts)

    assert count(*lookup("next_task", 2, "Refund C1001.")) == {"fetch looks": 1}
    assert count(*lookup("next_task", 2, "Refund C1001." + " and so on" * 60)) == {}
    assert count(*lookup("close", 2, "C1001 is closed", of="C1001")) == {"fetch looks": 1}, "the call alone counts"


def test_searches_and_views_of_an_agent_without_files_begin_with_the_chance_of_an_unknown_tool() -> None:
    sheet = [user("x"), *lookup("read_sheet", 1, part="part-01"), *chatter(8)]
    unknown = page_faults.make_fault_cost(build_view(sheet))(shorten(2))
    for kind in ("view", "other"):
        assert page_faults.make_fault_cost(build_view(sheet))(replace(shorten(2), content=kind)) == unknown
        with_file = build_view([*sheet, *lookup("read_file", 2, "text", path="a.py")])
        assert page_faults.make_fault_cost(with_file)(replace(shorten(2), content=kind)) < unknown / 10


def test_a_key_that_different_calls_share_names_none_of_them() -> None:
    calls = [*lookup("fetch", 1, key="C1001", form="full"), *lookup("fetch", 2, key="C1002", form="full")]
    found = page_faults.find_result_lookups(
        build_view([user("x"), *calls, *chatter(6), *lookup("other", 3, form="full")])
    )
    assert found.return_counts == {}


def test_a_key_names_the_newest_result_of_a_call_that_is_made_again() -> None:
    calls = [*lookup("fetch", 1, key="C1001"), *lookup("fetch", 2, key="C1001")]
    found = page_faults.find_result_lookups(build_view([user("x"), *calls, *chatter(6), user("and C1001?")]))
    assert found.by_key == {"C1001": 4}
    assert found.return_counts == {"fetch looks": 1}


def test_views_begin_with_a_smaller_chance_and_other_sessions_of_the_agent_count() -> None:
    values = [user("x"), *lookup("read_file", 1, path="a.py"), *chatter(8)]
    proposal = replace(shorten(2), content="view")
    alone = page_faults.make_fault_cost(build_view(values))(proposal)
    assert alone < page_faults.make_fault_cost(build_view(values))(shorten(2)) / 10
    seen = change_view(build_view(values), of_agent={"read_file shows": (5_000, 3)})
    assert page_faults.make_fault_cost(seen)(proposal) == pytest.approx(
        alone * 1000 * (1 + 3) / (1000 + 5_000), rel=0.01
    )


def test_a_sort_whose_page_faults_are_not_paid_back_is_cut_no_more_until_they_are() -> None:
    """A rate that begins with what other agents do is too small for an agent that comes back to all it reads."""
    values = [user("x"), *lookup("read_file", 1, path="a.py"), *chatter(8)]
    proposal = replace(shorten(2), content="view")
    turn = page_faults.make_fault_cost(build_view(values))(proposal) * 1_000  # the prior is 1 in 1,000
    for exposed, refetched, rate in (
        (50, 1, 2 / 1_050),
        (50, 6, 5 / 50),
        (1_000, 6, 5 / 1_000),
        (20_000, 6, 7 / 21_000),
    ):
        seen = change_view(build_view(values), of_agent={"read_file shows": (exposed, refetched)})
        assert page_faults.make_fault_cost(seen)(proposal) == pytest.approx(turn * rate)


def test_one_page_fault_is_no_rate_and_two_in_fifty_requests_stop_the_sort() -> None:
    values = [user("x"), *lookup("fetch", 1, key="abcd"), *chatter(48)]
    assert (
        page_faults.find_stopped_kinds(build_view(values, state=BranchState(refetched={"fetch looks": 1})))
        == frozenset()
    )
    view = build_view(values, state=BranchState(refetched={"fetch looks": 2}))
    assert page_faults.find_stopped_kinds(view) == {"fetch looks"}
    assert page_faults.make_fault_cost(view)(shorten(2)) == float("inf")
    assert page_faults.make_fault_cost(view)(replace(shorten(2), content=None)) == 0.0
    more = [*values, *chatter(60)]
    assert (
        page_faults.find_stopped_kinds(build_view(more, state=BranchState(refetched={"fetch looks": 2}))) == frozenset()
    )


POLICY = Policy("p", (ShortenResults(),), schedule="when_it_pays", ask="never")


def played(values: list[Json], state: BranchState) -> tuple[BranchState, list[str], list[dict[str, float]]]:
    """The session after a request, which results it has cut, and the figures of its notes of page faults."""
    plan = rewrite(make_request(values), state, POLICY, PLAIN_MODEL, 0.0, INPUTS)
    notes = [dict(note.figures) for note in plan.notes if note.kind == "refetch"]
    return state.after_sending(plan, 0.0), [e.stage for e in plan.new_edits], notes


def test_a_session_counts_its_page_faults_once() -> None:
    big = "\n".join(f"row {n} of a long report, value {n * 31}" for n in range(400))
    values = [user("x"), *lookup("fetch_report", 1, big, of="north"), *chatter(60)]
    state, new, notes = played(values, BranchState())
    assert (new, notes) == (["shorten_results"], [])
    values += chatter(1)
    state, _, _ = played(values, state)
    assert state.exposed["fetch_report looks"] == 1
    values += lookup("fetch_report", 2, big, of="north")
    state, _, notes = played(values, state)
    assert notes == [{"repeat": 1}]
    assert state.refetched == {"fetch_report looks": 1}
    state, _, notes = played([*values, *chatter(1)], state)
    assert notes == []
    assert state.refetched == {"fetch_report looks": 1}
    assert state.exposed["fetch_report looks"] == 1, "its new copy stands whole: nobody misses it any more"


def test_the_messages_that_fetch_a_cut_result_again_are_remembered_with_their_calls() -> None:
    big = "\n".join(f"row {n} of a long report, value {n * 31}" for n in range(400))
    values = [user("x"), *lookup("fetch_report", 1, big, of="north"), *chatter(60)]
    state, _, _ = played(values, BranchState())
    alone = [*values, *lookup("fetch_report", 2, big, of="north")]
    keys = make_keys(alone)
    after, _, _ = played(alone, state)
    assert after.refetched_keys == {keys[-2], keys[-1]}
    assert played([*alone, *chatter(3)], after)[0].refetched_keys == after.refetched_keys
    assert after.fork(keys[:-1]).refetched_keys == {keys[-2]}
    # The same call beside another one: the step would have been there without the proxy too.
    (first, north), (second, south) = (lookup("fetch_report", n, big, of=of) for n, of in ((2, "north"), (3, "south")))
    both = [*values, {**first, "tool_calls": [*first["tool_calls"], *second["tool_calls"]]}, north, south]
    after, _, _ = played(both, state)
    assert after.refetched_keys == {make_keys(both)[-2]}


def test_a_literal_policy_s_page_faults_are_told_and_are_no_rate_for_other_policies() -> None:
    """None was told: its edits are made anew with each request, and are not in the view."""
    big = "\n".join(f"row {n} of a long report, value {n * 31}" for n in range(400))
    literal = load_policy("rolling")
    values = [user("x"), *lookup("fetch_report", 1, big, of="north"), *chatter(6), user("y"), *chatter(1)]
    first = rewrite(make_request(values), BranchState(), literal, PLAIN_MODEL, 0.0, INPUTS)
    assert first.edits
    values += lookup("fetch_report", 2, big, of="north")
    plan = rewrite(make_request(values), BranchState().after_sending(first, 0.0), literal, PLAIN_MODEL, 0.0, INPUTS)
    assert [dict(note.figures) for note in plan.notes if note.kind == "refetch"] == [{"repeat": 1}]
    assert plan.refetched_keys == {*make_keys(values)[-2:]}
    assert not plan.refetched


def test_after_a_restart_earlier_page_faults_count_and_are_not_told_again() -> None:
    big = "\n".join(f"row {n} of a long report, value {n * 31}" for n in range(400))
    values = [user("x"), *lookup("fetch_report", 1, big, of="north"), *chatter(60)]
    state, _, _ = played(values, BranchState())
    values += [*lookup("fetch_report", 2, big, of="north"), *chatter(2)]
    again, _, notes = played(values, BranchState(edits=state.edits))
    assert (again.refetched, notes) == ({"fetch_report looks": 1}, [])
    assert again.refetched_keys == {*make_keys(values)[-6:-4]}, "nor do they count without the proxy"


def test_edits_may_lose_a_share_of_what_was_spent_and_what_cuts_have_saved() -> None:
    view = build_view(FIRST)
    w, r, out = PLAIN_MODEL.w, PLAIN_MODEL.r, PLAIN_MODEL.output_ratio
    # Each message is written once and then carried; FIRST has four answers.
    sizes, first = view.original_tokens, view.request_counts
    carried = sum(size * (first[-1] - at) for size, at in zip(sizes, first, strict=True))
    answers = sum(size for size, one in zip(sizes, view.messages, strict=True) if one.role == "assistant")
    spent = w * sum(sizes) + r * carried + out * answers
    assert page_faults.compute_loss_limit(view, 0.05).most == pytest.approx(0.05 * spent)
    sort, part = "get_customer looks", "get_customer looks" + page_faults.IN_PART
    saved = change_view(view, of_agent={sort: (10, 0), part: (4_000, 0)}, exposed={part: 1_000})
    assert page_faults.compute_loss_limit(saved, 0.05).most == pytest.approx(0.05 * spent + r * 5_000)
    again = change_view(saved, refetched={sort: 1})
    lost = w * 5_000 / 10 + r * view.total
    assert page_faults.compute_loss_limit(again, 0.05).most == pytest.approx(0.05 * spent + r * 5_000 - lost)
    cut = with_cut(FIRST)
    assert page_faults.compute_loss_limit(cut, 0.05).most == pytest.approx(0.05 * spent - w * sizes[2])


def test_an_agent_that_works_on_files_is_taken_to_fetch_less_again() -> None:
    assert page_faults.compute_loss_limit(build_view(FIRST), 0.05).chance == 1.0
    files = with_cut([user("x"), *shell("cat a/b.ini", 1, "\n".join(ROWS))])
    whole = build_view([user("x"), *shell("cat a/b.ini", 1, "\n".join(ROWS))])
    limit = page_faults.compute_loss_limit(files, 0.05)
    at_risk = page_faults.FILE_LOSS_CHANCE * PLAIN_MODEL.w * whole.original_tokens[2]
    assert limit.chance == page_faults.FILE_LOSS_CHANCE
    assert page_faults.compute_loss_limit(whole, 0.05).most - limit.most == pytest.approx(at_risk)


def test_a_conversation_that_could_lose_too_much_is_left_alone_until_its_agent_is_known() -> None:
    """One giant result, which the agent may need again: thrifty cuts it if the cuts of other sessions have saved that
    much."""
    values = [user("x"), *lookup("run_query", 1, RECORD * 40, sql="select"), *chatter(12)]
    policy = Policy("p", stages=(ShortenResults(),), payback=0.5, max_loss=0.05)
    inputs = replace(INPUTS, agent_faults={"run_query" + page_faults.IN_PART: (10**7, 0)})
    request = make_request(values)
    assert not rewrite(request, BranchState(), policy, PLAIN_MODEL, 0.0, INPUTS).edits
    assert rewrite(request, BranchState(), policy, PLAIN_MODEL, 0.0, inputs).edits
    assert rewrite(request, BranchState(), dataclasses.replace(policy, max_loss=0.0), PLAIN_MODEL, 0.0, INPUTS).edits


def test_the_same_call_that_shows_another_image_is_none_and_the_same_image_is_one() -> None:
    def show(number: int, picture: str) -> list[Json]:
        calls, answer = lookup("screenshot", number)
        return [calls, {**answer, "content": [{"type": "image_url", "image_url": {"url": picture}}]}]

    first = [user("go"), *show(1, "a"), *chatter(3)]
    for picture, faults in (("b", 0), ("a", 1)):
        view = build_view([*first, *show(2, picture)])
        edit = Edit(view.keys[2], "images", "[gone]", "shorten_results", "", view.original_tokens[2], 5)
        view = build_view([*first, *show(2, picture)], state=BranchState(edits={edit.key: edit}))
        assert len(page_faults.find_new_faults(view, 0)) == faults, picture
