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
    text = message.text
    lines = text.splitlines()
    fixed = sum(len(lines[n]) for n in message.derive(errors))
    if len(text) > _LONG:
        fixed += _LONG * len(_telling(message, [line[:_LONG] for line in lines if len(line) > _LONG]))
    first = next((len(line) for line in lines if line.strip()), 0)
    loose = sum(len(name) + 1 for name in facts.listed(message) if len(name) <= _NAME)
    return int(min(first, 300) + min(fixed, 1200) + min(0.9 * loose, 4000, 0.25 * len(text))) + 60


def errors(message: Message) -> tuple[int, ...]:
    """Which lines tell of an error; long ones do not."""
    lines = message.text.splitlines()
    return tuple(n for n in _telling(message, lines) if len(lines[n]) <= _LONG)


def imports(message: Message) -> tuple[int, ...]:
    """Which lines at the front of a file import something."""
    return tuple(n for n, line in enumerate(message.text.splitlines()[:_HEAD]) if _IMPORT.match(line))


def _telling(message: Message, lines: Sequence[str]) -> list[int]:
    """Which of these lines of a message tell of an error."""
    words = facts.troubles(message)
    if not words:
        return []
    return [n for n, line in enumerate(lines) if any(word in line for word in words) and _ERROR.search(line)]


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
        kept = self._fixed(message, lines, held, is_view=is_view)
        for start, end in referred:
            kept.update(range(start, min(end, len(lines))))
        bridge(lines, kept)
        names = self._loose(message, lines, held, kept)
        text = render(message.text, lines, kept, names, name)
        self._standing.remove(held)
        self._standing.add(facts.replaced(message, text))
        return text

    def _fixed(self, message: Message, lines: Sequence[str], held: Held, *, is_view: bool) -> set[int]:
        """The first line, error lines that stand nowhere else, the imports of a file."""
        first = next((n for n, line in enumerate(lines) if facts.bare(line)), None)
        kept = set() if first is None else {first}
        has, most = self._standing.has_line, self._keep.errors
        telling = [n for n in message.derive(errors) if n != first and not has(facts.bare(lines[n]), held.lines)]
        kept.update(telling if len(telling) <= most else telling[: most // 2] + telling[most // 2 - most :])
        if is_view:
            kept.update(message.derive(imports))
        return kept

    def _loose(self, message: Message, lines: Sequence[str], held: Held, kept: set[int]) -> list[str]:
        """Names of the lines that leave, where they stand nowhere else."""
        room = min(self._keep.chars, int(self._keep.share * len(message.text)))
        shown = [lines[n] for n in kept]
        have = set(facts.names("\n".join([line[:300] for line in shown])))
        if all(len(line) <= 300 for line in shown):
            names = facts.listed(message)
        else:  # what stands behind the end of a kept line is there in another line, or not at all
            names = facts.different("\n".join([line for n, line in enumerate(lines) if n not in kept]))
        loose: list[str] = []
        counted, own = self._standing.names.get, held.names
        for name in names:
            if name in have:
                continue
            h = hash(name)
            if counted(h, 0) > (h in own) or len(name) > _NAME:
                continue  # it stands in another message, as `Standing.has_name` says, or is a blob
            if len(name) > room:
                return loose
            loose.append(name)
            room -= len(name) + 1
        return loose


def bridge(lines: Sequence[str], kept: set[int]) -> None:
    """Keep what is no longer than the mark that would stand for it: mostly one blank line."""
    start = 0
    for n in (*sorted(kept), len(lines)):
        if n > start:
            longest = len(missing(n - start))
            if n - start - 1 <= longest and sum(map(len, lines[start:n])) + n - start - 1 <= longest:
                kept.update(range(start, n))
        start = n + 1


def missing(count: int) -> str:
    """What stands where lines are missing."""
    return f"[... {count} lines]"


def render(text: str, lines: Sequence[str], kept: set[int], names: Sequence[str], name: str = "") -> str:
    """The kept lines in their order, a mark where lines are missing, the names, and in front how much there was. name:
    the id by which the model can have all of it again; empty where it cannot."""
    out: list[str] = []
    start = 0
    for n in sorted(kept):
        if n > start:
            out.append(missing(n - start))
        line = lines[n]
        out.append(line if len(line) <= 300 else f"{line[:200]}[... {len(line) - 300} characters]{line[-100:]}")
        start = n + 1
    if len(lines) > start:
        out.append(missing(len(lines) - start))
    if names:
        out.append("[also there: " + " ".join(names) + "]")
    body = "\n".join(out)
    whole = f"; {recalling(name)}" if name else ""  # as short as it can be: it stands in every stub
    return f"[shortened: {len(body)} of {len(text)} characters{whole}]\n{body}"


def recalling(name: str) -> str:
    """How the model calls for a message by its id."""
    return f'recall("{name}")'
