"""Half-open connections: those that have not brought the head of a request, by the address that they came from.

One address may hold `most` of them. If an address exceeds that, or the server exceeds its total, the oldest connection
is closed. A normal client sends its head at once, so the connection that has been silent for longest has the least use.
"""

from __future__ import annotations

from typing import Final, Protocol

GRACE_S: Final = 0.5
"""Seconds for which a connection is not closed for its address's share. Clients may come in a burst, and their data may
not have been read yet."""
MAX_EVICTIONS: Final = 64
"""Connections that are closed for one new connection, at most."""


class EvictableConnection(Protocol):
    """The interface of a connection that this module uses."""

    def evict(self) -> None:
        """Close it at once."""


class HalfOpenConnections:
    """All half-open connections."""

    __slots__ = ("_by_address", "_count", "_most")

    def __init__(self, most: int) -> None:
        """Start empty. most: connections of one address."""
        self._most = most
        self._count = 0
        self._by_address: dict[str, dict[EvictableConnection, float]] = {}

    def __len__(self) -> int:
        return self._count

    def add(self, address: str, connection: EvictableConnection, now: float) -> None:
        """Add a connection that has brought nothing yet. The address's oldest ones are closed if it has too many."""
        held = self._by_address.setdefault(address, {})
        if connection not in held:
            held[connection] = now
            self._count += 1
        for _ in range(MAX_EVICTIONS):
            oldest = next(iter(held))
            if len(held) <= self._most or now - held[oldest] < GRACE_S:
                break
            self._close(address, oldest)

    def remove(self, address: str, connection: EvictableConnection) -> None:
        """Remove a connection that has brought a head, or is closed. It may be called again."""
        held = self._by_address.get(address)
        if held is not None and held.pop(connection, None) is not None:
            self._count -= 1
            if not held:
                del self._by_address[address]

    def make_room(self) -> bool:
        """Close the oldest connection of the address that has most; return False if there is none."""
        if not self._by_address:
            return False
        address = max(self._by_address, key=lambda each: len(self._by_address[each]))
        self._close(address, next(iter(self._by_address[address])))
        return True

    def _close(self, address: str, connection: EvictableConnection) -> None:
        self.remove(address, connection)
        connection.evict()


def find_client_address(client: tuple[str, int] | None) -> str:
    """Return the address whose share a connection counts for. It is an IPv4 address, or the network of an IPv6 address,
    because one host has 2^64 IPv6 addresses. A Unix socket has none."""
    host = client[0] if client else ""
    if ":" not in host:
        return host
    if "." in host:
        return host.rpartition(":")[2]  # IPv4 within IPv6
    return ":".join(host.partition("%")[0].partition("::")[0].split(":")[:4])
