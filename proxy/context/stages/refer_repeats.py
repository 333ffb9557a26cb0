"""Refer to what already stands in the prompt: a new result's lines that an earlier one shows whole."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from proxy.chat.key import public_id
from proxy.chat.message import Message
from proxy.chat.tokens import PER_MESSAGE
from proxy.context.plan import Edit, Proposal, View
from proxy.context.stage import When

_RECENT = 6
"""Earlier results that are compared line by line: the newest that share enough lines."""
_LINE = 8
"""Characters from which a line counts when results are compared."""
_REFERENCE = re.compile(r"^\[\d+ lines: as lines (\d+)-(\d+) of result ([a-z2-7]{10})", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ReferRepeats:
    """Replace runs of lines of a new result that stand, byte for byte, in an earlier result by a reference to them.

    Agents read the same files again and again: on recorded runs one token in six of results is such a repeat. A
    result is looked at once, when it is new: nothing of it is in the provider's cache yet, so that this costs nothing.
    """

    lines: int = 8
    """Lines that a run has to have."""
    chars: int = 600
    """Characters that it has to have."""
    least: int = 150
    """Tokens below which a result is left alone."""
    save: int = 200
    """Characters that have to be saved."""
    when: ClassVar[When] = "schedule"

    def __call__(self, view: View) -> Iterable[Proposal]:
        """A proposal for each new result with such runs."""
        earlier: list[int] | None = None
        new = _new_from(view)
        for n in range(new, len(view.messages)):
            message = view.messages[n]
            if not view.is_result[n] or not message.text:
                continue
            if view.whole[n] >= self.least and view.edit(n) is None and message.shape in ("string", "parts"):
                earlier = _whole(view, n) if earlier is None else earlier
                text = self._referring(view, n, earlier)
                if text is not None:
                    after = PER_MESSAGE + view.weigh.count(text)
                    yield Proposal(n, "text", "refer_repeats", "stands in an earlier result", after, text, since=n)
                    continue
            if earlier is not None and view.edit(n) is None:
                earlier.append(n)

    def _referring(self, view: View, n: int, earlier: Sequence[int]) -> str | None:
        """The result with its repeats referred to, None where that saves too little."""
        message = view.messages[n]
        mine = message.derive(_hashes)
        near: list[int] = []
        for other in reversed(earlier):
            theirs = view.messages[other].derive(_hashes)
            if not mine.isdisjoint(theirs) and len(mine & theirs) >= self.lines // 2:
                near.append(other)
                if len(near) == _RECENT:
                    break
        if not near:
            return None
        lines = message.text.splitlines()
        out: list[str] = []
        saved = at = 0
        for start, end, other, first in self._runs(view, lines, near):
            out += lines[at:start]
            reference = (
                f"[{end - start} lines: as lines {first + 1}-{first + end - start}"
                f" of result {public_id(view.keys[other])}, {_source(view, other)}]"
            )
            saved += sum(len(line) + 1 for line in lines[start:end]) - len(reference)
            out.append(reference)
            at = end
        return "\n".join([*out, *lines[at:]]) if saved >= self.save else None

    def _runs(self, view: View, lines: Sequence[str], near: Sequence[int]) -> Iterator[tuple[int, int, int, int]]:
        """(start, end, earlier result, its first line) of each run that is long enough, in order."""
        texts = {other: view.messages[other].text.splitlines() for other in near}
        places: dict[str, list[tuple[int, int]]] = {}
        for other in reversed(near):
            for k, line in enumerate(texts[other]):
                if len(line) >= _LINE:
                    places.setdefault(line.rstrip(), []).append((other, k))
        at = 0
        while at < len(lines):
            best, where = 0, (0, 0)
            for other, k in places.get(lines[at].rstrip(), ())[-_RECENT:]:
                run = _common(lines, at, texts[other], k)
                if run >= best:
                    best, where = run, (other, k)
            if best >= self.lines and sum(len(line) + 1 for line in lines[at : at + best]) >= self.chars:
                yield at, at + best, *where
                at += best
            else:
                at += 1


def _whole(view: View, end: int) -> list[int]:
    """The results in front of `end` that say something and stand whole."""

    def more(begin: int, known: list[int] | None) -> list[int]:
        found = known or []
        return found + [n for n in range(begin, len(view.messages)) if _is_whole(view, n)]

    found: list[int] = view.settled("refer_repeats", more)
    return found[: bisect_left(found, end)]


def _is_whole(view: View, n: int) -> bool:
    return view.is_result[n] and bool(view.messages[n].text) and view.edit(n) is None


def _new_from(view: View) -> int:
    """The index behind the last answer: what stands there was never sent before."""
    for n in range(len(view.messages) - 1, -1, -1):
        if view.messages[n].role == "assistant":
            return n + 1
    return 0


def _common(mine: Sequence[str], at: int, theirs: Sequence[str], k: int) -> int:
    run = 0
    while at + run < len(mine) and k + run < len(theirs) and mine[at + run].rstrip() == theirs[k + run].rstrip():
        run += 1
    return run


def _hashes(message: Message) -> frozenset[int]:
    return frozenset(hash(line.rstrip()) for line in message.text.splitlines() if len(line) >= _LINE)


def _source(view: View, n: int) -> str:
    """What the result is of, in a few words: the call's name and the beginning and end of its arguments."""
    for at in range(n - 1, -1, -1):
        for call in view.messages[at].calls:
            if call.id == view.messages[n].call_id:
                arguments = " ".join(call.arguments.split())
                shown = arguments if len(arguments) <= 60 else f"{arguments[:40]}...{arguments[-17:]}"
                return f"{call.name} {shown}"
        if view.messages[at].calls:
            break
    return "above"


def referred(view: View) -> dict[bytes, list[tuple[int, int]]]:
    """By the id of an earlier result: the (start, end) lines of it that references which still stand point at."""
    return view.settled("referred", partial(_referred, view))


def _referred(
    view: View, _: int, known: dict[bytes, list[tuple[int, int]]] | None
) -> dict[bytes, list[tuple[int, int]]]:
    if known is not None:
        return known  # it is of the edits alone
    found: dict[bytes, list[tuple[int, int]]] = {}
    for edit in view.edits.values():
        if edit.stage == "refer_repeats":
            for first, last, name in _pointers(edit):
                found.setdefault(name, []).append((first, last))
    return found


def _pointers(edit: Edit) -> list[tuple[int, int, bytes]]:
    return [(int(a) - 1, int(b), name.encode()) for a, b, name in _REFERENCE.findall(edit.text or "")]
