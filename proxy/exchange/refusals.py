"""The words of a refusal, and the models that are remembered for one.

A refusal may repeat a value of the client's, and upstreams allow one account what they refuse another. So it is
remembered for the tenant whose request was refused."""

from __future__ import annotations

from typing import Final

from proxy.errors import UpstreamError
from proxy.exchange.services import ERROR_BODY_BYTES, ModelKey
from proxy.upstream.client import Reply

MAX_REMEMBERED_MODELS: Final = 1000
"""Limit of the models of which a fact is remembered. Clients choose the names of models."""


async def peek_refusal(reply: Reply) -> bytes:
    """The body of an error, which can still be passed on; b"" if it cannot be read."""
    if reply.encoding:
        return b""
    try:
        return await reply.peek_body(ERROR_BODY_BYTES)
    except UpstreamError:
        return b""


def remember_model(known: set[ModelKey], key: ModelKey) -> None:
    """Add a model. The others are forgotten if there are too many."""
    make_room(known)
    known.add(key)


def make_room(known: set[ModelKey] | dict[ModelKey, bool]) -> None:
    """Forget all models if there are too many."""
    if len(known) >= MAX_REMEMBERED_MODELS:
        known.clear()
