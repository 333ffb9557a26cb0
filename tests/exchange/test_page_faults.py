"""A repeated call is a page fault: through the proxy, the page comes back whole, byte for byte, and stays."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.chat.chain import public_id
from proxy.operator import session_stats
from tests.proxy_server import Agent, run_proxy
from tests.raw_upstream import run_upstream
from tests.scripted_model import ScriptedModel

ROWS = [f"def function_{n}(argument_{n}): return compute_{n}(argument_{n})" for n in range(1, 81)]


def asks(tool: str, number: int, **arguments: Any) -> dict[str, Any]:
    """An answer that calls one tool."""
    made = {"name": tool, "arguments": json.dumps(arguments)}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": f"c{number}", "type": "function", "function": made}],
    }


def read_results(model: ScriptedModel) -> list[str]:
    """The results in the last request, in order."""
    return [m["content"] for m in model.last["messages"] if m["role"] == "tool"]


async def forwarded(tool: str, texts: list[str], **arguments: Any) -> list[str]:
    """The results of calls with equal arguments as the last request had them."""
    model = ScriptedModel(*[asks(tool, n, **arguments) for n in range(len(texts))], "Done.")
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        agent = Agent(proxy, (b"x-context-session: a",))
        await agent.say("Look at it")
        for text in texts:
            agent.brings(text)
            await agent.say()
        return read_results(model)


async def test_an_agent_that_reads_a_file_again_and_again_gets_one_pointer_and_then_the_file() -> None:
    text = "\n".join(ROWS) + "\n"
    sent = await forwarded("read_file", [text] * 8, path="/a/b.py")
    assert sent[1].startswith("[80 lines: as lines 1-80 of result ")
    assert sent[1].endswith('1 step before this: read_file {"path": "/a/b.py"}]\n'), "the final newline stays"
    assert [n for n, one in enumerate(sent) if one == text] == [0, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("odd", ["\x0b", "\x0c", "\u2028", "\x85"])
async def test_what_other_readers_take_for_a_line_end_is_sent_as_received(odd: str) -> None:
    text = "\n".join([*ROWS[:20], f"one{odd}line of thirty characters", *ROWS[20:]])
    assert await forwarded("run_it", [text, text], command="make") == [text, text]


async def test_what_is_recalled_says_that_it_is_old() -> None:
    model = ScriptedModel(asks("read_file", 1, path="/a/b.py"), asks("edit_file", 2, path="/a/b.py", new="y"), "Done.")
    tools = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in ("read_file", "edit_file")]
    async with (
        run_upstream(model) as upstream,
        run_proxy(upstream.port, policy="thrifty", tools={"offer": "first_request"}) as proxy,
    ):
        agent = Agent(proxy, (b"x-context-session: a",), more={"tools": tools})
        await agent.say("Look at it")
        agent.brings("\n".join(ROWS))
        await agent.say()
        agent.brings("edited")
        await agent.say()
        ((found,),) = await proxy.rows("SELECT key FROM messages WHERE role = 'tool' ORDER BY position LIMIT 1")
        model.answers = [asks("recall", 3, id=public_id(bytes(found))), "It was."]
        await agent.say("What was there at first?")
        head, _, text = str(model.last["messages"][-1]["content"]).partition("\n")
        assert head.endswith(
            'the result of read_file {"path": "/a/b.py"}, 3 steps ago; '
            "edited once since: read it again for its present text; the old text follows]"
        )
        assert text == "\n".join(ROWS)
        assert agent.messages[-1]["content"] == "It was."


LETTERS = "abcdefghijklmnopqrst"
HITS = "\n".join(f"the value of {one * 5} is handled where {other * 7} asks" for one in LETTERS for other in LETTERS)


SEARCHES = [asks("grep", 1, pattern="value"), *(asks("grep", n, pattern=f"x{n}") for n in range(2, 8))]


async def bring_results(agent: Agent, *more: str) -> None:
    """Answer `SEARCHES`, of which the first has found `HITS`, and the calls after them with these texts."""
    for text in (HITS, *(f"nothing {n}" for n in range(2, 8)), *more):
        agent.brings(text)
        await agent.say()


async def test_a_cut_result_that_is_fetched_again_is_counted_in_the_metrics_and_in_the_sessions_stats() -> None:
    model = ScriptedModel(*SEARCHES, asks("grep", 8, pattern="value"), "Done.", "Fine.")
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        agent = Agent(proxy, (b"x-context-session: a",))
        await agent.say("Look for it")
        await bring_results(agent)
        before = proxy.count("refetch_total", kind="repeat")
        agent.brings(HITS)
        await agent.say()
        shortened = read_results(model)
        assert shortened[0].startswith("[shortened: "), "the first one was cut"
        assert shortened[-1].startswith(HITS), "and the page comes whole"
        assert (before, proxy.count("refetch_total", kind="repeat")) == (0, 1)
        await agent.say("Thanks")
        assert proxy.count("refetch_total", kind="repeat") == 1, "once"
        await proxy.rows("SELECT 1")
        [(tenant,)] = await proxy.rows("SELECT tenant FROM sessions")
        stats = await session_stats.compute_stats(proxy.app.services, tenant, "a")
        assert stats.refetched == {"repeat": 1}


async def test_a_part_of_a_cut_result_that_another_tool_brings_is_counted_as_an_excerpt() -> None:
    model = ScriptedModel(*SEARCHES, asks("show_lines", 8, of="the others"), "Done.")
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        agent = Agent(proxy, (b"x-context-session: a",))
        await agent.say("Look for it")
        part = "\n".join(HITS.split("\n")[200:204])
        await bring_results(agent, part)
        assert read_results(model)[0].startswith("[shortened: ")
        assert proxy.count("refetch_total", kind="excerpt") == 1
        assert proxy.count("refetch_total", kind="repeat") == 0


async def test_a_text_that_the_model_has_recalled_is_not_cut_once_more() -> None:
    """The copy was a result of another sort than the cut one, and its page faults never ended the cutting of copies."""
    tools = [{"type": "function", "function": {"name": "grep", "parameters": {}}}]
    model = ScriptedModel(*SEARCHES, "Done.")
    async with (
        run_upstream(model) as upstream,
        run_proxy(upstream.port, policy="thrifty", tools={"offer": "first_request"}) as proxy,
    ):
        agent = Agent(proxy, (b"x-context-session: a",), more={"tools": tools})
        await agent.say("Look for it")
        await bring_results(agent)
        assert model.last["messages"][2]["content"].startswith("[shortened: ")
        ((found,),) = await proxy.rows("SELECT key FROM messages WHERE role = 'tool' ORDER BY position LIMIT 1")
        for n in (8, 9):
            model.answers = [asks("recall", n, id=public_id(bytes(found))), "It was."]
            await agent.say("What was there?")
        copies = read_results(model)[-2:]
        model.answers = ["Fine."] * 80
        for _ in range(80):
            await agent.say("Go on")
        assert read_results(model)[-2:] == copies
        assert min(map(len, copies)) > 6_000
