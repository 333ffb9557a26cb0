"""A broken binding is found, the run to strip has no gap, and a hash sees values rather than their JSON form."""

from __future__ import annotations

from typing import Any

from proxy.dialects.base import Binding, BindingTrace, ChainHash, extend_to_newest, find_broken

A, B = Binding(b"s", b"1", ""), Binding(b"s", b"2", "a")


def _hash(*values: Any) -> bytes:
    made = ChainHash()
    for value in values:
        made.add(value)
    return made.value


def test_a_token_is_broken_if_its_prompt_has_changed_and_is_not_judged_if_unknown() -> None:
    changed = Binding(b"s", b"3", "a")
    assert find_broken({"a": A, "b": changed, "c": changed}, {"a": A, "b": B}) == ["b"]
    assert find_broken({"a": A, "b": B}, {"a": A, "b": B}) == []
    assert find_broken({"b": Binding(b"s", b"2", "")}, {"b": B}) == [], "the reasoning in front has left"
    assert find_broken({"b": Binding(b"s", b"2", "z")}, {"b": B}) == ["b"], "other reasoning has come between"
    assert find_broken({"b": B}, {"b": Binding(b"s", b"2", "")}) == ["b"], "reasoning that had left was put back"
    assert find_broken({"a": Binding(b"t", b"1", "")}, {"a": A}) == ["a"], "the tools have changed"


def test_the_run_to_strip_goes_from_the_first_broken_token_to_the_newest() -> None:
    assert extend_to_newest(["a", "b", "c", "d"], ["c", "b"]) == ["b", "c", "d"]
    assert extend_to_newest(["a", "b"], []) == []


def test_a_chain_hash_sees_values_and_their_limits() -> None:
    assert _hash({"a": 1, "b": [2]}) == _hash({"b": [2], "a": 1})
    assert _hash({"a": 1}) != _hash({"a": 2})
    assert _hash("ab", "c") != _hash("a", "bc")
    assert _hash(["a"], ["b"]) != _hash(["b"], ["a"])


def test_a_trace_continues_where_another_one_ended() -> None:
    whole, begun = BindingTrace(ChainHash()), BindingTrace(ChainHash())
    for trace in (whole, begun):
        trace.add("a")
        trace.add_token("t1")
        trace.add("b")
    later = begun.copy()
    for trace in (whole, later):
        trace.add("c")
        trace.add_token("t2")
    assert later.bindings == {"t2": whole.bindings["t2"]}
    assert whole.bindings["t2"].after == "t1"
    assert list(begun.bindings) == ["t1"], "the trace that was copied is as it was"
