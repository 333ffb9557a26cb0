"""Counts of connections that have brought a request, by the address that they came from.

While there is room, no connection is refused. Once nearly all places are taken, an address with more than its share
gets no more of them. One client therefore cannot keep all others out. Probes have a few reserved places: an
orchestrator ends a process whose /healthz does not answer.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

SHARE_THRESHOLD: Final = 7 / 8
"""Fraction of all places above which an address's share counts."""
PROBE_PLACES: Final = 16
"""Places beyond the limit, for probes."""
PROBE_PATHS: Final = frozenset({"/healthz", "/readyz"})
"""Paths that are answered at once, without a key and without a body."""
MAX_PIPELINED_BYTES: Final = 16 << 20
"""Bytes of bodies that may wait behind the requests that are being answered, on all connections together."""


class ConnectionLimit:
    """`most` places in all; `share` of them for one address, once nearly all are taken."""

    __slots__ = ("_by_address", "_most", "_share", "pipelined", "taken")

    def __init__(self, most: int, share: float) -> None:
        self._most = most
        self._share = max(1, int(most * share))
        self._by_address: Counter[str] = Counter()
        self.taken = 0
        self.pipelined = 0
        """Bytes of bodies that wait."""

    def has_room(self, address: str) -> bool:
        """True if there is a place for one more connection of this address. "" is no address."""
        if self.taken >= self._most:
            return False
        return not address or self.taken < SHARE_THRESHOLD * self._most or self._by_address[address] < self._share

    def has_room_for_probe(self) -> bool:
        """True if there is a place for a probe, whose connection ends with its answer."""
        return self.taken < self._most + PROBE_PLACES

    def add(self, address: str) -> None:
        """Count one more connection that has brought a request."""
        self.taken += 1
        self._by_address[address] += 1

    def remove(self, address: str) -> None:
        """Uncount a connection: it is closed, or must bring another request's head."""
        self.taken -= 1
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]
