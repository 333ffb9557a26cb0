"""The bus of events of conversations: one in each process, with bounds on every side.

Publishing never waits and never fails a request. An event goes into a ring of the last events and into the queue of
each listener. A listener that reconnects continues from the ring. A listener that reads too slowly loses the oldest
events and is told how many. Events are not stored: a restart loses them, and a listener that asks for earlier events is
told of a gap.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final

import msgspec

from proxy.context.events import PRUNED, SUMMARIZED
from proxy.errors import TooMany
from proxy.metrics import Metrics
from proxy.sections import Events

EDITED: Final = "context:edited"
LOOP: Final = "loop:detected"
STATE: Final = "state:updated"
MEMO: Final = "memo:saved"
CACHE: Final = "cache:broken"
FALLBACK: Final = "fallback"
KINDS: Final[Mapping[str, str]] = {
    PRUNED: "Messages left a prompt: tokens before and after, how many, which.",
    SUMMARIZED: "Messages were summarised: how many, how many stay, the summary's text.",
    EDITED: "Messages changed otherwise: what the operator decided, and what a policy shortened.",
    LOOP: "The model was told that it goes round in circles: the kind of loop, and how often.",
    STATE: "A thread has a new state: by whom (`model`, `operator`), and how long it is.",
    MEMO: "A memo was saved: which, and whether it took another one's place.",
    CACHE: "The provider's cache served far less than predicted, or the client itself changed what stood in it.",
    FALLBACK: "A request went out as it came: why.",
}
"""Every kind of event, and its description."""
LOST: Final = "lost"
"""The event that tells one listener that it was too slow, and how many events it lost."""
GAP: Final = "gap"
"""The first event for a listener whose starting point is no longer in the ring: some events may be missing."""


class Item(msgspec.Struct, frozen=True):
    """One event. id: rises, over restarts too (microseconds since 1970, or one more than the last). at: Unix seconds.
    session, thread, exchange: empty where there is none. data: the fields of the event, by kind."""

    id: int
    kind: str
    tenant: str
    session: str
    thread: str
    exchange: str
    at: float
    data: Mapping[str, Any]

    def encoded(self) -> bytes:
        """Encode the event as JSON. Half a surrogate pair, which a name from a client can hold, becomes a question
        mark."""
        try:
            return msgspec.json.encode(self)
        except (UnicodeEncodeError, ValueError):
            return json.dumps(msgspec.to_builtins(self), ensure_ascii=False).encode("utf-8", "replace")


class Wants:
    """Filter of a listener. tenant, session: None for all. kinds: names or patterns, none for all."""

    def __init__(self, tenant: str | None = None, session: str | None = None, kinds: Sequence[str] = ()) -> None:
        self._tenant = tenant
        self._session = session
        self._kinds = frozenset(kind for kind in KINDS if not kinds or any(fnmatchcase(kind, one) for one in kinds))

    def __call__(self, item: Item) -> bool:
        return (
            item.kind in self._kinds
            and (self._tenant is None or item.tenant == self._tenant)
            and (self._session is None or item.session == self._session)
        )


def unknown(kinds: Sequence[str]) -> list[str]:
    """Return the patterns that match no kind of event."""
    return [one for one in kinds if not any(fnmatchcase(kind, one) for kind in KINDS)]


class Listener:
    """One listener, with the queue of its events."""

    def __init__(
        self, wants: Wants, most: int, backlog: Sequence[Item], *, gap: bool, slow: Callable[[], None]
    ) -> None:
        self.wants = wants
        self.gap = gap
        """True if events that it asked for may be missing."""
        self.closed = False
        self.lasting = False
        """True if only its maker closes it."""
        self._items: deque[Item] = deque(backlog)
        self._most = most + len(backlog)
        self._lost = 0
        self._slow = slow
        self._changed = asyncio.Event()
        if backlog:
            self._changed.set()

    @property
    def waiting(self) -> int:
        """Number of events that the listener has not taken yet."""
        return len(self._items)

    def put(self, item: Item) -> None:
        """Add an event to the queue, if the filter wants it. A full queue loses its oldest event."""
        if not self.wants(item):
            return
        if len(self._items) >= self._most:
            self._items.popleft()
            self._lost += 1
            self._slow()
        self._items.append(item)
        self._changed.set()

    def close(self) -> None:
        """End the listener: no further event comes."""
        self.closed = True
        self._changed.set()

    async def take(self) -> tuple[int, list[Item]]:
        """Wait for events; return (number of events lost before them, events), or (0, []) once the listener is closed
        and empty."""
        while not self._items and not self.closed:
            self._changed.clear()
            await self._changed.wait()
        found, lost = list(self._items), self._lost
        self._items.clear()
        self._lost = 0
        return lost, found


class News:
    """The bus of one event loop: publishers and listeners run in that loop."""

    def __init__(self, limits: Events, metrics: Metrics, now: Callable[[], float] = time.time) -> None:
        self._limits = limits
        self._metrics = metrics
        self._now = now
        self._ring: deque[Item] = deque(maxlen=limits.kept)
        self._listeners: set[Listener] = set()
        self._counted = {kind: metrics.events_total.labels(kind=kind) for kind in KINDS}
        self._last = int(now() * 1e6)
        self._gone = self._last  # the newest id that left the ring; events of the time before the start are not in it
        self._closed = False

    def tell(
        self,
        kind: str,
        tenant: str,
        data: Mapping[str, Any],
        *,
        session: str = "",
        thread: str = "",
        exchange: str = "",
    ) -> None:
        """Publish an event."""
        at = self._now()
        self._last = max(self._last + 1, int(at * 1e6))
        item = Item(self._last, kind, tenant, session, thread, exchange, at, data)
        if len(self._ring) == self._ring.maxlen:
            self._gone = self._ring[0].id
        self._ring.append(item)
        self._counted[kind].inc()
        for listener in self._listeners:
            listener.put(item)

    def listen(self, wants: Wants, after: int | None = None, *, lasting: bool = False) -> Listener:
        """Add a listener. With `after`, it begins behind the event of that id; 0 begins with all events in the ring.
        lasting: a listener of the process itself, which does not count and which `close` leaves open. Raises TooMany at
        the limit. Call `leave` at the end."""
        if not lasting and sum(not one.lasting for one in self._listeners) >= self._limits.listeners:
            raise TooMany("as many listen to events as may", hint="See events.listeners.")
        backlog = [] if after is None else [item for item in self._ring if item.id > after and wants(item)]
        gap = after is not None and 0 < after < self._gone
        made = Listener(wants, self._limits.queue, backlog, gap=gap, slow=self._metrics.events_lost_total.inc)
        made.lasting = lasting
        if self._closed and not lasting:
            made.close()
        self._listeners.add(made)
        self._metrics.event_listeners.set(len(self._listeners))
        return made

    def leave(self, listener: Listener) -> None:
        """Remove a listener."""
        self._listeners.discard(listener)
        self._metrics.event_listeners.set(len(self._listeners))

    def close(self) -> None:
        """Close every listener but the lasting ones, at the end of the process: each gets the events that wait for it,
        and then an end."""
        self._closed = True
        for listener in self._listeners:
            if not listener.lasting:
                listener.close()
