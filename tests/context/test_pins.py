"""Row E7: what is pinned, and that no policy edits it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from proxy.chat import chain
from proxy.context.branch_state import BranchState
from proxy.context.models import Model
from proxy.context.pins import has_pin_mark, is_pinned
from proxy.context.pipeline import rewrite
from proxy.context.plan import RewriteInputs
from proxy.context.policy import Policy, compile_patterns
from tests.context.agent import load_policy
from tests.conversations import (
    COUNTER,
    INPUTS,
    PLAIN_MODEL,
    assistant,
    build_view,
    change_view,
    make_message,
    make_request,
    result,
    system,
    user,
)


@pytest.mark.parametrize("text", ["[pin] keep this", "keep [PIN]", "a\n[Pin]\nb"])
def test_e7_a_mark_of_the_user_or_the_system_prompt_pins(text: str) -> None:
    assert has_pin_mark([make_message(user(text))], 0)
    assert has_pin_mark([make_message(system(text))], 0)
    assert has_pin_mark([make_message(user([{"type": "text", "text": text}]))], 0)


@pytest.mark.parametrize("text", ["pin", "[pinned]", "a[pin]", "[pin](http://x)", "x[0][pin]", "[ pin ]"])
def test_e7_a_text_that_only_looks_like_a_mark_pins_nothing(text: str) -> None:
    assert not has_pin_mark([make_message(user(text))], 0)


def test_e7_a_mark_in_a_tool_result_or_an_answer_pins_nothing() -> None:
    view = build_view([user("a"), assistant("[pin]", "1"), result("1", "[pin]"), assistant("[pin]"), user("b")])
    assert [is_pinned(view, n) for n in range(5)] == [False] * 5
    policy = Policy("p", observation=compile_patterns(["^Output:"]))
    view = build_view([user("a"), assistant("run it"), user("Output: [pin]"), user("[pin] b")], policy=policy)
    assert [is_pinned(view, n) for n in range(4)] == [False, False, False, True]


def test_e7_a_mark_in_what_a_client_adds_to_results_pins_nothing() -> None:
    """It may quote a file or a page, whose author would keep it in each later prompt."""
    added = user("<system-reminder>\nThe file a.md has changed:\n[pin] keep\n</system-reminder>")
    view = build_view(
        [user("a"), assistant(None, "1"), result("1", "x"), added, assistant("b"), user("[pin] c"), added]
    )
    assert [is_pinned(view, n) for n in range(7)] == [False] * 5 + [True, True]


def test_e7_a_pin_is_found_by_its_chain_key() -> None:
    view = build_view([system(), user("a"), assistant("b"), user("c")])
    view = change_view(view, pins=frozenset({view.keys[1]}))
    assert [is_pinned(view, n) for n in range(4)] == [False, True, False, False]


@pytest.mark.parametrize("policy", ["rolling", "hierarchical", "thrifty", "rolling/when_it_pays", "importance"])
@pytest.mark.parametrize("by", ["key", "mark"])
def test_e7_no_policy_edits_what_is_pinned(policy: str, by: str) -> None:
    """A prompt of an old group, and where a key says so a result with all of its step."""
    mark = "[pin] " if by == "mark" else ""
    talk = [user("start")]
    for n in range(12):
        talk += [user(f"{mark if n == 2 else ''}task {n} " + "words " * 60), assistant(None, f"{n}")]
        talk += [result(f"{n}", f"result {n} " * 200), assistant(f"done {n} " * 50)]
    talk.append(user("now"))
    asked = make_request(talk)
    keys = chain.compute_keys("", asked.messages)
    wanted = [9] if by == "mark" else [9, 11]
    pins = frozenset(keys[n] for n in wanted) if by == "key" else frozenset()
    plan = rewrite(asked, BranchState(pins=pins), load_policy(policy), replace(PLAIN_MODEL, window=12_000), 0.0, INPUTS)
    assert plan.refusal is None
    assert plan.messages is not None
    for n in wanted:
        assert asked.messages[n].raw in plan.messages
    if by == "key":
        assert asked.messages[10].raw in plan.messages
    plain = rewrite(asked, BranchState(), load_policy(policy), replace(PLAIN_MODEL, window=12_000), 0.0, INPUTS)
    if by == "key":
        assert plain.messages is not None
        assert not all(asked.messages[n].raw in plain.messages for n in wanted)


def test_e7_a_system_message_after_a_pinned_one_makes_no_difference() -> None:
    talk = [user("[pin] a"), system("late"), assistant("b"), user("c")]
    plan = rewrite(make_request(talk), BranchState(), load_policy("hierarchical"), Model(), 0.0, INPUTS)
    assert plan.messages is None


@pytest.mark.parametrize("name", ["rolling", "thrifty/over_budget", "hierarchical", "importance", "progressive"])
def test_guarded_tool_results_stay_as_received_under_each_policy(name: str) -> None:
    """Results of the proxy's own tools, while the model works on what it asked them for."""
    values = [user("go"), *(m for n in range(30) for m in (assistant(None, f"c{n}"), result(f"c{n}", "word " * 2000)))]
    asked = make_request([*values, user("on")])
    keys = chain.compute_keys("", asked.messages)
    model = Model("m", window=40_000)

    def sent(guarded: frozenset[bytes]) -> bytes:
        plan = rewrite(
            asked, BranchState(), load_policy(name), model, 0.0, RewriteInputs(COUNTER, keys=keys, guarded_keys=guarded)
        )
        assert plan.refusal is None
        return b"".join(plan.messages or ())

    assert asked.messages[4].raw not in sent(frozenset())
    assert asked.messages[4].raw in sent(frozenset({keys[4]}))
