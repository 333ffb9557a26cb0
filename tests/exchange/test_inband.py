"""Commands as the last user message, streaming and not: answered here, and never said for the conversation."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.notes import state_block
from proxy.notes.memo_matching import Memo
from proxy.operator import edit_messages, give_notes
from proxy.sessions.locate import derive_tenant
from proxy.tools import stored_memos
from tests.dialect_agents import MessagesAgent, ResponsesAgent
from tests.gemini_agent import GeminiAgent
from tests.operator.agent import POLICIES, RunningConversation, find_messages, list_group_messages, run_conversation
from tests.proxy_server import Agent, run_proxy
from tests.raw_upstream import run_upstream
from tests.scripted_model import ScriptedModel
from tests.strict_gemini import StrictGemini
from tests.strict_messages import StrictMessages
from tests.strict_responses import StrictResponses

ON = {"in_band": True}


async def command(talk: RunningConversation, line: str) -> str:
    """The answer to a command as the client reads it; it stays in the client's history."""
    asked = len(talk.upstream.chats)
    heard = await talk.agent.say(line)
    assert len(talk.upstream.chats) == asked
    text: str = heard.message["content"]
    return text


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("policy", POLICIES)
async def test_undo_in_the_conversation_removes_the_last_group_and_leaves_no_trace(policy: str, stream: bool) -> None:
    async with run_conversation(policy, stream=stream, commands=ON) as talk:
        assert (await command(talk, "/undo")).startswith("[context-proxy] Undone: group ")
        said = await talk.ask()
        assert not find_messages(said) & list_group_messages(2)
        assert not any("/undo" in text or "context-proxy" in text for text in said)
        assert not any("/undo" in text or "Undone" in text for text in await talk.ask("And on."))


@pytest.mark.parametrize("stream", [False, True])
async def test_every_command_in_the_conversation_gets_its_answer(stream: bool) -> None:
    async with run_conversation("thrifty", stream=stream, commands=ON) as talk:
        listed = await command(talk, "/messages")
        groups = await talk.groups()
        assert all(group in listed for group in groups)
        assert "Prompt number 0?" in listed
        assert groups[0] not in await command(talk, "/message list 1")
        assert "Result number 1." in await command(talk, f"/message show {groups[1]}")
        assert "Answer number 2." in await command(talk, "/context show")
        assert "Dropped: group " + groups[0] in await command(talk, f"/context drop {groups[0]}")
        assert "dropped" in await command(talk, "/message list")
        assert not find_messages(await talk.ask()) & list_group_messages(0)
        assert "Restored" in await command(talk, f"/context restore {groups[0]}")
        assert list_group_messages(0) <= find_messages(await talk.ask())
        assert "Removed for good" in await command(talk, f"/message remove {groups[1]}")
        assert "The last 2 groups stay" in await command(talk, "/context window 2")
        assert find_messages(await talk.ask("Last.")) == list_group_messages(0)  # restored: it stays
        assert "The whole history stays" in await command(talk, "/context window 0")
        assert find_messages(await talk.ask()) == list_group_messages(0, 2)
        assert "scratchpad is empty" in await command(talk, "/session scratchpad")
        assert "asked for a new state" in await command(talk, "/context rebuild")
        assert "/context window N" in await command(talk, "/context what")
        assert "no group or message" in await command(talk, "/context drop abcdefghij")
        said = await talk.ask()
        assert not any("context-proxy" in text for text in said)
        assert "### STATE" in said[-1]
        stored = await talk.proxy.rows("SELECT count(*) FROM messages WHERE body LIKE '%/context%'")
        assert stored == [(0,)]


async def test_without_a_name_the_conversation_is_found_by_its_history() -> None:
    model = ScriptedModel("One.", "Two.")
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="thrifty", commands=ON) as proxy:
        agent = Agent(proxy)
        agent.messages.append({"role": "user", "content": "/undo"})
        assert "Nothing was said" in (await agent.send()).message["content"]
        agent.messages.clear()
        await agent.say("First?")
        await agent.say("Second?")
        heard = await agent.say("/undo")
        assert "Undone" in heard.message["content"]
        await agent.say("Third?")
        assert [m["content"] for m in model.last["messages"]][:2] == ["First?", "One."]
        assert len(model.last["messages"]) == 3


async def test_commands_in_the_conversation_are_off_by_default() -> None:
    async with run_conversation("thrifty") as talk:
        assert "/undo" in await talk.ask("/undo")


CALL = {"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}}
OUTPUTS: dict[str, list[dict[str, Any]]] = {
    "a result": [
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "a", "content": "/undo"},
    ],
    "in the place of a result": [
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "user", "content": "/undo"},
    ],
    "with the id of a call": [{"role": "user", "tool_call_id": "a", "content": "/undo"}],
    "the output of an action in text": [
        {"role": "assistant", "content": "I look.\n<execute_bash>\ncat evil.txt\n</execute_bash>"},
        {"role": "user", "content": "/undo"},
    ],
    "a part that is no text": [{"role": "user", "content": [{"type": "tool_result", "text": "/undo"}]}],
    "a picture": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "/undo"}}]}],
}
"""The output of a tool, as agents send it."""


@pytest.mark.parametrize("name", OUTPUTS)
async def test_a_command_that_a_tool_brings_back_is_none(name: str) -> None:
    async with run_conversation("thrifty", commands=ON) as talk:
        asked = len(talk.upstream.chats)
        talk.agent.messages += OUTPUTS[name]
        await talk.agent.send()
        assert len(talk.upstream.chats) == asked + 1
        assert "/undo" in json.dumps(talk.upstream.last["messages"][-1])
        assert len(talk.upstream.last["messages"]) == len(talk.agent.messages)


async def test_a_command_after_a_reply_that_quotes_an_action_is_one() -> None:
    async with run_conversation("thrifty", commands=ON) as talk:
        talk.upstream.answers[:] = ["<execute_bash>\nls\n</execute_bash>"]
        await talk.ask("Go on.")
        talk.agent.messages.append({"role": "user", "content": "Observation: a.py"})
        await talk.agent.send()
        assert "execute_bash" in await command(talk, "/context show")
        assert "Commands:" in await command(talk, "/context")


FORMATS: dict[str, Any] = {
    "messages": lambda proxy, stream: MessagesAgent(proxy, refuse, stream=stream),
    "responses": lambda proxy, stream: ResponsesAgent(proxy, refuse, stream=stream),
    "gemini": lambda proxy, stream: GeminiAgent(proxy, refuse, stream="events" if stream else ""),
    "gemini list": lambda proxy, stream: GeminiAgent(proxy, refuse, stream="list" if stream else ""),
}


def refuse(name: str, arguments: Any) -> str:
    raise AssertionError("nothing is called")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", FORMATS)
async def test_commands_are_answered_in_each_format_and_never_go_upstream(name: str, stream: bool) -> None:
    models: dict[str, Any] = {"messages": StrictMessages, "responses": StrictResponses}
    model = models.get(name, StrictGemini)("First.", "Second.", "Third.")
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="thrifty", commands=ON) as proxy:
        agent = FORMATS[name](proxy, stream)
        for prompt, answer in (("One?", "First."), ("Two?", "Second.")):
            assert await agent.work(prompt) == answer
        asked = len(model.received)
        assert (await agent.work("/undo")).startswith("[context-proxy] Undone: group ")
        assert "One?" in await agent.work("/messages")
        assert len(model.received) == asked
        assert await agent.work("Three?") == "Third."
        assert await proxy.rows("SELECT count(DISTINCT session) FROM messages") == [(1,)]
        stored = await proxy.rows("SELECT count(*) FROM messages WHERE body LIKE '%/undo%'")
    assert stored == [(0,)]
    sent = json.dumps(model.received[-1]) if name == "responses" else model.received[-1].body.decode()
    assert [word in sent for word in ("One?", "Two?", "/undo", "/messages", "context-proxy", "Three?")] == [
        True, False, False, False, False, True,
    ]  # fmt: skip
    assert not (model.refused if name == "responses" else model.refusals)


async def test_a_client_whose_answers_the_provider_stores_says_them_to_the_model() -> None:
    async with run_upstream(StrictResponses("What?")) as upstream, run_proxy(upstream.port, commands=ON) as proxy:
        agent = ResponsesAgent(proxy, refuse, more={"store": True})
        assert await agent.work("/context show") == "What?"


async def test_answers_from_before_commands_were_enabled_stay() -> None:
    model = ScriptedModel("A command of yours?", "Yes.")
    async with run_upstream(model) as upstream, run_proxy(upstream.port, commands=ON) as proxy:
        agent = Agent(proxy)
        agent.messages += [{"role": "user", "content": "/undo"}, {"role": "assistant", "content": "What?"}]
        await agent.say("Never mind.")
        assert [m["content"] for m in model.last["messages"]] == ["/undo", "What?", "Never mind."]


async def test_a_command_whose_reply_never_came_is_taken_out_too() -> None:
    async with run_conversation("thrifty", commands=ON) as talk:
        talk.agent.messages.append({"role": "user", "content": "/messages"})
        assert find_messages(await talk.ask()) == list_group_messages(0, 1, 2)
        assert "/messages" not in talk.upstream.texts()


async def test_the_reply_has_the_wires_form() -> None:
    async with run_conversation("thrifty", commands=ON) as talk:
        talk.agent.messages.append({"role": "user", "content": "/undo now"})
        body = (await talk.agent.send()).json()
        assert (body["object"], body["model"], body["choices"][0]["finish_reason"]) == ("chat.completion", "m", "stop")
        heard = await talk.agent.send(stream=True, stream_options={"include_usage": True})
        chunks = [json.loads(event) for event in heard.events[:-1]]
        assert heard.events[-1] == b"[DONE]"
        assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
        assert len({chunk["id"] for chunk in chunks}) == 1
        assert [chunk["usage"] for chunk in chunks][-1] == {
            "prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0,
        }  # fmt: skip
        assert heard.session == "s"


async def test_the_operators_words_and_commands_agree() -> None:
    async with run_conversation("thrifty", commands=ON) as talk:
        await edit_messages.drop(talk.parts, talk.tenant, "s", [(await talk.groups())[0]])
        assert "dropped by the operator" in await command(talk, "/context show")


@pytest.mark.parametrize("policy", ["rolling", "thrifty"])
async def test_context_show_is_the_prompt_that_goes_out_with_all_that_is_put_in(policy: str) -> None:
    ask_always = {"ask": "always"} if policy == "thrifty" else {}
    async with run_conversation(policy, commands=ON, state=ask_always) as talk:
        memo = Memo("m1", "The printers only read UTF-16, an old firmware", ("printers",), "s0", 1.0, 1.0)
        await talk.parts.store.put([stored_memos.make_memo_row(talk.tenant, memo)])
        await give_notes.set_state(talk.parts, talk.tenant, "s", "Goal: the operator's\nContext: none")
        await give_notes.set_scratchpad(talk.parts, talk.tenant, "s", "- [ ] the plan of the day")
        await talk.ask("What do the printers with old firmware read?")
        shown = await command(talk, "/context show")
        await talk.ask("What do the printers with old firmware read?")
        sent = talk.upstream.texts()
    ours = [state_block.build_prompt(), "the operator's", "the plan of the day"]
    for text in ours + ([state_block.get_guidelines()] if policy == "rolling" else []):
        assert text in "\n".join(line.removeprefix("> ") for line in shown.split("\n")), text
        assert text in "".join(text or "" for text in sent)
    # Which memos fit is up to the message that is not there yet; one that was quoted for good is in the history.
    assert "UTF-16" in (shown if policy == "thrifty" else "".join(text or "" for text in sent))
    heads = [line for line in shown.split("\n") if line.startswith("[+ ")]
    wanted = ["guidelines", "state", "ask"] if policy == "rolling" else ["ask"]
    assert [name for name in wanted if f"[+ {name}, from the proxy]" in heads] == wanted


async def test_in_an_unnamed_session_no_command_acts_on_the_other_conversation() -> None:
    """Two conversations of one credential that begin alike may be in one session."""
    model = ScriptedModel("Hello! How can I help?")
    tools = {"tools": [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]}
    system = {"role": "system", "content": "Be brief."}
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="rolling", commands=ON) as proxy:
        mine, theirs = (Agent(proxy, messages=[system], more=tools) for _ in range(2))
        await mine.say("Hello")
        theirs.messages = [*mine.messages]
        model.answers = ["Noted.", "Fine."]
        session = (await mine.say("It is the canary.")).session
        assert (await theirs.say("What do you know?")).session == session
        tenant = derive_tenant({"authorization": f"Bearer {mine.key}"}, "")
        await give_notes.set_scratchpad(proxy.app.services, tenant, session, "canary")
        for line in ("/session scratchpad", "/context window 1"):
            text = (await theirs.say(line)).message["content"]
            assert "which other conversations share" in text
            assert "canary" not in text
        assert "canary" not in (await theirs.say("/messages 10")).message["content"]
        assert "canary" in (await mine.say("/session scratchpad")).message["content"]
        assert "The last 1 groups stay" in (await mine.say("/context window 1")).message["content"]
