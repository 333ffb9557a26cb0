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

_OLD = ("old_string", "old_str", "old", "old_text", "search", "find", "oldString", "old_lines")
_NEW = ("new_string", "new_str", "new", "new_text", "replace", "replacement", "newString", "new_lines")
_LINE = 12
"""Minimum number of characters of a line, without its indentation, that is distinct from other lines."""
_MOST = 6
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
    last = {line: edit for edit, removed, _ in edits for line in removed}
    before: dict[str, frozenset[str]] = {}  # by line: the earlier lines in its place
    found: dict[int, frozenset[str]] = {}
    for edit, removed, added in edits:
        old = frozenset(removed).union(*(before.get(line, ()) for line in removed)).difference(added)
        before.update(dict.fromkeys(added, old))
        if not any(n < edit and n not in shortened for line in old for n in shown.get(line, ())):
            continue
        true = frozenset(line for line in added if last.get(line, -1) <= edit)
        newest = max((n for line in true for n in shown.get(line, ()) if n >= edit), default=-1)
        if newest in shortened:
            found[newest] = found.get(newest, frozenset()) | true
    return found


def _find_shown_lines(view: View, wanted: set[str]) -> dict[str, list[int]]:
    """Return, by line, the results that show it now, in full or in a stub."""
    found: dict[str, list[int]] = {}
    for n, message in enumerate(view.messages):
        if not view.is_result[n]:
            continue
        edit = view.find_edit(n)
        text = message.text if edit is None or edit.action in WHOLE_TEXT_ACTIONS else edit.text or ""
        for line in text.split("\n"):
            if len(line) >= _LINE and (said := _match_wanted_line(line, wanted)):
                found.setdefault(said, []).append(n)
    return found


def _match_wanted_line(line: str, wanted: set[str]) -> str:
    """Return the wanted line that equals this one without indentation, a listing's number, or a search's file and
    number. Empty if there is none."""
    code = identifiers.strip_line_number(line)
    if code in wanted:
        return code
    code = line.split(":", 2)[-1].strip()
    return code if code in wanted else ""


def make_state_test(view: View) -> Callable[[int], ViewState]:
    """Return a function that gives the state of a result: whether a later call has changed or removed its file, or has
    changed the object that its own call names.

    To read such a result again would give the text of before the change.
    """
    sources = refetch.find_sources(view)
    written: dict[tuple[str, bool], tuple[int, ResultSource]] = {}
    changes: list[tuple[int, FileChange]] = []
    calls: dict[int, Call] = {}
    changed_ids: dict[str, int] = {}
    has_wandered = False
    for n, call in refetch.pair_results(view.messages):
        calls[n] = call
        source, command = sources[n], shell_commands.parse_call(call)
        changed = moved_files.read_changes(call, command, has_wandered=has_wandered)
        has_wandered = has_wandered or moved_files.changes_directory(command)
        named = [one for one in changed if one.path not in ("*", ".", "./")]
        if (named or (source.action == "writes" and source.path)) and not has_failed(view, n, call):
            changes += [(n, one) for one in named]
            if source.action == "writes" and source.path and not named:
                written[source.path, source.by_shell] = n, source
        elif source.action == "writes" and not source.by_shell and not has_failed(view, n, call):
            changed_ids.update(dict.fromkeys(provenance.list_ids(call), n))

    def find_state(n: int) -> ViewState:
        source = sources.get(n)
        if source is not None and not source.path and not source.by_shell and changed_ids:
            return (
                "changed" if any(changed_ids.get(name, 0) > n for name in provenance.list_ids(calls[n])) else "current"
            )
        if source is None or not source.path or source.action not in ("shows", "writes"):
            return "current"
        later = [at for at, other in written.values() if at > n and refetch.has_same_file(other, source)]
        later += [
            at
            for at, one in changes
            if at > n and one.kind != "gone" and moved_files.matches_path(one.path, source.path)
        ]
        removed = max((at for at, one in changes if moved_files.removes_path(one, source.path)), default=0)
        if removed > n and removed >= max(later, default=0):
            return "gone"
        return "changed" if later else "current"

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
    old = _read_wanted_lines(arguments, _OLD)
    if not old:
        return (), ()
    new = _read_wanted_lines(arguments, _NEW)
    return _find_longest(old - new), _find_longest(new - old)


def _read_wanted_lines(arguments: Mapping[str, Any], names: Sequence[str]) -> set[str]:
    text = next((arguments[name] for name in names if isinstance(arguments.get(name), str)), "")
    return {line for line in map(str.strip, text.split("\n")) if len(line) >= _LINE}


def _find_longest(lines: set[str]) -> tuple[str, ...]:
    return tuple(sorted(lines, key=lambda line: (-len(line), line))[:_MOST])
