"""Refetches: calls whose result was in the conversation before.

A repeated call, a second read of a file and a recall show one of two things. Something left the prompt too early, or
the agent does not trust a reference. `find_source` finds the source of a call's result; `find_refetches` pairs each
result with the newest earlier result of the same source.

Precision is preferred to recall. A command that does more than look is never a look-up. Nor is a tool whose name says
that it changes something or waits.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Literal

import msgspec

from proxy.chat.chain import canonicalize_arguments, public_id
from proxy.chat.message import Call, Message, checkpoint
from proxy.context.analysis import identifiers, lexicon
from proxy.context.analysis.shell_commands import (
    PATH_ARGUMENTS,
    SHELL_WORDS,
    is_trial,
    read_inner_command,
    replace_quoted,
)
from proxy.context.analysis.showing_commands import READING_CMDLET
from proxy.context.view import View

RefetchKind = Literal["repeat", "reread", "recall", "excerpt"]
"""repeat: the same call with equal arguments. reread: the same file by another call. recall: a message by its id.
excerpt: text of an earlier result by another call (`page_faults` finds these)."""

SourceAction = Literal["shows", "writes", "looks", "runs", "recalls", "other"]
"""shows: the text of one file. writes: a file, or anything by a tool with such a name. looks: a search or listing, or a
command that changes nothing. runs: any other command. recalls: the proxy's own look-up. other: any other tool."""

_SHOWS = frozenset(("read", "view", "open", "cat", "show", "file"))
_LOOKS = frozenset(("grep", "rg", "search", "glob", "find", "list", "ls", "get", "lookup", "query", "fetch"))
_WRITES = frozenset((*lexicon.WRITE_WORDS, "str", "notebook"))
_POLLS = frozenset(lexicon.POLL_WORDS) - {"output", "key", "keys", "job", "next", "stdin"}
_RUNS = frozenset(("test", "tests", "build", "lint", "compile", "make", "execute"))
_FILE_VIEWERS = frozenset(("cat", "head", "tail", "nl", "less", "more", "bat", "sed", "get-content", "gc", "type"))
"""Commands that show the text of a file, or a part of it."""
_WHOLE_FILE_VIEWERS = frozenset(("cat", "get-content", "gc", "type"))
"""Commands that show the whole of a file."""
_LOOK_COMMANDS = _FILE_VIEWERS | frozenset((
    "grep", "egrep", "rg", "ag", "find", "ls", "tree", "wc", "file", "stat", "awk", "cut", "sort", "uniq", "tr", "jq",
    "diff", "cmp", "echo", "printf", "pwd", "which", "strings", "column", "basename", "dirname", "cd", "true",
))  # fmt: skip
_POWERSHELL_LOOK_WORDS = frozenset(("foreach-object", "gc", "%", "?"))
"""Words of PowerShell that change nothing and that `READING_CMDLET` does not match: a loop, and short names."""
_GIT_LOOK_COMMANDS = frozenset(("show", "log", "diff", "status", "blame", "grep", "ls-files", "rev-parse"))
_HARMLESS = re.compile(r"\d?>&\d|\d?>\s*/dev/null")
_CD = re.compile(r"\s*cd\s+(?P<place>[^\s;&|]+)\s*(?:&&|;)\s*")
_INTO = re.compile(r"(?:^|[^\d&<>=-])>>?\s*([^\s;&|<>()]+)|\btee\s+(?:-a\s+)?([^\s;&|<>()-][^\s;&|<>()]*)")
_EDITOR = re.compile(r"\b(?:sed|perl)\s")
_IN_PLACE = re.compile(r"-\w*i\b")
_WORD = re.compile(r"[\w./~-]+")
_LINE_END = re.compile(r"[^\S\n]*(?:\n|$)")
_COMMANDS = re.compile(r"[;&|]")
_PARTS = re.compile(r"&&|\|\||[;|\n]")
_WRITING_CMDLETS = frozenset(
    ("set-content", "add-content", "clear-content", "out-file", "tee-object", "new-item", "sc", "ac", "ni")
)
"""Commands of PowerShell that write a file, in lower case."""
MAX_SEARCHED_CHARS = 200_000
"""Characters of a command, without its quoted texts and here-documents, above which it is not read: each search in it
holds every other request."""
_PATH_OPTIONS = frozenset(("-path", "-literalpath", "-filepath"))
_PLACES = re.compile(
    rf"(?:^|[;|&({{])\s*((?:{'|'.join(sorted(_WRITING_CMDLETS - {'new-item', 'ni'}))})\s[^;|&)}}\n]*)", re.IGNORECASE
)
_SCRIPT_BLOCK = re.compile(r"(foreach-object|where-object|select-object|[%?])\s*\{[^{}]*\}", re.IGNORECASE)
"""A block that PowerShell runs for each line of the output before it."""
_HERE_STRING = re.compile(r"@(['\"])[ \t]*\r?\n")
"""The beginning of a text of PowerShell with several lines."""
_QUOTED_NAME = re.compile(r"(['\"])[\w./\\:~+-]{1,300}\.\w{1,8}\1")
_ASSIGNS = re.compile(r"\$\w+\s*=\s*\S+")
MAX_NOTE_CHARS = 500
"""Characters above which a result is no note of a client."""
_UNCHANGED = re.compile(
    r"\b(?:file|content|contents)\b[^\n]{0,200}?\b(?:unchanged|not (?:been )?(?:changed|modified)|no changes?)\b"
    r"[^\n]{0,40}?\bsince\b[^\n]{0,40}?\b(?:read|view)",
    re.IGNORECASE,
)
"""Words of Claude Code and nanobot, for example `File unchanged since last read`."""


@dataclass(frozen=True, slots=True)
class ResultSource:
    """The source of a call's result."""

    action: SourceAction
    path: str
    """The path of the file that the call shows or writes, "" if none is known. For a recall: the id."""
    canonical_call: str
    """The tool's name and its arguments in canonical form, equal for equal calls."""
    by_shell: bool = False
    """A shell command does it."""


class Refetch(msgspec.Struct, frozen=True):
    """A result that was fetched again."""

    kind: RefetchKind
    index: int
    """The index of the new result."""
    earlier_index: int
    """The index of the newest earlier result of the same source."""
    steps: int
    """Requests between the two."""
    edits: int
    """Calls between the two that write the same file, so that its text may differ."""


@dataclass(slots=True)
class _Known:
    """The results so far."""

    by_call: dict[str, int]
    """The newest results by their call."""
    by_file: dict[str, list[tuple[int, ResultSource]]]
    """The calls on files, by the last part of the path."""
    by_id: dict[str, int]
    """The results by public id."""
    found: dict[int, Refetch]
    """The refetches, by the index of the new result."""
    sources: dict[int, ResultSource]
    """The source of each result, by its index."""
    confirmed: dict[int, int]
    """The newest note that a result still holds (`is_unchanged_note`), by the index of the result."""

    def copy(self) -> _Known:
        by_file = {name: [*held] for name, held in self.by_file.items()}
        return _Known({**self.by_call}, by_file, {**self.by_id}, {**self.found}, {**self.sources}, {**self.confirmed})


def find_refetches(view: View) -> Mapping[int, Refetch]:
    """Return the refetches of the whole conversation, by the index of the new result."""
    return _pair_refetches(view).found


def find_sources(view: View) -> Mapping[int, ResultSource]:
    """Return the source of each result of a call, by the index of the result."""
    return _pair_refetches(view).sources


def find_file_uses(view: View) -> Mapping[str, Sequence[tuple[int, ResultSource]]]:
    """Return (index, source) of each result of a call on a file, by the last part of its path, in order."""
    return _pair_refetches(view).by_file


def find_confirmed(view: View) -> Mapping[int, int]:
    """Return the newest note of a client that a result still holds, by the index of that result. The client answers so
    where the same call comes again and the file has not changed, since it takes the result to be in the prompt."""
    return _pair_refetches(view).confirmed


def is_unchanged_note(source: ResultSource, message: Message) -> bool:
    """True if a result only says that a file is as it was when it was last read. source: that of the result. The output
    of a command is no note of a client, nor is a text with line numbers: such words are in the file then."""
    text = message.text
    if source.action != "shows" or source.by_shell or len(text) > MAX_NOTE_CHARS or not _UNCHANGED.search(text):
        return False
    first = text.lstrip().partition("\n")[0]
    return identifiers.strip_line_number(first) == first.strip()


def _pair_refetches(view: View) -> _Known:
    def extend(begin: int, known: _Known | None) -> _Known:
        found = known.copy() if known else _Known({}, {}, {}, {}, {}, {})
        for n, call in pair_results(view.messages, begin):
            found.sources[n] = find_source(call)
            _add_result(found, view, n, found.sources[n])
        return found

    return view.memo("refetch", extend)


def pair_results(messages: Sequence[Message], begin: int = 0) -> Iterator[tuple[int, Call]]:
    """Yield (index, its call) of each tool result from `begin` on. Call ids are reused within runs: a result belongs to
    the nearest message with calls before it. `begin` may be after the end, where an operator has removed messages
    since they were counted."""
    at = min(begin, len(messages)) - 1
    while at > 0 and not messages[at].calls:
        at -= 1
    calls: dict[str, Call] = {}
    for n in range(max(0, at), len(messages)):
        message = messages[n]
        if message.calls:
            calls = {call.id: call for call in message.calls}
        elif n >= begin and message.is_result and message.call_id in calls:
            yield n, calls[message.call_id]


def _add_result(known: _Known, view: View, n: int, source: ResultSource) -> None:
    """Store a result and, if it was fetched again, its refetch."""
    kind, of = _find_earlier(known, source)
    if kind is not None and of is not None:
        steps = view.request_counts[n] - view.request_counts[of]
        known.found[n] = Refetch(kind, n, of, steps, _count_edits(known, source, of))
    if source.action != "recalls":
        known.by_id[public_id(view.keys[n])] = n
    if is_unchanged_note(source, view.messages[n]):
        if kind == "repeat" and of is not None:
            known.confirmed[of] = n
        return  # it shows nothing: the earlier result is still the newest sight of the file
    if source.action in ("shows", "looks", "other"):
        known.by_call[source.canonical_call] = n
    if source.path and source.action in ("shows", "writes"):
        known.by_file.setdefault(_find_base_name(source.path), []).append((n, source))


def _find_earlier(known: _Known, source: ResultSource) -> tuple[RefetchKind | None, int | None]:
    if source.action == "recalls":
        return "recall", known.by_id.get(source.path)
    if source.action not in ("shows", "looks", "other"):
        return None, None
    same = known.by_call.get(source.canonical_call)
    if source.action != "shows" or not source.path:
        return ("repeat", same) if same is not None else (None, None)
    seen = next((n for n, action in _list_newest_uses(known, source) if action == "shows"), None)
    if seen is None:
        return None, None
    return ("repeat", same) if same is not None else ("reread", seen)


def _count_edits(known: _Known, source: ResultSource, since: int) -> int:
    if not source.path:
        return 0
    uses = takewhile(lambda use: use[0] > since, _list_newest_uses(known, source))
    return sum(action == "writes" for _, action in uses)


def _list_newest_uses(known: _Known, source: ResultSource) -> Iterator[tuple[int, SourceAction]]:
    """The results that show or write the file of a source, the newest first."""
    for n, other in reversed(known.by_file.get(_find_base_name(source.path), ())):
        if has_same_file(other, source):
            yield n, other.action


def has_same_file(first: ResultSource, second: ResultSource) -> bool:
    """True if two sources mean the same file, as `is_same_file`.

    Relative paths that are given to tools begin at the same folder. Those of a shell begin at any.
    """
    if first.by_shell or second.by_shell or first.path.startswith("/") or second.path.startswith("/"):
        return is_same_file(first.path, second.path)
    return first.path == second.path


def is_same_file(first: str, second: str) -> bool:
    """True if the paths are equal, or if one is relative and the end of the other."""
    if first == second:
        return True
    short, long = sorted((first, second), key=len)
    return not short.startswith("/") and long.endswith("/" + short)


def find_source(call: Call) -> ResultSource:
    """Return the source of a call's result, by the tool's name, its arguments and, for a shell, the command."""
    return call.derive(_find_source)


def _find_source(call: Call) -> ResultSource:
    name, arguments = _unwrap_call(call.name, identifiers.parse_arguments(call.arguments))
    whole = f"{call.name} {canonicalize_arguments(call.arguments)}"
    words = identifiers.split_tool_name(name)
    if name == "recall" and isinstance(arguments.get("id"), str):
        return ResultSource("recalls", arguments["id"].strip(), whole)
    command = read_inner_command(arguments) or _find_first_text(arguments, ("code",)) if words & SHELL_WORDS else ""
    if command:
        action, path = _read_command_source(command)
        return ResultSource(action, path, whole, by_shell=True)
    path = normalize_path(_find_first_text(arguments, PATH_ARGUMENTS))
    if is_trial(arguments):
        return ResultSource("other", "", whole)
    if words & _WRITES and "stdin" not in words:  # text for a running command changes no file by itself
        return ResultSource("writes", path, whole)
    if words & (_RUNS | SHELL_WORDS):
        return ResultSource("runs", "", whole)
    if words & _POLLS:
        return ResultSource("runs", "", whole)
    if path and words & _SHOWS and not words & _LOOKS - {"get", "fetch"}:
        return ResultSource("shows", path, whole)
    return ResultSource("looks" if words & _LOOKS else "other", "", whole)


def _find_edited_file(plain: str) -> str:
    """Return the file that `sed -i` or `perl -i` changes, the last word of its line; "" if there is none. One pattern
    for all of it would take cubic time."""
    for command in _COMMANDS.split(plain):
        editor = _EDITOR.search(command)
        option = _IN_PLACE.search(command, editor.end()) if editor is not None else None
        if option is not None:
            words = _WORD.finditer(command, option.end())
            found = next((word[0] for word in words if _LINE_END.match(command, word.end())), "")
            if found:
                return found
    return ""


def _read_command_source(command: str) -> tuple[SourceAction, str]:
    """Return (the action of a shell command, the file that it shows or writes)."""
    command = command.strip()
    places: list[str] = []
    start = 0
    while found := _CD.match(command, start):
        if found["place"].startswith(("/", "~")):
            places.clear()
        places.append(found["place"])
        start = found.end()
    place, command = "/".join(places), command[start:]
    head = command.partition("<<")[0].partition("\n")[0] if "<<" in command else command
    plain = replace_quoted(_mask_here_strings(head), _mask_quotes)
    if len(plain) > MAX_SEARCHED_CHARS:
        return "runs", ""
    plain = _HARMLESS.sub(" ", plain)
    checkpoint()
    into = _INTO.search(plain)
    changed = next(group for group in into.groups() if group) if into else _find_edited_file(plain)
    placed = None if changed else _PLACES.search(plain)
    changed = changed or (find_placed_file(placed[1].split()) if placed is not None else "")
    if changed:
        return "writes", resolve_path(place, changed)
    if "<<" in command or "$(" in command or "`" in plain:
        return "runs", ""
    checkpoint()
    lines = _SCRIPT_BLOCK.sub(r"\1", plain) if "{" in plain else plain
    parts = [part.split() for part in _PARTS.split(lines) if part.strip() and not _ASSIGNS.fullmatch(part.strip())]
    checkpoint()
    if not parts or not all(map(_is_look, parts)):
        return "runs", ""
    first = parts[0]
    if first[0].lower() in _FILE_VIEWERS:
        files = [word for word in first[1:] if not word.startswith("-") and word != "Q" and not word.isdigit()]
        files = [word for word in files if "." in word or "/" in word]
        if len(files) == 1 and not any(part[0].lower() in _WHOLE_FILE_VIEWERS for part in parts[1:]):
            return "shows", resolve_path(place, files[0])
    return "looks", ""


def find_placed_file(words: Sequence[str]) -> str:
    """Return the file that a cmdlet of PowerShell writes; "" if it is another command or names none."""
    if not words or words[0].lower() not in _WRITING_CMDLETS:
        return ""
    at = next((n for n, word in enumerate(words, 1) if word.lower() in _PATH_OPTIONS), 1)
    return next((word for word in words[at : at + 1] if not word.startswith("-")), "")


def _mask_here_strings(text: str) -> str:
    """Replace each text of several lines in a command of PowerShell."""
    parts, at = [], 0
    while (found := _HERE_STRING.search(text, at)) is not None:
        end = text.find(f"\n{found[1]}@", found.end() - 1)
        if end < 0:
            break
        parts += [text[at : found.start()], " Q "]
        at = end + 3
    return "".join([*parts, text[at:]])


def _mask_quotes(found: re.Match[str]) -> str:
    """Return the name of a file without its quotes, and Q for any other quoted text."""
    return f" {found[0][1:-1]} " if _QUOTED_NAME.fullmatch(found[0]) else " Q "


def _is_look(words: Sequence[str]) -> bool:
    """True if a simple command only looks, and always at the same thing. `showing_commands.is_showing` knows more
    commands: for an exit code it does not matter that `date` or `tee` has another output, or an effect, each time."""
    if words[0] == "git":
        named = [word for word in words[1:] if not word.startswith("-") and word != "Q"]
        return bool(named) and named[0] in _GIT_LOOK_COMMANDS
    if READING_CMDLET.fullmatch(words[0].lower()) or words[0].lower() in _POWERSHELL_LOOK_WORDS:
        return True
    return words[0] in _LOOK_COMMANDS and not (words[0] == "find" and {"-delete", "-exec", "-execdir"} & set(words))


def resolve_path(directory: str, path: str) -> str:
    """Return the path as seen from a directory; directory: that directory, empty if it is not known."""
    return normalize_path(_join_path(directory, path.strip("'\"")))


def _join_path(place: str, path: str) -> str:
    return path if not place or path.startswith(("/", "~")) or is_of_drive(path) else f"{place}/{path}"


def is_of_drive(path: str) -> bool:
    """True if a path of Windows begins with a drive, so that it is the same in each directory."""
    return path[1:3] in (":/", ":\\") and path[0].isalpha()


def normalize_path(path: str) -> str:
    """Return the path without empty parts and dots; a double dot removes the part before it. A path of Windows gets
    slashes, and a small letter for its drive."""
    path = path.replace("\\", "/") if "\\" in path and "/" not in path else path
    path = path[:1].lower() + path[1:] if path[1:3] == ":/" else path
    parts: list[str] = []
    for part in path.split("/"):
        if part == ".." and parts and parts[-1] != "..":
            parts.pop()
        elif part not in ("", "."):
            parts.append(part)
    return ("/" if path.startswith("/") else "") + "/".join(parts)


def _find_base_name(path: str) -> str:
    return path.rpartition("/")[2]


def _unwrap_call(name: str, arguments: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Return (name, arguments) of the inner tool, if the call is one of a tool for calling tools."""
    inner = _find_first_text(arguments, ("tool_name", "tool"))
    given = next((arguments[k] for k in ("params", "arguments", "input") if isinstance(arguments.get(k), dict)), None)
    return (inner, given) if inner and given is not None else (name, arguments)


def _find_first_text(arguments: Mapping[str, Any], names: Sequence[str]) -> str:
    return next((arguments[n] for n in names if isinstance(arguments.get(n), str) and arguments[n]), "")
