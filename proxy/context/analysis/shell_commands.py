"""Parser of shell commands: it finds out for which parts of a command an exit code is evidence.

The exit code of `pytest | tail` is that of `tail`, and the text that `cat build.log` shows is no run of the agent's. A
command is split at the shell's operators; quoted text and here-documents are not split. Nothing is executed. In doubt
the code proves nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import compress
from typing import Any, Literal, NamedTuple

from proxy.chat.message import Call, Message, checkpoint
from proxy.context.analysis import identifiers
from proxy.context.analysis.showing_commands import (
    ASKED_MARK,
    COMMAND_PREFIXES,
    EXEC_OPTIONS,
    REMOTE_CLIENTS,
    SHELLS,
    SHOWN_MARK,
    STATE_COMMANDS,
    TEXT_COMMANDS,
    is_showing,
    skip_options,
)

CommandKind = Literal["run", "look", "call"]
"""run: a command or tool that does something. look: a command that only shows files, searches or prints. call: any
other tool; the conventions of runners do not apply to its result."""

COMMAND_ARGUMENTS = ("command", "cmd", "script")
"""Names of arguments that hold a shell command."""
FILE_COMMANDS = frozenset((
    "view", "read", "create", "write", "str_replace", "insert", "edit", "undo_edit",
))  # fmt: skip
"""Values of the argument `command` of file tools, for example `str_replace_editor`."""
PATH_ARGUMENTS = (
    "file_path", "filePath", "path", "filename", "file_name", "fileName", "file", "notebook_path", "notebookPath",
    "target_file", "targetFile", "TargetFile", "filepath", "absolute_path", "absolutePath", "AbsolutePath",
    "relative_path", "relativePath", "pathInProject",
)  # fmt: skip
"""Names of arguments that hold a file's path, as the tools of the usual agents and MCP servers have them."""
_HOLDERS = ("params", "arguments", "input")
DRY_RUN = ("dry_run", "dryRun", "dry-run", "preview", "validate_only", "validateOnly")
"""Members of arguments and of results with which a call only tries a change."""
SHELL_WORDS = frozenset(
    ("bash", "sh", "shell", "zsh", "powershell", "terminal", "console", "command", "cmd", "exec", "run", "stdin")
)
"""Words in the names of tools that run a command."""
_RUNNING = SHELL_WORDS | {"process", "test", "tests", "build", "lint", "compile", "make", "python"}
"""Words in the names of tools that run commands or programs."""
_EXECUTES = frozenset(("execute", "eval", "evaluate"))
_CODE = frozenset(("code", "cell", "cells", "notebook", "jupyter", "ipython"))
"""With one of these words and one of `_EXECUTES` in its name, a tool runs a program."""
_QUERYING = frozenset(("sql", "query", "queries", "promql", "graphql", "sparql", "cypher"))
"""Words in the names of tools that run queries: they return data, not the output of a program."""
EDITING_WORDS = frozenset(
    ("edit", "write", "create", "insert", "replace", "str", "patch", "update", "apply", "delete", "move")
)
"""Words in the names of tools that make changes."""
_FAILS = re.compile(r"-\w*f|--fail(?:-with-body)?$")
"""Options with which the exit code of `curl` says that the server refused. Without them it is 0 for each answer."""
_SEARCHES = frozenset((
    "grep", "egrep", "fgrep", "zgrep", "rg", "ag", "ack", "diff", "cmp", "test", "[", "[[", "which", "type",
    "pgrep", "git-look",
))  # fmt: skip
"""Commands whose exit code 1 means that nothing was found or that two things differ."""
NOTHING_FOUND = (1, 123)
"""Exit codes with which such a command says so. `xargs` ends with 123 for each other code of its command below 126."""
_ANSWER_CODES = tuple(
    (re.compile(pattern, re.IGNORECASE), codes)
    for pattern, codes in (
        (r"(?:findstr|fc|ugrep|sls|select-string|lsof|fuser|pidof|pkill|hash|getent|crontab -l)\b", NOTHING_FOUND),
        (r"(?:kubectl diff|rpm -q|dpkg -[sl]|(?:npm|pnpm|yarn) outdated|git stash show)\b", NOTHING_FOUND),
        (r"jq .*(?:-\w*e\b|--exit-status)|nc .*-\w*z|(?:\S+ )*pip3? show|find .*-exec(?:dir)? \w*grep", NOTHING_FOUND),
        (r"robocopy\b", tuple(range(1, 8))),
        (r"terraform plan .*-detailed-exitcode", (2,)),
        (r"(?:dnf|yum) .*check-update", (100,)),
        (r"systemctl (?:\S+ )*is-(?:active|enabled|failed)", (1, 3, 4)),
        (r"systemctl (?:\S+ )*status", (3,)),
    )
)  # fmt: skip
"""Patterns of other commands that answer by an exit code above 0: nothing was found, there are differences, or files
were copied. Such a code is no failure."""
_EXEC_END = " \\_ "
"""A word in place of the escaped semicolon that ends the command of `find -exec`: it separates no commands."""
DECIDING = _SEARCHES - {"git-look"} | {"true", "false"}
"""Commands that are run for their exit code: it decides whether the next part of a chain runs."""
_REMOVING = frozenset(("rm", "mv", "unlink", "git"))
_VALUED_OF_PREFIXES = re.compile(r"-[CDILPadgksu]|--(?:kill-after|signal|unset|chdir|user|group|adjustment)")
"""Options of these that have a value in the next word."""
_WORDLESS = frozenset((
    "for", "done", "fi", "esac", "case", "in", "{", "}", "(", ")", "EOF",
))  # fmt: skip

_CARRIES = re.compile(
    r"(?:^|[\s(/])(?:ssh|(?:ba|z|da)?sh|docker(?:-compose)?|podman|kubectl|oc|su|eval|(?:pwsh|powershell|cmd)(?:\.exe)?)\s"
)
"""A program that has a command run by another shell, machine or container."""
_SHELL_INPUT = re.compile(r"(?:^|[\s(/])(?:ssh|(?:ba|z|da)?sh)\s")
"""A program that runs the commands in its input."""
_NOT_CARRIED_OVER = ";&|\n'\"`"
"""Characters that do not stand between such a program and its quoted command."""
MAX_CARRIER_CHARS = 300
"""Characters before a quoted text that are searched for `_CARRIES`."""
_SHELL_START = re.compile(
    r"\s*(?:\S{0,200}[\\/])?(?:(?:ba|z|da)?sh|(?:pwsh|powershell|cmd)(?:\.exe)?)"
    r"(?:\s+(?:-(?!\w*c\b|command\b)[\w-]+|bypass|unrestricted|remotesigned))*\s+(?:-\w*c|-command|/c)\s+",
    re.IGNORECASE,
)
"""A shell that is given its command in the next word."""
_HERE_STRING = re.compile(
    r"\s*@(['\"])[ \t]*\r?\n(?P<command>.*?)\r?\n\1@\s*\|\s*(?:\S{0,200}[\\/])?(?:pwsh|powershell)(?:\.exe)?\b"
    r"[^|;&\n]*\Z",
    re.DOTALL | re.IGNORECASE,
)
"""A text of PowerShell that another PowerShell runs."""
_CARRIED_RUN = re.compile(r"(?<!\S)(?P<unproven>unproven_)?(?P<cut>cut_)?(?P<several>several_)?run_")
"""The beginning of the word for a carried command that runs something: its exit code does not cover each command in it,
its output is cut, it runs several programs."""

_HEREDOC = re.compile(r"<<-?[ \t]*(['\"]?)(\w++)\1([^\n]*+)\n(.*?)(?:^[ \t]*\2[ \t]*$|\Z)", re.DOTALL | re.MULTILINE)
_QUOTED = re.compile(r"'[^']*'|\"(?:\\.|[^\"\\])*(?P<end>\"?)", re.DOTALL)
_SINGLE_QUOTED = re.compile(r"'[^']*'")
_REDIRECT = re.compile(r"\d?>&\d|&?\d?>>?[ \t]*[^\s;|&]+")
_WRITTEN = re.compile(r"(?:>|\btee(?: -\w+)*)[ \t]*([^\s;|&<>]+)")
"""A file into which a command writes an output."""
_COMMENT = re.compile(r"(?:^|(?<=[\s;]))#[^\n]*")
_PIPES = ("|", "|&")
_DOCUMENT = "heredoc_"
"""Prefix of the word that replaces a here-document; a hash of its text follows."""
_SPLIT = re.compile(r"(&&|\|\||\|&|[;|\n&])")
_ASSIGNED = re.compile(r"\w+=\S*")
_STRICT = re.compile(r"\bset\s+(?:-\w+\s+)*-\w*e|\bset\s+-o\s+errexit")
_LENIENT = re.compile(r"\bset\s+(?:-\w+\s+)*\+\w*e|\bset\s+\+o\s+errexit")
_PIPEFAIL = re.compile(r"\bpipefail\b")
_BRANCHES = re.compile(r"(?:^|[;\n&|])[^\S\n]*(?:(?:for|while|until|if|case)|!)\s|&\s*\Z(?<!&&)|\$\(|`")
"""Loops, branches, background jobs and substitutions: the exit code does not cover each command in them. After `!` it
is 0 if the command failed."""
_ECHOED_CODE = re.compile(r"\becho [\"']?\$\?[\"']?\s*\Z")
MAX_STORED_CHARS = 200
"""Maximum number of characters of a command that are stored."""
MAX_PARSED_CHARS = 20_000
"""Maximum number of characters of a command that is parsed. The exit code of a longer one proves nothing."""
MAX_PREFIXES = 16
"""Words like `sudo` and `if` in a row that are left out before a command. Each costs a copy of those after it."""
MAX_DOCUMENTS = 100
"""Maximum number of `<<` in the last line of a command that is parsed. None begins a document, and each costs time."""


class _Part(NamedTuple):
    """A simple command."""

    operator: str
    """The operator in front."""
    first: str
    """The first word."""
    words: str
    """All words, with the assignments in front."""
    shows: bool
    """The command only shows something."""


@dataclass(frozen=True, slots=True)
class ShellCommand:
    """A call, as needed to interpret its result."""

    text: str
    """The beginning of the command on one line, empty if only the tool's name says that it runs something."""
    kind: CommandKind
    """The kind of the call (`CommandKind`)."""
    exit_code_proves: bool = True
    """An exit code of 0 covers all commands that ran."""
    output_cut: bool = False
    """The output was filtered or cut at its end, so that a line on a part of a run does not cover the whole."""
    answer_codes: tuple[int, ...] = ()
    """Exit codes above 0 of the last command that are an answer and no failure, for example that nothing was found."""
    edits_file: bool = False
    """The call changes a file, so that the beginning of its result is not text of a file."""
    is_single: bool = True
    """The command runs one program."""
    asks_another: bool = False
    """The command shows what another program or machine answers. An error of the client is known by its form."""
    core: str = ""
    """The whole run without the filters after it: equal for `make test` and `make test | tail`. It differs for another
    directory, other assignments, or another text as input."""
    shown_text: Literal["", "before", "after"] = ""
    """The command also shows a text beside its last run, which may be the output of another run."""
    prints_code: bool = False
    """The command is one run, after which the shell prints the run's exit code."""


PLAIN_CALL = ShellCommand("", "call")
EDIT_CALL = ShellCommand("", "call", edits_file=True)
TOOL_RUN = ShellCommand("", "run")


def parse_calls(message: Message) -> Mapping[str, ShellCommand]:
    """Return the commands of a message's calls, by the ids of the calls."""
    return message.derive(_parse_calls, "commands")


def _parse_calls(message: Message) -> Mapping[str, ShellCommand]:
    return {call.id: parse_call(call) for call in message.calls}


def parse_call(call: Call) -> ShellCommand:
    return call.derive(_parse_call)


def _parse_call(call: Call) -> ShellCommand:
    words = identifiers.split_tool_name(call.name)
    arguments = call.arguments
    given = identifiers.parse_arguments(arguments)
    runs = bool(words & _RUNNING or (words & _EXECUTES and words & _CODE)) and not words & _QUERYING
    text = _find_command(given)
    if (
        text in FILE_COMMANDS
        and not runs
        and (words & EDITING_WORDS or any(given.get(name) for name in PATH_ARGUMENTS))
    ):
        return PLAIN_CALL if text in ("view", "read") else EDIT_CALL
    if text is None and runs and not given and arguments[:1] not in ("{", "["):
        text = arguments  # a custom tool gets the command as plain text
    if text is not None:
        return parse_command(text)
    return TOOL_RUN if runs else EDIT_CALL if words & EDITING_WORDS else PLAIN_CALL


def is_trial(arguments: Mapping[str, Any]) -> bool:
    """True if the arguments of a call say that it only tries a change, at the top or one level below."""
    holders = (arguments, *(inner for inner in arguments.values() if isinstance(inner, dict)))
    return any(holder.get(name) in (True, "true", "True") for holder in holders for name in DRY_RUN)


def _find_command(given: Mapping[str, Any]) -> str | None:
    inner = (value for name in _HOLDERS if isinstance(value := given.get(name), dict))
    for holder in (given, *inner):
        for name in COMMAND_ARGUMENTS:
            value = holder.get(name)
            if isinstance(value, str):
                return value
            if isinstance(value, list) and value and all(isinstance(word, str) for word in value):
                shell = len(value) > 2 and value[0].rpartition("/")[2] in SHELLS and value[1].startswith("-")
                return str(value[2]) if shell else " ".join(value)
    return None


def read_inner_command(given: Mapping[str, Any]) -> str:
    """Return the command in a call's arguments, "" for none, without a shell around it (`bash -lc "..."`)."""
    text = _read_here_string(_find_command(given) or "")
    shell = _SHELL_START.match(text)
    if shell is None:
        return text
    inner = text[shell.end() :].strip()
    if inner[1:] and inner[0] in "'\"" and inner[-1] == inner[0]:
        inner = inner[1:-1].replace('\\"', '"') if inner[0] == '"' else inner[1:-1]
    return inner


def _read_here_string(text: str) -> str:
    """Return the text that another PowerShell runs, if that is the whole command; else the command."""
    found = _HERE_STRING.match(text) if text.lstrip()[:1] == "@" else None
    return found["command"] if found is not None else text


def parse_command(text: str) -> ShellCommand:
    text = _read_here_string(text)
    shown = _shorten_text(
        " ".join(text[: 4 * MAX_STORED_CHARS].split()), text if len(text) > 4 * MAX_STORED_CHARS else ""
    )
    if len(text) > MAX_PARSED_CHARS or text.count("<<", text.rfind("\n") + 1) > MAX_DOCUMENTS:
        return ShellCommand(shown, "run", exit_code_proves=False, output_cut=True, is_single=False)
    bare = _HEREDOC.sub(_replace_document, text).replace("\\\n", " ")
    bare = _COMMENT.sub("", _REDIRECT.sub(" ", replace_quoted(bare, _mask_quotes))).replace("\\;", _EXEC_END)
    strict = _STRICT.search(bare) is not None and _LENIENT.search(bare) is None
    pipefail = _PIPEFAIL.search(bare) is not None
    simple = _BRANCHES.search(bare) is None
    bare = bare.replace("$(", "\n").replace("`", "\n")  # a substitution runs its own command
    parts = list(_split_parts(bare))
    runs = [part for part in parts if not part.shows]
    if not runs:
        return ShellCommand(
            shown,
            "look",
            exit_code_proves=bool(parts),
            answer_codes=_find_answer_codes(parts),
            asks_another=any(part.first in REMOTE_CLIENTS or f" {ASKED_MARK}" in part.words for part in parts),
        )
    proves, cut = _follow_pipelines(parts, proves=strict or simple, pipefail=pipefail, strict=strict)
    carried = [found for part in runs for found in _CARRIED_RUN.finditer(part.words)]
    proves = proves and not any(found["unproven"] for found in carried)
    proves = proves and not any(map(_hides_failure, runs))
    cut = cut or any(found["cut"] for found in carried)
    single = len(runs) == 1 and not any(found["several"] for found in carried)
    core = _strip_display_parts(parts) if simple else shown
    prints_code = single and simple and _prints_code(parts, text)
    return ShellCommand(
        shown,
        "run",
        exit_code_proves=proves,
        output_cut=cut,
        answer_codes=_read_answer_codes(parts[-2 if prints_code else -1]),
        is_single=single,
        core=core,
        shown_text=_find_shown_text(parts, text),
        prints_code=prints_code,
    )


def _follow_pipelines(parts: Sequence[_Part], *, proves: bool, pipefail: bool, strict: bool) -> tuple[bool, bool]:
    """Return (an exit code of 0 covers the pipelines of all runs, the output of a run was cut at its end).

    proves: an exit code may cover more than the last command. pipefail, strict: the options of the shell."""
    cut = False
    last_unlinked = max((n for n, part in enumerate(parts) if part.operator not in ("&&", *_PIPES)), default=-1)
    after = 0
    while after < len(parts):
        part = parts[after]
        after += 1
        if part.shows:
            if part.first in REMOTE_CLIENTS and after < len(parts) and parts[after].operator in _PIPES:
                proves = proves and pipefail  # what it asks may be away, and the run has nothing to read then
            continue
        while after < len(parts) and parts[after].operator in _PIPES:
            proves = proves and pipefail
            # `tail` leaves the end of a run, which has its summary; any other filter may remove it.
            cut = cut or parts[after].first not in ("tail", "tee", "cat", "ts")
            after += 1
        proves = proves and _proves_to_end(parts, after, last_unlinked, strict=strict)
    return proves, cut


def _prints_code(parts: Sequence[_Part], text: str) -> bool:
    """True if a command ends with `echo $?`, right after its run and not after a filter of it."""
    return (
        len(parts) > 1
        and parts[-1].first == "echo"
        and parts[-1].operator in (";", "\n")
        and not parts[-2].shows
        and _ECHOED_CODE.search(text) is not None
    )


def _find_shown_text(parts: Sequence[_Part], text: str) -> Literal["", "before", "after"]:
    """Return where a command shows the text of a file that it has not written. text: the whole command."""
    last = max(n for n, part in enumerate(parts) if not part.shows)
    written = {word.strip("'\"") for word in _WRITTEN.findall(text)}
    shown = [
        n
        for n, part in enumerate(parts)
        if (part.shows and part.operator not in _PIPES)
        and (_shows_file(part, written) or (part.first in REMOTE_CLIENTS and part.first != "curl"))
    ]
    return "" if not shown else "after" if shown[-1] > last else "before"


def _shows_file(part: _Part, written: set[str]) -> bool:
    """True if a part shows the text of a file. written: files that the command itself has written."""
    if part.first not in TEXT_COMMANDS:
        return False
    names = [word for word in part.words.split()[1:] if not word.startswith("-") and _DOCUMENT not in word]
    return bool(names) and written.isdisjoint(names)


def _hides_failure(part: _Part) -> bool:
    """True for `find -exec COMMAND \\;`, which ends with 0 whatever its command ends with, and for `curl` without the
    option by which it tells. With `+` `find` does not hide it."""
    words = part.words.split()
    if part.first == "curl":
        return not any(map(_FAILS.match, words))
    return part.first == "find" and sum(word in EXEC_OPTIONS for word in words) > words.count("+")


def _proves_to_end(parts: Sequence[_Part], after: int, last_unlinked: int, *, strict: bool) -> bool:
    """True if the failure of a command reaches the end, so that a code of 0 there proves its success. after: the index
    of the part after its pipeline. last_unlinked: the index of the last part that begins without `&&` or a pipe.
    strict: the shell ends at a failure, but not before `&&`."""
    if after == len(parts):
        return True
    if parts[after].operator == "&&":
        return last_unlinked < after
    return strict and parts[after].operator in (";", "\n")


def _find_answer_codes(parts: Sequence[_Part]) -> tuple[int, ...]:
    """Return the exit codes that may be an answer: of the last command, or of one before it in a chain of `&&`."""
    for part in reversed(parts):
        if codes := _read_answer_codes(part):
            return codes
        if part.operator != "&&":
            break
    return ()


def _read_answer_codes(part: _Part) -> tuple[int, ...]:
    """Return the exit codes above 0 with which a command answers."""
    if part.first in _SEARCHES:
        return NOTHING_FOUND
    words = part.words[: 4 * MAX_STORED_CHARS]
    return next((codes for pattern, codes in _ANSWER_CODES if pattern.match(words)), ())


def _strip_display_parts(parts: Sequence[_Part]) -> str:
    """Return the run with its directory and inputs, without most parts that only show.

    A part that only shows stays in four cases. A run reads its output, it passes on a text of the command, it affects a
    later command, or it decides whether files are removed.
    """
    removes = any(part.first in _REMOVING for part in parts)
    found: list[str] = []
    feeds = False  # the loop goes backwards: a run follows the part in the same pipeline
    for n in range(len(parts) - 1, -1, -1):
        part = parts[n]
        feeds = not part.shows or (feeds and parts[n + 1].operator in _PIPES)
        decides = removes and part.first in DECIDING and bool(found) and parts[n + 1].operator in ("&&", "||")
        if feeds or decides or (found and (part.first in STATE_COMMANDS or _DOCUMENT in part.words)):
            joined = part.operator if part.operator in ("||", *_PIPES) else "&&"
            found += [part.words, joined]
    return _shorten_text(" ".join(found[:-1][::-1]))


def _shorten_text(text: str, whole: str = "") -> str:
    """Return the text or, if it is long, its beginning and a hash: it is stored with every message of a history.

    whole: the whole text; `text` is the beginning."""
    if len(text) <= MAX_STORED_CHARS and not whole:
        return text
    return f"{text[: MAX_STORED_CHARS - 8]}{_digest(whole or text)}"


def _digest(text: str) -> str:
    return blake2b(text.encode("utf-8", "replace"), digest_size=4).hexdigest()


def replace_quoted(text: str, replace: Callable[[re.Match[str]], str]) -> str:
    """Replace each quoted text of a command, in linear time.

    Once a double quote is open at the end, each later one is escaped, and the single quotes after it alone count."""

    def replace_one(found: re.Match[str]) -> str:
        if found[0][0] == '"' and not found["end"]:
            return '"' + _SINGLE_QUOTED.sub(replace, found[0][1:])
        return replace(found)

    return _QUOTED.sub(replace_one, text)


def _mask_quotes(found: re.Match[str]) -> str:
    """Replace quoted text by a word without operators. Harmless characters stay, so that commands remain distinct."""
    inner = found[0][1:-1]
    plain = re.sub(r"[^\w./:=@-]", "_", inner)
    return (plain if plain == inner else f"{_mark_carried(found)}{plain}_{_digest(inner)}") or "Q"


def _mark_carried(found: re.Match[str]) -> str:
    """Return the beginning of the word for a quoted text that is a command for elsewhere; "" if it is none."""
    return _mark_command(found[0][1:-1]) if _CARRIES.search(_read_before(found)) is not None else ""


def _replace_document(found: re.Match[str]) -> str:
    """Replace a here-document by a word without operators. A shell runs the text of its document."""
    mark = _mark_command(found[4]) if _SHELL_INPUT.search(_read_before(found)) is not None else ""
    return f" {mark}{_DOCUMENT}{_digest(found[4])} {found[3]}\n"


def _read_before(found: re.Match[str]) -> str:
    """Return the words of the same command before a text."""
    before = found.string[max(0, found.start() - MAX_CARRIER_CHARS) : found.start()]
    return before[1 + max(map(before.rfind, _NOT_CARRIED_OVER)) :]


def _mark_command(inner: str) -> str:
    """Return the beginning of the word for a command that is carried elsewhere."""
    if "<<" in inner:
        return "unproven_cut_several_run_"  # here-documents in each other would be read once for each level
    command = parse_command(inner)
    if command.kind == "run":
        flags = (not command.exit_code_proves, command.output_cut, not command.is_single)
        return "".join(compress(("unproven_", "cut_", "several_"), flags)) + "run_"
    if "$(" in inner or "`" in inner:
        return ""  # the output of a substitution may be what is run
    return ASKED_MARK if command.asks_another else SHOWN_MARK


def _skip_prefix(words: Sequence[str]) -> list[str]:
    """Return the words of a command without its first one, a prefix, and the options of that."""
    if words[:2] == ["command", "-v"]:
        return ["which", *words[2:]]
    after = skip_options(words[1:], _VALUED_OF_PREFIXES)
    return after[1:] if words[0] == "timeout" else after


def _split_parts(bare: str) -> Iterator[_Part]:
    pieces = _SPLIT.split(bare)
    operator = ""
    assigned: list[str] = []
    for n in range(0, len(pieces), 2):
        checkpoint()
        words = [w for w in pieces[n].strip(" \t(){}!").split() if w not in ("(", ")", "{", "}", "!")]
        prefixes = 0
        while words:
            if words[0] in COMMAND_PREFIXES and prefixes < MAX_PREFIXES:
                prefixes += 1
                words = _skip_prefix(words)
            elif _ASSIGNED.fullmatch(words[0]):
                assigned.append(words.pop(0))
            else:
                break
        if words and words[0] not in _WORDLESS:
            first = words[0].rpartition("/")[2] or words[0]
            shows = is_showing(first, words)
            named = "git-look" if shows and first == "git" else first
            yield _Part(operator, named, " ".join([*assigned, *words]), shows)
            operator, assigned = "", []
        if n + 1 < len(pieces):
            # Of several operators in a row, for example after a line with only a comment, the first one counts.
            operator = pieces[n + 1] if operator in ("", "\n", ";") else operator
