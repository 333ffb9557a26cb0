"""The prompts that reasoning is bound to, in the store."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from proxy.store import bindings
from proxy.store.bindings import BindingRow
from proxy.store.reads import Store
from tests.store.conftest import RowFactory


def binding(n: int, session: str = "s1", tenant: str = "t1") -> BindingRow:
    return BindingRow(tenant, session, b"token %d" % n, b"tools", b"chain %d" % n, b"", b"client", float(n))


@pytest.mark.usefixtures("begun")
async def test_a_binding_is_stored_once_and_stays_as_it_was_first(store: Store, make: RowFactory) -> None:
    await store.put([*make.begin(), binding(2), binding(1)])
    await store.put([replace(binding(1), chain=b"another"), binding(3, session="s2"), binding(4, tenant="t2")])
    assert await store.read_bindings("t1", "s1") == [binding(1), binding(2)]
    assert await store.read_bindings("t1", "s2") == [binding(3, session="s2")]
    assert await store.read_bindings("t3", "s1") == []


async def test_the_newest_ones_are_read_back(store: Store, make: RowFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.store.reads.MAX_BINDINGS", 2)
    assert bindings.MAX_BINDINGS > 1000
    await store.put([*make.begin(), *map(binding, range(4))])
    assert await store.read_bindings("t1", "s1") == [binding(2), binding(3)]
