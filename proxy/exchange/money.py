"""What a request costs, and what it would have cost had the proxy not been there.

By the prices and cache rule of config/models.toml, in dollars; models without prices have no bill. Without the proxy
the client's own prompt would have gone out: what of it the provider had been sent before, and not too long ago, would
have come from its cache.
"""

from __future__ import annotations

from itertools import accumulate
from typing import NamedTuple

from proxy.exchange.turn import Turn
from proxy.stream.chunk import Usage

MILLION = 1_000_000


class Bill(NamedTuple):
    """Dollars: for the prompt that was sent and its answer, and for the client's own prompt and the same answer."""

    paid: float
    without: float


def resent(turn: Turn) -> int:
    """Tokens of the client's prompt that a provider's cache would still hold had it always been sent as it came.

    To be asked before the prompt is sent, since sending moves the thread's clock.
    """
    sent_at = turn.place.thread.state.sent_at
    if turn.model.input is None or sent_at is None or turn.began - sent_at > turn.model.ttl_s or turn.place.at < 0:
        return 0
    messages, weigh = turn.request.messages, turn.weigh

    def add_up(begin: int, known: list[int] | None) -> list[int]:
        ends = known or [0]
        return [*ends, *(ends[-1] + more for more in accumulate(map(weigh, messages[begin:])))]

    ends = turn.request.grown("ends", add_up, id(weigh))
    return weigh.head(turn.request.tools) + ends[turn.place.at + 1]


def bill(turn: Turn, usage: Usage | None) -> Bill | None:
    """What the exchange costs by the usage that upstream reports, else by our own count; None without prices."""
    model, plan = turn.model, turn.plan
    if model.input is None or usage is None:
        return None
    after = plan.before if turn.observed or plan.messages is None else plan.after
    # What the client is told has the completions of all rounds, and the prompt of the last.
    rounds = (*turn.spent, usage)
    answer = usage.completion * (model.output or 0.0) / MILLION
    costs = [model.cost(one.prompt, _cached(one, plan.predicted)) * model.input / MILLION for one in rounds]
    paid = sum(costs) + answer
    if after == plan.before:
        return Bill(paid, costs[0] + answer)
    # The provider counts otherwise than we do; what was left out is taken to differ by the same factor.
    factor = rounds[0].prompt / max(after, 1)
    kept = turn.resent // model.block * model.block if turn.resent >= model.min else 0
    without = factor * model.cost(plan.before, min(kept, plan.before)) * model.input / MILLION + answer
    return Bill(paid, without)


def _cached(usage: Usage, predicted: int) -> int:
    return min(usage.prompt, usage.cached if usage.cached is not None else predicted)
