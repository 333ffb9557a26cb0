"""The context windows that upstreams name: learned from a refusal, kept by upstream and model, stored.

A refusal can name the window of an unknown model. It can also name a smaller window than config/models.toml has: a
self-hosted server is started with the window that its memory allows. It also reports how many tokens the upstream
counts where we count fewer.
"""

from __future__ import annotations

import logging
from collections.abc import MutableMapping

from proxy.errors import StoreUnavailable
from proxy.exchange.parts import Named, Parts
from proxy.exchange.turn import Turn
from proxy.store.derived import OPERATOR, WindowRow
from proxy.stream.overflow import read_overflow

log = logging.getLogger(__name__)

KEPT_S = 7 * 86400.0
"""Seconds for which a window is believed: an upstream may be started again with a larger one, and does not report
that."""
SHORTLY_S = 60.0
"""Seconds for which the size of a prompt is believed that was refused without a number."""
MOST = 1000
"""Limit on the windows that are remembered."""
APART = 2.0
"""Factor by which the upstream's count may be above ours. A named window that exceeds the prompt by more than this
factor was not named because of this prompt."""


def named(parts: Parts, upstream: str, model: str) -> int | None:
    """The window that an upstream has named for a model, in tokens of our count; None where it has not."""
    found = parts.limits.get((upstream, model))
    if found is None or parts.now() - found.seen_at > KEPT_S:
        return None
    return int(found.tokens / found.ratio)


async def load(parts: Parts) -> None:
    """Read back the windows that were learned before. Without the store they are learned again."""
    try:
        rows = await parts.store.windows(parts.now() - KEPT_S)
    except StoreUnavailable:
        parts.metrics.swallowed_total.labels(where="windows").inc()
        log.warning("the context windows that upstreams have named cannot be read; they are learnt again")
        return
    for row in rows:
        parts.limits[row.upstream, row.model] = Named(row.tokens, row.seen_at)


def learn(parts: Parts, turn: Turn, body: bytes) -> bool:
    """Remember the window of the turn's model that an error names. True if the error says that the prompt is too
    long."""
    found = read_overflow(body)
    if found is None:
        return False
    sent = max(1, turn.sent)
    now, place = parts.now(), (turn.upstream, turn.request.model)
    if found.window is None:
        known = named(parts, *place)
        if known is None or known > sent:  # so many tokens are too many; the real limit is not reported
            _remember(parts.limits, place, Named(sent, now - KEPT_S + SHORTLY_S))
        return True
    if found.window > APART * (sent + (turn.request.max_tokens or 0)):
        return False
    before = parts.limits.get(place)
    ratio = min(APART, max(1.0, (found.prompt or 0) / sent, before.ratio if before is not None else 1.0))
    _remember(parts.limits, place, Named(found.window, now, ratio))
    if before is None or before.tokens != found.window:
        log.info("upstream %s names a window of %d tokens for %r", turn.upstream, found.window, turn.request.model)
    parts.store.later([WindowRow(*OPERATOR, turn.upstream, turn.request.model, found.window, now)])
    return True


def _remember(limits: MutableMapping[tuple[str, str], Named], place: tuple[str, str], window: Named) -> None:
    limits.pop(place, None)
    limits[place] = window
    if len(limits) > MOST:
        del limits[next(iter(limits))]
