"""Token counts that a client asks upstream for: they are about the prompt that upstream would get.

`POST /v1/messages/count_tokens`, `POST /v1/responses/input_tokens`, Gemini's `:countTokens` and Vertex AI's
`count-tokens:rawPredict` count a prompt. Clients decide by that figure when they compact their history. The prompt is
planned like a request, in a copy of the services that stores nothing and changes nothing, and upstream counts the plan.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, cast

from proxy.errors import NotManaged, StoreUnavailable
from proxy.exchange import chains
from proxy.exchange.fallback import FallbackReason, forward_original, relay_unread
from proxy.exchange.handler import is_off, may_take_over
from proxy.exchange.prepare_request import prepare_request
from proxy.exchange.send_prompt import Sender
from proxy.exchange.services import Incoming, ResponseWriter, Services
from proxy.exchange.turn import Turn
from proxy.metrics import Metrics
from proxy.sessions.live import LiveSessions
from proxy.store.base import Row
from proxy.store.reads import Store
from proxy.upstream.client import Target, UpstreamRequest

log = logging.getLogger(__name__)

COUNT_PATHS: Final = ("/messages/count_tokens", "/responses/input_tokens", ":countTokens", "/count-tokens:rawPredict")
"""Ends of the paths that count a prompt."""
PLANNED_BRANCHES = 100
"""Limit on the branches that one count may read."""


class StoreWithoutWrites:
    """A store that is only read: rows that are put into it are gone at once."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def put(self, rows: Sequence[Row]) -> asyncio.Future[None]:  # noqa: ARG002 - the interface of a store
        """Store nothing."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    put_deferred = put

    def flush_deferred(self) -> None:
        """There is nothing to be written."""


async def handle_count(services: Services, incoming: Incoming, out: ResponseWriter) -> None:
    """Let upstream count the prompt that it would get. Raises UpstreamError while nothing has been sent yet."""
    reason = "off" if is_off(incoming) else incoming.unmanaged_reason
    planned: tuple[Turn, Target] | None = None
    if not reason:
        incoming = await chains.follow(
            services, incoming, may_take_over=may_take_over(services, incoming), has_answer=False
        )
        reason = "chain" if incoming.chain is not None and incoming.chain.is_held else ""
    if not reason:
        try:
            planned = await prepare_request(make_dry_services(services), incoming)
        except NotManaged as problem:
            reason = problem.reason
        except StoreUnavailable:
            reason = "store"
        except Exception:  # promise P4: the client's own prompt can be counted in any case; counted and logged
            services.metrics.internal_errors_total.labels(where="count").inc()
            log.exception("planning a count failed; the client's own prompt is counted")
            reason = "error"
    if planned is None:
        await forward_original(services, incoming, out, FallbackReason(reason))
        return
    turn, target = planned
    reply = await Sender(services, target, incoming).send(turn)
    if reply.status == 400 and turn.prompt.outgoing != incoming.body:
        await reply.close()
        request = UpstreamRequest(incoming.method, incoming.path, incoming.query, incoming.headers, incoming.body)
        reply = await services.client.send(target, request)
    await relay_unread(services, target.name, reply, out, list(reply.headers))


def make_dry_services(services: Services) -> Services:
    """A copy of the services with which a plan leaves nothing behind: no rows, no memory, no figures, no questions."""
    store = cast("Store", StoreWithoutWrites(services.store))
    return replace(
        services,
        store=store,
        live_sessions=LiveSessions(PLANNED_BRANCHES, store, lookup_s=services.live_sessions.lookup_s),
        metrics=Metrics(),
        helper_queue=None,
        conversations_with_edits=dict(services.conversations_with_edits),
        logged_warnings=set(services.logged_warnings),
    )
