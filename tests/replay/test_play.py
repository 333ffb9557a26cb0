from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest

from proxy.context.models import Model, without_cache
from proxy.context.plan import Proposal
from proxy.context.policy import OfferTime, Policy, with_schedule
from proxy.context.stage import Stage, When
from proxy.context.view import View
from proxy.replay.play import (
    PLAYED_STATE,
    Contender,
    ConversationResult,
    OfferHistory,
    ReplaySettings,
    play_conversation,
)
from proxy.replay.read import RecordedConversation
from proxy.settings.load import Settings
from proxy.tokenizers import get_token_counter
from proxy.web.app import make_policies
from tests.replay.recorded import assistant, make_conversation, make_run, user

MODEL = Model(tokenizer="estimate")
PRICES = ((1.25, 0.1), (1.0, 0.5))
NOTHING = Contender("nothing")


@pytest.fixture(scope="module")
def policies() -> dict[str, Policy]:
    return make_policies(Settings())


def played(
    one: RecordedConversation, *contenders: Contender, model: Model = MODEL, state: bool = False
) -> ConversationResult:
    return play_conversation(one, ReplaySettings((NOTHING, *contenders), model, PRICES, state))


def test_doing_nothing_sends_every_history_as_it_is() -> None:
    one = make_conversation(*make_run(20))
    found = played(one, Contender("still nothing"))
    nothing = found.totals[0]
    assert nothing == found.totals[1]
    assert (found.source, nothing.requests) == ("runs.jsonl", 22)
    assert nothing.atoms == nothing.atoms_kept > 0
    assert nothing.lines == nothing.lines_kept == 1
    assert nothing.cached > 0.8 * nothing.prompt
    assert found.bounds["messages"].prompt < found.bounds["results"].prompt < nothing.prompt


def test_a_policy_is_played_with_its_session_carried_along(policies: dict[str, Policy]) -> None:
    nothing, thrifty, rolling = played(
        make_conversation(*make_run(40)), Contender("t", policies["thrifty"]), Contender("r", policies["rolling"])
    ).totals
    assert thrifty.prompt < nothing.prompt
    assert thrifty.refused == thrifty.failed == rolling.refused == rolling.failed == 0
    assert thrifty.compute_cost(PRICES[0], 5) <= nothing.compute_cost(PRICES[0], 5)
    # Edits stay: far more is served by the cache than where they are made anew with every request.
    assert thrifty.cached / thrifty.prompt > rolling.cached / rolling.prompt


def test_policies_that_only_look_send_the_original(policies: dict[str, Policy]) -> None:
    nothing, *others = played(
        make_conversation(*make_run(30)), Contender("o", policies["observe"]), Contender("p", policies["passthrough"])
    ).totals
    assert others == [nothing, nothing]


def test_every_schedule_can_be_played(policies: dict[str, Policy]) -> None:
    rolling = policies["rolling"]
    windowed = replace(MODEL, window=20_000)
    always, over, pays = (
        Contender(name, with_schedule(rolling, name)) for name in ("always", "over_budget", "when_it_pays")
    )
    tallies = played(make_conversation(*make_run(40)), always, over, pays, model=windowed).totals
    assert all(t.prompt < tallies[0].prompt for t in tallies[1:])
    assert all(t.failed == t.refused == 0 for t in tallies)


def test_a_baseline_is_played_by_its_name() -> None:
    nothing, masked = played(make_conversation(*make_run(30)), Contender("mask-10", None, "mask-10")).totals
    assert masked.prompt < nothing.prompt


def test_the_same_conversation_gives_the_same_sums(policies: dict[str, Policy]) -> None:
    one, thrifty = make_conversation(*make_run(30)), Contender("t", policies["thrifty"])
    assert played(one, thrifty) == played(one, thrifty)


@dataclass(frozen=True, slots=True)
class Trip(Stage):
    """A stage of somebody's own that fails."""

    when: ClassVar[When] = "schedule"

    def __call__(self, view: View) -> Iterable[Proposal]:
        raise ValueError(f"I cannot read {len(view.messages)} messages")


def test_a_stage_that_fails_is_counted_and_the_original_is_sent() -> None:
    nothing, failing = played(make_conversation(*make_run(5)), Contender("trip", Policy("trip", (Trip(),)))).totals
    assert (failing.failed, failing.prompt) == (nothing.requests, nothing.prompt)
    assert failing.why["ValueError: I cannot read 2 messages"] == 1


@dataclass(frozen=True, slots=True)
class Silence(Stage):
    """Leaves nothing of what the model said: an empty message, which no upstream accepts."""

    when: ClassVar[When] = "always"

    def __call__(self, view: View) -> Iterable[Proposal]:
        answers = (n for n, m in enumerate(view.messages) if m.role == "assistant" and m.text)
        yield from (Proposal(n, "text", "silence", "why not", 0, text="") for n in answers)


def test_a_plan_that_breaks_a_rule_is_counted_and_the_original_is_sent() -> None:
    said = [user("a question"), assistant("an answer " * 20), user("another"), assistant("yes")]
    nothing, silent = played(make_conversation(*said), Contender("silence", Policy("silence", (Silence(),)))).totals
    assert (silent.requests, silent.refused, sum(silent.why.values())) == (2, 1, 1)
    assert next(iter(silent.why)).startswith("rule W")
    assert silent.prompt == nothing.prompt


def test_the_played_model_writes_its_state_only_where_it_is_asked_to(policies: dict[str, Policy]) -> None:
    said = [m for n in range(12) for m in (user(f"question {n}"), assistant("an answer"))]
    rolling = Contender("r", policies["rolling"])
    silent, noting = (played(make_conversation(*said), rolling, state=state).totals[1] for state in (False, True))
    assert silent.written == 0
    assert noting.written == 12 * get_token_counter("estimate")("### STATE\n" + PLAYED_STATE)
    assert noting.prompt > silent.prompt  # the note stands in the prompts from then on
    assert (
        played(make_conversation(*make_run(5)), Contender("t", policies["thrifty"]), state=True).totals[0].written == 0
    )


def test_requests_at_the_front_that_another_branch_made_are_played_and_not_counted(policies: dict[str, Policy]) -> None:
    whole, thrifty = make_conversation(*make_run(30)), Contender("t", policies["thrifty"])
    found = played(replace(whole, shared_messages=40), thrifty)
    assert [t.requests for t in (*found.totals, *found.bounds.values())] == [13] * 4
    assert found.totals[1].peak == played(whole, thrifty).totals[1].peak


def test_where_times_are_known_an_idle_hour_makes_the_cache_cold() -> None:
    said = make_run(20)
    steady = tuple(float(n) for n in range(len(said)))
    late = tuple(n + (3600.0 if n > 20 else 0.0) for n in range(len(said)))
    warm, cold = (played(replace(make_conversation(*said), times=t)).totals[0] for t in (steady, late))
    assert warm.prompt == cold.prompt
    assert 0 < warm.cached - cold.cached < warm.peak


def test_a_conversation_without_requests_adds_nothing() -> None:
    assert played(make_conversation(user("hello?"))).totals[0].requests == 0


def test_proxy_tools_cost_their_tokens_where_the_agent_has_tools_itself(policies: dict[str, Policy]) -> None:
    thrifty, bare = (
        replace(policies["thrifty"], offer="first_request"),
        replace(policies["thrifty"], tools=(), offer="never"),
    )
    contenders = (Contender("recall", thrifty), Contender("bare", bare))
    one = make_conversation(*make_run(40))
    assert one.tools is None
    _, offered, without = played(one, *contenders).totals
    assert offered.prompt == without.prompt
    tools = b'[{"type":"function","function":{"name":"read","parameters":{}}}]'
    _, offered, without = played(replace(one, tools=tools), *contenders).totals
    stubs = offered.prompt - without.prompt - offered.requests * 60
    assert 0 < stubs < 0.1 * without.prompt, "at least 60 tokens in each prompt, and the ids in what was shortened"


def test_tools_that_come_with_the_first_edit_cost_nothing_before_it(policies: dict[str, Policy]) -> None:
    tools = b'[{"type":"function","function":{"name":"read","parameters":{}}}]'
    late, never = (replace(policies["thrifty"], offer=offer) for offer in ("first_edit", "never"))
    short = replace(make_conversation(*make_run(2)), tools=tools)
    _, first, none = played(short, Contender("late", late), Contender("never", never)).totals
    assert first.prompt == none.prompt
    long = replace(make_conversation(*make_run(40)), tools=tools)
    _, first, none = played(long, Contender("late", late), Contender("never", never)).totals
    assert first.prompt > none.prompt
    assert first.prompt - first.cached > none.prompt - none.cached, "its cache had to be written again"


def test_tools_that_are_needed_come_at_once_where_conversations_of_the_kind_have_come_to_edits(
    policies: dict[str, Policy],
) -> None:
    tools = b'[{"type":"function","function":{"name":"read","parameters":{}}}]'
    other = tools.replace(b"read", b"view")
    whens: tuple[OfferTime, ...] = ("when_needed", "first_edit", "first_request")
    contenders = [Contender(when, replace(policies["thrifty"], offer=when)) for when in whens]
    kinds = [("short", 2, tools), ("first", 40, tools), ("second", 40, tools), ("another kind", 40, other)]
    habits = OfferHistory()
    found = {
        name: habits.choose_totals(
            played(replace(make_conversation(*make_run(steps)), tools=array), *contenders)
        ).totals[1:]
        for name, steps, array in kinds
    }
    assert found["short"][0] == found["short"][1], "nothing has come to edits yet"
    assert found["first"][0] == found["first"][1] != found["first"][2]
    assert found["second"][0] == found["second"][2] != found["second"][1]
    assert found["another kind"][0] == found["another kind"][1]


def test_where_there_is_no_cache_tools_that_are_needed_never_come_before_the_first_edit(
    policies: dict[str, Policy],
) -> None:
    """In front of a prompt that is written anew each time they would only be paid, and late ones move no prefix."""
    tools = b'[{"type":"function","function":{"name":"read","parameters":{}}}]'
    whens: tuple[OfferTime, ...] = ("when_needed", "first_edit", "first_request")
    contenders = [Contender(when, replace(policies["thrifty"], offer=when)) for when in whens]
    habits, uncached = OfferHistory(), without_cache(MODEL)
    for steps in (40, 2, 40):
        one = replace(make_conversation(*make_run(steps)), tools=tools)
        needed, late, early = habits.choose_totals(played(one, *contenders, model=uncached)).totals[1:]
        assert needed == late
        assert needed.prompt < early.prompt
