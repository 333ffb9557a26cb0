from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.exchange.fallback import REASON_TEXTS, FallbackReason
from tests.faulty import faulty
from tests.running import running
from tests.scripted import Scripted

HELLO: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"{", FallbackReason.UNREADABLE),
        (b'{"model": "m", "messages": 5}', FallbackReason.SHAPE),
        (json.dumps(HELLO | {"messages": HELLO["messages"] * 40}).encode(), FallbackReason.SIZE),
    ],
)
async def test_a_request_that_is_not_managed_goes_out_byte_for_byte_with_its_reason(
    body: bytes, reason: FallbackReason
) -> None:
    model = Scripted("Well.")
    async with faulty(model) as upstream, running(upstream.port, limits={"messages": 30}) as proxy:
        found = await proxy.post(body)
        assert found.header("x-context-fallback") == reason
        assert proxy.count("fallbacks_total", reason=reason) == 1
        assert await proxy.outcomes() == []
    assert [request.body for request in model.received] == [body]


def test_a_word_that_is_no_reason_is_an_error_of_ours() -> None:
    assert FallbackReason("chain") is FallbackReason.CHAIN
    assert FallbackReason("a word of somebody's own stage") is FallbackReason.ERROR
    with pytest.raises(ValueError, match="5"):
        FallbackReason(5)  # type: ignore[arg-type]


def test_each_reason_is_explained_in_the_order_of_the_reasons() -> None:
    assert list(REASON_TEXTS) == list(FallbackReason)
    assert all(text.endswith(".") for text in REASON_TEXTS.values())
