from __future__ import annotations

import pytest

from proxy.errors import Conflict, NotFound, Unprocessable
from proxy.operator import session_settings, show
from proxy.sessions.operator_decisions import SessionSettings
from tests.operator.agent import POLICIES, find_messages, list_group_messages, run_conversation

LONG = "\n".join(f"line {n} of a long result" for n in range(2000))


@pytest.mark.parametrize("policy", POLICIES)
async def test_a_window_holds_in_every_policy_and_opens_again(policy: str) -> None:
    async with run_conversation(policy) as talk:
        await session_settings.set_window(talk.parts, talk.tenant, "s", 2)
        left = find_messages(await talk.ask())
        # `reflective` tells what the results were that are out, as it does for any window.
        assert not left & ({"prompt 0", "prompt 1"} if policy == "reflective" else list_group_messages(0, 1))
        await session_settings.set_window(talk.parts, talk.tenant, "s", 0)
        opened = find_messages(await talk.ask())
        assert (
            list_group_messages(0, 1) <= opened or policy == "progressive"
        )  # which leaves prompts out by its own rule
        await session_settings.set_window(talk.parts, talk.tenant, "s", 1)
        assert not {"prompt 2", "answer 2"} & find_messages(await talk.ask())
        assert (await session_settings.change_settings(talk.parts, talk.tenant, "s", window=None)).window == -1
        assert find_messages(await talk.ask()) or policy in ("rolling", "progressive")


async def test_the_sessions_policy_counts_where_the_request_names_none() -> None:
    async with run_conversation("passthrough") as talk:
        await session_settings.change_settings(talk.parts, talk.tenant, "s", policy="rolling")
        await talk.ask()
        (last,) = await talk.parts.store.read_exchanges(talk.tenant, "s", 1)
        assert last.policy == "rolling"
        await talk.agent.say("And?", b"x-context-policy: thrifty")
        (last,) = await talk.parts.store.read_exchanges(talk.tenant, "s", 1)
        assert last.policy == "thrifty"
        await session_settings.change_settings(talk.parts, talk.tenant, "s", policy=None)
        await talk.ask()
        (last,) = await talk.parts.store.read_exchanges(talk.tenant, "s", 1)
        assert last.policy == "passthrough"


async def test_the_schedule_can_be_set() -> None:
    async with run_conversation("rolling") as talk:
        await session_settings.change_settings(talk.parts, talk.tenant, "s", schedule="over_budget")
        await talk.ask()
        (last,) = await talk.parts.store.read_exchanges(talk.tenant, "s", 1)
        assert last.schedule == "over_budget"


async def test_limits_of_injections_can_be_set() -> None:
    async with run_conversation("progressive") as talk:
        for n in range(6):
            talk.agent.messages.append({"role": "assistant", "content": f"Thought {n}."})
        talk.agent.messages[-6:-6] = [{"role": "user", "content": "Work."}]
        await session_settings.change_settings(talk.parts, talk.tenant, "s", max_iterations=77)
        talk.agent.messages.append({"role": "tool", "tool_call_id": "x", "content": "r"})
        await talk.agent.send()
        assert any("6/77" in (text or "") for text in talk.upstream.texts())


@pytest.mark.parametrize("how", ["prune", "compress"])
async def test_pruning_now_changes_the_next_prompt_once(how: str) -> None:
    async with run_conversation("thrifty") as talk:
        talk.agent.messages[3]["content"] = LONG
        await talk.ask()
        whole = (await show.preview_next_prompt(talk.parts, talk.tenant, "s")).tokens_before
        force = session_settings.request_prune if how == "prune" else session_settings.request_compress
        assert (await force(talk.parts, talk.tenant, "s")).force == how
        await talk.ask()
        (last,) = await talk.parts.store.read_exchanges(talk.tenant, "s", 1)
        assert last.tokens_after < 0.6 * whole
        assert (await session_settings.load_settings(talk.parts, talk.tenant, "s")).force == ""
        assert not any(text == LONG for text in await talk.ask())


async def test_a_policy_that_changes_nothing_cannot_prune() -> None:
    async with run_conversation("passthrough") as talk:
        with pytest.raises(Conflict):
            await session_settings.request_prune(talk.parts, talk.tenant, "s")


@pytest.mark.parametrize(
    "changes",
    [
        {"policy": "none"}, {"schedule": "later"}, {"window": -1}, {"window": "2"}, {"window": True},
        {"max_iterations": 0}, {"urgency": "loud"}, {"force": "prune"}, {"other": 1}, {"policy": []},
    ],
)  # fmt: skip
async def test_an_invalid_setting_is_refused(changes: dict[str, object]) -> None:
    async with run_conversation("thrifty") as talk:
        with pytest.raises(Unprocessable):
            await session_settings.change_settings(talk.parts, talk.tenant, "s", **changes)
        assert await session_settings.load_settings(talk.parts, talk.tenant, "s") == SessionSettings()
        with pytest.raises(NotFound):
            await session_settings.change_settings(talk.parts, "stranger", "s", window=1)
