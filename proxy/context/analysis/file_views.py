"""Sights of a file: results that show lines before an edit, and results that show them after it.

An agent edits by quoting. If the newest sight of a line has left the prompt and an older, different one is still there,
the agent quotes outdated text. So the old sights leave first, and the newest sight keeps the lines of an edit while an
old sight remains.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from proxy.chat.message import Call
from proxy.context.analysis import identifiers, moved_files, outcome, provenance, refetch, shell_commands
from proxy.context.analysis.moved_files import FileChange
from proxy.context.analysis.refetch import ResultSource
from proxy.context.plan import WHOLE_TEXT_ACTIONS
from proxy.context.view import View

ViewState = Literal["current", "changed", "gone"]
"""The state of a shown file: as shown, changed since by a call, or deleted or moved away."""

_OLD_TEXT_NAMES = ("old_string", "old_str", "old", "old_text", "search", "find", "oldString", "old_lines")
_NEW_TEXT_NAMES = ("new_string", "new_str", "new", "new_text", "replace", "replacement", "newString", "new_lines")
"""Names of the arguments with the text that an edit removes, and with the text that it adds."""
_MIN_LINE_CHARS = 12
"""Minimum number of characters of a line, without its indentation, that is distinct from other lines."""
_MAX_EDIT_LINES = 6
"""Number of an edit's lines, the longest ones, that are searched for."""


def find_newest_lines(view: View, shortened: frozenset[int]) -> Mapping[int, frozenset[str]]:
    """Return, by the index of a result that is being shortened, the lines (without indentation) that have to stay in
    it.

    The result is the newest sight of these lines, and an older sight of the lines that they replaced remains.
    shortened: the indices of all results that are being shortened.

    Computed once for each batch, in one pass over the results in the prompt.
    """
    edits = [(n, *change) for n, call in refetch.pair_results(view.messages) if any(change := read_edit_lines(call))]
    wanted = {line for _, removed, added in edits for line in (*removed, *added)}
    shown = _find_shown_lines(view, wanted) if wanted else {}
    last_removal = {line: edit for edit, removed, _ in edits for line in removed}
    earlier_lines: dict[str, frozenset[str]] = {}  # by line: the earlier lines in its place
    required: dict[int, frozenset[str]] = {}
    for edit, removed, added in edits:
        replaced = frozenset(removed).union(*(earlier_lines.get(line, ()) for line in removed)).difference(added)
        earlier_lines.update(dict.fromkeys(added, replaced))
        if not any(n < edit and n not in shortened for line in replaced for n in shown.get(line, ())):
            continue
        current = frozenset(line for line in added if last_removal.get(line, -1) <= edit)
        newest_view = max((n for line in current for n in shown.get(line, ()) if n >= edit), default=-1)
        if newest_view in shortened:
            required[newest_view] = required.get(newest_view, frozenset()) | current
    return required


def _find_shown_lines(view: View, wanted: set[str]) -> dict[str, list[int]]:
    """Return, by line, the results that show it now, in full or in a stub."""
    found: dict[str, list[int]] = {}
    for n, message in enumerate(view.messages):
        if not view.is_result[n]:
            continue
        edit = view.find_edit(n)
        text = message.text if edit is None or edit.action in WHOLE_TEXT_ACTIONS else edit.text or ""
        for line in text.split("\n"):
            if len(line) >= _MIN_LINE_CHARS and (wanted_line := _match_wanted_line(line, wanted)):
                found.setdefault(wanted_line, []).append(n)
    return found


def _match_wanted_line(line: str, wanted: set[str]) -> str:
    """Return the wanted line that equals this one without indentation, a listing's number, or a search's file and
    number. Empty if there is none."""
    bare = identifiers.strip_line_number(line)
    if bare in wanted:
        return bare
    bare = line.split(":", 2)[-1].strip()
    return bare if bare in wanted else ""


def make_state_test(view: View) -> Callable[[int], ViewState]:
    """Return a function that gives the state of a result: whether a later call has changed or removed its file, or has
    changed the object that its own call names.

    To read such a result again would give the text of before the change.
    """
    sources = refetch.find_sources(view)
    last_writes: dict[tuple[str, bool], tuple[int, ResultSource]] = {}
    file_changes: list[tuple[int, FileChange]] = []
    calls: dict[int, Call] = {}
    id_changes: dict[str, int] = {}
    has_wandered = False
    for n, call in refetch.pair_results(view.messages):
        calls[n] = call
        source, command = sources[n], shell_commands.parse_call(call)
        changed = moved_files.read_changes(call, command, has_wandered=has_wandered)
        has_wandered = has_wandered or moved_files.changes_directory(command)
        named_files = [change for change in changed if change.path not in ("*", ".", "./")]
        if (named_files or (source.action == "writes" and source.path)) and not has_failed(view, n, call):
            file_changes += [(n, change) for change in named_files]
            if source.action == "writes" and source.path and not named_files:
                last_writes[source.path, source.by_shell] = n, source
        elif source.action == "writes" and not source.by_shell and not has_failed(view, n, call):
            id_changes.update(dict.fromkeys(provenance.list_ids(call), n))

    def find_state(n: int) -> ViewState:
        source = sources.get(n)
        if source is not None and not source.path and not source.by_shell and id_changes:
            return (
                "changed" if any(id_changes.get(name, 0) > n for name in provenance.list_ids(calls[n])) else "current"
            )
        if source is None or not source.path or source.action not in ("shows", "writes"):
            return "current"
        later_changes = [
            index for index, other in last_writes.values() if index > n and refetch.has_same_file(other, source)
        ]
        later_changes += [
            index
            for index, change in file_changes
            if index > n and change.kind != "gone" and moved_files.matches_path(change.path, source.path)
        ]
        last_removal = max(
            (index for index, change in file_changes if moved_files.removes_path(change, source.path)), default=0
        )
        if last_removal > n and last_removal >= max(later_changes, default=0):
            return "gone"
        return "changed" if later_changes else "current"

    return find_state


def has_failed(view: View, n: int, call: Call) -> bool:
    """True if the result messages[n] says that its call has failed."""
    return outcome.read_outcome(view.messages[n], shell_commands.parse_call(call)).verdict == "failed"


def find_spans(text: str, lines: frozenset[str]) -> list[tuple[int, int]]:
    """Return the (start, end) of each of these lines in a text."""
    return [(k, k + 1) for k, line in enumerate(text.split("\n")) if _match_wanted_line(line, set(lines))]


def read_edit_lines(call: Call) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return (lines that an edit removes, lines that it adds), the longest of each."""
    return call.derive(_read_edit_lines)


def _read_edit_lines(call: Call) -> tuple[tuple[str, ...], tuple[str, ...]]:
    arguments = identifiers.parse_arguments(call.arguments)
    old = _read_wanted_lines(arguments, _OLD_TEXT_NAMES)
    if not old:
        return (), ()
    new = _read_wanted_lines(arguments, _NEW_TEXT_NAMES)
    return _find_longest(old - new), _find_longest(new - old)


def _read_wanted_lines(arguments: Mapping[str, Any], names: Sequence[str]) -> set[str]:
    text = next((arguments[name] for name in names if isinstance(arguments.get(name), str)), "")
    return {line for line in map(str.strip, text.split("\n")) if len(line) >= _MIN_LINE_CHARS}


def _find_longest(lines: set[str]) -> tuple[str, ...]:
    return tuple(sorted(lines, key=lambda line: (-len(line), line))[:_MAX_EDIT_LINES])
