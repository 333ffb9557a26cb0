"""A history as it was written upstream, whose beginning the next request of the same history goes out with again.

Edits are repeated byte for byte, so nearly all messages of a prompt are written as in the prompt before. They are
compared, and their bytes are copied in one piece. Only the messages behind them are written again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import compress, count
from operator import ne
from typing import TypeVar

from proxy.dialects import spans
from proxy.dialects.spans import Replacement, Span

OutgoingMessage = tuple[int | None, bytes]
"""One canonical message to send: the index of the canonical message that it is made from, and its bytes.

The index is None for a message of the proxy's own.
"""


Unit = TypeVar("Unit")


def find_units(units: Sequence[Unit], place: int, find_place: Callable[[Unit], int]) -> list[tuple[int, Unit]]:
    """The canonical messages of one wire message, each with its index. Places only grow."""
    index = bisect_left(units, place, key=find_place)
    found = []
    while index < len(units) and find_place(units[index]) == place:
        found.append((index, units[index]))
        index += 1
    return found


@dataclass(frozen=True, slots=True)
class WrittenElement:
    """One element of a written history: a message, or an item of Responses."""

    first: int
    """Index of the first outgoing message in it."""
    place: int | None
    """Index of the client's element that it stands for; None for one of the proxy."""
    end: int
    """The offset behind it, in the written array."""


@dataclass(frozen=True, slots=True)
class WrittenHistory:
    """The array of a body that went upstream."""

    array: memoryview
    """A view of the body and no copy: the body is kept in any case."""
    outgoing: Sequence[OutgoingMessage]
    elements: Sequence[WrittenElement]
    stable: int
    """Number of the client's elements that the next request of the history begins with."""

    def find_beginning(self, outgoing: Sequence[OutgoingMessage]) -> WrittenHistory | None:
        """The elements that these outgoing messages begin with too; None if there are none.

        A text of the proxy joins the element in front of it. So an element is final only if the next element begins
        with the same message too.
        """
        same = count_equal(self.outgoing, outgoing)
        count = bisect_left(self.elements, same, key=lambda one: one.first) - 1
        while count > 0 and not (self._is_stable(count) and self._is_message_end(count)):
            count -= 1
        if count < 1:
            return None
        kept, begin = self.elements[:count], self.elements[count].first
        return WrittenHistory(self.array[: kept[-1].end], outgoing[:begin], kept, self.stable)

    def limit_stable(self, stable: int) -> WrittenHistory:
        """The same for a history that begins with at most `stable` of the client's elements."""
        return self if self.stable <= stable else replace(self, stable=stable)

    def _is_stable(self, count: int) -> bool:
        """True if the last of the client's elements among the first `count` is one that stays."""
        places = (one.place for one in reversed(self.elements[:count]))
        return next((place for place in places if place is not None), -1) < self.stable

    def _is_message_end(self, count: int) -> bool:
        """True if the element behind the first `count` is of another message: an answer may be several elements."""
        return self.elements[count - 1].first < self.elements[count].first

    @property
    def newest_source(self) -> int:
        """The highest index of a client's message in it; -1 if there is none."""
        return next((source for source, _ in reversed(self.outgoing) if source is not None), -1)


def write_array(
    body: bytes,
    span: Span,
    places: Sequence[Span],
    items: Sequence[tuple[int, int | None, bytes]],
    known: WrittenHistory | None,
) -> tuple[bytes, list[WrittenElement]]:
    """(the bytes of an array with these elements behind the known ones, all its elements).

    span, places: of the client's array and of its elements. items: for each new element the index of its first outgoing
    message, its place, and its bytes. Raises ValueError if the array would be empty.
    """
    if known is None and not items:
        raise ValueError("nothing of the history is left")
    start, end = (places[0][0], places[-1][1]) if places else (span[1], span[1])
    head = known.array if known is not None else body[span[0] : start] if places else b"["
    elements = [*known.elements] if known is not None else []
    pieces = spans.list_pieces(
        body, places, [(place, raw) for _, place, raw in items], elements[-1].place if elements else -1
    )
    at = len(head)
    for (first, place, _), piece in zip(items, pieces, strict=True):
        at += len(piece)
        elements.append(WrittenElement(first, place, at))
    return b"".join((head, *pieces, body[end : span[1]] if places else b"]")), elements


def view_array(
    written: bytes, span: Span, replacements: Sequence[Replacement], elements: Sequence[WrittenElement]
) -> memoryview:
    """The array up to its last element in a written body. span: of the client's array."""
    moved = sum(len(new) - (end - start) for start, end, new in replacements if end <= span[0])
    return memoryview(written)[span[0] + moved : span[0] + moved + elements[-1].end]


def count_equal(one: Sequence[OutgoingMessage], other: Sequence[OutgoingMessage]) -> int:
    """Number of messages that both begin with."""
    return next(compress(count(), map(ne, one, other)), min(len(one), len(other)))
