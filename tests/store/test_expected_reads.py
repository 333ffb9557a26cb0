from __future__ import annotations

from proxy.store.expected_reads import ExpectedReads
from proxy.store.in_memory import InMemoryStore
from tests.store.conftest import RowFactory, digest

make = RowFactory()


async def test_a_store_without_a_network_reads_as_if_nothing_was_announced() -> None:
    store = InMemoryStore()
    await store.open()
    await store.put([*make.begin(), make.message(digest("a"))])
    store.expect_reads(ExpectedReads("t1", "s1", [digest("a")], []))
    assert list(await store.find_known_messages("t1", "s1", [digest("a")])) == [digest("a")]
    await store.put([make.message(digest("b"))])
    assert len(await store.read_messages("t1", "s1")) == 2
    await store.close()
