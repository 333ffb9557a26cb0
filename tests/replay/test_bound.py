from __future__ import annotations

import re

from proxy.context.models import Model
from proxy.replay.atoms import WireTokenCounter
from proxy.replay.bound import BOUNDS, BoundInput, compute_bound, find_last_uses, find_removable
from proxy.replay.score import ReplayTotals
from proxy.replay.wanted_references import WantedReferences
from tests.replay.recorded import assistant, assistant_call, messages, system, tool_result, user

MODEL = Model(min=1, block=1)
SAID = messages(
    system("s"),  # 0
    user("look at both"),  # 1
    assistant_call(1, path="src/a.py"),  # 2, first request
    tool_result(1, "token-123 " + "a" * 90),  # 3
    assistant_call(2, path="src/b.py"),  # 4
    tool_result(2, "b" * 100),  # 5
    assistant("well"),  # 6
    user("and the first"),  # 7
    assistant_call(3, token="token-123"),  # 8
    tool_result(3, "c" * 100),  # 9
    assistant("done"),  # 10
)


def compute_bound_of(name: str, **more: object) -> ReplayTotals:
    found = BoundInput(find_removable(name, SAID, []), 50, tuple(range(len(SAID))), **more)  # type: ignore[arg-type]
    return compute_bound(WantedReferences(SAID, None), WireTokenCounter(len), MODEL, found, price_pairs=1)


def test_a_result_is_carried_until_its_last_use_and_at_least_once() -> None:
    assert find_last_uses(WantedReferences(SAID, None), find_removable("results", SAID, [])) == {3: 8, 5: 6, 9: 10}


def test_a_message_that_no_request_follows_is_carried_by_none() -> None:
    said = messages(user("a"), assistant("b"), tool_result(1, "c"))
    assert find_last_uses(WantedReferences(said, None), [True] * 3) == {0: 1}


def test_all_messages_but_the_system_prompt_and_the_newest_user_message_may_leave() -> None:
    found = find_last_uses(WantedReferences(SAID, None), find_removable("messages", SAID, []))
    assert found == {1: 6, 2: 4, 3: 8, 4: 6, 5: 6, 6: 8, 7: 10, 8: 10, 9: 10}


def test_user_messages_that_are_really_results_may_leave() -> None:
    said = messages(user("do it"), assistant("ls"), user("OBSERVATION: a"), assistant("done"))
    assert find_removable("results", said, [re.compile("^OBSERVATION")]) == [False, False, True, False]
    assert find_removable("messages", said, []) == [True] * 4
    assert BOUNDS == ("results", "messages")


def test_carried_messages_are_served_by_the_cache_and_removed_ones_cost_nothing() -> None:
    sizes = list(map(WireTokenCounter(len), SAID))
    tally = compute_bound_of("results")
    prompts = [50 + sum(sizes[:n]) for n in (2, 4, 6, 8, 10)]
    prompts[3] -= sizes[5]  # after the third request nobody wants the second file
    prompts[4] -= sizes[5] + sizes[3]
    assert tally.prompt == sum(prompts)
    assert tally.peak == max(prompts)
    cached = [0, prompts[0], prompts[1], prompts[2] - sizes[5], prompts[3] - sizes[3]]
    cached[0] = 0
    assert tally.cached == sum(cached)
    assert (tally.requests, tally.atoms, tally.atoms_kept, tally.in_place, tally.faults) == (5, 1, 1, 1, 0)


def test_requests_of_another_branch_are_not_counted() -> None:
    assert compute_bound_of("results", shared_messages=7).requests == 2
    assert compute_bound_of("results", shared_messages=7).peak == compute_bound_of("results").peak


def test_a_cold_cache_serves_nothing() -> None:
    found = BoundInput([False] * len(SAID), 50, tuple(n * 1000.0 for n in range(len(SAID))))
    assert compute_bound(WantedReferences(SAID, None), WireTokenCounter(len), MODEL, found, price_pairs=1).cached == 0
