from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from proxy.chat.message import Request
from proxy.context.policy import Policy
from proxy.dialects.completions.request import read_request
from proxy.sessions import tool_offer as offers
from proxy.sessions.tool_offer import NO_TOOLS, ToolOffer
from proxy.tools import registry
from tests.conversations import encode_json, user
from tests.exchange.hidden_calls import (
    OURS,
    TOOLS,
    PlayedConversation,
    list_offered_tools,
    make_answer,
    run_proxy_with_tools,
)
from tests.proxy_server import Agent, make_settings, run_proxy
from tests.raw_upstream import run_upstream
from tests.scripted_model import ScriptedModel

CLIENTS = ["look", "write_file"]
SETTINGS = make_settings(1)
ALL = Policy("all", tools=OURS, offer="first_request")


def request(**more: Any) -> Request:
    return read_request(encode_json({"model": "m", "messages": [user("Hi")], "tools": TOOLS, **more}))


def names(**more: Any) -> tuple[str, ...]:
    return offers.choose_tools(SETTINGS, ALL, request(**more), explicit=True).names


def test_all_that_the_policy_enables_is_offered_in_the_catalogs_order() -> None:
    found = offers.choose_tools(SETTINGS, ALL, request(), explicit=True)
    assert found.names == tuple(registry.TOOLS)
    assert found.definitions == registry.join_definitions(list(registry.TOOLS))
    few = Policy("few", tools=("query_db", "recall"), offer="first_request")
    assert offers.choose_tools(SETTINGS, few, request(), explicit=True).names == ("recall", "query_db")


def test_settings_go_before_the_policy() -> None:
    own = make_settings(1, tools={"enabled": ["describe_db"], "offer": "first_edit"})
    assert offers.choose_tools(own, ALL, request(), explicit=True).names == ("describe_db",)
    assert (offers.find_offer_time(own, ALL), offers.find_offer_time(SETTINGS, ALL)) == ("first_edit", "first_request")
    assert offers.find_offer_time(make_settings(1, tools={"offer": "never"}), ALL) == "never"
    assert offers.find_offer_time(SETTINGS, Policy("p", mode="observe", offer="first_request")) == "never"


def test_memos_need_a_session_that_the_client_named_or_the_operators_word() -> None:
    guessed = offers.choose_tools(SETTINGS, ALL, request(), explicit=False).names
    assert guessed == OURS[:4]
    shared = make_settings(1, memos={"scope": "tenant"})
    assert offers.choose_tools(shared, ALL, request(), explicit=False).names == OURS


NOT_OFFERED: list[dict[str, Any]] = [
    {"tools": None},
    {"tools": []},
    {"tool_choice": "none"},
    {"tool_choice": {"type": "function", "function": {"name": "look"}}},
    {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}},
    {"functions": [{"name": "old"}]},
    {"n": 2},
    {"modalities": ["text", "audio"], "stream": True},
]


@pytest.mark.parametrize("more", NOT_OFFERED, ids=json.dumps)
def test_none_is_offered_where_it_could_not_be_used_or_would_be_refused(more: dict[str, Any]) -> None:
    assert names(**more) == ()


@pytest.mark.parametrize(
    "more", [{"tool_choice": "auto"}, {"tool_choice": "required"}, {"tool_choice": None}, {"n": 1}, {"stream": True}]
)
def test_ordinary_requests_are_offered_tools(more: dict[str, Any]) -> None:
    assert names(**more) == OURS


def test_the_clients_own_tool_of_a_name_wins() -> None:
    mine = [*TOOLS, {"type": "function", "function": {"name": "recall", "parameters": {}}}]
    assert names(tools=mine) == OURS[1:]
    # One that comes later leaves the others as they were.
    found = offers.choose_tools(SETTINGS, ALL, request(), explicit=True)
    later = offers.select_present_tools(found, request(tools=mine))
    assert later.names == OURS[1:]
    assert later.definitions == registry.join_definitions(OURS[1:])
    assert offers.select_present_tools(found, request()) is found


def test_a_later_request_without_tools_changes_the_offer_only_where_it_must() -> None:
    found = offers.choose_tools(SETTINGS, ALL, request(), explicit=True)
    for more in ({"tool_choice": "none"}, NOT_OFFERED[3], NOT_OFFERED[4]):
        assert offers.select_present_tools(found, request(**more)) is found
    for more in (NOT_OFFERED[0], NOT_OFFERED[5], NOT_OFFERED[6], NOT_OFFERED[7]):
        assert offers.select_present_tools(found, request(**more)) == NO_TOOLS
    assert offers.select_present_tools(NO_TOOLS, request()) == NO_TOOLS


def test_an_offer_comes_back_from_the_store() -> None:
    found = offers.choose_tools(SETTINGS, ALL, request(), explicit=True)
    assert offers.decode_offer(offers.encode_offer(found)) == found
    assert offers.encode_offer(NO_TOOLS) == b""
    assert offers.decode_offer(b"") is NO_TOOLS
    with pytest.raises(ValueError, match=r"."):
        offers.decode_offer(b'[{"function": 1}]')


def test_each_form_of_tool_choice_is_read() -> None:
    wanted = ["auto", "required", "none", None, {"type": "function"}, {"type": "allowed_tools", "allowed_tools": {}}]
    assert [offers.read_tool_choice(request(tool_choice=one)) for one in wanted] == [
        *("auto", "required", "none", "auto", "one", "allowed")
    ]
    assert offers.read_tool_choice(request()) == "auto"


def test_taking_names_out_keeps_the_bytes_of_the_others() -> None:
    found = ToolOffer(("a", "b"), (b"1", b"2"))
    assert found.without_tools(["c"]) is found
    assert found.without_tools(["a"]) == ToolOffer(("b",), (b"2",))
    assert found.definitions == b"1,2"


@pytest.mark.parametrize("policy", ["thrifty", "rolling"])
async def test_the_tools_have_the_same_bytes_from_the_first_request_on(policy: str, tmp_path: Path) -> None:
    model = ScriptedModel("Well.")
    db = str(tmp_path / "store.sqlite3")
    async with run_upstream(model) as upstream:
        played: Any = None
        for n in range(3):  # a restart between any two
            async with run_proxy_with_tools(upstream.port, policy, db=db) as proxy:
                if n == 0:
                    played = PlayedConversation(proxy, model, stream=False)
                played.agent.proxy = proxy
                await played.turn(f"Prompt {n}", b"x-session-id: a")
                await played.turn(f"And {n}", b"x-session-id: a", b"x-context-policy: thrifty")
    arrays = {json.dumps(chat["tools"]) for chat in model.chats}
    assert len(arrays) == 1
    assert list_offered_tools(model) == [*CLIENTS, *(OURS if policy == "rolling" else OURS[:1])]


async def test_a_branch_that_began_without_tools_of_the_proxy_never_gets_any() -> None:
    model = ScriptedModel("Well.")
    async with run_upstream(model) as upstream, run_proxy_with_tools(upstream.port) as proxy:
        for first in ({"tools": None}, {"tool_choice": "none"}):
            played = PlayedConversation(proxy, model, stream=False)
            played.agent.more |= first
            await played.turn("Hello")
            played.agent.more = {"tools": TOOLS}
            await played.turn("And now?")
            assert list_offered_tools(model) == CLIENTS
        bypassing = PlayedConversation(proxy, model, stream=False)
        await bypassing.turn("Hello", b"x-context-policy: passthrough", b"x-session-id: b")
        await bypassing.turn("And now?", b"x-session-id: b")
        assert list_offered_tools(model) == CLIENTS


async def test_forks_and_twins_offer_what_they_left_with_and_side_calls_nothing() -> None:
    model = ScriptedModel("Well.")
    named = b"x-session-id: a"
    async with run_upstream(model) as upstream, run_proxy_with_tools(upstream.port) as proxy:
        played = PlayedConversation(proxy, model, stream=False)
        played.agent.messages.append({"role": "system", "content": "Be."})
        await played.turn("Hello", named)
        history = list(played.agent.messages)
        await played.turn("And now?", named)
        played.agent.messages = [*history, {"role": "user", "content": "Or else?"}]
        await played.agent.send(named)  # a fork
        await played.agent.send(named)  # and its twin
        assert [list_offered_tools(model, at) for at in range(4)] == [[*CLIENTS, "recall"]] * 4
        kinds = await proxy.rows("SELECT kind, offer IS NULL FROM branches ORDER BY created_at")
        assert kinds == [("main", 0), ("fork", 0), ("twin", 0)]
        played.agent.messages = [{"role": "system", "content": "Make a title."}, {"role": "user", "content": "Title?"}]
        played.agent.more = {}
        await played.agent.send(named)
        assert model.last.get("tools") is None
        kinds = await proxy.rows("SELECT kind, offer IS NULL FROM branches ORDER BY created_at")
        assert kinds[3:] == [("side", 1)]


async def test_with_the_first_edit_the_tools_come_and_stay() -> None:
    """A long result is shortened in the third group; the hint then names the tool that brings it back."""
    long = "\n".join(f"line {n} of a long result" for n in range(400))
    call = {"id": "call_000001", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    model = ScriptedModel(make_answer(None, call), "Well.")
    first_edit = {"offer": "first_edit"}
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="rolling", tools=first_edit) as proxy:
        played = PlayedConversation(proxy, model, stream=False)
        await played.turn("Hello", b"x-session-id: a")
        played.agent.brings(long)
        for text in (None, "Two", "Three", "Four", "Five"):
            if text is not None:
                played.agent.messages.append({"role": "user", "content": text})
            played.agent.messages.append((await played.agent.send(b"x-session-id: a")).message)
    have = [len(list_offered_tools(model, at)) > len(CLIENTS) for at in range(len(model.chats))]
    assert True in have
    since = have.index(True)
    assert since > 0
    assert have == [False] * since + [True] * (len(have) - since)
    bodies = [r.body for r in model.received]
    assert b"recall(" not in bodies[since - 1].replace(b'"tools"', b"")
    assert b"recall(" in bodies[since]


@pytest.mark.parametrize(("name", "at_once"), [("gpt-4o", True), ("gpt-4-turbo", False)])
async def test_where_tools_are_needed_the_next_conversation_of_the_kind_has_them_from_its_first_request_on(
    name: str, at_once: bool
) -> None:
    """The first one comes to edits and gets them then; one with other tools, or of another tenant, begins anew.

    So does each one with a model that has no cache: late tools move nothing there, and early ones are paid."""
    long = "\n".join(f"line {n} of a long result" for n in range(400))
    call = {"id": "call_000001", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    other = [{"type": "function", "function": {"name": "fetch", "parameters": {}}}]
    model = ScriptedModel(make_answer(None, call), "Well.")
    needed = {"offer": "when_needed"}

    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="rolling", tools=needed) as proxy:

        async def first(session: bytes, key: str = "sk-one", **more: Any) -> bool:
            agent = Agent(proxy, stream=False, key=key, more={"model": name, "tools": TOOLS, **more})
            agent.messages.append({"role": "user", "content": "Hello"})
            agent.messages.append((await agent.send(b"x-session-id: " + session)).message)
            has = len(list_offered_tools(model)) > len(agent.more["tools"])
            if session == b"a":
                agent.brings(long)
                for text in (None, "Two", "Three", "Four", "Five"):
                    if text is not None:
                        agent.messages.append({"role": "user", "content": text})
                    agent.messages.append((await agent.send(b"x-session-id: a")).message)
                assert len(list_offered_tools(model)) > len(CLIENTS), "it has come to edits"
            return has

        began = [await first(b"a"), await first(b"b"), await first(b"c", tools=other), await first(b"d", key="sk-two")]
    assert began == [False, at_once, False, False]
