"""Names that a stub lists: their worth to an agent, and the places in one file written together."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from proxy.context.analysis import identifiers, output_wrappers

_DATE = re.compile(
    r"(?:\d{4}-\d\d-\d\d|\d{1,2}[/.]\d{1,2}[/.]\d{2,4})(?:T.*)?|T?\d{1,2}:\d\d(?::\d\d)?(?:[.,]\d+)?Z?|[+-]\d{4}"
)
_NUMBER = re.compile(r"[\d.,:%]+(?:[a-zA-Z%]{1,3})?")
_FILE = re.compile(r"[\w.~-]*[a-zA-Z][\w-]*\.[a-zA-Z]\w{0,5}(?::\d+)*")
_PLACE = re.compile(r"(\S*?[\w/]\.[a-zA-Z]\w{0,5})(?::\d+)+(?![^:])")
"""A path with the number of a line."""
_HIT = re.compile(r"\S*[\w/]\.[a-zA-Z]\w{0,5}:\d+:")
"""The beginning of a hit of a search."""
_CONTEXT = re.compile(r"(\S*[\w/]\.[a-zA-Z]\w{0,5})-\d+(?![^\s-])")
"""A path with the number of a line of context, as `grep -C` writes it."""
_LISTED = re.compile(r"[-dlbcps][-rwxsStT]{9}[.+@]?\s+\d+\s+\S+\s+\S+\s+(?:\d+,\s*)?([\d.,]+[KMGTP]?)\s")
_NO_NAME = re.compile(r"[\W_]+|[.FEsxX]+")
"""A ruler, or the progress of pytest."""
_NUMBERED_WORD = re.compile(r"\d+:[a-z]+(?![\w./#@:+~-])")
"""The line number and the first word of a line, as a search in one file writes them."""
NUMBER_RANK, LOWEST_RANK = 2, 3
"""Ranks of `rank_name`."""


def rank_name(name: str) -> int:
    """The rank of a name's worth to an agent, 0 the most: paths, then identifiers, numbers, and last dates. A size in a
    listing is a number here, and counts as little as a date."""
    if not name[:1].isalpha() or name[0] == "T":  # no other letter begins a date or a number
        if _DATE.fullmatch(name):
            return LOWEST_RANK
        if _NUMBER.fullmatch(name):
            return NUMBER_RANK
    return 0 if "/" in name or ("." in name and _FILE.fullmatch(name)) else 1


def drop_no_names(names: list[str], lines: Sequence[str]) -> list[str]:
    """Return the names without those that tell nothing: rulers, marks of progress, the measures of a wrapper, and plain
    words after the number of their line."""
    nothing = {*identifiers.find_names("\n".join(output_wrappers.list_measures(lines)))}
    if any(map(_NUMBERED_WORD.fullmatch, names)):
        nothing.update(found[0] for line in lines if (found := _NUMBERED_WORD.match(line)) is not None)
    return [name for name in names if name not in nothing and _NO_NAME.fullmatch(name) is None]


def split_places(names: list[str], lines: Sequence[str]) -> list[str]:
    """The names of a result; those before the hits of a search are split into the place and the word after it.

    A line of context around a hit (`src/a.py-11-`) is no place: of it the path stays, and the word.
    """
    if not any("." in line and _HIT.match(line) for line in lines):
        return names
    around = Counter(found[1] for line in lines if "-" in line and (found := _CONTEXT.match(line)) is not None)
    out: dict[str, None] = {}
    for name in names:
        found = _PLACE.match(name)
        if found is not None:
            out[found[0]] = None
        elif (found := _CONTEXT.match(name)) is not None and around[found[1]] > 1:
            out[found[1]] = None
        else:
            out[name] = None
            continue
        out.update(dict.fromkeys(identifiers.find_names(name[found.end() :])))
    return list(out)


def fold_places(names: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Bring the places of one file together, so that its path is written once: `src/a.py:7 :12` has two places.

    names: each once. Return (the names, those of one file in a row; the short form of each place that follows another
    one of its file).
    """
    if ":" not in "".join(names):
        return list(names), {}
    files: dict[str, list[str]] = {}
    for name in names:
        place = _PLACE.fullmatch(name)
        files.setdefault(place[1] if place is not None else name, []).extend([name] if place is not None else [])
    folded = {name: name[len(path) :] for path, places in files.items() for name in places[1:]}
    return [name for path, places in files.items() for name in places or [path]], folded


def find_listing_sizes(lines: Sequence[str]) -> frozenset[str]:
    """The sizes in lines like those of `ls -l`."""
    return frozenset(found[1] for line in lines if (found := _LISTED.match(line)) is not None)
