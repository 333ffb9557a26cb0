"""Facts of a text that an agent may need again: its names (paths, ids, numbers, dotted words) and its lines.

Facts are computed once for each message, since a batch of edits looks at the whole history. The names are stored as one
text, the lines as hashes. A name or a line that occurs elsewhere in the prompt need not be kept in its place. A
shortened result would lose the identifiers that occur nowhere else."""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import lru_cache
from itertools import chain, compress, filterfalse
from typing import Any, NamedTuple

from proxy.chat.json_spans import decode_embedded
from proxy.chat.message import Call, Message, checkpoint
from proxy.context.analysis import code_mode, output_wrappers
from proxy.context.plan import WHOLE_TEXT_ACTIONS, Edit
from proxy.context.view import View

_RUN = re.compile(r"[\w./#@:+~-]{4,}")
"""A run of characters that paths, ids, versions, URLs and qualified names are made of. It takes linear time: a pattern
that ends with a letter goes back over a long row of dots, once for each dot."""
_INSIDE = b"_./#@:+~-"
_PARTED = bytes(b if b >= 128 or chr(b).isalnum() or b in _INSIDE else 32 for b in range(256))
"""Translation table: bytes of UTF-8 that no name contains become blanks."""
_QUERIED_URL = re.compile(
    r"(https?://[^\s\"'<>()\[\]{}|\\`?]{1,80}\?(?![^\s\"'<>()\[\]{}|\\`]{100})[^\s\"'<>()\[\]{}|\\`]{0,39}[\w/=%~+-])"
    r"(?=[.,;:!?*]*(?:[\s\"'<>()\[\]{}|\\`]|\Z))"
)
"""An URL with a query, short enough to be shown as a name: without its query it would be the one of another page."""
_marked = re.compile(r"[/_@.0-9]").search
_UNMARKED = bytes(b for b in range(128) if b != 10 and not _marked(chr(b)))
"""The bytes of ASCII names that make no name: without them, a plain word is empty."""
_LISTING = re.compile(r"\s*\d+(?:\u2192|\t|:|\|)[ ]?")
FOREIGN_ERROR_WORDS = (
    "Fehler", "FEHLER", "Erreur", "erreur", "\u0448\u0438\u0431\u043a", "\u0428\u0418\u0411\u041a",
    "\u062e\u0637\u0623", "\u9519\u8bef", "\u932f\u8aa4", "\u30a8\u30e9\u30fc", "\uc624\ub958",
)  # fmt: skip
"""`error` in German, French, Russian, Arabic, Chinese, Japanese and Korean. Only texts with other letters than ASCII
are searched for them: nearly all texts of these languages have some."""
ERROR_WORDS = (
    "rror", "xception", "raceback", "FAIL", "panic", "fatal", "denied", "not found", "No such", "E  ", "ERR", "FATAL",
    "CRITICAL", "SEVERE", "BackOff", "OOMKilled", " failed",
    "E0", "E1", '"level"',
)  # fmt: skip
"""Every error line holds at least one of these words, or of those above."""
_RARE_LETTERS = "xkqFNE#\u0448\u0428\u062e\u8bef\u8aa4\u30a8\uc624"


def pair_with_letters(words: Sequence[str]) -> list[tuple[str, str]]:
    """Return each word with a letter of it that many texts do not have, "" if it has none.

    A search for one letter takes a tenth of the time of a search for a word, and most short texts have neither."""
    return [(word, next((letter for letter in _RARE_LETTERS if letter in word), "")) for word in words]


_ERROR_WORDS, _FOREIGN_WORDS = map(pair_with_letters, (ERROR_WORDS, FOREIGN_ERROR_WORDS))
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_TOOL_NAME = 64
"""Characters that providers allow for a tool's name."""
MIN_LINE_CHARS = 12
"""Minimum number of characters of a line, without its indentation, that is distinct from other lines."""


_LONG = 10_000
"""Characters above which a search for names has checkpoints of its own: it takes 0.2 ms."""
_NONE = array("q")


class TextFacts:
    """The names of a text, and hashes of its lines, which are computed on first use.

    The names are one text with blanks between them, and a hash takes 8 bytes, since a long history has hundreds of
    thousands of each. As sets they would take ten times that.
    """

    __slots__ = ("_calls", "_joined_names", "_lines", "_text")

    def __init__(self, joined_names: str, text: str, calls: Sequence[Call] = ()) -> None:
        """Store the names, each once, with a blank between two of them. text, calls: the source of the lines."""
        self._joined_names = joined_names
        self._text: str | None = text
        self._calls = calls
        self._lines: array[int] = _NONE

    @property
    def names(self) -> list[str]:
        """The names, each once."""
        return self._joined_names.split()

    @property
    def line_set(self) -> frozenset[int]:
        """The hashes of the lines of at least `MIN_LINE_CHARS` characters."""
        if self._text is not None:
            lines = _join_texts(self._text, self._calls).splitlines()
            long = [line for line in lines if len(line) >= MIN_LINE_CHARS]
            self._lines = array(
                "q", {hash(line) for line in map(strip_line_number, long) if len(line) >= MIN_LINE_CHARS}
            )
            self._text, self._calls = None, ()
        return frozenset(self._lines)


_NOTHING = TextFacts("", "")


def find_names(text: str) -> Iterator[str]:
    """Return the names in a text, in order, with repetitions: words with a digit or one of / _ @ . in them."""
    return _names(text, filterfalse(str.isalpha, _split_runs(text)))


def find_distinct_names(text: str) -> list[str]:
    """Return the names in a text, each once, in order."""
    runs = filterfalse(str.isalpha, dict.fromkeys(_split_runs(text)))
    return remove_duplicates(_names(text, runs))


def _split_runs(text: str) -> list[str]:
    """Return the parts between characters that no name contains: faster than a search for names. Colours of a terminal
    are no text, and an URL with a query is one part."""
    if "\x1b" in text:
        text = output_wrappers.remove_colours(text)
    if "://" in text and "?" in text:
        pieces = _QUERIED_URL.split(text)
        return [run for n, one in enumerate(pieces) for run in ([one] if n % 2 else _part(one))]
    return _part(text)


def _part(text: str) -> list[str]:
    parted = text.encode("utf-8", "surrogatepass").translate(_PARTED).decode("utf-8", "surrogatepass")
    return parted.split()


def _names(text: str, runs: Iterable[str]) -> Iterator[str]:
    """Return the names in these runs of a text, which are no plain words: a run is a name as a whole, without
    punctuation at its ends. A run that is not ASCII can have several, since only ASCII is parted by `_PARTED`."""
    ascii_only, is_long = text.isascii(), len(text) > _LONG
    if not ascii_only:
        runs = chain.from_iterable([run] if run.isascii() else _RUN.findall(run) for run in runs)
    if is_long:
        checkpoint()
    ends = [name for run in runs if len(run) >= 4 and len(name := run.rstrip("./#@:+~-").lstrip("@:+-")) >= 4]
    if is_long:
        checkpoint()
    if not ascii_only:
        return filter(_marked, ends)
    # The marks of all names at once take a third less time than a search in each name. In most texts all have one.
    marks = "\n".join(ends).encode().translate(None, _UNMARKED)
    return compress(ends, marks.split(b"\n")) if b"\n\n" in b"\n%b\n" % marks else iter(ends)


def split_tool_name(tool: str) -> frozenset[str]:
    """Return the words of a tool's name, in lower case: equal for `read_file`, `readFile` and `ReadFile`."""
    return _split_short_name(tool) if len(tool) <= _TOOL_NAME else _split_words(tool)


def _split_words(tool: str) -> frozenset[str]:
    return frozenset([word.lower() for word in _WORD.findall(tool)])


_split_short_name = lru_cache(maxsize=256)(_split_words)
"""A conversation has a few tools and many calls. Longer names than providers take are not kept."""


def strip_line_number(line: str) -> str:
    """Return a line without its indentation and the line number of a listing."""
    first = line[:1]
    if first in " \t":
        line = line.lstrip()
        first = line[:1]
    if first.isdigit():
        numbered = _LISTING.match(line)
        if numbered:
            line = line[numbered.end() :]
    return line.strip()


def is_numbered(line: str) -> bool:
    """True if the line begins with a listing's line number."""
    return _LISTING.match(line) is not None


def find_text_facts(text: str) -> TextFacts:
    return TextFacts(" ".join(find_distinct_names(text)), text)


def find_error_words(message: Message) -> tuple[str, ...]:
    """Return the words of error lines that occur in a message's text: most results have none and need no search."""
    return message.derive(_find_error_words)


def _find_error_words(message: Message) -> tuple[str, ...]:
    text = message.text
    words = _ERROR_WORDS if text.isascii() else _ERROR_WORDS + _FOREIGN_WORDS
    return tuple([word for word, letter in words if letter in text and word in text])


def read_all_text(message: Message) -> str:
    """Return all text of a message: its text and the values in the arguments of its calls, as lines."""
    return _join_texts(message.text, message.calls)


def _join_texts(text: str, calls: Sequence[Call]) -> str:
    return "\n".join((text, *(read_argument_texts(call.arguments) for call in calls))) if calls else text


def parse_arguments(arguments: str) -> Mapping[str, Any]:
    """Return the arguments of a call by name; empty if they are no JSON object. Of a program that calls a tool, those
    of that call (`code_mode`)."""
    try:
        value = decode_embedded(arguments)
    except (ValueError, RecursionError):
        value = arguments
    if code_mode.CALL_MARK in arguments and (program := _find_program(value)):
        value = code_mode.read_program_call(program) or value
    return value if isinstance(value, dict) else {}


def _find_program(value: object) -> str:
    """Return the only text of a call's arguments; "" if there is none, or more."""
    if isinstance(value, dict) and len(value) == 1:
        (value,) = value.values()
    return value if isinstance(value, str) else ""


def read_argument_texts(arguments: str) -> str:
    """Return the texts and numbers in a call's arguments, a line each; the unchanged arguments if they are not JSON."""
    try:
        value = decode_embedded(arguments)
    except (ValueError, RecursionError):
        return arguments
    return "\n".join(find_leaves(value))


def find_leaves(value: object) -> Iterator[str]:
    """Yield the texts and numbers in a JSON value, in order."""
    if isinstance(value, dict):
        for inner in value.values():
            yield from find_leaves(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from find_leaves(inner)
    elif value is not None and not isinstance(value, bool):
        yield str(value)


class MessageNames(NamedTuple):
    """The names in a message's text, each once, in order."""

    joined: str
    """The names as one text, with a blank between two of them: it takes the least memory."""
    longest: int
    """Characters of the longest name, 0 if there is none."""


def read_names(message: Message) -> MessageNames:
    """Return the names in a message's text, computed once."""
    return message.derive(_read_names)


def _read_names(message: Message) -> MessageNames:
    names = find_distinct_names(message.text)
    return MessageNames(" ".join(names), max(map(len, names), default=0))


def _find_own_facts(message: Message) -> TextFacts:
    if not message.calls:
        return TextFacts(read_names(message).joined, message.text)
    return TextFacts(" ".join(find_distinct_names(read_all_text(message))), message.text, message.calls)


def find_replacement_facts(message: Message, text: str, names: AbstractSet[str] | None = None) -> TextFacts:
    """Return the facts of a text that replaces the message's own. names: its names, where the caller knows them."""

    def find(_: Message) -> TextFacts:
        return find_text_facts(text) if names is None else TextFacts(" ".join(names), text)

    return message.derive(find, ("held", text))


def find_facts(message: Message, edit: Edit | None) -> TextFacts:
    """Return the facts of a message as it is sent."""
    if edit is None or edit.action in WHOLE_TEXT_ACTIONS:
        return message.derive(_find_own_facts)
    if edit.text is None:
        return _NOTHING
    if edit.action == "arguments":
        return find_replacement_facts(message, _join_shortened(message, edit.text))
    return find_replacement_facts(message, edit.text)


def _join_shortened(message: Message, text: str) -> str:
    """Return the text of a message and of its calls after an edit of their arguments. text: that of the edit."""
    written = decode_embedded(text, list[str | None])
    return "\n".join(
        [message.text]
        + [
            read_argument_texts(call.arguments if new is None else new)
            for call, new in zip(message.calls, written, strict=False)
        ]
    )


@lru_cache(maxsize=16)
def _find_tools_facts(tools: bytes) -> TextFacts:
    """Return the facts of a tools array, which most requests of an agent carry unchanged."""
    return find_text_facts(tools.decode("utf-8", "replace"))


class PromptIndex:
    """Counts of the outgoing messages that contain each name and each line, updated as edits are written."""

    def __init__(self, view: View) -> None:
        self._names: Counter[str] = Counter()
        """Number of messages with each name."""
        self._removed_names: Counter[str] = Counter()
        """The part of that number that was removed. A counter is increased in C, and decreased in Python."""
        self._lines: Counter[int] | None = None
        self._held: list[TextFacts] = []
        self._gone: list[TextFacts] = []
        for n, message in enumerate(view.messages):
            self.add(find_facts(message, view.find_edit(n)))
        if view.request.tools:
            self.add(_find_tools_facts(view.request.tools))

    def add(self, facts: TextFacts) -> None:
        """Add the facts of one more message."""
        self._names.update(facts.names)
        self._held.append(facts)
        if self._lines is not None:
            self._lines.update(facts.line_set)

    def remove(self, facts: TextFacts) -> None:
        """Remove facts that a message no longer contains."""
        self._removed_names.update(facts.names)
        self._gone.append(facts)
        if self._lines is not None:
            self._lines.subtract(facts.line_set)

    def select_missing_names(self, names: Sequence[str]) -> list[str]:
        """Return those of the names that occur in no message."""
        known, removed = self._names.get, self._removed_names.get
        return [name for name in names if known(name, 0) <= removed(name, 0)]

    def has_line(self, line: str) -> bool:
        """True if the line (bare) occurs in a message."""
        if self._lines is None:  # most batches need no lines
            self._lines = Counter()
            for what in self._held:
                self._lines.update(what.line_set)
            for what in self._gone:
                self._lines.subtract(what.line_set)
        return self._lines[hash(line)] > 0


def remove_duplicates(found: Iterable[str]) -> list[str]:
    """Return the texts without repetitions, in order."""
    return list(dict.fromkeys(found))
