"""A compaction of a history goes on as it came, and the session goes on behind it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.dialect_agents import ResponsesAgent, read_listing
from tests.proxy_server import run_proxy
from tests.raw_upstream import run_upstream
from tests.strict_responses import Ask, Say, StrictResponses, Think

Json = dict[str, Any]
STEPS = 4


@pytest.mark.parametrize("own", [True, False])
async def test_a_compaction_is_passed_on_unchanged_and_the_session_continues_after_it(own: bool) -> None:
    """own: a request of its own asks for it; else the last item of a request does."""
    steps: list[list[Any]] = [[Think(f"file {n}"), Ask("read", {"path": "a.py"})] for n in range(STEPS)]
    steps.insert(2, [Think("Again?"), Ask("recall", {"id": "zz"})])
    model = StrictResponses(*steps, [Say("Done.")], [Think("More"), Ask("read", {"path": "a.py"})], [Say("Done.")])
    tree: Json = {"policy": "thrifty", "tools": {"offer": "first_request"}}
    async with run_upstream(model) as upstream, run_proxy(upstream.port, **tree) as proxy:
        agent = ResponsesAgent(proxy, read_listing, lines=(b"thread-id: t-1",))
        await agent.work("Find the fault.")
        body: Json = {"model": "gpt-6.2-sol", "input": agent.items}
        if own:
            found = await proxy.post(body, *agent.lines, path="/v1/responses/compact")
        else:
            more = {"input": [*agent.items, {"type": "compaction_trigger"}], "store": False}
            model.answers.insert(0, "The sum of it.")
            found = await proxy.post(body | more, *agent.lines, path="/v1/responses")
        assert found.status == 200, found.body
        assert found.header("x-context-fallback") == "compaction"
        if own:
            (asked,) = model.compacted
            kept = [one for one in agent.items if one["type"] != "reasoning"]
            assert [one for one in asked["input"] if one["type"] != "reasoning"] == kept
            agent.items = found.json()["output"]
        else:
            agent.items = [agent.items[0], {"type": "compaction", "encrypted_content": "sealed"}]
            model.dropped.clear()  # the strict upstream binds reasoning in this form too
        assert await agent.work("Go on.") == "Done."
        outcomes = await proxy.outcomes()
    assert model.refused == []
    assert model.dropped == []
    assert {fallback for _, _, fallback in outcomes} == {None}
    assert len({one.session for one in agent.heard}) == 1
