"""What stands behind the system prompt, and that the cache is predicted with it."""

from __future__ import annotations

from dataclasses import replace

from proxy.context.front import system_inserts, system_texts, takes_texts
from proxy.context.pipeline import rewrite
from proxy.context.policy import Policy
from proxy.context.prices import Model
from proxy.context.session import Session
from proxy.memory.state import anchor, ask, guidelines
from tests.context.agent import load
from tests.conversations import WEIGH, assistant, look, request, system, user

ROLLING = Policy("rolling", state_place="system", ask="always", schedule="always")


def test_guidelines_state_and_asking_come_in_this_order() -> None:
    values = request([system("Be."), user("a")])
    found, asked = system_inserts(values, Session(states=((b"k", "Goal: x"),)), ROLLING, 0)
    assert asked
    assert [i.text.strip() for i in found] == [guidelines(), anchor("Goal: x"), ask()]
    assert {i.place for i in found} == {"system"}


def test_without_a_system_prompt_nothing_stands_in_front() -> None:
    assert not takes_texts(request([user("a")]))
    assert system_texts(request([user("a")]), Session(), ROLLING) == []
    assert system_texts(request([system("Be."), user("a")]), Session(), replace(ROLLING, state_place="tail")) == []
    assert system_texts(request([system("Be."), user("a")]), Session(stopped="upstream_reject"), ROLLING) == []


def test_what_stands_in_front_does_not_make_the_cache_look_cold() -> None:
    policy = load("rolling/when_it_pays")
    values = [system("Be. " * 2000), user("a")]
    session = Session()
    cached = []
    for n in range(3):
        plan = rewrite(request(values), session, policy, Model(), float(n), weigh=WEIGH)
        seen = look(values, session=session, policy=policy, model=Model(), now=float(n))
        cached.append(seen.cached)
        session = session.after_sending(plan, float(n))
        values = [*values, assistant(f"Answer {n}."), user(f"Question {n}")]
    assert cached[0] == 0
    assert min(cached[1:]) > 1024, "the prompt before, with its guidelines, is served again"
