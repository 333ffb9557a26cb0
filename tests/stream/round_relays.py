"""Rounds of one answer through the relays of Messages and of Gemini, which share `proxy.stream.round_relay`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from proxy.stream.answer_relay import RelayOptions
from proxy.stream.gemini_relay import GeminiRelay
from proxy.stream.messages_relay import MessagesRelay

R = TypeVar("R", GeminiRelay, MessagesRelay)


def relay_rounds(
    relay_class: type[R], streams: Iterable[bytes], *, step: int = 0, stop: bool = False, **options: Any
) -> tuple[bytes, R]:
    """(what the client gets, the last relay) of an answer of these rounds, fed in pieces of `step` bytes.

    stop: the answer is ended although the last round would go on.
    """
    relay, out = None, b""
    for one in streams:
        relay = relay_class(RelayOptions(**options), relay)
        for at in range(0, len(one), step or len(one) or 1):
            out += relay.feed(one[at : at + (step or len(one))])
        out += relay.end()
    assert relay is not None
    if stop:
        out += relay.end_answer()
    return out + relay.terminal, relay


def read_canonical(message: bytes | None) -> Sequence[Any]:
    """(role, text, ids of calls) of a canonical message."""
    assert message is not None
    value = json.loads(message)
    return value["role"], value["content"], [one["id"] for one in value.get("tool_calls", ())]
