"""Cache of values that are computed from all exchanges of a session, and hold until the session is used again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from proxy.exchange.cache_keep_alive import LONGEST_LIFETIME_S
from proxy.exchange.services import Services
from proxy.operator.find_session import read_newest_exchanges
from proxy.operator.session_stats import MAX_EXCHANGES
from proxy.store.base import ExchangeRecord
from proxy.store.session_lists import SessionItem

T = TypeVar("T")
Compute = Callable[[Services, SessionItem, Sequence[ExchangeRecord]], Awaitable[T]]
"""Computes the value of a session from its newest exchanges, oldest first."""


class SessionCache(Generic[T]):
    """The values of the sessions that were looked at last."""

    def __init__(self, compute: Compute[T], limit: int) -> None:
        """limit: sessions that are remembered."""
        self._compute = compute
        self._limit = limit
        self._known: OrderedDict[tuple[str, str], tuple[tuple[float, int], T]] = OrderedDict()

    async def find(self, services: Services, item: SessionItem) -> T:
        """Return the value of a session, computed again if the session was used since."""
        name, stamp = (item.tenant, item.session), (item.last_at, item.exchanges)
        stamped = self._known.get(name)
        if stamped is None or stamped[0] != stamp:
            exchanges = await read_newest_exchanges(services, *name, MAX_EXCHANGES)
            stamped = stamp, await self._compute(services, item, exchanges)
            if exchanges and (exchanges[-1].status == "open" or _may_be_pinged(services, item)):
                return stamped[1]  # the end of an open exchange, or a ping, changes the value, and not the stamp
            self._known[name] = stamped
        self._known.move_to_end(name)
        while len(self._known) > self._limit:
            self._known.popitem(last=False)
        return stamped[1]


def _may_be_pinged(services: Services, item: SessionItem) -> bool:
    """True if pings may still add to the cost of the session's last exchanges."""
    longest_s = services.settings.cache.keep_alive_pings * LONGEST_LIFETIME_S
    return bool(longest_s) and services.now() - item.last_at < longest_s
