from __future__ import annotations

import asyncio
import json

import pytest

from proxy.errors import (
    BadRequest,
    ClientGone,
    HeadersTooLarge,
    ProxyError,
    TooLarge,
    Unavailable,
    UpstreamBroken,
    UpstreamTimeout,
    UpstreamUnreachable,
)
from proxy.metrics import Metrics
from proxy.web.asgi import Message, Receive, Scope, Send
from proxy.web.error_responses import answer_errors, render_error, send_error
from tests.raw_upstream import make_post, send_raw, serve_app


async def send_and_read_error(error: ProxyError) -> tuple[int, dict[bytes, bytes], dict[str, object]]:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    await send_error(send, error, [(b"x-context-session", b"s")])
    start, body = sent
    headers = dict(start["headers"])
    assert headers[b"content-length"] == b"%d" % len(body["body"])
    assert headers[b"x-context-session"] == b"s"
    return start["status"], headers, json.loads(body["body"])["error"]


@pytest.mark.parametrize("kind", [BadRequest, TooLarge, HeadersTooLarge])
async def test_a_limit_of_the_proxy_says_that_trying_again_is_of_no_use(kind: type[ProxyError]) -> None:
    status, headers, error = await send_and_read_error(kind("no", hint="Do."))
    assert status == kind.status
    assert headers[b"x-should-retry"] == b"false"
    assert error == {"message": "no. Do.", "type": "invalid_request_error", "param": None, "code": kind.code}


@pytest.mark.parametrize("kind", [Unavailable, UpstreamUnreachable, UpstreamTimeout, UpstreamBroken])
async def test_a_transient_error_does_not_forbid_a_retry(kind: type[ProxyError]) -> None:
    status, headers, error = await send_and_read_error(kind("away"))
    assert status in (502, 503, 504)
    assert b"x-should-retry" not in headers
    assert (b"retry-after" in headers) == (kind is Unavailable)
    assert error["code"] == kind.code


def test_an_error_is_json_whatever_is_in_it() -> None:
    assert json.loads(render_error(BadRequest('"\r\n\ud800 ü')))["error"]["message"] == '"\r\n\ud800 ü'
    assert render_error(BadRequest("ü\n")).isascii()


@pytest.mark.parametrize("error", [UpstreamBroken("broke"), KeyError("mistake")])
async def test_an_answer_that_has_begun_is_cut_and_never_completed(error: Exception) -> None:
    metrics = Metrics()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"part", "more_body": True})
        raise error

    async with serve_app(answer_errors(app, metrics)) as port:
        raw = await send_raw(port, make_post())
        assert raw.endswith(b"4\r\npart\r\n")
        assert b"error" not in raw


async def test_a_fault_of_the_proxy_is_a_plain_500_and_counted() -> None:
    metrics = Metrics()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise KeyError("sk-secret")

    async with serve_app(answer_errors(app, metrics)) as port:
        raw = await send_raw(port, make_post())
    assert raw.startswith(b"HTTP/1.1 500")
    assert b"sk-secret" not in raw
    assert metrics.registry.get_sample_value("context_proxy_internal_errors_total", {"where": "web"}) == 1


async def test_a_client_that_is_gone_is_told_nothing_and_counted() -> None:
    metrics = Metrics()
    sent: list[Message] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise ClientGone("bye")

    async def receive() -> Message:
        await asyncio.sleep(1)
        return {}

    async def send(message: Message) -> None:
        sent.append(message)

    await answer_errors(app, metrics)({"type": "http"}, receive, send)
    assert sent == []
    assert metrics.registry.get_sample_value("context_proxy_client_gone_total") == 1
