"""Results that the provider clears at our request: where it can, and the bytes and the header that ask for it.

The plan has such results as edits of the stage `provider_clearing`. They go out as received, with a request to clear
them. Where the provider cannot, or has refused it, the schedule is `when_it_pays`, and a header says so.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from proxy.context.policy import Policy
from proxy.dialects.base import ClearedResults
from proxy.dialects.messages import context_management
from proxy.dialects.messages.request import MessagesRequest
from proxy.exchange.refusals import remember_model
from proxy.exchange.services import Headers, Services
from proxy.exchange.turn import Turn
from proxy.exchange.wire_messages import leaves_clearing

USUAL_SCHEDULE: Final = "when_it_pays"
"""The schedule where the provider cannot clear; `append_only` takes its place if reasoning is bound to the prompt."""


def choose_provider_policy(services: Services, turn: Turn, policy: Policy) -> tuple[Policy, str]:
    """(the policy of a request under the schedule `provider`, why it has another schedule, or "").

    Where reasoning is bound to the prompt, nothing but the provider's own clearing may change it.
    """
    if policy.schedule != "provider" or policy.mode == "passthrough":
        return policy, ""
    why = _find_obstacle(services, turn)
    if why:
        policy = replace(policy, schedule=USUAL_SCHEDULE, stands_for=policy.name)
        return policy, f"schedule provider: {why}; the usual schedule in its place"
    if turn.is_bound:
        return replace(policy, stages=(), injections=(), ask="never", tools=(), offer="never"), ""
    return policy, ""


def _find_obstacle(services: Services, turn: Turn) -> str:
    clearing = turn.dialect.clearing
    if clearing is None or turn.wire_request is None:
        return f"not for the format {turn.dialect.name}"
    if not turn.model.breakpoint_field:
        return "not for this model"
    if turn.model_key in services.clearing_refused:
        return "the upstream refused it"
    if not clearing.may_clear(turn.wire_request.body):
        return "the client clears by itself, or uses tools of the provider"
    return ""


def add_beta(turn: Turn, headers: Headers, body: bytes) -> Headers:
    """The client's headers, with the beta that the body needs in addition to the client's own."""
    field = context_management.FIELD.encode()
    if turn.dialect.clearing is None or not (_is_asked(turn) or leaves_clearing(turn.prompt.plan)):
        return headers
    if b'"' + field + b'"' not in body:
        return headers
    beta = context_management.BETA.encode()
    own = [value for name, value in headers if name.lower() == b"anthropic-beta"]
    if any(beta in value for value in own):
        return headers
    kept = [(name, value) for name, value in headers if name.lower() != b"anthropic-beta"]
    return [*kept, (b"anthropic-beta", b",".join([*own, beta]))]


def add_body_beta(turn: Turn, body: bytes) -> bytes:
    """A body for Bedrock, which reads no such header, with the beta that our request to clear needs."""
    is_ours = leaves_clearing(turn.prompt.plan) and b'"' + context_management.FIELD.encode() + b'"' in body
    return context_management.add_body_beta(body) if is_ours else body


def _is_asked(turn: Turn) -> bool:
    """True if the client itself asks for an editing of its prompt."""
    return isinstance(turn.wire_request, MessagesRequest) and context_management.FIELD in turn.wire_request.members


def find_hidden_member(turn: Turn) -> str:
    """The member of an answer that tells what was cleared, where the client did not ask for it; else ""."""
    if turn.dialect.clearing is None or _is_asked(turn) or not leaves_clearing(turn.prompt.plan):
        return ""
    return context_management.FIELD


def remember_refusal(services: Services, turn: Turn) -> None:
    """Note that the upstream refused a prompt with a request to clear, and took the client's own."""
    field = context_management.FIELD.encode()
    if field not in turn.prompt.outgoing or field in turn.original:
        return
    remember_model(services.clearing_refused, turn.model_key)


def count_cleared_results(services: Services, cleared: ClearedResults) -> None:
    """Count what the provider says that it has cleared."""
    services.metrics.provider_cleared_total.labels(kind="results").inc(cleared.tool_uses)
    services.metrics.provider_cleared_total.labels(kind="tokens").inc(cleared.tokens)


def describe_cleared(cleared: ClearedResults) -> str:
    """The results that the provider has cleared, in words for the record of the exchange."""
    return f"the provider cleared {cleared.tool_uses} tool results, {cleared.tokens} tokens"
