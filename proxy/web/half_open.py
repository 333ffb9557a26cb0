"""Half-open connections: those that have not brought the head of a request, by the address that they came from.

One address may hold `most` of them. What is over that, or over what the server holds in all, costs the oldest one its
connection: a client that means it sends its head at once, so the one that has been silent for longest means nothing.
"""

from __future__ import annotations

from typing import Final, Protocol

FRESH_S: Final = 0.5
"""Seconds for which a connection is not closed for its address's share: clients may come in a burst, and what they have
sent may not have been read yet."""
AT_ONCE: Final = 64
"""Connections that are closed for one that comes."""


class Silent(Protocol):
    """A connection, as far as this is concerned."""

    def evict(self) -> None:
        """Close it at once."""


class HalfOpen:
    """All of them."""

    __slots__ = ("_by_address", "_count", "_most")

    def __init__(self, most: int) -> None:
        """most: of one address."""
        self._most = most
        self._count = 0
        self._by_address: dict[str, dict[Silent, float]] = {}

    def __len__(self) -> int:
        return self._count

    def add(self, address: str, connection: Silent, now: float) -> None:
        """A connection that has brought nothing yet. The address's oldest ones are closed where it has too many."""
        held = self._by_address.setdefault(address, {})
        if connection not in held:
            held[connection] = now
            self._count += 1
        for _ in range(AT_ONCE):
            oldest = next(iter(held))
            if len(held) <= self._most or now - held[oldest] < FRESH_S:
                break
            self._close(address, oldest)

    def remove(self, address: str, connection: Silent) -> None:
        """It has brought a head, or is gone. Once or often."""
        held = self._by_address.get(address)
        if held is not None and held.pop(connection, None) is not None:
            self._count -= 1
            if not held:
                del self._by_address[address]

    def make_room(self) -> bool:
        """Close the oldest one of the address that has most; False where there is none."""
        if not self._by_address:
            return False
        address = max(self._by_address, key=lambda each: len(self._by_address[each]))
        self._close(address, next(iter(self._by_address[address])))
        return True

    def _close(self, address: str, connection: Silent) -> None:
        self.remove(address, connection)
        connection.evict()


def address_of(client: tuple[str, int] | None) -> str:
    """Whose share a connection counts for: an IPv4 address, or the network of an IPv6 address, since one host has 2^64
    of those. A Unix socket has none."""
    host = client[0] if client else ""
    if ":" not in host:
        return host
    if "." in host:
        return host.rpartition(":")[2]  # IPv4 within IPv6
    return ":".join(host.partition("%")[0].partition("::")[0].split(":")[:4])
