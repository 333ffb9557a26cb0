"""Page faults of each tenant's sessions together, in memory: a new session begins with them.

A session learns how often the cut results of a tool are fetched again. Its figures hold for the next session of the
same tenant. They are kept in memory alone: after a restart sessions begin with the prior again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

from proxy.context.branch_state import BranchState

TENANTS = 1_000
"""Limit on the tenants that are remembered, the last used."""
SORTS = 200
"""Limit on the sorts of results of each tenant: clients choose the names of tools."""

FaultCounts = dict[str, tuple[int, int]]
"""Sums by sort: (cut results added up over requests, those that were fetched again)."""


class TenantFaults:
    """The sums of each tenant."""

    def __init__(self) -> None:
        self._counts: OrderedDict[str, FaultCounts] = OrderedDict()

    def add_counts(self, tenant: str, before: BranchState, after: BranchState) -> None:
        """Add the counts of one request: the difference of its session after and before."""
        if after.exposed == before.exposed and after.refetched == before.refetched:
            return
        sums = self._counts.setdefault(tenant, {})
        self._counts.move_to_end(tenant)
        if len(self._counts) > TENANTS:
            self._counts.popitem(last=False)
        for sort in {*after.exposed, *after.refetched}:
            if sort in sums or len(sums) < SORTS:
                cut, fetched = sums.get(sort, (0, 0))
                cut += max(0, after.exposed.get(sort, 0) - before.exposed.get(sort, 0))
                fetched += max(0, after.refetched.get(sort, 0) - before.refetched.get(sort, 0))
                sums[sort] = cut, fetched

    def count_elsewhere(self, tenant: str, own: BranchState) -> Mapping[str, tuple[int, int]]:
        """The sums of the tenant without the counts of the session itself."""
        return {
            sort: (max(0, cut - own.exposed.get(sort, 0)), max(0, fetched - own.refetched.get(sort, 0)))
            for sort, (cut, fetched) in self._counts.get(tenant, {}).items()
        }
