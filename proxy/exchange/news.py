"""What happens to conversations, told to whoever listens: one bus in the process, bounded on every side.

Telling never waits and never fails a request: an event is put into a ring of the last ones, from which listeners that
come back go on, and into the queue of each listener. Who reads too slowly loses the oldest and is told how many. Events
are not stored: a restart forgets them, and whoever asks for what was before it is told that there is a gap.
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
"""Every kind of event, and what it tells."""
LOST: Final = "lost"
"""Told to one listener: it was too slow, and how many events it lost."""
GAP: Final = "gap"
"""Told to one listener first: what it asked for is no longer here, some may be missing."""


class Item(msgspec.Struct, frozen=True):
    """One event. id: rises, over restarts too (microseconds since 1970, or one more than the last). at: Unix seconds.
    session, thread, exchange: empty where there is none. data: what there is to tell, by kind."""

    id: int
    kind: str
    tenant: str
    session: str
    thread: str
    exchange: str
    at: float
    data: Mapping[str, Any]

    def encoded(self) -> bytes:
        """As JSON. Half a surrogate pair, which a name from a client can hold, becomes a question mark."""
        try:
            return msgspec.json.encode(self)
        except (UnicodeEncodeError, ValueError):
            return json.dumps(msgspec.to_builtins(self), ensure_ascii=False).encode("utf-8", "replace")


class Wants:
    """What a listener wants to hear. tenant, session: None for all. kinds: names or patterns, none for all."""

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
    """Those that name no kind of event, nor match one."""
    return [one for one in kinds if not any(fnmatchcase(kind, one) for kind in KINDS)]


class Listener:
    """One who listens, with what waits for it."""

    def __init__(
        self, wants: Wants, most: int, backlog: Sequence[Item], *, gap: bool, slow: Callable[[], None]
    ) -> None:
        self.wants = wants
        self.gap = gap
        """Whether events that it asked for may be missing."""
        self.closed = False
        self.lasting = False
        """Whether it is closed by whoever made it alone."""
        self._items: deque[Item] = deque(backlog)
        self._most = most + len(backlog)
        self._lost = 0
        self._slow = slow
        self._changed = asyncio.Event()
        if backlog:
            self._changed.set()

    @property
    def waiting(self) -> int:
        """Events that it has not taken yet."""
        return len(self._items)

    def put(self, item: Item) -> None:
        """What was told, if it is wanted."""
        if not self.wants(item):
            return
        if len(self._items) >= self._most:
            self._items.popleft()
            self._lost += 1
            self._slow()
        self._items.append(item)
        self._changed.set()

    def close(self) -> None:
        """Nothing more comes."""
        self.closed = True
        self._changed.set()

    async def take(self) -> tuple[int, list[Item]]:
        """(how many were lost before them, events), as soon as there is one; (0, []) once it is closed and empty."""
        while not self._items and not self.closed:
            self._changed.clear()
            await self._changed.wait()
        found, lost = list(self._items), self._lost
        self._items.clear()
        self._lost = 0
        return lost, found


class News:
    """The bus. Of one event loop: whoever tells and whoever listens runs in it."""

    def __init__(self, limits: Events, metrics: Metrics, now: Callable[[], float] = time.time) -> None:
        self._limits = limits
        self._metrics = metrics
        self._now = now
        self._ring: deque[Item] = deque(maxlen=limits.kept)
        self._listeners: set[Listener] = set()
        self._counted = {kind: metrics.events_total.labels(kind=kind) for kind in KINDS}
        self._last = int(now() * 1e6)
        self._gone = self._last  # the newest id that is no longer here; those of the time before the start are not
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
        """Something has happened."""
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
        """Begin to hear; with `after`, from behind the event of that id, 0: all that is here. lasting: of the
        process itself; neither counted nor closed with the others. Raises TooMany. `leave` at the end."""
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
        """It does not listen any more."""
        self._listeners.discard(listener)
        self._metrics.event_listeners.set(len(self._listeners))

    def close(self) -> None:
        """The process ends: every listener, but for lasting ones, is given what it has waiting, and then an end."""
        self._closed = True
        for listener in self._listeners:
            if not listener.lasting:
                listener.close()
