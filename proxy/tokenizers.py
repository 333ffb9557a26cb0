"""Exact token counts from the rank tables in the package: no network, no cache folder, no surprise at first use.

tiktoken would fetch the tables at its first use, which a sealed sidecar cannot do. The tables are therefore shipped,
checked against their sha256 and given to tiktoken. Two kinds of text are not given to it whole. Texts over 200,000
characters are cut. A run of 999,999 whitespace characters ends its regular expression in a Rust panic, which is no
Exception. Long texts that are not made of words are counted in samples. A single run of a million letters takes
tiktoken ten times as long as prose. Nothing here depends on time, so the same text always has the same count."""

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

from proxy.chat.tokens import estimate_text_tokens
from proxy.errors import ConfigError

MAX_ENCODED_CHARS = 200_000
"""Characters that are given to tiktoken at once: a fifth of the length that makes it panic, 40 ms of the worst text
known."""

MAX_EXACT_CHARS = 500_000
"""Characters above which a text is counted in samples, whatever it is made of. The worst text of this length takes 70
ms."""

SAMPLES, SAMPLE_CHARS = 32, 2_000
"""The number of samples, and the characters of each, for a text that is not counted whole."""


@dataclass(frozen=True, slots=True)
class VocabularyTable:
    """A vocabulary as it is published."""

    sha256: str
    """Hash of the unpacked file, in hexadecimal."""
    pattern: str
    """The regular expression that splits a text."""
    special: tuple[tuple[str, int], ...]
    """The special tokens with their ids."""


# The patterns are part of the vocabularies' definition: another split gives another count.
_LETTERS = r"[^\r\n\p{L}\p{N}]?"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"

TABLES = {
    "o200k_base": VocabularyTable(
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
    "cl100k_base": VocabularyTable(
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

TOKENIZERS = (*TABLES, "estimate")
"""Allowed values of a model's `tokenizer`."""

_loading = threading.Lock()
_loaded: dict[str, tiktoken.Encoding] = {}


@cache
def get_token_counter(name: str) -> Callable[[str], int]:
    """Return the counter of a vocabulary, the same object each time. Its table is read at its first count.

    Safe to call from any thread. Raises ConfigError if the name is not in NAMES.
    """
    if name == "estimate":
        return estimate_text_tokens
    if name not in TABLES:
        raise ConfigError("tokenizer", name, "one of " + ", ".join(TOKENIZERS))

    def count(text: str) -> int:
        encoding = _loaded.get(name) or load_encoding(name)
        if len(text) <= MAX_ENCODED_CHARS:
            return _encoded(encoding, text)
        if len(text) > MAX_EXACT_CHARS:
            return _sampled(encoding, text)
        return sum((_encoded if _made_of_words(part) else _sampled)(encoding, part) for part in _parts(text))

    return count


def load_encoding(name: str, folder: Path | None = None) -> tiktoken.Encoding:
    """Read and check a table, once per process; 200 ms and 40 MB. Raises ConfigError if the file is not as shipped."""
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
        ranks.clear()  # tiktoken has copied them into its own tables, but keeps the dictionary too: 31 MB for nothing
        _loaded[name] = encoding
        return encoding


def _encoded(encoding: tiktoken.Encoding, text: str) -> int:
    try:
        return len(encoding.encode_ordinary(text))
    except BaseException as error:
        # A panic in Rust arrives as a BaseException of a class that cannot be imported. Others are raised again.
        if type(error).__name__ != "PanicException":
            raise
        return estimate_text_tokens(text)


def _made_of_words(text: str) -> bool:
    """True if between a half and one in 32 characters is a blank, as in prose, code, logs and most JSON. Linear
    time."""
    blanks = text.count(" ") + text.count("\n") + text.count("\t")
    return len(text) <= 32 * blanks and 2 * blanks <= len(text)


def _sampled(encoding: tiktoken.Encoding, text: str) -> int:
    """Return the tokens of evenly spaced windows, scaled to the whole text: 1 % or so off. The first and last
    characters are included.

    A part that is hardly longer than its windows is counted whole.
    """
    if len(text) <= 2 * SAMPLES * SAMPLE_CHARS:
        return _encoded(encoding, text)
    stride = (len(text) - SAMPLE_CHARS) / (SAMPLES - 1)
    starts = (round(stride * index) for index in range(SAMPLES))
    return (
        sum(_encoded(encoding, text[at : at + SAMPLE_CHARS]) for at in starts) * len(text) // (SAMPLES * SAMPLE_CHARS)
    )


def _parts(text: str) -> Iterator[str]:
    """Yield the text in pieces of at most CUT characters. A cut is at a line break before a letter or digit if one is
    near.

    No token of either vocabulary reaches across such a place, so the sum is the exact count.
    """
    start = 0
    while len(text) - start > MAX_ENCODED_CHARS:
        end = start + MAX_ENCODED_CHARS
        near = end - SAMPLE_CHARS
        at = text.rfind("\n", near, end)
        while at > 0 and not text[at + 1].isalnum():
            at = text.rfind("\n", near, at)
        if at > 0:
            end = at + 1
        yield text[start:end]
        start = end
    yield text[start:]
