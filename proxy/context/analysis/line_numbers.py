"""Listings: texts with a line number before most lines, as tools show files and echo edits.

Lines end at the line feed alone and keep all their other characters, so that the joined lines are the text, byte for
byte. The line numbers belong to the listing, not to the file. A line without its number can be compared with another
listing and with the text that the agent wrote itself.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from proxy.chat.message import Message, checkpoint

NUMBER_INTERVAL = 10
"""Consecutive line numbers that are multiples of this number stay."""
ROUND_NUMBER = 5
"""Line numbers that are multiples of this number stay among the names of a stub."""
MIN_NUMBERED_LINES = 8
"""Minimum number of numbered lines in a listing."""
_SHARE = 0.7
"""Minimum share of numbered lines in a listing, of the lines that are not empty."""
_NUMBERED = re.compile(r"[ \t]*(\d{1,7})(?:\u2192|\t|\||:)")
_OTHER_ENDS = re.compile("[\x0b\x0c\x1c-\x1e\x85\u2028\u2029]|\r(?!\n|$)")


@dataclass(frozen=True, slots=True)
class NumberedLines:
    """The lines of a text."""

    whole: Sequence[str]
    """The unchanged lines; joined by line feeds they are the text."""
    bare: Sequence[str]
    """The lines without a listing's numbers."""
    numbers: Sequence[int]
    """The number of each line, -1 for none."""
    is_listing: bool
    """True if most lines are numbered. If not, `bare` is `whole`."""
    is_sure: bool
    """The numbers are aligned to the right or stand before an arrow, as tools write them and tables hardly do."""
    is_exact: bool
    """`bare` is the file's text: it is known whether the listing puts a blank after its mark."""
    is_plain: bool
    """The text has no other character that some readers take for a line end."""


@dataclass(frozen=True, slots=True)
class _LineFacts:
    """The facts about a text from which its lines are made again: the lines themselves take 30 times the memory."""

    numbers: array[int]
    cuts: array[int]
    """The characters before each bare line; none for a text that is no listing."""
    is_sure: bool
    is_exact: bool
    is_plain: bool

    def make_lines(self, text: str) -> NumberedLines:
        whole = text.split("\n")
        if not self.cuts:
            return _make_unnumbered(whole, is_plain=self.is_plain)
        bare = [line[cut:] for line, cut in zip(whole, self.cuts, strict=True)]
        return NumberedLines(
            whole,
            bare,
            self.numbers.tolist(),
            is_listing=True,
            is_sure=self.is_sure,
            is_exact=self.is_exact,
            is_plain=self.is_plain,
        )


_NONE: array[int] = array("i")
_PLAIN, _WITH_OTHER_ENDS = (
    _LineFacts(_NONE, _NONE, is_sure=False, is_exact=True, is_plain=is_plain) for is_plain in (True, False)
)


def read_lines(message: Message) -> NumberedLines:
    """Return the lines of a message's text. The numbers are looked for once."""
    return message.derive(_find_line_facts).make_lines(message.text)


def drop_most_numbers(message: Message, names: list[str]) -> list[str]:
    """Return the names without most line numbers of a listing: all of a long file would be its longest row of names.
    Those stay from which agents read on, which are round. Nobody names a line by a number with leading zeros."""
    if not any(map(str.isdigit, names)) or not (held := read_lines(message)).is_listing:
        return names
    numbers = {match[1] for line in held.whole if (match := _NUMBERED.match(line)) is not None}
    return [name for name in names if name not in numbers or (name[0] != "0" and int(name) % ROUND_NUMBER == 0)]


def _find_line_facts(message: Message) -> _LineFacts:
    lines = split_lines(message.text)
    if not lines.is_listing:
        return _PLAIN if lines.is_plain else _WITH_OTHER_ENDS
    cuts = array("i", [len(whole) - len(bare) for whole, bare in zip(lines.whole, lines.bare, strict=True)])
    return _LineFacts(array("i", lines.numbers), cuts, lines.is_sure, lines.is_exact, lines.is_plain)


def split_lines(text: str) -> NumberedLines:
    """Split a text into its lines."""
    whole = text.split("\n")
    is_plain = _OTHER_ENDS.search(text) is None
    filled = sum(1 for line in whole if line)
    checkpoint()
    found = [_NUMBERED.match(line) for line in whole]
    checkpoint()
    numbered = sum(1 for match in found if match is not None)
    if numbered < MIN_NUMBERED_LINES or numbered < _SHARE * filled:
        return _make_unnumbered(whole, is_plain=is_plain)
    numbers = [int(match[1]) if match is not None else -1 for match in found]
    rows = sum(1 for a, b in pairwise(numbers) if b == a + 1 > 0)
    if rows < numbered // 2:
        return _make_unnumbered(whole, is_plain=is_plain)
    bare = [line[match.end() :] if match is not None else line for line, match in zip(whole, found, strict=True)]
    separator = _has_separator([line for line, match in zip(bare, found, strict=True) if match is not None], found)
    if separator:
        bare = [line[1:] if match is not None else line for line, match in zip(bare, found, strict=True)]
    sure = any(match is not None and (match[0][0] in " \t" or match[0][-1] == "\u2192") for match in found)
    is_exact = separator is not None
    return NumberedLines(whole, bare, numbers, is_listing=True, is_sure=sure, is_exact=is_exact, is_plain=is_plain)


def _make_unnumbered(whole: Sequence[str], *, is_plain: bool) -> NumberedLines:
    return NumberedLines(whole, whole, (), is_listing=False, is_sure=False, is_exact=True, is_plain=is_plain)


def _has_separator(texts: Sequence[str], found: Sequence[re.Match[str] | None]) -> bool | None:
    """True if a blank after the mark belongs to the listing, as in `00012| text` and `12: text`; None if unknown.

    texts: what follows the marks. If each begins with a blank, that blank may be the file's or the listing's.
    It is the listing's if the listing starts at line 1 and some line has text right after the blank.
    """
    if any(text[:1] not in ("", " ") for text in texts) or not any(texts):
        return False
    if any(match is not None and match[0][-1] in "\u2192\t" for match in found):
        return False  # these marks need no blank
    if any(match is not None and match[1][0] == "0" and match[1] != "0" for match in found):
        return True  # numbers with leading zeros: opencode
    first = next(match for match in found if match is not None)
    begins = first[1] == "1" and any(text[1:2] not in ("", " ", "\t", "*") for text in texts)
    return True if begins else None  # a whole file hardly has a blank before each line, a part of one may


def thin_numbers(lines: NumberedLines, start: int, end: int) -> list[str]:
    """Return lines[start:end] of a listing with every tenth number, the first one, and those after a jump.

    All numbers stay if a blank of the listing could be taken for one of the file: an edit that quotes such a line would
    fail.
    """
    if not lines.is_exact:
        return list(lines.whole[start:end])
    out: list[str] = []
    previous_number = -1
    for n in range(start, end):
        number = lines.numbers[n]
        if number < 0 or number % NUMBER_INTERVAL == 0 or number != previous_number + 1 or previous_number < 0:
            out.append(lines.whole[n])
        else:
            out.append(lines.bare[n])
        previous_number = number
    return out
