"""A receiver of OTLP over HTTP on a real socket, which decodes what it gets with the protocol's own messages."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class Span:
    """A span as it came. kind: 2 is a server's, 3 a client's. status: 2 is an error."""

    name: str
    kind: int
    trace: str
    id: str
    parent: str
    attributes: dict[str, Any]
    status: int
    seconds: float
    service: str


@dataclass
class Receiver:
    """The requests that came. raw: every body, decompressed."""

    url: str
    spans: list[Span] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    raw: list[bytes] = field(default_factory=list)

    @property
    def server_spans(self) -> list[Span]:
        return [span for span in self.spans if span.kind == 2]

    @property
    def client_spans(self) -> list[Span]:
        return [span for span in self.spans if span.kind == 3]


def value_of(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return [value_of(one) for one in value.array_value.values] if kind == "array_value" else getattr(value, kind)


def read_spans(body: bytes) -> Iterator[Span]:
    for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
        named = {one.key: value_of(one.value) for one in resource.resource.attributes}
        for scope in resource.scope_spans:
            for one in scope.spans:
                yield Span(
                    one.name, one.kind, one.trace_id.hex(), one.span_id.hex(), one.parent_span_id.hex(),
                    {each.key: value_of(each.value) for each in one.attributes}, one.status.code,
                    (one.end_time_unix_nano - one.start_time_unix_nano) / 1e9, named["service.name"],
                )  # fmt: skip


@contextmanager
def receiving() -> Iterator[Receiver]:
    """A receiver on a free port."""

    class Endpoint(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            found.paths.append(self.path)
            found.raw.append(body)
            found.spans += read_spans(body)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Nothing is printed."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
    found = Receiver(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
