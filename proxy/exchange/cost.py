"""The cost of a request, the cost without the proxy, and the cost of a plan that was only observed.

Costs are in dollars, by the prices and cache rule of config/models.toml; models without prices have no bill. Without
the proxy the client's own prompt would have gone out. The part of it that the provider had been sent before, and not
too long ago, would have come from its cache.

`compute_bill` is the one function for it. The metrics call it when an answer has ended, and the API when it adds up
stored exchanges. The row of an exchange holds the same `Meter` that the metrics used."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import msgspec

from proxy.context.models import Model
from proxy.dialects.completions.stream import Usage
from proxy.exchange.turn import Turn

MILLION = 1_000_000


class Bill(NamedTuple):
    """Dollars. paid: for the prompt that was sent and its answer. without_proxy: for the client's own prompt and the
    same answer. planned: for the prompt that was planned and not sent, None where there was none."""

    paid: float
    without_proxy: float
    planned: float | None = None


class Meter(msgspec.Struct, frozen=True, omit_defaults=True):
    """The figures by which an exchange is billed, as JSON in its row. Tokens by our own count, except rounds and
    completion.

    rounds: (prompt, cached) of each round as the provider reports them, cached -1 where it does not. before: tokens of
    the client's own prompt. held: tokens of that prompt that the provider's cache would hold if it had always been sent
    as it came. sent: tokens of the prompt that was sent. expected: tokens of the sent prompt that the cache was
    expected to hold. planned: (tokens, cached) of the prompt that was planned and not sent.
    """

    rounds: list[tuple[int, int]]
    completion: int
    before: int
    held: int
    sent: int
    expected: int
    planned: tuple[int, int] | None = None

    @property
    def prompt(self) -> int:
        """Tokens of all rounds' prompts."""
        return sum(prompt for prompt, _ in self.rounds)


def count_cached_without_proxy(turn: Turn) -> int:
    """Tokens of the client's prompt that a provider's cache would still hold if it had always been sent as it came.

    Call it before the prompt is sent, since sending moves the thread's clock.
    """
    thread = turn.located.thread
    sent_at = thread.positions[-1][2] if thread.positions else thread.state.sent_at
    if (
        turn.model.input is None
        or sent_at is None
        or turn.started_at - sent_at > turn.model.ttl_s
        or turn.located.known_until < 0
    ):
        return 0
    messages, weigh = turn.request.messages, turn.weigh

    def add_up(begin: int, known: list[int] | None) -> list[int]:
        ends = known or [0]
        return [*ends, *(ends[-1] + more for more in accumulate(map(weigh, messages[begin:])))]

    ends = turn.request.memo("ends", add_up, id(weigh))
    return weigh.count_tools(turn.request.tools) + ends[turn.located.known_until + 1]


def make_meter(turn: Turn, usage: Usage | None) -> Meter | None:
    """Return the meter of the exchange; None where the provider reports no usage."""
    if usage is None:
        return None
    plan, model = turn.plan, turn.model
    kept = count_cacheable(model, min(turn.cached_without_proxy, plan.before))
    original = turn.observed or plan.messages is None
    rounds: Sequence[Usage] = (*turn.earlier_usage, usage)
    return Meter(
        # The usage that the client gets has the completions of all rounds, and the prompt of the last round.
        rounds=[(one.prompt, one.cached if one.cached is not None else -1) for one in rounds],
        completion=usage.completion,
        before=plan.before,
        held=kept,
        sent=plan.before if original else plan.after,
        expected=count_expected_cached(turn),
        planned=(plan.after, plan.predicted) if turn.is_simulated else None,
    )


def count_expected_cached(turn: Turn) -> int:
    """Tokens of the sent prompt that are expected to come from the provider's cache."""
    if not turn.observed:
        return turn.plan.predicted
    return count_cacheable(turn.model, min(turn.cached_without_proxy, turn.plan.before))


def count_cacheable(model: Model, tokens: int) -> int:
    """Tokens that a provider's cache holds of a prefix of so many tokens: whole blocks, 0 below the model's minimum."""
    held = tokens // model.block * model.block
    return held if held >= model.min and model.cache != "none" else 0


def compute_bill(model: Model, meter: Meter) -> Bill | None:
    """Return the cost of an exchange; None without prices."""
    if model.input is None or not meter.rounds:
        return None
    unit = model.input / MILLION
    answer = meter.completion * (model.output or 0.0) / MILLION
    costs = [
        model.compute_cost(prompt, min(prompt, cached if cached >= 0 else meter.expected)) * unit
        for prompt, cached in meter.rounds
    ]
    paid = sum(costs) + answer
    # The provider counts otherwise than we do. The prompt that was not sent is taken to differ by the same factor.
    factor = meter.rounds[0][0] / max(meter.sent, 1) * unit
    without = costs[0] if meter.sent == meter.before else factor * model.compute_cost(meter.before, meter.held)
    planned = factor * model.compute_cost(*meter.planned) + answer if meter.planned is not None else None
    return Bill(paid, without + answer, planned)


def write_meter(meter: Meter) -> str:
    """Encode a meter as the JSON text that is stored."""
    return msgspec.json.encode(meter).decode()


def read_meter(text: str) -> Meter:
    """Decode a stored meter. Raises ValueError if it cannot be read."""
    return msgspec.json.decode(text, type=Meter)
