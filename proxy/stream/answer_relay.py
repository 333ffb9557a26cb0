"""The relay of an answer: its options, and the part that the relays of all dialects share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

import msgspec

from proxy.dialects.usage import Usage
from proxy.stream.block_filter import BlockFilter
from proxy.stream.completions_answer import AssembledAnswer
from proxy.stream.sse import EVENT_LIMIT, SseParser, is_loose_text
from proxy.stream.tool_call_filter import HiddenCall


class ClientEcho(msgspec.Struct, frozen=True):
    """The parts of an answer that tell of the request, where the client's own request differs from the one sent."""

    instructions: bytes | None = None
    """The client's own `instructions` as JSON (`null` for none), None if they were sent unchanged."""
    hidden_member: str = ""
    """The member that tells what the provider cleared, where only the proxy asked for that; "" for none."""


class RelayOptions(msgspec.Struct, frozen=True):
    """The options of the relay of a stream, in every dialect. Without any, the bytes go out as they come."""

    withheld: tuple[str, ...] = ()
    """The headings of the blocks that are removed from the text."""
    drop_usage: bool = False
    """True if the proxy asked for usage and the client did not. Chat completions alone have streams without usage."""
    limit: int = EVENT_LIMIT
    """Bytes of an event that is read, and of an answer that is held."""
    hidden_tools: frozenset[str] = frozenset()
    """The names of the proxy's tools, whose calls the client never sees."""
    hold_text: bool = False
    """True if text waits until it is known that no hidden call follows it."""
    echo: ClientEcho = ClientEcho()


NO_OPTIONS = RelayOptions()


class AnswerRelay(ABC):
    """One stream. Feed it what upstream sends, send on the bytes that it gives, then call `end`, then send `terminal`.

    previous: the relay of the round before, which went on. This relay continues its answer.
    """

    __slots__ = ("_parser", "_previous", "has_ended", "is_unfinished", "terminal")
    answer: AssembledAnswer
    """The answer as the client has got it, over all rounds."""

    def __init__(self, limit: int, previous: AnswerRelay | None) -> None:
        """limit: bytes of an event that is read."""
        self.terminal = b""
        """The end of the stream; b"" if it broke off or the round goes on."""
        self.is_unfinished = False
        """True if the bytes sent so far end within an event: what the proxy adds must begin with a blank line."""
        self.has_ended = False
        """True once the end of the round has come: nothing of the answer follows it."""
        self._parser = SseParser(limit, drops_mark=previous is not None)
        self._previous = previous

    @property
    @abstractmethod
    def hidden_calls(self) -> list[HiddenCall]:
        """The hidden calls of this round, in their order, when it has ended; none if it did not end well."""

    @property
    @abstractmethod
    def goes_on(self) -> bool:
        """True if the round has ended with hidden calls alone: nothing of its end was sent.

        Another relay continues with this one as `previous`, or `end_answer` ends the answer.
        """

    @property
    @abstractmethod
    def shown_calls(self) -> int:
        """The number of calls that the client has got in this answer."""

    @property
    @abstractmethod
    def round_usage(self) -> Usage | None:
        """The usage of this round alone."""

    @property
    def blocks(self) -> list[str]:
        """The bodies of the STATE blocks withheld, in their order, over all rounds."""
        before = self._previous.blocks if self._previous else []
        return before + [body for one in self._list_filters() for body in one.blocks]

    @property
    def other_blocks(self) -> list[str]:
        """The bodies of the withheld blocks under all other headings, in the same way."""
        before = self._previous.other_blocks if self._previous else []
        return before + [body for one in self._list_filters() for body in one.other_blocks]

    @abstractmethod
    def _list_filters(self) -> Iterable[BlockFilter]:
        """The filters of the texts of this round, in their order."""

    @abstractmethod
    def build_round_message(self) -> bytes | None:
        """Return this round's canonical message for upstream: with hidden calls, and the text as shown."""

    @abstractmethod
    def feed(self, data: bytes) -> bytes:
        """Take bytes of upstream. Return the bytes that may go to the client now."""

    @abstractmethod
    def end(self) -> bytes:
        """End the stream when upstream has closed. Return the held text and the bytes of an unfinished event."""

    @abstractmethod
    def drop_held_text(self) -> None:
        """Drop the text of earlier rounds that precedes their calls: it is not part of this answer."""

    @abstractmethod
    def end_answer(self) -> bytes:
        """End the answer although the model would continue after this round. Return what was held of the round, without
        its hidden calls.

        Then `terminal` has the value that it has at the end of any answer.
        """

    def _end_unread(self, raw: bytes, call: bytes, out: list[bytes], *, may_pass: bool) -> None:
        """Pass on the last bytes of a round if they are no event and hide nothing. call: a part of each hidden call."""
        if not raw.strip() or raw.startswith(b":"):
            return
        self.answer.unparsed += 1
        if may_pass and self._previous is None and is_loose_text(raw) and call not in raw:
            out.append(raw)
            self.is_unfinished = True
