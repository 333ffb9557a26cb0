"""Sessions as an experiment stores them, drawn at random: their lengths, models, pauses, cache misses, and a planted
effect."""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec

from proxy.context.models import Model
from proxy.exchange.cost import Meter, compute_bill, predict_bill
from proxy.exchange.holdout import choose_arm
from proxy.operator.compare_arms import SessionMeasures

MODELS = (
    Model("small", input=0.1, output=0.5),
    Model("middle", input=2.0, output=10.0),
    Model("large", input=5.0, output=25.0),
)
PAUSES = 0.035
"""Share of the requests after a pause in which the cache expires, as in recorded sessions of coding agents."""
MISSES = 0.005
"""Share of the requests whose cache the provider has lost though it was expected to hold it."""


def draw_session(chance: random.Random) -> SessionMeasures:
    """One session that was left as it is."""
    model = chance.choices(MODELS, (2, 5, 3))[0]
    dollars = own = 0.0
    requests, tokens, held = 1 + int(chance.lognormvariate(3.0, 0.9)), 8000 + int(chance.expovariate(1 / 15000)), 0
    for _ in range(min(requests, 150)):
        held = 0 if chance.random() < PAUSES else held
        cached = 0 if chance.random() < MISSES else held
        answer = int(chance.lognormvariate(5.5, 0.8))
        meter = Meter([(tokens, cached)], answer, before=tokens, held=held, sent=tokens, expected=held)
        bill, predicted = compute_bill(model, meter), predict_bill(model, meter)
        assert bill is not None
        assert predicted is not None
        dollars, own = dollars + bill.paid, own + predicted.own
        held, tokens = tokens, tokens + answer + int(chance.lognormvariate(6.0, 1.2))
    return SessionMeasures("t", "", "", requests, 1 + requests // 8, dollars, own, own, own, billed=requests)


def draw_pool(seed: int, number: int = 2000) -> list[SessionMeasures]:
    """Sessions to draw experiments from."""
    chance = random.Random(seed)
    return [draw_session(chance) for _ in range(number)]


def draw_experiment(
    pool: Sequence[SessionMeasures], seed: int, effect: float, number: int = 400, share: float = 0.25
) -> list[list[SessionMeasures]]:
    """Both arms, control first. effect: what the dollars of a managed session are multiplied by."""
    found: list[list[SessionMeasures]] = [[], []]
    for n, one in enumerate(random.Random(seed).sample(pool, number)):
        arm = choose_arm(share, "", "t", f"{seed}-{n}")
        dollars = one.dollars * (effect if arm == "managed" else 1.0)
        made = msgspec.structs.replace(one, session=f"{seed}-{n}", arm=arm, dollars=dollars)
        found[arm == "managed"].append(made)
    return found
