"""References of the recorded agent's next calls to content that it had seen. A prompt had to hold this content.

The references of a request are atoms and lines in the arguments of the calls that the agent made next. Only those that
were in an earlier message count. Those in the system prompt or the tool definitions are left out, since no policy
touches them. The references are found once per conversation, for all policies.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from proxy.chat.message import Message
from proxy.replay import atoms as atom_texts

FAR_MESSAGES = 20
"""Number of messages since the last sight above which a reference is far."""


@dataclass(frozen=True, slots=True)
class Reference:
    """An atom or a line that the next answer needs."""

    text: str
    holder: int
    """The number of the last earlier message that holds it."""
    far: bool
    """True if it was last seen more than FAR_MESSAGES messages before."""


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """A request: messages[:position] is its history, and messages[position] is the recorded answer."""

    position: int
    atoms: tuple[Reference, ...]
    lines: tuple[Reference, ...]


class JoinedTexts:
    """Texts joined into one, so that `str.find` searches all of them at once."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._text = "\n".join(texts)
        self._ends = []
        end = -1
        for text in texts:
            end += len(text) + 1
            self._ends.append(end)

    def find_texts(self, needle: str, *, is_whole_word: bool) -> list[int]:
        """Return the numbers of the texts that hold a needle, in order. is_whole_word: True for matches with no letter,
        digit or underscore on either side."""
        numbers: list[int] = []
        text, at = self._text, self._text.find(needle)
        while at >= 0:
            if is_whole_word and not atom_texts.is_whole_word(text, at, at + len(needle)):
                at = text.find(needle, at + 1)
                continue
            numbers.append(bisect_right(self._ends, at))
            at = text.find(needle, self._ends[numbers[-1]])
        return numbers


class WantedReferences:
    """The wants of every step of a conversation, and their positions in the conversation as recorded."""

    def __init__(self, messages: Sequence[Message], tools: bytes | None) -> None:
        self.messages = messages
        self._sources = JoinedTexts(["" if m.is_system else atom_texts.collect_text(m) for m in messages])
        self._collapsed: JoinedTexts | None = None
        self._atom_at: dict[str, list[int]] = {}
        self._window_at: dict[str, list[int]] = {}
        self._line_at: dict[str, list[int]] = {}
        given = atom_texts.render_tools(tools) + "\n".join(m.text for m in messages if m.is_system)
        at = find_request_positions(messages)
        quoted = {
            n: list(dict.fromkeys(atom_texts.split_lines(atom_texts.join_argument_values(messages[n]))))
            for n in at
            if messages[n].calls
        }
        named = {n: atom_texts.find_atoms(messages[n]) for n in at if messages[n].calls}
        lines = self._find_lines({line for found in quoted.values() for line in found})
        seen = self._find_tokens({atom for found in named.values() for atom in found})
        self.requests = tuple(
            RecordedRequest(
                n,
                tuple(self._find_atom_references(n, named.get(n, frozenset()), seen, given)),
                tuple(
                    Reference(line, *last)
                    for line in quoted.get(n, ())
                    if (last := _find_previous(lines.get(line, ()), n))
                ),
            )
            for n in at
        )

    def _find_lines(self, wanted: set[str]) -> dict[str, list[int]]:
        """Return the messages that hold each wanted line, without system messages (`find_line` has all)."""
        outside: dict[str, list[int]] = {}
        for n, message in enumerate(self.messages):
            for line in wanted.intersection(atom_texts.split_lines(atom_texts.collect_text(message))):
                self._line_at.setdefault(line, []).append(n)
                if not message.is_system:
                    outside.setdefault(line, []).append(n)
        return outside

    def _find_tokens(self, wanted: set[str]) -> dict[str, list[int]]:
        """Return the messages in which each wanted atom stands alone, not inside a longer one."""
        seen: dict[str, list[int]] = {}
        for n, message in enumerate(self.messages):
            if not message.is_system:
                for atom in wanted.intersection(atom_texts.ATOM.findall(atom_texts.collect_text(message))):
                    seen.setdefault(atom, []).append(n)
        return seen

    def _find_atom_references(
        self, n: int, named: frozenset[str], seen: dict[str, list[int]], given: str
    ) -> list[Reference]:
        references = []
        for atom in sorted(named):
            holders = self.find_atom(atom)
            before = bisect_left(holders, n)
            if before and not atom_texts.has_atom(atom, given):
                last = _find_previous(seen.get(atom, ()), n)
                references.append(Reference(atom, holders[before - 1], far=last is not None and last[1]))
        return references

    def find_atom(self, atom: str) -> list[int]:
        """Return the numbers of the messages that hold an atom, without system messages."""
        found = self._atom_at.get(atom)
        if found is None:
            found = self._atom_at[atom] = self._sources.find_texts(atom, is_whole_word=True)
        return found

    def find_line(self, line: str) -> list[int]:
        """Return the numbers of the messages that hold a wanted line."""
        return self._line_at.get(line, [])

    def read_window(self, atom: Reference) -> str:
        """Return the atom with the text around it in its holder, white space collapsed."""
        text = atom_texts.collapse_text(self.messages[atom.holder])
        at = text.find(atom.text)
        return text[max(0, at - atom_texts.WINDOW_MARGIN) : at + len(atom.text) + atom_texts.WINDOW_MARGIN]

    def find_window(self, window: str) -> list[int]:
        """Return the numbers of the messages that hold a window."""
        if self._collapsed is None:
            self._collapsed = JoinedTexts([atom_texts.collapse_text(m) for m in self.messages])
        found = self._window_at.get(window)
        if found is None:
            found = self._window_at[window] = self._collapsed.find_texts(window, is_whole_word=False)
        return found


def _find_previous(at: Sequence[int], n: int) -> tuple[int, bool] | None:
    """Return (the last of these positions before n, True if over FAR_MESSAGES back), or None without one."""
    found = bisect_left(at, n)
    return (at[found - 1], n - at[found - 1] > FAR_MESSAGES) if found else None


def find_request_positions(messages: Sequence[Message]) -> list[int]:
    """Return the positions of requests: before each assistant message that has a user message before it."""
    first = next((n for n, m in enumerate(messages) if m.role == "user"), len(messages))
    return [n for n, m in enumerate(messages) if m.role == "assistant" and n > first]
