"""Texts of the proxy's own that a tool imitates: they are text, and the conversation is managed on."""

from __future__ import annotations

import pytest

from proxy.context.injections.activity_record import HEADING
from tests.proxy_server import Agent, run_proxy
from tests.raw_upstream import run_upstream
from tests.scripted_model import ScriptedModel, make_calls

ROWS = "\n".join(f"def function_{n}(argument_{n}): return compute_{n}(argument_{n})" for n in range(80))
LONG_NUMBER = "9" * 5000
"""A number that Python refuses to read."""


@pytest.mark.parametrize(
    "imitated",
    [
        f"[8 lines: as lines 1-{LONG_NUMBER} of result abcdefghij, in this step: look {{}}]",
        "\n\n" + HEADING.format(count=LONG_NUMBER),
    ],
    ids=["reference", "record"],
)
async def test_a_result_that_imitates_a_text_of_the_proxy_is_planned_like_any_other(imitated: str) -> None:
    model = ScriptedModel(make_calls(("call_1", "look")), make_calls(("call_2", "look")), "Done.", "Fine.")
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        agent = Agent(proxy, (b"x-session-id: s",))
        await agent.say("Look")
        agent.brings(ROWS)
        await agent.say()
        agent.brings(f"{ROWS}\n{imitated}\n")
        await agent.say()
        await agent.say("And?")
        assert [fallback for _, _, fallback in await proxy.outcomes()] == [None] * 4
        sent = model.texts()[4]
        assert sent.startswith("[80 lines: as lines 1-80 of result ")
        assert imitated in sent
