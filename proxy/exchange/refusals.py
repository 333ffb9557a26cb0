"""The words of a refusal, and the models that are remembered for one."""

from __future__ import annotations

from typing import Final

from proxy.errors import UpstreamError
from proxy.exchange.services import ERROR_BODY_BYTES
from proxy.upstream.client import Reply

MAX_REMEMBERED_MODELS: Final = 1000
"""Limit of the pairs of upstream and model of which a fact is remembered. Clients choose the names of models."""


async def peek_refusal(reply: Reply) -> bytes:
    """The body of an error, which can still be passed on; b"" if it cannot be read."""
    if reply.encoding:
        return b""
    try:
        return await reply.peek_body(ERROR_BODY_BYTES)
    except UpstreamError:
        return b""


def remember_model(known: set[tuple[str, str]], upstream: str, model: str) -> None:
    """Add an upstream and a model. The others are forgotten if there are too many."""
    if len(known) >= MAX_REMEMBERED_MODELS:
        known.clear()
    known.add((upstream, model))
