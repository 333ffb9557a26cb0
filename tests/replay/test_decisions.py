"""Agreement of decisions, counted."""

from __future__ import annotations

import json

import pytest

from proxy.replay.decisions import LOOKUP, TEXT, Decision, DecisionPoint, compare_decisions, read_action


def answer(*names: str, finish: str = "stop") -> bytes:
    called = [
        {"id": f"c{n}", "type": "function", "function": {"name": name, "arguments": '{"path": "./a"}'}}
        for n, name in enumerate(names)
    ]
    message = {"role": "assistant", "content": "Hm.", **({"tool_calls": called} if called else {})}
    return json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": finish}]}).encode()


@pytest.mark.parametrize(
    ("body", "action"),
    [
        (answer("read", "list"), '[["list","{\\"path\\":\\"a\\"}"],["read","{\\"path\\":\\"a\\"}"]]'),
        (answer(), TEXT),
        (answer("recall"), LOOKUP),
        (b"{}", None),
        (b"no", None),
    ],
)
def test_an_action_is_the_calls_of_an_answer(body: bytes, action: str | None) -> None:
    found = read_action(body)
    assert (found and found[0]) == action


def point(n: int) -> DecisionPoint:
    return DecisionPoint(f"c{n % 3}", n, b"full", b"managed")


def decide(*actions: str) -> list[Decision]:
    return [Decision("p", n, action, 0.01) for n, action in enumerate(actions)]


def test_agreement_of_full_with_managed_is_shown_beside_that_of_full_with_full() -> None:
    points = [point(n) for n in range(4)]
    answers = {
        (0, "full"): decide("a", "a"), (0, "managed"): decide("a", "a"),
        (1, "full"): decide("a", "b"), (1, "managed"): decide("a", "b"),
        (2, "full"): decide("a", "a"), (2, "managed"): decide("b", "c"),
        (3, "full"): decide("a", "a"), (3, "managed"): decide(LOOKUP, LOOKUP),
    }  # fmt: skip
    found = compare_decisions(points, answers, left=2, failed=1)
    assert (found.points, found.conversations, found.left, found.failed, found.lookups) == (3, 3, 2, 1, 2)
    assert found.full_with_full == pytest.approx(2 / 3)
    assert found.full_with_managed == pytest.approx((1 + 0.5 + 0) / 3)
    assert found.managed_with_managed == pytest.approx(1 / 3)
    assert found.difference is not None
    assert found.low is not None
    assert found.low <= found.difference == pytest.approx(-1 / 6)
    assert found.differing == ["c2#2"]
    assert found.dollars == pytest.approx(0.16)


def test_without_questions_nothing_is_compared() -> None:
    found = compare_decisions([point(0)], {}, left=1, failed=0)
    assert (found.points, found.full_with_full, found.difference, found.low) == (0, None, None, None)
