"""Files that calls have removed, moved or restored, and files that a patch in a call names.

A removed file must not be reported as created, and a restored file is no longer edited. If a command does not name the
file, no file is reported: a missing entry misleads no reader. An agent that reads of a removed file may write it
again. So a file is called removed only if the command is known to have run, and to have meant that file."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from proxy.chat.message import Call
from proxy.context.analysis import identifiers
from proxy.context.analysis.code_mode import PATCH_BEGIN
from proxy.context.analysis.refetch import find_placed_file, is_of_drive, normalize_path, resolve_path
from proxy.context.analysis.shell_commands import (
    DECIDING,
    MAX_PARSED_CHARS,
    PATH_ARGUMENTS,
    ShellCommand,
    is_trial,
    parse_call,
)

_REMOVES = frozenset(("delete", "remove", "unlink", "rm", "trash"))
_MOVES = frozenset(("move", "rename", "mv"))
_NOUNS = frozenset(("file", "files", "path", "paths", "dir", "directory", "folder", "notebook", "fs", "mcp"))
"""Other words allowed in the name of a tool that removes or moves a whole file. With another word the tool changes
parts of a file."""
_SOURCES = (
    "source", "source_path", "sourcePath", "src", "old_path", "oldPath", "from", "from_path", *PATH_ARGUMENTS,
)  # fmt: skip
_OPERATOR = re.compile(r" (&&|\|\||\|&?) ")
_ONLY_REPORTS = frozenset(("--dry-run", "--check"))
"""Options with which a patch, or a change by git, is only tried."""
_NOT_DONE = frozenset(("-n", "--dry-run", "--no-clobber", "-i", "--interactive"))
"""Options with which nothing, or not everything, is removed or moved: the command only reports or asks."""
_CMDLETS = {
    **dict.fromkeys(("remove-item", "ri", "del", "erase"), "rm"),
    **dict.fromkeys(("move-item", "mi", "move", "rename-item", "rni", "ren"), "mv"),
    **dict.fromkeys(("copy-item", "cpi", "copy"), "cp"),
}
"""Commands of Windows shells, in lower case, and the commands that do the same elsewhere."""
_WRITING_CODE = re.compile(
    r"\bopen\((?:[^)]{0,200}[,=]\s*)?\\?['\"][wax][bt+]{0,2}\\?['\"]|\.write_(?:text|bytes)\(|\bwriteFile|\bWriteAll(?:Text|Lines|Bytes)\("
    r"|\bshutil\.(?:copy\w*|move)\(|\bos\.(?:remove|rename|replace|unlink)\(|\.(?:unlink|rename)\("
    r"|\b(?:appendFile|copyFile|rename|unlink)Sync\("
)
"""Code that writes, copies or removes files, in the arguments of a call."""
_GOES_ON = re.compile(r">>|\.read\(\)|\.read_(?:text|bytes)\(|\breadFile")
"""Text that is appended to a file, or code that reads a file, which was there before then."""
_QUOTED_FILE = re.compile(r"['\"]([\w./~-]{1,200}\.\w{1,8})\\?['\"]")
"""The name of a file in quotes, within a text of JSON or alone."""
_SELECTS = frozenset(("-whatif", "-confirm", "-include", "-exclude", "-filter", "-stream"))
"""Their options with which not everything that is named is removed or moved."""
_SWITCH = re.compile(r"/[a-zA-Z]")
_PROJECT_FILE = re.compile(
    r".*\.(?:pyx?|pyi|[cm]?[jt]sx?|vue|svelte|go|rs|[ch](?:pp|xx|c|h)?|mm?|java|kts?|scala|groovy|gradle|rb|erb|php|[cf]s"
    r"|vb|\w+proj|sln|swift|dart|exs?|erl|hs|mli?|clj|lua|p[lm]|r|jl|zig|nim|sh|bash|ps1|bat|sql|proto|graphql|tf|tfvars"
    r"|hcl|css|s[ac]ss|less|toml|ya?ml|ini|cfg|conf|lock|mod|sum|cmake|mk|bzl|nix|ipynb)"
    r"|(?:.*/)?(?:\w*Makefile|Dockerfile|package\.json|[\w.-]*(?:config|settings)[\w.-]*\.json|requirements[\w-]*\.txt"
    r"|CMakeLists\.txt)",
    re.IGNORECASE,
)
"""The path of a source or a setting of a project: the next test may depend on it."""
_TEMPORARY = re.compile(r"(?:/private)?/(?:var/)?tmp/[^/]+/?\Z|/(?:dev|proc|run)/|~/\.cache/|(?i:[a-z]:/.*/temp/)")
"""A path that is in no project: a file directly in the folder for temporary files, or a device."""
_FOLDERS = re.compile(r"[\w.~-]*/")
_WRITING_WORD = re.compile(
    r"(?<![a-z])(?:gen|generat\w*|codegen|build|bundle|migrat\w*|sync|setup|bootstrap|scaffold|creat\w*|convert"
    r"|transform|(?:auto)?fix\w*|format|fmt|renam\w*|replac\w*|refactor\w*|patch\w*|apply|edit\w*|updat\w*|upgrade"
    r"|(?:re)?writ\w*|bump|modif\w*|chang\w*|inject|insert|remov\w*|delet\w*)(?![a-z])",
    re.IGNORECASE,
)
_TESTING_WORD = re.compile(
    r" -[ce] |heredoc_"
    r"|(?<![a-z])(?:tests?|specs?|check|verif\w*|repro\w*|debug\w*|lint|bench\w*|demo|dry|help|version|status|diff)(?![a-z])",
    re.IGNORECASE,
)
_WRITES_PROJECT = re.compile(
    r"git (?:rm (?!.*--cached)|mv )(?!.*(?:-n|--dry-run)\b)|(?:go mod tidy|go get|cargo (?:add|remove|new|init))\b"
    r"|(?:npx )?(?:prisma generate|sqlc generate|buf generate|protoc |openapi-generator\S* generate|graphql-codegen)"
    r"|(?:\S+ )*manage\.py (?:makemigrations|startapp|makemessages)\b|alembic (?:revision|merge)\b|ex -s"
    r"|(?:bin/)?(?:rails|rake) (?:g|generate|d|destroy)\b|flask db (?:migrate|revision|init)\b|django-admin start"
    r"|dotnet (?:new|add)\b|mix (?:new|phx\.\w+|ecto\.gen\.\w+)\b"
)
"""Commands whose purpose is to write files of a project."""
_NOTHING_CHANGED = re.compile(
    r"Already up[ -]to[ -]date\.?$|Already on '|Current branch \S+ is up to date|No local changes to save"
    r"|Updated 0 paths from "
)
"""A line with which Git says that it has left all files as they were."""
_ELSEWHERE = "~"
"""A directory that the command does not name."""
_WANDERS = re.compile(r"(?:^|[;&|(]\s*)(?:cd|pushd|popd)\b")
_EXPANDED = re.compile(r"[$`'\"]")
_PATCH = re.compile(r"^\*\*\* (Update|Add|Delete) File: (.+)|^\*\*\* (Move) to: (.+)", re.MULTILINE)
MAX_PATH_CHARS = 1024
"""Characters above which a path is no path: macOS takes no longer one, and each comparison costs time."""


class FileChange(NamedTuple):
    kind: str
    """One of edited, created, gone, undone (restored as before its edits), placed (replaced by other content), or
    cleaned (new files are removed)."""
    path: str
    """`*` for any files."""
    certain: bool = True
    """False if a test or `||` in the command decides whether this part of it ran, or if its directory is not known."""


def read_patch_changes(arguments: str) -> list[FileChange]:
    """Return the changes of the files that a patch in the arguments names; empty if there is no patch."""
    if PATCH_BEGIN not in arguments:
        return []
    patch = identifiers.parse_arguments(arguments).get("patch")
    text = patch if isinstance(patch, str) else identifiers.read_argument_texts(arguments)
    found: list[FileChange] = []
    for kind, path, moved, target in _PATCH.findall(text[text.find(PATCH_BEGIN) :]):
        if moved and found:
            found[-1:] = [FileChange("gone", found[-1].path), FileChange("edited", target.strip())]
        elif kind:
            found.append(FileChange({"Update": "edited", "Add": "created"}.get(kind, "gone"), path.strip()))
    return found


def read_tool_changes(words: frozenset[str], arguments: Mapping[str, Any]) -> list[FileChange]:
    """Return the files that a tool removes, moves or restores, by the words of its name."""
    if is_trial(arguments):
        return []
    if "undo" in words:
        return [FileChange("undone", path) for path in _list_arguments(arguments, _SOURCES)[:1]]
    if not words & (_REMOVES | _MOVES) or words - _REMOVES - _MOVES - _NOUNS:
        return []
    return [FileChange("gone", path) for path in _list_arguments(arguments, _SOURCES)[:1]]


def read_shell_changes(core: str, directory: str = "") -> list[FileChange]:
    """Return the files that a shell command removes, moves or restores, as seen from the directory in which the shell
    was. core: see `ShellCommand.core`. directory: where the command begins, empty if unknown."""
    found: list[FileChange] = []
    pieces = _OPERATOR.split(core)
    certain = True
    for n in range(0, len(pieces), 2):
        words = pieces[n].split()
        if words[:1] in (["cd"], ["pushd"], ["popd"]):
            directory = resolve_path(directory, words[-1]) if len(words) > 1 else _ELSEWHERE
            continue
        operator = pieces[n - 1] if n else ""
        found += [
            FileChange(kind, _resolve(directory, path), certain and operator != "||")
            for kind, path, _ in _read_simple_command(words)
        ]
        certain = certain and words[0] not in DECIDING if words else certain
    return found


def _resolve(directory: str, path: str) -> str:
    """Return the path as seen from the directory in which the command began."""
    return path if not directory or path in ("*", ".", "./") else resolve_path(directory, path)


def _read_simple_command(words: Sequence[str]) -> list[FileChange]:
    """Return the files that a command without operators removes, moves or restores."""
    git = words[:1] == ["git"]
    if git:
        words = words[1:]
    elif placed := find_placed_file(words):
        return [FileChange("placed", placed)]
    elif words and words[0].lower() in _CMDLETS:
        if not _SELECTS.isdisjoint(map(str.lower, words)):
            return []
        parts = [part for word in words[1:] if not _SWITCH.fullmatch(word) for part in word.split(",") if part]
        words = [_CMDLETS[words[0].lower()], *parts]
    named = [word for word in words[1:] if not word.startswith("-")]
    match words[:1]:
        case ["rm" | "unlink" | "mv"] if _NOT_DONE & set(words) or any(map(_EXPANDED.search, words)):
            return []
        case ["rm" | "unlink"] if "--cached" not in words:
            return [FileChange("gone", path) for path in named]
        case ["mv"]:
            moved = [FileChange("gone", path) for path in named[:-1]]
            return moved + [FileChange("placed", named[-1])] * (len(named) > 1)
        case ["cp"] if named[1:]:
            return [FileChange("placed", named[-1])]
        case ["patch"] if not _ONLY_REPORTS & set(words):
            return [FileChange("placed", "*")]
        case ["restore"] if git and ("--staged" not in words or {"--worktree", "-W"} & set(words)):
            return [FileChange("undone", path) for path in named]
        case ["checkout"] if git and "-b" not in words and ("--" in words or all(map(_is_path, named))):
            return [FileChange("undone", path) for path in named]
        case ["checkout" | "switch" | "pull" | "merge" | "rebase" | "cherry-pick" | "revert" | "apply" | "am"] if (
            git
            and not _ONLY_REPORTS & set(words)
            and not (
                {"-b", "-c"} & set(words) and len(named) == 1  # a new branch has the same files
            )
        ):
            return [FileChange("placed", "*")]
        case ["clean" | "stash" | "reset"] if git:
            return _read_resets(words, named)
    return []


def read_downloads(core: str) -> list[FileChange]:
    """Return the files that `curl` and `wget` write, if they get what they ask for."""
    parts = [part.split() for part in core.split(" && ") if part.startswith(("curl ", "wget "))]
    return [FileChange("placed", path) for words in parts for path in _find_downloads(words)]


def _find_downloads(words: Sequence[str]) -> list[str]:
    """Return the file that `curl -o` or `wget -O` writes, or the one with the last part of the address as its name."""
    letter, whole = ("o", "--output") if words[0] == "curl" else ("O", "--output-document")
    for word, value in zip(words, [*words[1:], ""], strict=True):
        if word == whole or re.fullmatch(rf"-\w*{letter}", word):
            return [value] if value not in ("", "-") else []
        if word.startswith(f"{whole}="):
            return [word.partition("=")[2]]
    names_itself = words[0] == "wget" or any(re.fullmatch(r"-\w*O|--remote-name", word) for word in words)
    addresses = [word for word in words[1:] if "://" in word]
    return [address.rpartition("/")[2] for address in addresses[:1]] if names_itself else []


def read_written_files(arguments: str) -> list[FileChange]:
    """Return the files that code in the arguments of a call may write: those that it names in quotes."""
    text = identifiers.read_argument_texts(arguments)[:MAX_PARSED_CHARS]
    if _WRITING_CODE.search(text) is None:
        return []
    return [FileChange("placed", path) for path in dict.fromkeys(_QUOTED_FILE.findall(text))]


def is_project_file(path: str) -> bool:
    """True if a path is that of a source or a setting of a project, on which the next test may depend."""
    if len(path) > MAX_PATH_CHARS:
        return False
    return _PROJECT_FILE.fullmatch(path) is not None and _TEMPORARY.match(path) is None


def writes_project(core: str, changes: Sequence[FileChange], arguments: str) -> bool:
    """True if one of these commands is there to write files of a project, or if a file is placed that was there before.

    core: see `ShellCommand.core`. changes: what the call may have placed."""
    if any(map(_WRITES_PROJECT.match, core.split(" && "))):
        return True
    written = [one.path for one in changes if one.kind == "placed" and is_project_file(one.path)]
    # `jq . a.json > b && mv b a.json` reads in front what it writes at its end.
    end = core.rpartition(" ")[2]
    return bool(written) and (_GOES_ON.search(arguments) is not None or (end in written and arguments.count(end) > 1))


def may_write_project(core: str) -> bool:
    """True if the name of a script, a target or a command says that it writes something, and is not that of a test.

    A program that is in the command is read by `read_written_files`."""
    names = _FOLDERS.sub("", core)
    return _WRITING_WORD.search(names) is not None and _TESTING_WORD.search(names) is None


def check_changes(changes: list[FileChange], command: ShellCommand, lines: Sequence[str]) -> list[FileChange]:
    """Return the changes of a command as Git's output has them: none if it says so, and more if it names removed files.

    lines: the output. Of several programs it is not known which one has printed a line."""
    shown = (*lines[:6], *lines[-3:])
    if command.is_single and any(map(_NOTHING_CHANGED.match, shown)):
        return []
    if any(one.kind == "cleaned" for one in changes) and any(line.startswith("Removing ") for line in shown):
        return [*changes, FileChange("placed", "*")]
    return changes


def _read_resets(words: Sequence[str], named: Sequence[str]) -> list[FileChange]:
    """Return the changes of a git command that takes back or brings back all changes of a working tree."""
    options = {word for word in words if word.startswith("-")}
    if words[0] == "clean":
        removes = any(re.match("-[a-z]*f|--force", option) for option in options)
        reports = any(re.match("-[a-z]*n|--dry-run", option) for option in options)
        return [FileChange("cleaned", "*")] if removes and not reports else []
    if words[0] == "reset":
        return [FileChange("undone", "*")] if "--hard" in options else []
    if named[:1] and named[0] in ("pop", "apply"):
        return [FileChange("placed", "*")]
    if named and named[0] not in ("push", "save"):
        return []
    with_new = options & {"-u", "-a", "--include-untracked", "--all"}
    return [FileChange("undone", "*"), *([FileChange("cleaned", "*")] if with_new else [])]


def read_changes(call: Call, command: ShellCommand, *, has_wandered: bool) -> list[FileChange]:
    """Return the files that a call removes, moves, restores, or patches by name.

    has_wandered: an earlier command went to another directory (`changes_directory`), so that it is not certain which
    file a relative path of a shell means.
    """
    if changes := read_patch_changes(call.arguments):
        return changes
    if command.kind == "call":
        return read_tool_changes(identifiers.split_tool_name(call.name), identifiers.parse_arguments(call.arguments))
    found = call.derive(_read_call_changes)
    return (
        [
            one._replace(certain=one.path.startswith("/") or is_of_drive(one.path)) if one.certain else one
            for one in found
        ]
        if has_wandered
        else found
    )


def _read_call_changes(call: Call) -> list[FileChange]:
    """Return the changes of a shell command, as seen from the directory that its call names."""
    directory = read_directory(identifiers.parse_arguments(call.arguments))
    return read_shell_changes(parse_call(call).core, directory)


def changes_directory(command: ShellCommand) -> bool:
    """True if a command goes to another directory: some shells stay there, so that later paths begin there."""
    return command.kind != "call" and _WANDERS.search(command.text) is not None


def removes_path(change: FileChange, path: str) -> bool:
    """True if a change has certainly removed this file: its path is that path, or a folder in which it lies.

    If only one of the paths is absolute, it is not known whether they mean the same file.
    """
    if change.kind != "gone" or not change.certain:
        return False
    one, other = normalize_path(change.path), normalize_path(path)
    if not one or max(len(one), len(other)) > MAX_PATH_CHARS:
        return False
    removed, parts = one.split("/"), other.split("/")
    return len(removed) <= len(parts) and all(map(_matches_part, removed, parts))


def _matches_part(pattern: str, part: str) -> bool:
    """True if a part of a path fits the pattern. What a shell puts in the place of a star begins with no dot."""
    if pattern.startswith("*") and part.startswith("."):
        return False
    return _matches_stars(pattern, part)


def _matches_stars(pattern: str, text: str, start: int = 0) -> bool:
    """True if the text from `start` on fits a pattern with stars, in linear time: a pattern of expressions with several
    stars would try all ways to part the text."""
    first, *middle = pattern.split("*")
    if not middle:
        return text[start:] == first
    last = middle.pop()
    if not text.startswith(first, start):
        return False
    at = start + len(first)
    for piece in middle:
        at = text.find(piece, at)
        if at < 0:
            return False
        at += len(piece)
    return len(text) - len(last) >= at and text.endswith(last)


def matches_path(changed_path: str, path: str) -> bool:
    """True if the path of a change may mean this file.

    The path has the same name with more or fewer folders in front, or it is a folder of the file. Both may be seen from
    other directories.
    """
    if changed_path in ("*", ".", "./"):
        return True
    one, other = normalize_path(changed_path), normalize_path(path)
    if max(len(one), len(other)) > MAX_PATH_CHARS:
        return False
    if "*" in one:
        first = one.partition("*")[0]
        # The first place that fits leaves the most text for what follows.
        starts = (at for at in range(len(other) + 1) if at == 0 or other[at - 1] == "/")
        start = next((at for at in starts if other.startswith(first, at)), None)
        return start is not None and _matches_stars(one, other, start)
    if f"/{other}/".endswith(f"/{one.lstrip('/')}/") or f"/{one}/".endswith(f"/{other.lstrip('/')}/"):
        return True
    if one.startswith("/") == other.startswith("/"):
        return other.startswith(f"{one}/")
    if other.startswith("/"):
        return f"/{one}/" in other
    return any(f"{one}/".endswith(f"/{other[:at]}") for at, char in enumerate(other, 1) if char == "/")


def read_directory(arguments: Mapping[str, Any]) -> str:
    """Return the working directory in the arguments of a call; empty if they name none."""
    found = _list_arguments(
        arguments, ("cwd", "workdir", "working_directory", "workingDirectory", "working_dir", "dir")
    )
    return normalize_path(found[0]) if found else ""


_MOVES_SHELL = re.compile(
    r"\s*(?:cd|chdir|pushd|popd|set-location|push-location|pop-location|sl)\b(?![-.=])\s*([^;&|\n]*)", re.IGNORECASE
)
"""A command that only goes to another directory, and the words after it."""
_TARGET = re.compile(r"(?:(?:--|/d|-path|-literalpath)\s+)?(['\"]?)(?!-)([^\s'\"$`%*]+)\1\s*", re.IGNORECASE)


def follow_cd(text: str, current_directory: str) -> str:
    """Return the directory of a shell after a command that ran in `current_directory`: a new one if the command only
    goes there, empty if it does not say where."""
    moves = _MOVES_SHELL.fullmatch(text)
    if moves is None:
        return current_directory
    found = _TARGET.fullmatch(moves[1])
    return "" if found is None else resolve_path(current_directory, found[2])


def _list_arguments(arguments: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    return [value for name in names if isinstance(value := arguments.get(name), str) and value]


def _is_path(word: str) -> bool:
    return word == "." or "." in word.rpartition("/")[2]
