"""Asks a real model at the points of a decision replay, within a budget in dollars.

Each answer is written to a file at once, under the digest of its prompt. A run that was stopped, or that reached its
budget, continues from there: what was asked once is not paid for again.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path

import msgspec

from proxy.context.models import Model
from proxy.context.prices import price_usage
from proxy.dialects.usage import Usage
from proxy.errors import ConfigError, ProxyError
from proxy.replay.decisions import (
    QUESTIONS_PER_PROMPT,
    SIDES,
    Decision,
    DecisionPoint,
    DecisionReport,
    compare_decisions,
    read_action,
)
from proxy.upstream.client import UpstreamClient, UpstreamRequest

ANSWER_LIMIT = 8 << 20
ANSWER_TOKENS = 1000
"""Tokens of an answer in the estimate of a question's price."""
BYTES_PER_TOKEN = 3
HEADERS = [(b"content-type", b"application/json"), (b"accept", b"application/json")]


class DecisionFile:
    """The answers so far, one a line. path: None keeps them in memory alone."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._known: dict[tuple[str, int], Decision] = {}
        if path is None or not path.exists():
            return
        lines = path.read_bytes().splitlines()
        for number, line in enumerate(lines, 1):
            try:
                decision = msgspec.json.decode(line, type=Decision)
            except ValueError:
                if number == len(lines):  # of a run that was killed
                    path.write_bytes(b"".join(known + b"\n" for known in lines[:-1]))
                    continue
                raise ConfigError("--answers", str(path), f"answers of an earlier run (line {number})") from None
            self._known[decision.prompt, decision.number] = decision

    def find(self, prompt: str, number: int) -> Decision | None:
        """Return the answer to a question that was asked before."""
        return self._known.get((prompt, number))

    def add(self, decision: Decision) -> None:
        """Remember an answer; it is on disk when this returns."""
        self._known[decision.prompt, decision.number] = decision
        if self._path is not None:
            with self._path.open("ab") as file:
                file.write(msgspec.json.encode(decision) + b"\n")


class ModelAsker:
    """Asks a model about points. dollars: the budget of this run."""

    def __init__(
        self, client: UpstreamClient, model_name: str, model: Model, dollars: float, file: DecisionFile
    ) -> None:
        self._client = client
        self._target = client.select_target(model_name)
        self._model = model
        self._left = dollars
        self._file = file
        self._failures = 0

    async def ask_all(self, points: Sequence[DecisionPoint], advance: Callable[[], None]) -> DecisionReport:
        """Ask about each point, in order, until the budget is spent. advance: called after each point."""
        answers: dict[tuple[int, str], list[Decision]] = defaultdict(list)
        left_out = 0
        for n, point in enumerate(points):
            if left_out or not self._can_afford(point):
                left_out += 1
                continue
            questions = [(side, number) for side in SIDES for number in range(QUESTIONS_PER_PROMPT)]
            found = await asyncio.gather(*(self._ask(point.get_body(side), number) for side, number in questions))
            for (side, _), one in zip(questions, found, strict=True):
                if one is not None:
                    answers[n, side].append(one)
            advance()
        return compare_decisions(points, answers, left=left_out, failed=self._failures)

    def _can_afford(self, point: DecisionPoint) -> bool:
        price = 0.0
        for side in SIDES:
            body = point.get_body(side)
            prompt = sha256(body).hexdigest()
            usage = Usage(len(body) // BYTES_PER_TOKEN, ANSWER_TOKENS, 0)
            new = sum(self._file.find(prompt, number) is None for number in range(QUESTIONS_PER_PROMPT))
            price += new * price_usage(self._model, usage).total
        return price <= self._left

    async def _ask(self, body: bytes, number: int) -> Decision | None:
        prompt = sha256(body).hexdigest()
        known = self._file.find(prompt, number)
        if known is not None:
            return known
        try:
            reply = await self._client.send(
                self._target, UpstreamRequest("POST", "/v1/chat/completions", b"", HEADERS, body)
            )
            try:
                text = await reply.read_body(ANSWER_LIMIT)
            finally:
                await reply.close()
        except ProxyError:
            self._failures += 1
            return None
        parsed = read_action(text) if reply.status == 200 else None
        if parsed is None:
            self._failures += 1
            return None
        action, answer = parsed
        dollars = 0.0
        if answer.usage is not None:
            usage = answer.usage
            dollars = usage.dollars if usage.dollars is not None else price_usage(self._model, usage).total
        self._left -= dollars
        made = Decision(prompt, number, action, dollars)
        self._file.add(made)
        return made
