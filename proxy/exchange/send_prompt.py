"""Send a prompt upstream; if it is refused for a reason that the proxy can remove, send it again without that reason.

The last attempt is the client's own request: no request fails because of what the proxy has added or left out.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from proxy.dialects.cloud_paths import BEDROCK_PREFIX
from proxy.errors import AnswerTooLong, StoreUnavailable, UpstreamError
from proxy.exchange import (
    bedrock_stream,
    bound_reasoning,
    cache_breakpoints,
    chains,
    fallback,
    learned_windows,
    prefix_bindings,
    record_outcome,
    result_clearing,
    usage_option,
)
from proxy.exchange.fallback import FallbackReason
from proxy.exchange.prepare_request import replan_refused
from proxy.exchange.services import ERROR_BODY_BYTES, Headers, Incoming, Services
from proxy.exchange.turn import Turn
from proxy.sessions.branch import find_simulated_state
from proxy.upstream.client import Reply, Target, UpstreamRequest

log = logging.getLogger(__name__)

REFUSAL_STATUSES: Final = (400, 422)
"""Statuses with which an upstream refuses a request that it does not understand. Mistral answers 422."""
TOO_LONG_STATUSES: Final = (*REFUSAL_STATUSES, 413)
"""Statuses with which upstreams refuse a prompt that does not fit."""


@dataclass(frozen=True, slots=True)
class Sender:
    """Sends the prompts of one request, one after the other, and the bodies of its later rounds."""

    services: Services
    target: Target
    incoming: Incoming

    async def send(self, turn: Turn, *, refused: Reply | None = None) -> Reply:
        """Send the turn's prompt. refused: the reply to the prompt before it, which is closed first."""
        if refused is not None:
            await refused.close()
        return await self.send_body(turn, turn.prompt.outgoing, self.incoming.headers)

    async def send_body(self, turn: Turn, body: bytes, headers: Headers) -> Reply:
        """Send a body of the turn, that of a later round too. What has to be in every body or header for this model,
        or in none, is put in and taken out here. headers: those of the client."""
        incoming = self.incoming
        if incoming.chain is not None:
            body = chains.drop_refused(self.services, incoming, body)
        if turn.wire_request is not None and incoming.path.startswith(BEDROCK_PREFIX):
            body = result_clearing.add_body_beta(turn, body)
        elif turn.wire_request is not None:
            headers = result_clearing.add_beta(turn, headers, body)
        request = UpstreamRequest(incoming.method, incoming.path, incoming.query, headers, body)
        reply = await self.services.client.send(self.target, request)
        return reply if incoming.frames is None else bedrock_stream.read_reply(reply, incoming.frames)


async def send_prompt(services: Services, turn: Turn, target: Target, incoming: Incoming) -> tuple[Turn, Reply]:
    """Send the turn's prompt. Return the turn as it was sent, and the reply; an error of upstream is a reply too, if
    nothing more can be done about it. Raises UpstreamError if there is none."""
    sender = Sender(services, target, incoming)
    reply = await sender.send(turn)
    record_sent(services, turn)
    if incoming.chain is not None and await chains.learn_refusal(services, incoming, reply):
        reply = await sender.send(turn, refused=reply)
    if reply.status in TOO_LONG_STATUSES and (shorter := await _shorten_prompt(services, turn, incoming, reply)):
        turn = shorter
        reply = await sender.send(turn, refused=reply)
        record_sent(services, turn)
    if turn.prompt.unmarked and reply.status < 400:
        cache_breakpoints.remember_support(services, turn, is_supported=True)
    if reply.status in REFUSAL_STATUSES and await usage_option.is_refusal(turn, reply):
        turn = usage_option.without_option(services, turn)
        reply = await sender.send(turn, refused=reply)
    if reply.status in REFUSAL_STATUSES and await cache_breakpoints.is_refusal(turn, reply):
        turn = cache_breakpoints.without_breakpoints(turn)
        reply = await sender.send(turn, refused=reply)
        record_sent(services, turn)
        if reply.status < 400:
            cache_breakpoints.remember_support(services, turn, is_supported=False)
    if reply.status in REFUSAL_STATUSES and (
        turn.prompt.outgoing != incoming.body or bound_reasoning.may_be_ours(turn)
    ):
        turn, reply = await _send_original(sender, turn, reply)
    return turn, reply


def record_sent(services: Services, turn: Turn) -> None:
    """Update the branch's state once the plan's bytes have gone out."""
    branch = turn.located.branch
    received, sent = len(turn.request.body), len(turn.prompt.chat_body)
    branch.unstored = replace(branch.unstored, received_bytes=received, sent_bytes=sent, pinged_at=None)
    rewrites = turn.enriched.policy.mode == "rewrite"
    if rewrites:
        marked = bool(turn.prompt.unmarked)
        branch.state = branch.state.after_sending(turn.prompt.plan, services.now(), has_breakpoints=marked)
    agent, session = services.known_agents.find(turn.tenant, turn.request), branch.live_session.session
    if branch.kind != "side":
        agent.note_length(session, turn.prompt.plan.request_count)
    if rewrites:
        agent.note_faults(session, branch.state)
    if turn.prompt.is_simulated:
        simulated = find_simulated_state(branch).after_sending(turn.prompt.plan, services.now())
        branch.unstored = replace(branch.unstored, simulated_state=simulated)


async def _shorten_prompt(services: Services, turn: Turn, incoming: Incoming, reply: Reply) -> Turn | None:
    """Return the turn with a shorter prompt, if the error says that the prompt does not fit; None if there is none."""
    if not await _is_too_long(services, turn, incoming, reply) or turn.enriched.policy.mode != "rewrite":
        return None
    try:
        return await replan_refused(services, turn)
    except StoreUnavailable:
        return None  # storing is required and fails: the client gets the upstream's error
    except Exception:  # promise P4: as for any other plan
        services.metrics.internal_errors_total.labels(where="replan").inc()
        log.exception("planning once more failed; the client gets the upstream's error")
        return None


async def _is_too_long(services: Services, turn: Turn, incoming: Incoming, reply: Reply) -> bool:
    """True if an error, which can still be passed on, says that the prompt does not fit. Its window is noted."""
    if reply.encoding:
        return False
    try:
        body = await reply.peek_body(ERROR_BODY_BYTES)
    except AnswerTooLong:
        return False
    except UpstreamError:
        if turn.prompt.outgoing == incoming.body:
            raise
        return False  # the status alone decides the next step
    return learned_windows.learn_window(services, turn, body)


async def _send_original(sender: Sender, turn: Turn, refused: Reply) -> tuple[Turn, Reply]:
    """Send the client's own bytes in place of a prompt that was refused. If these are refused too, because reasoning is
    bound to our earlier prompts, send our prompt without reasoning."""
    services, reply = sender.services, refused
    is_bound = await bound_reasoning.is_refusal(refused)
    original, left_out = prefix_bindings.make_whole(turn)
    # Reasoning is bound to no breakpoint, and the client's bytes are refused if they have reasoning that must leave.
    is_known = is_bound and (original != turn.original or not turn.is_prompt_changed)
    original = turn.repair_answers(original)
    if turn.prompt.outgoing != original and not is_known:
        reply = await sender.send(turn.with_prompt(outgoing=original), refused=refused)
        if reply.status < 400:
            return _keep_original(services, turn, original, left_out), reply
        is_bound = is_bound or await bound_reasoning.is_refusal(reply)
    is_ours = turn.is_prompt_changed or bound_reasoning.may_be_ours(turn)
    stripped = bound_reasoning.strip_all(turn, turn.prompt.outgoing) if is_bound and is_ours else None
    if stripped is not None:
        return await _send_without_reasoning(sender, turn, stripped, reply)
    if turn.is_prompt_changed:
        turn = fallback.use_original(services, turn, FallbackReason.UPSTREAM_REJECT)
    return turn, reply


def _keep_original(services: Services, turn: Turn, original: bytes, left_out: Sequence[str]) -> Turn:
    """Return the turn with the client's own bytes, which upstream took after it had refused the prompt. left_out: the
    reasoning that these bytes go without."""
    if not turn.is_prompt_changed:
        cache_breakpoints.remember_support(services, turn, is_supported=False)
        return cache_breakpoints.without_breakpoints(turn)
    result_clearing.remember_refusal(services, turn)
    turn = fallback.use_original(services, turn, FallbackReason.UPSTREAM_REJECT).with_prompt(outgoing=original)
    _leave_out(services, turn, left_out)
    record_outcome.stop_rewriting(services, turn)
    return turn


async def _send_without_reasoning(sender: Sender, turn: Turn, stripped: bytes, refused: Reply) -> tuple[Turn, Reply]:
    """Send the prompt without any bound reasoning. stripped: its bytes."""
    with_reasoning = turn.prompt.outgoing
    turn = turn.with_prompt(outgoing=stripped, fallback=FallbackReason.BOUND)
    reply = await sender.send(turn, refused=refused)
    fallback.count_fallback(sender.services, FallbackReason.BOUND)
    if reply.status < 400:
        _leave_out(sender.services, turn, [*prefix_bindings.trace_body(turn, with_reasoning).bindings])
    return turn, reply


def _leave_out(services: Services, turn: Turn, tokens: Sequence[str]) -> None:
    """Leave this reasoning out of every later request of the branch."""
    if tokens:
        rows = bound_reasoning.remember_refused(services, turn, tokens)
        bound_reasoning.count_left_out(services, turn, len(tokens))
        record_outcome.store_in_background(services, turn, rows)
