"""`tools.hold_text`: text in front of a hidden round waits, for clients that take the first text for the answer."""

from __future__ import annotations

import json

import pytest

from tests.exchange.hidden_calls import (
    PlayedConversation,
    assert_hidden,
    assert_true,
    make_answer,
    make_client_call,
    make_proxy_call,
    run_proxy_with_tools,
)
from tests.exchange.test_tool_loop import SCENARIOS
from tests.proxy_server import RawAnswer
from tests.raw_upstream import Connection, RawRequest, run_upstream
from tests.scripted_model import Answer, ScriptedModel

HOLD = {"hold_text": True}


def deltas(found: RawAnswer) -> list[str]:
    """The content of each chunk of a stream: a text, or "call", or "end"."""
    told = []
    for event in found.events:
        for choice in json.loads(event).get("choices", ()) if event != b"[DONE]" else ():
            delta = choice["delta"]
            told += [delta["content"]] if delta.get("content") else ["call"] if delta.get("tool_calls") else []
            told += ["end"] if choice["finish_reason"] else []
    return told


@pytest.mark.parametrize("scenario", list(SCENARIOS))
async def test_upstream_sees_what_it_wrote_though_the_client_did_not(scenario: str) -> None:
    answers = [*SCENARIOS[scenario], "You are welcome.", make_answer(None, make_proxy_call(9)), "And that was that."]
    model = ScriptedModel(*answers)
    async with run_upstream(model) as upstream, run_proxy_with_tools(upstream.port, tools=HOLD) as proxy:
        played = PlayedConversation(proxy, model, stream=True)
        for text in ("Hello", "Thank you", "One more thing"):
            await played.turn(text)
            while played.agent.messages[-1].get("tool_calls"):
                await played.turn(None)
    assert len(model.received) == len(answers)
    assert_true(model, answers)
    assert_hidden(played.heard)


@pytest.mark.parametrize("hold", [False, True])
async def test_held_text_before_a_call_of_a_proxy_tool_is_dropped_where_the_client_gets_a_call(hold: bool) -> None:
    answers: list[Answer] = [
        make_answer("Let me look. ", make_proxy_call(1)),
        make_answer(None, make_client_call(1)),
        "It is so.",
    ]
    model = ScriptedModel(*answers)
    async with run_upstream(model) as upstream, run_proxy_with_tools(upstream.port, tools={"hold_text": hold}) as proxy:
        played = PlayedConversation(proxy, model, stream=True)
        found = await played.turn("Hello")
        assert found.message["content"] == (None if hold else "Let me look. ")
        assert [call["id"] for call in found.message["tool_calls"]] == [make_client_call(1)["id"]]
        assert ("Let " in "".join(deltas(found))) is not hold
        assert (await played.turn(None)).message["content"] == "It is so."
    assert_true(model, answers)


async def test_held_text_of_all_rounds_reaches_the_client_in_one_piece() -> None:
    model = ScriptedModel(
        make_answer("One. ", make_proxy_call(1)),
        make_answer("Two. ", make_proxy_call(2)),
        "It is so.",
        make_answer("All of it. ", make_proxy_call(3)),
        "",
    )
    async with run_upstream(model) as upstream, run_proxy_with_tools(upstream.port, tools=HOLD) as proxy:
        played = PlayedConversation(proxy, model, stream=True)
        found = await played.turn("Hello")
        assert found.message["content"] == "One. Two. It is so."
        assert deltas(found) == ["One. Two. It is so.", "end"], "at once, when nothing can follow it"
        assert (await played.turn("And?")).message["content"] == "All of it. ", "the last round said nothing"
    assert_hidden(played.heard)


async def test_the_models_own_text_beside_the_clients_calls_comes_first() -> None:
    model = ScriptedModel(
        make_answer("Both. ", make_client_call(1), make_proxy_call(1)),
        make_answer("Look. ", make_client_call(2)),
        "It is so.",
    )
    async with run_upstream(model) as upstream, run_proxy_with_tools(upstream.port, tools=HOLD) as proxy:
        played = PlayedConversation(proxy, model, stream=True)
        for text, said in (("Hello", "Both. "), (None, "Look. ")):
            found = await played.turn(text)
            assert found.message["content"] == said
            assert deltas(found)[:2] == [said, "call"]
        assert (await played.turn(None)).message["content"] == "It is so."


async def test_when_the_rounds_fail_only_the_original_is_answered() -> None:
    async def fails(_: RawRequest, connection: Connection) -> None:
        await connection.reset()

    model = ScriptedModel(make_answer("Let me look. ", make_proxy_call(1)), fails, "It is so.")
    async with run_upstream(model) as upstream, run_proxy_with_tools(upstream.port, tools=HOLD) as proxy:
        found = await PlayedConversation(proxy, model, stream=True).turn("Hello")
        assert found.message["content"] == "It is so."
