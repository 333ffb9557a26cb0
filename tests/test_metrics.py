from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client import REGISTRY, Counter, Gauge, Histogram
from prometheus_client.parser import text_string_to_metric_families

from proxy.metrics import (
    CONTENT_TYPE,
    MAX_LABEL_VALUES,
    MAX_USAGE_SERIES,
    OTHER_LABEL,
    PROCESS_METRICS,
    TOKEN_BUCKETS,
    Metrics,
)
from proxy.version import VERSION


def test_every_name_begins_with_the_namespace_and_is_described_once() -> None:
    metrics = Metrics()
    names = [described.name for described in metrics.descriptions]
    assert len(names) == len(set(names))
    assert all(re.fullmatch(r"context_proxy_[a-z_]+", name) for name in names)
    assert all(family.name.startswith("context_proxy_") for family in metrics.registry.collect())


def test_every_metric_is_an_attribute_of_its_name() -> None:
    metrics = Metrics()
    attributes = {k for k, v in vars(metrics).items() if isinstance(v, Counter | Gauge | Histogram)}
    assert attributes == {described.name.removeprefix("context_proxy_") for described in metrics.descriptions}


def test_counters_end_in_total() -> None:
    for described in Metrics().descriptions:
        assert described.name.endswith("_total") == (described.kind == "counter")


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="they are read from /proc")
def test_figures_of_the_process_are_described_as_they_are_reported() -> None:
    told = re.findall(r"^# TYPE (context_proxy_process_\w+) (\w+)$", Metrics().render_text().decode(), re.MULTILINE)
    assert sorted(told) == sorted((one.name, one.kind) for one in PROCESS_METRICS)


def test_counters_appear_in_the_exposition() -> None:
    metrics = Metrics()
    metrics.requests_total.labels(route="chat", status="200").inc()
    metrics.tokens_before.observe(1234)
    metrics.live_branches.set(3)
    text = metrics.render_text().decode()
    assert 'context_proxy_requests_total{route="chat",status="200"} 1.0' in text
    assert 'context_proxy_tokens_before_bucket{le="2000.0"} 1.0' in text
    assert "context_proxy_live_branches 3.0" in text
    assert f'context_proxy_build_info{{version="{VERSION}"}} 1.0' in text
    assert list(text_string_to_metric_families(text))
    assert CONTENT_TYPE.startswith("text/plain")


def test_no_series_says_when_another_series_began() -> None:
    metrics = Metrics()
    metrics.requests_total.labels(route="chat", status="200").inc()
    metrics.request_seconds.labels(route="chat").observe(1)
    assert b"_created" not in metrics.render_text()


@pytest.mark.parametrize("amount", [-1, 0, 99, 100, 100.5, 500, 1_000_000, 1_000_001, float("inf")])
def test_an_amount_is_counted_in_the_buckets_of_the_client_library(amount: float) -> None:
    metrics, plain = Metrics(), Histogram("tokens_before", "x", namespace="context_proxy", buckets=TOKEN_BUCKETS)
    metrics.tokens_before.observe(amount)
    plain.observe(amount)
    REGISTRY.unregister(plain)
    [ours], [theirs] = metrics.tokens_before.collect(), plain.collect()
    assert [(s.name, s.labels, s.value) for s in ours.samples if "created" not in s.name] == [
        (s.name, s.labels, s.value) for s in theirs.samples if "created" not in s.name
    ]


def series(metrics: Metrics, name: str, label: str) -> set[str]:
    """The label values that have a series before anything was counted."""
    return set(
        re.findall(rf'^context_proxy_{name}{{{label}="([^"]+)"}} 0.0$', metrics.render_text().decode(), re.MULTILINE)
    )


def test_the_first_fault_is_an_increase() -> None:
    metrics = Metrics()
    code = "".join(path.read_text() for path in (Path(__file__).parents[1] / "proxy").rglob("*.py"))
    places = set(re.findall(r'internal_errors_total\.labels\((?:where=)?"(\w+)"\)', code))
    places |= set(re.findall(r'on_lookup_failed\("(\w+)"\)', code))
    assert series(metrics, "internal_errors_total", "where") == places
    assert series(metrics, "refusals_total", "rule") == set(re.findall(r'setdefault\("(W\d+)"', code))
    assert series(metrics, "refetch_total", "kind") == {"repeat", "reread", "recall", "excerpt"}
    assert series(metrics, "over_budget_total", "kind") == {"prompt", "level"}


def test_two_proxies_in_one_process_do_not_share_counts() -> None:
    one, other = Metrics(), Metrics()
    one.client_gone_total.inc()
    assert "context_proxy_client_gone_total 1.0" in one.render_text().decode()
    assert "context_proxy_client_gone_total 0.0" in other.render_text().decode()


def test_a_series_is_found_by_its_labels_in_any_order() -> None:
    metrics = Metrics()
    metrics.requests_total.labels(route="chat", status="200").inc()
    metrics.requests_total.labels(status="200", route="chat").inc()
    metrics.requests_total.labels("chat", "200").inc()
    assert b'requests_total{route="chat",status="200"} 3.0' in metrics.render_text()
    with pytest.raises(ValueError, match="Incorrect label names"):
        metrics.requests_total.labels(route="chat")


def test_label_values_are_bounded() -> None:
    metrics = Metrics()
    values = [metrics.limit_label("path", f"/p{n}") for n in range(MAX_LABEL_VALUES + 20)]
    assert values[:MAX_LABEL_VALUES] == [f"/p{n}" for n in range(MAX_LABEL_VALUES)]
    assert set(values[MAX_LABEL_VALUES:]) == {OTHER_LABEL}
    assert metrics.limit_label("path", "/p0") == "/p0"
    assert metrics.limit_label("status", 404) == "404"


def test_known_values_always_count_and_take_their_share_of_the_bound() -> None:
    metrics = Metrics({"upstream": [f"u{n}" for n in range(MAX_LABEL_VALUES)]})
    assert metrics.limit_label("upstream", "u49") == "u49"
    assert metrics.limit_label("upstream", "elsewhere") == OTHER_LABEL


def test_a_label_value_cannot_be_long() -> None:
    assert len(Metrics().limit_label("path", "x" * 10_000)) == 100


def test_a_label_value_has_no_characters_that_a_terminal_obeys() -> None:
    metrics = Metrics()
    assert metrics.limit_label("model", "m\r\n\x1b[31m\x00\ud800 ä") == "m???[31m?? ä"
    metrics.requests_total.labels(route=metrics.limit_label("route", "\ud800"), status="200").inc()
    assert b'route="?"' in metrics.render_text()


def test_series_of_tokens_and_dollars_are_bounded_together() -> None:
    metrics = Metrics()
    first = metrics.limit_usage_labels("m0", "p0", "u0")
    assert first == ("m0", "p0", "u0")
    made = [metrics.limit_usage_labels(f"m{n % 40}", f"p{n % 30}", f"u{n % 7}") for n in range(5_000)]
    assert len({*made}) == MAX_USAGE_SERIES + 1
    assert set(made[-1]) == {OTHER_LABEL}
    assert metrics.limit_usage_labels("m0", "p0", "u0") == first
