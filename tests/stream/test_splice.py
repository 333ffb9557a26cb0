from __future__ import annotations

import pytest

from proxy.stream.splice import Change, with_changes, with_head


@pytest.mark.parametrize("raw", [b'{"id": "1", "x": 1.50}', b'{"id":"1","x":1.50,"model":"m"}'])
def test_a_head_is_put_in_without_another_byte(raw: bytes) -> None:
    assert with_head(raw, {"id": b'"2"', "created": b"5"}) == raw.replace(b'"1"', b'"2"')


def test_calls_that_stay_keep_their_bytes() -> None:
    raw = b'{"choices":[{"index":0,"delta":{"x": 1.0,"tool_calls":[{"index":0,"y":1.50},{"index": 1,"z":2.50}]}}]}'
    assert with_changes(raw, "delta", {0: Change(calls=[(1, 0)])}) == (
        b'{"choices":[{"index":0,"delta":{"x": 1.0,"tool_calls":[{"index": 0,"z":2.50}]}}]}'
    )
