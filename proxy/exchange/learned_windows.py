"""The context windows that upstreams name: learned from a refusal, kept by tenant, upstream and model, stored.

A refusal may repeat a value of the client's request, so it is not believed for other tenants. Upstreams also give
accounts different windows of one model.

A refusal can name the window of an unknown model. It can also name a smaller window than config/models.toml has: a
self-hosted server is started with the window that its memory allows. It also reports how many tokens the upstream
counts where we count fewer.
"""

from __future__ import annotations

import logging
from collections.abc import MutableMapping

from proxy.errors import StoreUnavailable
from proxy.exchange.services import LearnedWindow, ModelKey, Services
from proxy.exchange.turn import Turn
from proxy.store.derived import NO_SESSION, ContextWindowRow
from proxy.stream.overflow_errors import read_overflow

log = logging.getLogger(__name__)

WINDOW_TTL_S = 7 * 86400.0
"""Seconds for which a window is believed: an upstream may come back with a larger one, unreported."""
GUESSED_WINDOW_TTL_S = 60.0
"""Seconds for which the size of a prompt is believed that was refused without a number."""
MAX_WINDOWS = 1000
"""Limit on the windows that are remembered."""
MAX_RATIO = 2.0
"""Factor by which the upstream's count may be above ours. A named window that exceeds the prompt by more than this
factor was not named because of this prompt."""


def find_window(services: Services, key: ModelKey) -> int | None:
    """The window that an upstream has named to a tenant for a model, in tokens of our count; None where it has not."""
    window = services.learned_windows.get(key)
    if window is None or services.now() - window.seen_at > WINDOW_TTL_S:
        return None
    return int(window.tokens / window.ratio)


async def load_windows(services: Services) -> None:
    """Read back the windows that were learned before. Without the store they are learned again."""
    try:
        rows = await services.store.read_context_windows(services.now() - WINDOW_TTL_S)
    except StoreUnavailable:
        services.metrics.internal_errors_total.labels(where="learned_windows").inc()
        log.warning("the context windows that upstreams have named cannot be read; they are learned again")
        return
    for row in rows:
        services.learned_windows[row.tenant, row.upstream, row.model] = LearnedWindow(row.tokens, row.seen_at)


def learn_window(services: Services, turn: Turn, body: bytes) -> bool:
    """Remember the window that an error names for the turn's model. True if the prompt was too long."""
    overflow = read_overflow(body)
    if overflow is None:
        return False
    sent = max(1, turn.prompt.sent_tokens)
    now, key = services.now(), turn.model_key
    if overflow.window_tokens is None:
        known = find_window(services, key)
        if known is None or known > sent:  # so many tokens are too many; the real limit is not reported
            _remember(services.learned_windows, key, LearnedWindow(sent, now - WINDOW_TTL_S + GUESSED_WINDOW_TTL_S))
        return True
    if overflow.window_tokens > MAX_RATIO * (sent + (turn.request.max_tokens or 0)):
        return False
    before = services.learned_windows.get(key)
    ratio = min(MAX_RATIO, max(1.0, (overflow.prompt_tokens or 0) / sent, before.ratio if before is not None else 1.0))
    _remember(services.learned_windows, key, LearnedWindow(overflow.window_tokens, now, ratio))
    if before is None or before.tokens != overflow.window_tokens:
        log.info(
            "upstream %s names a window of %d tokens for %r", turn.upstream, overflow.window_tokens, turn.request.model
        )
    services.store.put_deferred([ContextWindowRow(key[0], NO_SESSION, *key[1:], overflow.window_tokens, now)])
    return True


def _remember(windows: MutableMapping[ModelKey, LearnedWindow], key: ModelKey, window: LearnedWindow) -> None:
    windows.pop(key, None)
    windows[key] = window
    if len(windows) > MAX_WINDOWS:
        del windows[next(iter(windows))]
