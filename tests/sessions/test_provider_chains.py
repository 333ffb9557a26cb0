from __future__ import annotations

from dataclasses import replace

from proxy.dialects.responses.chained import ChainParameters
from proxy.sessions.provider_chains import NOTHING_KNOWN, Chain, HistoryMemory, ItemMemory, KnownHistory


def history(*messages: bytes, session: str = "s1") -> KnownHistory:
    return KnownHistory(session, messages, is_known=True, is_whole=True, at_provider=False)


def test_the_newest_of_a_chain_is_remembered_within_a_bound() -> None:
    memory = HistoryMemory(10)
    memory.put("t", "resp_1", history(b"four"))
    assert memory.get("t", "resp_1") == history(b"four")
    assert memory.get("u", "resp_1") is None
    memory.put("t", "resp_2", history(b"four", b"four"), follows="resp_1")
    assert memory.get("t", "resp_1") is None
    assert memory.size == 8
    memory.put("t", "other", history(b"123"))
    assert memory.get("t", "resp_2") is None, "the oldest went"
    memory.put("t", "other", history(b"12345"))
    assert memory.size == 5
    memory.put("t", "long", history(b"x" * 11))
    assert (memory.get("t", "long"), memory.size) == (None, 0)
    memory.remove("t", "long")


def test_a_session_is_forgotten_with_all_its_names() -> None:
    memory = HistoryMemory()
    for name, session in (("a", "s1"), ("b", "s2"), ("c", "s1")):
        memory.put("t", name, history(b"1", session=session))
    memory.put("u", "a", history(b"1"))
    memory.remove_session("t", "s1")
    assert [memory.get("t", name) is not None for name in "abc"] == [False, True, False]
    assert memory.get("u", "a") is not None
    assert memory.size == 2


def test_items_are_remembered_within_a_bound_and_forgotten_with_their_session() -> None:
    memory = ItemMemory(10)
    memory.put("t", "s1", "msg_1", b"four")
    memory.put("t", "s2", "msg_2", b"four")
    assert (memory.get("t", "msg_1"), memory.get("u", "msg_1"), memory.size) == (b"four", None, 8)
    memory.put("t", "s2", "msg_2", b"12345")
    memory.put("t", "s1", "msg_3", b"12")
    assert [memory.get("t", f"msg_{n}") for n in (1, 2, 3)] == [None, b"12345", b"12"], "the oldest went"
    memory.remove_session("t", "s2")
    assert (memory.get("t", "msg_2"), memory.size) == (None, 2)
    memory.remove("t", "msg_9")


def test_a_chain_says_where_its_history_is() -> None:
    held = Chain(ChainParameters("resp_1"), b"")
    assert (held.is_held, held.is_ours, held.word) == (True, False, "provider, unknown")
    known = replace(held, history=replace(NOTHING_KNOWN, is_known=True))
    assert known.word == "provider"
    taken = replace(known, is_taken_over=True, is_whole=True)
    assert (taken.is_held, taken.is_ours, taken.word) == (False, True, "taken over")
    begun = Chain(ChainParameters(), b"")
    assert (begun.is_held, begun.is_ours, begun.word) == (False, False, "")
    assert replace(begun, is_resolved=True).word == "taken over", "items that it refers to came from the store"
    assert not replace(begun, adds_encrypted=True).is_ours, "items that cannot be written again stay at the provider"
    assert replace(begun, is_whole=True).is_ours


def test_a_chain_says_why_nothing_may_be_changed() -> None:
    held = Chain(ChainParameters("resp_1", is_background=True), b"")
    assert held.unchanged_reason == "chain"
    assert replace(held, is_taken_over=True).unchanged_reason == "background"
    assert Chain(ChainParameters(), b"").unchanged_reason == ""
