from __future__ import annotations

import pytest

from proxy.metrics import Metrics
from proxy.settings.load import LimitSettings, Settings
from proxy.web.asgi import Receive, Scope, Send
from proxy.web.error_responses import answer_errors
from proxy.web.head_limits import limit_heads
from tests.faulty import ask, serving


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


async def status(*lines: bytes, first: bytes = b"GET /v1/models HTTP/1.1") -> int:
    guard = answer_errors(limit_heads(app, Settings(limits=LimitSettings(header_kb=64))), Metrics())
    async with serving(guard) as port:
        raw = await ask(port, b"\r\n".join([first, b"connection: close", *lines, b"", b""]))
    return int(raw.split()[1])


@pytest.mark.parametrize(
    ("lines", "answer"),
    [
        ([b"host: a"], 200),
        ([b"host: localhost:8080"], 200),
        ([b"host: [::1]:8080"], 200),
        ([], 400),
        ([b"host: a", b"host: a"], 400),
        ([b"host: a", b"Host: b"], 400),
        ([b"host: x/#@y"], 400),
        ([b"host: localhost/health?"], 400),
        ([b"host: "], 400),
        ([b"host: a b"], 400),
    ],
)
async def test_h2_a_host_is_there_once_and_is_a_host(lines: list[bytes], answer: int) -> None:
    assert await status(*lines) == answer


async def test_http_1_0_may_go_without_a_host() -> None:
    assert await status(first=b"GET /v1/models HTTP/1.0") == 200


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([b"x-big: " + b"x" * 70_000], id="70 KB header"),
        pytest.param([b"x%d: y" % n for n in range(20_000)], id="20,000 headers"),
        pytest.param([b"x-big: " + b"x" * (5 << 20)], id="5 MB header"),
    ],
)
async def test_h4_a_head_over_the_limit_is_431(lines: list[bytes]) -> None:
    assert await status(b"host: a", *lines) == 431


async def test_h4_a_long_url_counts_as_well() -> None:
    assert await status(b"host: a", b"x: " + b"y" * 9_000, first=b"GET /v1/" + b"x" * 60_000 + b" HTTP/1.1") == 431
    assert await status(b"host: a", b"x: " + b"y" * 9_000, first=b"GET /v1/x?" + b"x" * 60_000 + b" HTTP/1.1") == 431
    over_64k = await status(b"host: a", first=b"GET /v1/" + b"x" * 70_000 + b" HTTP/1.1")
    assert over_64k in (400, 431), "the parser's own limit is 64 KiB, and it says 400"
    assert await status(b"host: a", b"x: " + b"y" * 60_000) == 200
