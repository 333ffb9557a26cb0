"""Records of iterations: once each, read back with what was reflected on them, whoever did and whenever it came."""

from __future__ import annotations

from msgspec.structs import replace

from proxy.store import encode, write_queue
from proxy.store.derived import HelperAnswerRow, IterationRow
from proxy.store.reads import Store
from tests.store.conftest import RowFactory
from tests.stores import count_rows

ROW = IterationRow("t1", "s1", "main", b"k1", 1, "", 1.0, b"{}")


def answer(ask: str, text: str, session: str = "s1") -> HelperAnswerRow:
    return HelperAnswerRow("t1", session, ask, "reflection", "m", 1, 2, 0.0, 3.0, text)


def test_the_row_fills_the_placeholders_of_its_statement() -> None:
    ((text, args),) = encode.build_statements([ROW])
    assert len(args[0]) == text.count("$")
    assert write_queue.count_bytes([replace(ROW, body=b"x" * 50)]) == 50 + write_queue.ROW_OVERHEAD


async def test_c1_an_iteration_is_stored_once_and_read_in_order(store: Store, make: RowFactory) -> None:
    second = replace(ROW, key=b"k2", number=2, created_at=2.0)
    await store.put([*make.begin(), second, ROW, replace(ROW, body=b"other"), replace(ROW, branch="fork")])
    found = await store.read_iterations("t1", "s1", "main")
    assert [(one.key, one.number, one.body, one.reflection) for one in found] == [
        (b"k1", 1, b"{}", None),
        (b"k2", 2, b"{}", None),
    ]
    record = await store.read_session("t1", "s1")
    assert record is not None
    assert record.counts["iterations"] == 3
    assert (await count_rows(store))["iterations"] == 3


async def test_c2_the_reflection_may_come_before_or_after_and_its_name_too(store: Store, make: RowFactory) -> None:
    await store.put([*make.begin(), ROW, replace(ROW, key=b"k2", number=2, ask="b", created_at=2.0)])
    await store.put([replace(ROW, ask="a"), answer("a", "x\ud800"), answer("b", "y", session="s2")])
    await store.put([ROW])
    found = await store.read_iterations("t1", "s1", "main")
    assert [(one.ask, one.reflection) for one in found] == [("a", "x\ud800"), ("b", None)]
    assert await store.read_iterations("t2", "s1", "main") == []
