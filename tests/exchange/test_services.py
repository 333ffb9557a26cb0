from __future__ import annotations

from typing import Any

from proxy.exchange.services import Incoming, ResponseWriter
from proxy.web.app import create_app
from proxy.web.chat import AsgiResponse
from tests.running import settings_for


def test_the_parts_of_an_exchange_are_made_once_and_share_one_store() -> None:
    app = create_app(settings_for("demo"))
    assert app.services.store is app.store
    assert app.services.live_sessions.store is app.store
    assert app.services.settings is app.settings
    assert set(app.services.policies) >= {"thrifty", "rolling", "passthrough", "observe"}
    assert len(app.services.live_sessions) == 0


def test_two_apps_share_nothing_that_changes() -> None:
    one, other = (create_app(settings_for("demo")).services for _ in range(2))
    for name in (
        "learned_windows",
        "warm_counters",
        "logged_warnings",
        "live_sessions",
        "message_cache",
        "metrics",
        "client",
    ):
        assert getattr(one, name) is not getattr(other, name)


async def test_the_way_back_to_a_client_is_what_asgi_wants() -> None:
    said: list[Any] = []

    async def send(message: Any) -> None:
        said.append(message)

    back: ResponseWriter = AsgiResponse(send)
    await back.start(200, [(b"a", b"b")])
    await back.write(b"c")
    await back.end(b"d")
    assert said == [
        {"type": "http.response.start", "status": 200, "headers": [(b"a", b"b")]},
        {"type": "http.response.body", "body": b"c", "more_body": True},
        {"type": "http.response.body", "body": b"d"},
    ]
    said.clear()
    await back.abort()
    assert said == [], "an answer that is broken off has no end"


def test_a_request_is_what_came() -> None:
    came = Incoming("POST", "/v1/chat/completions", b"a=1", [(b"host", b"x")], b"{}", None)
    assert (came.path, came.query, came.session) == ("/v1/chat/completions", b"a=1", None)
