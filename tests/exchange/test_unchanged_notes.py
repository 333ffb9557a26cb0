"""Clients that answer a repeated read by "unchanged since last read": the model gets the text that was cut."""

from __future__ import annotations

from typing import Any

import pytest

from tests.dialect_agents import MessagesAgent
from tests.exchange.test_page_faults import asks, read_results
from tests.proxy_server import Agent, run_proxy
from tests.raw_upstream import run_upstream
from tests.scripted_model import ScriptedModel
from tests.strict_messages import StrictMessages

VIEW = "\n".join(f"    total = total + compute(value, {n})  # the part {n}" for n in range(400))
NOTES = [
    "File unchanged since last read. The content from the earlier Read tool_result is still current — refer to that.",
    "Wasted call — file unchanged since your last Read. Refer to that earlier tool_result instead.",
    "[File unchanged since last read: /a/b.py]",
    "The file has not been modified since you last read it.",
]
QUOTED = "\n\n[The earlier result is shortened in this prompt. This is all of it:]\n" + VIEW
OTHERS = 30
"""Calls between the two reads, until the first one is cut."""


def make_answers() -> list[dict[str, Any]]:
    others = [asks("read_file", n, path=f"/a/other_{n}.py") for n in range(1, OTHERS + 1)]
    return [asks("read_file", 0, path="/a/b.py"), *others, asks("read_file", 99, path="/a/b.py")]


OTHER_VIEWS = [f"x = {n}" for n in range(OTHERS)]


@pytest.mark.parametrize("note", NOTES)
async def test_the_text_that_a_note_speaks_of_is_there_and_stays(note: str) -> None:
    model = ScriptedModel(*make_answers(), asks("run_it", 100, command="date"), "Done.")
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        agent = Agent(proxy, (b"x-context-session: a",))
        await agent.say("Look at it")
        for text in (VIEW, *OTHER_VIEWS):
            agent.brings(text)
            await agent.say()
        assert read_results(model)[0] != VIEW, "the first read was cut"
        agent.brings(note)
        await agent.say()
        sent = read_results(model)
        assert sent[-1].startswith(note + QUOTED)
        agent.brings("Sat Nov 28")
        await agent.say()
        *before, quoted, _ = read_results(model)
        assert (before, quoted) == (sent[:-1], note + QUOTED), "byte for byte"
        assert proxy.count("refetch_total", kind="repeat") == 1, "a page fault"


async def test_a_note_on_a_whole_text_stays_as_it_is() -> None:
    model = ScriptedModel(*[asks("read_file", n, path="/a/b.py") for n in range(2)], "Done.")
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        agent = Agent(proxy, (b"x-context-session: a",))
        await agent.say("Look at it")
        for text in (VIEW, NOTES[0]):
            agent.brings(text)
            await agent.say()
        assert read_results(model) == [VIEW, NOTES[0]]


async def test_a_note_on_another_part_of_the_file_brings_nothing() -> None:
    answers = make_answers()
    answers[-1] = asks("read_file", 99, path="/a/b.py", offset=40)
    model = ScriptedModel(*answers, "Done.")
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        agent = Agent(proxy, (b"x-context-session: a",))
        await agent.say("Look at it")
        for text in (VIEW, *OTHER_VIEWS, NOTES[0]):
            agent.brings(text)
            await agent.say()
        assert "[The earlier result" not in read_results(model)[-1]


async def test_a_client_of_messages_gets_it_in_the_result() -> None:
    def read(n: int, path: str) -> list[dict[str, Any]]:
        return [{"type": "tool_use", "id": f"toolu_{n:04}", "name": "read", "input": {"path": path}}]

    paths = ["/a/b.py", *(f"/a/other_{n}.py" for n in range(OTHERS)), "/a/b.py"]
    texts = iter([VIEW, *OTHER_VIEWS, NOTES[1]])
    model = StrictMessages(*[read(n, path) for n, path in enumerate(paths)], "Done.")
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        agent = MessagesAgent(proxy, lambda *_: next(texts))
        assert await agent.work("Look at it") == "Done."
    assert model.refusals == []
    [result] = model.bodies[-1]["messages"][-1]["content"]
    sent = result["content"]
    text = sent if isinstance(sent, str) else "".join(part["text"] for part in sent)
    assert text.startswith(NOTES[1] + QUOTED)
