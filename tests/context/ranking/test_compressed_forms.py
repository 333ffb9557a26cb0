"""The forms that a piece of a conversation can have, and that every rung leaves a prompt that is valid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from proxy.context import validate
from proxy.context.branch_state import BranchState
from proxy.context.models import Model
from proxy.context.plan import Edit, Proposal
from proxy.context.policy import Policy
from proxy.context.ranking.compressed_forms import ELSEWHERE_TEXT, STAGE, CompressionLadder, SummaryLimits
from proxy.context.ranking.memory_levels import Level, build_layout, compile_rules
from proxy.context.render import read_visible_text
from proxy.context.summaries import extracts
from proxy.context.view import View
from tests.context.ranking.test_memory_levels import step
from tests.conversations import PLAIN_MODEL, Json, assistant, build_view, result, user

LITERAL = Policy("p", schedule="always")
SIZES = SummaryLimits(summary_chars=300, brief_chars=120, excerpt_chars=60, min_ids=0, low_priority=30)
LONG = "line of text\n" * 40


def ladder(
    values: Sequence[Json], *, size: int = 10, recent: int = 0, rank: int = 50, **more: Any
) -> CompressionLadder:
    view = build_view(values, **{"policy": LITERAL, **more})
    layout = build_layout(view, compile_rules((), (), (), (), 10_000, recent), size)
    return CompressionLadder(view, layout, [rank] * len(layout.steps), SIZES)


def by_index(made: CompressionLadder) -> dict[int, Proposal]:
    return {p.index: p for p in made.build_proposals()}


def edits_of(view: View, proposals: Sequence[Proposal]) -> dict[bytes, Edit]:
    return {
        view.keys[p.index]: Edit(
            view.keys[p.index], p.action, p.text, STAGE, p.reason, view.original_tokens[p.index], p.after
        )
        for p in proposals
    }


def check(made: CompressionLadder, model: Model = PLAIN_MODEL) -> None:
    """Sizes add up, and a strict upstream accepts what is left."""
    view, edits = made.view, edits_of(made.view, made.build_proposals())
    outs = []
    for m, k in zip(view.messages, view.keys, strict=True):
        edit = edits.get(k)
        if edit is None or edit.action != "gone":
            outs.append(validate.PlannedMessage(m, read_visible_text(m, edit), bool(m.calls)))
    validate.check(outs, view.messages, model)
    sizes = [edits[k].after if k in edits else w for k, w in zip(view.keys, view.original_tokens, strict=True)]
    assert made.tokens == sizes
    assert made.total == view.prefix_tokens + sum(sizes)
    per_level = [0, 0, 0, 0]
    for s, level in zip(made.layout.steps, made.levels, strict=True):
        per_level[level] += sum(sizes[s.start : s.end])
    assert made.level_tokens == per_level


def test_extract_shortens_each_result_where_that_saves_something() -> None:
    made = ladder([user("a"), *step(1, LONG), *step(2, "short"), user("b")])
    made.extract_results(1, "because")
    made.extract_results(2, "because")
    found = by_index(made)
    assert list(found) == [2]
    assert found[2].text == extracts.extract_result(made.view, made.view.steps[1], 2)
    check(made)


def test_fold_puts_one_summary_where_the_longest_result_stood_and_the_rest_needs_it() -> None:
    made = ladder([user("a"), *step(1, "x" * 100), *step(2, LONG), *step(3, "y" * 100), user("b")])
    assert made.summarize_block(made.layout.blocks[0], "because")
    found = by_index(made)
    assert [(n, p.action, p.needs_index) for n, p in found.items()] == [
        (1, "gone", 4), (2, "gone", 4), (4, "text", None), (5, "gone", 4), (6, "gone", 4)
    ]  # fmt: skip
    assert (found[4].text or "").startswith("[summary of 6 messages, ")
    assert {made.levels[i] for i in (1, 2, 3)} == {Level.SESSION}
    assert not made.summarize_block(made.layout.blocks[0], "again")
    check(made)


def test_the_other_results_of_a_step_that_carries_a_summary_refer_to_it() -> None:
    values = [user("a"), assistant(None, "1", "2"), result("1", LONG), result("2", LONG), *step(3, "z" * 50), user("b")]
    made = ladder(values)
    made.summarize_block(made.layout.blocks[0], "because")
    assert by_index(made)[3].text == ELSEWHERE_TEXT
    check(made)


def test_a_block_that_a_summary_would_not_shorten_stays() -> None:
    made = ladder([user("a"), *step(1, "x"), *step(2, "y"), user("b")])
    assert not made.summarize_block(made.layout.blocks[0], "because")
    assert made.build_proposals() == []
    made = ladder([user("a"), assistant("said"), assistant("more"), user("b")])
    assert not made.summarize_block(made.layout.blocks[0], "because")


def test_a_block_of_one_step_becomes_its_extract() -> None:
    made = ladder([user("a"), *step(1, LONG), user("b")])
    assert made.summarize_block(made.layout.blocks[0], "because")
    assert (by_index(made)[2].text or "").startswith("[extract of message ")
    assert made.levels[1] is Level.SESSION
    check(made)


def test_brief_makes_one_short_summary_of_several() -> None:
    values = [user("a"), *(m for n in range(6) for m in step(n, LONG)), assistant("done"), user("b")]
    made = ladder(values, size=3)
    for block in made.layout.blocks_by_group[0]:
        made.summarize_block(block, "folded")
    before = made.total
    made.summarize_group(0, made.layout.blocks_by_group[0], "briefed")
    found = by_index(made)
    (carrier,) = [n for n, p in found.items() if p.action == "text"]
    assert all(p.needs_index == carrier for p in found.values() if p.action == "gone")
    assert len(found[carrier].text or "") <= SIZES.brief_chars
    assert made.total < before
    check(made)


def test_a_message_that_needed_a_replaced_summary_needs_its_successor_or_none() -> None:
    made = ladder([user("a"), *(m for n in range(4) for m in step(n, LONG)), user("b")], size=2)
    one, other = made.layout.blocks_by_group[0]
    made.summarize_block(one, "folded")
    made.summarize_block(other, "folded")
    made.summarize_group(0, [one, other], "briefed")
    for i in (1, 2, 3, 4):
        made.remove_step(i, "dropped")
    assert {(p.action, p.needs_index) for p in made.build_proposals()} == {("gone", None)}


def test_the_beginning_of_a_finished_groups_prompt_stays_and_its_answer_is_never_changed() -> None:
    made = ladder([user("first"), assistant("a"), user("p" * 300), assistant("q" * 300), user("last " * 50)])
    made.shorten_prompts(0, 60, "because")
    made.shorten_prompts(1, 60, "because")
    found = by_index(made)
    assert list(found) == [2]  # the first prompt is permanent, the last one is fixed
    assert (found[2].text or "").endswith("[... 240 characters left out]")
    assert made.levels[3] is Level.SESSION
    check(made)


def test_digest_leaves_one_summary_of_a_group_in_its_first_message_unless_something_has_to_stay() -> None:
    values = [user("a"), assistant("b"), user("c" * 200), *step(1, LONG), assistant("d" * 90), user("e")]
    made = ladder(values)
    assert not made.summarize_groups([0], "the first prompt is permanent")
    assert made.summarize_groups([1], "because")
    assert [(p.index, p.action) for p in made.build_proposals()] == [(2, "text"), *((n, "gone") for n in (3, 4, 5))]
    text = made.build_proposals()[0].text or ""
    assert text.startswith("[summary of 4 messages, ")
    assert [row.partition(":")[0] for row in text.splitlines()[1:3]] == ["- user", "- assistant"]
    assert len(made.asks) == 1
    check(made)


def test_digest_of_several_groups_is_one_summary_and_asks_once() -> None:
    values = [user("a"), assistant("b"), *[m for n in range(4) for m in (user("c" * 200), assistant(f"d{n} " * 90))]]
    made = ladder([*values, user("e")])
    for group in (1, 2, 3):
        assert made.summarize_groups([group], "because")
    assert len(made.asks) == 3
    assert made.summarize_groups(range(1, 5), "because")
    assert [(p.index, p.action) for p in made.build_proposals()] == [(2, "text"), *((n, "gone") for n in range(3, 10))]
    assert (made.build_proposals()[0].text or "").startswith("[summary of 8 messages, ")
    assert len(made.asks) == 1
    check(made)


def test_where_roles_alternate_the_answer_stays_beside_the_digest() -> None:
    strict = replace(PLAIN_MODEL, alternate=True)
    values = [user("a"), assistant("b"), user("c" * 200), *step(1, LONG), assistant("d" * 90), user("e")]
    made = ladder(values, model=strict)
    assert made.summarize_groups([1], "because")
    assert [(p.index, p.action) for p in made.build_proposals()] == [(2, "text"), (3, "gone"), (4, "gone")]
    check(made, strict)


def test_where_roles_alternate_nothing_leaves_that_would_join_two_of_one_role() -> None:
    strict = replace(PLAIN_MODEL, alternate=True)
    values = [user("a"), *step(1, LONG), *step(2, LONG), *step(3, LONG), user("b"), *step(4, LONG), *step(5), user("c")]
    made = ladder(values, model=strict)
    for i in range(len(made.layout.steps)):
        made.remove_step(i, "because")
    check(made, strict)
    assert [p.index for p in made.build_proposals()] == [1, 2, 3, 4, 8, 9]
    made = ladder(values, model=strict)
    for block in made.layout.blocks:
        made.summarize_block(block, "because")
    check(made, strict)


def test_an_answer_between_a_result_and_a_prompt_never_leaves() -> None:
    values = [user("a"), *step(1, LONG), assistant("mid"), *step(2, LONG), assistant("mid"), user("b"), user("c")]
    made = ladder(values)
    for i in (2, 4):
        made.remove_step(i, "because")
    assert [p.index for p in made.build_proposals()] == [3]
    check(made)


def test_a_block_that_an_earlier_request_folded_is_folded() -> None:
    values = [user("a"), *step(1, LONG), *step(2, LONG), user("b"), *step(3), user("c")]
    first = ladder(values, policy=Policy("p"))
    first.summarize_block(first.layout.blocks[0], "because")
    made = ladder(values, policy=Policy("p"), state=BranchState(edits=edits_of(first.view, first.build_proposals())))
    assert made.layout.blocks[0] in made.folded
    assert not made.summarize_block(made.layout.blocks[0], "again")
    assert made.levels[1] is Level.SESSION


def test_where_only_the_summary_was_taken_the_rest_follows_without_writing_it_again() -> None:
    values = [user("a"), *step(1, LONG + "x"), *step(2, LONG), user("b"), *step(3), user("c")]
    first = ladder(values, policy=Policy("p"))
    first.summarize_block(first.layout.blocks[0], "because")
    taken = [p for p in first.build_proposals() if p.action == "text"]
    made = ladder(values, policy=Policy("p"), state=BranchState(edits=edits_of(first.view, taken)), rank=0)
    assert made.summarize_block(made.layout.blocks[0], "because")
    assert [(p.index, p.action, p.needs_index) for p in made.build_proposals()] == [(3, "gone", 2), (4, "gone", 2)]


def test_e4_a_helpers_answer_takes_the_place_of_the_extract() -> None:
    values = [user("a"), *step(1, LONG), *step(2, LONG), user("b")]
    made = ladder(values)
    made.summarize_block(made.layout.blocks[0], "because")
    (ask,) = made.asks
    made = ladder(values, state=BranchState(helper_answers={ask.id: "Both worked."}))
    made.summarize_block(made.layout.blocks[0], "because")
    assert made.asks == []
    (text,) = [p.text for p in made.build_proposals() if p.action == "text"]
    assert (text or "").endswith("\nBoth worked.")
    check(made)


def test_e4_a_helper_sums_up_its_own_summaries() -> None:
    values = [user("a"), *(m for n in range(4) for m in step(n, LONG)), assistant("done"), user("b")]
    answers: dict[str, str] = {}

    def made() -> CompressionLadder:
        found = ladder(values, size=2, state=BranchState(helper_answers=answers))
        for block in found.layout.blocks_by_group[0]:
            found.summarize_block(block, "folded")
        found.summarize_group(0, found.layout.blocks_by_group[0], "briefed")
        return found

    first = made()
    assert len(first.asks) == 2  # the blocks; only then is there anything to sum up
    answers.update({ask.id: f"Part {n}." for n, ask in enumerate(first.asks)})
    (again,) = made().asks
    assert again.prompt.endswith("Part 0.\n\nPart 1.")
    answers[again.id] = "All of it."
    last = made()
    assert last.asks == []
    assert [(p.text or "").split("\n")[1] for p in last.build_proposals() if p.action == "text"] == ["All of it."]


def test_a_step_of_low_priority_keeps_only_its_call() -> None:
    values = [user("a"), *step(1, LONG), *step(2, LONG), user("b")]
    texts = []
    for rank in (29, 30):
        made = ladder(values, rank=rank)
        made.summarize_block(made.layout.blocks[0], "because")
        texts += [p.text or "" for p in made.build_proposals() if p.action == "text"]
    assert "line of text" not in texts[0]
    assert "line of text" in texts[1]
