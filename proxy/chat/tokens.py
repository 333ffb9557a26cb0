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

_WEIGHTS = (
    (790, (b"sl", b"pl", b"nl", b"dl", b"tl", b"sU", b"pU", b"nU", b"dU", b"tU", b"lU")),  # a word begins
    (53, (b"l", b"U")),  # a letter of a word: a long word falls into pieces
    (240, (b"U",)),  # a capital letter: words in capitals fall into more pieces
    (500, (b"lp", b"Up", b"sp", b"np", b"dp", b"tp", b".p")),  # punctuation begins
    (300, (b"p",)),  # punctuation continues
    (-350, (b"lpl",)),  # punctuation that may belong to the word after it
    (667, (b"ld", b"Ud", b"sd", b"nd", b"pd", b"td", b".d")),  # a number begins
    (333, (b"d",)),  # a number continues, three digits a token
    (1000, (b"sd",)),  # a number does not include the blank before it, as words do
    (1050, (b"nss", b"lss", b"pss", b"dss")),  # blanks in a row: indentation, columns
    (500, (b"2",)),  # accents and other alphabets
    (850, (b"3",)),  # dense scripts, symbols
    (1500, (b"4",)),  # emoji
)
"""(thousandths of a token, byte class patterns): the rules by which o200k_base cuts a text, with the average sizes in
texts that agents send."""


def estimate_text_tokens(text: str) -> int:
    """Tokens without a vocabulary: a count of the words, numbers, punctuation and indentation that a tokenizer would
    cut.

    Within 10 % of o200k_base on an agent's conversation of any content; a single short text can be further off. Linear
    time for any text.
    """
    if not text:
        return 0
    count = (b"n" + text.encode("utf-8", "surrogatepass").translate(_CLASSES)).count
    total = sum(weight * sum(map(count, patterns)) for weight, patterns in _WEIGHTS)
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

    def count_replacement(self, message: Message, text: str) -> int:
        """Tokens of a text that replaces the message's own text, counted once per message and text."""
        return message.derive(lambda _: PER_MESSAGE + self.count_text(text), (self, text))

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
