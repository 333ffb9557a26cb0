"""Keeping blocks that were asked for (STATE, REFLECTION) from the client, and nothing else, while the text arrives.

`StateFilter` is the twin of `memory.state.split`: it gives the same text however the answer is cut, and holds back
only what may still turn out to belong to a block: at most two newline characters and the beginning of one line.
Its work is linear in the text, and what it keeps is bounded.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from proxy.memory import state
from proxy.stream.chunk import read_json, whole, write_json
from proxy.stream.splice import with_texts

BODY_MAX = 1 << 20
"""Of a block longer than this, the rest is withheld but not kept: 4,000 characters are stored in the end."""

# What is known of the line that is being read.
_HEAD = 0  # too little: `_head` is all of it so far
_MARKS = 1  # it may open or close a fence, and its fence characters are being counted
_INFO = 2  # so still, behind those characters
_REST = 3  # it is of no interest


class StateFilter:
    """Takes the pieces of a text and gives what the client may see of it.

    headings: of the blocks. blocks: the bodies of the STATE blocks withheld, in their order. others: of all others.
    """

    __slots__ = (
        "_body", "_fence", "_gap", "_head", "_headings", "_held", "_inside", "_kept", "_line", "_mark", "_room", "_run",
        "_which", "blocks", "others",
    )  # fmt: skip

    def __init__(self, headings: tuple[str, ...] = state.HEADINGS) -> None:
        self.blocks: list[str] = []
        self.others: list[str] = []
        self._headings = headings
        self._which = self.blocks  # where the body of the block goes that is being read
        self._inside = False  # in a block
        self._kept = False  # its body is still to be given
        self._body: list[str] = []
        self._room = BODY_MAX
        self._fence: tuple[str, int] | None = None  # character and length of the fence that is open
        self._line = _HEAD
        self._head = ""
        self._held = True  # the head has not been given out, nor the newlines before it
        self._gap = 0
        self._mark = ""
        self._run = 0

    def feed(self, text: str) -> str:
        """What can be given out now."""
        if self._line == _REST and not self._inside and "\n" not in text:
            return text
        out: list[str] = []
        start = 0
        while (end := text.find("\n", start)) >= 0:
            if end > start:
                self._read(text[start:end], out)
            self._break(out)
            start = end + 1
        if start < len(text):
            self._read(text[start:] if start else text, out)
        return "".join(out)

    def flush(self) -> str:
        """What is held, where something else comes before the text goes on. A whole heading stays held."""
        if self._inside or not self._held or state.heading_of(self._head, self._headings):
            return ""
        out: list[str] = []
        if self._head:
            self._let_go(out)
            self._line = _REST
        else:
            out.append("\n" * self._gap)
            self._gap = 0
        return "".join(out)

    def end(self) -> str:
        """What is held when the text has ended. The block that it ends in is complete then."""
        out: list[str] = []
        if self._line == _HEAD and self._held:
            head = self._head
            if self._inside and state.ends_block(head):
                self._leave()
            if self._inside:
                self._keep(head)
            elif heading := state.heading_of(head, self._headings):
                self._enter(heading)
            else:
                self._let_go(out)
            self._line = _REST
        if self._inside:
            self._gap = 0
            if self._kept:
                self._kept = False
                self._store()
        return "".join(out)

    def _read(self, piece: str, out: list[str]) -> None:
        """Part of a line."""
        if self._line == _HEAD:
            self._learn(piece, out)
            return
        self._give(piece, out)
        if self._line == _MARKS:
            self._count(piece)
        elif self._line == _INFO:
            self._check(piece)

    def _learn(self, piece: str, out: list[str]) -> None:
        """Finds out, as early as can be, what kind of line this is."""
        head = self._head + piece
        if self._held:
            if self._inside:
                if state.may_end_block(head):
                    self._head = head
                    return
                if state.ends_block(head):
                    self._leave()
                else:
                    self._keep(head)
                    self._held = False
            if not self._inside:
                if state.may_be_heading(head, self._headings):
                    self._head = head
                    return
                self._head = head
                self._let_go(out)
        else:
            self._give(piece, out)
        self._head = head
        self._seek_fence(head)

    def _seek_fence(self, head: str) -> None:
        marks = head.lstrip(" \t")
        near = len(head) - len(marks) < state.FENCE_WINDOW
        self._line = _HEAD if len(head) < state.FENCE_WINDOW else _REST
        if self._fence:
            if marks:
                self._line = _REST
                if near and marks[0] == self._fence[0]:
                    self._begin(marks)
            return
        if marks and marks[0] not in "`~-*+0123456789":
            self._line = _REST
            return
        window = head[: state.FENCE_WINDOW]
        if "```" in window or "~~~" in window:
            at = state.fence_at(head)
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
        """Nothing but spaces may follow a closing fence; no backtick an opening one of backticks."""
        if rest.strip(" \t\r") if self._fence else (self._mark == "`" and "`" in rest):
            self._line = _REST

    def _break(self, out: list[str]) -> None:
        """The line ends."""
        blank = False
        if self._line == _HEAD and self._held:
            head, blank = self._head, not self._head
            if self._inside and state.ends_block(head):
                self._leave()
            if self._inside:
                self._keep(head)
            elif heading := state.heading_of(head, self._headings):
                self._enter(heading)
                self._next()
                return
            elif head:
                self._let_go(out)
        elif self._line in (_MARKS, _INFO):
            if self._fence is None:
                self._fence = (self._mark, self._run)
            elif self._run >= self._fence[1]:
                self._fence = None
        if self._inside:
            self._keep("\n")
        elif self._fence or (blank and self._gap == state.GAP):
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

    def _give(self, piece: str, out: list[str]) -> None:
        if self._inside:
            self._keep(piece)
        else:
            out.append(piece)

    def _keep(self, piece: str) -> None:
        if self._room > 0 and self._kept:
            self._body.append(piece[: self._room])
            self._room -= len(piece)

    def _enter(self, heading: str) -> None:
        self._which = self.blocks if heading == state.HEADING else self.others
        self._inside = self._kept = True
        self._room = BODY_MAX

    def _leave(self) -> None:
        """The block is over. The newlines before it stay held: they belong to what follows, if anything does."""
        self._inside = False
        if self._kept:
            self._store()

    def _store(self) -> None:
        self._which.append(whole("".join(self._body).strip()))
        self._body = []


class _Message(msgspec.Struct, frozen=True):
    content: Any = None


class _Choice(msgspec.Struct, frozen=True):
    index: int = 0
    message: _Message | None = None


class _Body(msgspec.Struct, frozen=True):
    choices: list[_Choice] | None = None


_BODY = msgspec.json.Decoder(_Body)


def without_state(body: bytes) -> tuple[bytes, list[str]]:
    """(a non-streaming body without its STATE blocks, those of its first choice): see `without_blocks`."""
    visible, blocks = without_blocks(body)
    return visible, [block.body for block in blocks]


def without_blocks(body: bytes, headings: tuple[str, ...] = state.HEADINGS) -> tuple[bytes, list[state.Block]]:
    """(a non-streaming body without such blocks, those of its first choice).

    Only the text of a message changes, every other byte stays. A body that cannot be read is given back as it is.
    """
    if not any(heading.lstrip("# ").encode() in body for heading in headings):
        return body, []
    try:
        choices = _BODY.decode(body).choices or []
    except (ValueError, RecursionError):
        return _rewritten(body, headings)
    shown: dict[int, str] = {}
    blocks: list[state.Block] = []
    for position, choice in enumerate(choices):
        text = choice.message.content if choice.message else None
        visible, found = state.split(text if isinstance(text, str) else "", headings)
        if found:
            shown[position] = visible
            if choice.index == 0:
                blocks += found
    if not shown:
        return body, []
    return with_texts(body, "message", shown), blocks


def _rewritten(body: bytes, headings: tuple[str, ...]) -> tuple[bytes, list[state.Block]]:
    """The same for a body that only Python's reader takes: written anew where it holds a block."""
    value = read_json(body)
    choices = value.get("choices") if isinstance(value, dict) else None
    blocks: list[state.Block] = []
    changed = False
    for choice in choices if isinstance(choices, list) else ():
        message = choice.get("message") if isinstance(choice, dict) else None
        content = message.get("content") if isinstance(message, dict) else None
        if not isinstance(message, dict) or not isinstance(content, str):
            continue
        message["content"], found = state.split(content, headings)
        changed = changed or bool(found)
        if not choice.get("index"):
            blocks += [replace(block, body=whole(block.body)) for block in found]
    return (write_json(value), blocks) if changed else (body, [])
