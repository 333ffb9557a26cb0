"""Delivery of events to the webhooks of the settings: a signed POST for each event, in order, and never ahead of a
request.

Only the configured origins are called, redirects are not followed, and every bound holds here too. There is one
delivery at a time for each webhook. The queue loses its oldest event and reports that. The number of tries is limited,
and delivery ends with the process.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections import deque
from contextlib import suppress
from hashlib import sha256
from typing import Final
from urllib.parse import urlsplit

import httpx2

from proxy.errors import ConfigError
from proxy.events import bus
from proxy.events.bus import EventBus, EventFilter, Listener, PublishedEvent
from proxy.helper.helper_client import read_at_most
from proxy.metrics import Metrics
from proxy.settings.load import Settings, WebhookSettings
from proxy.settings.model import ALL_TENANTS
from proxy.upstream.client import Target, UpstreamClient, UpstreamRequest

log = logging.getLogger(__name__)

RETRY_S: Final = 1.0
"""Seconds before the second try; twice as long before each further one, a minute at most."""
MAX_RETRY_S: Final = 60.0
GRACE_S: Final = 2.0
"""Seconds at the end of the process for events that are still waiting."""
MAX_ANSWER_BYTES: Final = 64 * 1024
"""Bytes of an answer that are read and dropped, so that the connection can be used again."""
RETRY_STATUSES: Final = frozenset({408, 425, 429})
"""Statuses, beside 5xx, of receivers that may take the same event later."""


class Webhooks:
    """All configured webhooks. Call `start` inside the running loop; nothing runs where none is configured."""

    def __init__(self, settings: Settings, event_bus: EventBus, metrics: Metrics) -> None:
        """Raises ConfigError for patterns that match no event."""
        self._hooks = [(hook, _make_target(hook)) for hook in settings.webhooks]
        for n, hook in enumerate(settings.webhooks):
            for wrong in bus.find_unknown_patterns(hook.events):
                raise ConfigError(f"webhooks[{n}].events", wrong, "patterns of " + ", ".join(bus.EVENT_KINDS))
        self._event_bus = event_bus
        self._metrics = metrics
        self._retry_s = RETRY_S
        self._client = UpstreamClient(settings, metrics, [target for _, target in self._hooks]) if self._hooks else None
        self._listeners: list[Listener] = []
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Subscribe to the events, and begin to deliver them."""
        for hook, target in self._hooks:
            wanted = EventFilter(None if hook.tenant == ALL_TENANTS else hook.tenant, None, hook.events)
            listener = self._event_bus.subscribe(wanted, is_persistent=True)
            self._listeners.append(listener)
            self._tasks.append(asyncio.create_task(self._deliver_events(hook, target, listener)))

    async def close(self) -> None:
        """Deliver the events that wait, for at most GRACE_S seconds, and stop."""
        for listener in self._listeners:
            listener.close()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=GRACE_S)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._client is not None:
            await self._client.close()

    async def _deliver_events(self, hook: WebhookSettings, target: Target, listener: Listener) -> None:
        waiting: deque[PublishedEvent] = deque()
        try:
            while not (listener.is_closed and not listener.waiting_count):
                lost, items = await listener.take_events()
                if lost:
                    waiting.append(PublishedEvent(0, bus.LOST, "", "", "", "", time.time(), {"lost": lost}))
                waiting.extend(items)
                while waiting:
                    await self._deliver_event(hook, target, waiting[0])
                    waiting.popleft()
        finally:
            self._event_bus.unsubscribe(listener)
            left = len(waiting) + listener.waiting_count
            if left:
                self._count(hook, "failed", left)
                log.warning("%d events had not reached the %s when the process ended", left, target.name)

    async def _deliver_event(self, hook: WebhookSettings, target: Target, event: PublishedEvent) -> None:
        """Deliver one event, with as many tries as the webhook allows."""
        body, outcome = event.encode(), "failed"
        for attempt in range(hook.tries):
            if attempt:
                self._count(hook, "retried")
                await asyncio.sleep(min(self._retry_s * 2 ** (attempt - 1), MAX_RETRY_S))
            status = await self._post(hook, target, event, body)
            if 200 <= status < 300:
                outcome = "delivered"
                break
            if status and status < 500 and status not in RETRY_STATUSES:
                outcome = "refused"
                break
        self._count(hook, outcome)
        if outcome != "delivered":
            log.warning("event %d (%s) did not reach the %s: %s", event.id, event.kind, target.name, outcome)

    async def _post(self, hook: WebhookSettings, target: Target, event: PublishedEvent, body: bytes) -> int:
        """Send one event; return the status of the answer, 0 for none."""
        assert self._client is not None  # noqa: S101  # made where there is a webhook
        parts, at = urlsplit(hook.url), int(time.time())
        headers = [(b"content-type", b"application/json"), (b"user-agent", b"context-proxy")]
        own = [
            (b"x-context-event", event.kind.encode()),
            (b"x-context-id", b"%d" % event.id),
            (b"x-context-signature", sign_body(hook.read_secret(), at, body).encode()),
        ]
        request = self._client.build_request(
            target, UpstreamRequest("POST", parts.path or "/", parts.query.encode(), headers, body), proxy_headers=own
        )
        try:
            async with asyncio.timeout(hook.timeout_s):
                response = await self._client.create_http_client(target).send(request, stream=True)
                with suppress(httpx2.TransportError):
                    await read_at_most(response, MAX_ANSWER_BYTES)
                return response.status_code
        except (TimeoutError, httpx2.TransportError):
            return 0
        except Exception:  # one event that cannot be sent must not stop the events after it
            self._metrics.internal_errors_total.labels(where="webhook").inc()
            log.exception("an event could not be sent to the %s", target.name)
            return 0

    def _count(self, hook: WebhookSettings, outcome: str, count: int = 1) -> None:
        name = self._metrics.limit_label("webhook", urlsplit(hook.url).netloc)
        self._metrics.webhooks_total.labels(webhook=name, outcome=outcome).inc(count)


def sign_body(secret: str, timestamp: int, body: bytes) -> str:
    """Return the header's value: the time, and HMAC-SHA256 over the time, a full stop and the body."""
    return f"t={timestamp},v1={hmac.new(secret.encode(), b'%d.' % timestamp + body, sha256).hexdigest()}"


def _make_target(hook: WebhookSettings) -> Target:
    """Return the webhook's origin as a target: its path may be a secret, and targets are in logs and metrics."""
    parts = urlsplit(hook.url)
    origin = f"{parts.scheme}://{parts.netloc}"
    return Target(f"webhook {parts.netloc}", origin, "openai", None, (), "", "", "")
