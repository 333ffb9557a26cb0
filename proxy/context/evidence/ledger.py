"""The agent's activity record, from its own calls: files, commands with their outcomes, last errors, open items.

No model writes it. The agent needs this record first when the results themselves have left the prompt. It lists the
files read and changed, the failed commands, and the open items of a plan (FEATURES.md G8). `outcome` says how a call
ended: an unknown outcome is not reported, and an edit that failed is no edit.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from proxy.chat.message import Call, Message
from proxy.context.evidence import commands, facts, moved, outcome
from proxy.context.evidence.commands import Command
from proxy.context.evidence.outcome import Outcome

_READS = frozenset({"read", "view", "open", "cat"})
_CREATES = frozenset({"write", "create"})
_EDITS = frozenset({"edit", "replace", "insert", "patch", "str", "update", "apply"})
_SHORT = 80
"""Maximum number of characters of a reported command or error line."""
_RUNS = 6
"""Maximum number of reported commands."""
_ERRORS = 2
"""Maximum number of error lines stored for one result."""
_FINISHED = frozenset(("completed", "complete", "done", "finished", "cancelled", "canceled", "skipped", "deleted"))
_ITEM = ("content", "task", "step", "title", "text")
_BRIEF = 300
"""Maximum number of characters of a result that is a status message of the tool."""
_CHANGED = re.compile(
    r"\b(?:updated|edited|created|written|wrote|modified|replaced|applied|saved|inserted|changed|added|patched"
    r"|overwritten|overwrote|success\w*|done|ok)\b|(?:diff --git|Index:|---|@@) ",
    re.IGNORECASE,
)
"""Words with which a tool reports that it has changed a file, and beginnings of a diff that shows the change."""
_UNCHANGED = re.compile(
    r"\b(?:no|not|never|cannot|unable|without|nothing|neither|identical|unchanged|since|unexpectedly|already|permissions?"
    r"|errors?|invalid|fail\w*|reject\w*|den(?:y|ied)|refus\w*|cancel\w*|abort\w*|ambiguous|multiple|must|before"
    r"|will|would|could|pending|awaiting)\b"
    r"|n['\u2019]t\b"
    r"|\b(?:nicht|keine?\w?|fehler\w*|verweigert|abgelehnt|ung\u00fcltig\w*|erreur|\u00e9chec|\u00e9chou\w*|impossible|aucune?"
    r"|introuvable|pas|fall[ao\u00f3]\w*|ning\u00fan\w*|ninguna?|denegad\w*|imposible|erro|falh\w*|nenhuma?|n\u00e3o|errore"
    r"|nessun\w*|negat\w*|impossibile|non|\u043e\u0448\u0438\u0431\w*|\u043d\u0435|\u043d\u0435\u0442|\u043e\u0442\u043a\u0430\u0437\w*)\b"
    r"|\u9519\u8bef|\u932f\u8aa4|\u5931\u8d25|\u5931\u6557|\u62d2\u7edd|\u62d2\u7d55|\u62d2\u5426|\u65e0\u6cd5|\u7121\u6cd5|[\u672a\u6ca1\u6c92\u4e0d]"
    r"|\u30a8\u30e9\u30fc|\u307e\u305b\u3093|\u3067\u304d\u306a|\uc624\ub958|\uc2e4\ud328|\uac70\ubd80|\uc5c6",
    re.IGNORECASE,
)
"""Words with which a tool reports no change, or leaves it open. The words are English, German, French, Spanish,
Portuguese, Italian, Russian, Chinese, Japanese and Korean."""
_ASKS = re.compile(r"\b(?:found|match\w*|occur\w*|times|specify|provide|requires?|required|missing)\b", re.IGNORECASE)
"""Words of a tool that asks for other input; they count if no word reports a change of the file."""
_PATH = re.compile(r"\S*\w[./\\]\w\S*")
_SENTENCE = re.compile(r"[.!:;](?:\s|$)")


class Ran(NamedTuple):
    """A command that was run. text: see `Command`. told: its outcome, empty if it is unknown. open: the command failed,
    and no later success is known. looks: the command only showed something. place: the working directory, if known.
    changes: the number of file changes before the run. again: the command was run again since, with an unknown
    outcome."""

    text: str
    told: str
    open: bool
    looks: bool
    place: str = ""
    changes: int = 0
    again: bool = False


class Entries(NamedTuple):
    """Entries of one kind, the most important first."""

    name: str
    entries: list[str]

    def __str__(self) -> str:
        return f"{self.name}: " + "; ".join(self.entries)


@dataclass(slots=True)
class Ledger:
    """The activity record. Each list is in the order of the last use, oldest first: an entry that is used again moves
    to the end."""

    read: dict[str, None] = field(default_factory=dict)
    edited: dict[str, None] = field(default_factory=dict)
    created: dict[str, None] = field(default_factory=dict)
    commands: dict[str, Ran] = field(default_factory=dict)
    """Commands, by the identity of the run, so that the newest run of each counts."""
    errors: dict[str, list[str]] = field(default_factory=dict)
    """Error lines, by the command that printed them."""
    items: tuple[str, ...] = ()
    changes: int = 0
    """Number of file changes."""
    where: str = ""
    """The current directory after `cd`, for later commands."""

    def note(self, call: Call, result: str | None) -> None:
        """Add one call and its result; None if there is no result."""
        command = commands.of(call)
        if result is None:
            self.add(call, command, outcome.NOTHING, None)
        else:
            self.add(call, command, outcome.read(result, command), outcome.lines_of(result))

    def add(self, call: Call, command: Command, end: Outcome, lines: Sequence[str] | None) -> None:
        """Add one call, its command, its outcome, and the lines of its result; None if there is no result."""
        arguments = facts.arguments_of(call.arguments)
        words, path, key = _touched(call, command, arguments)
        key, place = self._placed(key, command, arguments)
        failed = end.verdict == "failed"
        passed = end.verdict == "succeeded"
        done = self._follow(call, command, end, lines)
        if _lists(words):
            if not failed:
                self._listed(arguments)
        elif done is not None:
            passed = done
        elif path:
            passed = self._file(words, path, end, lines)
        elif command.text:
            self._ran(key, command, end, place)
        if failed or passed:
            self.errors.pop(key, None)
        if failed and (said := _telling(end, lines or ())):
            self.errors[key] = said

    def overrule(self, call: Call, command: Command, end: Outcome, lines: Sequence[str] | None) -> None:
        """Apply a call whose result is in the prompt: entries of an earlier equal call are outdated and removed."""
        arguments = facts.arguments_of(call.arguments)
        words, path, key = _touched(call, command, arguments)
        key, _ = self._placed(key, command, arguments)
        if self._follow(call, command, end, lines, stands=True) is None and path and words & (_CREATES | _EDITS):
            self.changes += _changes(end, lines)
        if _lists(words) and end.verdict != "failed":
            self._listed(arguments)
        self.commands.pop(key, None)
        self.errors.pop(key, None)

    def _placed(self, key: str, command: Command, arguments: Mapping[str, Any]) -> tuple[str, str]:
        """Return (the key of a call with its directory, the directory)."""
        if command.kind == "call":
            return key, ""
        place = moved.directory(arguments) or self.where
        return f"{place}\n{key}", place

    def _follow(
        self, call: Call, command: Command, end: Outcome, lines: Sequence[str] | None, *, stands: bool = False
    ) -> bool | None:
        """Apply a call's changes of recorded files and of the current directory.

        Return True if the call changed files, False if a patch changed none, None if the caller has to classify the
        call. stands: the result is in the prompt, so that its edits are not recorded.
        """
        if changes := moved.of_patch(call.arguments):
            done = _changes(end, lines)
            self._apply(changes if done else (), stands=stands)
            return done
        if end.verdict == "failed":
            return None
        if command.kind == "call":
            words, _, _ = _touched(call, command, arguments := facts.arguments_of(call.arguments))
            changes = moved.of_tool(words, arguments)
        else:
            self.where = moved.entered(command.text, self.where)
            changes = moved.of_shell(command.core)
        self._apply(changes, stands=stands)
        return True if changes and command.kind == "call" else None

    def _apply(self, changes: Iterable[moved.Change], *, stands: bool) -> None:
        for kind, path in changes:
            if kind in ("gone", "undone"):
                self.changes += self._drop(path, gone=kind == "gone") or path == "*"
                continue
            told = (*self.edited, *self.created, *self.read)
            self.changes += kind != "placed" or path == "*" or any(moved.means(path, name) for name in told)
            if not stands and kind != "placed":
                files = self.created if kind == "created" else self.edited
                files.pop(path, None)
                files[path] = None

    def _drop(self, path: str, *, gone: bool) -> bool:
        """Remove files that are gone, or only their edits; True if any file was removed.

        The removal of other files, for example logs, changes nothing on which a command depends.
        """
        told = False
        for files in (self.edited, self.created, self.read) if gone else (self.edited,):
            for name in [name for name in files if moved.means(path, name)]:
                del files[name]
                told = True
        return told

    def _listed(self, arguments: Mapping[str, Any]) -> None:
        found = _open_items(arguments)
        self.items = self.items if found is None else found

    def _file(self, words: set[str], path: str, end: Outcome, lines: Sequence[str] | None) -> bool:
        """Record the file in its list. True if the call touched the file."""
        for kinds, files in ((_CREATES, self.created), (_EDITS, self.edited), (_READS, self.read)):
            if words & kinds:
                touched = end.verdict != "failed" if files is self.read else _changes(end, lines)
                if touched:
                    files.pop(path, None)
                    files[path] = None
                    self.changes += files is not self.read
                return touched
        return end.verdict == "succeeded"

    def _ran(self, key: str, command: Command, end: Outcome, place: str) -> None:
        before = self.commands.pop(key, None)
        looks = command.kind == "look"
        if end.verdict == "failed":
            told = f"failed ({end.code})" if end.code else "failed"
            self.commands[key] = Ran(command.text, told, True, looks, place, self.changes)
        elif end.verdict == "unknown" and before is not None and before.open:
            self.commands[key] = before._replace(again=True)
        else:
            told = "ok" if end.verdict == "succeeded" and not looks else ""
            self.commands[key] = Ran(command.text, told, False, looks, place, self.changes)

    def kinds(self) -> list[Entries]:
        """Return the entries of each kind, newest first. Failed commands come before all others, and commands that only
        show something come last."""
        ran = list(reversed(self.commands.values()))
        ran.sort(key=lambda one: (one.looks, not one.open))
        errors = facts.unique(line for said in self.errors.values() for line in said)
        found = (
            Entries("Edited", _newest(self.edited, 12)),
            Entries("Created", _newest(self.created, 8)),
            Entries("Read", _newest([path for path in self.read if path not in self.edited], 12)),
            Entries("Commands", _told_apart(ran[:_RUNS], self.changes)),
            Entries("Last errors", [_quoted(line) for line in _newest(errors, 3)]),
            Entries("Open", _newest(self.items, 8)),
        )
        return [one for one in found if one.entries]

    def lines(self) -> list[str]:
        """Return the entries, one line for each kind."""
        return [str(one) for one in self.kinds()]


def record(messages: Sequence[Message], left: Sequence[bool]) -> Ledger:
    """Return the ledger of the calls whose result has left the prompt. left: true for each message that has left.

    A later call whose result is in the prompt overrules the entries of the same command, and the open items.
    """
    found = Ledger()
    calls: dict[str, Call] = {}
    ran: Mapping[str, Command] = {}
    for message, gone in zip(messages, left, strict=True):
        if message.calls:
            calls, ran = {call.id: call for call in message.calls}, commands.by_call(message)
        elif message.call_id in calls:
            call, command = calls[message.call_id], ran[message.call_id]
            if gone:
                found.add(call, command, outcome.of(message, command), outcome.lines(message))
            else:
                found.overrule(call, command, outcome.of(message, command), outcome.lines(message))
    return found


def _touched(call: Call, command: Command, arguments: Mapping[str, Any]) -> tuple[set[str], str | None, str]:
    """Return (the words of the call's action, the file, the key of the call)."""
    words = facts.words_of(call.name)
    if command.kind != "call":
        return words, None, command.core or command.text or f"{call.name} {call.arguments}"
    path = _first(arguments, commands.PATHS)
    does = arguments.get("command")
    if isinstance(does, str) and does in commands.FILE_COMMANDS:
        words = facts.words_of(does)
    return words, path, f"{call.name} {' '.join(sorted(words))} {path or call.arguments}"


def _lists(words: set[str]) -> bool:
    return "todo" in words or "plan" in words


def _changes(end: Outcome, lines: Sequence[str] | None) -> bool:
    """True if a result proves that a file was changed.

    Its first sentence reports the change, or it is a short message of the tool with no word against it.
    """
    if end.verdict != "unknown" or lines is None:
        return end.verdict == "succeeded"
    if end.summary:
        return False  # the result counts no changes
    opening = outcome.bare(lines[end.first]) if end.first is not None else ""
    first = _PATH.sub(" ", _SENTENCE.split(opening, maxsplit=1)[0])
    if _CHANGED.search(first) and not _UNCHANGED.search(first):
        return True
    if sum(map(len, lines)) > _BRIEF:
        return False
    said = [_PATH.sub(" ", line) for line in lines]
    return not any(_UNCHANGED.search(line) or _ASKS.search(line) for line in said)


def _told_apart(ran: Sequence[Ran], changes: int) -> list[str]:
    """Return the commands with their outcomes and the reasons that make an outcome outdated.

    Commands with the same beginning are shown with their ends too. If commands ran in several directories, each has its
    directory.
    """
    shown = [_shown(one.text) for one in ran]
    places = len({one.place for one in ran if not one.looks}) > 1
    return [
        f"`{said if shown.count(said) == 1 else _ends(one.text)}` {one.told}".rstrip()
        + (f" in {_shown(one.place)}" if places and one.place and not one.looks else "")
        + _since(one, changes)
        for said, one in zip(shown, ran, strict=True)
    ]


def _since(one: Ran, changes: int) -> str:
    """Return the reason for which the outcome of a command may be outdated, empty if there is none."""
    if not one.told or one.looks:
        return ""
    return ", run again since" if one.again else ", files changed since" if changes > one.changes else ""


def _quoted(line: str) -> str:
    """Quote a line that a tool has printed, so that it is distinct from the proxy's text."""
    return '"' + line.replace('"', "'") + '"'


def _newest(names: Sequence[str] | Mapping[str, object], most: int) -> list[str]:
    return list(names)[-most:][::-1]


def _telling(end: Outcome, lines: Sequence[str]) -> list[str]:
    """Return the lines that describe the failure."""
    found = [outcome.bare(lines[n]) for n in end.failures or end.summary]
    return facts.unique(_shown(line) for line in found if outcome.says(line))[-_ERRORS:]


def _first(arguments: Mapping[str, Any], names: Sequence[str]) -> str | None:
    return next((arguments[n] for n in names if isinstance(arguments.get(n), str) and arguments[n]), None)


def _shown(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _SHORT else text[: _SHORT - 3] + "..."


def _ends(text: str) -> str:
    half = (_SHORT - 3) // 2
    return text if len(text) <= _SHORT else f"{text[:half]}...{text[-half:]}"


def _open_items(arguments: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return the unfinished items of a list like `{"todos": [{"content", "status"}]}`, None if there is no such
    list."""
    lists = [value for value in arguments.values() if isinstance(value, list)]
    items = [item for value in lists for item in value if isinstance(item, dict) and (_text(item) or "status" in item)]
    if not items and not any(not value for value in lists):
        return None
    return tuple(_shown(_text(item)) for item in items if _text(item) and not _is_finished(item))


def _text(item: Mapping[str, Any]) -> str:
    return next((item[k] for k in _ITEM if isinstance(item.get(k), str)), "")


def _is_finished(item: Mapping[str, Any]) -> bool:
    status = item.get("status")
    named = isinstance(status, str) and status.lower() in _FINISHED
    return named or any(item.get(name) is True for name in ("done", "completed"))
