"""The cost of a request, the cost without the proxy, and the cost of a plan that was only observed.

Costs are in dollars: the provider's own report, else the prices and cache rule of config/models.toml
(`context.prices`). Models with neither have no bill. Without the proxy the client's own prompt would have gone out. The
part of it that the provider had been sent before, and not too long ago, would have come from its cache. What an agent
has fetched again because the proxy had cut it would not have been in that prompt. A request that only brings this would
not have been made; its answer would have come a request earlier.

`compute_bill` is the one function for it. The metrics call it when an answer has ended, and the API when it adds up
stored exchanges. The row of an exchange holds the same `Meter` that the metrics used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

import msgspec

from proxy.context.models import Model
from proxy.context.prices import Dollars, estimate_usage, price_usage
from proxy.dialects.usage import Usage
from proxy.exchange.turn import Turn
from proxy.sessions.branch import CountedPrompt


class Bill(NamedTuple):
    """Dollars."""

    paid: float
    """Dollars for the prompt that was sent and its answer."""
    without_proxy: float
    """Dollars for the client's own prompt and the answer of the last round: the others are the proxy's."""
    planned: float | None = None
    """Dollars for the prompt that was planned and not sent. None if there was no such prompt."""


class Meter(msgspec.Struct, frozen=True, omit_defaults=True):
    """The figures by which an exchange is billed, as JSON in its row. Most tokens are by our own count."""

    rounds: list[tuple[int, int]]
    """(prompt, cached) of each round as the provider reports them, cached -1 where it does not."""
    completion: int
    before: int
    """Tokens of the client's own prompt, without what was fetched again, and within the model's window."""
    held: int
    """Tokens of that prompt that the provider's cache would hold if it had always been sent as received."""
    sent: int
    """Tokens of the prompt that was sent, with the proxy's own."""
    expected: int
    """Tokens of the sent prompt that the cache was expected to hold."""
    planned: tuple[int, int] | None = None
    """(tokens, cached) of the prompt that was planned and not sent."""
    writes: list[tuple[int, int]] = []
    outputs: list[int] = []
    dollars: list[float] = []
    rate: float = 1.0
    writes_nothing: bool = False
    """True if the client sets no breakpoint after `held`: without the proxy's, the rest would not be written."""
    added: int = 0
    """Tokens of the proxy's tools and hidden rounds in a prompt of which nothing else was changed."""
    compactions: list[Usage] = []
    """Usage of the provider's compactions. The client has asked for them, so they are paid without the proxy too."""
    refetched: int = 0
    """Tokens of the client's prompt that were fetched again because the proxy had cut them, with their calls."""
    fetching: int = 0
    """Tokens of the newest calls if these brought nothing else: without the proxy there were none."""
    own: int = 0
    """`before` by the count of the provider, 0 where no earlier prompt of the branch was counted."""
    asked: int = 0
    """Tokens of the blocks in the answer that the proxy had asked for: without it the model would not write them."""
    kept_warm: bool = False
    """True if the cache held the prompt because of pings alone: without the proxy it would have expired."""
    pings: list[Usage] = []
    """Usage of the pings that kept the cache warm after the answer (`cache_keep_alive`). They are no rounds."""

    @property
    def prompt(self) -> int:
        """Tokens of all rounds' prompts."""
        return sum(prompt for prompt, _ in self.rounds)

    @property
    def cached(self) -> int | None:
        """Tokens of all rounds' prompts that the provider's cache served; None where no round reports them."""
        reported = [cached for _, cached in self.rounds if cached >= 0]
        return sum(reported) if reported else None

    @property
    def is_unchanged(self) -> bool:
        """True if the client's own prompt was sent, with nothing but tools and hidden rounds of the proxy beside it.

        The provider's cache then serves what it would serve without the proxy, if nothing was fetched again or kept
        warm."""
        if self.kept_warm or self.writes_nothing or self.refetched:
            return False
        return self.sent == self.before + self.added

    @property
    def predicted(self) -> int:
        """Tokens that were expected from the cache: those of the first round again in each that reports cached ones."""
        return self.expected * (sum(cached >= 0 for _, cached in self.rounds) or 1)

    def list_usages(self, count: Callable[[int], int] = int) -> list[Usage]:
        """The usage of each round. count: a function from tokens by our count to tokens by the count of the provider.
        It is used for cached tokens that the provider does not report."""
        last = len(self.rounds) - 1
        outputs = self.outputs or [0] * last + [self.completion]
        writes = self.writes or [(-1, 0)] * len(self.rounds)
        return [
            Usage(
                prompt,
                output,
                prompt + output,
                min(prompt, cached if cached >= 0 else count(self.expected)),
                written if written >= 0 else None,
                cache_write_long=long,
            )
            for (prompt, cached), output, (written, long) in zip(self.rounds, outputs, writes, strict=True)
        ]


def count_cached_without_proxy(turn: Turn) -> int:
    """Tokens of the client's prompt that a provider's cache would still hold if it had always been sent as received.

    Call it before the prompt is sent, since sending moves the branch's clock. The newest answer is not among them: a
    provider caches prompts, and no prompt has had it yet.
    """
    if _is_cold_without_proxy(turn) or turn.located.known_until < 0:
        return 0
    end = _find_last_prompt_end(turn)
    return count_own_tokens(turn, end) if end else 0


def _is_cold_without_proxy(turn: Turn) -> bool:
    """True if the provider's cache would have expired since the branch's last exchange."""
    moves = turn.located.branch.store_position.moves
    sent_at = moves[-1][2] if moves else turn.located.branch.state.sent_at
    return sent_at is None or turn.started_at - sent_at > turn.model.ttl_s


def is_kept_warm(turn: Turn) -> bool:
    """True if the provider's cache holds the branch's last prompt because of pings alone. Call it before the prompt is
    sent, since sending forgets them."""
    pinged_at = turn.located.branch.unstored.pinged_at
    return pinged_at is not None and turn.started_at - pinged_at <= turn.model.ttl_s and _is_cold_without_proxy(turn)


def _find_last_prompt_end(turn: Turn) -> int:
    """Number of messages of the client's own prompt that its last prompt had."""
    messages, end = turn.request.messages, turn.located.known_until + 1
    while end and messages[end - 1].role == "assistant":
        end -= 1
    return end


class _Refetched(NamedTuple):
    """Tokens of the client's own prompt that were fetched again because the proxy had cut them, with their calls."""

    tokens: int = 0
    held: int = 0
    """Those of them that the client's last prompt had."""
    fetching: int = 0
    """Tokens of the newest calls, if the request brings nothing but what these have fetched again."""


def _count_refetched(turn: Turn) -> _Refetched:
    known = turn.located.branch.state.refetched_keys
    again = [n for n, key in enumerate(turn.keys) if key in known] if known else []
    if not again:
        return _Refetched()
    messages, end = turn.request.messages, _find_last_prompt_end(turn)
    sizes = dict(zip(again, turn.token_counter.count_each([messages[n] for n in again]), strict=True))
    step = next((n for n in reversed(range(len(messages))) if n not in sizes or messages[n].calls), -1)
    return _Refetched(
        sum(sizes.values()),
        sum(size for n, size in sizes.items() if n < end),
        sizes.get(step, 0) if step < len(messages) - 1 else 0,
    )


def count_own_tokens(turn: Turn, end: int = -1) -> int:
    """Tokens of the client's own tools and messages, the first `end` of them or all."""
    messages, token_counter = turn.request.messages, turn.token_counter

    def add_up(begin: int, known: list[int] | None) -> list[int]:
        ends = known or [0]
        return [*ends, *(ends[-1] + more for more in accumulate(token_counter.count_each(messages[begin:])))]

    return token_counter.count_tools(turn.request.tools) + turn.request.memo("ends", add_up, id(token_counter))[end]


def make_meter(turn: Turn, usage: Usage | None, asked: int) -> Meter | None:
    """Return the meter of the exchange; None where the provider reports no usage. usage: that of the last round; None
    for an exchange that failed after earlier rounds, which are paid all the same. asked: as in `Meter`."""
    rounds: Sequence[Usage] = turn.rounds.usage if usage is None else (*turn.rounds.usage, usage)
    if not rounds:
        return None
    plan, model, again = turn.prompt.plan, turn.model, _count_refetched(turn)
    sent = _count_sent(turn)
    before = max(0, plan.before - again.tokens)
    if model.window is not None:
        before = min(before, max(model.window, sent))  # a client has to shorten a longer prompt itself
    only_ours = bool(turn.prompt.unmarked) and not turn.client_marks.in_history
    kept = _count_kept_without_proxy(turn, rounds[0], before, again.held, only_ours=only_ours)
    # The usage that the client gets has the completions of all rounds, and the prompt of the last round.
    earlier = [one.completion for one in turn.rounds.usage]
    listed = sum(one.completion - one.unlisted for one in turn.rounds.usage)
    outputs = earlier if usage is None else [*earlier, max(0, usage.completion - listed)]
    counted = turn.located.branch.unstored.counted
    is_written = any(one.cache_write is not None for one in rounds)
    dollars = [one.dollars for one in rounds if one.dollars is not None]
    rate = model.find_rate(turn.started_at) if model.peak_hours else 1.0
    if rounds[-1].tiers:
        rate *= model.find_tier_rate(rounds[-1].tiers)
    return Meter(
        rounds=[(one.prompt, one.cached if one.cached is not None else -1) for one in rounds],
        completion=sum(outputs),
        before=before,
        held=kept,
        sent=sent,
        expected=count_expected_cached(turn),
        planned=(plan.after, plan.predicted) if turn.prompt.is_simulated else None,
        writes=[(one.cache_write if one.cache_write is not None else -1, one.cache_write_long) for one in rounds]
        if is_written
        else [],
        outputs=outputs if earlier else [],
        dollars=dollars if len(dollars) == len(rounds) else [],
        rate=rate,
        writes_nothing=only_ours,
        added=sent - plan.before if plan.messages is None else 0,
        compactions=[compaction for one in rounds for compaction in one.compactions],
        refetched=again.tokens,
        fetching=again.fetching,
        own=round(counted.counted * before / counted.own) if counted is not None and counted.own else 0,
        asked=asked,
        kept_warm=turn.enriched.is_kept_warm,
    )


def _count_kept_without_proxy(turn: Turn, first: Usage, before: int, refetched: int, *, only_ours: bool) -> int:
    """Tokens that the cache would have served of the client's own prompt, sent as received (`Meter.held`).

    first: usage of the first round. before: tokens of that prompt. refetched: tokens of earlier prompts that the client
    would not have fetched without the proxy. only_ours: behind the head all breakpoints of the prompt are the proxy's.
    """
    model, state = turn.model, turn.located.branch.state
    if model.cache == "breakpoint" and not first.cached and first.cache_write == 0:
        return 0  # a client that marks nothing has no cache, with or without the proxy
    if state.cache_miss_streak and state.is_never_cached:
        return 0  # what has served nothing of the sent prompts would have served nothing of the client's own
    if only_ours and not turn.client_marks.lifetime:
        return 0
    kept = count_cacheable(model, max(0, min(turn.enriched.cached_without_proxy - refetched, before)))
    return min(kept, _count_marked_system(turn)) if only_ours else kept


def _count_sent(turn: Turn) -> int:
    """Tokens of the first round's prompt: the original that goes out after a fault in a later round is not that."""
    return turn.prompt.plan.after if turn.prompt.fallback == "rounds" else turn.prompt.sent_tokens


def count_own_prompt(turn: Turn, reported: int) -> CountedPrompt:
    """Return the client's own prompt by the count of the provider. reported: tokens of the sent prompt by that count.

    Messages that both prompts have got since the last request are as long in one as in the other. To scale the whole by
    the prompt that was sent made it a tenth too long: a short prompt has more of calls, which we count otherwise."""
    plan, sent, last = turn.prompt.plan, _count_sent(turn), turn.located.branch.unstored.counted
    new = plan.before - last.own if last is not None else 0
    if sent == plan.before:
        counted = reported
    elif last is None:
        counted = _find_provider_count(turn.model, reported, sent)(plan.before)
    elif sent - last.sent == new:
        counted = last.counted + max(0, reported - last.reported)
    else:
        # A short prompt has more of what we count otherwise, and each of the two may be the short one.
        counted = last.counted + round(new * min(last.counted / max(last.own, 1), reported / max(sent, 1)))
    return CountedPrompt(sent, reported, plan.before, counted)


def _count_marked_system(turn: Turn) -> int:
    """Tokens up to the system prompt, where the client caches that alone."""
    first = turn.request.messages[0]
    return turn.token_counter.count_tools(turn.request.tools) + (turn.token_counter(first) if first.is_system else 0)


def count_expected_cached(turn: Turn) -> int:
    """Tokens of the sent prompt that are expected to come from the provider's cache."""
    if not turn.prompt.observed:
        return turn.prompt.plan.predicted
    return count_cacheable(turn.model, min(turn.enriched.cached_without_proxy, turn.prompt.plan.before))


def count_cacheable(model: Model, tokens: int) -> int:
    """Tokens that a provider's cache holds of `tokens` tokens: whole blocks, 0 below the model's minimum."""
    held = tokens // model.block * model.block
    return held if held >= model.min and model.cache != "none" else 0


class _PricedExchange(msgspec.Struct, frozen=True):
    """An exchange with the prices of its model.

    If the provider reports dollars, these were paid. All others are then scaled by the quotient of the paid dollars and
    the dollars of our table. A model without prices has prices in proportion."""

    model: Model
    meter: Meter
    usages: list[Usage]
    """The usage of each round."""
    costs: list[Dollars]
    """The dollars of each round by our table."""
    compacting: float
    """Dollars of the provider's compactions by our table. They take place with the proxy and without it."""
    scale: float
    """The quotient of the dollars that were paid and those of our table."""
    pinging: float
    """Dollars of the pings after the answer."""
    count: Callable[[int], int]
    """Tokens by the count of the provider, from tokens of the sent or a planned prompt by our count."""

    def count_own(self, tokens: int) -> int:
        """Tokens by the count of the provider, from tokens of the client's own prompt by our count."""
        meter = self.meter
        return round(tokens * meter.own / meter.before) if meter.own and meter.before else self.count(tokens)

    @property
    def served_share(self) -> float:
        """The share that the cache served of the tokens that it was expected to hold.

        If it served less than half of a prefix that it had been sent, it has dropped that prefix, or never kept any. It
        would not have served the client's own prompt either. If edits have left little of the prefix, this little says
        nothing about the rest."""
        meter = self.meter
        expected, reported = self.count(meter.expected), meter.rounds[0][1]
        if 2 * meter.expected < meter.held:
            return 1.0
        return reported / expected if 0 <= 2 * reported < expected else 1.0

    @property
    def answer(self) -> int:
        """Tokens of the answer that would have come without the proxy."""
        return max(0, self.usages[-1].completion - self.meter.asked)

    @property
    def paid(self) -> float:
        """Dollars of the exchange and of the pings after it."""
        return (sum(cost.total for cost in self.costs) + self.compacting) * self.scale + self.pinging

    def estimate(self, prompt: int, cached: int, completion: int) -> float:
        """Dollars of another prompt and its answer, in tokens by the count of the provider."""
        return self._scale(estimate_usage(self.usages[0], prompt, cached, completion))

    def estimate_own(self, cached: int) -> float:
        """Dollars without the proxy. cached: tokens of the client's prompt in the cache, by the provider's count."""
        meter, answer = self.meter, self.answer
        if meter.fetching:
            # The request was made for what had been cut. Its answer would have come in place of the calls before it.
            return self._scale(Usage(0, max(0, answer - meter.fetching), 0))
        prompt = self.count_own(meter.before)
        if not meter.writes_nothing:
            return self.estimate(prompt, cached, answer)
        # Only `Meter.held` would be cached, and nothing more written.
        return self._scale(Usage(prompt, answer, prompt + answer, min(self.count_own(meter.held), prompt), 0))

    def _scale(self, usage: Usage) -> float:
        return (price_usage(self.model, usage, self.meter.rate).total + self.compacting) * self.scale


def _price_exchange(model: Model, meter: Meter) -> _PricedExchange | None:
    """Return the exchange with its prices; None without prices."""
    if not meter.rounds or (model.input is None and not meter.dollars):
        return None
    count = _find_provider_count(model, meter.rounds[0][0], meter.sent)
    if model.input is None:
        model = replace(model, input=1.0, output=model.output_ratio)
    usages = meter.list_usages(count)
    costs = [price_usage(model, usage, meter.rate) for usage in usages]
    compacting = sum(price_usage(model, one, meter.rate).total for one in meter.compactions)
    listed = sum(cost.total for cost in costs) + compacting
    scale = sum(meter.dollars) / listed if meter.dollars and listed else 1.0
    pinging = sum(_price_ping(model, one, meter.rate * scale) for one in meter.pings)
    return _PricedExchange(model, meter, usages, costs, compacting, scale, pinging, count)


def _price_ping(model: Model, usage: Usage, rate: float) -> float:
    """Dollars of a ping: what the provider reports, else by our table."""
    return usage.dollars if usage.dollars is not None else price_usage(model, usage, rate).total


def _find_provider_count(model: Model, prompt: int, sent: int) -> Callable[[int], int]:
    """Return a function from tokens of a prompt by our count to tokens by the count of the provider. prompt, sent:
    tokens of the prompt that was sent, by the provider's count and by ours.

    With the provider's vocabulary our count of a text is right. The counts differ by the form of tools and calls, which
    is in the sent prompt and in any other: the difference is added. With another vocabulary each text differs, and
    the count is scaled. To scale the difference too made the cost without the proxy up to a tenth too high. A count of
    less than half of ours is not of these texts, so it is scaled too."""
    if prompt and 2 * prompt >= sent and model.input is not None and model.tokenizer != "estimate":
        return lambda tokens: max(0, tokens + prompt - sent) if tokens else 0
    factor = prompt / max(sent, 1)
    return lambda tokens: round(tokens * factor)


def compute_bill(model: Model, meter: Meter) -> Bill | None:
    """Return the cost of an exchange; None without prices."""
    priced = _price_exchange(model, meter)
    if priced is None:
        return None
    first, answer, count = priced.usages[0], priced.answer, priced.count
    own = priced.count_own(meter.before)
    if meter.is_unchanged and meter.sent == meter.before:
        without = (priced.costs[0].prompt + priced.costs[-1].answer + priced.compacting) * priced.scale
    elif meter.is_unchanged:
        without = priced.estimate(own, max(0, (first.cached or 0) - (first.prompt - own)), answer)
    else:
        # The provider has been sent what it serves: the client's own prompt shares that prefix, and more of it, less
        # what was fetched again.
        held = round(priced.count_own(meter.held) * priced.served_share)
        served = 0 if meter.kept_warm else meter.rounds[0][1] - meter.refetched
        without = priced.estimate_own(max(held, served))
    planned = None
    if meter.planned is not None:
        tokens, cached = meter.planned
        planned = priced.estimate(count(tokens), round(count(cached) * priced.served_share), answer) + priced.pinging
    return Bill(priced.paid, without, planned)


def price_pings(model: Model, meter: Meter) -> float:
    """Dollars of the pings after an exchange; 0 without a bill."""
    priced = _price_exchange(model, meter) if meter.pings else None
    return priced.pinging if priced is not None else 0.0


class Prediction(NamedTuple):
    """Dollars that were predicted before the answer."""

    sent: float
    """Dollars for the sent prompt, at the tokens that the cache was expected to hold."""
    own: float
    """Dollars for the client's own prompt, at the tokens that the cache would hold without the proxy."""
    rounds: float
    """Dollars for the hidden rounds after the first."""


def predict_bill(model: Model, meter: Meter) -> Prediction | None:
    """Return the predicted cost of an exchange, scaled as its bill is; None where it has no bill."""
    priced = _price_exchange(model, meter)
    if priced is None:
        return None
    count = priced.count
    sent = priced.estimate(count(meter.sent), count(meter.expected), priced.usages[0].completion)
    rounds = sum(cost.total for cost in priced.costs[1:]) * priced.scale
    return Prediction(sent, priced.estimate_own(priced.count_own(meter.held)), rounds)


def price_refetched(model: Model, meter: Meter) -> float:
    """Predicted dollars of the client's own prompt, with what was fetched again; 0 without a bill."""
    with_refetched = msgspec.structs.replace(
        meter,
        before=meter.before + meter.refetched,
        held=meter.held + meter.refetched,
        own=round(meter.own * (meter.before + meter.refetched) / max(meter.before, 1)),
        refetched=0,
        fetching=0,
    )
    predicted = predict_bill(model, with_refetched if meter.refetched else meter)
    return predicted.own if predicted is not None else 0.0


def write_meter(meter: Meter) -> str:
    """Encode a meter as the JSON text that is stored."""
    return msgspec.json.encode(meter).decode()


def read_meter(text: str) -> Meter:
    """Decode a stored meter. Raises ValueError if it cannot be read."""
    return msgspec.json.decode(text, type=Meter)
