"""Calls that do the same have one signature."""

from __future__ import annotations

import pytest

from proxy.chat.message import Call
from proxy.context.analysis.call_signature import normalize_arguments, sign_call


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"a":1,"b":2}', '{ "b": 2, "a": 1 }'),
        ("not json", "not   json"),
        ('{"path":"./a.py"}', '{"path": "a.py"}'),
        ('{"command":["ls  -l"]}', '{"command":["ls -l "]}'),
    ],
)
def test_equivalent_arguments_have_one_signature(one: str, other: str) -> None:
    assert normalize_arguments(one) == normalize_arguments(other)


def test_arguments_that_differ_stay_different() -> None:
    assert normalize_arguments('{"a":1}') != normalize_arguments('{"a":"1"}')
    assert sign_call(Call("x", "read", "{}")) != sign_call(Call("x", "write", "{}"))
    assert sign_call(Call("x", "read", "{}")) == sign_call(Call("y", "read", "{ }"))
