"""The origin of a result in the history, its age, and later changes of the same file.

A text that is read again looks current. So the text is shown with its call, its age in steps, and the number of later
changes. The changes are those of the same file, or of the object with the same identifier.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from proxy.chat.json_spans import decode_embedded
from proxy.chat.message import Call, Message
from proxy.context.analysis import identifiers, lexicon, moved_files, outcome, refetch, runner_patterns, shell_commands
from proxy.context.analysis.moved_files import FileChange
from proxy.context.analysis.refetch import ResultSource
from proxy.context.analysis.shell_commands import ShellCommand

_FAILED = re.compile(lexicon.FAILED_PATTERN, re.IGNORECASE)
_ARGUMENTS = 80
"""Maximum number of characters of a call's arguments that are shown."""
_REWRITES = re.compile(
    r"(?<!\S)--?(?:fix|write|in-place|update|autocorrect)\b|:fix\b|\b(?:format|fmt)\b|\bblack\b"
    r"|\bprettier (?!.*--check)|\bsnapshot|\bspotless:?[aA]pply|\b(?:jest|vitest|ava|test)\b.* -u\b"
    r"|\brubocop\b.* -[aA]\b"
)
"""Options and commands with which a runner writes files; without them a runner only reads."""
_WRITERS = re.compile(
    r"(?:cargo fmt|(?:gofmt|goimports) .*-w|rustfmt|clang-format .*-i|isort|(?:npx )?jscodeshift|sd|go generate)\b"
    r"|unzip (?!.*-[ltp])|tar (?:-?\w*x|.*--extract)"
)
"""Other programs that write files of a project."""
_CHECKS = re.compile(r"\s--?(?:check|diff|dry-run)\b")
"""Options with which a formatter only reports."""
_LEAVES = re.compile(
    r"git (?:add|commit|push|fetch|tag|init|clone|worktree)\b"
    r"|(?:npm|yarn|pnpm|make|tox|nox)(?: run)? (?:test|check|lint)\b"
    r"|(?:pip|npm|yarn|pnpm|apt-get|brew) (?:install|ci)\b"
    r"|(?:kubectl|docker|terraform|curl|wget|gh|mkdir|touch|sleep|kill) "
)
"""Commands that do not change the files of a project, except those of `_MAY_WRITE`."""
_MAY_WRITE = re.compile(
    r"curl .*(?:-\w*[oO]\b|--output|--remote-name)|wget (?!.*(?:-\w*O ?(?:-|/dev/null)|--spider))"
    r"|(?:docker|podman)\S* .*\b(?:run|exec|cp)\b|kubectl .*\bcp\b|gh (?:pr checkout|repo|\w+ download)\b"
    r"|(?:\S+ )*(?:pre-commit|(?:nx|turbo|sbt|lein|buck2)(?!.*\b(?:test|build|lint|check|compile)))\b"
)
"""Commands that may write files of the project, though most of their kind do not."""


_ID = re.compile(r"(?=[^\s@/]{3,60}\Z).*\d.*")
_NO_ID = re.compile(r"\d{1,4}-\d{1,2}-\d{1,4}(?:T|\Z)|\d{1,2}:\d\d|[-+]?(?:\d{1,4}|\d*[.,]\d+)%?\Z")
"""A day, a time or a number that counts something."""


@dataclass(frozen=True, slots=True)
class Provenance:
    """The origin of a message."""

    call: Call | None
    """The call whose result the message is."""
    steps: int
    """Answers of the model since."""
    edits: int
    """Later calls that have changed the shown text."""
    is_file: bool
    """The text is that of one file."""
    is_removed: bool = False
    """The last of these calls has removed the file."""
    possible_edits: int = 0
    """Other later commands that may have changed the text."""

    def describe_origin(self) -> str:
        """Describe the origin in words, without square brackets and line ends."""
        ago = f"{self.steps} step{'' if self.steps == 1 else 's'} ago"
        if self.call is None:
            return ago
        arguments = " ".join(self.call.arguments.split())
        if len(arguments) > _ARGUMENTS:
            arguments = f"{arguments[: _ARGUMENTS - 23]}...{arguments[-20:]}"
        text = f"{self.call.name} {arguments}".translate(_NO_BRACKETS)
        if self.is_removed:
            return f"the result of {text}, {ago}; no longer current: the file was deleted or moved away"
        if not self.edits:
            return f"the result of {text}, {ago}{self._render_unchanged()}"
        times = "once" if self.edits == 1 else f"{self.edits} times"
        if self.is_file:
            return f"the result of {text}, {ago}; edited {times} since: read it again for its present text"
        return f"the result of {text}, {ago}; changed {times} since: ask again for what is there now"

    def _render_unchanged(self) -> str:
        """Return the words for a text that no call is known to have changed."""
        if not self.is_file:
            return ""
        if not self.possible_edits:
            return "; no call has changed it since"
        ran = "a command" if self.possible_edits == 1 else f"{self.possible_edits} commands"
        return f"; no call is known to have changed it, but {ran} that ran after it may have"


_NO_BRACKETS = str.maketrans("[]\n\r", "()  ")


def find_provenance(messages: Sequence[Message], index: int) -> Provenance:
    """Return the provenance of messages[index], as seen by the answer after the last message."""
    steps = 1 + sum(1 for message in messages[index + 1 :] if message.role == "assistant")
    call = next((found for n, found in refetch.pair_results(messages[: index + 1], index) if n == index), None)
    if call is None:
        return Provenance(None, steps, 0, is_file=False)
    source = refetch.find_source(call)
    subject = _find_subject(messages[index], call, source)
    edits = doubtful = 0
    gone = False
    earlier = (shell_commands.parse_call(one) for _, one in refetch.pair_results(messages[: index + 1]))
    has_wandered = any(map(moved_files.changes_directory, earlier))
    for n, later in refetch.pair_results(messages, index + 1):
        command = shell_commands.parse_call(later)
        changes = moved_files.read_changes(later, command, has_wandered=has_wandered) if subject.source.path else []
        has_wandered = has_wandered or moved_files.changes_directory(command)
        failed = outcome.read_outcome(messages[n], command).verdict == "failed"
        if command.kind == "call" and failed:
            continue
        kinds, is_maybe = (set[str](), False) if failed else _find_change_kinds(changes, subject.source.path)
        if kinds or (_FAILED.search(messages[n].text[:200]) is None and _changes_subject(later, subject)):
            edits += 1
            gone = kinds == {"gone"}
        else:
            doubtful += is_maybe or (command.kind == "run" and not keeps_files(command))
    is_file = bool(source.path) and source.action in ("shows", "writes")
    return Provenance(call, steps, edits, is_file, gone, doubtful)


def _find_change_kinds(changes: Sequence[FileChange], path: str) -> tuple[set[str], bool]:
    """Return the kinds of a call's changes that are those of this file.

    The second value is true if the call may have changed or removed the file, though it is not certain."""
    may = [one for one in changes if one.path not in ("*", ".") and moved_files.matches_path(one.path, path)]
    sure = {one.kind for one in may if one.kind != "gone" or moved_files.removes_path(one, path)}
    return sure, len(may) > 0


def rewrites_files(command: ShellCommand) -> bool:
    """True if a command is a runner that writes files, for example a formatter."""
    direct = runner_patterns.compile_patterns().runner_command
    return command.kind == "run" and any(
        ((direct.match(part) and _REWRITES.search(part)) or _WRITERS.match(part)) and not _CHECKS.search(part)
        for part in command.core.split(" && ")
    )


def keeps_files(command: ShellCommand) -> bool:
    """True if a command only tests, or changes no file of a project."""
    direct = runner_patterns.compile_patterns().runner_command
    return bool(command.core) and all(
        (direct.match(part) or _LEAVES.match(part)) and not (_REWRITES.search(part) or _MAY_WRITE.match(part))
        for part in command.core.split(" && ")
        if not part.startswith("cd ")
    )


@dataclass(frozen=True, slots=True)
class _Subject:
    """The subject of a result."""

    source: ResultSource
    """The source of a result that shows a file; its path is empty for others."""
    text: str
    """The text of a result that shows several files."""
    values: frozenset[str]
    """The identifiers in the arguments of the call."""


def _find_subject(message: Message, call: Call, source: ResultSource) -> _Subject:
    if source.path:
        return _Subject(source, "", frozenset())
    return _Subject(source, message.text, frozenset() if source.by_shell else list_ids(call))


def list_ids(call: Call) -> frozenset[str]:
    """Return the values in a call's arguments that name one object, for example an order or a table.

    A day, a city, an address of mail or a small number is shared by calls that have nothing else in common.
    """
    try:
        value = decode_embedded(call.arguments)
    except (ValueError, RecursionError):
        return frozenset()
    return frozenset(leaf for leaf in identifiers.find_leaves(value) if _ID.fullmatch(leaf) and not _NO_ID.match(leaf))


def _changes_subject(later: Call, subject: _Subject) -> bool:
    """True if a call writes the shown file, one that the text names, or the object with the same identifier."""
    source = refetch.find_source(later)
    if source.action != "writes":
        return False
    if subject.source.path:
        return bool(source.path) and refetch.has_same_file(source, subject.source)
    if source.path:
        return _names(subject.text, source.path) or _names(subject.text, _shorten_path(source.path))
    return not subject.values.isdisjoint(list_ids(later))


def _names(text: str, path: str) -> bool:
    """True if a text names this path: `data.py` does not name `a.py`."""
    return path in text and re.search(rf"(?<![\w.-]){re.escape(path)}(?![\w-])", text) is not None


def _shorten_path(path: str) -> str:
    """Return the last two parts of a path."""
    return "/".join(path.rsplit("/", 2)[-2:])
