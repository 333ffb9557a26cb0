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
_INFO = 2  # also so, after those characters
_REST = 3  # it needs no further reading


class BlockFilter:
    """Take the pieces of a text and return the text that the client may see. headings: of the blocks to withhold."""

    __slots__ = (
        "_block_heading", "_block_lines", "_checked_chars", "_ended_blocks", "_fence", "_fence_char", "_fence_length",
        "_head", "_headings", "_held", "_held_chars", "_line_kind", "_line_pieces", "_line_start", "_newlines",
        "blocks", "other_blocks",
    )  # fmt: skip

    def __init__(self, headings: tuple[str, ...] = state_block.HEADINGS) -> None:
        self.blocks: list[str] = []
        """The bodies of the STATE blocks withheld, in their order."""
        self.other_blocks: list[str] = []
        """The bodies of the blocks withheld under all other headings."""
        self._headings = headings
        self._block_heading = ""
        """The heading of the block that the text may be in; "" outside of blocks."""
        self._ended_blocks: list[str] = []
        """A STATE block that has ended, and blocks after it, until it is decided which of them count."""
        self._block_lines: list[str] = []
        """Whole lines of the present block, from its heading on."""
        self._line_pieces: list[str] = []
        """The unfinished line behind them."""
        self._line_start = ""
        """The beginning of that line."""
        self._held_chars = 0
        """Characters of the ended blocks, the whole lines and the unfinished line."""
        self._checked_chars = 0
        """The number of held characters when they were last checked for a block."""
        self._fence: tuple[str, int] | None = None
        """Character and length of the open fence."""
        self._line_kind = _HEAD
        self._head = ""
        """The whole line so far, outside of blocks, while its kind is not known."""
        self._held = True
        """True if neither this line nor the newlines before it were sent."""
        self._newlines = 0
        """Newlines before this line that were not sent."""
        self._fence_char = ""
        self._fence_length = 0
        """The fence characters counted in a line that may open or close a fence."""

    def feed(self, text: str) -> str:
        """Take a piece of the text. Return the text that can be sent now."""
        if self._line_kind == _REST and not self._block_heading and "\n" not in text:
            return text
        out: list[str] = []
        start = 0
        while (end := text.find("\n", start)) >= 0:
            if end > start:
                self._read_piece(text[start:end], out)
            self._end_line(out)
            start = end + 1
        if start < len(text):
            self._read_piece(text[start:] if start else text, out)
        return "".join(out)

    def flush(self, *, before_calls: bool = False) -> str:
        """Return the held text when something else comes before the text continues. A whole heading stays held.
        before_calls: a call comes, which only follows text that was sent. Then a STATE block that fails the check is
        released."""
        out: list[str] = []
        if self._block_heading:
            if before_calls and self._block_heading == state_block.HEADING and self._held_chars != self._checked_chars:
                self._checked_chars = self._held_chars
                if not state_block.find_blocks("".join((*self._block_lines, *self._line_pieces))):
                    self._release_block(out)
        elif self._held and not state_block.find_heading(self._head, self._headings):
            if self._head:
                self._release_line(out)
                self._line_kind = _REST
            else:
                out.append("\n" * self._newlines)
                self._newlines = 0
        return "".join(out)

    def end(self, *, cut: bool = False) -> str:
        """Return the held text at the end of the text; a block there has ended too. cut: it was cut off."""
        out: list[str] = []
        if self._block_heading:
            self._end_block_line("", out)
        elif self._line_kind == _HEAD and self._held:
            head = self._head
            if heading := state_block.find_heading(head, self._headings):
                self._begin_block(heading, head)
            else:
                self._release_line(out)
        if self._block_heading:
            self._ended_blocks += self._block_lines
            self._decide_blocks(out, last=True, cut=cut)
            self._block_heading = ""
            self._block_lines = []
            self._newlines = 0
        self._line_kind, self._held = _REST, False
        return "".join(out)

    def _read_piece(self, piece: str, out: list[str]) -> None:
        """Read part of a line."""
        if self._block_heading:
            self._hold_piece(piece, out)
            return
        if self._line_kind == _HEAD:
            self._classify_line(piece, out)
            return
        out.append(piece)
        if self._line_kind == _MARKS:
            self._count_marks(piece)
        elif self._line_kind == _INFO:
            self._check_fence(piece)

    def _classify_line(self, piece: str, out: list[str]) -> None:
        """Find out, as early as possible, which kind of line this is."""
        head = self._head = self._head + piece
        if self._held:
            if state_block.may_be_heading(head, self._headings):
                return
            self._release_line(out)
        else:
            out.append(piece)
        self._seek_fence(head)

    def _seek_fence(self, head: str) -> None:
        """Find out whether the line may open or close a fence. head: the line so far."""
        marks = head.lstrip(" \t")
        near = len(head) - len(marks) < state_block.FENCE_WINDOW
        self._line_kind = _HEAD if len(head) < state_block.FENCE_WINDOW else _REST
        if self._fence:
            if marks:
                self._line_kind = _REST
                if near and marks[0] == self._fence[0]:
                    self._begin_fence(marks)
            return
        if marks and marks[0] not in "`~-*+0123456789":
            self._line_kind = _REST
            return
        window = head[: state_block.FENCE_WINDOW]
        if "```" in window or "~~~" in window:
            at = state_block.find_fence(head)
            self._line_kind = _REST
            if at is not None:
                self._begin_fence(head[at:])

    def _begin_fence(self, marks: str) -> None:
        """Count the characters of what may be a fence. marks: the line from its first fence character on."""
        self._line_kind, self._fence_char, self._fence_length = _MARKS, marks[0], 0
        self._count_marks(marks)

    def _count_marks(self, piece: str) -> None:
        """Count fence characters, up to the first other character of the line."""
        behind_marks = piece.lstrip(self._fence_char)
        self._fence_length += len(piece) - len(behind_marks)
        if behind_marks:
            self._line_kind = _INFO
            self._check_fence(behind_marks)

    def _check_fence(self, rest: str) -> None:
        """Reject a fence: only spaces may follow a closing one, and no backtick an opening one of backticks."""
        if rest.strip(" \t\r") if self._fence else (self._fence_char == "`" and "`" in rest):
            self._line_kind = _REST

    def _end_line(self, out: list[str]) -> None:
        if self._block_heading:
            self._end_block_line("\n", out)
            return
        blank = False
        if self._line_kind == _HEAD and self._held:
            head, blank = self._head, not self._head
            if heading := state_block.find_heading(head, self._headings):
                self._begin_block(heading, head + "\n")
                return
            if head:
                self._release_line(out)
        elif self._line_kind in (_MARKS, _INFO):
            if self._fence is None:
                self._fence = (self._fence_char, self._fence_length)
            elif self._fence_length >= self._fence[1]:
                self._fence = None
        if self._fence or (blank and self._newlines == state_block.MAX_GAP_NEWLINES):
            out.append("\n")
        else:
            self._newlines = self._newlines + 1 if blank else 1
        self._begin_line()

    def _begin_line(self) -> None:
        """Begin a line outside of blocks."""
        self._line_kind, self._head, self._held = _HEAD, "", self._fence is None

    def _release_line(self, out: list[str]) -> None:
        """Send the line so far, and the newlines before it."""
        out.append("\n" * self._newlines + self._head)
        self._newlines = 0
        self._held = False

    # Inside of blocks.

    def _begin_block(self, heading: str, line: str) -> None:
        """Hold a block from now on. line: its first line, with the heading."""
        self._block_heading = heading
        self._block_lines = [line]
        self._line_pieces, self._line_start = [], ""
        self._held_chars = (self._held_chars if self._ended_blocks else 0) + len(line)

    def _hold_piece(self, piece: str, out: list[str]) -> None:
        """Hold part of a line in a block."""
        self._line_pieces.append(piece)
        self._held_chars += len(piece)
        if len(self._line_start) <= state_block.MAX_HEADING_CHARS:
            self._line_start += piece[: state_block.MAX_HEADING_CHARS + 1 - len(self._line_start)]
            whole_line = len(self._line_start) <= state_block.MAX_HEADING_CHARS
            open_ = whole_line and state_block.may_be_heading(self._line_start, self._headings)
            if self._fence is None and not open_ and state_block.must_end_block(self._line_start, self._block_heading):
                self._end_block(out)
                return
        self._release_if_long(out)

    def _end_block_line(self, end: str, out: list[str]) -> None:
        """End a line in a block. end: the newline character after the line, if there is one."""
        line = "".join(self._line_pieces)
        if self._fence:
            if state_block.is_fence_end(line, *self._fence):
                self._fence = None
        elif heading := state_block.find_heading(line, self._headings):
            self._held_chars -= len(line)
            self._ended_blocks += self._block_lines
            if heading == state_block.HEADING or not state_block.find_heading(self._ended_blocks[0].rstrip("\n")):
                self._decide_blocks(out)
            self._begin_block(heading, line + end)
            return
        elif state_block.is_block_end(line, self._block_heading):
            self._end_block(out)
            if end:
                self._end_line(out)
            return
        elif run := state_block.read_fence_opening(line):
            self._fence = (run[0], len(run))
        self._block_lines.append(line + end)
        self._line_pieces, self._line_start = [], ""
        self._held_chars += len(end)
        self._release_if_long(out)

    def _end_block(self, out: list[str]) -> None:
        """End the block, and all that is held before it, at the line that has begun. The newlines before the removed
        text belong to the text that follows."""
        line = "".join(self._line_pieces)
        self._ended_blocks += self._block_lines
        self._decide_blocks(out)
        self._block_heading, self._block_lines, self._line_pieces = "", [], []
        self._line_kind, self._head, self._held = _HEAD, "", True
        self._classify_line(line, out)
        if self._held:  # the block has ended, but this line could still grow into a heading
            self._release_line(out)
            self._seek_fence(line)

    def _decide_blocks(self, out: list[str], *, last: bool = False, cut: bool = False) -> None:
        """Decide which of the ended blocks count. Withhold these, and release the others. last: the text ends
        here; else another heading follows."""
        text, self._ended_blocks = "".join(self._ended_blocks), []
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
        out.append("\n" * self._newlines + visible)
        self._newlines = len(gap)

    def _release_if_long(self, out: list[str]) -> None:
        """Release held text that is too long for a block."""
        if self._held_chars <= state_block.MAX_BLOCK_CHARS:
            return
        if self._ended_blocks:
            self._decide_blocks(out)
            self._held_chars = sum(map(len, self._block_lines)) + sum(map(len, self._line_pieces))
        if self._held_chars > state_block.MAX_BLOCK_CHARS:
            self._release_block(out)

    def _release_block(self, out: list[str]) -> None:
        """Release the block that the text is in: it is not a block, wherever it ends."""
        line, text = "".join(self._line_pieces), "".join(self._block_lines)
        self._block_heading, self._block_lines, self._line_pieces = "", [], []
        kept = text if self._fence or line else state_block.strip_gap(text)
        out.append("\n" * self._newlines + kept)
        self._newlines = len(text) - len(kept)
        self._begin_line()
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
        visible, blocks_of_choice = state_block.split_blocks(
            text if isinstance(text, str) else "", headings, is_cut_off=_is_cut(choice.finish_reason)
        )
        if blocks_of_choice:
            shown[position] = visible
            if choice.index == 0:
                blocks += blocks_of_choice
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
        message["content"], blocks_of_choice = state_block.split_blocks(
            content, headings, is_cut_off=_is_cut(choice.get("finish_reason"))
        )
        changed = changed or bool(blocks_of_choice)
        if not choice.get("index"):
            blocks += [replace(block, body=repair_surrogates(block.body)) for block in blocks_of_choice]
    return (write_json(value), blocks) if changed else (body, [])
