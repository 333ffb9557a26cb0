"""References to items, from a client that lets the provider store its answers, through the running proxy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.exchange.test_chains import LISTING, STEPS, ask, body
from tests.proxy_server import RunningProxy, run_proxy
from tests.raw_upstream import run_upstream
from tests.strict_responses import Say, StrictResponses, Think

Json = dict[str, Any]
COUNT = 8


def make_model() -> StrictResponses:
    return StrictResponses(*STEPS[:COUNT], [Think(), Say("All done.")])


def refer(answer: Json) -> list[Json]:
    """The items of an answer as the AI SDK sends them back: references, and calls in full."""
    return [
        item if item["type"] == "function_call" else {"type": "item_reference", "id": item["id"]}
        for item in answer["output"]
    ]


async def run_loop(proxy: RunningProxy, items: list[Json], *, stream: bool, steps: int = 99) -> list[Json]:
    """Go on with a conversation whose answers are referred to. Return the responses."""
    found = []
    for _ in range(steps):
        answer = await ask(proxy, items, stream=stream)
        found.append(answer)
        items += refer(answer)
        calls = [item for item in answer["output"] if item["type"] == "function_call"]
        items += [{"type": "function_call_output", "call_id": one["call_id"], "output": LISTING} for one in calls]
        if not calls:
            break
    return found


@pytest.mark.parametrize("stream", [False, True])
async def test_items_that_are_referred_to_come_from_the_store_and_the_prompt_is_managed(
    stream: bool, tmp_path: Path
) -> None:
    alone, model = make_model(), make_model()
    async with run_upstream(alone) as upstream, run_proxy(upstream.port) as proxy:
        wanted = await run_loop(proxy, [{"role": "user", "content": "Find the fault."}], stream=stream)
    tree: Json = {"policy": "thrifty", "db": str(tmp_path / "a"), "responses": {"takeover": True}}
    items: list[Json] = [{"role": "user", "content": "Find the fault."}]
    async with run_upstream(model) as upstream:
        async with run_proxy(upstream.port, **tree) as proxy:
            found = await run_loop(proxy, items, stream=stream, steps=4)
        async with run_proxy(upstream.port, **tree) as proxy:  # another process has the ids from the store alone
            found += await run_loop(proxy, items, stream=stream)
            outcomes = await proxy.outcomes()
            assert await proxy.rows("SELECT count(*) FROM branches") == [(1,)], "one conversation, on one branch"
            heard = await proxy.post(body([*items, {"role": "user", "content": "And?"}]), path="/v1/responses")
            assert heard.header("x-context-chain") == "taken over"
    assert (model.refused, model.dropped) == ([], [])
    assert {(status, fallback) for status, _, fallback in outcomes} == {("complete", None)}
    assert [one["output"] for one in found] == [one["output"] for one in wanted]
    assert "item_reference" not in json.dumps(model.received)
    for sent in model.received:
        assert "store" not in sent, "the provider goes on to store, so that the ids stay good without the proxy"
    sizes = [sum(len(json.dumps(sent["input"])) for sent in one.received[: COUNT + 1]) for one in (alone, model)]
    assert sizes[1] < 0.8 * sizes[0], "something is saved"


@pytest.mark.parametrize("takeover", [False, True])
async def test_a_reference_to_an_unknown_item_is_passed_on_unchanged(takeover: bool) -> None:
    model = make_model()
    async with run_upstream(model) as upstream:
        async with run_proxy(upstream.port) as proxy:
            first = await ask(proxy, "Find the fault.")
        tree: Json = {"policy": "thrifty", "responses": {"takeover": takeover}}
        async with run_proxy(upstream.port, **tree) as proxy:
            call = next(item for item in first["output"] if item["type"] == "function_call")
            result = {"type": "function_call_output", "call_id": call["call_id"], "output": "text"}
            asked = body([{"role": "user", "content": "Find the fault."}, *refer(first), result])
            heard = await proxy.post(asked, path="/v1/responses")
            assert heard.header("x-context-fallback") == "chain"
            assert heard.header("x-context-chain") is None
    assert model.refused == []
    assert model.received[-1]["input"] == asked["input"]
