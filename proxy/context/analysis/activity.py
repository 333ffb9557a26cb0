"""The agent's activity record, from its own calls: files, commands with their outcomes, last errors, open items.

No model writes it. The agent needs this record first when the results themselves have left the prompt. It lists the
files read and changed, the failed commands, and the open items of a plan. `outcome` says how a call
ended: an unknown outcome is not reported, and an edit that failed is no edit.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import filterfalse
from typing import Any, NamedTuple

from proxy.chat.message import Call, Message
from proxy.context.analysis import (
    file_results,
    identifiers,
    moved_files,
    outcome,
    output_wrappers,
    provenance,
    refetch,
    result_lines,
    runner_patterns,
    shell_commands,
)
from proxy.context.analysis.file_results import Lines
from proxy.context.analysis.moved_files import FileChange
from proxy.context.analysis.outcome import ToolOutcome
from proxy.context.analysis.shell_commands import ShellCommand

_READS = frozenset({"read", "view", "open", "cat"})
_CREATES = frozenset({"write", "create"})
_EDITS = frozenset({"edit", "replace", "insert", "patch", "str", "update", "apply"})
_SHORT = 80
"""Maximum number of characters of a reported command or error line."""
_PATH = 200
"""Maximum number of characters of a reported path."""
_RUNS = 6
"""Maximum number of reported commands."""
_ERRORS = 2
"""Maximum number of error lines stored for one result."""
_OPEN = frozenset((
    "", "pending", "open", "todo", "not_started", "in_progress", "inprogress", "active", "started", "doing", "running",
    "working", "blocked", "waiting", "queued", "planned", "ready", "new", "current", "incomplete", "failed", "ongoing",
))  # fmt: skip
"""Values of an item's status, with underscores, that say that it is open. No item with another value is reported."""
_ITEM = ("content", "task", "step", "title", "text")
_NEW = re.compile(
    r"\b(?:created?|new file|erstellt|angelegt|cr\u00e9\u00e9e?|cread[ao]|criad[ao]|creat[ao]"
    r"|\u0441\u043e\u0437\u0434\u0430\u043d)\b"
    r"|\u521b\u5efa|\u65b0\u5efa|\u5efa\u7acb|\u4f5c\u6210|\uc0dd\uc131",
    re.IGNORECASE,
)
"""Words with which a tool reports that a file is new."""
_OBJECTS = frozenset((
    "api", "branch", "comment", "endpoint", "event", "helm", "http", "issue", "job", "kubectl", "message", "order",
    "pr", "pull", "record", "release", "request", "status", "ticket", "user",
))  # fmt: skip
"""Words in names of tools that change something else than files: a path in their arguments is that of an input."""
_PATCH_LINES = 40
"""Number of lines of a patch's result that are searched for a part that failed."""
_NEW_LINES = 5
"""Number of lines of a result that are searched for them."""
_REMOVING = ("gone", "undone")


class CommandRun(NamedTuple):
    """A command that was run."""

    text: str
    """The command, as `ShellCommand.text` has it."""
    outcome_text: str
    """The outcome in words, empty if it is unknown."""
    unresolved: bool
    """The command failed, and no later success is known."""
    only_shows: bool
    """The command only showed something."""
    directory: str = ""
    """The working directory, if known."""
    changes_before: int = 0
    """The number of file changes before the run."""
    again: bool = False
    """The command was run again since, with an unknown outcome."""
    possible_changes_before: int = 0
    """The number of commands before the run that may have changed files."""


class ActivityEntries(NamedTuple):
    """Entries of one kind, the most important first."""

    name: str
    entries: list[str]
    total: int = 0
    """The number of entries of this kind, unlisted ones too; 0 where the name says that these are the last."""

    def __str__(self) -> str:
        more = self.total - len(self.entries)
        return f"{self.name}: " + "; ".join([*self.entries, *([f"{more} more"] if more > 0 else [])])


@dataclass(slots=True)
class ActivityRecord:
    """The activity record. Each list is in the order of the last use, oldest first."""

    files_read: dict[str, None] = field(default_factory=dict)
    files_edited: dict[str, None] = field(default_factory=dict)
    files_created: dict[str, None] = field(default_factory=dict)
    known_files: set[str] = field(default_factory=set)
    """Files that were there before: a tool that writes one of them edits it."""
    written_files: set[str] = field(default_factory=set)
    """Files that a tool has written, of which it is not known that they were there before."""
    shown_files: set[str] = field(default_factory=set)
    """Sources and settings that a shell command has shown."""
    shell_files: set[str] = field(default_factory=set)
    """Sources and settings that a shell command has written, of which it is not known that they were there before."""
    command_runs: dict[str, CommandRun] = field(default_factory=dict)
    """Commands, by the identity of the run, so that the newest run of each counts."""
    error_lines: dict[str, list[str]] = field(default_factory=dict)
    """Quoted error lines, by the command that printed them."""
    open_items: tuple[str, ...] = ()
    change_count: int = 0
    """Number of file changes."""
    possible_change_count: int = 0
    """Number of commands that may have changed files, though nothing says so."""
    current_directory: str = ""
    """The current directory after `cd`, for later commands."""
    open_calls: Mapping[str, Call] = field(default_factory=dict)
    """The calls of the newest answer with calls, by id: the results that follow are theirs."""
    open_commands: Mapping[str, ShellCommand] = field(default_factory=dict)

    def copy(self) -> ActivityRecord:
        """Return a record that continues from here, while this one stays as it is."""
        return replace(
            self,
            files_read=dict(self.files_read),
            files_edited=dict(self.files_edited),
            files_created=dict(self.files_created),
            known_files=set(self.known_files),
            written_files=set(self.written_files),
            shown_files=set(self.shown_files),
            shell_files=set(self.shell_files),
            command_runs=dict(self.command_runs),
            error_lines=dict(self.error_lines),
        )

    def add_call(self, call: Call, command: ShellCommand, call_outcome: ToolOutcome, lines: Lines) -> None:
        """Add one call, its command, its outcome, and the lines of its result."""
        arguments = identifiers.parse_arguments(call.arguments)
        words, path, key = _describe_call(call, command, arguments)
        key, place = self._add_directory(key, command, arguments)
        failed = call_outcome.verdict == "failed"
        passed = call_outcome.verdict == "succeeded"
        done = self._follow(call, command, call_outcome, lines)
        if _is_item_list(words):
            if not failed:
                self._read_open_items(arguments)
        elif done is not None:
            passed = done
        elif path:
            passed = self._add_file(words, path, call_outcome, lines)
        elif command.text:
            self._add_run(key, command, call_outcome, place)
        if failed or passed:
            self.error_lines.pop(key, None)
        if failed and (error_lines := _find_failure_lines(call_outcome, lines)):
            self.error_lines[key] = [_quote_error(line, path) for line in error_lines]

    def supersede_call(self, call: Call, command: ShellCommand, call_outcome: ToolOutcome, lines: Lines) -> None:
        """Apply a call whose result is in the prompt: entries of an earlier equal call are outdated and removed."""
        arguments = identifiers.parse_arguments(call.arguments)
        words, path, key = _describe_call(call, command, arguments)
        key, _ = self._add_directory(key, command, arguments)
        if self._follow(call, command, call_outcome, lines, stands=True) is None and path:
            if words & (_CREATES | _EDITS):
                self.change_count += file_results.proves_change(call_outcome, lines)
            elif words & _READS and call_outcome.verdict != "failed":
                self._add_known(path)
        if _is_item_list(words) and call_outcome.verdict != "failed":
            self._read_open_items(arguments)
        self.command_runs.pop(key, None)
        self.error_lines.pop(key, None)

    def _add_directory(self, key: str, command: ShellCommand, arguments: Mapping[str, Any]) -> tuple[str, str]:
        """Return (the key of a call with its directory, the directory)."""
        if command.kind == "call":
            return key, ""
        place = moved_files.read_directory(arguments) or self.current_directory
        return f"{place}\n{key}", place

    def _follow(
        self, call: Call, command: ShellCommand, end: ToolOutcome, lines: Lines, *, stands: bool = False
    ) -> bool | None:
        """Apply a call's changes of recorded files and of the current directory.

        Return True if the call changed files, False if a patch changed none, None if the caller has to classify the
        call. stands: the result is in the prompt, so that its edits are not recorded.
        """
        if changes := moved_files.read_patch_changes(call.arguments):
            # Of a patch of several files a part may have failed.
            done = file_results.proves_change(end, lines) and (
                len(changes) == 1 or not file_results.has_doubt(lines()[:_PATCH_LINES])
            )
            self._apply(changes if done else (), stands=stands)
            return done
        self.possible_change_count += command.kind == "run" and call.derive(_may_change_files)
        if end.verdict == "failed":
            # The first parts of a chain may have done their work: an entry that could be wrong is left out.
            undone = () if command.kind == "call" or command.is_single else moved_files.read_shell_changes(command.core)
            self._apply((one for one in undone if one.kind in _REMOVING and one.path != "*"), stands=stands)
            return None
        if command.kind == "call":
            words, _, _ = _describe_call(call, command, arguments := identifiers.parse_arguments(call.arguments))
            changes = moved_files.read_tool_changes(words, arguments)
            for change in changes:
                if change.kind == "undone":  # the last change of a file may be its creation
                    self.files_created.pop(change.path, None)
        else:
            self.current_directory = moved_files.follow_cd(command.text, self.current_directory)
            changes = call.derive(_read_shell_changes)
            shown = refetch.find_source(call) if command.kind == "look" else None
            if shown is not None and shown.action == "shows" and moved_files.is_project_file(shown.path):
                self.shown_files.add(shown.path)
            changes = moved_files.check_changes(changes, command, lines()) if changes else changes
        self._apply(changes, stands=stands)
        return True if changes and command.kind == "call" else None

    def _apply(self, changes: Iterable[FileChange], *, stands: bool) -> None:
        for kind, path, _ in changes:
            if kind == "cleaned":
                self.files_created.clear()
                for name in self.written_files:
                    self.files_edited.pop(name, None)
                continue
            if kind in _REMOVING:
                self.change_count += self._drop(path, gone=kind == "gone") or path == "*" or kind == "undone"
                continue
            self.change_count += kind != "placed" or self._changes_known_file(path)
            if not stands and kind != "placed":
                files = self.files_created if kind == "created" else self.files_edited
                files.pop(path, None)
                files[path] = None

    def _changes_known_file(self, path: str) -> bool:
        """True if a shell command that writes this file may have changed a file that was there before.

        A source that is written for the first time, and that no command has shown, is taken for a new one."""
        known = (*self.files_edited, *self.files_created, *self.files_read)
        if path == "*" or any(moved_files.matches_path(path, name) for name in known):
            return True
        if not moved_files.is_project_file(path):
            return False
        seen = any(moved_files.matches_path(path, name) for name in (*self.shown_files, *self.shell_files))
        self.shell_files.add(path)
        return seen

    def _drop(self, path: str, *, gone: bool) -> bool:
        """Remove files that are gone, or only their edits; True if any file was removed.

        The removal of other files, for example logs, changes nothing on which a command depends.
        """
        removed = False
        if gone:
            for names in (self.known_files, self.shown_files, self.shell_files):
                matching = {name for name in names if moved_files.matches_path(path, name)}
                names.difference_update(matching)
                removed = removed or (names is self.shown_files and bool(matching))
        for files in (self.files_edited, self.files_created, self.files_read) if gone else (self.files_edited,):
            for name in [name for name in files if moved_files.matches_path(path, name)]:
                del files[name]
                removed = True
        return removed

    def _read_open_items(self, arguments: Mapping[str, Any]) -> None:
        found = _parse_open_items(arguments)
        self.open_items = self.open_items if found is None else found

    def _add_known(self, path: str) -> None:
        if path not in self.files_created:
            self.known_files.add(path)

    def _add_file(self, words: frozenset[str], path: str, end: ToolOutcome, lines: Lines) -> bool:
        """Record the file in its list. True if the call touched the file."""
        if words & _OBJECTS:
            return end.verdict == "succeeded"
        is_new = bool(words & _CREATES) and self._creates(words, path, lines)
        written = self.files_created if is_new else self.files_edited
        for kinds, files in ((_CREATES, written), (_EDITS, self.files_edited), (_READS, self.files_read)):
            if words & kinds:
                touched = (
                    file_results.shows_file(end, lines)
                    if files is self.files_read
                    else file_results.proves_change(end, lines)
                )
                if touched:
                    if words & _CREATES and path not in self.known_files:
                        self.written_files.add(path)
                    files.pop(path, None)
                    files[path] = None
                    self.change_count += files is not self.files_read
                    self._add_known(path)
                return touched
        return end.verdict == "succeeded"

    def _creates(self, words: frozenset[str], path: str, lines: Lines) -> bool:
        """True if a call that writes a file has created it.

        The file is not known to have been there before, and the tool's name or result says that it is new."""
        if path in self.known_files:
            return False
        return path in self.files_created or "create" in words or any(map(_NEW.search, lines()[:_NEW_LINES]))

    def _add_run(self, key: str, command: ShellCommand, end: ToolOutcome, place: str) -> None:
        before = self.command_runs.pop(key, None)
        looks = command.kind == "look"
        if end.verdict == "failed":
            # A server that was only started for a time, and a test that hangs, both end so.
            words = "timed out" if end.timed_out else "failed"
            outcome_text = f"{words} ({end.exit_code})" if end.exit_code else words
            self.command_runs[key] = self._make_run(command, outcome_text, place, unresolved=True)
        elif end.verdict == "unknown" and before is not None and before.unresolved:
            self.command_runs[key] = before._replace(again=True)
        else:
            outcome_text = "ok" if end.verdict == "succeeded" and not looks else ""
            self.command_runs[key] = self._make_run(command, outcome_text, place, unresolved=False)

    def _make_run(self, command: ShellCommand, outcome_text: str, place: str, *, unresolved: bool) -> CommandRun:
        """Return a run that ends here: what changes files from now on outdates it."""
        return CommandRun(
            command.text,
            outcome_text,
            unresolved,
            command.kind == "look",
            place,
            self.change_count,
            possible_changes_before=self.possible_change_count,
        )

    def list_entries(self) -> list[ActivityEntries]:
        """Return the entries of each kind, newest first. Failed commands come before all others, and commands that only
        show something come last. Open items are in the order of the agent's list: the first one is next."""
        ran = list(reversed(self.command_runs.values()))
        ran.sort(key=lambda one: (one.only_shows, not one.unresolved))
        errors = identifiers.remove_duplicates(
            line for error_lines in self.error_lines.values() for line in error_lines
        )
        read = [path for path in self.files_read if path not in self.files_edited]
        runs = _render_runs(ran[:_RUNS], self.change_count, self.possible_change_count)
        found = (
            ActivityEntries("Edited", _list_newest_files(self.files_edited, 12), len(self.files_edited)),
            ActivityEntries("Created", _list_newest_files(self.files_created, 8), len(self.files_created)),
            ActivityEntries("Read", _list_newest_files(read, 12), len(read)),
            ActivityEntries("Commands", runs, len(ran)),
            ActivityEntries("Last errors", _list_newest(errors, 3)),
            ActivityEntries("Open", list(self.open_items[:8]), len(self.open_items)),
        )
        return [one for one in found if one.entries]


def build_activity_record(
    messages: Sequence[Message], has_left: Sequence[bool], before: ActivityRecord | None = None
) -> ActivityRecord:
    """Return the record of the calls whose result has left the prompt. has_left: true for each message that has left.
    before: the record of the messages before these, which is not changed.

    A later call whose result is in the prompt overrules the entries of the same command, and the open items.
    """
    found = ActivityRecord() if before is None else before.copy()
    for message, gone in zip(messages, has_left, strict=True):
        if message.calls:
            found.open_calls = {call.id: call for call in message.calls}
            found.open_commands = shell_commands.parse_calls(message)
        elif message.call_id is not None and message.call_id in found.open_calls:
            call, command = found.open_calls[message.call_id], found.open_commands[message.call_id]
            lines = partial(result_lines.read_lines, message)
            if gone:
                found.add_call(call, command, outcome.read_outcome(message, command), lines)
            else:
                found.supersede_call(call, command, outcome.read_outcome(message, command), lines)
    return found


def _read_shell_changes(call: Call) -> list[FileChange]:
    """Return the files that a shell command removes, moves or restores, and the file that it writes by redirection: `*`
    if it edits or formats files."""
    command, source = shell_commands.parse_call(call), refetch.find_source(call)
    changes = [
        *moved_files.read_shell_changes(command.core),
        *moved_files.read_downloads(command.core),
        *moved_files.read_written_files(call.arguments),
    ]
    if source.action == "writes" and source.path:
        in_place = re.search(r"(?:^| )(?:sed|perl) ", command.core) is not None
        changes.append(FileChange("placed", "*" if in_place else source.path))
    if provenance.rewrites_files(command) or moved_files.writes_project(command.core, changes, call.arguments):
        changes.append(FileChange("placed", "*"))
    return changes


def _may_change_files(call: Call) -> bool:
    """True if a shell command may change files of a project, by its name."""
    command = shell_commands.parse_call(call)
    return moved_files.may_write_project(command.core) and not provenance.keeps_files(command)


def _describe_call(
    call: Call, command: ShellCommand, arguments: Mapping[str, Any]
) -> tuple[frozenset[str], str | None, str]:
    """Return (the words of the call's action, the file, the key of the call)."""
    words = identifiers.split_tool_name(call.name)
    if command.kind != "call":
        return words, None, command.core or command.text or f"{call.name} {call.arguments}"
    is_trial = shell_commands.is_trial(arguments)
    path = None if is_trial else _find_first_text(arguments, shell_commands.PATH_ARGUMENTS)
    does = arguments.get("command")
    if isinstance(does, str) and does in shell_commands.FILE_COMMANDS:
        words = identifiers.split_tool_name(does)
    return words, path, f"{call.name} {' '.join(sorted(words))} {path or call.arguments}"


def _is_item_list(words: frozenset[str]) -> bool:
    return "todo" in words or "plan" in words


def _render_runs(ran: Sequence[CommandRun], changes: int, possible: int) -> list[str]:
    """Return the commands with their outcomes and the reasons that make an outcome outdated.

    Commands with the same beginning are shown with their ends too. If commands ran in several directories, each has its
    directory.
    """
    shown = [_shorten_command(one.text) for one in ran]
    places = len({one.directory for one in ran if not one.only_shows}) > 1
    return [
        f"`{command if shown.count(command) == 1 else _render_both_ends(one.text)}` {one.outcome_text}".rstrip()
        + (f" in {_shorten_command(one.directory)}" if places and one.directory and not one.only_shows else "")
        + _render_outdated_reason(one, changes, possible)
        for command, one in zip(shown, ran, strict=True)
    ]


def _render_outdated_reason(one: CommandRun, changes: int, possible: int) -> str:
    """Return the reason for which the outcome of a command may be outdated, empty if there is none."""
    if not one.outcome_text or one.only_shows:
        return ""
    if one.again:
        return ", run again since"
    if changes > one.changes_before:
        return ", files changed since"
    return ", files may have changed since" if possible > one.possible_changes_before else ""


def _quote_error(line: str, path: str | None) -> str:
    """Quote a line of a tool, apart from the proxy's text, with the call's file if the line does not name it."""
    quoted = '"' + line.replace('"', "'") + '"'
    return f"{quoted} on {_shorten_command(path)}" if path and path.rpartition("/")[2] not in line else quoted


def _list_newest(names: Sequence[str] | Mapping[str, object], most: int) -> list[str]:
    return list(names)[-most:][::-1]


def _list_newest_files(paths: Sequence[str] | Mapping[str, object], most: int) -> list[str]:
    return list(map(_show_path, _list_newest(paths, most)))


def _show_path(path: str) -> str:
    """Return a path as an entry shows it: of a long one the end, and one that could be taken for several entries or
    lines in quotes. The files of a stranger have the names that he gave them."""
    if len(path) > _PATH:
        path = "..." + path[3 - _PATH :]
    if path.isprintable() and "; " not in path and "`" not in path:
        return path
    return '"' + "".join(char if char.isprintable() else " " for char in path).replace('"', "'") + '"'


def _find_failure_lines(end: ToolOutcome, lines: Lines) -> list[str]:
    """Return the lines that describe the failure, if possible other ones than those that end each failed run."""
    numbers = end.failure_lines or end.summary_lines
    shown = lines() if numbers else ()
    found = [output_wrappers.strip_line(shown[n]) for n in numbers]
    found = [*filterfalse(runner_patterns.compile_patterns().closing.match, found)] or found
    return identifiers.remove_duplicates(_shorten_command(line) for line in found if output_wrappers.has_content(line))[
        -_ERRORS:
    ]


def _find_first_text(arguments: Mapping[str, Any], names: Sequence[str]) -> str | None:
    return next((arguments[n] for n in names if isinstance(arguments.get(n), str) and arguments[n]), None)


def _shorten_command(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _SHORT else text[: _SHORT - 3] + "..."


def _render_both_ends(text: str) -> str:
    half = (_SHORT - 3) // 2
    return text if len(text) <= _SHORT else f"{text[:half]}...{text[-half:]}"


def _parse_open_items(arguments: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return the unfinished items of a list like `{"todos": [{"content", "status"}]}`, None for other values."""
    lists = [value for value in arguments.values() if isinstance(value, list)]
    items = [
        item
        for value in lists
        for item in value
        if isinstance(item, dict) and (_find_item_text(item) or "status" in item)
    ]
    if not items and not any(not value for value in lists):
        return None
    return tuple(
        _shorten_command(_find_item_text(item))
        for item in items
        if _find_item_text(item) and not _may_be_finished(item)
    )


def _find_item_text(item: Mapping[str, Any]) -> str:
    return next((item[k] for k in _ITEM if isinstance(item.get(k), str)), "")


def _may_be_finished(item: Mapping[str, Any]) -> bool:
    status = item.get("status")
    named = isinstance(status, str) and re.sub(r"[\s-]+", "_", status.strip().lower()) not in _OPEN
    return named or any(item.get(name) is True for name in ("done", "completed"))
