"""Files that calls have removed, moved or restored, and files that a patch in a call names.

A removed file must not be reported as created, and a restored file is no longer edited. If a command does not name the
file, no file is reported: a missing entry misleads no reader."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from proxy.chat.message import Call
from proxy.context.analysis import identifiers
from proxy.context.analysis.refetch import normalize_path, resolve_path
from proxy.context.analysis.shell_commands import PATH_ARGUMENTS, ShellCommand

_REMOVES = frozenset(("delete", "remove", "unlink", "rm", "trash"))
_MOVES = frozenset(("move", "rename", "mv"))
_NOUNS = frozenset(("file", "files", "path", "paths", "dir", "directory", "folder", "notebook", "fs", "mcp"))
"""Other words allowed in the name of a tool that removes or moves a whole file. With another word the tool changes
parts of a file."""
_SOURCES = (
    "source", "source_path", "sourcePath", "src", "old_path", "oldPath", "from", "from_path", *PATH_ARGUMENTS,
)  # fmt: skip
_JOINED = re.compile(r" (?:&&|\|\||\|&?) ")
_PATCH = re.compile(r"^\*\*\* (Update|Add|Delete) File: (.+)|^\*\*\* (Move) to: (.+)", re.MULTILINE)
_BEGIN = "*** Begin Patch"


class FileChange(NamedTuple):
    """A change of a file."""

    kind: str
    """One of edited, created, gone, undone (restored as before its edits), placed (replaced by other content), or
    cleaned (new files are removed)."""
    path: str
    """`*` for any files."""


def read_patch_changes(arguments: str) -> list[FileChange]:
    """Return the changes of the files that a patch in the arguments names; empty if there is no patch."""
    if _BEGIN not in arguments:
        return []
    text = identifiers.read_argument_texts(arguments)
    found: list[FileChange] = []
    for kind, path, moved, target in _PATCH.findall(text[text.find(_BEGIN) :]):
        if moved and found:
            found[-1:] = [FileChange("gone", found[-1].path), FileChange("edited", target.strip())]
        elif kind:
            found.append(FileChange({"Update": "edited", "Add": "created"}.get(kind, "gone"), path.strip()))
    return found


def read_tool_changes(words: set[str], arguments: Mapping[str, Any]) -> list[FileChange]:
    """Return the files that a tool removes, moves or restores, by the words of its name."""
    if "undo" in words:
        return [FileChange("undone", path) for path in _list_arguments(arguments, _SOURCES)[:1]]
    if not words & (_REMOVES | _MOVES) or words - _REMOVES - _MOVES - _NOUNS:
        return []
    return [FileChange("gone", path) for path in _list_arguments(arguments, _SOURCES)[:1]]


def read_shell_changes(core: str) -> list[FileChange]:
    """Return the files that a shell command removes, moves or restores; core: see `Command.core`."""
    found: list[FileChange] = []
    for part in _JOINED.split(core):
        words = part.split()
        git = words[:1] == ["git"]
        if git:
            words = words[1:]
        named = [word for word in words[1:] if not word.startswith("-")]
        match words[:1]:
            case ["rm" | "unlink"] if "--cached" not in words:
                found += [FileChange("gone", path) for path in named]
            case ["mv"]:
                found += [FileChange("gone", path) for path in named[:-1]] + [FileChange("placed", named[-1])] * (
                    len(named) > 1
                )
            case ["cp"] if named[1:]:
                found.append(FileChange("placed", named[-1]))
            case ["patch"]:
                found.append(FileChange("placed", "*"))
            case ["restore"] if git and ("--staged" not in words or {"--worktree", "-W"} & set(words)):
                found += [FileChange("undone", path) for path in named]
            case ["checkout"] if git and "-b" not in words and ("--" in words or all(map(_is_path, named))):
                found += [FileChange("undone", path) for path in named]
            case ["checkout" | "switch" | "pull" | "merge" | "rebase" | "cherry-pick" | "revert" | "apply" | "am"] if (
                git
                and not (
                    {"-b", "-c"} & set(words) and len(named) == 1  # a new branch has the same files
                )
            ):
                found.append(FileChange("placed", "*"))
            case ["clean" | "stash" | "reset"] if git:
                found += _read_resets(words, named)
    return found


def _read_resets(words: Sequence[str], named: Sequence[str]) -> list[FileChange]:
    """Return the changes of a git command that takes back or brings back all changes of a working tree."""
    options = {word for word in words if word.startswith("-")}
    if words[0] == "clean":
        return [FileChange("cleaned", "*")] if any("f" in option for option in options) else []
    if words[0] == "reset":
        return [FileChange("undone", "*")] if "--hard" in options else []
    if named[:1] and named[0] in ("pop", "apply"):
        return [FileChange("placed", "*")]
    if named and named[0] not in ("push", "save"):
        return []
    with_new = options & {"-u", "-a", "--include-untracked", "--all"}
    return [FileChange("undone", "*"), *([FileChange("cleaned", "*")] if with_new else [])]


def read_changes(call: Call, command: ShellCommand) -> list[FileChange]:
    """Return the files that a call removes, moves, restores, or patches by name."""
    if changes := read_patch_changes(call.arguments):
        return changes
    if command.kind == "call":
        return read_tool_changes(identifiers.split_tool_name(call.name), identifiers.parse_arguments(call.arguments))
    return read_shell_changes(command.core)


def matches_path(changed_path: str, path: str) -> bool:
    """True if the path of a change may mean this file.

    The path has the same name with more or fewer folders in front, or it is a folder of the file.
    """
    if changed_path in ("*", ".", "./"):
        return True
    one, other = normalize_path(changed_path), normalize_path(path)
    if "*" in one:
        return re.search("(?:^|/)" + ".*".join(map(re.escape, one.split("*"))) + "$", other) is not None
    return (
        f"/{other}/".endswith(f"/{one.lstrip('/')}/")
        or f"/{one}/".endswith(f"/{other.lstrip('/')}/")
        or (f"/{one.strip('/')}/" in f"/{other}")
    )


def read_directory(arguments: Mapping[str, Any]) -> str:
    """Return the working directory in the arguments of a call; empty if they name none."""
    found = _list_arguments(
        arguments, ("cwd", "workdir", "working_directory", "workingDirectory", "working_dir", "dir")
    )
    return normalize_path(found[0]) if found else ""


_CD = re.compile(r"\s*cd\s+(?:--\s+)?(['\"]?)([^\s;&|'\"$`]+)\1\s*")


def follow_cd(text: str, current_directory: str) -> str:
    """Return the directory of a shell after a command that ran in `where`: a new one if the command is only a `cd`."""
    found = _CD.fullmatch(text)
    return current_directory if found is None else resolve_path(current_directory, found[2])


def _list_arguments(arguments: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    return [value for name in names if isinstance(value := arguments.get(name), str) and value]


def _is_path(word: str) -> bool:
    return word == "." or "." in word.rpartition("/")[2]
