"""The basis of all reads: the rows of a statement, and long lists of keys in a few fixed sizes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final

MAX_PAGE_BYTES: Final = 16 << 20
"""Bytes of messages with which a page of them ends: one message may be as long as a managed body."""
CHUNK_SIZES = (8, 64, 512)
"""Sizes of the lists of keys. A shorter list is filled up with its last key, so there are few statement texts, each
prepared once."""


class RowReader(ABC):
    """The read method that a backend must provide."""

    @abstractmethod
    async def _fetch(self, text: str, args: Sequence[Any]) -> list[tuple[Any, ...]]:
        """All rows of one statement. Raises StoreUnavailable if the read fails or takes too long."""


def split_into_chunks(keys: Sequence[bytes]) -> list[list[bytes]]:
    """The keys, deepest first, in lists of the sizes in CHUNK_SIZES, each filled up with its last key.

    The middle size comes first: a conversation that goes on is recognised by its last few dozen messages.
    """
    small, middle, large = CHUNK_SIZES
    remaining = list(reversed(keys))
    chunks: list[list[bytes]] = []
    while remaining:
        size = small if len(remaining) <= small else middle if len(remaining) <= middle or not chunks else large
        part, remaining = remaining[:size], remaining[size:]
        chunks.append(part + part[-1:] * (size - len(part)))
    return chunks


def expand_per_chunk(text: str) -> dict[int, str]:
    """One statement text per chunk size. `?` placeholders are numbered in order; {keys} stands for a list."""
    return {size: _number_placeholders(text.replace("{keys}", ", ".join("?" * size))) for size in CHUNK_SIZES}


def _number_placeholders(text: str) -> str:
    head, *rest = text.split("?")
    return head + "".join(f"${n}{part}" for n, part in enumerate(rest, 1))
