"""Page faults of each tenant's sessions together, as long as this process runs: a new session begins with them.

What one session has learnt about a tool (how often its cut results are fetched again) holds for the next one of the
same tenant. It is kept in memory alone: after a restart sessions begin with the prior again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

from proxy.context.session import Session

TENANTS = 1_000
"""Tenants that are remembered, the last used."""
SORTS = 200
"""Sorts of results of each: clients choose the names of tools."""

Sums = dict[str, tuple[int, int]]
"""(cut results added up over requests, those that were fetched again), by sort."""


class TenantFaults:
    """The sums of each tenant."""

    def __init__(self) -> None:
        self._sums: OrderedDict[str, Sums] = OrderedDict()

    def note(self, tenant: str, before: Session, after: Session) -> None:
        """Add what a request has added to its session."""
        if after.exposed == before.exposed and after.refetched == before.refetched:
            return
        sums = self._sums.setdefault(tenant, {})
        self._sums.move_to_end(tenant)
        if len(self._sums) > TENANTS:
            self._sums.popitem(last=False)
        for sort in {*after.exposed, *after.refetched}:
            if sort in sums or len(sums) < SORTS:
                cut, fetched = sums.get(sort, (0, 0))
                cut += max(0, after.exposed.get(sort, 0) - before.exposed.get(sort, 0))
                fetched += max(0, after.refetched.get(sort, 0) - before.refetched.get(sort, 0))
                sums[sort] = cut, fetched

    def elsewhere(self, tenant: str, own: Session) -> Mapping[str, tuple[int, int]]:
        """The sums of the tenant without what the session itself has counted."""
        return {
            sort: (max(0, cut - own.exposed.get(sort, 0)), max(0, fetched - own.refetched.get(sort, 0)))
            for sort, (cut, fetched) in self._sums.get(tenant, {}).items()
        }
