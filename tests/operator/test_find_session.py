from __future__ import annotations

import pytest

from proxy.errors import NotFound
from proxy.operator import edit_messages, find_session
from proxy.store.base import SessionRow
from tests.operator.agent import RunningConversation, run_conversation
from tests.scripted_model import make_calls


async def texts(talk: RunningConversation, branch: str | None = None) -> list[str]:
    return [m.text for m in (await find_session.find_branch(talk.parts, talk.tenant, "s", branch)).request.messages]


async def test_the_history_is_the_clients_with_our_last_answer() -> None:
    async with run_conversation("rolling") as talk:
        for n in range(5):
            await talk.ask(f"More {n}?")
        here = await find_session.find_branch(talk.parts, talk.tenant, "s")
        assert [m.text for m in here.request.messages] == [m["content"] or "" for m in talk.agent.messages]
        assert len(here.groups) == 8
        assert here.find_index(here.groups[0].id) == 1
        assert here.find_index("none") is None


async def test_the_newest_branch_is_meant_and_no_side_call() -> None:
    async with run_conversation("thrifty") as talk:
        await talk.proxy.post(
            {
                "model": "m",
                "messages": [{"role": "system", "content": "Name it."}, {"role": "user", "content": "A title?"}],
            },
            b"x-context-session: s",
        )
        assert (await texts(talk))[1] == "Prompt number 0?"
        (side,) = [
            t.branch
            for t in (await find_session.read_session(talk.parts, talk.tenant, "s")).branches
            if t.kind == "side"
        ]
        assert (await texts(talk, side))[1] == "A title?"


async def test_the_branch_that_was_last_spoken_in_is_meant() -> None:
    async with run_conversation("thrifty") as talk:
        del talk.agent.messages[5:]
        await talk.ask("Another way.")
        assert (await texts(talk))[-2:] == ["Another way.", "Well."]


async def test_a_trial_on_a_copy_changes_no_live_branch() -> None:
    async with run_conversation("thrifty") as talk:
        live = talk.parts.live_sessions.find_session(talk.tenant, "s")
        assert live is not None
        here = await find_session.find_branch(talk.parts, talk.tenant, "s")
        (branch,) = live.branches.values()
        assert here.branch is not branch
        assert here.branch.live_session is not live
        assert here.branch.state is branch.state


async def test_a_session_in_which_nothing_was_said_has_no_history() -> None:
    async with run_conversation("thrifty") as talk:
        await talk.parts.store.put([SessionRow("t", "empty", True, 1.0)])
        with pytest.raises(NotFound, match="nothing was said"):
            await find_session.find_branch(talk.parts, "t", "empty")


async def test_hidden_messages_leave_with_the_answer_that_they_led_to() -> None:
    """A call of our own and its result are no messages of the client: the group takes them along."""
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    async with run_conversation("rolling") as talk:
        talk.agent.more["tools"] = [tool]
        talk.agent.lines = (b"x-context-session: other",)
        talk.agent.messages = [{"role": "user", "content": "First."}]
        talk.upstream.answers = [
            make_calls(("call_ours_123", "manage_scratchpad"), action="read"),
            "Hidden went before.",
            "Well.",
        ]
        await talk.agent.say()
        await talk.agent.say("Second.")
        assert any(m["role"] == "tool" for m in talk.upstream.last["messages"])
        first = (await find_session.find_branch(talk.parts, talk.tenant, "other")).groups[0].id
        await edit_messages.drop(talk.parts, talk.tenant, "other", [first])
        await talk.agent.say("Third.")
        assert [m["role"] for m in talk.upstream.last["messages"]] == ["user", "assistant", "user"]
        await edit_messages.restore(talk.parts, talk.tenant, "other", [first])
        await talk.agent.say("Fourth.")
        assert [m["role"] for m in talk.upstream.last["messages"]][:4] == ["user", "assistant", "tool", "assistant"]
