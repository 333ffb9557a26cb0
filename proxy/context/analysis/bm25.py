"""Term statistics of texts: terms of a text, BM25 against a task, and later mentions of names.

Terms are counted once for each message and stored with it, so that ranking a history needs a few look-ups for each
message. BM25 is after Robertson and Zaragoza 2009, with the usual k1 = 1.2 and b = 0.75.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, islice
from operator import mul
from typing import NamedTuple

from proxy.chat.message import Message
from proxy.context.analysis import identifiers
from proxy.notes.topic_words import find_topic_words

K1 = 1.2
B = 0.75
MAX_READ_CHARS = 20_000
"""Characters of a message that are read for terms: a long listing has its topic at its beginning."""
MAX_NAMES = 10
"""Number of names of a message, its first ones, by which mentions are counted: a call's arguments come first."""


class TermCounts(NamedTuple):
    """Frequency of each term in a text, and the number of terms."""

    counts: Mapping[str, int]
    length: int


def count_terms(text: str) -> TermCounts:
    """Return a text's terms: words of two characters or more and parts of names, without stop words."""
    counts = Counter(find_topic_words(text[:MAX_READ_CHARS]))
    return TermCounts(counts, sum(counts.values()))


def _count_terms_of(message: Message) -> TermCounts:
    return count_terms(identifiers.read_all_text(message))


def count_message_terms(message: Message) -> TermCounts:
    """Return the terms of a message's text and calls."""
    return message.derive(_count_terms_of)


def _compute_idf(found: Mapping[str, int], query: Iterable[str], n: int) -> dict[str, float]:
    return {term: math.log(1 + (n - (k := found.get(term, 0)) + 0.5) / (k + 0.5)) for term in query}


def weigh_terms(query: Mapping[str, int], documents: Sequence[TermCounts]) -> dict[str, float]:
    """Return the weight of each term of the query: high if few documents have it, half the mean if none has it.

    A term that no document has means another subject, or is a synonym.
    """
    found: Counter[str] = Counter()
    for counts, _ in documents:
        found.update(query.keys() & counts.keys())
    worth = _compute_idf(found, found, len(documents))
    strange = sum(worth.values()) / len(worth) / 2 if worth else 0.0
    return {term: worth.get(term, strange) for term in query}


def score_documents(query: Mapping[str, int], documents: Sequence[TermCounts]) -> list[float]:
    """Return the BM25 score of each document against the query; 0 if they share no term."""
    scores = [0.0] * len(documents)
    if not query or not documents:
        return scores
    wanted = query.keys()
    hits = [(n, shared) for n, (counts, _) in enumerate(documents) if (shared := wanted & counts.keys())]
    found = Counter(chain.from_iterable(shared for _, shared in hits))
    worth = _compute_idf(found, query, len(documents))
    mean = sum(length for _, length in documents) / len(documents) or 1.0
    for n, shared in hits:
        counts, length = documents[n]
        flat = K1 * (1 - B + B * length / mean)
        score = 0.0
        for term in shared:
            often = counts[term]
            score += worth[term] * often * (K1 + 1) / (often + flat)
        scores[n] = score
    return scores


def score_relevance(query: Mapping[str, int], documents: Sequence[TermCounts]) -> list[float]:
    """Return the BM25 scores divided by the highest: from 0 to 1."""
    scores = score_documents(query, documents)
    most = max(scores, default=0.0)
    return [score / most for score in scores] if most > 0 else scores


def measure_coverage(query: Mapping[str, int], document: TermCounts, term_weights: Mapping[str, float]) -> float:
    """Return the share of the query, by the weights of its terms, that occurs in the document: 0 to 1."""
    total = sum(term_weights.values())
    return sum(term_weights[t] for t in query.keys() & document.counts.keys()) / total if total > 0 else 0.0


def spread_scores(scores: Sequence[float], share: float, reach: int = 2) -> list[float]:
    """Return the scores, each increased by a share of the scores of its neighbours.

    The next text on either side gets `share` of a score, the text after it half of that share, and so on up to `reach`.
    A topic goes over several messages, and not each of them has its name.
    """
    out = list(scores)
    if share <= 0:
        return out
    for n, score in enumerate(scores):
        if score <= 0:
            continue
        for far in range(1, reach + 1):
            for place in (n - far, n + far):
                if 0 <= place < len(out):
                    out[place] += share / far * score
    return out


def cosine_similarity(first: Sequence[float], second: Sequence[float]) -> float:
    """Return max(0, cosine) of two vectors; 0 if one is empty or their lengths differ."""
    if not first or len(first) != len(second):
        return 0.0
    norm = math.hypot(*first) * math.hypot(*second)
    return max(0.0, sum(map(mul, first, second)) / norm) if norm > 0 else 0.0


def _names(message: Message) -> tuple[int, ...]:
    names = identifiers.remove_duplicates(
        islice(identifiers.find_names(identifiers.read_all_text(message)[:MAX_READ_CHARS]), 4 * MAX_NAMES)
    )
    return tuple(map(hash, names[:MAX_NAMES]))


def hash_names(message: Message) -> tuple[int, ...]:
    """Return hashes of the first names in a message (`identifiers.find_names`)."""
    return message.derive(_names)


def score_references(names_by_text: Sequence[Iterable[int]]) -> list[float]:
    """Return for each text the mentions of its names by later texts, divided by the mentions by all other texts.

    names_by_text: the names in each text, in order.
    """
    sets = [frozenset(names) for names in names_by_text]
    everywhere = Counter(chain.from_iterable(sets))
    left = dict(everywhere)
    shares = []
    for found in sets:
        total = sum(map(everywhere.__getitem__, found)) - len(found)
        if total == 0:
            shares.append(0.0)
            continue
        later = 0
        for name in found:
            left[name] = here = left[name] - 1
            later += here
        shares.append(later / total)
    return shares
