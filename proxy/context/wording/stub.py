"""What stays of a tool result: what it was, what went wrong in it, and what stands nowhere else in the prompt.

A shortened result has to say what it was of, and must not take with it the only place where a path, an id or a
line stands. Everything else can be had again, from the store or by calling the tool anew. What is listed was in
the result, in its order; how much is missing is said.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from proxy.chat.message import Message
from proxy.context.evidence import facts
from proxy.context.evidence.facts import Held, Standing

_ERROR = re.compile(
    r"\b(?:[A-Za-z]*(?:Error|Exception)|Traceback|FAIL(?:ED|URE|URES)?|panic|fatal|error|denied|not found|No such)\b"
    r"|^E  "
)
_IMPORT = re.compile(
    r"\s*(?:\d+(?:\u2192|\t|:|\|)\s?)?\s*"
    r"(?:import\b|from \S+ import|use |#include|package |require|(?:\w+ )?\"[\w./-]+\"\s*$|\)\s*$)"
)
_HEAD = 60
"""Lines at the front of a file among which import lines stand."""
_LONG = 400
"""Characters above which a line is cut in its middle, or is no error line."""
_NAME = 120
"""Characters above which a name is a blob."""


@dataclass(frozen=True, slots=True)
class Keep:
    """How much stays. errors: lines that tell of an error. chars, share: room for names that stand nowhere else, in
    characters and as a share of the result."""

    errors: int = 8
    chars: int = 4000
    share: float = 0.25


def rough(message: Message) -> int:
    """Characters that a stub of this result will have, about: decided on often, so without looking at the prompt.

    Names that stand elsewhere are not known here: nearly all are taken to stand nowhere else, the careful side.
    """
    lines = message.text.splitlines()
    fixed = sum(min(len(line), _LONG) for line in lines if _ERROR.search(line[:_LONG])) if lines else 0
    first = next((len(line) for line in lines if line.strip()), 0)
    loose = sum(len(name) + 1 for name in facts.unique(facts.names(message.text)) if len(name) <= _NAME)
    return int(min(first, 300) + min(fixed, 1200) + min(0.9 * loose, 4000, 0.25 * len(message.text))) + 60


class Writer:
    """Writes the stubs of one batch, newest first: of two copies of a thing the older one goes."""

    def __init__(self, standing: Standing, keep: Keep) -> None:
        self._standing = standing
        self._keep = keep

    def write(
        self, message: Message, held: Held, referred: Sequence[tuple[int, int]] = (), *, is_view: bool, name: str = ""
    ) -> str:
        """The stub of one result. held: what it holds now. referred: (start, end) of lines that a later result
        refers to and that stay. is_view: it shows a file or page that may be edited later. name: see `render`."""
        lines = message.text.splitlines()
        bare = [facts.bare(line) for line in lines]
        kept = self._fixed(lines, bare, held, is_view=is_view)
        for start, end in referred:
            kept.update(range(start, min(end, len(lines))))
        bridge(lines, kept)
        names = self._loose(message, lines, held, kept)
        text = render(message.text, lines, kept, names, name)
        self._standing.remove(held)
        self._standing.add(facts.held(text))
        return text

    def _fixed(self, lines: Sequence[str], bare: Sequence[str], held: Held, *, is_view: bool) -> set[int]:
        """The first line, error lines that stand nowhere else, the imports of a file."""
        kept = {n for n, line in enumerate(bare) if line and not any(bare[:n])} if lines else set()
        errors = [
            n
            for n, line in enumerate(lines)
            if n not in kept
            and len(line) <= _LONG
            and _ERROR.search(line)
            and not self._standing.has_line(bare[n], held[1])
        ]
        half = self._keep.errors // 2
        kept.update(errors if len(errors) <= self._keep.errors else errors[:half] + errors[half - self._keep.errors :])
        if is_view:
            kept.update(n for n in range(min(len(lines), _HEAD)) if _IMPORT.match(lines[n]))
        return kept

    def _loose(self, message: Message, lines: Sequence[str], held: Held, kept: set[int]) -> list[str]:
        """Names of the lines that leave, where they stand nowhere else."""
        have = {name for n in kept for name in facts.names(lines[n][:300])}
        room = min(self._keep.chars, int(self._keep.share * len(message.text)))
        loose: list[str] = []
        for n, line in enumerate(lines):
            if n in kept:
                continue
            for name in facts.names(line):
                if name in have or len(name) > _NAME or self._standing.has_name(name, held[0]):
                    continue
                if len(name) > room:
                    return loose
                loose.append(name)
                have.add(name)
                room -= len(name) + 1
        return loose


def bridge(lines: Sequence[str], kept: set[int]) -> None:
    """Keep what is no longer than the mark that would stand for it: mostly one blank line."""
    start = 0
    for n in (*sorted(kept), len(lines)):
        if n > start and sum(map(len, lines[start:n])) + n - start - 1 <= len(missing(n - start)):
            kept.update(range(start, n))
        start = n + 1


def missing(count: int) -> str:
    """What stands where lines are missing."""
    return f"[... {count} lines]"


def render(text: str, lines: Sequence[str], kept: set[int], names: Sequence[str], name: str = "") -> str:
    """The kept lines in their order, a mark where lines are missing, the names, and in front how much there was. name:
    the id by which the model can have all of it again; empty where it cannot."""
    out: list[str] = []
    gap = 0
    for n, line in enumerate(lines):
        if n not in kept:
            gap += 1
            continue
        if gap:
            out.append(missing(gap))
            gap = 0
        out.append(line if len(line) <= 300 else f"{line[:200]}[... {len(line) - 300} characters]{line[-100:]}")
    if gap:
        out.append(missing(gap))
    if names:
        out.append("[also there: " + " ".join(names) + "]")
    body = "\n".join(out)
    whole = f"; {recalling(name)}" if name else ""  # as short as it can be: it stands in every stub
    return f"[shortened: {len(body)} of {len(text)} characters{whole}]\n{body}"


def recalling(name: str) -> str:
    """How the model calls for a message by its id."""
    return f'recall("{name}")'
