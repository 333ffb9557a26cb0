"""Row D6: what is told of a plan."""

from __future__ import annotations

from msgspec.structs import replace

from proxy.chat.chain import public_id
from proxy.context.plan import Edit, Plan
from proxy.context.plan_events import PRUNED, SUMMARIZED, make_events
from proxy.exchange.turn import UNPLANNED

KEYS = [bytes([n]) * 16 for n in range(6)]


def edit(n: int, action: str, stage: str, text: str | None = None) -> Edit:
    return Edit(KEYS[n], action, text, stage, "", 10, 0)  # type: ignore[arg-type]


def plan(edits: list[Edit], new: list[Edit]) -> Plan:
    return replace(UNPLANNED, keys=KEYS, edits={e.key: e for e in edits}, new_edits=tuple(new), before=100, after=40)


def test_d6_pruned_says_how_much_and_what_and_is_published_once() -> None:
    one, other = edit(1, "gone", "drop_unimportant"), edit(3, "gone", "fit_budget")
    (found,) = make_events(plan([one, other], [other]))
    assert found.name == PRUNED == "context:pruned"
    assert found.payload == {
        "original": 100, "final": 40, "removed": 2, "tokenReduction": 60,
        "removed_ids": [public_id(KEYS[1]), public_id(KEYS[3])],
    }  # fmt: skip
    assert make_events(plan([one, other], [])) == []


def test_d6_summarized_says_how_many_were_replaced_how_many_stay_and_by_what() -> None:
    gone = [edit(n, "gone", "summarize_old") for n in (0, 1)]
    said = edit(2, "append", "summarize_old", "\n\nPrevious 2 turns: ...")
    (found,) = make_events(plan([*gone, said], [*gone, said]))
    assert found.name == SUMMARIZED == "context:summarized"
    assert found.payload == {"summarized": 2, "kept": 4, "summary": "Previous 2 turns: ..."}


def test_d6_both_events_are_published_for_one_plan() -> None:
    edits = [edit(0, "gone", "summarize_old"), edit(1, "gone", "drop_unimportant")]
    assert [e.name for e in make_events(plan(edits, edits))] == [PRUNED, SUMMARIZED]


def test_d6_neither_shortening_nor_the_loss_of_absent_messages_is_an_event() -> None:
    text = edit(1, "text", "shorten_results", "short")
    assert make_events(plan([text], [text])) == []
    gone = edit(1, "gone", "drop_unimportant")
    assert make_events(replace(plan([gone], [gone]), keys=KEYS[2:])) == []


def test_d6_a_plan_that_was_refused_has_no_events() -> None:
    gone = edit(1, "gone", "drop_unimportant")
    assert make_events(replace(plan([gone], [gone]), refusal="W1")) == []
