"""The part that the relays of Messages and of Gemini share: the rounds of one answer, and text that waits.

The text before a hidden call belongs to no answer of the client. With `hold_text` a text therefore waits, with all
that comes after it, until it is known which kind of call follows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from proxy.dialects.usage import Usage
from proxy.stream.block_filter import BlockFilter
from proxy.stream.relay_options import RelayOptions
from proxy.stream.sse import SseParser, is_loose_text
from proxy.stream.tool_call_filter import HiddenCall


class Piece(Protocol):
    """Something that the client gets."""

    @property
    def is_text(self) -> bool:
        """True for text, which waits with `hold_text`."""
        ...

    @property
    def is_gone(self) -> bool:
        """True if nothing of it goes to the client."""
        ...

    def drop_text(self) -> None:
        """Leave out the text."""
        ...


class RoundAnswer(Protocol):
    """An assembled answer of one dialect."""

    is_capped: bool
    is_done: bool
    unparsed: int
    usage: Usage | None
    wire_usage: dict[str, Any]

    def build_round_message(self, headings: tuple[str, ...] = ()) -> bytes | None: ...


AnswerT = TypeVar("AnswerT", bound=RoundAnswer)
PieceT = TypeVar("PieceT", bound=Piece)


class RoundRelay(ABC, Generic[AnswerT, PieceT]):
    """The relay of one round. The parameters are those of `CompletionsRelay`.

    answer: what the client has got over all rounds. terminal: the end of the stream, b"" if it broke off or the round
    goes on. is_unfinished: the bytes sent so far end within an event.
    """

    __slots__ = (
        "_earlier", "_filters", "_hidden", "_hold", "_is_unedited", "_parser", "_previous", "_queue", "_round",
        "_shown", "_shown_before", "_withheld", "answer", "goes_on", "has_ended", "hidden_calls", "is_unfinished",
        "terminal",
    )  # fmt: skip

    def __init__(
        self, make_answer: Callable[[int], AnswerT], options: RelayOptions, previous: RoundRelay[AnswerT, PieceT] | None
    ) -> None:
        limit, hidden_tools, withheld = options.limit, options.hidden_tools, options.withheld
        self.answer: AnswerT = make_answer(limit) if previous is None else previous.answer
        self.terminal = b""
        self.is_unfinished = False
        self.goes_on = False
        """True if the round has ended with hidden calls alone: nothing of its end was sent."""
        self.hidden_calls: list[HiddenCall] = []
        """The hidden calls of this round, when it has ended; none if it did not end well."""
        self._is_unedited = not (withheld or hidden_tools or previous or options.echo.hidden_member)
        self._round = None if self._is_unedited else make_answer(limit)
        self._previous = previous
        self._hidden = hidden_tools
        self._withheld = withheld
        self._hold = options.hold_text and bool(hidden_tools or previous)
        self._parser = SseParser(limit, drops_mark=previous is not None)
        self.has_ended = False
        """True once the end of the round has come: nothing of the answer follows it."""
        self._filters: list[BlockFilter] = []
        self._queue: list[PieceT] | None = None  # what waits, with `hold_text`
        self._earlier: list[PieceT] = [] if previous is None else previous.list_waiting()
        self._shown = 0
        self._shown_before: int = 0 if previous is None else previous.shown_calls

    @property
    def blocks(self) -> list[str]:
        """The bodies of the STATE blocks withheld, in their order, over all rounds."""
        before = self._previous.blocks if self._previous else []
        return before + [body for one in self._filters for body in one.blocks]

    @property
    def other_blocks(self) -> list[str]:
        """The bodies of the withheld blocks under all other headings, in the same way."""
        before = self._previous.other_blocks if self._previous else []
        return before + [body for one in self._filters for body in one.other_blocks]

    @property
    def shown_calls(self) -> int:
        """The number of calls that the client has got in this answer."""
        return self._shown_before + self._shown

    @property
    def round_usage(self) -> Usage | None:
        """The usage of this round alone."""
        return (self._round or self.answer).usage

    def build_round_message(self) -> bytes | None:
        """Return the canonical message of this round as upstream should get it back: with its hidden calls, and the
        text as it was shown."""
        has_blocks = any(one.blocks or one.other_blocks for one in self._filters)
        return (self._round or self.answer).build_round_message(self._withheld if has_blocks else ())

    def read_wire_usage(self) -> dict[str, Any]:
        """Return the usage object of this round."""
        return (self._round or self.answer).wire_usage

    def list_waiting(self) -> list[PieceT]:
        """Return what waits with `hold_text`, of this round and of the rounds before."""
        return [*self._earlier, *(self._queue or ())]

    def drop_held_text(self) -> None:
        """Drop the text of earlier rounds that precedes their calls: it is not part of this answer."""
        for piece in self._earlier:
            piece.drop_text()

    def end_answer(self) -> bytes:
        """End the answer although the model would continue after this round. Return the held text of the rounds.

        Then `terminal` has the value that it has at the end of any answer.
        """
        out: list[bytes] = []
        self.goes_on = False
        self._release(out)
        self._send_end()
        self.answer.is_done = True
        return b"".join(out)

    @abstractmethod
    def _render(self, piece: PieceT) -> bytes:
        """The bytes of a piece, which is then part of the answer."""

    @abstractmethod
    def _send_end(self) -> None:
        """Set `terminal` to the end of the stream, with the reason and the usage of the whole answer."""

    def _note_overflow(self) -> None:
        if self._parser.overflowed:
            self.answer.is_capped = True
            if self._round is not None:
                self._round.is_capped = True

    def _end_unread(self, raw: bytes, call: bytes, out: list[bytes]) -> None:
        """Pass on the last bytes of a round if they are no event, and may hold no hidden call. call: a part of each."""
        if not raw.strip() or raw.startswith(b":"):
            return
        self.answer.unparsed += 1
        may_pass = self._previous is None and not self._parser.overflowed and not self.terminal
        if may_pass and is_loose_text(raw) and call not in raw:
            out.append(raw)
            self.is_unfinished = True

    def _put(self, piece: PieceT, out: list[bytes]) -> None:
        """Send a piece, or let it wait."""
        if piece.is_gone:
            return
        if self._hold and (self._queue is not None or self._earlier or piece.is_text):
            self._queue = self._queue or []
            self._queue.append(piece)
        else:
            out.append(self._render(piece))

    def _release(self, out: list[bytes]) -> None:
        """Send what has waited: the client sees this round. If calls of the client's follow, the text that earlier
        rounds put before hidden calls is left out."""
        if self._shown:
            self.drop_held_text()
        waiting = self.list_waiting()
        self._hold, self._earlier, self._queue = False, [], None
        out += [self._render(piece) for piece in waiting if not piece.is_gone]
