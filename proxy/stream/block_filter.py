"""Filter that withholds requested blocks (STATE, REFLECTION) from the client, and nothing else, while the text arrives.

`BlockFilter` is the twin of `notes.state_block.split_blocks`: it gives the same text however the answer is cut. Before
a block it holds back at most two newline characters and the beginning of one line. From a heading on it holds
everything until it is known if that is a block. Text that is not a block goes to the client whole. The work is linear
in the text, and the held data is bounded.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from proxy.dialects.completions.stream import read_json, repair_surrogates, write_json
from proxy.notes import state_block
from proxy.stream.completions_patch import replace_texts

CUT_REASONS = frozenset({"length", "max_tokens", "content_filter"})
"""Finish reasons of an answer that was cut off."""

# States of the line that is being read outside of blocks.
_HEAD = 0  # undecided: `_head` is all of the line so far
_MARKS = 1  # it may open or close a fence, and its fence characters are being counted
_INFO = 2  # also so, behind those characters
_REST = 3  # it needs no further reading


class BlockFilter:
    """Take the pieces of a text and return the text that the client may see. headings: of the blocks to withhold."""

    __slots__ = (
        "_before", "_body", "_fence", "_gap", "_head", "_headings", "_held", "_inside", "_judged", "_line", "_mark",
        "_part", "_peek", "_run", "_size", "blocks", "other_blocks",
    )  # fmt: skip

    def __init__(self, headings: tuple[str, ...] = state_block.HEADINGS) -> None:
        self.blocks: list[str] = []
        """The bodies of the STATE blocks withheld, in their order."""
        self.other_blocks: list[str] = []
        """The bodies of the blocks withheld under all other headings."""
        self._headings = headings
        self._inside = ""  # the heading of the block that the text may be in
        self._before: list[str] = []  # a STATE block that has ended, and blocks behind it, until they are judged
        self._body: list[str] = []  # whole lines of the present block, from its heading on
        self._part: list[str] = []  # and the line behind them
        self._peek = ""  # the beginning of that line
        self._size = 0  # characters of these three
        self._judged = 0  # their number when they were last checked for a note
        self._fence: tuple[str, int] | None = None  # character and length of the open fence
        self._line = _HEAD
        self._head = ""
        self._held = True  # neither the head nor the newlines before it were sent
        self._gap = 0
        self._mark = ""
        self._run = 0

    def feed(self, text: str) -> str:
        """Take a piece of the text. Return the text that can be sent now."""
        if self._line == _REST and not self._inside and "\n" not in text:
            return text
        out: list[str] = []
        start = 0
        while (end := text.find("\n", start)) >= 0:
            if end > start:
                self._read_piece(text[start:end], out)
            self._break(out)
            start = end + 1
        if start < len(text):
            self._read_piece(text[start:] if start else text, out)
        return "".join(out)

    def flush(self, *, before_calls: bool = False) -> str:
        """Return the held text when something else comes before the text continues. A whole heading stays held.
        before_calls: a call comes, which only follows text that was sent. Then a STATE block that fails the check is
        released."""
        out: list[str] = []
        if self._inside:
            if before_calls and self._inside == state_block.HEADING and self._size != self._judged:
                self._judged = self._size
                if not state_block.find_blocks("".join((*self._body, *self._part))):
                    self._give_up(out)
        elif self._held and not state_block.find_heading(self._head, self._headings):
            if self._head:
                self._let_go(out)
                self._line = _REST
            else:
                out.append("\n" * self._gap)
                self._gap = 0
        return "".join(out)

    def end(self, *, cut: bool = False) -> str:
        """Return the held text when the text has ended; a block at its end has then ended too. cut: the text was cut
        off there."""
        out: list[str] = []
        if self._inside:
            self._line_over("", out)
        elif self._line == _HEAD and self._held:
            head = self._head
            if heading := state_block.find_heading(head, self._headings):
                self._enter(heading, head)
            else:
                self._let_go(out)
        if self._inside:
            self._before += self._body
            self._settle(out, last=True, cut=cut)
            self._inside = ""
            self._body = []
            self._gap = 0
        self._line, self._held = _REST, False
        return "".join(out)

    def _read_piece(self, piece: str, out: list[str]) -> None:
        """Read part of a line."""
        if self._inside:
            self._hold(piece, out)
            return
        if self._line == _HEAD:
            self._learn(piece, out)
            return
        out.append(piece)
        if self._line == _MARKS:
            self._count(piece)
        elif self._line == _INFO:
            self._check(piece)

    def _learn(self, piece: str, out: list[str]) -> None:
        """Find out, as early as possible, which kind of line this is."""
        head = self._head = self._head + piece
        if self._held:
            if state_block.may_be_heading(head, self._headings):
                return
            self._let_go(out)
        else:
            out.append(piece)
        self._seek_fence(head)

    def _seek_fence(self, head: str) -> None:
        marks = head.lstrip(" \t")
        near = len(head) - len(marks) < state_block.FENCE_WINDOW
        self._line = _HEAD if len(head) < state_block.FENCE_WINDOW else _REST
        if self._fence:
            if marks:
                self._line = _REST
                if near and marks[0] == self._fence[0]:
                    self._begin(marks)
            return
        if marks and marks[0] not in "`~-*+0123456789":
            self._line = _REST
            return
        window = head[: state_block.FENCE_WINDOW]
        if "```" in window or "~~~" in window:
            at = state_block.find_fence(head)
            self._line = _REST
            if at is not None:
                self._begin(head[at:])

    def _begin(self, marks: str) -> None:
        self._line, self._mark, self._run = _MARKS, marks[0], 0
        self._count(marks)

    def _count(self, piece: str) -> None:
        rest = piece.lstrip(self._mark)
        self._run += len(piece) - len(rest)
        if rest:
            self._line = _INFO
            self._check(rest)

    def _check(self, rest: str) -> None:
        """Reject a fence: only spaces may follow a closing fence, and no backtick may follow an opening fence of
        backticks."""
        if rest.strip(" \t\r") if self._fence else (self._mark == "`" and "`" in rest):
            self._line = _REST

    def _break(self, out: list[str]) -> None:
        """End the line."""
        if self._inside:
            self._line_over("\n", out)
            return
        blank = False
        if self._line == _HEAD and self._held:
            head, blank = self._head, not self._head
            if heading := state_block.find_heading(head, self._headings):
                self._enter(heading, head + "\n")
                return
            if head:
                self._let_go(out)
        elif self._line in (_MARKS, _INFO):
            if self._fence is None:
                self._fence = (self._mark, self._run)
            elif self._run >= self._fence[1]:
                self._fence = None
        if self._fence or (blank and self._gap == state_block.MAX_GAP_NEWLINES):
            out.append("\n")
        else:
            self._gap = self._gap + 1 if blank else 1
        self._next()

    def _next(self) -> None:
        self._line, self._head, self._held = _HEAD, "", self._fence is None

    def _let_go(self, out: list[str]) -> None:
        out.append("\n" * self._gap + self._head)
        self._gap = 0
        self._held = False

    # Inside of blocks.

    def _enter(self, heading: str, line: str) -> None:
        self._inside = heading
        self._body = [line]
        self._part, self._peek = [], ""
        self._size = (self._size if self._before else 0) + len(line)

    def _hold(self, piece: str, out: list[str]) -> None:
        """Hold part of a line in a block."""
        self._part.append(piece)
        self._size += len(piece)
        if len(self._peek) <= state_block.MAX_HEADING_CHARS:
            self._peek += piece[: state_block.MAX_HEADING_CHARS + 1 - len(self._peek)]
            whole_line = len(self._peek) <= state_block.MAX_HEADING_CHARS
            open_ = whole_line and state_block.may_be_heading(self._peek, self._headings)
            if self._fence is None and not open_ and state_block.must_end_block(self._peek, self._inside):
                self._leave(out)
                return
        self._bound(out)

    def _line_over(self, end: str, out: list[str]) -> None:
        """End a line in a block. end: the newline character behind the line, if there is one."""
        line = "".join(self._part)
        if self._fence:
            if state_block.is_fence_end(line, *self._fence):
                self._fence = None
        elif heading := state_block.find_heading(line, self._headings):
            self._size -= len(line)
            self._before += self._body
            if heading == state_block.HEADING or not state_block.find_heading(self._before[0].rstrip("\n")):
                self._settle(out)
            self._enter(heading, line + end)
            return
        elif state_block.is_block_end(line, self._inside):
            self._leave(out)
            if end:
                self._break(out)
            return
        elif run := state_block.read_fence_opening(line):
            self._fence = (run[0], len(run))
        self._body.append(line + end)
        self._part, self._peek = [], ""
        self._size += len(end)
        self._bound(out)

    def _leave(self, out: list[str]) -> None:
        """End the block, and all that is held before it, at the line that has begun. The newlines before the removed
        text belong to the text that follows."""
        line = "".join(self._part)
        self._before += self._body
        self._settle(out)
        self._inside, self._body, self._part = "", [], []
        self._line, self._head, self._held = _HEAD, "", True
        self._learn(line, out)
        if self._held:  # the block has ended, but this line could still grow into a heading
            self._let_go(out)
            self._seek_fence(line)

    def _settle(self, out: list[str], *, last: bool = False, cut: bool = False) -> None:
        """Settle the blocks that have ended: keep the blocks that count and release the others. last: the text ends
        here; else another heading follows."""
        text, self._before = "".join(self._before), []
        found = state_block.find_blocks(text, self._headings, is_complete=last, is_cut_off=cut)
        visible, gap = state_block.remove_blocks(text, found)
        for block in found:
            (self.blocks if block.heading == state_block.HEADING else self.other_blocks).append(
                repair_surrogates(block.body)
            )
        if not visible:
            return
        if not last and not gap:
            kept = state_block.strip_gap(visible)
            visible, gap = kept, visible[len(kept) :]
        out.append("\n" * self._gap + visible)
        self._gap = len(gap)

    def _bound(self, out: list[str]) -> None:
        """Release held text that is too long for a block."""
        if self._size <= state_block.MAX_BLOCK_CHARS:
            return
        if self._before:
            self._settle(out)
            self._size = sum(map(len, self._body)) + sum(map(len, self._part))
        if self._size > state_block.MAX_BLOCK_CHARS:
            self._give_up(out)

    def _give_up(self, out: list[str]) -> None:
        """Release the block that the text is in: it is not a block, wherever it ends."""
        line, text = "".join(self._part), "".join(self._body)
        self._inside, self._body, self._part = "", [], []
        kept = text if self._fence or line else state_block.strip_gap(text)
        out.append("\n" * self._gap + kept)
        self._gap = len(text) - len(kept)
        self._next()
        if line:
            self._head, self._held = line, False
            out.append(line)
            self._seek_fence(line)


class _Message(msgspec.Struct, frozen=True):
    content: Any = None


class _Choice(msgspec.Struct, frozen=True):
    index: int = 0
    message: _Message | None = None
    finish_reason: Any = None


class _Body(msgspec.Struct, frozen=True):
    choices: list[_Choice] | None = None


_BODY = msgspec.json.Decoder(_Body)


def remove_blocks(
    body: bytes, headings: tuple[str, ...] = state_block.HEADINGS
) -> tuple[bytes, list[state_block.NoteBlock]]:
    """Return (a non-streaming body without such blocks, those of its first choice).

    Only the text of a message changes, every other byte stays. A body that cannot be read is returned as it is.
    """
    if not state_block.may_have_blocks(body, headings):
        return body, []
    try:
        choices = _BODY.decode(body).choices or []
    except (ValueError, RecursionError):
        return _rewrite_decoded(body, headings)
    shown: dict[int, str] = {}
    blocks: list[state_block.NoteBlock] = []
    for position, choice in enumerate(choices):
        text = choice.message.content if choice.message else None
        visible, found = state_block.split_blocks(
            text if isinstance(text, str) else "", headings, is_cut_off=_is_cut(choice.finish_reason)
        )
        if found:
            shown[position] = visible
            if choice.index == 0:
                blocks += found
    if not shown:
        return body, []
    return replace_texts(body, "message", shown), blocks


def _is_cut(reason: Any) -> bool:
    return isinstance(reason, str) and reason in CUT_REASONS


def _rewrite_decoded(body: bytes, headings: tuple[str, ...]) -> tuple[bytes, list[state_block.NoteBlock]]:
    """Do the same for a body that only Python's reader accepts: serialise it again if it holds a block."""
    value = read_json(body)
    choices = value.get("choices") if isinstance(value, dict) else None
    blocks: list[state_block.NoteBlock] = []
    changed = False
    for choice in choices if isinstance(choices, list) else ():
        message = choice.get("message") if isinstance(choice, dict) else None
        content = message.get("content") if isinstance(message, dict) else None
        if not isinstance(message, dict) or not isinstance(content, str):
            continue
        message["content"], found = state_block.split_blocks(
            content, headings, is_cut_off=_is_cut(choice.get("finish_reason"))
        )
        changed = changed or bool(found)
        if not choice.get("index"):
            blocks += [replace(block, body=repair_surrogates(block.body)) for block in found]
    return (write_json(value), blocks) if changed else (body, [])
