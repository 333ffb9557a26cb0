"""OpenTelemetry: a span for each request and each upstream round, in the words of the GenAI semantic conventions.

The package is optional and is imported only where `telemetry.enabled` is set. Spans hold names, numbers and ids, and no
text of a conversation. They are sent in the background over OTLP/HTTP, and a collector that is away delays nothing.

A request's context variable holds its trace. So every request to an upstream is found, also one that a task of the
request sends.
"""

from __future__ import annotations

import importlib
import importlib.util
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from proxy.errors import ConfigError
from proxy.settings.load import Settings

Headers = list[tuple[bytes, bytes]]

TRACES_PATH = "/v1/traces"
"""The path of OTLP/HTTP after the endpoint."""
EXPORT_S = 5
"""Seconds for which one batch, and the last one at the end, is tried."""
PROVIDERS: Mapping[str, str] = {"anthropic": "anthropic", "gemini": "gcp.gemini", "gemini_gca": "gcp.gemini"}
"""`gen_ai.provider.name` by the wire format of the upstream; all others speak OpenAI's."""
SPAN_ATTRIBUTES = (
    ("session", "gen_ai.conversation.id"), ("policy", "context_proxy.policy"), ("fallback", "context_proxy.fallback"),
    ("outcome", "context_proxy.outcome"), ("tokens_before", "context_proxy.tokens.before"),
    ("tokens_after", "context_proxy.tokens.after"),
)  # fmt: skip
"""Fields of the request log, and the attributes that have them."""


@dataclass(slots=True, eq=False)
class RequestTrace:
    """One request's span and the spans of its rounds, which end with it: their usage is known late."""

    telemetry: Telemetry
    span: Any
    context: Any
    rounds: list[UpstreamRound] = field(default_factory=list)
    model: str = ""
    """The model that the request names, once it was read."""

    def end(self, status: int, log_fields: Mapping[str, Any], error: BaseException | None) -> None:
        """End all spans. status: the answer's, 0 for none. log_fields: the fields of the request log."""
        attributes = {attribute: log_fields[name] for name, attribute in SPAN_ATTRIBUTES if name in log_fields}
        for round_span in self.rounds:
            if "session" in log_fields:
                round_span.span.set_attribute("gen_ai.conversation.id", log_fields["session"])
            round_span.finish()
        if status:
            attributes["http.response.status_code"] = status
        if error is not None or status >= 500:
            attributes["error.type"] = getattr(error, "code", None) or (type(error).__name__ if error else str(status))
            self.telemetry.mark_failed(self.span)
        self.span.set_attributes(attributes)
        self.span.end()

    def record_usage(self, usages: Sequence[tuple[int, int, int]], finish_reasons: Sequence[str]) -> None:
        """Record (prompt, cached or -1, completion) of each round, in order. Rounds without an answer have none."""
        answered = [round_span for round_span in self.rounds if round_span.status == 200]
        for round_span, (prompt, cached, completion) in zip(answered[-len(usages) :], usages, strict=False):
            round_span.span.set_attribute("gen_ai.usage.input_tokens", prompt)
            round_span.span.set_attribute("gen_ai.usage.output_tokens", completion)
            if cached >= 0:
                round_span.span.set_attribute("gen_ai.usage.cache_read.input_tokens", cached)
        if answered and finish_reasons:
            answered[-1].span.set_attribute("gen_ai.response.finish_reasons", list(finish_reasons))


CURRENT_TRACE: ContextVar[RequestTrace | None] = ContextVar("trace", default=None)
"""The trace of the request that this task works on."""


@dataclass(slots=True, eq=False)
class UpstreamRound:
    """One request to an upstream."""

    span: Any
    carrier: dict[str, str]
    """The headers that hand the trace on."""
    is_alone: bool
    """True if no request's trace ends it."""
    mark_failed: Callable[[Any], None]
    """Sets the status of a span to error."""
    status: int = 0
    ended_ns: int = 0

    def add_headers(self, headers: Iterable[tuple[bytes, bytes]]) -> Headers:
        """Return the request's headers with this span as the caller's."""
        names = {name.encode() for name in self.carrier}
        kept = [(name, value) for name, value in headers if name.lower() not in names]
        return kept + [(name.encode(), value.encode("latin-1")) for name, value in self.carrier.items()]

    def record_answer(self, status: int) -> None:
        """Record the head of the answer."""
        self.status = status
        self.span.set_attribute("http.response.status_code", status)
        if status >= 400:
            self._record_error(str(status))

    def record_end(self, error: str = "") -> None:
        """Record the time of the end, and the error's code if it is one. It may be called again."""
        if error:
            self._record_error(error)
        if not self.ended_ns:
            self.ended_ns = time.time_ns()
        if self.is_alone:
            self.finish()

    def finish(self) -> None:
        """End the span at the recorded time."""
        self.span.end(self.ended_ns or None)

    def _record_error(self, error_type: str) -> None:
        self.span.set_attribute("error.type", error_type)
        self.mark_failed(self.span)


class Telemetry:
    """The tracer and its exporter: one for a process."""

    def __init__(self, settings: Settings) -> None:
        """Import the package and start the exporter's thread. Raises ConfigError if the package is not there."""
        if importlib.util.find_spec("opentelemetry.sdk") is None:
            raise ConfigError("telemetry.enabled", True, 'the package: pip install "agent-context-proxy[otel]"')
        load = importlib.import_module
        self._api = load("opentelemetry.trace")
        self._propagate = load("opentelemetry.trace.propagation.tracecontext").TraceContextTextMapPropagator()
        trace, options = load("opentelemetry.sdk.trace"), settings.telemetry
        resource = load("opentelemetry.sdk.resources").Resource.create({"service.name": options.service_name})
        exporter = load("opentelemetry.exporter.otlp.proto.http.trace_exporter").OTLPSpanExporter(
            endpoint=options.endpoint.rstrip("/") + TRACES_PATH, timeout=EXPORT_S
        )
        self._provider = trace.TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(load("opentelemetry.sdk.trace.export").BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("context-proxy")
        self._kinds = self._api.SpanKind

    def begin_request(self, method: str, route: str, headers: Iterable[tuple[bytes, bytes]]) -> RequestTrace:
        """Begin a request's span, as a child of the client's if its headers name one."""
        carrier = {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in headers
            if name in (b"traceparent", b"tracestate")
        }
        parent = self._propagate.extract(carrier) if carrier else None
        attributes = {"http.request.method": method, "http.route": route}
        span = self._tracer.start_span(f"{method} {route}", parent, kind=self._kinds.SERVER, attributes=attributes)
        return RequestTrace(self, span, self._api.set_span_in_context(span))

    def begin_round(self, method: str, url: str, strategy: str) -> UpstreamRound:
        """Begin the span of a request to an upstream. strategy: the kind of provider that answers there."""
        trace = CURRENT_TRACE.get()
        model = trace.model if trace is not None else ""
        parts = urlsplit(url)
        attributes: dict[str, Any] = {"http.request.method": method, "server.address": parts.hostname or ""}
        if (port := parts.port or {"https": 443, "http": 80}.get(parts.scheme)) is not None:
            attributes["server.port"] = port
        if model:
            attributes |= {
                "gen_ai.operation.name": "chat",
                "gen_ai.provider.name": PROVIDERS.get(strategy, "openai"),
                "gen_ai.request.model": model,
            }
        name = f"chat {model}" if model else method
        parent = trace.context if trace is not None else None
        span = self._tracer.start_span(name, parent, kind=self._kinds.CLIENT, attributes=attributes)
        carrier: dict[str, str] = {}
        self._propagate.inject(carrier, self._api.set_span_in_context(span))
        made = UpstreamRound(span, carrier, is_alone=trace is None, mark_failed=self.mark_failed)
        if trace is not None:
            trace.rounds.append(made)
        return made

    def mark_failed(self, span: Any) -> None:
        """Set a span's status to error."""
        span.set_status(self._api.Status(self._api.StatusCode.ERROR))

    def close(self) -> None:
        """Send what waits, and end the exporter's thread. It takes EXPORT_S at most, so it runs beside the loop."""
        self._provider.force_flush(EXPORT_S * 1000)
        self._provider.shutdown()


def create_telemetry(settings: Settings) -> Telemetry | None:
    """Return the tracer; None where telemetry is off, so that nothing is imported and nothing done."""
    return Telemetry(settings) if settings.telemetry.enabled else None
