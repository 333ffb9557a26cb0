"""Exact token counts without a network: the vocabularies are part of an installed package.

`toktok` counts as tiktoken does, in a tenth of its time. Its time is linear in the length of a text, but a text of one
kind of character takes it many times as long as prose. So very long texts, and long texts that are not made of words,
are counted in samples. Nothing here depends on time, so the same text always has the same count."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import toktok

from proxy.chat.tokens import estimate_text_tokens
from proxy.errors import ConfigError

MAX_ENCODED_CHARS = 200_000
"""Characters that are counted at once, and above which a text that is not made of words is counted in samples."""

MAX_EXACT_CHARS = 500_000
"""Characters above which a text is counted in samples, whatever it is made of."""

SAMPLES, SAMPLE_CHARS = 32, 2_000
"""The number of samples, and the characters of each, for a text that is not counted whole."""

VOCABULARIES = ("o200k_base", "cl100k_base")

TOKENIZERS = (*VOCABULARIES, "estimate")
"""Allowed values of a model's `tokenizer`."""

BUFFER_SHARES = 32
"""Threads of a batch, by which the library divides 32 MB of buffers. A buffer remembers the tokens of short words. A
thread that counts single texts would take 16 MB, and with a 32nd of all its counts take no longer."""

_loading = threading.Lock()
_sharing = threading.Lock()
_loaded: dict[str, Any] = {}


class _ThreadCounters(threading.local):
    """The vocabularies for which the calling thread has its buffer."""

    def __init__(self) -> None:
        self.by_name: dict[str, Callable[[str], int]] = {}
        """The count of a text, as the library makes it, by vocabulary."""


_thread_counters = _ThreadCounters()


@cache
def get_token_counter(name: str) -> Callable[[str], int]:
    """Return the counter of a vocabulary, the same object each time. The vocabulary is read at its first count.

    Safe to call from any thread. Raises ConfigError if the name is not in TOKENIZERS.
    """
    if name == "estimate":
        return estimate_text_tokens
    if name not in VOCABULARIES:
        raise ConfigError("tokenizer", name, "one of " + ", ".join(TOKENIZERS))

    def count(text: str) -> int:
        exact = _thread_counters.by_name.get(name) or load_vocabulary(name)
        if len(text) <= MAX_ENCODED_CHARS:
            return _count_whole(exact, text)
        if len(text) > MAX_EXACT_CHARS:
            return _estimate_from_samples(exact, text)
        return sum(
            (_count_whole if _has_words(part) else _estimate_from_samples)(exact, part) for part in _split_text(text)
        )

    return count


def load_vocabulary(name: str) -> Callable[[str], int]:
    """Read a vocabulary, once per process: 300 ms and 49 MB. Take a buffer for the calling thread: 2 ms and 1 MB.

    Return the count of a text, as the library makes it."""
    encoding = _loaded.get(name) or _read_vocabulary(name)
    with _sharing:  # another thread would take the buffer that is made here
        try:
            # The threads of a batch leave their small buffers to the threads that count next.
            encoding.count_batch([""] * BUFFER_SHARES, BUFFER_SHARES)
        except BaseException as error:
            if not _is_panic(error):  # else no threads can be started now: the buffer is a large one
                raise
        _count_whole(encoding.count, "")
    counter: Callable[[str], int] = encoding.count
    _thread_counters.by_name[name] = counter
    return counter


def _read_vocabulary(name: str) -> Any:
    with _loading:  # two threads at once would read it twice
        if name not in _loaded:
            # The documented way to the object that counts; `batch_count` takes a new buffer of 40 us for each call.
            _loaded[name] = toktok._encoding(name)
        return _loaded[name]


def _is_panic(error: BaseException) -> bool:
    """True for a panic in Rust, which arrives as a BaseException of a class that cannot be imported."""
    return type(error).__name__ == "PanicException"


def _count_whole(exact: Callable[[str], int], text: str) -> int:
    try:
        return exact(text)
    except UnicodeEncodeError:  # a lone surrogate, which JSON can carry, counts as the mark of an unknown character
        return _count_whole(exact, text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
    except BaseException as error:
        if not _is_panic(error):
            raise
        return estimate_text_tokens(text)


def _has_words(text: str) -> bool:
    """True if from a half to one in 32 characters is a blank, as in most texts. Linear time."""
    blanks = text.count(" ") + text.count("\n") + text.count("\t")
    return len(text) <= 32 * blanks and 2 * blanks <= len(text)


def _estimate_from_samples(exact: Callable[[str], int], text: str) -> int:
    """Return the tokens of evenly spaced windows, scaled to the whole text: 1 % or so off. The first and last
    characters are included.

    A part that is hardly longer than its windows is counted whole.
    """
    if len(text) <= 2 * SAMPLES * SAMPLE_CHARS:
        return _count_whole(exact, text)
    stride = (len(text) - SAMPLE_CHARS) / (SAMPLES - 1)
    starts = (round(stride * index) for index in range(SAMPLES))
    return (
        sum(_count_whole(exact, text[at : at + SAMPLE_CHARS]) for at in starts) * len(text) // (SAMPLES * SAMPLE_CHARS)
    )


def _split_text(text: str) -> Iterator[str]:
    """Yield the text in pieces of at most `MAX_ENCODED_CHARS`. A cut is at a line break before a letter or digit if one
    is near.

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
