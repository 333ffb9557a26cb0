"""The vocabulary of the model that was used last, read soon after the start.

A vocabulary is read by one call of a library that holds the interpreter's lock for 300 ms. No other request is served
meanwhile. A new process that waits for its first chat reads it before that chat comes. A store without a conversation
names no model, and its process reads a vocabulary when a request needs it.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from proxy.chat.json_spans import decode_model_name
from proxy.errors import StoreUnavailable
from proxy.exchange.lookups import look_up_model
from proxy.exchange.services import Services

log = logging.getLogger(__name__)

QUIET_S: Final = 1.0
"""Seconds after the start: the first probes and connections are answered before."""


async def read_last_vocabulary(services: Services) -> None:
    """Read the vocabulary of the last conversation's model, unless a request has needed one already."""
    await asyncio.sleep(QUIET_S)
    if services.warm_counters or services.open_requests:
        return
    try:
        sessions = await services.store.list_sessions(None, limit=1)
        branches = [
            branch for one in sessions for branch in await services.store.read_branch_lengths(one.tenant, one.session)
        ]
    except StoreUnavailable as problem:
        log.info("the model that was used last is not known: %s", problem)
        return
    name = decode_model_name(branches[0].envelope) if branches else None
    if name is not None and not (services.warm_counters or services.open_requests):
        token_counter = services.find_token_counter(look_up_model(services, name))
        await asyncio.get_running_loop().run_in_executor(services.workers, token_counter.count_text, "a")
        services.warm_counters.add(id(token_counter))
