"""Reasoning that a model binds to the prompt before it, and its removal after an upstream has refused it.

An upstream refuses a request whose reasoning follows another prompt than its own. Edits and texts of the proxy
are part of these prompts, so the client's own bytes may be refused too. Then the request goes out once more without
reasoning. The removed reasoning stays out of every later request of the branch."""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Iterable
from typing import Final

from proxy.exchange import exchange_rows
from proxy.exchange.refusals import peek_refusal
from proxy.exchange.services import Services
from proxy.exchange.turn import Turn
from proxy.store.base import Row
from proxy.stream.completions_answer import AssembledAnswer
from proxy.upstream.client import Reply

log = logging.getLogger(__name__)

BOUND_ELSEWHERE: Final = b"bound to a different conversation"
"""Words with which Anthropic refuses reasoning after another prompt, whatever wraps them."""
TOKENS_PER_CHARACTER: Final = 3 / 16
"""Tokens of reasoning for each character of its token: base64 of about four bytes a token."""
REASONS: Final = frozenset(
    {
        "prefix_mismatch", "prefix_binding_mismatch", "model_mismatch", "end_user_mismatch", "organization_mismatch",
        "turn_boundary",
    }
)  # fmt: skip
"""Reasons for which a provider leaves reasoning out of a prompt."""


async def is_refusal(reply: Reply) -> bool:
    """True if an error says that reasoning is bound to another prompt. The error can still be passed on."""
    return reply.status == 400 and BOUND_ELSEWHERE in await peek_refusal(reply)


def may_be_ours(turn: Turn) -> bool:
    """True if reasoning may be bound to a prompt of the proxy. Then an earlier prompt of the branch differed from the
    client's own, or nothing is stored of the prompt that the reasoning was made after."""
    is_foreign = turn.located.branch.live_session.bindings.has_foreign and turn.enriched.policy.mode == "rewrite"
    return is_foreign or has_changed_prompts(turn)


def has_changed_prompts(turn: Turn) -> bool:
    """True if an earlier prompt of the branch differed from the client's own."""
    branch = turn.located.branch
    return bool(branch.state.edits or branch.refused_reasoning) or branch.offers_tools


def hash_token(token: str) -> bytes:
    """The name under which a token is stored."""
    return hashlib.blake2b(token.encode(), digest_size=16).digest()


def strip_all(turn: Turn, body: bytes) -> bytes | None:
    """The body without any bound reasoning; None if it has none, or cannot go without it."""
    reasoning = turn.dialect.reasoning
    try:
        stripped = reasoning.strip(body, frozenset(reasoning.trace_prompt(body, None).bindings))
    except (ValueError, KeyError, RecursionError):
        return None
    return None if stripped == body else stripped


def leave_out_refused(turn: Turn, body: bytes) -> bytes:
    """The body without reasoning that the upstream has refused, as in the request that it accepted."""
    refused, reasoning = turn.located.branch.refused_reasoning, turn.dialect.reasoning
    if not refused:
        return body
    try:
        found = reasoning.trace_prompt(body, None).bindings
        tokens = frozenset(token for token in found if hash_token(token) in refused)
        return reasoning.strip(body, tokens) if tokens else body
    except (ValueError, KeyError, RecursionError):
        return body  # the upstream judges a request that cannot be read


def remember_refused(services: Services, turn: Turn, tokens: Iterable[str]) -> list[Row]:
    """Note that this reasoning stays out of the branch. Return the rows that say so."""
    branch = turn.located.branch
    names = {hash_token(token) for token in tokens} - branch.refused_reasoning
    branch.refused_reasoning |= names
    return exchange_rows.make_strip_rows(turn, names, services.now())


def count_dropped(services: Services, turn: Turn, answer: AssembledAnswer) -> None:
    """Count the reasoning that upstream has left out of this prompt, and the price of thinking it again.

    A prefix mismatch after a prompt that the proxy has changed is the proxy's fault, and is logged.
    """
    dropped = answer.dropped_reasoning
    prompt = "changed" if turn.is_prompt_changed else "client"
    for reason, count in Counter(one if one in REASONS else "other" for one in dropped).items():
        services.metrics.dropped_reasoning_total.labels(reason=reason, prompt=prompt).inc(count)
    _count_dollars(services, turn, len(dropped))
    if prompt == "changed" and any(one.startswith("prefix") for one in dropped):
        log.warning("an upstream left out %d pieces of reasoning behind a prompt of ours", len(dropped))


def count_left_out(services: Services, turn: Turn, count: int) -> None:
    """Count the reasoning that the proxy itself leaves out of a prompt, and the price of thinking it again."""
    services.metrics.dropped_reasoning_total.labels(reason="left_out", prompt="changed").inc(count)
    _count_dollars(services, turn, count)


def _count_dollars(services: Services, turn: Turn, count: int) -> None:
    """Count the price of thinking `count` pieces of reasoning again, for a model with a price."""
    if turn.model.output:
        dollars = estimate_tokens(turn, count) * turn.model.output / 1e6
        services.metrics.dropped_reasoning_dollars_total.inc(dollars)


def estimate_tokens(turn: Turn, count: int) -> int:
    """The tokens of `count` pieces of the reasoning in a request, by their average size."""
    sizes = [len(token) for _, trace in turn.traces.values() for token in trace.bindings]
    if not sizes and turn.wire_request is not None:
        sizes = [len(token) for bound in turn.wire_request.bound if bound for token in bound.split()]
    return round(count * sum(sizes) / len(sizes) * TOKENS_PER_CHARACTER) if sizes else 0


def describe_dropped(turn: Turn, answer: AssembledAnswer | None) -> str | None:
    """The reasoning that upstream has left out, in words for the record of the exchange."""
    dropped = answer.dropped_reasoning if answer is not None else ()
    left_out = turn.prompt.left_out
    if not dropped:
        return f"left out {left_out} pieces of reasoning that are bound to other prompts" if left_out else None
    tokens = estimate_tokens(turn, len(dropped))
    return f"the upstream left out {len(dropped)} pieces of reasoning ({dropped[0]}), about {tokens} tokens"
