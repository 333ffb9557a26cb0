"""Models that are remembered for a refusal. What a refusal says is read in the tests of each option that is refused."""

from __future__ import annotations

from proxy.exchange.refusals import MAX_REMEMBERED_MODELS, remember_model
from proxy.exchange.services import ModelKey


def test_the_models_of_a_refusal_have_a_bound() -> None:
    """Clients choose the names of models."""
    known: set[ModelKey] = set()
    for n in range(MAX_REMEMBERED_MODELS):
        remember_model(known, ("tenant", "main", f"model-{n}"))
    assert len(known) == MAX_REMEMBERED_MODELS
    remember_model(known, ("tenant", "main", "one-more"))
    assert known == {("tenant", "main", "one-more")}
