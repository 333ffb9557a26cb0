from __future__ import annotations

import pytest

from proxy.exchange.import_conversations import import_conversation, read_conversation
from proxy.operator import savings, session_stats
from proxy.operator.timeline import make_timeline_cache
from tests.operator.agent import run_conversation


async def test_the_sums_are_those_of_the_session_and_begin_where_they_are_told_to() -> None:
    async with run_conversation("rolling") as talk:
        model = type(talk.parts.models[0])("m", window=1000, input=1.0, output=2.0, w=1.0, r=0.1, min=0, block=1)
        talk.parts.models_by_name["m"] = model
        stats = await session_stats.compute_stats(talk.parts, talk.tenant, "s")
        made = await savings.sum_savings(talk.parts, talk.tenant, 0.0)
        assert (made.requests, made.unpriced, made.without_usage, made.open_requests) == (stats.exchanges, 0, 0, 0)
        assert stats.cost is not None
        assert made.cost == pytest.approx(stats.cost)
        assert made.cost_without == pytest.approx(stats.cost_without)
        [(before, after)] = await talk.proxy.rows("SELECT sum(tokens_before), sum(tokens_after) FROM exchanges")
        assert (made.tokens_before, made.tokens_after) == (before, after)
        [(third,)] = await talk.proxy.rows("SELECT started_at FROM exchanges ORDER BY started_at LIMIT 1 OFFSET 2")
        assert (await savings.sum_savings(talk.parts, None, third)).requests == made.requests - 2
        assert (await savings.sum_savings(talk.parts, "another", 0.0)).requests == 0


async def test_requests_without_a_price_are_counted_and_their_models_named() -> None:
    async with run_conversation("passthrough") as talk:
        made = await savings.sum_savings(talk.parts, talk.tenant, 0.0)
        assert (made.unpriced, made.unpriced_models, made.cost) == (made.requests, ["m"], 0.0)
        assert made.tokens_before == made.tokens_after > 0


async def test_requests_that_failed_are_counted_apart() -> None:
    async with run_conversation("passthrough") as talk:
        before = await savings.sum_savings(talk.parts, talk.tenant, 0.0)
        await talk.proxy.rows("UPDATE exchanges SET status = 'failed', prompt_tokens = NULL, meter = NULL")
        made = await savings.sum_savings(talk.parts, talk.tenant, 0.0)
    assert (before.failed, made.failed, made.without_usage, made.unpriced) == (0, before.requests, 0, 0)
    assert before.requests > 0


async def test_an_imported_conversation_is_not_a_request() -> None:
    async with run_conversation("passthrough") as talk:
        before = await savings.sum_savings(talk.parts, talk.tenant, 0.0)
        old = [b'{"role":"user","content":"One."}', b'{"role":"assistant","content":"First."}']
        await import_conversation(talk.parts, talk.tenant, read_conversation("old", old))
        assert await savings.sum_savings(talk.parts, talk.tenant, 0.0) == before
        items = await talk.parts.store.list_sessions(talk.tenant)
        told = await make_timeline_cache().find(talk.parts, next(one for one in items if one.session == "old"))
        assert told is not None
        assert told.periods == [], "the page Money adds up periods"


async def test_more_sessions_than_are_added_up_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(savings, "MAX_SESSIONS", 0)
    async with run_conversation("passthrough") as talk:
        made = await savings.sum_savings(talk.parts, talk.tenant, 0.0)
        assert (made.more, made.requests) == (True, 0)
