"""Compactions of a history that a client asks the provider for: `POST /v1/responses/compact`.

A compaction is passed on as received, and its answer begins a new history.
"""

from __future__ import annotations

from typing import Final

from proxy.exchange import chains
from proxy.exchange.fallback import FallbackReason, forward_original
from proxy.exchange.handler import is_off, may_take_over, repair_compaction
from proxy.exchange.services import Incoming, ResponseWriter, Services

COMPACTION_PATHS: Final = ("/responses/compact",)
"""Ends of the paths that compact a history."""


async def handle_compaction(services: Services, incoming: Incoming, out: ResponseWriter) -> None:
    """Pass a compaction on as received, except for reasoning that led to a withheld call: it would be refused."""
    if not (is_off(incoming) or incoming.unmanaged_reason):
        incoming = await chains.follow(
            services, incoming, may_take_over=may_take_over(services, incoming), has_answer=False
        )
        incoming = await repair_compaction(services, incoming)
    reason = FallbackReason.OFF if is_off(incoming) else FallbackReason.COMPACTION
    await forward_original(services, incoming, out, reason)
