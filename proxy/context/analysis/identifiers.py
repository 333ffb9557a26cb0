"""Facts of a text that an agent may need again: its names (paths, ids, numbers, dotted words) and its lines.

Facts are computed once for each message and stored as hashes, since a batch of edits looks at the whole history. A name
or a line that occurs elsewhere in the prompt need not be kept in its place. A shortened result would lose the
identifiers that occur nowhere else."""

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
from proxy.chat.message import Message, checkpoint
from proxy.context.plan import Edit, View

_RUN = re.compile(r"[\w./#@:+~-]{4,}")
"""A run of characters that paths, ids, versions, URLs and qualified names are made of. It takes linear time: a pattern
that ends with a letter goes back over a long row of dots, once for each dot."""
_INSIDE = b"_./#@:+~-"
_PARTED = bytes(b if b >= 128 or chr(b).isalnum() or b in _INSIDE else 32 for b in range(256))
"""Translation table: bytes of UTF-8 that no name contains become blanks."""
_marked = re.compile(r"[/_@.0-9]").search
_UNMARKED = bytes(b for b in range(128) if b != 10 and not _marked(chr(b)))
"""The bytes of ASCII names that make no name: without them, a plain word is empty."""
_LISTING = re.compile(r"\s*\d+(?:\u2192|\t|:|\|)[ ]?")
ERROR_WORDS = (
    "rror", "xception", "raceback", "FAIL", "panic", "fatal", "denied", "not found", "No such", "E  ", "ERR", "FATAL",
    "CRITICAL", "SEVERE", "BackOff", "OOMKilled", " failed",
)  # fmt: skip
"""Every error line holds at least one of these words."""
_RARE_LETTERS = "xkqFNE#"


def pair_with_letters(words: Sequence[str]) -> list[tuple[str, str]]:
    """Return each word with a letter of it that many texts do not have, "" if it has none.

    A search for one letter takes a tenth of the time of a search for a word, and most short texts have neither."""
    return [(word, next((letter for letter in _RARE_LETTERS if letter in word), "")) for word in words]


_ERROR_WORDS = pair_with_letters(ERROR_WORDS)
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_TOOL_NAME = 64
"""Characters that providers allow for a tool's name."""
MIN_LINE_CHARS = 12
"""Minimum number of characters of a line, without its indentation, that is distinct from other lines."""


_LONG = 10_000
"""Characters above which a search for names has checkpoints of its own: it takes 0.2 ms."""
_NONE = array("q")


class TextHashes:
    """The facts of a text, a pair: hashes of its names, and hashes of its lines, which are computed on first use.

    Each hash takes 8 bytes, since a long history has hundreds of thousands of them. As sets they would take ten times
    that.
    """

    __slots__ = ("_lines", "_names", "_text")

    def __init__(self, name_hashes: array[int], text: str) -> None:
        """Store the hashes of the names, each once, and the text for its lines."""
        self._names = name_hashes
        self._text: str | None = text
        self._lines: array[int] = _NONE

    @property
    def name_hashes(self) -> Sequence[int]:
        """The hashes of the names, each once."""
        return self._names

    @property
    def name_set(self) -> frozenset[int]:
        """The hashes of the names, as a set for look-ups."""
        return frozenset(self._names)

    @property
    def line_set(self) -> frozenset[int]:
        """The hashes of the lines of at least `MIN_LINE_CHARS` characters."""
        text = self._text
        if text is not None:
            long = [line for line in text.splitlines() if len(line) >= MIN_LINE_CHARS]
            self._lines = array(
                "q", {hash(line) for line in map(strip_line_number, long) if len(line) >= MIN_LINE_CHARS}
            )
            self._text = None
        return frozenset(self._lines)

    def __iter__(self) -> Iterator[frozenset[int]]:
        return iter((self.name_set, self.line_set))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, tuple | TextHashes) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(self.name_set)


_NOTHING = TextHashes(_NONE, "")


def find_names(text: str) -> Iterator[str]:
    """Return the names in a text, in order, with repetitions: words with a digit or one of / _ @ . in them."""
    return _names(text, filterfalse(str.isalpha, _split_runs(text)))


def find_distinct_names(text: str) -> list[str]:
    """Return the names in a text, each once, in order."""
    runs = filterfalse(str.isalpha, dict.fromkeys(_split_runs(text)))
    return remove_duplicates(_names(text, runs))


def _split_runs(text: str) -> list[str]:
    """Return the parts between characters that no name contains: faster than a search for names."""
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


def hash_text(text: str) -> TextHashes:
    """Return the facts of a text."""
    return TextHashes(_hash_names(find_distinct_names(text)), text)


def _hash_names(names: Iterable[str]) -> array[int]:
    return array("q", [*map(hash, names)])  # from a list, whose length is known, in two thirds of the time


def find_error_words(message: Message) -> tuple[str, ...]:
    """Return the words of error lines that occur in a message's text: most results have none and need no search."""
    return message.derive(_find_error_words)


def _find_error_words(message: Message) -> tuple[str, ...]:
    text = message.text
    return tuple([word for word, letter in _ERROR_WORDS if letter in text and word in text])


def read_all_text(message: Message) -> str:
    """Return all text of a message: its text and the values in the arguments of its calls, as lines."""
    if not message.calls:
        return message.text
    return "\n".join((message.text, *(read_argument_texts(call.arguments) for call in message.calls)))


def parse_arguments(arguments: str) -> Mapping[str, Any]:
    """Return the arguments of a call by name; empty if they are no JSON object."""
    try:
        value = decode_embedded(arguments)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


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
    hashes: array[int]
    longest: int
    """Characters of the longest name, 0 if there is none."""


def read_names(message: Message) -> MessageNames:
    """Return the names in a message's text, computed once."""
    return message.derive(_read_names)


def _read_names(message: Message) -> MessageNames:
    names = find_distinct_names(message.text)
    return MessageNames(" ".join(names), _hash_names(names), max(map(len, names), default=0))


def _of_message(message: Message) -> TextHashes:
    if not message.calls:
        return TextHashes(read_names(message).hashes, message.text)
    found = hash_text(read_all_text(message))
    found.line_set  # noqa: B018  # computed now, so that the joined text is not stored
    return found


def hash_replacement(message: Message, text: str, names: AbstractSet[str] | None = None) -> TextHashes:
    """Return the facts of a text that replaces the message's own. names: its names, where the caller knows them."""

    def hash_names(_: Message) -> TextHashes:
        return hash_text(text) if names is None else TextHashes(_hash_names(names), text)

    return message.derive(hash_names, ("held", text))


def hash_message(message: Message, edit: Edit | None) -> TextHashes:
    """Return the facts of a message as it is sent."""
    if edit is None or edit.action == "append":
        return message.derive(_of_message)
    if edit.text is None:
        return _NOTHING
    if edit.action == "arguments":
        return hash_replacement(message, _join_shortened(message, edit.text))
    return hash_replacement(message, edit.text)


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
def _of_tools(tools: bytes) -> TextHashes:
    """Return the facts of a tools array, which most requests of an agent carry unchanged."""
    return hash_text(tools.decode("utf-8", "replace"))


class PromptIndex:
    """Counts of the messages of the outgoing prompt that contain each name and each line, updated while edits are
    written."""

    def __init__(self, view: View) -> None:
        self._names: Counter[int] = Counter()
        """Number of messages with each name, by its hash."""
        self._removed_names: Counter[int] = Counter()
        """The part of that number that was removed. A counter is increased in C, and decreased in Python."""
        self._lines: Counter[int] | None = None
        self._held: list[TextHashes] = []
        self._gone: list[TextHashes] = []
        for n, message in enumerate(view.messages):
            self.add(hash_message(message, view.find_edit(n)))
        if view.request.tools:
            self.add(_of_tools(view.request.tools))

    def add(self, hashes: TextHashes) -> None:
        """Add the facts of one more message."""
        self._names.update(hashes.name_hashes)
        self._held.append(hashes)
        if self._lines is not None:
            self._lines.update(hashes.line_set)

    def remove(self, hashes: TextHashes) -> None:
        """Remove facts that a message no longer contains."""
        self._removed_names.update(hashes.name_hashes)
        self._gone.append(hashes)
        if self._lines is not None:
            self._lines.subtract(hashes.line_set)

    def select_missing_names(self, names: Sequence[str], hashes: Iterable[int] | None = None) -> list[str]:
        """Return those of the names that occur in no message. hashes: those of the names, where they are known."""
        known, removed = self._names.get, self._removed_names.get
        hashes = map(hash, names) if hashes is None else hashes
        return [name for name, h in zip(names, hashes, strict=True) if known(h, 0) <= removed(h, 0)]

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
