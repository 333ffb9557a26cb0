"""Dead arguments are shortened through the proxy in each dialect, on upstreams that refuse what providers refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.dialect_agents import MessagesAgent, ResponsesAgent
from tests.proxy_server import run_proxy
from tests.raw_upstream import run_upstream
from tests.strict_messages import StrictMessages
from tests.strict_responses import Ask, Say, StrictResponses

OLD = "def old(argument):\n" + "    value = argument + 1  # a line that is replaced\n" * 12
EDIT = {"path": "a.py", "old_str": OLD, "new_str": "def new(argument): ..."}
STEPS = 6
MARK = "[shortened by the proxy: "


def policy(folder: Path) -> dict[str, Any]:
    """A policy whose edits do not wait until they pay."""
    text = 'name = "dead"\nschedule = "always"\narguments = "dead"\nask = "never"\n'
    (folder / "policies").mkdir()
    (folder / "policies" / "dead.toml").write_text(text)
    return {"policy": "dead", "policies_dir": str(folder / "policies"), "db": str(folder / "a.sqlite3")}


def answer(name: str, arguments: dict[str, Any]) -> str:
    return "The file a.py has been edited." if name == "edit_file" else "fine"


async def test_in_messages_only_the_input_of_the_block_is_shortened(tmp_path: Path) -> None:
    def step(n: int) -> list[dict[str, Any]]:
        name, value = ("edit_file", EDIT) if n == 0 else ("run", {"n": n})
        return [{"type": "text", "text": "So."}, {"type": "tool_use", "id": f"toolu_{n}", "name": name, "input": value}]

    model = StrictMessages(*map(step, range(STEPS)), [{"type": "text", "text": "Done."}])
    async with run_upstream(model) as upstream, run_proxy(upstream.port, **policy(tmp_path)) as proxy:
        agent = MessagesAgent(proxy, answer)
        assert await agent.work("Mend it.") == "Done."
        outcomes = await proxy.outcomes()
    assert model.refusals == []
    assert {(status, fallback) for status, _, fallback in outcomes} == {("complete", None)}
    sent, whole = model.bodies[-1]["messages"], agent.messages[: len(model.bodies[-1]["messages"])]
    made = sent[1]["content"][1]
    assert made["input"] == {**EDIT, "old_str": made["input"]["old_str"]}
    assert made["input"]["old_str"].startswith(f"def old(argument):\n{MARK}")
    assert {**made, "input": EDIT} == whole[1]["content"][1]
    assert [*sent[:1], *sent[2:]] == [*whole[:1], *whole[2:]]


async def test_in_responses_the_arguments_of_the_item_are_shortened(tmp_path: Path) -> None:
    steps: list[list[Any]] = [[Say("So."), Ask("edit_file", EDIT)], *([Ask("run", {"n": n})] for n in range(STEPS))]
    model = StrictResponses(*steps, [Say("Done.")])
    async with run_upstream(model) as upstream, run_proxy(upstream.port, **policy(tmp_path)) as proxy:
        agent = ResponsesAgent(proxy, answer, more={"include": []})  # no reasoning that could be bound to the prompt
        assert await agent.work("Mend it.") == "Done."
    assert model.refused == []
    sent = model.received[-1]["input"]
    at = next(n for n, one in enumerate(sent) if one.get("name") == "edit_file")
    made, whole = sent[at], agent.items[at]
    assert json.loads(made["arguments"]).keys() == EDIT.keys()
    assert MARK in json.loads(made["arguments"])["old_str"]
    assert {**made, "arguments": whole["arguments"]} == whole
    assert [*sent[:at], *sent[at + 1 :]] == [*agent.items[:at], *agent.items[at + 1 : len(sent)]]
