from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from proxy.chat.message import Message
from proxy.replay.atoms import WireTokenCounter
from proxy.replay.score import FETCH_LIFETIME, PriceScale, PromptScorer, ReplayTotals
from proxy.replay.wanted_references import WantedReferences
from tests.replay.recorded import assistant, assistant_call, messages, system, tool_result, user

LINE = "def thefunctioninquestion(argument):"
SCALE = PriceScale(((1.25, 0.1), (1.0, 0.5)), 5.0)


def score_prompts(said: list[dict[str, Any]], *prompts: list[dict[str, Any]] | None, **more: Any) -> ReplayTotals:
    """The score of these prompts, one per request; None for the unchanged history. 1,000 tokens each, 600 cached."""
    wants = WantedReferences(messages(*said), None)
    judge = PromptScorer(wants, WireTokenCounter(len), SCALE)
    own = dict(zip(map(str, said), wants.messages, strict=True))

    def message(one: dict[str, Any]) -> Message:
        return own.get(str(one)) or messages(one)[0]

    for step, prompt in zip(wants.requests, prompts, strict=True):
        judge.score_request(
            step, None if prompt is None else [message(m) for m in prompt], 1000, 600, is_counted=True, **more
        )
    return judge.totals


READ = assistant_call(1, path="src/long/name.py")
RESULT = tool_result(1, f"src/long/name.py has 31337 lines\n7:  {LINE}\n" + "and more of it " * 20)
EDIT = assistant_call(2, path="src/long/name.py", line=31337, old=LINE)
SAID = [system("s"), user("go on"), READ, RESULT, EDIT]


def test_prompts_sent_unchanged_lose_nothing_and_cost_the_full_price() -> None:
    tally = score_prompts(SAID, None, None)
    assert (tally.requests, tally.prompt, tally.cached, tally.peak) == (2, 2000, 1200, 1000)
    assert (tally.atoms, tally.atoms_kept, tally.in_place) == (2, 2, 2)
    assert (tally.lines, tally.lines_kept, tally.faults, tally.fetching) == (1, 1, 0, [0.0, 0.0])
    assert tally.compute_cost((1.25, 0.1), 5.0) == 1.25 * 800 + 0.1 * 1200
    assert score_prompts(SAID, SAID[:2], SAID[:4]) == replace(tally, peak=1000)


def test_a_reference_that_left_the_prompt_is_lost_and_counts_as_a_page_fault() -> None:
    tally = score_prompts(SAID, None, [*SAID[:3], tool_result(1, "[gone]")])
    assert (tally.atoms_kept, tally.in_place, tally.lines_kept, tally.faults) == (1, 0, 0, 1)
    again = len("<|tool|>[c1]") + len(RESULT["content"])
    assert tally.fetching == [
        pytest.approx(r * 1000 + 5 * 120 + w * (120 + again) + 5 * r * again) for w, r in SCALE.prices
    ]


def test_an_edited_message_keeps_what_it_still_says() -> None:
    kept = f"src/long/name.py has 31337 lines\n{LINE}\n[more is gone]"
    tally = score_prompts(SAID, None, [*SAID[:3], tool_result(1, kept)])
    assert (tally.atoms_kept, tally.lines_kept, tally.faults) == (2, 1, 0)
    assert tally.in_place == 0  # what stood around both of them is not there any more
    kept = RESULT["content"][:130]
    assert score_prompts(SAID, None, [*SAID[:3], tool_result(1, kept)]).in_place == 2


def test_a_text_of_the_proxy_counts_like_any_other() -> None:
    tally = score_prompts(SAID, None, [system("s\n\nnumber 31337"), *SAID[1:3], tool_result(1, "[gone]")])
    assert (tally.atoms_kept, tally.in_place) == (2, 0)


def test_a_passage_that_is_elsewhere_counts_as_in_place() -> None:
    twin = tool_result(1, RESULT["content"])
    said = [user("go on"), READ, twin, assistant_call(3), {**RESULT, "tool_call_id": "c3"}, EDIT]
    without = [*said[:4], tool_result(3, "[gone]")]
    tally = score_prompts(said, None, None, without)
    assert (tally.atoms_kept, tally.in_place, tally.lines_kept, tally.faults) == (2, 2, 1, 0)


def test_each_message_that_is_missed_is_fetched() -> None:
    # Each answer repeats the number, so it is the newest one that holds it; that one is not in the prompts either.
    said = [user("go on"), READ, RESULT, *[assistant_call(9, n=31337) for _ in range(3)]]
    tally = score_prompts(said, None, *[[user("go on"), assistant("nothing is here")]] * 3)
    assert (tally.atoms, tally.atoms_kept, tally.faults) == (3, 0, 3)


def test_the_same_message_is_not_fetched_twice_in_five_requests() -> None:
    said: list[dict[str, Any]] = [user("go on"), READ, tool_result(1, "\n".join(f"id-{n:05}" for n in range(20)))]
    said += [assistant_call(n, id=f"id-{n:05}") for n in range(10, 10 + FETCH_LIFETIME + 2)]
    tally = score_prompts(said, None, *[[user("go on")]] * (FETCH_LIFETIME + 2))
    assert tally.atoms_kept == 0
    assert tally.faults == 2  # the first, and the one after five more


def test_requests_that_do_not_count_are_remembered_and_not_added() -> None:
    wants = WantedReferences(messages(*SAID), None)
    judge = PromptScorer(wants, WireTokenCounter(len), SCALE)
    for step in wants.requests:
        judge.score_request(step, [wants.messages[1]], 1000, 600, is_counted=False)
    assert judge.totals == ReplayTotals(fetching=[0.0, 0.0])


def test_a_state_block_costs_what_output_costs() -> None:
    tally = score_prompts(SAID, None, None, written=10)
    assert tally.compute_cost((1.0, 0.5), 5.0) == 800 + 600 + 5 * 20


def test_totals_of_two_replays_add_up() -> None:
    one = ReplayTotals(requests=1, prompt=10, peak=10, fetching=[1.0], why=ReplayTotals().why)
    one.why["rule W1"] += 1
    two = ReplayTotals()
    two.add(one)
    two.add(replace(one, peak=7))
    assert (two.requests, two.prompt, two.peak, two.fetching, two.why["rule W1"]) == (2, 20, 10, [2.0], 2)
