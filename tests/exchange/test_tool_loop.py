from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from proxy.chat import chain
from proxy.dialects.completions.request import read_message
from proxy.operator.session_stats import compute_stats
from proxy.operator.timeline import make_timeline_cache
from tests.exchange.hidden_calls import (
    TOOLS,
    PlayedConversation,
    assert_hidden,
    assert_rebuilt,
    assert_true,
    list_offered_tools,
    list_sent_messages,
    make_answer,
    make_client_call,
    make_proxy_call,
    run_proxy_with_tools,
)
from tests.raw_upstream import run_upstream
from tests.scripted_model import ScriptedModel

THOUGHT = {"reasoning_content": "Hm, let me think."}
SIGNED: Any = {"extra_content": {"google": {"thought_signature": "c2lnbmVk"}}}

SCENARIOS: dict[str, list[Any]] = {
    "only the client's": [make_answer(None, make_client_call(1)), "It is so."],
    "one of ours": [make_answer(None, make_proxy_call(1)), "It is so."],
    "text before it": [make_answer("Let me look. ", make_proxy_call(1)), "It is so."],
    "two of ours at once": [make_answer(None, make_proxy_call(1), make_proxy_call(2)), "It is so."],
    "rounds without a word": [
        make_answer(None, make_proxy_call(1)),
        make_answer(None, make_proxy_call(2)),
        make_answer(None, make_proxy_call(3)),
        "It is so.",
    ],
    "three rounds of ours": [
        make_answer("One. ", make_proxy_call(1)),
        make_answer("Two. ", make_proxy_call(2)),
        make_answer(None, make_proxy_call(3)),
        "It is so.",
    ],
    "ours before the client's": [make_answer(None, make_proxy_call(1), make_client_call(1)), "It is so."],
    "ours behind the client's": [make_answer("Both: ", make_client_call(1), make_proxy_call(1)), "It is so."],
    "ours between the client's": [
        make_answer(None, make_client_call(1), make_proxy_call(1), make_client_call(2), make_proxy_call(2)),
        "It is so.",
    ],
    "four of ours around one": [
        make_answer(
            None, make_proxy_call(1), make_proxy_call(2), make_client_call(1), make_proxy_call(3), make_proxy_call(4)
        ),
        "It is so.",
    ],
    "ours, then both": [
        make_answer("First. ", make_proxy_call(1)),
        make_answer("Now both.", make_proxy_call(2), make_client_call(1)),
        "It is so.",
    ],
    "ours, then the client's": [
        make_answer(None, make_proxy_call(1)),
        make_answer("Now yours.", make_client_call(1)),
        "It is so.",
    ],
    "both, and both again": [
        make_answer(None, make_proxy_call(1), make_client_call(1)),
        make_answer(None, make_client_call(2), make_proxy_call(2)),
        "It is so.",
    ],
    "the client's, then ours": [
        make_answer(None, make_client_call(1)),
        make_answer(None, make_proxy_call(1)),
        "It is so.",
    ],
    "with thoughts": [
        make_answer("Look. ", make_proxy_call(1), **THOUGHT),
        make_answer(None, make_client_call(1), make_proxy_call(2), **THOUGHT),
        "It is so.",
    ],
    "with a signature": [
        make_answer(None, make_proxy_call(1, **SIGNED), make_client_call(1)),
        make_answer(None, make_proxy_call(2, **SIGNED)),
        "It is so.",
    ],
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("scenario", list(SCENARIOS))
async def test_upstream_sees_what_it_wrote_and_the_client_sees_nothing_of_the_proxy(
    scenario: str, stream: bool
) -> None:
    answers = [*SCENARIOS[scenario], "You are welcome.", make_answer(None, make_proxy_call(9)), "And that was that."]
    model = ScriptedModel(*answers)
    async with run_upstream(model) as upstream, run_proxy_with_tools(upstream.port) as proxy:
        played = PlayedConversation(proxy, model, stream=stream)
        firsts = []
        for text in ("Hello", "Thank you", "One more thing"):
            firsts.append(len(model.received))
            await played.turn(text)
            while played.agent.messages[-1].get("tool_calls"):
                firsts.append(len(model.received))
                await played.turn(None)
        await assert_rebuilt(proxy, model, firsts)
    assert len(model.received) == len(answers)
    assert_true(model, answers)
    assert_hidden(played.heard)
    assert all(list_offered_tools(model, at) == ["look", "write_file", "recall"] for at in range(len(answers)))
    texts = "".join(m["content"] or "" for m in played.agent.messages if m["role"] == "assistant")
    assert texts == "".join(a if isinstance(a, str) else a["content"] or "" for a in answers)


@pytest.mark.parametrize("named", [(), (b"x-session-id: s",)])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("scenario", ["three rounds of ours", "ours, then both", "with a signature"])
async def test_after_a_restart_what_is_hidden_is_put_back_too(
    scenario: str, stream: bool, named: tuple[bytes, ...], tmp_path: Path
) -> None:
    answers = [*SCENARIOS[scenario], "You are welcome."]
    model = ScriptedModel(*answers)
    db = str(tmp_path / "store.sqlite3")
    async with run_upstream(model) as upstream:
        async with run_proxy_with_tools(upstream.port, db=db) as proxy:
            played = PlayedConversation(proxy, model, stream=stream)
            await played.turn("Hello", *named)
        while not isinstance(model.answers[0], str) or played.agent.messages[-1].get("tool_calls"):
            async with run_proxy_with_tools(upstream.port, db=db) as proxy:
                played.agent.proxy = proxy
                await played.turn(None, *named)
        async with run_proxy_with_tools(upstream.port, db=db) as proxy:
            played.agent.proxy = proxy
            await played.turn("Thank you", *named)
            assert len(await proxy.rows("SELECT 1 FROM sessions")) == 1
    assert_true(model, answers)
    assert_hidden(played.heard)
    assert len({json.dumps(chat["tools"]) for chat in model.chats}) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_two_processes_on_one_store_know_of_each_others_rounds(stream: bool, tmp_path: Path) -> None:
    answers: list[Any] = [
        make_answer("Look. ", make_proxy_call(1)),
        "One.",
        make_answer(None, make_proxy_call(2), make_client_call(1)),
        "Two.",
        "Three.",
    ]
    model = ScriptedModel(*answers)
    db = str(tmp_path / "store.sqlite3")
    async with run_upstream(model) as upstream, run_proxy_with_tools(upstream.port, db=db) as one:
        played = PlayedConversation(one, model, stream=stream)
        await played.turn("Hello")
        # The file is one process's alone; a second one that has nothing in memory is made by forgetting all of it.
        for text in ("And now?", None, "Then?"):
            for session in list(one.app.services.live_sessions._sessions.values()):
                one.app.services.live_sessions.forget_session(session)
            await played.turn(text)
    assert_true(model, answers)
    assert_hidden(played.heard)


@pytest.mark.parametrize("stream", [False, True])
async def test_usage_is_the_last_prompt_and_all_completions(stream: bool) -> None:
    model = ScriptedModel(make_answer(None, make_proxy_call(1)), make_answer(None, make_proxy_call(2)), "It is so.")
    wanted = {"stream_options": {"include_usage": True}} if stream else {}
    async with run_upstream(model) as upstream, run_proxy_with_tools(upstream.port) as proxy:
        played = PlayedConversation(proxy, model, stream=stream, **wanted)
        found = await played.turn("Hello")
        rows = await proxy.rows("SELECT prompt_tokens, completion_tokens, note FROM exchanges")
        assert proxy.count("prompt_tokens_total") == 33
        assert proxy.count("completion_tokens_total") == 9
        assert proxy.count("tool_rounds_total", outcome="run") == 2
    usage = json.loads(found.events[-2])["usage"] if stream else found.json()["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (11, 9, 20)
    assert rows == [(11, 9, "3 rounds, 33 prompt tokens in all, 0 of them cached")]


async def test_cached_tokens_of_every_round_are_counted_beside_its_prompt() -> None:
    model = ScriptedModel(make_answer(None, make_proxy_call(1)), "It is so.")
    model.usage = {**model.usage, "prompt_tokens_details": {"cached_tokens": 4}}
    async with run_upstream(model) as upstream, run_proxy_with_tools(upstream.port) as proxy:
        played = PlayedConversation(proxy, model, stream=False)
        await played.turn("Hello")
        assert proxy.count("prompt_tokens_total") == 22
        assert proxy.count("cached_tokens_total", kind="reported") == 8
        (item,) = await proxy.app.store.list_sessions(None)
        stats = await compute_stats(proxy.app.services, item.tenant, item.session)
        timeline = await make_timeline_cache().find(proxy.app.services, item)
        assert (stats.prompt_tokens, stats.cached_reported) == (22, 8)
        assert timeline is not None
        period = timeline.periods[0].figures
        assert (period.prompt_tokens, period.cached_tokens) == (22, 8)


@pytest.mark.parametrize("stream", [False, True])
async def test_where_the_client_has_compacted_its_history_nothing_is_put_back(stream: bool) -> None:
    model = ScriptedModel(make_answer(None, make_proxy_call(1)), "It is so.", "Well.")
    async with run_upstream(model) as upstream, run_proxy_with_tools(upstream.port) as proxy:
        played = PlayedConversation(proxy, model, stream=stream)
        await played.turn("Hello")
        played.agent.messages = [{"role": "user", "content": "Summary: it is so. And now?"}]
        await played.turn("Go on")
    assert [json.loads(raw) for raw in list_sent_messages(model, -1)] == played.agent.messages[:2]


async def test_the_result_of_recall_is_the_stored_message() -> None:
    """`recall` of a message by its public id, in an answer that the client sees nothing of."""

    model = ScriptedModel("Well.")
    async with run_upstream(model) as upstream, run_proxy_with_tools(upstream.port) as proxy:
        played = PlayedConversation(proxy, model, stream=False)
        await played.turn("The word is swordfish.")
        (tenant,) = (await proxy.rows("SELECT tenant FROM sessions"))[0]
        digest = read_message(list_sent_messages(model, 0)[0]).digest
        name = chain.public_id(chain.derive_next_key(chain.derive_root_key(tenant), digest))
        arguments = json.dumps({"id": name})
        call = {"id": "a", "type": "function", "function": {"name": "recall", "arguments": arguments}}
        model.answers = [make_answer(None, call), "It was swordfish."]
        await played.turn("What was the word?")
    result = json.loads(list_sent_messages(model, -1)[-1])
    assert result["role"] == "tool"
    assert "The word is swordfish." in result["content"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_tool_that_was_not_offered_is_the_clients_business(stream: bool) -> None:
    """Its call is not run, and stays in the answer."""
    model = ScriptedModel(make_answer(None, make_proxy_call(1)), "Well.")
    async with run_upstream(model) as upstream, run_proxy_with_tools(upstream.port, tools={"offer": "never"}) as proxy:
        played = PlayedConversation(proxy, model, stream=stream)
        found = await played.turn("Hello")
        assert proxy.count("tools_total", tool="recall", outcome="refused") == 0
    assert found.message["tool_calls"] == [make_proxy_call(1)]


@pytest.mark.parametrize("stream", [False, True])
async def test_the_clients_own_tool_of_a_name_is_the_clients_to_run(stream: bool) -> None:
    mine = [*TOOLS, {"type": "function", "function": {"name": "recall", "parameters": {}}}]
    model = ScriptedModel(make_answer(None, make_proxy_call(1), make_proxy_call(2, "query_db")), "Well.")
    async with run_upstream(model) as upstream, run_proxy_with_tools(upstream.port, "rolling") as proxy:
        played = PlayedConversation(proxy, model, stream=stream, tools=mine)
        found = await played.turn("Hello")
        assert proxy.count("tools_total", tool="recall", outcome="refused") == 0
    assert found.message["tool_calls"] == [make_proxy_call(1)]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_state_is_kept_from_the_client_in_whichever_round_it_is_written(stream: bool) -> None:
    block = "\n\n### STATE\nGoal: {}\nContext: as before\nResolved: none\nTechnical Anchors: a.txt"
    model = ScriptedModel(
        make_answer("Let me look." + block.format("look"), make_proxy_call(1)),
        make_answer("It is so." + block.format("go on")),
    )
    async with run_upstream(model) as upstream, run_proxy_with_tools(upstream.port, "rolling") as proxy:
        played = PlayedConversation(proxy, model, stream=stream)
        found = await played.turn("Hello", b"x-session-id: a")
        states = await proxy.rows("SELECT text FROM states")
        model.answers = ["Welcome."]
        await played.turn("Thanks", b"x-session-id: a")
    assert b"STATE" not in found.body
    assert (found.message["content"] or "").replace("\n", "") == "Let me look.It is so."
    assert [("go on" in str(row[0])) for row in states] == [True]
    assert_hidden(played.heard)
    before, later = list_sent_messages(model, 1), list_sent_messages(model, 2)
    assert later[1 : len(before)] == before[1:]


@pytest.mark.parametrize("stream", [False, True])
async def test_two_answers_to_one_request_each_keep_what_follows_them(stream: bool) -> None:
    """The client asks again, gets another answer, and goes on from either."""
    model = ScriptedModel(
        make_answer(None, make_proxy_call(1)), "One.", make_answer(None, make_proxy_call(2)), "Two.", "So.", "So."
    )
    named = b"x-session-id: a"
    async with run_upstream(model) as upstream, run_proxy_with_tools(upstream.port) as proxy:
        played = PlayedConversation(proxy, model, stream=stream)
        first = await played.turn("Hello", named)
        played.agent.messages.pop()
        second = await played.agent.send(named)
        for found, n in ((first, 1), (second, 2)):
            played.agent.messages = [{"role": "user", "content": "Hello"}, found.message]
            await played.turn("And?", named)
            messages = [json.loads(raw) for raw in list_sent_messages(model, -1)]
            assert [m["tool_calls"][0]["id"] for m in messages if m.get("tool_calls")] == [make_proxy_call(n)["id"]]
            assert [m["role"] for m in messages] == ["user", "assistant", "tool", "assistant", "user"]


async def test_a_later_hidden_round_is_not_put_into_a_rebuilt_earlier_prompt() -> None:
    """The client wrote an answer of its own, and later got the same one from a model that had asked us."""
    model = ScriptedModel(
        make_answer(None, make_proxy_call(1)), "First.", "So.", make_answer(None, make_proxy_call(2)), "One."
    )
    named = b"x-session-id: a"
    async with run_upstream(model) as upstream, run_proxy_with_tools(upstream.port) as proxy:
        played = PlayedConversation(proxy, model, stream=False)
        await played.turn("Hello", named)
        begun = [*played.agent.messages, {"role": "user", "content": "And?"}]
        played.agent.messages = [*begun, {"role": "assistant", "content": "One."}]
        await played.turn("So?", named)
        played.agent.messages = begun
        await played.agent.say(None, named)
        assert len(await proxy.rows("SELECT 1 FROM hidden_rounds")) == 2
        await assert_rebuilt(proxy, model, [0, 2, 3])
