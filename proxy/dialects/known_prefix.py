"""The known beginning of a wire body: a longer body of the same history is read from there on.

An agent resends its whole history with every request. The rules of a provider, the prompts that reasoning is bound to,
and the bytes that were written are the same for the messages that both bodies begin with. So the work of a request
grows with its new messages only. Without a known beginning the whole body is read, with the same result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from proxy.dialects import spans
from proxy.dialects.spans import Span
from proxy.dialects.written_history import WrittenHistory
from proxy.errors import NotManaged

S = TypeVar("S")

JUDGED: Final = "judged"
"""Name of the beginnings that break no rule of the provider."""
TRACED: Final = "traced"
"""Name of the beginnings in which the bindings of reasoning are known."""
PARTNERS: Final = "partners"
"""Name of the beginnings in which the reasoning in front of each item is known."""
PREFIXES: Final = "prefixes"
"""Name in `Request.memo_values` of the known beginnings of chat completions, a `HistoryMemo`."""

CHANGING_TAIL: Final = 4
"""Messages at the end of a body that may be others in the next body. Clients move cache marks, and some notes of the
proxy stand at the end of one prompt only."""


@dataclass(frozen=True, slots=True)
class KnownPrefix(Generic[S]):
    """The beginning of a body up to the end of one of its messages, and what was found in it."""

    text: memoryview
    members: Mapping[str, Span]
    """Spans of the top-level values of the body."""
    places: tuple[Span, ...]
    """Spans of the messages in the text."""
    state: S


@dataclass(slots=True)
class PrefixMemo:
    """The known beginnings of a body, by the name of what was found in them."""

    known: dict[str, Any] = field(default_factory=dict)

    def copy(self) -> PrefixMemo:
        """A memo with the same beginnings, to which others can be added."""
        return PrefixMemo(dict(self.known))

    def find_prefix(self, name: str, body: bytes) -> KnownPrefix[Any] | None:
        """The beginning under this name, if the body has it, as a view of this body."""
        known: KnownPrefix[Any] | None = self.known.get(name)
        if known is None or not body.startswith(known.text):
            return None
        text = memoryview(body)[: len(known.text)]
        self.known[name] = KnownPrefix(text, known.members, known.places, known.state)
        return known


@dataclass(slots=True)
class HistoryMemo:
    """The known beginnings of the two bodies of a request."""

    own: PrefixMemo = field(default_factory=PrefixMemo)
    """Of the client's body."""
    sent: PrefixMemo = field(default_factory=PrefixMemo)
    """Of the body that goes upstream."""
    written: WrittenHistory | None = None
    """The history as it was last written."""

    @property
    def sent_bytes(self) -> int:
        """Bytes of the bodies that stay in memory since a beginning is a view of them, without the client's body.

        Breakpoints of the proxy are set in a copy, so there may be more than one.
        """
        views = [known.text for known in self.sent.known.values()]
        if self.written is not None:
            views.append(self.written.array)
        return sum({id(view.obj): memoryview(view.obj).nbytes for view in views}.values())

    def copy(self, stable: int) -> HistoryMemo:
        """A memo with the same beginnings, for a request that goes on behind its first `stable` elements."""
        written = self.written.limit_stable(stable) if self.written is not None else None
        return HistoryMemo(self.own.copy(), self.sent.copy(), written)


@dataclass(slots=True)
class BodyHistory(Generic[S]):
    """The messages of a body, decoded from the first one behind a known beginning on."""

    body: bytes
    members: Mapping[str, Span]
    """Spans of the top-level values."""
    places: tuple[Span, ...]
    """Spans of all messages."""
    first: int
    """The number of messages in the known beginning."""
    state: S | None
    """The value found in the known beginning; None without one."""
    new: list[Any]
    """The messages behind it, decoded."""

    def cut_value(self, name: str) -> bytes:
        """The bytes of a top-level value; b"" if it is not there."""
        start, end = self.members.get(name, (0, 0))
        return self.body[start:end]

    def has_value(self, name: str) -> bool:
        """True if a top-level value is there, and is not null."""
        start, end = self.members.get(name, (0, 0))
        return start < end and self.body[start : min(end, start + len(b"null") + 1)] != b"null"

    def read_value(self, name: str) -> Any:
        """A top-level value; None if it is not there. Raises ValueError or RecursionError if it is not JSON."""
        raw = self.cut_value(name)
        return spans.read_any(raw) if raw else None

    def remember(self, memo: PrefixMemo, name: str, count: int, state: S) -> None:
        """Note what was found in the first messages, `count` of them."""
        text = memoryview(self.body)[: self.places[count - 1][1]]
        memo.known[name] = KnownPrefix(text, self.members, self.places[:count], state)


def read_history(body: bytes, key: str, known: KnownPrefix[S] | None) -> BodyHistory[S]:
    """Read a body whose messages are the value of `key`. known: a beginning that the body has.

    A value of `key` that is no list is a history without messages. Raises ValueError or RecursionError if the body is
    no JSON object whose members can be told apart.
    """
    longer = None
    if known is not None:
        longer = spans.find_longer_history(body, key, known.members, known.places, None)
    members: Mapping[str, Span]
    if known is not None and longer is not None:
        members, places, first = longer[0], longer[1], len(known.places)
    else:
        members, places, first = *_find_places(body, key), 0
        known = None
    new = [spans.read_any(body[start:end]) for start, end in places[first:]]
    return BodyHistory(body, members, places, first, known.state if known is not None else None, new)


def _find_places(body: bytes, key: str) -> tuple[Mapping[str, Span], tuple[Span, ...]]:
    try:
        members = spans.find_body_members(body, None)
    except NotManaged as problem:
        raise ValueError(str(problem)) from problem
    span = members.get(key)
    if span is None or body[span[0] : span[0] + 1] != b"[":
        return members, ()
    return members, tuple(spans.read_elements(body, span))


def keep_objects(values: Any) -> list[dict[str, Any]]:
    """Those of the values of a list that are objects; none for another value."""
    return [one for one in values if isinstance(one, dict)] if isinstance(values, list) else []
