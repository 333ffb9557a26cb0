"""Clients that answer a repeated read by "unchanged since last read": the model gets the text that was cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.dialect_agents import MessagesAgent
from tests.exchange.test_page_faults import asks, read_results
from tests.proxy_server import Agent, RunningProxy, run_proxy
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
HEAD = "\n\n[The earlier view of /a/b.py is shortened in this prompt. "
QUOTED = f"{HEAD}This is all of it:]\n{VIEW}"
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
        assert "[The earlier view" not in read_results(model)[-1]


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


async def read_until_cut(proxy: RunningProxy, first: str = VIEW) -> Agent:
    """An agent that has read the file, and then other files. Its next call is the last one of `make_answers`."""
    agent = Agent(proxy, (b"x-context-session: a",))
    await agent.say("Look at it")
    for text in (first, *OTHER_VIEWS):
        agent.brings(text)
        await agent.say()
    return agent


async def test_a_text_that_was_brought_comes_once_also_when_the_client_asks_again() -> None:
    again = asks("read_file", 100, path="/a/b.py")
    model = ScriptedModel(*make_answers(), again, again, "Done.")
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        agent = await read_until_cut(proxy)
        agent.brings(NOTES[0])
        await agent.send()
        first = read_results(model)
        await agent.say()
        assert read_results(model) == first, "a retry"
        agent.brings(NOTES[0])
        await agent.say()
        assert [text.count(VIEW) for text in read_results(model)[-2:]] == [1, 0]


async def test_the_text_comes_too_where_the_user_speaks_after_the_note() -> None:
    model = ScriptedModel(*make_answers(), "Done.")
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        agent = await read_until_cut(proxy)
        agent.brings(NOTES[0])
        await agent.say("And be quick")
        assert model.last["messages"][-1]["content"].startswith("And be quick" + QUOTED)


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ("The file /a/b.py has been updated.", "The file was changed since; as it was:]"),
        ("Error: old_string was not found in the file", "This is all of it:]"),
    ],
)
async def test_a_view_of_before_a_change_is_said_to_be_old(result: str, words: str) -> None:
    answers = make_answers()
    answers.insert(-1, asks("edit_file", 98, path="/a/b.py", old_string="x", new_string="y"))
    model = ScriptedModel(*answers, "Done.")
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        agent = await read_until_cut(proxy)
        for text in (result, NOTES[0]):
            agent.brings(text)
            await agent.say()
        assert read_results(model)[-1].startswith(f"{NOTES[0]}{HEAD}{words}\n{VIEW}")


async def test_a_text_names_its_file_where_it_follows_another_result() -> None:
    answers, other = make_answers(), asks("run_it", 100, command="date")
    answers[-1]["tool_calls"] += other["tool_calls"]
    model = ScriptedModel(*answers, "Done.")
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        agent = await read_until_cut(proxy)
        agent.brings(NOTES[0], "Sat Nov 28")
        await agent.say()
        assert read_results(model)[-1].startswith("Sat Nov 28" + QUOTED)


@pytest.mark.parametrize("text", ["     1\t- File unchanged since last read: said once", "1\u2192" + NOTES[0]])
async def test_the_words_in_a_file_with_line_numbers_are_its_own(text: str) -> None:
    model = ScriptedModel(*make_answers(), "Done.")
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        agent = await read_until_cut(proxy)
        agent.brings(text)
        await agent.say()
        assert "[The earlier view" not in read_results(model)[-1]


async def test_the_words_in_the_output_of_a_command_are_its_own() -> None:
    answers = make_answers()
    answers[0], answers[-1] = (asks("shell", n, command="cat /var/sync.log") for n in (0, 99))
    model = ScriptedModel(*answers, "Done.")
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        agent = await read_until_cut(proxy)
        agent.brings("sync: file a.txt unchanged since last read\n")
        await agent.say()
        assert "[The earlier view" not in read_results(model)[-1]


async def test_nothing_leaves_for_a_text_that_has_no_room(tmp_path: Path) -> None:
    models = tmp_path / "models.toml"
    models.write_text('[models."m"]\nwindow = 9000\n')
    model = ScriptedModel(*make_answers(), "Done.")
    tree: dict[str, Any] = {"policy": "thrifty", "models_file": str(models)}
    async with run_upstream(model) as upstream, run_proxy(upstream.port, **tree) as proxy:
        agent = await read_until_cut(proxy)
        before = len(read_results(model))
        agent.brings(NOTES[0])
        await agent.say()
        sent = read_results(model)
        notes = await proxy.rows("SELECT note FROM exchanges ORDER BY started_at")
    assert len(sent) == before + 1
    assert "[The earlier view" not in sent[-1]
    assert notes[-1] == ("no room in the window for confirmed_result",)
