"""What a text holds that an agent may need again: its names (paths, ids, numbers, dotted words) and its lines.

Found once a message and kept as hashes, since the whole history is looked at when a batch of edits is made. A name or
a line that stands elsewhere in the prompt need not be kept where it is; one that stands nowhere else is what a
shortened result would lose.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, filterfalse
from typing import Any

from proxy.chat.checkpoint import checkpoint
from proxy.chat.embedded_json import decode_embedded
from proxy.chat.message import Message
from proxy.context.plan import Edit, View

NAME = re.compile(r"[\w/.#~][\w./#@:+~-]{2,}\w")
"""A run of characters that paths, ids, versions, URLs and qualified names are made of, at least four long."""
_INSIDE = b"_./#@:+~-"
_PARTED = bytes(b if b >= 128 or chr(b).isalnum() or b in _INSIDE else 32 for b in range(256))
"""Bytes of UTF-8 that no name has in it, made blanks."""
_marked = re.compile(r"[/_@.0-9]").search
_LISTING = re.compile(r"\s*\d+(?:\u2192|\t|:|\|)[ ]?")
TROUBLES = ("rror", "xception", "raceback", "FAIL", "panic", "fatal", "denied", "not found", "No such", "E  ")
"""Every error line has one of these."""
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
LINE = 12
"""Characters that a line has to have, without its indentation, to be told apart from any other."""


_NONE = array("q")


class Held:
    """What a text holds, a pair: hashes of its names, and of its lines, which are found when they are asked for.

    Kept as 8 bytes each, since a long history has hundreds of thousands of them: as a set they would take ten times
    that.
    """

    __slots__ = ("_lines", "_names", "_text")

    def __init__(self, names: Iterable[str], text: str) -> None:
        """names: each once."""
        self._names = array("q", map(hash, names))
        self._text: str | None = text
        self._lines: array[int] = _NONE

    @property
    def each_name(self) -> Sequence[int]:
        """Of the names, each once."""
        return self._names

    @property
    def names(self) -> frozenset[int]:
        """The same, to look one up in."""
        return frozenset(self._names)

    @property
    def lines(self) -> frozenset[int]:
        """Of the lines that are long enough to be told apart."""
        text = self._text
        if text is not None:
            long = [line for line in text.splitlines() if len(line) >= LINE]
            self._lines = array("q", {hash(line) for line in map(bare, long) if len(line) >= LINE})
            self._text = None
        return frozenset(self._lines)

    def __iter__(self) -> Iterator[frozenset[int]]:
        return iter((self.names, self.lines))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, tuple | Held) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(self.names)


_NOTHING = Held((), "")


def names(text: str) -> Iterator[str]:
    """The names in a text, in order, with repetitions: words with a digit or one of / _ @ . in them."""
    return _names(_runs(text), ascii_only=text.isascii())


def different(text: str) -> list[str]:
    """The names in a text, each once, in order."""
    return unique(_names(dict.fromkeys(_runs(text)), ascii_only=text.isascii()))


def _runs(text: str) -> Iterable[str]:
    """What stands between characters that no name has in it, but for plain words: quicker than to search for names."""
    parted = text.encode("utf-8", "surrogatepass").translate(_PARTED).decode("utf-8", "surrogatepass")
    return filterfalse(str.isalpha, parted.split())


def _names(runs: Iterable[str], *, ascii_only: bool) -> Iterator[str]:
    """The names in these runs: where one is ASCII, all of it but for its ends."""
    if not ascii_only:
        runs = chain.from_iterable([run] if run.isascii() else NAME.findall(run) for run in runs)
    checkpoint()
    ends = [run.rstrip("./#@:+~-").lstrip("@:+-") for run in runs if len(run) >= 4]
    checkpoint()
    return filter(_marked, [name for name in ends if len(name) >= 4])


def words_of(tool: str) -> set[str]:
    """The words of a tool's name, in lower case: `read_file`, `readFile` and `ReadFile` have the same."""
    return {word.lower() for word in _WORD.findall(tool)}


def bare(line: str) -> str:
    """A line without its indentation and the line number that a listing puts in front."""
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
    """Whether a listing's line number stands in front of the line."""
    return _LISTING.match(line) is not None


def held(text: str) -> Held:
    """What a text holds."""
    return Held(different(text), text)


def troubles(message: Message) -> tuple[str, ...]:
    """Which of the words that error lines have stand in a message's text: most results have none of them, and need not
    be looked through."""
    return message.derive(_troubles)


def _troubles(message: Message) -> tuple[str, ...]:
    text = message.text
    return tuple(word for word in TROUBLES if word in text)


def said(message: Message) -> str:
    """All that a message says: its text and the values in the arguments of its calls, as lines."""
    if not message.calls:
        return message.text
    return "\n".join((message.text, *(written(call.arguments) for call in message.calls)))


def arguments_of(arguments: str) -> Mapping[str, Any]:
    """The arguments of a call by name; none where they are no JSON object."""
    try:
        value = decode_embedded(arguments)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def written(arguments: str) -> str:
    """The texts and numbers in a call's arguments, a line each; the arguments as they are where they are not JSON."""
    try:
        value = decode_embedded(arguments)
    except (ValueError, RecursionError):
        return arguments
    return "\n".join(leaves(value))


def leaves(value: object) -> Iterator[str]:
    """The texts and numbers in a JSON value, in order."""
    if isinstance(value, dict):
        for inner in value.values():
            yield from leaves(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from leaves(inner)
    elif value is not None and not isinstance(value, bool):
        yield str(value)


def listed(message: Message) -> list[str]:
    """The names in a message's text, each once, in order. Kept as one text, which takes the least room."""
    return message.derive(_listed).split()


def _listed(message: Message) -> str:
    return " ".join(different(message.text))


def _of_message(message: Message) -> Held:
    if not message.calls:
        return Held(listed(message), message.text)
    found = held(said(message))
    found.lines  # noqa: B018  # now, so that the text that was put together is not kept
    return found


def replaced(message: Message, text: str) -> Held:
    """What a text holds that stands in place of the message's own."""
    return message.derive(lambda _: held(text), ("held", text))


def of(message: Message, edit: Edit | None) -> Held:
    """What a message holds as it goes out."""
    if edit is None or edit.action == "append":
        return message.derive(_of_message)
    if edit.text is None:
        return _NOTHING
    return replaced(message, edit.text)


@lru_cache(maxsize=16)
def _of_tools(tools: bytes) -> Held:
    """What a tools array holds, which most requests of an agent carry unchanged."""
    return held(tools.decode("utf-8", "replace"))


class Standing:
    """How many messages of the outgoing prompt hold each name and each line; kept true while edits are written."""

    def __init__(self, view: View) -> None:
        self.names: Counter[int] = Counter()
        """How many messages hold each, by its hash."""
        self._lines: Counter[int] | None = None
        self._held: list[Held] = []
        self._gone: list[Held] = []
        for n, message in enumerate(view.messages):
            self.add(of(message, view.edit(n)))
        if view.request.tools:
            self.add(_of_tools(view.request.tools))

    def add(self, what: Held) -> None:
        """Another message holds this."""
        self.names.update(what.each_name)
        self._held.append(what)
        if self._lines is not None:
            self._lines.update(what.lines)

    def remove(self, what: Held) -> None:
        """A message does not hold this any more."""
        names = self.names
        for h in what.each_name:
            names[h] -= 1
        self._gone.append(what)
        if self._lines is not None:
            self._lines.subtract(what.lines)

    def has_name(self, name: str, own: frozenset[int]) -> bool:
        """Whether the name stands in another message than the one that holds `own`."""
        h = hash(name)
        return self.names[h] - (h in own) > 0

    def has_line(self, line: str, own: frozenset[int]) -> bool:
        """Whether the line (bare) stands in another message than the one that holds `own`."""
        if self._lines is None:  # most batches never ask
            self._lines = Counter()
            for what in self._held:
                self._lines.update(what.lines)
            for what in self._gone:
                self._lines.subtract(what.lines)
        h = hash(line)
        return self._lines[h] - (h in own) > 0


def unique(found: Iterable[str]) -> list[str]:
    """Each once, in order."""
    return list(dict.fromkeys(found))
