"""One way back: the reasons for which a request goes out without its plan, and the functions that send the original.

A request never fails because of the proxy. If anything goes wrong before the first byte has reached the client, its
original bytes go upstream. A header and a counter give the reason.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from proxy.chat.json_spans import decode_model_name, has_more_values, scan_model_name
from proxy.errors import UpstreamBroken, UpstreamTimeout
from proxy.exchange import publish_events
from proxy.exchange.dialect import DIALECTS, repair_cut_answers
from proxy.exchange.services import LARGE_BODY_BYTES, Headers, Incoming, ResponseWriter, Services
from proxy.exchange.turn import Turn
from proxy.upstream.client import Reply, UpstreamRequest

log = logging.getLogger(__name__)


class FallbackReason(StrEnum):
    """The value of `x-context-fallback`, and of the label `reason`; `REASON_TEXTS` explains each."""

    OFF = "off"
    SIZE = "size"
    SHAPE = "shape"
    UNREADABLE = "unreadable"
    CHAIN = "chain"
    BACKGROUND = "background"
    COMPACTION = "compaction"
    ROWS = "rows"
    DIALECT = "dialect"
    ENCODING = "encoding"
    STORE = "store"
    TIMEOUT = "timeout"
    RULE = "rule ID"
    ERROR = "error"
    UPSTREAM_REJECT = "upstream_reject"
    BOUND = "bound"
    ROUNDS = "rounds"

    @classmethod
    def _missing_(cls, value: object) -> FallbackReason | None:
        """A reason that a third-party stage has made up counts as an error."""
        return cls.ERROR if isinstance(value, str) else None


REASON_TEXTS: Final[Mapping[FallbackReason, str]] = {
    FallbackReason.OFF: "The client asked for it with `x-context-off`.",
    FallbackReason.SIZE: (
        "The body is over one of `limits.managed_mb`, `limits.messages`, `limits.parts`, "
        "`limits.calls`, `limits.values`, or has too many keys on its outermost level (see limits)."
    ),
    FallbackReason.SHAPE: "The body is JSON but no chat request that the proxy knows.",
    FallbackReason.UNREADABLE: "The body or a message in it is not valid JSON.",
    FallbackReason.CHAIN: "The provider holds the history of the request, so the proxy cannot shorten it.",
    FallbackReason.BACKGROUND: (
        "The answer is made in the background, and fetched past the proxy. So nothing is changed in front of it."
    ),
    FallbackReason.COMPACTION: "The request asks the provider to compact its history.",
    FallbackReason.ROWS: (
        "Neither results nor answers are among the messages of a gateway, so there is nothing to shorten."
    ),
    FallbackReason.DIALECT: (
        "The client's wire format has no room for the plan, or its provider would refuse it. The log says why."
    ),
    FallbackReason.ENCODING: "The body is compressed in a way that the proxy cannot read.",
    FallbackReason.STORE: "The store did not answer in time.",
    FallbackReason.TIMEOUT: (
        "Planning took longer than `limits.plan_ms`. The edits of earlier requests are repeated, without new ones."
    ),
    FallbackReason.RULE: (
        "The plan broke a rule of strict upstreams. `context_proxy_refusals_total` counts each rule."
    ),
    FallbackReason.ERROR: "A fault of the proxy, counted in `context_proxy_internal_errors_total` and logged.",
    FallbackReason.UPSTREAM_REJECT: (
        "The upstream refused the rewritten request with a 400 or 422. The original was sent once more."
    ),
    FallbackReason.BOUND: (
        "Reasoning is bound to another prompt: the upstream refused it, or would have. The request went out without it."
    ),
    FallbackReason.ROUNDS: (
        "A hidden round of the proxy's tools could not be finished. The original request was asked in its place."
    ),
}


def count_fallback(services: Services, reason: str) -> None:
    """Count that a request goes out without its plan."""
    services.metrics.fallbacks_total.labels(reason=reason).inc()


def use_original(services: Services, turn: Turn, reason: FallbackReason) -> Turn:
    """Return the turn with the client's own bytes as its prompt. The plan stays on record. The reason is counted."""
    count_fallback(services, reason)
    turn = turn.without_tools()
    return turn.with_prompt(outgoing=turn.original, unmarked=b"", usage_added=False, fallback=reason)


async def forward_original(
    services: Services, incoming: Incoming, out: ResponseWriter, reason: FallbackReason, *, identity: bool = False
) -> None:
    """Send the client's bytes upstream and upstream's bytes back, with the reason in a header. Nothing is stored.
    identity: the answer is not to be compressed, because `out` reads it.

    Bytes that are refused with a 400 go out once more in a repaired form, if an answer in them was cut by the proxy.
    The client has a hidden round's reasoning without its call, and cannot know.
    """
    count_fallback(services, reason)
    incoming.log_fields["fallback"] = reason
    publish_events.publish_fallback(services, incoming, reason)
    target = services.client.route_request(incoming.path, await _read_model(services, incoming))
    headers, body = incoming.encoded or (incoming.headers, incoming.body)
    reply = await services.client.send(
        target, UpstreamRequest(incoming.method, incoming.path, incoming.query, headers, body), identity=identity
    )
    if reply.status == 400 and (repaired := await repair_answers(services, incoming)) != incoming.body:
        await reply.close()
        reply = await services.client.send(
            target,
            UpstreamRequest(incoming.method, incoming.path, incoming.query, incoming.headers, repaired),
            identity=identity,
        )
    await relay_unread(services, target.name, reply, out, [*reply.headers, (b"x-context-fallback", reason.encode())])


async def repair_answers(services: Services, incoming: Incoming) -> bytes:
    """Return the client's body in a form in which answers that were cut can be sent again. A body with more values than
    a managed one may have is not decoded: it is returned as received."""
    dialect = DIALECTS[incoming.dialect]
    if has_more_values(incoming.body, services.settings.limits.values):
        return incoming.body
    if len(incoming.body) < LARGE_BODY_BYTES:
        return repair_cut_answers(dialect, incoming.body)
    return await asyncio.get_running_loop().run_in_executor(
        services.workers, repair_cut_answers, dialect, incoming.body
    )


async def relay_unread(services: Services, upstream: str, reply: Reply, out: ResponseWriter, headers: Headers) -> None:
    """Pass an answer on as it comes, without reading it, and close the reply. headers: those for the client."""
    try:
        await out.start(reply.status, headers)
        async for data in reply.iter_bytes():
            await out.write(data)
        await out.end()
    except (UpstreamBroken, UpstreamTimeout) as problem:
        record_truncated(services, upstream, problem.code)
        await out.abort()
    finally:
        await reply.close()


def record_truncated(services: Services, upstream: str, code: str) -> None:
    """Count and log that an upstream's answer ended before it was complete."""
    services.metrics.upstream_truncated_total.inc()
    log.warning("upstream %s broke off its answer: %s", upstream, code)


async def _read_model(services: Services, incoming: Incoming) -> str | None:
    """Return the model that a body names; None if it names none, or if there is only one upstream."""
    if len(services.client.targets) == 1:
        return None
    body = incoming.body
    if len(body) >= LARGE_BODY_BYTES:  # decoding it may take 200 ms, in which no other branch can run
        found = await asyncio.get_running_loop().run_in_executor(services.workers, scan_model_name, body)
        body = b'{"model":%b}' % (found or b"null")
    return decode_model_name(body)
