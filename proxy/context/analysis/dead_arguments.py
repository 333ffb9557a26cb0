"""Dead texts in the arguments of earlier calls: texts that are in no file any more.

An agent sends the text that an edit replaced, and the text that it wrote, with every later request. Once the edit has
succeeded, the replaced text is in no file. A written text is dead once a later edit has replaced all of it, or once
the whole file was written again. Nothing is taken for dead by its age.

The remark says that the edit was made. So the result has to say it too, or to show the new text. An edit that waits for
approval, or that was only shown, proves nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from proxy.chat.message import Call, checkpoint
from proxy.context.analysis import file_views, identifiers, refetch, shell_commands
from proxy.context.view import View

DeathReason = Literal["replaced", "overwritten"]
"""replaced: by the edit itself. overwritten: by a later call."""

JsonPath = tuple[str | int, ...]
"""The keys and indexes that lead to a value."""

OLD_NAMES = ("old_string", "old_str", "old_text", "oldString", "oldText", "old_lines")
"""Names of the argument with the text that an edit replaces."""
NEW_NAMES = ("new_string", "new_str", "new_text", "newString", "newText", "new_lines")
"""Names of the argument with the text in its place."""
CONTENT_NAMES = ("content", "contents", "file_text", "fileText")
"""Names of the argument with the text of a whole file."""
_WHOLE = frozenset(("write", "create", "save"))
"""Words in the names of tools that write whole files."""
_FILES = frozenset(("write", "file", "files", "fs"))
"""Words of which one is in such a name too: a tool that saves notes or creates issues adds to what is there."""
_PART = re.compile(r"append|mode|offset|line|range|position|start|end|insert")
"""A part of an argument's name with which a tool may write a part of a file."""
_AS_WHOLE = (None, False, "", "w", "write", "overwrite", "rewrite", "create", "replace")
"""Values of such an argument with which the whole file is written."""
_MOVES = re.compile(r"\b(?:mv|cp|rsync|ln|Move-Item|Copy-Item)\b")
_MOVING = frozenset(("move", "rename", "copy"))

_FIRST_CHARS = 240
"""Characters of a result in which it says whether the call was made."""
_MADE = re.compile(
    r"\b(?:success\w*|succeeded|updated|edited|modified|replaced|replacements?|changed|wrote|written|saved|created"
    r"|overwritten|applied|done|ok)\b",
    re.IGNORECASE,
)
_NOT_MADE = re.compile(
    r"\b(?:not|no|nothing|none|never|cannot|unable|pending|await\w*|waiting|propos\w*|review\w*|approv\w*|permission\w*"
    r"|confirm\w*|interrupt\w*|cancel\w*|block\w*|declin\w*|reject\w*|already|fail\w*|errors?|would|will|must|dry|skipp\w*"
    r"|partial\w*|plan|before|if|some|only)\b|n['\u2019]t\b|\b\d+ ?(?:/|of|out of) ?\d+\b",
    re.IGNORECASE,
)
"""Words with which the same sentence says that nothing, or not all, was done."""
_NAMES = re.compile(
    r"[^\sA-Za-z_]*+[A-Za-z_]\S*[/\\.]\w\S*|\S*[/\\.]\w*[A-Za-z_]\S*|\"errors?\"\s*:\s*(?:null|false|\"\"|\[\])"
)
"""Paths, which may have such a word in them, and a field that says that there was no error. Of a path the first letter
is looked for: tried with each letter, a word of 240 letters held every other request for 23 ms."""
_SHOWN_CHARS = 12
"""Characters of a line of the new text that a result shows."""


@dataclass(frozen=True, slots=True)
class DeadText:
    """A text in the arguments of a call that is in no file any more."""

    call: int
    """The number of the call in its message."""
    path: JsonPath
    """The place of the text in the arguments."""
    since: int
    """The index of the result that proves it."""
    reason: DeathReason


@dataclass(frozen=True, slots=True)
class _WrittenText:
    """A text that the agent wrote into a file, and that may still be there."""

    file: str
    index: int
    call: int
    path: JsonPath
    text: str


@dataclass(slots=True)
class _Texts:
    """The texts of a conversation so far."""

    dead: dict[int, tuple[DeadText, ...]]
    """The dead texts, by the index of the message with the calls."""
    written: list[_WrittenText]

    def add_dead(self, index: int, text: DeadText) -> None:
        """Note one more dead text of messages[index]."""
        self.dead[index] = (*self.dead.get(index, ()), text)

    def bury(self, n: int, file: str, replaced: str | None = None) -> None:
        """Move written texts of a file to the dead ones: those within the replaced text, or all of them for None.

        n: the index of the result that proves it."""
        texts = [one.text for one in self.written]
        left = []
        for one in self.written:
            if replaced is None:
                is_gone = one.file == file  # `a.py` may be another file than `src/a.py`
            else:  # a text that was written at two places is still at one of them
                is_gone = refetch.is_same_file(one.file, file) and one.text in replaced and texts.count(one.text) == 1
            if is_gone:
                self.add_dead(one.index, DeadText(one.call, one.path, n, "overwritten"))
            else:
                left.append(one)
        self.written = left


def find_dead_texts(view: View) -> Mapping[int, tuple[DeadText, ...]]:
    """Return the dead texts of the whole conversation, by the index of the message with the calls."""

    def extend(begin: int, known: _Texts | None) -> _Texts:
        found = _Texts({**known.dead}, [*known.written]) if known else _Texts({}, [])
        results = dict(refetch.pair_results(view.messages, begin))
        calling = begin - 1
        while calling > 0 and not view.messages[calling].calls:
            calling -= 1
        for n in range(begin, len(view.messages)):
            if view.messages[n].calls:
                calling = n
            elif n in results:
                checkpoint()
                _add_result(found, view, calling, n, results[n])
        return found

    return view.memo("dead arguments", extend).dead


def _add_result(texts: _Texts, view: View, calling: int, n: int, call: Call) -> None:
    """Note the texts of a call with this result. calling: the index of the message with the call."""
    source = refetch.find_source(call)
    if source.by_shell or source.action != "writes" or not source.path:
        _forget_moved(texts, call)
        return
    arguments = identifiers.parse_arguments(call.arguments)
    if file_views.has_failed(view, n, call) or not is_made(view.messages[n].text, arguments):
        return
    number = next((k for k, one in enumerate(view.messages[calling].calls) if one is call), -1)
    if number < 0:
        return
    for path, edit in _find_edits(arguments):
        old, new = _find_name(edit, OLD_NAMES), _find_name(edit, NEW_NAMES)
        if not old:
            continue
        texts.add_dead(calling, DeadText(number, (*path, old), n, "replaced"))
        texts.bury(n, source.path, edit[old])
        if new:
            texts.written.append(_WrittenText(source.path, calling, number, (*path, new), edit[new]))
    whole = _find_name(arguments, CONTENT_NAMES)
    if whole and _writes_whole(call.name, arguments):
        texts.bury(n, source.path)
        texts.written.append(_WrittenText(source.path, calling, number, (whole,), arguments[whole]))


def is_made(text: str, arguments: Mapping[str, Any]) -> bool:
    """True if the result of an edit says that the edit was made, or shows a line of the new text."""
    if any(arguments.get(name) not in (None, False) for name in shell_commands.DRY_RUN):
        return False
    first = _NAMES.sub(" ", text[:_FIRST_CHARS].lstrip().split("\n", 1)[0])
    if _NOT_MADE.search(first):
        return False
    return _MADE.search(first) is not None or _shows_new_text(text, arguments)


def _shows_new_text(text: str, arguments: Mapping[str, Any]) -> bool:
    for _, edit in _find_edits(arguments):
        name = _find_name(edit, NEW_NAMES)
        lines = edit[name].split("\n", 50)[:50] if name else ()
        if any(len(line.strip()) >= _SHOWN_CHARS and line.strip() in text for line in lines):
            return True
    return False


def _writes_whole(name: str, arguments: Mapping[str, Any]) -> bool:
    """True if a call writes a whole file."""
    if any(_PART.search(one.lower()) and value not in _AS_WHOLE for one, value in arguments.items()):
        return False
    words = identifiers.split_tool_name(name)
    return bool(words & _WHOLE and words & _FILES) or arguments.get("command") == "create"


def _forget_moved(texts: _Texts, call: Call) -> None:
    """Forget the written texts of files that a call names which moves or copies files: they may be elsewhere now."""
    if not texts.written:
        return
    if _MOVES.search(call.arguments) or identifiers.split_tool_name(call.name) & _MOVING:
        texts.written = [one for one in texts.written if one.file.rpartition("/")[2] not in call.arguments]


def _find_edits(arguments: Mapping[str, Any]) -> Iterator[tuple[JsonPath, Mapping[str, Any]]]:
    """Yield (place, edit) for the arguments of a call, which may be an edit, and for each item of their `edits`."""
    yield (), arguments
    several = arguments.get("edits")
    for n, one in enumerate(several if isinstance(several, list) else ()):
        if isinstance(one, dict):
            yield ("edits", n), one


def _find_name(arguments: Mapping[str, Any], names: Sequence[str]) -> str:
    """Return the first of these names under which the arguments have a text, "" if there is none."""
    return next((name for name in names if isinstance(arguments.get(name), str) and arguments[name].strip()), "")
