from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from proxy.chat import key
from proxy.exchange.turn import EMPTY, Turn
from tests.conversations import assistant, request, user


def turn(*messages: Any) -> Turn:
    came = request(messages)
    unused: Any = None
    policy: Any = SimpleNamespace(observation=None)
    return Turn("x", "t", unused, came, key.chain("t", came.messages), policy, unused, "u", "openai", unused, 1.0)


def test_a_turn_that_is_not_planned_goes_out_as_it_came() -> None:
    found = turn(user("Hi"), assistant("Yes."), user("And?"))
    assert found.plan is EMPTY
    assert found.woven.request is found.request
    assert found.head == found.keys[2]


def test_each_message_has_the_group_of_the_prompt_that_caused_it() -> None:
    found = turn(user("Hi"), assistant("Yes."), user("And?"), assistant("So."))
    names = found.group_ids()
    assert names[0] == names[1]
    assert names[2] == names[3]
    assert names[0] != names[2]
    assert found.group_ids() is names, "looked for once"
