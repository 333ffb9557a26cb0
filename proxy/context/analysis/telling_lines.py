"""Lines of a tool result that tell something: errors, imports, the values of constants, and the few lines that are
unlike all others.

Each function gives the numbers of the lines, once for each message."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from proxy.chat.message import Message, checkpoint
from proxy.context.analysis import identifiers, output_wrappers, result_lines

_ERROR = re.compile(
    r"\b(?:[A-Za-z]*(?:Error|Exception)|Traceback|FAIL(?:ED|URE|URES)?|panic|fatal|error|denied|not found|No such"
    r"|ERROR|FATAL|CRITICAL|SEVERE|OOMKilled|[1-9]\d* failed)\b|^E  |\[ERR\]|\wBackOff\b"
    r"|(?:^|\s)E[01]\d{3} \d\d:\d\d:\d\d\.\d|\"level\": ?[56]0\b"
)
_REPORT = re.compile(
    r"^E  |(?:^|[\s\u2192])FAIL(?:ED|URES?)?(?:\W|$)|Traceback \(most recent|\bpanic: "
    r"|(?:^|[\s:\u2192])(?:[\w.$]*\b[A-Z]\w*)?(?:Error|Exception): \S"
    r"|(?:^|: |\d(?:\u2192|\t|\|))(?:error|[Ff]atal)(?: error)?(?:\[\w+\]| \w+\d)?: \S"
    r"|\[(?:error|fatal|ERR|ERROR|FATAL|CRITICAL)\]|^(?:ERROR|FATAL|CRITICAL|SEVERE)\b"
    r"|(?<!\d\d:)\d\d:\d\d\d*+(?:[:.,][\d:.,]*+|Z?\b).{0,60}?\b(?:ERROR|FATAL|CRITICAL|SEVERE)\b"
    r"|\b[A-Z]\w+BackOff\b|\bOOMKilled\b"
    r"|\b(?:level|severity)\W{1,5}(?:error|fatal|[56]0)\b|(?:^|\s)E[01]\d{3} \d\d:\d\d:\d\d\.\d"
    r"|: (?:No such file|[Pp]ermission denied|(?:command )?not found)\b"
)
"""A line that reports an error, as a program or a log writes it. Code that handles errors has the same words in other
places. A time gives nothing back, and begins after no other: a line of times would take the cube of its length."""
_MARGIN = r"\s*+(?:\d++(?:\u2192|\t|:|\|)\s?)?+\s*+"
"""The blanks and the line number before a line of code."""
_IMPORT = re.compile(_MARGIN + r"(?:import\b|from \S+ import|use |#include|package |require|(?:\w+ )?\"[\w./-]+\"\s*$)")
_LIST_END = re.compile(_MARGIN + r"\)\s*$")
"""The bracket that ends a list of imports."""
_IMPORT_WORDS = identifiers.pair_with_letters(("import", "use ", "#include", "package ", "require ", '"'))
_CONSTANT = re.compile(
    r"\s*(?:\d+(?:\u2192|\t|:|\|)\s?)?\s*(?:[A-Za-z#]+\s+){0,4}[A-Z][A-Z0-9]*_[A-Z0-9_]+\b[\w\s:\[\]<>]{0,30}?"
    r"(?:[=:]|(?<=\w)\s)\s*(?:[+-]?\d[\w.+-]*|\"[^\"]*\"|'[^']*'|true|false|True|False|None|null)\s*[;,]?\s*"
)
"""A name in capitals with its value, as a definition has it. The name or the value alone would say nothing."""
_CAPITALS = re.compile(r"[A-Z][0-9]*_")
"""The last capital letter before an underscore of a constant's name: a text without it has no such line."""
_MAX_CONSTANT_LINE = 100
"""Characters above which a line is no definition of a constant."""
_WITH_DIGIT = re.compile(r"(?<![^\s;,|])[^\s\d;,|]*+\d[^\s;,|]*")
"""A word or a cell with a digit, which differs between lines that are alike."""
_ALIKE = 10
"""Lines of a result from which some can be unlike the others."""
_UNLIKE, _UNLIKE_SHARE = 4, 0.2
"""Unlike lines above which a result has no usual line: a number, and a share of its lines. The larger one counts."""
_COMPARED = 200_000
"""Characters of a result whose lines are compared: one substitution holds every other request for its time."""
_HEAD = 60
"""Lines at the front of a file among which import lines stand."""
LONG_LINE = 400
"""Characters above which a line is no error line."""


def find_error_lines(message: Message) -> tuple[int, ...]:
    """The numbers of the lines of a message that tell of an error; a long line does not count."""
    if not identifiers.find_error_words(message):
        return ()
    lines = result_lines.read_lines(message)
    return tuple(select_error_lines(message, lines))


def find_reported_errors(message: Message) -> tuple[int, ...]:
    """The numbers of those lines that report an error, and do not only name one as code does."""
    found = message.derive(find_error_lines)
    lines = result_lines.read_lines(message) if found else ()
    return tuple(n for n in found if _REPORT.search(output_wrappers.remove_colours(lines[n])))


def find_imports(message: Message) -> tuple[int, ...]:
    """The numbers of the lines at the front of a file that import something or end a list of imports."""
    text = message.text
    if not _has_import_word(text):
        return ()
    lines = [line[:LONG_LINE] for line in text.splitlines()[:_HEAD]]
    if len(text) > LONG_LINE * _HEAD and not _has_import_word("\n".join(lines)):
        return ()
    found: list[int] = []
    opening = -1  # the last line that has opened a bracket
    for n, line in enumerate(lines):
        if _IMPORT.match(line) or (opening in found and _LIST_END.match(line)):
            found.append(n)
        opening = n if line.rstrip().endswith("(") else opening
    return tuple(found)


def _has_import_word(text: str) -> bool:
    return any(letter in text and word in text for word, letter in _IMPORT_WORDS)


def find_constants(message: Message) -> tuple[int, ...]:
    """The numbers of the lines that give a name in capitals its value. Other places look these values up."""
    text = message.text
    if text == text.lower() or _CAPITALS.search(text) is None:  # no look at each line of most texts
        return ()
    lines = enumerate(result_lines.read_lines(message))
    return tuple(
        n for n, line in lines if "_" in line and len(line) <= _MAX_CONSTANT_LINE and _CONSTANT.fullmatch(line)
    )


def find_unlike_lines(message: Message) -> tuple[int, ...]:
    """The numbers of the few lines that are unlike all others of a result, where the others repeat but for names and
    numbers. Such a line is what the result was made for: the id in a log of steps, the head and the sum of a table."""
    lines = result_lines.read_lines(message) if len(message.text) <= _COMPARED else ()
    if len(lines) < _ALIKE:
        return ()
    checkpoint()
    # Columns that are aligned differ in their blanks alone.
    forms = _WITH_DIGIT.sub("0", "\n".join(lines)).replace(" ", "").split("\n")
    counts = Counter(forms)
    found = [n for n, form in enumerate(forms) if counts[form] == 1]
    alike = sum(count for form, count in counts.items() if count > 1 and "0" in form)
    is_few = len(found) <= max(_UNLIKE, _UNLIKE_SHARE * len(lines))
    return tuple(found[-_UNLIKE:]) if is_few and 2 * alike > len(lines) else ()


def select_error_lines(message: Message, lines: Sequence[str]) -> list[int]:
    """The numbers of those of these lines of a message that tell of an error; a long line does not count."""
    words = identifiers.find_error_words(message)
    checkpoint()
    if not words:
        return []
    return [
        n
        for n, line in enumerate(lines)
        if len(line) <= LONG_LINE and any(word in line for word in words) and _tells_error(line)
    ]


def _tells_error(line: str) -> bool:
    checkpoint()
    shown = output_wrappers.remove_colours(line) if "\x1b" in line else line
    return _ERROR.search(shown) is not None or any(word in shown for word in identifiers.FOREIGN_ERROR_WORDS)
