from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from proxy.context.models import Model
from proxy.operator.exchange_table import ExchangeLine, read_exchange_lines
from proxy.store.in_memory import InMemoryStore
from tests.store.conftest import RowFactory

MODELS = (Model("gpt-5", window=1000, input=1.0, output=2.0, w=1.0, r=0.1, min=0, block=1),)


async def read(store: InMemoryStore, since: float = 0.0, until: float = 1e12, tenant: str = "") -> list[ExchangeLine]:
    return [line async for lines in read_exchange_lines(store, MODELS, since, until, tenant) for line in lines]


async def test_every_exchange_is_one_line_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.operator.exchange_table.PAGE_SIZE", 3)
    store = InMemoryStore()
    await store.open()
    wanted = []
    for tenant in ("t1", "t2"):
        for session in range(5):
            make = RowFactory(tenant, f"s{session}")
            rows: list[Any] = [*make.begin()]
            for n in range(session + 1):
                rows += [
                    replace(make.exchange(f"x{n}", 10.0 + n // 2), inserts=b'{"arm":"control"}'),  # two at one time
                    make.outcome(f"x{n}", 20.0 + n),
                ]
                wanted.append((tenant, f"s{session}", f"x{n}"))
            await store.put([*rows, make.tip(b"tip", 30.0)])
    found = await read(store)
    assert [(line.tenant, line.session, line.exchange) for line in found] == wanted
    assert {line.arm for line in found} == {"control"}
    assert [line.cost for line in found] == [pytest.approx((200 + 70 + 100) / 1e6)] * len(found)
    assert [line.total_ms for line in found if line.session == "s0"] == [10_000.0] * 2
    assert {line.tenant for line in await read(store, tenant="t1")} == {"t1"}
    assert len(await read(store, tenant="t1")) == 15
    first, rest = await read(store, until=11.0), await read(store, since=11.0)
    assert len(first) + len(rest) == len(found), "the next export goes on where the last one ended"
    assert {line.started_at for line in first} == {10.0}
    assert await read(store, since=40.0) == []
    await store.close()


async def test_unknown_figures_of_an_exchange_are_missing() -> None:
    store = InMemoryStore()
    await store.open()
    make = RowFactory()
    await store.put([*make.begin(), replace(make.exchange("x1", model="dear"), inserts=b"{}")])
    (line,) = await read(store)
    assert (line.status, line.cost, line.prompt_tokens, line.ended_at, line.arm) == ("open", None, None, None, "")
    await store.close()


async def test_an_imported_conversation_has_no_line() -> None:
    make, store = RowFactory(), InMemoryStore()
    await store.open()
    imported = replace(make.outcome("x1"), prompt_tokens=None, note="imported")
    first, second = (replace(make.exchange(f"x{n}", 5.0 + n), inserts=b"{}") for n in (1, 2))
    await store.put([*make.begin(), first, imported, second, make.outcome("x2", 8.0), make.tip(b"tip", 30.0)])
    assert [line.exchange for line in await read(store)] == ["x2"]
    await store.close()
