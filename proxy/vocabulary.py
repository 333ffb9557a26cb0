"""Exact token counts from the rank tables in the package: no network, no cache folder, no surprise at first use.

tiktoken would fetch the tables when first asked, which a sealed sidecar cannot, so they are shipped, checked against
their sha256 and handed to it. Two things are kept from it. Texts over 200,000 characters are cut, since a run of
999,999 whitespace characters ends its regular expression in a Rust panic, which is no Exception. And long texts that
are not made of words are counted in samples: a single run of a million letters takes it ten times as long as prose.
Nothing here depends on time, so the same text always has the same count.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import threading
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import tiktoken

from proxy.chat.tokens import estimate
from proxy.errors import ConfigError

CUT = 200_000
"""Characters that are given to tiktoken at once: a fifth of what makes it panic, 40 ms of the worst text known."""

WHOLE = 500_000
"""Texts over this are counted in samples whatever they are made of; the worst of this length takes 70 ms."""

WINDOWS, WINDOW = 32, 2_000
"""How many samples of how many characters stand for a text that is not counted whole."""


@dataclass(frozen=True, slots=True)
class Table:
    """A vocabulary as it is published: what is hashed, how text is split, and its special tokens."""

    sha256: str
    """Of the unpacked file."""
    pattern: str
    special: tuple[tuple[str, int], ...]


# The patterns are part of the vocabularies' definition: another way to split is another count.
_LETTERS = r"[^\r\n\p{L}\p{N}]?"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"

TABLES = {
    "o200k_base": Table(
        sha256="446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
        pattern="|".join(
            (
                f"{_LETTERS}{_UPPER}*{_LOWER}+{_ENDING}",
                f"{_LETTERS}{_UPPER}+{_LOWER}*{_ENDING}",
                r"\p{N}{1,3}",
                r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
                r"\s*[\r\n]+",
                r"\s+(?!\S)",
                r"\s+",
            )
        ),
        special=(("<|endoftext|>", 199_999), ("<|endofprompt|>", 200_018)),
    ),
    "cl100k_base": Table(
        sha256="223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
        pattern=(
            r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+"
            r"| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
        ),
        special=(
            ("<|endoftext|>", 100_257),
            ("<|fim_prefix|>", 100_258),
            ("<|fim_middle|>", 100_259),
            ("<|fim_suffix|>", 100_260),
            ("<|endofprompt|>", 100_276),
        ),
    ),
}

NAMES = (*TABLES, "estimate")
"""What a model's `tokenizer` may be."""

_loading = threading.Lock()
_loaded: dict[str, tiktoken.Encoding] = {}


@cache
def counter(name: str) -> Callable[[str], int]:
    """The counter of a vocabulary, the same object each time. Its table is read when it first counts.

    Safe to call from any thread. Raises ConfigError for a name that is not in NAMES.
    """
    if name == "estimate":
        return estimate
    if name not in TABLES:
        raise ConfigError("tokenizer", name, "one of " + ", ".join(NAMES))

    def count(text: str) -> int:
        encoding = _loaded.get(name) or load(name)
        if len(text) <= CUT:
            return _encoded(encoding, text)
        if len(text) > WHOLE:
            return _sampled(encoding, text)
        return sum((_encoded if _made_of_words(part) else _sampled)(encoding, part) for part in _parts(text))

    return count


def load(name: str, folder: Path | None = None) -> tiktoken.Encoding:
    """Read and check a table, once a process; 200 ms and 40 MB. Raises ConfigError where the file is not as shipped."""
    with _loading:
        if folder is None and name in _loaded:
            return _loaded[name]
        table = TABLES[name]
        file = (folder or Path(__file__).with_name("vocab")) / f"{name}.tiktoken.gz"
        try:
            content = gzip.decompress(file.read_bytes())
        except (OSError, EOFError, zlib.error) as error:
            raise ConfigError(
                f"vocab/{file.name}", str(error), "the file as shipped; install the package again"
            ) from error
        found = hashlib.sha256(content).hexdigest()
        if found != table.sha256:
            raise ConfigError(f"vocab/{file.name}", found, f"sha256 {table.sha256}; install the package again")
        ranks = {base64.b64decode(token): int(rank) for token, rank in map(bytes.split, content.splitlines())}
        encoding = tiktoken.Encoding(
            name, pat_str=table.pattern, mergeable_ranks=ranks, special_tokens=dict(table.special)
        )
        ranks.clear()  # it has read them into its own tables, but keeps the dictionary too: 31 MB for nothing
        _loaded[name] = encoding
        return encoding


def _encoded(encoding: tiktoken.Encoding, text: str) -> int:
    try:
        return len(encoding.encode_ordinary(text))
    except BaseException as error:
        # A panic in Rust arrives as a BaseException of a class that cannot be imported. Everything else goes on up.
        if type(error).__name__ != "PanicException":
            raise
        return estimate(text)


def _made_of_words(text: str) -> bool:
    """Whether between a half and one in 32 characters is a blank, as in prose, code, logs and most JSON. Linear."""
    blanks = text.count(" ") + text.count("\n") + text.count("\t")
    return len(text) <= 32 * blanks and 2 * blanks <= len(text)


def _sampled(encoding: tiktoken.Encoding, text: str) -> int:
    """Tokens of evenly spaced windows, first and last characters included, times what they stand for: 1 % or so off.

    A part that is hardly longer than its windows is counted whole.
    """
    if len(text) <= 2 * WINDOWS * WINDOW:
        return _encoded(encoding, text)
    stride = (len(text) - WINDOW) / (WINDOWS - 1)
    starts = (round(stride * index) for index in range(WINDOWS))
    return sum(_encoded(encoding, text[at : at + WINDOW]) for at in starts) * len(text) // (WINDOWS * WINDOW)


def _parts(text: str) -> Iterator[str]:
    """The text in pieces of at most CUT characters: cut at a line break before a letter or digit where one is near.

    No token of either vocabulary reaches across such a place, so the sum is the exact count.
    """
    start = 0
    while len(text) - start > CUT:
        end = start + CUT
        near = end - WINDOW
        at = text.rfind("\n", near, end)
        while at > 0 and not text[at + 1].isalnum():
            at = text.rfind("\n", near, at)
        if at > 0:
            end = at + 1
        yield text[start:end]
        start = end
    yield text[start:]
