"""Where a result of the history comes from, how old it is, and what has happened to the same file since.

A text that is looked up again reads as if it were current. So it is told which call it was the result of, how many
steps ago, and how often the same file, or what the same identifier names, was changed after it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from proxy.chat.embedded_json import decode_embedded
from proxy.chat.message import Call, Message
from proxy.context.evidence import facts, refetch, signs
from proxy.context.evidence.refetch import Source

_FAILED = re.compile(signs.FAILED, re.IGNORECASE)
_ARGUMENTS = 80
"""Characters of a call's arguments that are told."""


@dataclass(frozen=True, slots=True)
class Provenance:
    """call: the one that the message is the result of. steps: answers of the model since. edits: calls since that have
    changed what it shows. file: it is the text of one file."""

    call: Call | None
    steps: int
    edits: int
    file: bool

    def told(self) -> str:
        """The same in words, without square brackets and line ends."""
        ago = f"{self.steps} step{'' if self.steps == 1 else 's'} ago"
        if self.call is None:
            return ago
        arguments = " ".join(self.call.arguments.split())
        if len(arguments) > _ARGUMENTS:
            arguments = f"{arguments[: _ARGUMENTS - 23]}...{arguments[-20:]}"
        said = f"{self.call.name} {arguments}".translate(_NO_BRACKETS)
        if not self.edits:
            return (
                f"the result of {said}, {ago}; no call has changed it since"
                if self.file
                else f"the result of {said}, {ago}"
            )
        times = "once" if self.edits == 1 else f"{self.edits} times"
        if self.file:
            return f"the result of {said}, {ago}; edited {times} since: read it again for its present text"
        return f"the result of {said}, {ago}; changed {times} since: ask again for what is there now"


_NO_BRACKETS = str.maketrans("[]\n\r", "()  ")


def provenance(messages: Sequence[Message], index: int) -> Provenance:
    """Of messages[index], as it is seen by the answer that comes after the last message."""
    steps = 1 + sum(1 for message in messages[index + 1 :] if message.role == "assistant")
    call = next((found for n, found in refetch.paired(messages[: index + 1], index) if n == index), None)
    if call is None:
        return Provenance(None, steps, 0, file=False)
    source = refetch.source_of(call)
    subject = _subject(messages[index], call, source)
    edits = 0
    for n, later in refetch.paired(messages, index + 1):
        if _FAILED.search(messages[n].text[:200]) is None and _changes(later, subject):
            edits += 1
    return Provenance(call, steps, edits, file=bool(source.path) and source.action in ("shows", "writes"))


@dataclass(frozen=True, slots=True)
class _Subject:
    """path: of the file that is shown. text: of a result that shows several. values: what the call was asked with."""

    path: str
    text: str
    values: frozenset[str]


def _subject(message: Message, call: Call, source: Source) -> _Subject:
    if source.path:
        return _Subject(source.path, "", frozenset())
    return _Subject("", message.text, frozenset() if source.by_shell else _values(call))


def _values(call: Call) -> frozenset[str]:
    """The short values in a call's arguments: identifiers, if anything."""
    try:
        value = decode_embedded(call.arguments)
    except (ValueError, RecursionError):
        return frozenset()
    return frozenset(leaf for leaf in facts.leaves(value) if 2 <= len(leaf) <= 60)


def _changes(later: Call, subject: _Subject) -> bool:
    """Whether a call writes the file that is shown, one that is named in what is shown, or what the same identifier
    names."""
    source = refetch.source_of(later)
    if source.action != "writes":
        return False
    if subject.path:
        return bool(source.path) and refetch.same_file(source.path, subject.path)
    if source.path:
        return source.path in subject.text or _tail(source.path) in subject.text
    return not subject.values.isdisjoint(_values(later))


def _tail(path: str) -> str:
    """The last two parts of a path."""
    return "/".join(path.rsplit("/", 2)[-2:])
