"""Token counts of messages: each message is counted once, and estimated if no vocabulary fits.

The counter is passed in (`TextCounter`), since loading a vocabulary is I/O. Providers differ in the tokens that they
add around a message. The allowances here are OpenAI's published ones; for decisions it matters that both sides of a
comparison are counted alike."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from proxy.chat import media
from proxy.chat.message import Message

TextCounter = Callable[[str], int]
"""Counter of the tokens of a text. Pure, thread-safe, never raises."""

PER_MESSAGE = 4
"""Tokens for role and separators: OpenAI's cookbook counts 3 to 4 a message."""
PER_CALL = 12
"""Tokens for the JSON around a call's name, id and arguments."""
_ENCODED_DATA = re.compile(rb'[",][A-Za-z0-9+/=_\\-]{1000}')
"""The beginning of a string in Base64. The mark before it keeps the search linear."""

MAX_REMEMBERED_TOOLS = 256
"""Number of tools arrays with a remembered size."""
MAX_TOOLS_BYTES = 8 << 20
"""Bytes of all remembered tools arrays of one counter."""


_CLASSES = "lUdsntp.234"
"""Classes of the bytes of UTF-8: lower, Upper, digit, space, newline, tab, punctuation, a continuation byte, and the
first byte of a character of two, three or four bytes. The number of a class, from 1, has four bits."""
_NEWLINE = bytes((1 + _CLASSES.index("n"),))


def _find_class(byte: int) -> str:
    char = chr(byte)
    if byte < 128:
        if char in " \n\r\t":
            return "t" if char == "\t" else "s" if char == " " else "n"
        return "l" if char.islower() else "U" if char.isupper() else "d" if char.isdigit() else "p"
    return "." if byte < 192 else "2" if byte < 224 else "3" if byte < 240 else "4"


_CLASS_OF_BYTE = bytes(1 + _CLASSES.index(_find_class(byte)) for byte in range(256))

_WEIGHTS = (
    (790, "spndt", "lU"),  # a word begins
    (790, "l", "U"),  # a word begins in another
    (53, _CLASSES, "l"),  # a letter of a word: a long word falls into pieces
    (293, _CLASSES, "U"),  # a capital letter: words in capitals fall into more pieces
    (500, "lUsndt.", "p"),  # punctuation begins
    (300, _CLASSES, "p"),  # punctuation continues
    (667, "lUsnpt.", "d"),  # a number begins
    (333, _CLASSES, "d"),  # a number continues, three digits a token
    (1000, "s", "d"),  # a number does not include the blank before it, as words do
    (500, _CLASSES, "2"),  # accents and other alphabets
    (850, _CLASSES, "3"),  # dense scripts, symbols
    (1500, _CLASSES, "4"),  # emoji
)
"""(thousandths of a token, classes of a byte, classes of the next byte): the rules by which o200k_base cuts a text,
with the average sizes in texts that agents send. The weights of all rules that a pair of bytes meets are added."""
_COLUMN_WEIGHT = 1050
"""Two blanks after something else: indentation, columns."""
_JOINED_WEIGHT = -350
"""Punctuation that may belong to the word after it, as a letter is on both its sides."""
_JOINED = bytes(1 + _CLASSES.index(letter) for letter in "lpl")

_PairTable = tuple[bytes, tuple[tuple[int, bytes], ...]]


def _make_pair_table(classes: str) -> _PairTable:
    """The table that gives each pair of these classes a letter, and (thousandths of a token, letters to count).

    All pairs of one weight have one letter, so that few letters are counted."""
    letters: dict[int | str, int] = {0: 0, "blank": 1, "second blank": 2}
    table = bytearray(256)
    for first, before in enumerate(_CLASSES, 1):
        for second, letter in enumerate(_CLASSES, 1):
            meets: int | str = sum(weight for weight, left, right in _WEIGHTS if before in left and letter in right)
            if letter == "s":
                meets = "second blank" if before == "s" else "blank" if before in "nlpd" else 0
            if letter in classes:
                table[first << 4 | second] = letters.setdefault(meets, len(letters))
    weights = [(weight, bytes((letter,))) for weight, letter in letters.items() if isinstance(weight, int) and weight]
    column = bytes((letters["blank"], letters["second blank"]))
    return bytes(table), (*weights, (_COLUMN_WEIGHT, column))


_ASCII_PAIRS = _make_pair_table("lUdsntp")
_PAIRS = _make_pair_table(_CLASSES)


def estimate_text_tokens(text: str) -> int:
    """Tokens without a vocabulary: a count of the words, numbers, punctuation and indentation that a tokenizer would
    cut.

    Within 10 % of o200k_base on an agent's conversation of any content; a single short text can be further off. Linear
    time for any text.
    """
    if not text:
        return 0
    plain = _NEWLINE + text.encode("utf-8", "surrogatepass").translate(_CLASS_OF_BYTE)
    # As one integer, all bytes are paired at once: a byte then has the class before its own in its upper four bits.
    number = int.from_bytes(plain, "big")
    table, weights = _ASCII_PAIRS if text.isascii() else _PAIRS
    pairs = (number | number >> 4).to_bytes(len(plain), "big").translate(table)
    total = _JOINED_WEIGHT * plain.count(_JOINED) + sum(weight * pairs.count(letters) for weight, letters in weights)
    return (total + 500) // 1000


@dataclass(frozen=True, eq=False)
class TokenCounter:
    """Tokens of a message under one counter. Use one instance per counter: the instance is the key of the count
    in a message's derived values."""

    count_text: TextCounter
    _heads: dict[bytes, int] = field(default_factory=dict, repr=False)

    def __call__(self, message: Message) -> int:
        """Tokens of the message as received."""
        found: int | None = message.derived_values.get(self)
        return message.derive(self._weigh, self) if found is None else found

    def count_each(self, messages: Sequence[Message]) -> list[int]:
        """Tokens of each message as received."""
        return [self(message) for message in messages]

    def _weigh(self, message: Message) -> int:
        total = PER_MESSAGE + self.count_text(message.text)
        if message.media_count:
            total += self.count_media(message)
        if message.reasoning:
            total += self.count_text(message.reasoning)
        for call in message.calls:
            total += PER_CALL + self.count_text(call.name) + self.count_text(call.arguments)
        return total

    def _count_part(self, raw: bytes) -> int:
        """Tokens of a content part that is not text: of a medium, or of JSON that a model reads. Such JSON is the
        tools that Codex adds, or the output of a program that the provider has run."""
        if _ENCODED_DATA.search(raw):
            return media.estimate_tokens(raw)
        part = msgspec.json.decode(raw)
        if not isinstance(part, dict) or isinstance(part.get("text"), str):
            return 0  # among the message's text
        return media.estimate_tokens(raw) if media.is_medium(part) else self.count_text(raw.decode("utf-8", "replace"))

    def count_media(self, message: Message) -> int:
        """Tokens of the message's content parts that are not text."""
        return sum(map(self._count_part, media.read_parts(message))) if message.media_count else 0

    def count_images(self, message: Message) -> int:
        """Tokens of the message's images (`media.find_images`)."""
        return message.derive(self._weigh_images, ("images", self)) if message.media_count else 0

    def _weigh_images(self, message: Message) -> int:
        return sum(map(self._count_part, media.find_images(message)))

    def has_count(self, message: Message) -> bool:
        """True if the message has been counted before, so that asking is free."""
        return self in message.derived_values

    def find_uncounted(self, messages: Sequence[Message], begin: int) -> list[int]:
        """The indices, from `begin` on, of the messages that have not been counted before."""
        return [n for n in range(begin, len(messages)) if self not in messages[n].derived_values]

    def remember_count(self, message: Message, tokens: int) -> None:
        """Store the token count of a message that was counted before, in another object of the same bytes."""
        message.derived_values.setdefault(self, tokens)

    def count_tools(self, tools: bytes | None) -> int:
        """Tokens of the tools array; up to 256 arrays are remembered, within `MAX_TOOLS_BYTES`."""
        if not tools:
            return 0
        size = self._heads.get(tools)
        if size is None:
            size = self.count_text(tools.decode("utf-8", "replace"))
            if len(self._heads) >= MAX_REMEMBERED_TOOLS or sum(map(len, self._heads)) + len(tools) > MAX_TOOLS_BYTES:
                self._heads.clear()
            if len(tools) <= MAX_TOOLS_BYTES:
                self._heads[tools] = size
        return size
