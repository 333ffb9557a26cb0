from __future__ import annotations

from proxy.store import connect
from proxy.store.base import Store
from proxy.store.standing import Standing
from tests.store.conftest import Make


def test_only_a_server_is_shared() -> None:
    assert not connect(":memory:").shared
    assert not connect("store.sqlite3").shared
    assert connect("postgresql://nobody@127.0.0.1:1/none").shared


async def test_where_a_thread_stands_is_what_was_stored_last(store: Store, make: Make) -> None:
    await store.put([*make.begin(), make.edit(b"k1"), make.edit(b"k2"), make.state(b"k3", "text")])
    await store.put([make.thread("other"), make.edit(b"k1", thread="other")])
    assert await store.standing("t1", "s1", "main") == Standing(b"", None, 1.0, 2, 1)
    await store.put([make.head(b"head", 2.25)])
    assert await store.standing("t1", "s1", "main") == Standing(b"head", b"answer", 2.25, 2, 1)
    assert await store.standing("t1", "s1", "other") == Standing(b"", None, 1.0, 1, 0)
    for place in (("t1", "s1", "nobody"), ("t1", "s2", "main"), ("t2", "s1", "main")):
        assert await store.standing(*place) is None


async def test_the_system_prompts_of_a_session(store: Store, make: Make) -> None:
    await store.put([*make.begin(), make.thread("other")])
    assert await store.systems("t1", "s1") == [b"system"]
    assert await store.systems("t1", "s2") == await store.systems("t2", "s1") == []


async def test_how_the_newest_request_at_a_message_came_out(store: Store, make: Make) -> None:
    await store.put([*make.begin(), make.exchange("x1", at=1.0), make.outcome("x1")])
    assert await store.last_status("t1", "s1", "main", b"head") == "complete"
    await store.put([make.exchange("x2", at=2.0)])
    assert await store.last_status("t1", "s1", "main", b"head") == "open"
    assert await store.last_status("t1", "s1", "main", b"another") == ""
