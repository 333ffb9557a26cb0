"""Webhooks on real sockets: what arrives, that it is signed, what is tried again, and that nobody waits for them."""

from __future__ import annotations

import asyncio
import hmac
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import Any

import pytest

from proxy.errors import ConfigError
from proxy.events import bus
from proxy.events.webhooks import sign_body
from proxy.web.app import ContextProxy
from tests.proxy_server import Agent, RunningProxy, make_settings, run_proxy
from tests.raw_upstream import Connection, RawRequest, Upstream, run_upstream, wait_until
from tests.scripted_model import ScriptedModel, send_reply

SECRET = "a secret of the test's"


class Receiver:
    """Answers with these statuses, the last one for ever."""

    def __init__(self, *statuses: int | bytes) -> None:
        self.statuses = list(statuses) or [200]
        self.got: list[RawRequest] = []

    async def __call__(self, request: RawRequest, connection: Connection) -> None:
        self.got.append(request)
        status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
        line = status if isinstance(status, bytes) else b"%d Said" % status
        await send_reply(connection, line, b"ok")

    @property
    def told(self) -> list[dict[str, Any]]:
        return [json.loads(request.body) for request in self.got]


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK_SECRET", SECRET)


def hook(port: int, **more: Any) -> dict[str, Any]:
    return {"url": f"http://127.0.0.1:{port}/in?k=1", "secret_env": "HOOK_SECRET", **more}


def impatient(app: ContextProxy) -> None:
    app.webhooks._retry_s = 0.01


@asynccontextmanager
async def hooked(
    script: Callable[[RawRequest, Connection], Any], more: dict[str, Any] | None = None, **tree: Any
) -> AsyncIterator[tuple[RunningProxy, Upstream]]:
    """A proxy with one webhook, whose receiver is this."""
    async with run_upstream(script) as upstream:
        hooks = [hook(upstream.port, **(more or {}))]
        async with run_proxy("demo", before=impatient, webhooks=hooks, **tree) as proxy:
            yield proxy, upstream


def outcome(proxy: RunningProxy, port: int, name: str) -> float:
    return proxy.count("webhooks_total", webhook=f"127.0.0.1:{port}", outcome=name)


def tell(proxy: RunningProxy, kind: str = bus.FALLBACK, tenant: str = "t", **data: Any) -> None:
    proxy.app.services.event_bus.publish(kind, tenant, data, session="s")


async def test_an_event_of_real_traffic_arrives_signed() -> None:
    receiver = Receiver()
    async with hooked(receiver) as (proxy, running):
        await Agent(proxy, (b"x-context-session: mine", b"x-context-off: 1")).say("Hello")
        await wait_until(lambda: outcome(proxy, running.port, "delivered") == 1)
    (request,) = receiver.got
    assert request.line == b"POST /in?k=1 HTTP/1.1"
    assert request.all(b"content-type") == [b"application/json"]
    assert request.all(b"x-context-event") == [b"fallback"]
    assert request.all(b"authorization") == [], "nothing of the client's goes there"
    told = json.loads(request.body)
    assert (told["kind"], told["session"], told["data"]) == ("fallback", "mine", {"reason": "off"})
    assert request.all(b"x-context-id") == [str(told["id"]).encode()]
    (signature,) = request.all(b"x-context-signature")
    at, _, mac = signature.decode().removeprefix("t=").partition(",v1=")
    assert abs(int(at) - time.time()) < 60
    assert mac == hmac.new(SECRET.encode(), f"{at}.".encode() + request.body, sha256).hexdigest()
    assert sign_body("another", int(at), request.body) != signature.decode()


@pytest.mark.parametrize("status", [500, 503, 429, 408])
async def test_an_event_that_may_be_accepted_later_is_retried(status: int) -> None:
    receiver = Receiver(status, status, 200)
    async with hooked(receiver) as (proxy, running):
        tell(proxy, n=1)
        tell(proxy, n=2)
        await wait_until(lambda: outcome(proxy, running.port, "delivered") == 2)
        assert outcome(proxy, running.port, "retried") == 2
    assert [told["data"]["n"] for told in receiver.told] == [1, 1, 1, 2], "in order"
    assert len({one["id"] for one in receiver.told}) == 2


@pytest.mark.parametrize("status", [400, 404, 410])
async def test_an_event_that_is_refused_is_not_retried(status: int) -> None:
    receiver = Receiver(status, 200)
    async with hooked(receiver) as (proxy, running):
        tell(proxy)
        tell(proxy)
        await wait_until(lambda: outcome(proxy, running.port, "delivered") == 1)
        assert outcome(proxy, running.port, "refused") == 1
    assert len(receiver.got) == 2


async def test_a_redirect_is_not_followed() -> None:
    canary = Receiver()
    async with run_upstream(canary) as elsewhere:

        async def away(_: RawRequest, connection: Connection) -> None:
            await send_reply(connection, b"302 Found", b"", f"location: http://127.0.0.1:{elsewhere.port}/".encode())

        async with hooked(away) as (proxy, running):
            tell(proxy)
            await wait_until(lambda: outcome(proxy, running.port, "refused") == 1)
        assert elsewhere.connections == 0


async def test_a_receiver_that_is_down_is_given_up_after_so_many_tries_and_harms_nobody() -> None:
    async with run_upstream(Receiver()) as gone:
        port = gone.port
    async with (
        run_upstream(ScriptedModel("Well.")) as upstream,
        run_proxy(upstream.port, before=impatient, webhooks=[hook(port, tries=3)]) as proxy,
    ):
        for n in range(3):
            tell(proxy, n=n)
        await Agent(proxy).say("Hello")
        await wait_until(lambda: outcome(proxy, port, "failed") == 3)
        assert outcome(proxy, port, "retried") == 6


async def test_a_receiver_that_hangs_holds_no_request_and_is_left_in_time() -> None:
    async def hangs(_: RawRequest, connection: Connection) -> None:
        await connection.left()

    async with hooked(hangs, {"tries": 1, "timeout_s": 0.3}) as (proxy, running):
        tell(proxy)
        await wait_until(lambda: running.open == 1)
        await Agent(proxy).say("Hello")
        assert outcome(proxy, running.port, "failed") == 0, "the answer came while the webhook was waiting"
        await wait_until(lambda: outcome(proxy, running.port, "failed") == 1)


async def test_only_what_is_wanted_is_sent() -> None:
    receiver = Receiver()
    async with hooked(receiver, {"events": ["memo:*", "state:updated"], "tenant": "mine"}) as (proxy, running):
        for tenant in ("mine", "other"):
            for kind in bus.EVENT_KINDS:
                tell(proxy, kind, tenant)
        await wait_until(lambda: outcome(proxy, running.port, "delivered") == 2)
        await asyncio.sleep(0.05)
    assert [(told["kind"], told["tenant"]) for told in receiver.told] == [(bus.STATE, "mine"), (bus.MEMO, "mine")]


async def test_a_receiver_that_is_too_slow_loses_the_oldest_and_is_told_how_many() -> None:
    free = asyncio.Event()
    receiver = Receiver()

    async def slow(request: RawRequest, connection: Connection) -> None:
        await free.wait()
        await receiver(request, connection)

    async with hooked(slow, events={"queue": 3}) as (proxy, running):
        tell(proxy, n=0)
        await wait_until(lambda: running.open == 1)
        for n in range(1, 11):
            tell(proxy, n=n)
        free.set()
        await wait_until(lambda: outcome(proxy, running.port, "delivered") == 5)
    assert [told["data"] for told in receiver.told] == [{"n": 0}, {"lost": 7}, {"n": 8}, {"n": 9}, {"n": 10}]


async def test_events_waiting_at_the_end_are_sent_or_counted_as_failed() -> None:
    receiver = Receiver()

    async def slow(request: RawRequest, connection: Connection) -> None:
        await asyncio.sleep(0.1)
        await receiver(request, connection)

    async with hooked(slow) as (proxy, _):
        for n in range(5):
            tell(proxy, n=n)
    assert len(receiver.got) == 5
    async with run_upstream(Receiver()) as gone:
        port = gone.port
    async with run_proxy("demo", webhooks=[hook(port)]) as proxy:  # the second try would be after a second
        for n in range(5):
            tell(proxy, n=n)
    assert outcome(proxy, port, "failed") == 5


def test_a_pattern_that_matches_no_event_is_refused_at_the_start() -> None:
    with pytest.raises(ConfigError, match="no:such"):
        ContextProxy(make_settings("demo", webhooks=[hook(1, events=["no:such"])]))
