"""`GET /api/events`: the proxy's events as server-sent events, as they occur, and a description of each kind.

The answer writes to the socket itself, without a layer between. It ends at once in three cases: the client leaves, the
proxy stops, or the client takes nothing for too long. That time is the one for which an upstream may be silent.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Header, Query, Response
from pydantic import BaseModel, Field

from proxy.errors import BadRequest, ClientGone
from proxy.events import bus
from proxy.events.bus import EventBus, EventFilter, Listener
from proxy.exchange.services import Services
from proxy.web.api.admin_context import AdminContextDep
from proxy.web.api.json_answers import ERROR_RESPONSES
from proxy.web.asgi import Receive, Scope, Send, run_while_connected, with_write_timeout
from proxy.web.routes import READ
from proxy.web.session_address import read_address

router = APIRouter(prefix="/api/events", tags=["events"], responses=ERROR_RESPONSES)

HEARTBEAT_S: Final = 15.0
"""Seconds of silence after which a stream gets a comment, so that no intermediary takes it for dead."""
RETRY_MS: Final = 1000
"""Milliseconds that browsers wait before they reconnect."""


class EventKindDetails(BaseModel):
    """A kind of event. tells: the time at which it is sent, and its content."""

    kind: str
    tells: str


EVENT_SCHEMA: Final = {
    "type": "object",
    "description": "One event of the stream, by the names of its lines; `data` is JSON.",
    "properties": {
        "id": {"type": "string"},
        "event": {"type": "string"},
        "data": {"type": "string", "contentMediaType": "application/json"},
    },
}
STREAM_RESPONSES: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "Events, until the client leaves or the proxy stops.",
        "content": {"text/event-stream": {"schema": EVENT_SCHEMA}},
        "model": None,
    }
}


@router.get("/kinds", openapi_extra=READ)
async def list_kinds() -> list[EventKindDetails]:
    """List the kinds of events."""
    return [EventKindDetails(kind=kind, tells=text) for kind, text in bus.EVENT_KINDS.items()]


@router.get("", openapi_extra=READ, response_class=Response, responses=STREAM_RESPONSES)
async def stream_events(
    admin: AdminContextDep,
    session: Annotated[
        str | None, Query(max_length=1024, description="Of this session alone: its name or address.")
    ] = None,
    kind: Annotated[
        list[Annotated[str, Field(max_length=64)]] | None,
        Query(max_length=32, description="Of these kinds alone; patterns too: `context:*`."),
    ] = None,
    after: Annotated[
        int | None,
        Query(ge=0, le=2**62, description="Those behind this id first, as far as kept. 0: all."),
    ] = None,
    follow: Annotated[bool, Query(description="False: only those that are here already, and then the end.")] = True,
    last_event_id: Annotated[str | None, Header(max_length=32, description="The same, as browsers send it.")] = None,
) -> Response:
    """Stream events as server-sent events: `id`, `event` (the kind) and `data`. The data is JSON: `id`, `kind`,
    `tenant`, `session`, `branch`, `exchange`, `at` and, by kind, `data`. Each replica sends its own events."""
    wrong = bus.find_unknown_patterns(kind or ())
    if wrong:
        raise BadRequest(f"there is no kind of event {wrong[0]!r}", hint="GET /api/events/kinds lists them.")
    if last_event_id is not None and last_event_id.isascii() and last_event_id.isdigit():
        after = int(last_event_id)
    if not follow and after is None:
        after = 0
    event_filter = EventFilter(admin.tenant, None if session is None else read_address(session), kind or ())
    return EventStream(admin.services, event_filter, after, follow=follow, owner=admin.caller.name)


class EventStream(Response):
    """The streaming answer. It listens from the moment in which it is sent, and no longer."""

    media_type = "text/event-stream"

    def __init__(
        self, services: Services, event_filter: EventFilter, after: int | None, *, follow: bool, owner: str
    ) -> None:
        super().__init__()
        self._news: EventBus = services.event_bus
        self._wants = event_filter
        self._after = after
        self._follow = follow
        self._owner = owner
        self._idle_s = services.settings.timeouts.idle_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Write until the client has left or the bus is closed. Raises TooMany before anything is sent."""
        listener = self._news.subscribe(self._wants, self._after, owner=self._owner)
        if not self._follow:
            listener.close()
        try:
            await run_while_connected(scope, receive, self._write(listener, with_write_timeout(send, self._idle_s)))
        except ClientGone:
            return  # the normal end of every stream: no wanted data was cut off
        finally:
            self._news.unsubscribe(listener)

    async def _write(self, listener: Listener, send: Send) -> None:
        head = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"x-accel-buffering", b"no")]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        await send({"type": "http.response.body", "body": b"retry: %d\n\n" % RETRY_MS, "more_body": True})
        async for data in render_frames(listener):
            await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def render_frames(listener: Listener, beat_s: float = HEARTBEAT_S) -> AsyncIterator[bytes]:
    """Yield the events of a listener in the form of a stream; a comment after each silence."""
    if listener.has_gap:
        yield _encode_bus_event(bus.GAP, {})
    while True:
        try:
            async with asyncio.timeout(beat_s):
                lost, items = await listener.take_events()
        except TimeoutError:
            yield b": still here\n\n"
            continue
        if lost:
            yield _encode_bus_event(bus.LOST, {"lost": lost})
        if items:
            yield b"".join(b"id: %d\nevent: %b\ndata: %b\n\n" % (i.id, i.kind.encode(), i.encode()) for i in items)
        elif listener.is_closed:
            return


def _encode_bus_event(kind: str, data: dict[str, int]) -> bytes:
    event = bus.PublishedEvent(0, kind, "", "", "", "", 0.0, data)
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), msgspec.json.encode(event))
