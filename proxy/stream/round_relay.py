"""The part that the relays of Messages and of Gemini share: the rounds of one answer, and text that waits.

The text before a hidden call belongs to no answer of the client. With `hold_text` a text therefore waits, with all
that comes after it, until it is known which kind of call follows.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, Generic, Protocol, TypeVar

from proxy.dialects.usage import Usage
from proxy.stream.answer_relay import AnswerRelay, RelayOptions
from proxy.stream.block_filter import BlockFilter
from proxy.stream.gemini_answer import GeminiAnswer
from proxy.stream.messages_answer import MessagesAnswer
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


AnswerT = TypeVar("AnswerT", bound=GeminiAnswer | MessagesAnswer)
PieceT = TypeVar("PieceT", bound=Piece)


class RoundRelay(AnswerRelay, Generic[AnswerT, PieceT]):
    """The relay of one round of an answer that has parts or blocks."""

    __slots__ = (
        "_earlier", "_filters", "_hidden", "_hold", "_is_unedited", "_queue", "_round", "_shown", "_shown_before",
        "_withheld", "answer", "goes_on", "hidden_calls",
    )  # fmt: skip
    answer: AnswerT
    goes_on: bool
    hidden_calls: list[HiddenCall]

    def __init__(
        self, make_answer: Callable[[int], AnswerT], options: RelayOptions, previous: RoundRelay[AnswerT, PieceT] | None
    ) -> None:
        limit, hidden_tools, withheld = options.limit, options.hidden_tools, options.withheld
        super().__init__(limit, previous)
        self.answer = make_answer(limit) if previous is None else previous.answer
        self.goes_on = False
        self.hidden_calls = []
        self._is_unedited = not (withheld or hidden_tools or previous or options.echo.hidden_member)
        self._round = None if self._is_unedited else make_answer(limit)
        self._hidden = hidden_tools
        self._withheld = withheld
        self._hold = options.hold_text and bool(hidden_tools or previous)
        self._filters: list[BlockFilter] = []
        self._queue: list[PieceT] | None = None  # what waits, with `hold_text`
        self._earlier: list[PieceT] = [] if previous is None else previous.list_waiting()
        self._shown = 0
        self._shown_before: int = 0 if previous is None else previous.shown_calls

    def _list_filters(self) -> Iterable[BlockFilter]:
        return self._filters

    @property
    def shown_calls(self) -> int:
        return self._shown_before + self._shown

    @property
    def round_usage(self) -> Usage | None:
        return (self._round or self.answer).usage

    def build_round_message(self) -> bytes | None:
        has_blocks = any(one.blocks or one.other_blocks for one in self._filters)
        return (self._round or self.answer).build_round_message(self._withheld if has_blocks else ())

    def read_wire_usage(self) -> dict[str, Any]:
        """Return the usage object of this round."""
        return (self._round or self.answer).wire_usage

    def list_waiting(self) -> list[PieceT]:
        """Return what waits with `hold_text`, of this round and of the rounds before."""
        return [*self._earlier, *(self._queue or ())]

    def drop_held_text(self) -> None:
        for piece in self._earlier:
            piece.drop_text()

    def end_answer(self) -> bytes:
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
