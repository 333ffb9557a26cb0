"""The answers of a run: within the budget, kept, and not paid for twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from proxy.context.models import Model
from proxy.errors import ConfigError
from proxy.metrics import Metrics
from proxy.replay.ask_model import DecisionFile, ModelAsker
from proxy.replay.decisions import DecisionPoint, DecisionReport
from proxy.settings.load import Settings
from proxy.upstream.client import UpstreamClient
from tests.raw_upstream import Connection, RawRequest, run_upstream
from tests.scripted_model import make_calls, send_completion, send_reply

PRICED = Model(input=1.0, output=5.0)
BODY = b'{"model":"m","messages":[{"role":"user","content":"%b"}]}'
POINTS = [DecisionPoint("c", n, BODY % b"full %d" % n, BODY % b"managed %d" % n) for n in range(5)]


class Deciding:
    """An upstream that calls one tool for the full prompt, and the one given for the managed prompt."""

    def __init__(self, managed: str) -> None:
        self.managed = managed
        self.asked = 0

    async def __call__(self, request: RawRequest, connection: Connection) -> None:
        self.asked += 1
        name = self.managed if b"managed" in request.body else "look"
        usage: dict[str, Any] = {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100}
        await send_completion(connection, make_calls(("call_1", name), at=1), usage)


async def ask(model: Any, dollars: float, path: Path | None = None) -> DecisionReport:
    async with run_upstream(model) as upstream:
        client = UpstreamClient(Settings(upstream=f"http://127.0.0.1:{upstream.port}/v1"), Metrics())
        try:
            asker = ModelAsker(client, "m", PRICED, dollars, DecisionFile(path))
            return await asker.ask_all(POINTS, lambda: None)
        finally:
            await client.close()


async def test_a_model_that_does_the_same_agrees_wholly() -> None:
    found = await ask(Deciding("look"), 10.0)
    assert (found.full_with_full, found.full_with_managed, found.managed_with_managed) == (1.0, 1.0, 1.0)
    assert (found.difference, found.low, found.high, found.differing) == (0.0, 0.0, 0.0, [])
    assert found.dollars == pytest.approx(20 * (1000 * 1.25 + 100 * 5) / 1e6)


async def test_a_planted_disagreement_is_found() -> None:
    found = await ask(Deciding("stop"), 10.0)
    assert (found.full_with_full, found.full_with_managed, found.managed_with_managed) == (1.0, 0.0, 1.0)
    assert found.difference == -1.0
    assert found.differing == [f"c#{n}" for n in range(5)]


async def test_the_budget_ends_a_run_and_a_later_one_continues(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    first, second = Deciding("look"), Deciding("look")
    part = await ask(first, 0.025, path)
    assert 0 < part.points < len(POINTS)
    assert part.left == len(POINTS) - part.points
    assert part.dollars <= 0.025
    with path.open("ab") as file:
        file.write(b'{"prompt":"half of a li')  # killed while it wrote
    rest = await ask(second, 10.0, path)
    assert (rest.points, rest.left) == (len(POINTS), 0)
    assert first.asked + second.asked == 4 * len(POINTS)
    third = Deciding("stop")
    assert await ask(third, 0.0, path) == rest
    assert third.asked == 0


async def test_questions_that_fail_are_counted() -> None:
    async def refuse(request: RawRequest, connection: Connection) -> None:
        await send_reply(connection, b"500 Internal Server Error", b'{"error":{"message":"no"}}')

    found = await ask(refuse, 10.0)
    assert (found.points, found.failed) == (0, 4 * len(POINTS))


def test_a_file_that_is_not_a_file_of_answers_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.jsonl"
    path.write_text('{"id": 1}\n{"id": 2}\n')
    with pytest.raises(ConfigError, match="line 1"):
        DecisionFile(path)
