"""The bus of events of conversations: one in each process, with bounds on every side.

Publishing never waits and never fails a request. An event goes into a ring of the last events and into the queue of
each listener. A listener that reconnects continues from the ring. A listener that reads too slowly loses the oldest
events and gets their number. Events are not stored: a restart loses them, and a listener that asks for earlier events
gets a gap event.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final

import msgspec

from proxy.context.plan_events import PRUNED, SUMMARIZED
from proxy.errors import TooMany
from proxy.metrics import Metrics
from proxy.settings.model import EventSettings

EDITED: Final = "context:edited"
LOOP: Final = "loop:detected"
STATE: Final = "state:updated"
MEMO: Final = "memo:saved"
CACHE: Final = "cache:broken"
FALLBACK: Final = "fallback"
EVENT_KINDS: Final[Mapping[str, str]] = {
    PRUNED: "Messages left a prompt: tokens before and after, how many, which.",
    SUMMARIZED: "Messages were summarised: how many, how many stay, the summary's text.",
    EDITED: "Messages changed otherwise: what the operator decided, and what a policy shortened.",
    LOOP: "The model was warned of a loop: the kind of loop, and how often.",
    STATE: "A branch has a new state: by whom (`model`, `operator`), and how long it is.",
    MEMO: "A memo was saved: by whom (`model`, `operator`), which, and whether it took another one's place.",
    CACHE: "The provider's cache served far less than predicted, or the client itself changed what stood in it.",
    FALLBACK: "A request went out without its plan, mostly as received: why.",
}
"""Every kind of event, and its description."""
LOST: Final = "lost"
"""The event that tells one listener that it was too slow, and how many events it lost."""
GAP: Final = "gap"
"""The first event for a listener whose starting point is no longer in the ring: some events may be missing."""


class PublishedEvent(msgspec.Struct, frozen=True):
    """One event."""

    id: int
    """Rises, over restarts too (microseconds since 1970, or one more than the last)."""
    kind: str
    tenant: str
    session: str
    """Empty if the event has none."""
    branch: str
    """Empty if the event has none."""
    exchange: str
    """Empty if the event has none."""
    at: float
    """Unix seconds."""
    data: Mapping[str, Any]
    """The fields of the event, by kind."""

    def encode(self) -> bytes:
        """Encode the event as JSON. Half a surrogate pair becomes a question mark."""
        try:
            return msgspec.json.encode(self)
        except (UnicodeEncodeError, ValueError):
            return json.dumps(msgspec.to_builtins(self), ensure_ascii=False).encode("utf-8", "replace")


class EventFilter:
    """Filter of a listener. tenant, session: None for all. kinds: names or patterns, none for all."""

    def __init__(self, tenant: str | None = None, session: str | None = None, kinds: Sequence[str] = ()) -> None:
        self._tenant = tenant
        self._session = session
        self._kinds = frozenset(
            kind for kind in EVENT_KINDS if not kinds or any(fnmatchcase(kind, one) for one in kinds)
        )

    def __call__(self, event: PublishedEvent) -> bool:
        return (
            event.kind in self._kinds
            and (self._tenant is None or event.tenant == self._tenant)
            and (self._session is None or event.session == self._session)
        )


def find_unknown_patterns(patterns: Sequence[str]) -> list[str]:
    """Return the patterns that match no kind of event."""
    return [one for one in patterns if not any(fnmatchcase(kind, one) for kind in EVENT_KINDS)]


class Listener:
    """One listener, with the queue of its events."""

    def __init__(
        self,
        event_filter: EventFilter,
        max_queue: int,
        backlog: Sequence[PublishedEvent],
        *,
        has_gap: bool,
        on_lost: Callable[[], None],
    ) -> None:
        self.event_filter = event_filter
        self.has_gap = has_gap
        """True if events that it asked for may be missing."""
        self.is_closed = False
        self.is_persistent = False
        """True if only its maker closes it."""
        self.owner = ""
        """Whose listener it is: listeners of one owner make room for another one's."""
        self._items: deque[PublishedEvent] = deque(backlog)
        self._most = max_queue + len(backlog)
        self._lost = 0
        self._on_lost = on_lost
        self._changed = asyncio.Event()
        if backlog:
            self._changed.set()

    @property
    def waiting_count(self) -> int:
        """Number of events that the listener has not taken yet."""
        return len(self._items)

    def put_event(self, event: PublishedEvent) -> None:
        """Add an event to the queue, if the filter wants it. A full queue loses its oldest event."""
        if not self.event_filter(event):
            return
        if len(self._items) >= self._most:
            self._items.popleft()
            self._lost += 1
            self._on_lost()
        self._items.append(event)
        self._changed.set()

    def close(self) -> None:
        """End the listener: no further event comes."""
        self.is_closed = True
        self._changed.set()

    async def take_events(self) -> tuple[int, list[PublishedEvent]]:
        """Wait for events; return (number of lost ones before them, events), (0, []) once closed and empty."""
        while not self._items and not self.is_closed:
            self._changed.clear()
            await self._changed.wait()
        found, lost = list(self._items), self._lost
        self._items.clear()
        self._lost = 0
        return lost, found


class EventBus:
    """The bus of one event loop: publishers and listeners run in that loop."""

    def __init__(self, limits: EventSettings, metrics: Metrics, now: Callable[[], float] = time.time) -> None:
        self._limits = limits
        self._metrics = metrics
        self._now = now
        self._ring: deque[PublishedEvent] = deque(maxlen=limits.kept)
        self._listeners: dict[Listener, None] = {}
        """In the order in which they came."""
        self._counted = {kind: metrics.events_total.labels(kind=kind) for kind in EVENT_KINDS}
        self._last = int(now() * 1e6)
        self._newest_dropped_id = (
            self._last
        )  # the newest id that left the ring; events of the time before the start are not in it
        self._closed = False

    def publish(
        self,
        kind: str,
        tenant: str,
        data: Mapping[str, Any],
        *,
        session: str = "",
        branch: str = "",
        exchange: str = "",
    ) -> None:
        """Publish an event."""
        at = self._now()
        self._last = max(self._last + 1, int(at * 1e6))
        item = PublishedEvent(self._last, kind, tenant, session, branch, exchange, at, data)
        if len(self._ring) == self._ring.maxlen:
            self._newest_dropped_id = self._ring[0].id
        self._ring.append(item)
        self._counted[kind].inc()
        for listener in self._listeners:
            listener.put_event(item)

    def subscribe(
        self,
        event_filter: EventFilter,
        after_id: int | None = None,
        *,
        owner: str = "",
        is_persistent: bool = False,
    ) -> Listener:
        """Add a listener. With `after_id`, it begins after the event of that id; 0 begins with all events in the ring.
        owner: the key that asks. is_persistent: a listener of the process itself, which does not count and which
        `close` leaves open. Raises TooMany at the limit, unless another owner has more than its share. Call
        `unsubscribe` at the end."""
        if not is_persistent:
            self._make_room(owner)
        backlog = [] if after_id is None else [item for item in self._ring if item.id > after_id and event_filter(item)]
        gap = after_id is not None and 0 < after_id < self._newest_dropped_id
        listener = Listener(
            event_filter, self._limits.queue, backlog, has_gap=gap, on_lost=self._metrics.events_lost_total.inc
        )
        listener.is_persistent, listener.owner = is_persistent, owner
        if self._closed and not is_persistent:
            listener.close()
        self._listeners[listener] = None
        self._metrics.event_listeners.set(len(self._listeners))
        return listener

    def _make_room(self, owner: str) -> None:
        """Close the newest listener of the owner with the most, if there is no room and that owner keeps as many as
        this one will have. Raises TooMany."""
        counted = [listener for listener in self._listeners if not listener.is_persistent]
        if len(counted) < self._limits.listeners:
            return
        counts = Counter(listener.owner for listener in counted)
        largest, most = counts.most_common(1)[0]
        if most <= counts[owner] + 1:
            raise TooMany("the limit of event listeners is reached", hint="See events.listeners.")
        newest = next(listener for listener in reversed(counted) if listener.owner == largest)
        newest.close()
        self.unsubscribe(newest)

    def unsubscribe(self, listener: Listener) -> None:
        """Remove a listener."""
        self._listeners.pop(listener, None)
        self._metrics.event_listeners.set(len(self._listeners))

    def close(self) -> None:
        """Close all but the lasting listeners at the end of the process: each gets what waits, then an end."""
        self._closed = True
        for listener in self._listeners:
            if not listener.is_persistent:
                listener.close()
