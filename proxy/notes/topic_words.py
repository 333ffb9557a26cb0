"""The topic words of a text.

Some scripts have no blanks between words: Chinese, Japanese, Thai and their neighbours. Korean, which writes particles
onto its words, is treated alike. A text in such a script is read as every pair of adjacent characters. So two texts
with a word in common have the pairs of that word in common.
"""

from __future__ import annotations

import re
from itertools import pairwise

from proxy.chat.unicode_text import normalize

WORD = re.compile(r"[^\W_]{2,40}")

_RANGES = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai and Lao, Burmese, Khmer
    "\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"  # Han, kana
    "\u1100-\u11ff\u3130-\u318f\uac00-\ud7a3"  # Hangul
)
_UNSPACED = re.compile(f"[{_RANGES}]+")
_EITHER = re.compile(f"[{_RANGES}]+|[^\\W_{_RANGES}]{{2,40}}")
_GRAMMAR = re.compile("[的了吗呢吧啊着嗎]|^[\u3040-\u309f]+$")
"""Pattern of pairs that are grammar: those with a particle, and those of hiragana only."""

STOP_WORDS = frozenset(re.findall(r"\w+",
    "the and for that this with you are was were not but have has had its it is in on of to be as at by or an if do"
    " does did so we me my your our us they them he she his her from into out up down over then than there here what"
    " which who when where why how all any each can could should would will may might must just now also please let"
    " lets one two more most some no yes ok about after before again file files use using used make get see look run"
    " 我们 你们 他们 可以 一个 这个 那个 什么 怎么 如何 没有 不是 就是 但是 因为 所以 如果"
    " 需要 使用 请问 帮我 现在 然后 还是"
))  # fmt: skip
"""Stop words: words of grammar, and words that occur in every request to an agent."""


def find_topic_words(text: str) -> list[str]:
    """The words of two characters or more in order, in lower case, without stop words; names are split."""
    text = text.lower()
    if text.isascii() or not _UNSPACED.search(text):
        return [word for word in WORD.findall(text) if word not in STOP_WORDS]
    return [word for run in _EITHER.findall(text) for word in split_pairs(run) if word not in STOP_WORDS]


def split_pairs(run: str) -> list[str]:
    """The pairs of characters of a run in a script without blanks, without pairs of grammar. Any other word, and a
    single character, is returned unchanged."""
    if not _UNSPACED.match(run) or len(run) == 1:
        return [run]
    return [pair for pair in ("".join(two) for two in pairwise(run)) if not _GRAMMAR.search(pair)]


def prepare_index_text(text: str) -> str:
    """The text in the form for an index that looks for words between blanks. A run of a script without blanks becomes
    all its pairs of letters, grammar included; all other text stays unchanged."""
    if text.isascii() or not _UNSPACED.search(text):
        return text
    return _UNSPACED.sub(_split_bigrams, text)


def _split_bigrams(found: re.Match[str]) -> str:
    run = "".join(filter(str.isalnum, normalize("NFC", found.group())))
    return f" {' '.join(map(''.join, pairwise(run))) if len(run) > 1 else run} "


def find_search_words(text: str) -> list[str]:
    """The search words for an index of `prepare_index_text` texts, in lower case, each once. A single letter counts
    only in a script without blanks. Pairs of grammar count only if there is nothing else."""
    found = re.findall(r"[^\W_]{1,40}", prepare_index_text(normalize("NFC", text.lower())))
    words = list(dict.fromkeys(word for word in found if len(word) > 1 or _UNSPACED.match(word)))
    return [word for word in words if not (_UNSPACED.match(word) and _GRAMMAR.search(word))] or words


def measure_text(text: str) -> int:
    """Length of a text in characters of a script with blanks: a character of a script without blanks counts twice."""
    return len(text) + sum(map(len, _UNSPACED.findall(text)))
