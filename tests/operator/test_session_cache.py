from __future__ import annotations

from collections.abc import Sequence

from proxy.exchange.services import Services
from proxy.operator.session_cache import SessionCache
from proxy.store.base import ExchangeRecord
from proxy.store.session_lists import SessionItem
from tests.operator.agent import run_conversation


async def test_a_value_is_computed_once_until_its_session_is_forgotten() -> None:
    computed: list[str] = []

    async def count_exchanges(_: Services, item: SessionItem, exchanges: Sequence[ExchangeRecord]) -> int:
        computed.append(item.session)
        return len(exchanges)

    async with run_conversation("thrifty") as talk:
        cache = SessionCache(count_exchanges, limit=1)
        (item,) = await talk.parts.store.list_sessions(talk.tenant)
        assert await cache.find(talk.parts, item) == await cache.find(talk.parts, item) == item.exchanges
        assert computed == ["s"]
        talk.agent.lines = (b"x-context-session: other",)
        await talk.ask()
        await talk.proxy.outcome()
        other = next(one for one in await talk.parts.store.list_sessions(talk.tenant) if one.session == "other")
        assert await cache.find(talk.parts, other) == other.exchanges
        assert await cache.find(talk.parts, item) == item.exchanges
        assert computed == ["s", "other", "s"]
