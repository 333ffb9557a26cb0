"""The order in which levels that are too full are compressed."""

from __future__ import annotations

from proxy.context.policy import Policy
from proxy.context.ranking import compression_order
from proxy.context.ranking.memory_levels import Level
from tests.context.ranking.test_compressed_forms import LONG, check, ladder
from tests.context.ranking.test_memory_levels import step
from tests.conversations import assistant, user

TALK = [
    *[m for g in range(3) for m in (user(f"p{g}"), *step(g * 2, LONG), *step(g * 2 + 1, LONG), assistant(f"done {g}"))],
    user("now"),
    *step(8, LONG),
    *step(9, LONG),
]


def always() -> bool:
    return True


def test_e4_the_lowest_priority_is_compressed_first_and_among_equals_the_oldest() -> None:
    made = ladder(TALK, recent=1)
    made.priorities = [50] * len(made.layout.steps)
    made.priorities[5], made.priorities[2] = 10, 90
    order: list[int] = []

    def over() -> bool:
        order.append(len(made.changes))
        return len(made.changes) < 4

    compression_order.compress_working(made, over, "because")
    assert sorted(made.changes) == [2, 8, 10, 14]
    assert compression_order.rank_steps(made, Level.WORKING)[0] == 5
    assert 2 in compression_order.rank_steps(made, Level.WORKING)


def test_compression_stops_as_soon_as_there_is_room() -> None:
    made = ladder(TALK, recent=1)
    compression_order.compress_working(made, lambda: False, "because")
    compression_order.compress_session(made, lambda: False, "because")
    compression_order.remove_groups(made, lambda: False, "because")
    assert made.build_proposals() == []


def test_the_working_level_is_extracted_then_folded_where_edits_are_recomputed() -> None:
    made = ladder(TALK, recent=1)
    compression_order.compress_working(made, always, "because")
    assert {block.group for block in made.folded} == {0, 1, 2}
    assert made.level_tokens[Level.WORKING] < sum(made.view.original_tokens) / 2
    check(made)


def test_where_edits_last_only_whole_blocks_are_folded() -> None:
    made = ladder(TALK, recent=1, policy=Policy("p"))
    before = made.level_tokens[Level.WORKING]
    compression_order.compress_working(made, lambda: made.level_tokens[Level.WORKING] > before - 100, "because")
    assert {block.group for block in made.folded} == {0}
    check(made)


def test_finishing_a_group_folds_it_and_moves_it_to_the_session_level() -> None:
    made = ladder(TALK, recent=1)
    compression_order.finish_group(made, 1, "done with it")
    assert {made.levels[i] for i, g in enumerate(made.layout.group_of) if g == 1} == {Level.SESSION}
    check(made)


def test_the_session_level_is_compressed_further_before_its_groups_leave() -> None:
    made = ladder(TALK, recent=1, size=2)
    for group in range(3):
        compression_order.finish_group(made, group, "finished")
    before = made.level_tokens[Level.SESSION]
    compression_order.compress_session(made, always, "because")
    assert made.level_tokens[Level.SESSION] < before
    compression_order.remove_groups(made, lambda: made.level_tokens[Level.SESSION] > 40, "because")
    actions = {p.index: p.action for p in made.build_proposals()}
    assert actions[6] == "text"
    assert {actions[n] for n in range(7, 18)} == {"gone"}, "one summary of both"
    check(made)


def test_summaries_of_the_active_group_leave_last() -> None:
    values = [user("a"), *(m for n in range(9) for m in step(n, LONG))]
    made = ladder(values, size=4, recent=1)
    compression_order.compress_working(made, always, "because")
    assert len(made.folded) == 2
    compression_order.remove_groups(made, always, "because")
    assert {p.action for p in made.build_proposals() if p.index < 17} == {"gone"}
    check(made)


def test_blocks_are_found_by_their_group() -> None:
    made = ladder(TALK, recent=2)
    assert [len(compression_order.find_blocks(made, g)) for g in range(4)] == [1, 1, 1, 0]


def test_e3_the_reason_names_the_priority_by_which_a_step_a_block_or_a_group_was_chosen() -> None:
    made = ladder(TALK, recent=1)
    made.priorities = [20 + n for n in range(len(made.layout.steps))]
    compression_order.compress_working(made, lambda: len(made.changes) < 1, "full")
    assert {p.reason for p in made.build_proposals()} == {"priority 21 of 100: full"}
    compression_order.compress_working(made, always, "full")
    assert "priority 22 of 100, the highest of its block: full" in {p.reason for p in made.build_proposals()}
    compression_order.remove_groups(made, always, "over")
    assert "priority 23 of 100, the highest of its group: over" in {p.reason for p in made.build_proposals()}
