"""Histories that a provider holds under its own name, as far as the proxy has seen them.

A request may name an earlier response, or a conversation object, in place of the messages before it. `Chain` is the
place of one request in such a chain. `HistoryMemory` has the messages after the newest names. `ItemMemory` has the
items of the newest answers, which a request may refer to by their ids.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from proxy.dialects.responses.chained import ChainParameters

T = TypeVar("T")

MEMORY_BYTES: Final = 32 << 20
"""Bytes of the histories that are remembered by the names of their responses; others are read from the store."""


@dataclass(frozen=True, slots=True)
class KnownHistory:
    """The messages up to an answer, the answer included, in the canonical form."""

    session: str
    messages: tuple[bytes, ...]
    is_known: bool
    """Every message up to the answer is here."""
    is_whole: bool
    """The messages can be written as items again."""
    at_provider: bool
    """The provider stores the answer."""

    @property
    def size(self) -> int:
        """Bytes of its messages."""
        return sum(map(len, self.messages))


NOTHING_KNOWN: Final = KnownHistory("", (), is_known=False, is_whole=False, at_provider=True)


class _Memory(Generic[T]):
    """The newest values of their sessions, by tenant and name; the oldest are dropped first."""

    __slots__ = ("_held", "_most", "forgotten", "size")

    def __init__(self, max_bytes: int = MEMORY_BYTES) -> None:
        """Start empty. max_bytes: limit on the bytes of all values."""
        self._most = max_bytes
        self.forgotten = 0
        """Number of times that names were forgotten. What was read from the store before may be gone since."""
        self._held: OrderedDict[tuple[str, str], tuple[str, int, T]] = OrderedDict()
        self.size = 0

    def get(self, tenant: str, name: str) -> T | None:
        """The value of this name; None if it is not remembered."""
        found = self._held.get((tenant, name))
        return None if found is None else found[2]

    def _hold_value(self, tenant: str, session: str, name: str, size: int, value: T) -> None:
        self.remove(tenant, name)
        self._held[tenant, name] = session, size, value
        self.size += size
        while self.size > self._most:
            self.remove(*next(iter(self._held)))

    def remove(self, tenant: str, name: str) -> None:
        """Forget a name. It may be called for one that is not remembered."""
        gone = self._held.pop((tenant, name), None)
        if gone is not None:
            self.size -= gone[1]

    def forget(self, tenant: str, name: str) -> None:
        """Forget a name that was deleted."""
        self.forgotten += 1
        self.remove(tenant, name)

    def remove_session(self, tenant: str, session: str) -> None:
        """Forget the names of a session whose stored messages have changed."""
        self.forgotten += 1
        for key in [key for key, one in self._held.items() if key[0] == tenant and one[0] == session]:
            self.remove(*key)


class HistoryMemory(_Memory[KnownHistory]):
    """The histories of the newest answers of each chain, by the names of their responses."""

    __slots__ = ()

    def put(self, tenant: str, name: str, history: KnownHistory, follows: str = "") -> None:
        """Remember a history. follows: the name before it in the chain, which is read from the store from now on."""
        self.remove(tenant, follows)
        self._hold_value(tenant, history.session, name, history.size, history)


class ItemMemory(_Memory[bytes]):
    """The newest items of answers, by their ids."""

    __slots__ = ()

    def put(self, tenant: str, session: str, name: str, item: bytes) -> None:
        """Remember an item of a session."""
        self._hold_value(tenant, session, name, len(item), item)


@dataclass(frozen=True, slots=True)
class Chain:
    """The place of a request in a chain of responses."""

    parameters: ChainParameters
    original: bytes
    """The client's body."""
    history: KnownHistory = NOTHING_KNOWN
    """The history that the request names."""
    is_taken_over: bool = False
    """The request is completed from the store."""
    adds_encrypted: bool = False
    """The proxy asks for encrypted reasoning, which the client does not."""
    is_whole: bool = False
    """The chain can be taken over after the answer."""
    at_provider: bool = True
    """The provider will store the answer."""
    is_resolved: bool = False
    """Items that the request refers to are in their places."""

    @property
    def is_held(self) -> bool:
        """True if the provider holds the history of the request as it goes out."""
        return bool(self.parameters.name) and not self.is_taken_over

    @property
    def unchanged_reason(self) -> str:
        """Why nothing may be changed in the request, as a reason of `FallbackReason`; "" where changes are allowed.

        An answer in the background is never seen: reasoning of it would be bound to a prompt that nobody remembers.
        """
        return "chain" if self.is_held else "background" if self.parameters.is_background else ""

    @property
    def is_ours(self) -> bool:
        """True if a later request that names the answer is completed by the proxy, with all that was hidden."""
        return self.is_whole

    @property
    def word(self) -> str:
        """The value of `x-context-chain`; "" for a request that names nothing which the provider stores."""
        if self.is_taken_over or self.is_resolved:
            return "taken over"
        if not self.parameters.name:
            return ""
        return "provider" if self.history.is_known else "provider, unknown"
