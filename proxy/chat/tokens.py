"""Token counts of messages: each message is counted once, and estimated if no vocabulary fits.

The counter is passed in (`TextCounter`), since loading a vocabulary is I/O. Providers differ in the tokens that they
add around a message. The allowances here are OpenAI's published ones; for decisions it matters that both sides of a
comparison are counted alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from proxy.chat.message import Message

TextCounter = Callable[[str], int]
"""Counter of the tokens of a text. Pure, thread-safe, never raises."""

PER_MESSAGE = 4
"""Tokens for role and separators: OpenAI's cookbook counts 3 to 4 a message."""
PER_CALL = 12
"""Tokens for the JSON around a call's name, id and arguments."""
PER_MEDIUM = 800
"""Tokens of an image or file: between OpenAI's 85 (low detail) and 1,500 (high detail of a large image)."""

MAX_REMEMBERED_TOOLS = 256
"""Number of tools arrays with a remembered size."""


_CLASSES = bytes.maketrans(
    bytes(range(256)),
    bytes(
        ord("l") if chr(b).islower() and b < 128
        else ord("U") if chr(b).isupper() and b < 128
        else ord("d") if 48 <= b <= 57
        else ord("s") if b == 32
        else ord("n") if b in (10, 13)
        else ord("t") if b == 9
        else ord("p") if b < 128
        else ord(".") if b < 192  # a continuation byte of UTF-8
        else ord("2") if b < 224
        else ord("3") if b < 240
        else ord("4")
        for b in range(256)
    ),
)  # fmt: skip
"""Class of each byte of UTF-8: lower, Upper, digit, space, newline, tab, punctuation, or the length of its character in
bytes."""


def _merge(*merged: tuple[bytes, bytes]) -> bytes:
    """The translation table that gives several classes one letter. One count of a pattern takes the place of many."""
    return bytes.maketrans(
        b"".join(classes for _, classes in merged), b"".join(letter * len(classes) for letter, classes in merged)
    )


_WEIGHTS = (
    (790, _merge((b"-", b"spndt"), (b"L", b"lU")), b"-L"),  # a word begins
    (790, None, b"lU"),  # a word begins in another
    (53, None, b"l"),  # a letter of a word: a long word falls into pieces
    (293, None, b"U"),  # a capital letter: words in capitals fall into more pieces
    (500, _merge((b"-", b"lUsndt.")), b"-p"),  # punctuation begins
    (300, None, b"p"),  # punctuation continues
    (-350, None, b"lpl"),  # punctuation that may belong to the word after it
    (667, _merge((b"-", b"lUsnpt.")), b"-d"),  # a number begins
    (333, None, b"d"),  # a number continues, three digits a token
    (1000, None, b"sd"),  # a number does not include the blank before it, as words do
    (1050, _merge((b"-", b"nlpd")), b"-ss"),  # blanks in a row: indentation, columns
    (500, None, b"2"),  # accents and other alphabets
    (850, None, b"3"),  # dense scripts, symbols
    (1500, None, b"4"),  # emoji
)
"""(thousandths of a token, table that merges classes, pattern of classes): the rules by which o200k_base cuts a text,
with the average sizes in texts that agents send."""


def estimate_text_tokens(text: str) -> int:
    """Tokens without a vocabulary: a count of the words, numbers, punctuation and indentation that a tokenizer would
    cut.

    Within 10 % of o200k_base on an agent's conversation of any content; a single short text can be further off. Linear
    time for any text.
    """
    if not text:
        return 0
    plain = b"n" + text.encode("utf-8", "surrogatepass").translate(_CLASSES)
    total = sum(
        weight * (plain if table is None else plain.translate(table)).count(pattern)
        for weight, table, pattern in _WEIGHTS
    )
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
        total = PER_MESSAGE + self.count_text(message.text) + PER_MEDIUM * message.media_count
        if message.reasoning:
            total += self.count_text(message.reasoning)
        for call in message.calls:
            total += PER_CALL + self.count_text(call.name) + self.count_text(call.arguments)
        return total

    def has_count(self, message: Message) -> bool:
        """True if the message has been counted before, so that asking is free."""
        return self in message.derived_values

    def find_uncounted(self, messages: Sequence[Message], begin: int = 0) -> list[int]:
        """The indices, from `begin` on, of the messages that have not been counted before."""
        return [n for n in range(begin, len(messages)) if self not in messages[n].derived_values]

    def remember_count(self, message: Message, tokens: int) -> None:
        """Store the token count of a message that was counted before, in another object of the same bytes."""
        message.derived_values.setdefault(self, tokens)

    def count_tools(self, tools: bytes | None) -> int:
        """Tokens of the tools array. Most requests of an agent carry it unchanged, so up to 256 arrays are
        remembered."""
        if not tools:
            return 0
        found = self._heads.get(tools)
        if found is None:
            if len(self._heads) >= MAX_REMEMBERED_TOOLS:
                self._heads.clear()
            found = self._heads[tools] = self.count_text(tools.decode("utf-8", "replace"))
        return found
