"""The layer around the routes; with a receiver of spans: tests/test_telemetry.py."""

from __future__ import annotations

from typing import Any

import pytest

from proxy.web.routes import DATA, HEALTH, find_route_name
from proxy.web.tracing import trace_requests


class Recorder:
    """A tracer that counts what begins and keeps how it ended."""

    def __init__(self) -> None:
        self.ended: list[tuple[int, str]] = []

    def begin_request(self, method: str, route: str, headers: object) -> Recorder:
        return self

    def end(self, status: int, facts: object, error: BaseException | None) -> None:
        self.ended.append((status, type(error).__name__ if error else ""))


async def call(recorder: Any, route: Any, *, fails: bool = False) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if fails:
            raise ZeroDivisionError
        await send({"type": "http.response.start", "status": 204, "headers": []})

    async def send(message: Any) -> None:
        assert message["status"] == 204

    async def receive() -> Any:
        raise AssertionError("nothing is read")

    scope: Any = {"context.route": route, "method": "POST", "path": "/v1/messages", "headers": []}
    await trace_requests(app, recorder)(scope, receive, send)


async def test_a_request_of_a_client_ends_with_its_status_or_its_error_and_a_probe_is_not_traced() -> None:
    recorder = Recorder()
    await call(recorder, DATA)
    await call(recorder, HEALTH)
    with pytest.raises(ZeroDivisionError):
        await call(recorder, DATA, fails=True)
    assert recorder.ended == [(204, ""), (0, "ZeroDivisionError")]


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/v1/chat/completions", "/v1/chat/completions"),
        ("/s/night shift/v1/messages", "/v1/messages"),
        ("/s/x/v1beta/models/gemini-3-pro:countTokens", "/v1beta/models/{model}:countTokens"),
        ("/v1/retrieve/0123456789abcdef", "/v1/retrieve/{hash}"),
        ("/v1/compress", "/v1/compress"),
        ("/v1/files/one", "*"),
        ("/s/x", "*"),
    ],
)
def test_a_route_has_a_name_without_what_differs_from_request_to_request(path: str, name: str) -> None:
    assert find_route_name(path) == name
