"""The agent's activity record, read off its own calls: files, commands and how they ended, last errors, open items.

No model is asked for it. It is what an agent needs first when the results themselves have left the prompt: which
files it has read and changed, which commands have failed, what is still on its list (FEATURES.md G8). How a call ended
is asked of `outcome`: what is unknown is said as nothing, and an edit that failed is no edit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from proxy.chat.message import Call, Message
from proxy.context.evidence import commands, facts, outcome
from proxy.context.evidence.commands import Command
from proxy.context.evidence.outcome import Outcome

_PATHS = ("file_path", "path", "filename", "file", "notebook_path", "target_file")
_READS = frozenset({"read", "view", "open", "cat"})
_CREATES = frozenset({"write", "create"})
_EDITS = frozenset({"edit", "replace", "insert", "patch", "str", "update", "apply"})
_SHORT = 80
"""Characters of a command or an error line that are told."""
_RUNS = 6
"""Commands that are told."""
_ERRORS = 2
"""Error lines of one result that are remembered."""


class Ran(NamedTuple):
    """A command that was run. told: how it ended, empty where nobody can tell. open: it failed, and was not seen to
    succeed since. looks: it only showed something. core: see `Command`."""

    told: str
    open: bool
    looks: bool
    core: str


class Entries(NamedTuple):
    """What there is to tell of one kind, the most important first."""

    name: str
    entries: list[str]

    def __str__(self) -> str:
        return f"{self.name}: " + "; ".join(self.entries)


@dataclass(slots=True)
class Ledger:
    """Each list in the order of the last touch, oldest first; what was touched again moves to the end."""

    read: dict[str, None] = field(default_factory=dict)
    edited: dict[str, None] = field(default_factory=dict)
    created: dict[str, None] = field(default_factory=dict)
    commands: dict[str, Ran] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    """Error lines, each with the core of the command that wrote it."""
    items: tuple[str, ...] = ()

    def note(self, call: Call, result: str | None) -> None:
        """One call and what came back, None where nothing has."""
        command = commands.of(call)
        if result is None:
            self.add(call, command, outcome.NOTHING, ())
        else:
            self.add(call, command, outcome.read(result, command), outcome.lines_of(result))

    def add(self, call: Call, command: Command, end: Outcome, lines: Sequence[str]) -> None:
        """One call, its command, how it ended, and the lines of its result."""
        arguments = _object(call.arguments)
        words = facts.words_of(call.name)
        path = _first(arguments, _PATHS) if command.kind == "call" else None
        failed = end.verdict == "failed"
        if "todo" in words or "plan" in words:
            self.items = _open_items(arguments) or self.items
        elif path:
            self._file(words, path, failed=failed)
        elif command.text:
            self._ran(command, end)
        if failed:
            for line in _telling(end, lines):
                self.errors.pop(line, None)
                self.errors[line] = command.core

    def _file(self, words: set[str], path: str, *, failed: bool) -> None:
        for kinds, files in ((_CREATES, self.created), (_EDITS, self.edited), (_READS, self.read)):
            if words & kinds:
                if not failed:
                    files.pop(path, None)
                    files[path] = None
                return

    def _ran(self, command: Command, end: Outcome) -> None:
        said = _shown(command.text)
        before = self.commands.pop(said, None)
        failed = end.verdict == "failed"
        told = "ok" if end.verdict == "succeeded" else ""
        if failed:
            told = f"failed ({end.code})" if end.code else "failed"
        elif not told and before is not None and before.open:
            told, failed = before.told, True  # it was run again, and nobody can tell how that ended
        self.commands[said] = Ran(told, failed, command.kind == "look", command.core)
        if end.verdict == "succeeded" and command.core:
            # The same thing, shown in another way: it has passed since.
            stale = [name for name, ran in self.commands.items() if ran.open and ran.core == command.core]
            for name in stale:
                del self.commands[name]
            self.errors = {line: core for line, core in self.errors.items() if core != command.core}

    def kinds(self) -> list[Entries]:
        """What there is to tell: of each kind the newest first, of commands those that failed before all others, and
        those that only show something last."""
        ran = list(self.commands.items())[::-1]
        ran.sort(key=lambda item: (not item[1].open, item[1].looks))
        found = (
            Entries("Edited", _newest(self.edited, 12)),
            Entries("Created", _newest(self.created, 8)),
            Entries("Read", _newest([path for path in self.read if path not in self.edited], 12)),
            Entries("Commands", [f"`{said}` {one.told}".rstrip() for said, one in ran[:_RUNS]]),
            Entries("Last errors", _newest(self.errors, 3)),
            Entries("Open", _newest(self.items, 8)),
        )
        return [one for one in found if one.entries]

    def lines(self) -> list[str]:
        """The same, one line a kind."""
        return [str(one) for one in self.kinds()]


def record(messages: Sequence[Message], left: Sequence[bool]) -> Ledger:
    """The ledger of those calls whose result has left the prompt, as `left` says of each message."""
    found = Ledger()
    calls: dict[str, Call] = {}
    ran: Mapping[str, Command] = {}
    for message, gone in zip(messages, left, strict=True):
        if message.calls:
            calls, ran = {call.id: call for call in message.calls}, commands.by_call(message)
        elif gone and message.call_id in calls:
            command = ran[message.call_id]
            end = outcome.of(message, command)
            found.add(calls[message.call_id], command, end, outcome.lines(message) if end.verdict == "failed" else ())
    return found


def _newest(names: Sequence[str] | Mapping[str, object], most: int) -> list[str]:
    return list(names)[-most:][::-1]


def _telling(end: Outcome, lines: Sequence[str]) -> list[str]:
    """The lines that say what went wrong."""
    found = [outcome.bare(lines[n]) for n in end.failures or end.summary]
    return facts.unique(_shown(line) for line in found if outcome.says(line))[-_ERRORS:]


def _object(arguments: str) -> Mapping[str, Any]:
    try:
        value = msgspec.json.decode(arguments)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _first(arguments: Mapping[str, Any], names: Sequence[str]) -> str | None:
    return next((arguments[n] for n in names if isinstance(arguments.get(n), str) and arguments[n]), None)


def _shown(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _SHORT else text[: _SHORT - 3] + "..."


def _open_items(arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """What is not done on a list like `{"todos": [{"content", "status"}]}`."""
    found = []
    for value in arguments.values():
        for item in value if isinstance(value, list) else ():
            if isinstance(item, dict) and item.get("status") not in ("completed", "done", "cancelled"):
                text = next(
                    (item[k] for k in ("content", "task", "step", "title", "text") if isinstance(item.get(k), str)), ""
                )
                if text:
                    found.append(_shown(text))
    return tuple(found)
