"""The functions of the library over HTTP: the same values, whichever way they are asked for."""

from __future__ import annotations

from typing import Any

from proxy.contrib import reploid
from tests.web.api.calls import HISTORY
from tests.web.api.conftest import ProxyWithData

ON_ONE_STORE = True


def post(proxy: ProxyWithData, name: str, body: dict[str, Any]) -> Any:
    got = proxy.ask("POST", f"/api/context/{name}", body)
    assert got.status == 200, got.body
    return got.json()


def test_d9_pruning_keeps_what_the_library_keeps(proxy: ProxyWithData) -> None:
    found = post(proxy, "prune", {"context": HISTORY, "maxTokens": 25})
    assert found["stats"]["itemsRemoved"] > 0
    assert [*found["pruned"], *found["removed"]] != HISTORY or found["removed"]
    assert found["pruned"][0] == HISTORY[0]
    assert found["pruned"][-1] == HISTORY[-1]


def test_a_history_that_fits_is_returned_unchanged(proxy: ProxyWithData) -> None:
    found = post(proxy, "auto", {"context": HISTORY, "modelName": "gpt-5"})
    assert (found["pruned"], found["removed"]) == (HISTORY, [])


def test_gemini_messages_are_read_too(proxy: ProxyWithData) -> None:
    history = [{"role": "user", "parts": [{"text": "Read."}]}, {"role": "model", "parts": [{"text": "Done."}]}]
    assert post(proxy, "stats", {"context": history})["items"] == 2


def test_d9_stats_and_estimate_agree(proxy: ProxyWithData) -> None:
    stats = post(proxy, "stats", {"context": HISTORY, "modelName": "gpt-4o"})
    assert stats["tokens"] == post(proxy, "estimate", {"content": HISTORY, "modelName": "gpt-4o"})["tokens"]
    assert stats["needsPruning"] is False
    assert stats["limit"] == 128_000


def test_an_unknown_model_has_the_sources_limit(proxy: ProxyWithData) -> None:
    assert post(proxy, "stats", {"context": HISTORY, "modelName": "nobody-knows"})["limit"] == 100_000


def test_scores_over_http_equal_those_of_the_library(proxy: ProxyWithData) -> None:
    assert post(proxy, "score", {"context": HISTORY})["scores"] == reploid.score_history(HISTORY)
    one = post(proxy, "score", {"item": HISTORY[1], "index": 0, "totalItems": 3})
    assert one["score"] == reploid.score_context_importance(HISTORY[1], 0, 3)


def test_a_summary_stands_for_the_rest(proxy: ProxyWithData) -> None:
    long = [{"role": "user", "content": f"{n} " * 50} for n in range(20)]
    found = post(proxy, "summarize", {"context": long, "maxItems": 5, "text": "Numbers were told."})
    assert found["stats"] == {"summarizedItems": 15, "keptItems": 5}
    assert "Numbers were told." in str(found["summarized"][0])


def test_snake_case_is_understood_as_well(proxy: ProxyWithData) -> None:
    assert post(proxy, "prune", {"context": HISTORY, "max_tokens": 1_000})["removed"] == []
