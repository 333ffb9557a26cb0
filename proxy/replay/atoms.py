"""The parts of a message by which a prompt is judged: its tokens, its atoms, its lines, and the text around an atom.

An atom is a path, id, number or qualified name in the arguments of a tool call. A line is one that is long enough to be
quoted. Both are searched in the text of a message and in the values of its calls' arguments. Each result is computed
once per message and stays with it (`Message.derive`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator

from proxy.chat.message import Message
from proxy.chat.tokens import TokenCounter
from proxy.context.analysis.identifiers import find_leaves

ATOM = re.compile(r"[\w/.#][\w./#@:+-]{2,}\w", re.ASCII)
"""A run of at least four characters that may name something."""
ATOM_MARKS = frozenset("/_@.0123456789")
"""Characters of which an atom has one (or a digit of another script). Plain words name nothing."""
MIN_LINE_CHARS = 24
"""Least number of characters of a line worth quoting, without indentation and line number."""
WINDOW_MARGIN = 60
"""Characters on either side of an atom that must also be in the prompt for the atom to be `in place`."""
_NUMBERED = re.compile(r"\s*\d+(?:\u2192|\t|:|\|)\s?")
MAX_REMEMBERED_CHARS = 64 << 20
"""Number of characters of the texts whose tokens are remembered."""


def read_values(arguments: str) -> list[str]:
    """Return the leaves of JSON arguments as texts, in order, or the arguments themselves if they are no JSON."""
    try:
        return list(find_leaves(json.loads(arguments)))
    except (ValueError, RecursionError):
        return [arguments]


def _list_argument_values(message: Message) -> tuple[str, ...]:
    return tuple(value for call in message.calls for value in read_values(call.arguments))


def join_argument_values(message: Message) -> str:
    """Return the values in the arguments of all calls of a message, one per line."""
    return "\n".join(message.derive(_list_argument_values))


def collect_text(message: Message) -> str:
    """Return the text of a message and the values in the arguments of its calls."""
    return message.derive(_collect_text) if message.calls else message.text


def _collect_text(message: Message) -> str:
    return message.text + "\n" + join_argument_values(message)


def collapse_text(message: Message) -> str:
    """Return `collect_text` with one space in place of any other white space."""
    return message.derive(_collapse_spaces)


def _collapse_spaces(message: Message) -> str:
    return " ".join(collect_text(message).split())


def find_atoms(message: Message) -> frozenset[str]:
    """Return the atoms in the arguments of a message's calls."""
    found = {atom for value in message.derive(_list_argument_values) for atom in ATOM.findall(value)}
    return frozenset(atom for atom in found if any(c in ATOM_MARKS or c.isdigit() for c in atom))


def has_atom(atom: str, text: str) -> bool:
    """True if the atom is in the text with no letter, digit or underscore on either side."""
    return next(find_atom_positions(atom, text), -1) >= 0


def find_atom_positions(atom: str, text: str) -> Iterator[int]:
    """Yield the positions at which the atom stands like this, in order."""
    at = text.find(atom)
    while at >= 0:
        if is_whole_word(text, at, at + len(atom)):
            yield at
        at = text.find(atom, at + 1)


def is_whole_word(text: str, start: int, end: int) -> bool:
    """True if text[start:end] has no letter, digit or underscore on either side."""
    return not (start and _is_name_character(text[start - 1])) and not (
        end < len(text) and _is_name_character(text[end])
    )


def _is_name_character(character: str) -> bool:
    return character == "_" or character.isalnum()


def split_lines(text: str) -> Iterator[str]:
    """Yield the lines of a text that are worth quoting, without indentation and numbers of a listing."""
    for line in text.splitlines():
        if len(line) < MIN_LINE_CHARS:
            continue
        first = line[0]
        numbered = _NUMBERED.match(line) if first.isdigit() or first.isspace() else None
        bare = (line[numbered.end() :] if numbered else line).strip()
        if len(bare) >= MIN_LINE_CHARS:
            yield bare


def collect_lines(message: Message) -> frozenset[str]:
    """Return the lines of `collect_text`. They stay with the message: only for few or short messages."""
    return message.derive(_find_lines)


def _find_lines(message: Message) -> frozenset[str]:
    return frozenset(split_lines(collect_text(message)))


class WireTokenCounter:
    """Counts the tokens of messages as a model reads them: role, id of the answered call, text, images and the like,
    and each call as on the wire.

    count: returns the tokens of a text. Counts for policies (`text`) are remembered, since literal policies write the
    same stubs again with every request.
    """

    def __init__(self, count: Callable[[str], int]) -> None:
        self._count = count
        self._media_counter = TokenCounter(count)
        self._known: dict[str, int] = {}
        self._size = 0

    def count_text(self, text: str) -> int:
        """Return the tokens of a text."""
        size = self._known.get(text)
        if size is None:
            self._size += len(text)
            if self._size > MAX_REMEMBERED_CHARS:
                self._known.clear()
                self._size = len(text)
            size = self._known[text] = self._count(text)
        return size

    def __call__(self, message: Message) -> int:
        """Return the tokens of a message."""
        return message.derive(self._count_message)

    def _count_message(self, message: Message) -> int:
        return self._count(render_message(message)) + self._media_counter.count_media(message)

    def count_tools(self, tools: bytes | None) -> int:
        """Return the tokens of the tools array."""
        return self._count(render_tools(tools)) if tools else 0


def render_message(message: Message) -> str:
    """Return the text of a message as a model reads it."""
    return message.derive(_render_message)


def _render_message(message: Message) -> str:
    head = f"<|{message.role}|>" + (f"[{message.call_id}]" if message.call_id else "")
    return "".join((head, message.text, *(_render_call(c.id, c.name, c.arguments) for c in message.calls)))


def _render_call(call_id: str, name: str, arguments: str) -> str:
    function = {"arguments": arguments, "name": name}
    return json.dumps({"function": function, "id": call_id, "type": "function"})


def render_tools(tools: bytes | None) -> str:
    """Return the tools array as JSON with sorted keys, `[]` if there is none."""
    try:
        return json.dumps(json.loads(tools), sort_keys=True) if tools else "[]"
    except (ValueError, RecursionError):
        return (tools or b"").decode("utf-8", "replace")
