from __future__ import annotations

import asyncio
from typing import Any

import pytest

from proxy.errors import ClientGone
from proxy.metrics import Metrics
from proxy.web import limits
from proxy.web.api.answer_pieces import PIECE_BYTES, AnswerPieces
from proxy.web.limits import BodyBudget

LARGE = b"x" * (3 * PIECE_BYTES + 7)


def make_start(size: int) -> dict[str, Any]:
    return {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % size)]}


class SlowClient:
    """Takes parts until `taken` of them have come, and then none."""

    def __init__(self, taken: int = 1 << 30) -> None:
        self.parts: list[dict[str, Any]] = []
        self._taken = taken

    async def __call__(self, message: Any) -> None:
        if len(self.parts) >= self._taken:
            await asyncio.sleep(60)
        self.parts.append(message)

    @property
    def body(self) -> bytes:
        return b"".join(part.get("body", b"") for part in self.parts)


async def test_a_long_answer_goes_out_in_pieces_and_counts_until_its_request_ends() -> None:
    budget, client = BodyBudget(10 * len(LARGE), Metrics()), SlowClient()
    with budget.share() as share:
        answer = AnswerPieces(client, share, 60.0)
        await answer(make_start(len(LARGE)))
        assert budget.held == len(LARGE)
        await answer({"type": "http.response.body", "body": LARGE})
        assert budget.held == len(LARGE), "once, and not again with its body"
    assert budget.held == 0
    assert client.body == LARGE
    assert [len(part.get("body", b"")) <= PIECE_BYTES for part in client.parts] == [True] * 5
    assert [part["more_body"] for part in client.parts[1:]] == [True, True, True, False]


async def test_short_answers_take_no_room_in_the_budget() -> None:
    budget, client = BodyBudget(10, Metrics()), SlowClient()
    with budget.share() as other, budget.share() as share:
        other.reserve(10)
        answer = AnswerPieces(client, share, 60.0)
        await answer(make_start(2000))
        for more in (True, False):
            await answer({"type": "http.response.body", "body": b"y" * 1000, "more_body": more})
    assert client.body == b"y" * 2000


async def test_without_room_an_answer_is_refused_and_a_stream_is_broken_off() -> None:
    budget, client = BodyBudget(len(LARGE), Metrics()), SlowClient()
    with budget.share() as other, budget.share() as share:
        other.reserve(10)
        answer = AnswerPieces(client, share, 60.0)
        await answer(make_start(len(LARGE)))
        await answer({"type": "http.response.body", "body": LARGE})
        assert client.parts[0]["status"] == 503
        assert (b"retry-after", b"1") in client.parts[0]["headers"]
        assert b"memory" in client.body
        assert LARGE not in client.body
        stream = AnswerPieces(SlowClient(), share, 60.0)
        await stream({"type": "http.response.start", "status": 200, "headers": []})
        with pytest.raises(ClientGone, match="broke off"):
            await stream({"type": "http.response.body", "body": LARGE, "more_body": True})
        assert share.size == 0


async def test_an_answer_that_is_read_slowly_is_broken_off_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SLOW_S", 0.0)
    budget, client = BodyBudget(len(LARGE), Metrics()), SlowClient(taken=2)
    with budget.share() as share, budget.share() as chat:
        answer = AnswerPieces(client, share, 60.0)
        await answer(make_start(len(LARGE)))
        sending = asyncio.ensure_future(answer({"type": "http.response.body", "body": LARGE}))
        await asyncio.sleep(0.01)
        assert not sending.done()
        chat.reserve(len(LARGE))
        with pytest.raises(ClientGone, match="broke off"):
            await sending
        assert (share.size, len(client.parts)) == (0, 2)


async def test_a_client_that_reads_nothing_is_disconnected() -> None:
    budget = BodyBudget(10 * len(LARGE), Metrics())
    with budget.share() as share:
        answer = AnswerPieces(SlowClient(taken=3), share, 0.01)
        await answer(make_start(len(LARGE)))
        with pytest.raises(ClientGone, match="took nothing"):
            await answer({"type": "http.response.body", "body": LARGE})
