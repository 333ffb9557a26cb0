from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.context.models import Model
from proxy.context.validate import PlannedMessage, RuleChecker, check
from proxy.errors import RuleBroken
from tests.conversations import Json, assistant, make_messages, result, system, user

STRICT = Model("strict", alternate=True)
LOOSE = Model("loose")


def outs(*values: Json) -> list[PlannedMessage]:
    return [PlannedMessage(m, m.text, bool(m.calls)) for m in make_messages(*values)]


def find_broken_rule(plan: list[PlannedMessage], original: list[PlannedMessage], model: Model = LOOSE) -> str | None:
    """The rule that the plan is thrown away for, None where it is none."""
    try:
        check(plan, [o.message for o in original if o.message is not None], model)
    except RuleBroken as problem:
        return problem.rule
    return None


def without(original: list[PlannedMessage], *gone: int) -> list[PlannedMessage]:
    return [out for n, out in enumerate(original) if n not in gone]


WHOLE = outs(
    system(),
    user("a"),
    assistant("so", "1", "2"),
    result("1", "x"),
    result("2", "y"),
    assistant("done"),
    user("b"),
    assistant(None, "1"),
    result("1", "z"),
)
"""Call ids reused, parallel calls, a turn that ends on a result: as agents send it."""


def test_a_plan_that_is_the_original_breaks_nothing() -> None:
    assert find_broken_rule(WHOLE, WHOLE) is None
    assert find_broken_rule(WHOLE, WHOLE, STRICT) is None


def test_a_plan_without_a_whole_step_breaks_nothing() -> None:
    assert find_broken_rule(without(WHOLE, 2, 3, 4), WHOLE) is None


def test_w1_a_result_without_its_call() -> None:
    assert find_broken_rule(without(WHOLE, 2), WHOLE) == "W1"
    assert find_broken_rule(without(WHOLE, 7), WHOLE) == "W1"


def test_w1_a_result_whose_call_is_taken_out_of_its_message() -> None:
    plan = list(WHOLE)
    plan[2] = plan[2]._replace(has_calls=False)
    assert find_broken_rule(plan, WHOLE) == "W1"
    assert find_broken_rule(without(plan, 3, 4), WHOLE) is None


def test_w1_an_id_that_was_answered_before_cannot_be_called_again() -> None:
    plan = [WHOLE[n] for n in (0, 1, 2, 3, 3, 4, 5, 6, 7, 8)]
    assert find_broken_rule(plan, WHOLE) == "W1"


def test_w2_a_call_without_its_result() -> None:
    assert find_broken_rule(without(WHOLE, 4), WHOLE) == "W2"
    assert find_broken_rule(without(WHOLE, 3, 4), WHOLE) == "W2"


def test_w2_one_of_the_last_calls_without_its_result() -> None:
    """Nothing comes behind them that would show it."""
    talk = outs(user("a"), assistant(None, "1", "2"), result("1", "x"), result("2", "y"))
    assert find_broken_rule(without(talk, 2), talk) == "W2"


def test_w2_no_message_of_the_proxy_comes_between_call_and_result() -> None:
    plan = [*WHOLE[:8], PlannedMessage(None, "note", False), WHOLE[8]]
    assert find_broken_rule(plan, WHOLE) in ("W1", "W2")


def test_w4_no_system_message_comes_after_others() -> None:
    moved = [WHOLE[1], WHOLE[0], *WHOLE[2:]]
    assert find_broken_rule(moved, WHOLE) == "W4"
    two = outs(system("a"), {"role": "developer", "content": "b"}, user("c"))
    assert find_broken_rule(two, two) is None


def test_w5_two_messages_of_one_role_in_a_row_where_turns_are_insisted_on() -> None:
    plan = without(WHOLE, 2, 3, 4, 5)
    assert find_broken_rule(plan, WHOLE, STRICT) == "W5"
    assert find_broken_rule(plan, WHOLE, LOOSE) is None
    apart = outs(user("a"), assistant("b"), user("c"), assistant("d"), user("e"))
    assert find_broken_rule(without(apart, 2), apart, STRICT) == "W5"


def test_w6_a_user_message_after_a_result() -> None:
    plan = without(WHOLE, 5)
    assert find_broken_rule(plan, WHOLE) == "W6"
    assert find_broken_rule(plan, WHOLE, Model(after_tool="user")) is None
    ours = [*WHOLE, PlannedMessage(None, "note", False)]
    assert find_broken_rule(ours, WHOLE) == "W6"
    assert find_broken_rule(ours, WHOLE, Model(after_tool="none")) == "W6"
    assert find_broken_rule(ours, WHOLE, Model(after_tool="user")) is None


def test_w7_an_assistant_message_at_the_end() -> None:
    talk = outs(user("a"), assistant("b"), user("c"), assistant("d"), user("e"))
    assert find_broken_rule(without(talk, 4), talk) == "W7"
    prefilled = outs(user("a"), assistant("Sure: "))
    assert find_broken_rule(prefilled, prefilled) is None


def test_w8_an_assistant_message_that_says_nothing() -> None:
    plan = list(WHOLE)
    plan[5] = plan[5]._replace(text="")
    assert find_broken_rule(plan, WHOLE) == "W8"
    bare = outs(user("a"), assistant(None, "1"), result("1", "x"))
    assert find_broken_rule(bare, bare) is None
    stripped = [bare[0], bare[1]._replace(has_calls=False), user_again := outs(user("b"))[0]]
    assert find_broken_rule(stripped, [*bare, user_again]) == "W8"


def test_w8_a_message_with_only_an_image_is_not_empty() -> None:
    talk = outs(user("a"), assistant([{"type": "image_url", "image_url": {"url": "u"}}]), user("b"))
    assert find_broken_rule(talk, talk) is None


BREACHES: dict[str, tuple[list[PlannedMessage], Model]] = {
    "W1": (outs(user("a"), result("9", "x")), LOOSE),
    "W2": (outs(user("a"), assistant(None, "1"), user("b")), LOOSE),
    "W4": (outs(user("a"), system(), user("b")), LOOSE),
    "W5": (outs(user("a"), user("b")), STRICT),
    "W6": (outs(user("a"), assistant(None, "1"), result("1", "x"), user("b")), LOOSE),
    "W7": (outs(user("a"), assistant("b")), LOOSE),
    "W8": (outs(user("a"), assistant(""), user("b")), LOOSE),
}


@pytest.mark.parametrize("rule", sorted(BREACHES))
def test_a_rule_that_the_client_breaks_itself_is_the_clients_business(rule: str) -> None:
    talk, model = BREACHES[rule]
    whole = outs(user("z"), assistant("y"))
    assert find_broken_rule(talk, talk, model) is None
    assert find_broken_rule(whole + talk, whole + talk, model) is None


@pytest.mark.parametrize("rule", sorted(BREACHES))
def test_the_same_breach_counts_where_the_client_does_not_make_it(rule: str) -> None:
    talk, model = BREACHES[rule]
    fine = outs(user("z"), assistant("y"), user("x"))
    assert find_broken_rule(talk, fine, model) == rule


def test_a_breach_of_one_rule_excuses_no_other() -> None:
    prefilled = outs(user("a"), assistant(None, "1"), result("1", "x"), assistant("Sure: "))
    assert find_broken_rule(without(prefilled, 1), prefilled) == "W1"


def test_kept_a_system_message_that_is_gone_or_changed() -> None:
    assert find_broken_rule(without(WHOLE, 0), WHOLE) == "kept"
    assert find_broken_rule([WHOLE[0]._replace(text="Be long."), *WHOLE[1:]], WHOLE) == "kept"
    late = outs(user("a"), assistant("b"), system("now"), user("c"))
    assert find_broken_rule(without(late, 2), late) == "kept"


def test_a_kept_insert_at_the_end_of_a_message_is_not_a_change() -> None:
    plan = [WHOLE[0]._replace(text="Be brief.\n\nGuidelines"), *WHOLE[1:]]
    plan[6] = plan[6]._replace(text="b\n\nnote")
    assert find_broken_rule(plan, WHOLE) is None


def test_kept_the_last_user_message_that_is_gone_or_changed() -> None:
    assert find_broken_rule([*WHOLE[:6], *WHOLE[7:]], WHOLE) == "kept"
    assert find_broken_rule([*WHOLE[:6], WHOLE[6]._replace(text="c"), *WHOLE[7:]], WHOLE) == "kept"
    assert find_broken_rule([*WHOLE[:1], *WHOLE[6:]], WHOLE) is None  # an older one may go


def test_kept_the_last_message_may_be_shortened_but_not_go() -> None:
    assert find_broken_rule([*WHOLE[:8], WHOLE[8]._replace(text="[...]")], WHOLE) is None
    assert find_broken_rule(WHOLE[:7], WHOLE) == "kept"
    prefilled = outs(user("a"), assistant("Sure: "))
    assert find_broken_rule([prefilled[0], prefilled[1]._replace(text="No: ")], prefilled) == "kept"


def test_the_error_names_the_message_and_the_rule() -> None:
    with pytest.raises(RuleBroken, match="message 3: a tool result without its call"):
        check([*WHOLE[:2], *WHOLE[5:6], WHOLE[3]], [o.message for o in WHOLE if o.message], LOOSE)


@given(st.permutations(range(len(WHOLE))), st.integers(0, len(WHOLE)), st.sampled_from([STRICT, LOOSE]))
def test_rules_are_checked_from_where_a_prompt_continues(order: list[int], front: int, model: Model) -> None:
    plan = [WHOLE[n] for n in order]
    known = RuleChecker(model).extend(plan[:front])
    assert known.extend(plan[front:]).find_violations() == RuleChecker(model).extend(plan).find_violations()
    assert known.find_violations() == RuleChecker(model).extend(plan[:front]).find_violations(), (
        "what was known is as it was"
    )
