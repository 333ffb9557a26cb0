"""What reflection looks at: calls with their results, in batches that keep their names, ranked by the goal."""

from __future__ import annotations

import pytest

from proxy.chat import group, key
from proxy.chat.key import chain
from proxy.context.evidence import reflecting
from proxy.context.evidence.reflecting import Reflecting
from proxy.context.plan import Ask
from proxy.errors import ConfigError
from tests.context.research import step
from tests.conversations import Json, assistant, messages, result, user


def batched(values: list[Json], **more: object) -> list[reflecting.Batch]:
    read = messages(*values)
    return reflecting.batches(read, chain("", read), group.steps(read), Reflecting(**more))  # type: ignore[arg-type]


def test_calls_are_paired_by_id_else_by_place() -> None:
    read = messages(assistant("", "a", "b"), result("b", "of b"), result("zzz", "of a"))
    found = reflecting.done(read, group.steps(read)[0])
    assert [(one.call.id, read[one.result].text) for one in found] == [("b", "of b"), ("a", "of a")]


def test_c5_low_stakes_calls_are_in_no_batch() -> None:
    values = [user("x"), *step("think", "ok"), *step("search", "found"), *step("sleep", "ok")]
    assert [one.call.name for batch in batched(values) for one in batch.done] == ["search"]
    assert [one.call.name for batch in batched(values, low_stakes=("search",)) for one in batch.done] == [
        "think",
        "sleep",
    ]


def test_c5_batches_keep_their_names_while_the_conversation_grows() -> None:
    values = [user("x")]
    seen: list[str] = []
    for n in range(7):
        values += step("search", f"found {n}")
        found = [batch.ask for batch in batched(values, batch=3)]
        assert len(found) == (n + 1) // 3
        assert found[: len(seen)] == seen
        seen = found
    read = messages(*values)
    keys = key.chain("", read)
    assert seen[0] == Ask("reflection", "", (keys[2], keys[4], keys[6])).id


def test_c3_the_goal_is_the_states_else_the_last_user_message() -> None:
    read = messages(user("first"), assistant("x"), user("second"), user("output"))
    assert reflecting.goal("Context: c\nGoal: to win\nx", read) == "to win"
    assert reflecting.goal("Context: c", read) == "output"
    assert reflecting.goal(None, read, [False, False, False, True]) == "second"
    assert reflecting.goal(None, ()) == ""


def test_c3_calls_are_ranked_by_the_words_of_the_goal() -> None:
    values = [*step("search", "nothing of it"), *step("search", "flask logging setup"), *step("search", "flask is old")]
    read = messages(*values)
    found = [one for s in group.steps(read) for one in reflecting.done(read, s)]
    ranks = reflecting.ranks("configure flask logging", read, found)
    assert ranks[:2] == ["low", "high"]
    assert ranks[2] == "medium"


def test_settings_that_are_wrong_are_named() -> None:
    with pytest.raises(ConfigError, match="inline"):
        Reflecting(reflect="sometimes")
    with pytest.raises(ConfigError, match="1 or more"):
        Reflecting(batch=0)
    assert Reflecting().mode({"reflect": "Inline"}) == "inline"
    assert Reflecting(reflect="helper").mode({"reflect": "what"}) == "helper"
