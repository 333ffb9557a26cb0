"""Records: results that are made of labelled fields, and the lines of a record that stay.

JSON on several lines, `key: value` and tables say what each value is. A list of their names without the labels would
not, so the agent would have to look the record up again. Whole lines of a record stay, from its beginning on.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from proxy.chat.message import Message, checkpoint
from proxy.context.analysis.shell_commands import ShellCommand

MIN_LABELLED_SHARE = 0.6
"""Share of the lines with text that have to be fields or rows. Most lines of a record are, whatever text stands around
the record."""
MIN_LINES = 6
"""Lines with text from which a result can be a record."""
MIN_LABELS = 3
"""Number of different labels that a record needs. Lines that all begin with the same word are messages."""
ROOM_FACTOR = 2.0
"""Room for labelled lines, in units of the room for bare names: a label takes as many characters as its value."""
_LONG = 300
"""Characters above which a line is a text and no field."""
_FIELD = re.compile(r"""\s*(?:[-*]\s+)?["']?[^\W\d][\w .()/-]{0,40}["']?\s*[:=\uff1a]\s*(?=\S)(?!//)""")
_CELL_END = re.compile(r" *\| *| {2,}|\t")
"""Separator of the cells in a row of a table."""
_CELL_CHARS = 81
"""Characters above which a cell is a text."""


def is_record(message: Message, command: ShellCommand) -> bool:
    """True if a tool's result is made of labelled fields or the rows of a table."""
    if command.kind != "call" or command.edits_file:
        return False
    return message.derive(_is_record)


def _is_record(message: Message) -> bool:
    lines = [line for line in message.text.splitlines() if line.strip().strip("[]{}(),")]
    if len(lines) < MIN_LINES:
        return False
    checkpoint()
    labels = [found[0] for line in lines if (found := _FIELD.match(line, 0, _LONG)) is not None]
    checkpoint()
    rows = sum(map(_is_row, lines))
    return max(len(labels) if len(set(labels)) >= MIN_LABELS else 0, rows) >= MIN_LABELLED_SHARE * len(lines)


def _is_row(line: str) -> bool:
    """True if a line has two cells between bars, as in a table of Markdown, or a word and at least two cells after it.
    One pattern for the whole line would try all ways to part it."""
    text = line.strip()
    if text[:1] == "|" and text[-1:] == "|":
        cells = text[1:-1].split("|")
        return len(cells) > 1 and all(len(cell.strip()) <= _CELL_CHARS for cell in cells)
    text = text.removesuffix("|").rstrip()
    if "  " not in text and "|" not in text and "\t" not in text:  # most lines; to part one takes six times as long
        return False
    first, *cells = _CELL_END.split(text)
    if len(cells) < 2 or not first or any(map(str.isspace, first)):
        return False
    return all(0 < len(cell) <= _CELL_CHARS for cell in cells)


def select_lines(lines: Sequence[str], max_chars: int) -> set[int]:
    """The lines of a record that stay, from the first on, in at most `max_chars` characters.

    These are its fields or rows, and the brackets between them.
    """
    found: set[int] = set()
    for n, line in enumerate(lines):
        if len(line) > _LONG:
            continue
        max_chars -= len(line) + 1
        if max_chars < 0:
            break
        found.add(n)
    return found
