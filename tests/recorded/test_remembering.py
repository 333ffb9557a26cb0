from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from proxy.notes.memo_matching import select_memos
from proxy.sessions.locate import derive_tenant
from proxy.settings.model import ToolSettings
from proxy.tokenizers import get_token_counter
from proxy.tools import stored_history, stored_memos
from tests.proxy_server import Agent, run_proxy
from tests.raw_upstream import run_upstream
from tests.recorded.play import Conversation, model_on_a_socket, read
from tests.recorded.remembering import LAST, Searched, Shares, list_sent_for, names, queries, questions, quoted
from tests.recorded.test_shared import OPEN
from tests.scripted_model import ScriptedModel
from tests.tools.stored_session import in_memory, make_tool_context, run_call, store_messages

PATIENT = {"plan_ms": 60_000}
"""Nothing here is about time."""


def years_of_talk(shared: Path) -> list[Conversation]:
    return read(shared / OPEN / "rhelm.jsonl")


async def searched(conversation: Conversation) -> tuple[Searched, dict[str, int]]:
    """(the database that a model's queries work on, the place of each message by its id), everything stored."""
    async with in_memory() as store:
        await store_messages(store, conversation["messages"])
        tool_context = make_tool_context(store)
        records, is_all = await stored_history.load_newest(tool_context)
        assert is_all
        found = Searched(stored_history.make_table_rows(records, []), tool_context.settings.tools.result_chars)
        # The database that is made once says what the tool itself says.
        for question, _ in [*questions(conversation)][:2]:
            for sql in queries(question, 2):
                assert await run_call(tool_context, "query_db", sql=sql) == found.ask(sql)
    return found, names(conversation, "t1")


@pytest.mark.full_replay
@pytest.mark.long
async def test_a_model_finds_by_plain_queries_what_was_said_months_ago(
    shared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rounds = ToolSettings().rounds
    shares = {n: Shares() for n in (1, 4, rounds)}
    for conversation in years_of_talk(shared):
        database, places = await searched(conversation)
        for question, wanted in questions(conversation):
            found = database.ids_by_round(question, rounds)
            for n, share in shares.items():
                share.add(wanted, frozenset(places[name] for name in found[n - 1]))
    with capsys.disabled():
        print("".join(f"\nby query_db in {n} rounds, {share}" for n, share in shares.items()))
    assert shares[rounds].questions > 150
    assert shares[rounds].any >= 0.9


@pytest.mark.full_replay
@pytest.mark.long
async def test_the_chat_policy_quotes_the_wanted_messages_within_its_budget(
    shared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Within the 2,000 tokens that the policy gives to it."""
    share, most, count = Shares(), 0, get_token_counter("o200k_base")
    tree: Any = {"policy": "chat", "limits": PATIENT, "tokens": {"count": "exact"}}
    async with model_on_a_socket() as (model, upstream), run_proxy(upstream.port, **tree) as proxy:
        for conversation in years_of_talk(shared):
            known: dict[str, int] = {}
            for question, wanted in questions(conversation):
                messages = await list_sent_for(proxy, model, conversation, question)
                assert len(messages) == LAST + 2, "the first prompt, the last messages, and the question"
                if not known:
                    salt = proxy.app.settings.identity.salt.get_secret_value()
                    known = names(conversation, derive_tenant({"authorization": f"Bearer {conversation['id']}"}, salt))
                share.add(wanted, frozenset(known[name] for name in quoted(messages)))
                most = max(most, count(messages[-1]["content"].removeprefix(question)))
    with capsys.disabled():
        print(f"\nby the chat policy in at most {most} tokens, {share}")
    assert most <= 2000
    assert share.any >= 0.75
    assert share.recall >= 0.62


FACTS = {
    "The violin was repaired by a man called Anselm in Porto.": "Who repaired my violin?",
    "My sister's twins are allergic to hazelnuts.": "Which nuts are the twins of my sister allergic to?",
    "I parked the caravan behind the lighthouse at Skagen.": "Where did I leave the caravan?",
}


def talk() -> list[dict[str, str]]:
    """A long talk in which each fact is told once, early."""
    messages = []
    told = {10 * n + 3: fact for n, fact in enumerate(FACTS)}
    for n in range(60):
        remark = told.get(n, f"Today was day {n}: rain until noon, soup, then a walk along the canal.")
        messages += [{"role": "user", "content": remark}, {"role": "assistant", "content": f"I see. Day {n}."}]
    return messages


@pytest.mark.parametrize("stream", [False, True])
async def test_the_chat_policy_tells_what_left_the_prompt_once_it_is_asked_for(stream: bool) -> None:
    model = ScriptedModel("Well.")
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="chat") as proxy:
        for fact, question in FACTS.items():
            agent = Agent(proxy, stream=stream, messages=talk())
            await agent.say(question)
            *before, last = model.texts()
            assert len(before) == LAST + 1, "the first prompt and the last messages"
            assert fact not in " ".join(before)
            assert last.startswith(question + "\n\n[retrieved, ")
            assert fact in last
            assert len(quoted([{"content": last}])) <= 5, "and what stands next to it"
        agent = Agent(proxy, stream=stream, messages=talk())
        await agent.say("Go on")
        assert model.texts()[-1] == "Go on"
        await agent.say("Where did I leave the caravan?")
        await agent.say("Thank you")
        assert model.texts()[-3] == "Where did I leave the caravan?", "what was brought back does not stay"


async def test_memos_are_found_again_by_what_they_are_about() -> None:
    """Many of them, in a later session, among those that are told and by the tool."""
    found = [f"{fact[:-1]}, as was told on a walk in week {n}." for n, fact in enumerate(FACTS)]
    noise = [
        f"The service number{n} listens on port {n + 4000} because number{n - 1} took the other." for n in range(99)
    ]
    async with in_memory() as store:
        tool_context = make_tool_context(store)
        for text in (*noise, *found):
            assert "[saved: memo" in await run_call(tool_context, "save_memo", content=text, tags=["notes"])
        later = make_tool_context(store, session="s2")
        kept = await stored_memos.load_memos(later)
        assert len(kept) == len(noise) + len(found)
        for text, question in zip(found, FACTS.values(), strict=True):
            assert select_memos(kept, question)[0].content == text
            assert text in await run_call(later, "retrieve_memos", query=question)
        assert select_memos(kept, "What did service number42 listen on?")[0].content == noise[42]
        assert select_memos(kept, "Thank you, go on") == []
