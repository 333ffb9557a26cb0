from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from proxy.chat import chain
from proxy.context.plan import Edit
from proxy.context.provider_clearing import PLACEHOLDER, STAGE
from proxy.dialects.completions.request import read_request
from proxy.exchange.turn import UNPLANNED
from proxy.exchange.wire_messages import find_sources, leaves_clearing, list_uncleared
from proxy.sessions.hidden_rounds import HiddenRound, SplicedRequest, splice_hidden_rounds
from tests.conversations import assistant, encode_json, make_request, result, user


def test_each_message_has_the_place_that_it_has_in_the_client_s_request() -> None:
    client = make_request([user("Hi"), assistant("Yes."), user("So?")])
    keys = chain.compute_keys("t", client.messages)
    spliced = SplicedRequest(client, keys)
    raws = [message.raw for message in client.messages]
    assert find_sources(spliced, client, UNPLANNED) == list(enumerate(raws))
    note = encode_json(user("A note."))
    plan = replace(UNPLANNED, messages=(raws[0], raws[2], note), sources=(0, 2, 3))
    assert find_sources(spliced, client, plan) == [(0, raws[0]), (2, raws[2]), (None, note)]


def test_messages_of_a_hidden_round_are_none_of_the_client_s() -> None:
    hidden = [assistant(None, "a"), result("a", "found"), assistant("It is so.")]
    client = make_request([user("Hi"), assistant("It is so."), user("So?")])
    keys = chain.compute_keys("t", client.messages)
    behind = HiddenRound(keys[1], keys[0], tuple(encode_json(one) for one in hidden))
    spliced = splice_hidden_rounds(client, keys, {behind.request_tip: [behind]})
    found = find_sources(spliced, client, UNPLANNED)
    assert [source for source, _ in found] == [0, None, None, None, 2]
    assert [raw for _, raw in found] == [message.raw for message in spliced.request.messages]


def test_results_that_the_provider_clears_are_sent_unchanged() -> None:
    talk: list[Any] = [user("Hi")]
    for n in range(4):
        talk += [assistant(None, f"call_{n}"), result(f"call_{n}", f"result {n}")]
    client = read_request(
        msgspec.json.encode({"model": "m", "messages": talk})
    )  # without blanks, as a dialect reads it
    keys = chain.compute_keys("t", client.messages)
    raws = [message.raw for message in client.messages]
    edits = {keys[n]: Edit(keys[n], "text", PLACEHOLDER, STAGE, "it pays", 9, 3) for n in (2, 4)}
    cleared = {n: msgspec.json.encode(result(f"call_{n // 2 - 1}", PLACEHOLDER)) for n in (2, 4)}
    sent = [cleared.get(n, raw) for n, raw in enumerate(raws)]
    plan = replace(UNPLANNED, messages=tuple(sent), sources=tuple(range(9)), edits=edits)
    spliced = SplicedRequest(client, keys)
    assert leaves_clearing(plan)
    assert list_uncleared(spliced, plan, find_sources(spliced, client, plan)) == (list(enumerate(raws)), 2)
    assert not leaves_clearing(UNPLANNED)
    assert list_uncleared(spliced, UNPLANNED, list(enumerate(raws))) == (list(enumerate(raws)), None)
