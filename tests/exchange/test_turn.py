from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from msgspec.structs import replace

from proxy.chat import chain
from proxy.chat.group import list_group_ids
from proxy.exchange.turn import UNPLANNED, Enriched, Turn
from proxy.sessions.hidden_rounds import SplicedRequest
from tests.conversations import assistant, make_request, user


def turn(*messages: Any, tenant: str = "t") -> Turn:
    came = make_request(messages)
    unused: Any = None
    policy: Any = SimpleNamespace(observation=None)
    keys = chain.compute_keys(tenant, came.messages)
    enriched = Enriched(policy, SplicedRequest(came, keys))
    return Turn("x", "t", unused, came, keys, unused, "u", "openai", unused, 1.0, enriched)


def ids(turn: Turn, begin: int = 0) -> list[str]:
    return list_group_ids(turn.request, turn.keys, turn.enriched.policy.observation, begin)


def test_a_turn_that_is_not_planned_is_sent_unchanged() -> None:
    found = turn(user("Hi"), assistant("Yes."), user("And?"))
    assert found.prompt.plan is UNPLANNED
    assert found.enriched.spliced.request is found.request
    assert found.tip_key == found.keys[2]


def test_each_message_has_the_group_of_the_prompt_that_caused_it() -> None:
    found = turn(user("Hi"), assistant("Yes."), user("And?"), assistant("So."))
    names = ids(found)
    assert names[0] == names[1]
    assert names[2] == names[3]
    assert names[0] != names[2]
    assert len(names) == 4
    assert [ids(found, n) for n in range(4)] == [names[n:] for n in range(4)]


def test_groups_of_a_known_prefix_are_reused_only_for_the_same_tenant() -> None:
    talk = [user("Hi"), assistant("Yes."), user("And?"), assistant("So."), user("Well"), user("Then")]
    fresh = turn(*talk)
    expected = ids(fresh)
    for tenant in ("t", "u"):
        before, after = turn(*talk[:3]), turn(*talk, tenant=tenant)
        assert ids(before, 2)
        prefix_cache = before.request.messages
        messages = (*prefix_cache, *after.request.messages[3:])
        request = replace(after.request, messages=messages, memo_values=dict(before.request.memo_values))
        after = after.with_values(request=request)
        found = ids(after)
        assert (found == expected) is (tenant == "t")
        assert len(set(found)) == 3
