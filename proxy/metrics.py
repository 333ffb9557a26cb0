"""All metrics, each defined once: its name, its labels and its meaning. GET /metrics serves them as text.

The metrics are on a registry of their own, so that two proxies in one process (as in tests) do not share counts. A
label's values are bounded, since each new value is a time series that is kept for ever.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.samples import Sample

from proxy.version import VERSION

NAMESPACE = "context_proxy"
CONTENT_TYPE = CONTENT_TYPE_LATEST
"""Content type of `Metrics.render_text()`."""

OTHER_LABEL = "other"
"""The label value for further values once a label has as many as it may have."""

MAX_LABEL_VALUES = 50
"""Number of values of a label that are counted separately."""

PROXY_TIME_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
"""Bucket bounds in seconds. The proxy's own share is milliseconds; `plan_ms` and worse are the last."""

ANSWER_TIME_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
"""Bucket bounds in seconds. Models take from a tenth of a second to minutes for a first token."""

RATIO_BUCKETS = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 10.0, 20.0, 50.0, 100.0)
"""Bucket bounds of compression ratios: below 2 there is a warning, and 10 is a good summary."""

REQUEST_TIME_BUCKETS = (*ANSWER_TIME_BUCKETS, 600.0)
"""Bucket bounds in seconds of whole requests, the model's answer included."""

USAGE_LABELS = ("model", "policy", "upstream")
"""Labels of tokens and dollars."""

MAX_USAGE_SERIES = 200
"""Number of combinations of `USAGE_LABELS` that are counted separately."""

INTERNAL_ERROR_PLACES = (
    "answer_unread", "bindings", "cache_ping", "chain", "compress", "count", "counting", "edits", "events", "helper",
    "idle", "learned_lengths", "learned_windows", "operator_decisions", "plan", "prepare", "prompt_notes", "reflection",
    "replan", "retention", "rounds", "search", "standing", "takeover", "tool", "upstream_close", "upstream_pool", "web",
    "webhook",
)  # fmt: skip
"""Values of the label `where` of internal errors."""

WIRE_RULES = ("W1", "W2", "W4", "W5", "W6", "W7", "W8")
"""Values of the label `rule` of refused plans: the rules of `context.validate`."""

TOKEN_BUCKETS = (100, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000)


@dataclass(frozen=True, slots=True)
class MetricDescription:
    """A metric as docs/reference/metrics.md lists it."""

    name: str
    kind: str
    labels: tuple[str, ...]
    description: str


PROCESS_METRICS = tuple(
    MetricDescription(f"{NAMESPACE}_process_{name}", kind, (), f"{tells}, on Linux.")
    for name, kind, tells in (
        ("cpu_seconds_total", "counter", "Processor time of this process, user and system together"),
        ("resident_memory_bytes", "gauge", "Memory of this process that is in RAM"),
        ("virtual_memory_bytes", "gauge", "Address space of this process"),
        ("start_time_seconds", "gauge", "Unix time at which this process began"),
        ("open_fds", "gauge", "Open file descriptors of this process"),
        ("max_fds", "gauge", "File descriptors that this process may have open"),
    )
)
"""Metrics that the client library reads from the system."""


class _SeriesByLabels(MetricWrapperBase):
    """A metric that remembers its series by the labels as the code gives them.

    prometheus_client sorts the labels and turns them into text with every call: a thirtieth of a request's time.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._series: dict[tuple[object, ...], Self] = {}

    def _child_samples(self) -> Iterable[Sample]:
        """Leave out the time at which a series began: in the text format it is one more series for each."""
        return [sample for sample in super()._child_samples() if sample.name != "_created"]

    def labels(self, *values: object, **labels: object) -> Self:
        """Return the series with these labels."""
        place = values or tuple(labels.items())
        found = self._series.get(place)
        if found is None:
            found = self._series[place] = super().labels(*values, **labels)
        return found


class LabelledCounter(_SeriesByLabels, Counter):
    """A counter whose series are found quickly."""


class LabelledHistogram(_SeriesByLabels, Histogram):
    """A histogram whose series and buckets are found quickly."""

    def observe(self, amount: float, exemplar: dict[str, str] | None = None) -> None:
        """Count an amount. prometheus_client compares it with one bound after the other."""
        if exemplar is not None or not self._is_observable():  # type: ignore[no-untyped-call]
            super().observe(amount, exemplar)
            return
        self._sum.inc(amount)
        self._buckets[bisect_left(self._upper_bounds, amount)].inc(1)


class Metrics:
    """All metrics, one attribute each. known_labels: by limit_label, the label values that always count."""

    def __init__(self, known_labels: Mapping[str, Iterable[str]] | None = None) -> None:
        self.registry = CollectorRegistry()
        self.descriptions: list[MetricDescription] = []
        self._usage_series: set[tuple[str, str, str]] = set()
        self._seen: dict[str, set[str]] = {kind: set(values) for kind, values in (known_labels or {}).items()}

        self.request_seconds = self._histogram(
            "request_seconds", PROXY_TIME_BUCKETS, ("route",), "Time of a chat request before it is sent on."
        )
        self.request_duration_seconds = self._histogram(
            "request_duration_seconds",
            REQUEST_TIME_BUCKETS,
            ("route",),
            "Time of a whole request, from its first byte to the end of its answer.",
        )
        self.first_token_seconds = self._histogram(
            "first_token_seconds",
            ANSWER_TIME_BUCKETS,
            ("upstream",),
            "Time from sending a request to the answer's first byte.",
        )
        self.tokens_before = self._histogram("tokens_before", TOKEN_BUCKETS, (), "Tokens of a prompt as received.")
        self.tokens_after = self._histogram("tokens_after", TOKEN_BUCKETS, (), "Tokens of a prompt as it was sent.")
        self.requests_total = self._counter("requests_total", ("route", "status"), "Requests answered.")
        self.edits_total = self._counter("edits_total", ("stage",), "Edits made, by the stage that proposed them.")
        self.refusals_total = self._counter(
            "refusals_total",
            ("rule",),
            "Plans thrown away because they broke a rule; the original was sent.",
            values=WIRE_RULES,
        )
        self.fallbacks_total = self._counter("fallbacks_total", ("reason",), "Requests sent on without their plan.")
        self.replans_total = self._counter(
            "replans_total",
            ("reason",),
            "Plans made once more: edits not stored in time, or made elsewhere too, or a prompt too long.",
        )
        self.upstream_errors_total = self._counter(
            "upstream_errors_total",
            ("upstream", "kind"),
            "Upstream failures: unreachable, timeout, broken, encoding (unknown compression), or the status "
            "(429, 5xx, and 401 to the operator's key).",
        )
        self.unmanaged_total = self._counter("unmanaged_total", ("path",), "Requests that pass without being managed.")
        self.persist_deferred_total = self._counter(
            "persist_deferred_total", (), "Answers that ended before they were on disk, and said so."
        )
        self.persist_dropped_total = self._counter(
            "persist_dropped_total",
            (),
            "Rows that could not be stored, and requests that went on without a store; a gap is recorded.",
        )
        self._add_usage_metrics()
        self._add_client_metrics()
        self._add_helper_metrics()
        self._add_compression_metrics()
        self._add_tool_metrics()
        self._add_event_metrics()
        self._add_memory_metrics()
        self._add_process_metrics()

    def _add_usage_metrics(self) -> None:
        self.upstream_truncated_total = self._counter(
            "upstream_truncated_total", (), "Streams that ended without an end."
        )
        self.context_tokens_total = self._counter(
            "context_tokens_total",
            (*USAGE_LABELS, "kind"),
            "Prompt tokens by our own count: `before`, as received, and `sent`, as they went out.",
        )
        self.cached_tokens_total = self._counter(
            "cached_tokens_total",
            (*USAGE_LABELS, "kind"),
            "Prompt tokens from the provider's cache: `predicted` and `reported`.",
        )
        self.prompt_tokens_total = self._counter(
            "prompt_tokens_total", USAGE_LABELS, "Prompt tokens that upstreams reported."
        )
        self.completion_tokens_total = self._counter(
            "completion_tokens_total",
            USAGE_LABELS,
            "Completion tokens that upstreams reported; of an answer without an end, at least those that came.",
        )
        self.dropped_reasoning_total = self._counter(
            "dropped_reasoning_total",
            ("reason", "prompt"),
            "Pieces of reasoning that an upstream left out, behind the `client`'s own prompt or a `changed` one."
            " The reason of those that the proxy itself left out is `left_out`.",
        )
        self.provider_cleared_total = self._counter(
            "provider_cleared_total",
            ("kind",),
            "Tool `results` that a provider cleared at the proxy's request, and their `tokens`.",
        )
        self.dropped_reasoning_dollars_total = self._counter(
            "dropped_reasoning_dollars_total", (), "Price of thinking again what was left out, estimated."
        )
        self.cost_dollars_total = self._counter(
            "cost_dollars_total",
            (*USAGE_LABELS, "kind"),
            "Dollars by the provider's bill, or the model's prices: `paid`, and those `without` the proxy, estimated."
            " Under `observe` also what the `planned` prompts would have cost.",
        )

    def _add_process_metrics(self) -> None:
        self.internal_errors_total = self._counter(
            "internal_errors_total",
            ("where",),
            "Faults of the proxy's own. A request fails by those of the place `web` alone, with a 500.",
            values=INTERNAL_ERROR_PLACES,
        )
        # PROCESS_METRICS, read when asked for.
        ProcessCollector(namespace=NAMESPACE, registry=self.registry)

    def _add_memory_metrics(self) -> None:
        self.build_info = self._gauge("build_info", "1, with the version that this process runs.", ("version",))
        self.build_info.labels(VERSION).set(1)
        self.live_branches = self._gauge("live_branches", "Branches whose state is in memory.")
        self.live_bytes = self._gauge("live_bytes", "Memory taken by their state, estimated.")
        self.message_cache_bytes = self._gauge("message_cache_bytes", "Memory taken by messages already read.")
        self.message_cache_misses_total = self._counter(
            "message_cache_misses_total",
            (),
            "Long requests of known conversations that were read again as a whole: another beginning, a restart, or "
            "limits.message_cache_mb is too small.",
        )
        self.store_up = self._gauge("store_up", "1 while the store takes writes, 0 after one has failed.")
        self.store_readable = self._gauge(
            "store_readable", "1 while the store answers reads, 0 after one has failed, until one succeeds."
        )
        self.store_queue = self._gauge("store_queue", "Transactions waiting to be written.")
        self.store_log_bytes = self._gauge("store_log_bytes", "Size of SQLite's write-ahead log.")

    def _add_client_metrics(self) -> None:
        self.ignored_headers_total = self._counter(
            "ignored_headers_total", ("header",), "Request headers x-context-* with a value that is not understood."
        )
        self.model_lists_left_out_total = self._counter(
            "model_lists_left_out_total",
            ("upstream",),
            "Upstreams that were left out of the one list of models: they refused it, failed or were slow.",
        )
        self.client_gone_total = self._counter("client_gone_total", (), "Clients that left before their answer ended.")
        self.refused_requests_total = self._counter(
            "refused_requests_total",
            (),
            "Requests refused with 503: there were `limits.requests`, or bodies had all of `limits.bodies_mb`.",
        )
        self.plans_stopped_total = self._counter(
            "plans_stopped_total", (), "Plans that were stopped on their way: over limits.plan_ms, or nobody waits."
        )
        self.refused_connections_total = self._counter(
            "refused_connections_total",
            ("why",),
            "Connections ended: `silent`, `half_open`, `crowded`, or the answer's status (400, 408, 426, 431, 503).",
        )
        self.retired_total = self._counter(
            "retired_total", (), "Sessions and branches that `store.retention_days` has removed."
        )

    def _add_helper_metrics(self) -> None:
        self.helper_total = self._counter(
            "helper_total",
            ("kind", "outcome"),
            "Questions to helper models: `kept` and `stored` were answered, all others were done without.",
        )
        self.helper_dollars_total = self._counter(
            "helper_dollars_total",
            ("kind",),
            "Dollars that helper models cost, by the provider's own bill or the model's prices.",
        )
        self.helper_tokens_total = self._counter(
            "helper_tokens_total", ("kind",), "Tokens of prompts and answers of helper models."
        )
        self.reflections_total = self._counter(
            "reflections_total", ("outcome",), "Reflections of the model's own: json, text (not JSON) or missing."
        )
        self.reflection_tokens_total = self._counter(
            "reflection_tokens_total", ("kind",), "Tokens of asking the model itself to reflect, and of what it wrote."
        )

    def _add_compression_metrics(self) -> None:
        self.idle_compressions_total = self._counter(
            "idle_compressions_total",
            ("outcome",),
            "Branches compressed while idle: `asked` a helper, only `planned`, or `dropped`, since too many waited.",
        )
        self.cache_pings_total = self._counter(
            "cache_pings_total",
            ("outcome",),
            "Pings that keep a provider's cache warm (`cache.keep_alive_pings`). `warm` was served from the cache, "
            "`cold` was not. `answered` got an answer that was not asked for. `refused` and `failed` got an error. "
            "`cancelled`: a request came or the proxy stopped meanwhile. `dropped`: too many branches waited.",
        )
        self.level_tokens = self._histogram(
            "level_tokens", TOKEN_BUCKETS, ("level",), "Tokens of a prompt by level of memory, as it was sent."
        )
        self.compressed_tokens_total = self._counter(
            "compressed_tokens_total", ("kind",), "Tokens that compression took in (`before`) and left (`after`)."
        )
        self.compression_ratio = self._histogram(
            "compression_ratio", RATIO_BUCKETS, (), "Tokens before over tokens after, of what a request compressed."
        )
        self.over_budget_total = self._counter(
            "over_budget_total",
            ("kind",),
            "Prompts over their budget with everything out that may go: the whole `prompt`, or a `level` of it.",
            values=("prompt", "level"),
        )
        self.low_ratio_total = self._counter(
            "low_ratio_total", (), "Requests that compressed less than 2x: summaries may be too detailed."
        )
        self.refetch_total = self._counter(
            "refetch_total",
            ("kind",),
            "Cut results that the model fetched again: `repeat` (the same call), `reread` (of the file), `recall`, or"
            " `excerpt` (a part, by another call).",
            values=("repeat", "reread", "recall", "excerpt"),
        )
        self.retrieved_items_total = self._counter(
            "retrieved_items_total", (), "Messages that were quoted in a prompt after they had left it."
        )

    def _add_tool_metrics(self) -> None:
        self.tools_total = self._counter(
            "tools_total",
            ("tool", "outcome"),
            "Calls of the proxy's own tools: done, refused (the arguments), limited (time or size), or failed.",
        )
        self.tool_rounds_total = self._counter(
            "tool_rounds_total",
            ("outcome",),
            "Answers that went into tools of the proxy's own: run, or ended by rounds, time or repeats.",
        )
        self.tool_seconds = self._histogram(
            "tool_seconds", ANSWER_TIME_BUCKETS, ("tool",), "Time that a call of one of the proxy's own tools took."
        )
        self.memos_total = self._counter(
            "memos_total", ("outcome",), "Memos that were saved, merged with one that was there, or turned away."
        )

    def _add_event_metrics(self) -> None:
        self.events_total = self._counter("events_total", ("kind",), "Events published, with or without a listener.")
        self.events_lost_total = self._counter(
            "events_lost_total", (), "Events that a listener lost because it was too slow."
        )
        self.webhooks_total = self._counter(
            "webhooks_total",
            ("webhook", "outcome"),
            "Events to webhooks: delivered, retried, refused (4xx, a redirect), or failed after the last try.",
        )
        self.event_listeners = self._gauge("event_listeners", "Listeners to events, webhooks included.")

    def limit_label(self, name: str, value: object) -> str:
        """Return the value itself if it is known or among the first 50 of its kind, else `other`."""
        text = str(value)[:100]
        if not text.isprintable():  # clients choose names of models: a terminal would obey what is in one
            text = "".join(each if each.isprintable() else "?" for each in text)
        seen = self._seen.setdefault(name, set())
        if text in seen:
            return text
        if len(seen) >= MAX_LABEL_VALUES:
            return OTHER_LABEL
        seen.add(text)
        return text

    def limit_usage_labels(self, model: str, policy: str, upstream: str) -> tuple[str, str, str]:
        """Return the values of `USAGE_LABELS`. They are limited as by `limit_label`, as are their combinations."""
        limit = self.limit_label
        series = (limit("model", model), limit("policy", policy), limit("upstream", upstream))
        if series not in self._usage_series:
            if len(self._usage_series) >= MAX_USAGE_SERIES:
                series = (OTHER_LABEL, OTHER_LABEL, OTHER_LABEL)
            else:
                self._usage_series.add(series)
        return series

    def render_text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.registry)

    def _counter(self, name: str, labels: tuple[str, ...], tells: str, *, values: Iterable[str] = ()) -> Counter:
        """Add a counter. values: of its one label, where all are known. Their series begin at 0, since Prometheus sees
        no increase in a series that begins with its first count."""
        self.descriptions.append(MetricDescription(f"{NAMESPACE}_{name}", "counter", labels, tells))
        counter = LabelledCounter(name, tells, labels, namespace=NAMESPACE, registry=self.registry)
        for value in values:
            counter.labels(value)
        return counter

    def _gauge(self, name: str, tells: str, labels: tuple[str, ...] = ()) -> Gauge:
        self.descriptions.append(MetricDescription(f"{NAMESPACE}_{name}", "gauge", labels, tells))
        return Gauge(name, tells, labels, namespace=NAMESPACE, registry=self.registry)

    def _histogram(self, name: str, buckets: tuple[float, ...], labels: tuple[str, ...], tells: str) -> Histogram:
        self.descriptions.append(MetricDescription(f"{NAMESPACE}_{name}", "histogram", labels, tells))
        return LabelledHistogram(name, tells, labels, namespace=NAMESPACE, registry=self.registry, buckets=buckets)
