from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from proxy.chat import chain
from proxy.errors import StoreUnavailable
from proxy.exchange import splice_rounds
from proxy.exchange.rebuild_prompt import rebuild_prompt
from proxy.exchange.turn import Turn
from tests.exchange.hidden_calls import (
    SECRET,
    TOOLS,
    PlayedConversation,
    assert_hidden,
    assert_true,
    list_offered_tools,
    list_sent_messages,
    make_answer,
    make_client_call,
    make_proxy_call,
    run_proxy_with_tools,
)
from tests.proxy_server import Agent, RunningProxy
from tests.raw_upstream import run_upstream
from tests.scripted_model import ScriptedModel

CLIENTS = ["look", "write_file"]
NAMED = b"x-session-id: a"


def turns_of(monkeypatch: pytest.MonkeyPatch) -> list[Turn]:
    """Every turn that is planned from now on."""
    seen: list[Turn] = []
    real = splice_rounds.add_rounds_and_tools

    async def noting(parts: Any, turn: Turn, *, first: bool) -> Turn:
        seen.append(await real(parts, turn, first=first))
        return seen[-1]

    monkeypatch.setattr(splice_rounds, "add_rounds_and_tools", noting)
    return seen


async def test_results_of_proxy_tools_since_the_last_prompt_are_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    model = ScriptedModel(
        make_answer(None, make_proxy_call(1), make_client_call(1)),
        make_answer(None, make_proxy_call(2)),
        "It is so.",
        "Welcome.",
    )
    seen = turns_of(monkeypatch)
    async with run_upstream(model) as upstream, run_proxy_with_tools(upstream.port) as proxy:
        played = PlayedConversation(proxy, model, stream=False)
        await played.turn("Hello")
        await played.turn(None)
        await played.turn("Thanks")
    guarded = [splice_rounds.find_guarded_results(turn) for turn in seen]
    assert [len(found) for found in guarded] == [0, 1, 0]
    (mine,) = guarded[1]
    at = list(seen[1].enriched.spliced.keys).index(mine)
    message = seen[1].enriched.spliced.request.messages[at]
    assert message.is_result
    assert SECRET in (message.call_id or "")


async def test_a_conversation_without_tools_is_the_clients_own_request(monkeypatch: pytest.MonkeyPatch) -> None:
    model = ScriptedModel("Well.")
    seen = turns_of(monkeypatch)
    async with run_upstream(model) as upstream, run_proxy_with_tools(upstream.port) as proxy:
        played = PlayedConversation(proxy, model, stream=False)
        played.agent.more = {}
        for text in ("Hello", "And now?"):
            await played.turn(text)
    assert all(turn.enriched.spliced.request is turn.request for turn in seen)
    assert all(turn.enriched.spliced.keys is turn.keys for turn in seen)


@pytest.mark.parametrize("policy", ["passthrough", "observe"])
async def test_policies_that_change_nothing_put_nothing_in(policy: str) -> None:
    model = ScriptedModel(make_answer("Look.", make_proxy_call(1)), "It is so.", "Welcome.", "And so on.")
    async with run_upstream(model) as upstream, run_proxy_with_tools(upstream.port) as proxy:
        played = PlayedConversation(proxy, model, stream=False)
        await played.turn("Hello", NAMED)
        await played.turn("Thanks", NAMED, b"x-context-policy: " + policy.encode())
        assert list_offered_tools(model) == CLIENTS
        assert [json.loads(raw) for raw in list_sent_messages(model, -1)] == played.agent.messages[:-1]
        await played.turn("Well?", NAMED)
    assert list_offered_tools(model) == [*CLIENTS, "recall"]
    assert SECRET.encode() in b"".join(list_sent_messages(model, -1))
    assert_hidden(played.heard)


async def test_when_the_store_is_away_the_clients_own_history_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(*args: Any) -> Any:
        raise StoreUnavailable("away")

    model = ScriptedModel(make_answer("Look.", make_proxy_call(1)), "It is so.", "Welcome.")
    async with run_upstream(model) as upstream, run_proxy_with_tools(upstream.port) as proxy:
        played = PlayedConversation(proxy, model, stream=False)
        await played.turn("Hello", NAMED)
        _forget(proxy)
        monkeypatch.setattr(proxy.app.store, "read_hidden_rounds", away)
        await played.turn("Thanks", NAMED)
        assert proxy.count("internal_errors_total", where="rounds") == 1
    assert [json.loads(raw) for raw in list_sent_messages(model, -1)] == played.agent.messages[:-1]
    assert list_offered_tools(model) == [*CLIENTS, "recall"]


def _forget(proxy: RunningProxy) -> None:
    for session in list(proxy.app.services.live_sessions._sessions.values()):
        proxy.app.services.live_sessions.forget_session(session)


async def test_a_round_that_cannot_be_read_is_left_out() -> None:
    model = ScriptedModel(make_answer("Look.", make_proxy_call(1)), "It is so.", "Welcome.")
    async with run_upstream(model) as upstream, run_proxy_with_tools(upstream.port) as proxy:
        played = PlayedConversation(proxy, model, stream=False)
        await played.turn("Hello", NAMED)
        _forget(proxy)
        await proxy.rows("UPDATE hidden_rounds SET body = $1 RETURNING key", b"{}")
        await played.turn("Thanks", NAMED)
    assert [json.loads(raw) for raw in list_sent_messages(model, -1)] == played.agent.messages[:-1]


async def test_the_store_is_asked_for_what_this_process_does_not_know_and_not_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = ScriptedModel(make_answer("Look.", make_proxy_call(1)), "It is so.", "Welcome.")
    asked: list[int] = []
    async with run_upstream(model) as upstream, run_proxy_with_tools(upstream.port) as proxy:
        real = proxy.app.store.read_hidden_rounds

        async def counting(tenant: str, session: str, keys: Any = None) -> Any:
            asked.append(len(keys))
            return await real(tenant, session, keys)

        monkeypatch.setattr(proxy.app.store, "read_hidden_rounds", counting)
        played = PlayedConversation(proxy, model, stream=False)
        for text in ("Hello", "Thanks", "Well?"):
            await played.turn(text, NAMED)
        assert asked == []
        _forget(proxy)
        for text in ("And?", "So?"):
            await played.turn(text, NAMED)
    assert asked == [3]


def asking_for(name: str, call: str) -> dict[str, Any]:
    """A call of `recall`."""
    return {"id": call, "type": "function", "function": {"name": "recall", "arguments": json.dumps({"id": name})}}


async def test_a_hidden_result_that_has_grown_old_is_shortened_and_can_be_had_back() -> None:
    long = "\n".join(f"line {n} of a long result" for n in range(300))
    model = ScriptedModel("Noted.")
    async with run_upstream(model) as upstream, run_proxy_with_tools(upstream.port, "rolling") as proxy:
        played = PlayedConversation(proxy, model, stream=False)
        await played.turn(long, NAMED)
        ((first,),) = await proxy.rows("SELECT key FROM messages WHERE role = 'user'")
        model.answers = [make_answer(None, asking_for(chain.public_id(first), "a")), "It was long."]
        await played.turn("What was it?", NAMED)
        for text in ("Two", "Three", "Four"):
            await played.turn(text, NAMED)
        ((edited,),) = await proxy.rows("SELECT key FROM edits WHERE action = 'text'")
        shortened = next(json.loads(raw) for raw in list_sent_messages(model, -1) if b'"tool"' in raw)["content"]
        assert len(shortened) < len(long) / 2
        assert chain.public_id(edited) in shortened
        bodies = [r.body for r in model.received]
        for row in await proxy.rows("SELECT tenant, session, exchange FROM exchanges"):
            found = await rebuild_prompt(proxy.app.store, *row)
            assert found is not None
            assert found.sent_body in bodies
        model.answers = [make_answer(None, asking_for(chain.public_id(edited), "b")), "Long indeed."]
        await played.turn("And in the middle?", NAMED)
    assert "line 150 of a long result" in json.loads(list_sent_messages(model, -1)[-1])["content"]


async def test_spliced_rounds_stay_whole_when_the_model_changes() -> None:
    """The spliced history stays whole where the model behind one name changes."""
    answers: list[Any] = [
        make_answer("Look.", make_proxy_call(1)),
        "One.",
        make_answer(None, make_proxy_call(2)),
        "Two.",
    ]
    model = ScriptedModel(*answers)
    async with run_upstream(model) as upstream, run_proxy_with_tools(upstream.port) as proxy:
        played = PlayedConversation(proxy, model, stream=False)
        await played.turn("Hello", NAMED)
        played.agent.more["model"] = "another"
        await played.turn("Thanks", NAMED)
    assert_true(model, answers)


async def test_a_branch_inherits_what_was_decided_about_hidden_messages_too(tmp_path: Path) -> None:
    """Else a step would be half gone in it: back whole it would stand in front of a user message."""
    (tmp_path / "models.toml").write_text('[models."m"]\nwindow = 3500\nanswer = 200\n')
    talk = [
        answer
        for n in range(8)
        for answer in (make_answer(None, make_client_call(n), make_proxy_call(n)), f"Noted {n}.")
    ]
    model = ScriptedModel(*talk, "Another.")
    tree = {"models_file": str(tmp_path / "models.toml"), "db": str(tmp_path / "store.sqlite3")}
    async with run_upstream(model) as upstream:
        async with run_proxy_with_tools(upstream.port, **tree) as proxy:
            agent = PlayedConversation(proxy, model, stream=False).agent
            agent.lines = (NAMED,)
            for n in range(8):
                await agent.say(f"Look at {n}: " + "word " * 300)
                agent.brings("ok")
                await agent.say()
            before = list_sent_messages(model, -1)
            rows = await proxy.rows("SELECT key FROM edits WHERE action = 'gone'")
            hidden = {row[0] for row in rows} - {k for (k,) in await proxy.rows("SELECT key FROM messages")}
            assert hidden, "hidden results have left"
            del agent.messages[-8:]
            await agent.say("Look elsewhere")
            (outcome,) = (await proxy.outcomes())[-1:]
        async with run_proxy_with_tools(upstream.port, **tree) as proxy:
            agent.proxy = proxy
            await agent.say("And there?")
            outcomes = [outcome, *(await proxy.outcomes())[-1:]]
    assert [one[2] for one in outcomes] == [None, None], "no plan was thrown away"
    for at in (-2, -1):
        assert ids(list_sent_messages(model, at)) <= ids(before), "what was out is out in the branch"


def ids(raws: list[bytes]) -> set[str]:
    """Those of all calls that have a result."""
    return {m["tool_call_id"] for m in map(json.loads, raws) if m["role"] == "tool"}


async def test_a_round_is_put_back_although_the_same_request_was_answered_again_after_its_session_was_read_back() -> (
    None
):
    model = ScriptedModel("Hello.", make_answer(None, make_proxy_call(1)), "Found it.", "Other.", "Not found.", "Well.")
    limits = {"live_branches": 1}
    async with run_upstream(model) as upstream, run_proxy_with_tools(upstream.port, limits=limits) as proxy:
        first = Agent(proxy, more={"tools": TOOLS})
        await first.say("Hi")
        again = Agent(proxy, more={"tools": TOOLS}, messages=[*first.messages])
        await first.say("Search")
        await Agent(proxy, messages=[{"role": "user", "content": "Who?"}]).say("Else?")  # the first session leaves
        assert (await again.say("Search")).message["content"] == "Not found."
        await first.say("Thanks")
    assert [message["role"] for message in model.last["messages"][3:]] == ["assistant", "tool", "assistant", "user"]
