"""What the agent has touched, read off its own calls: files, commands and how they ended, last errors, open items.

No model is asked for it. It is what an agent needs first when the results themselves have left the prompt: which
files it has read and changed, which commands have failed, what is still on its list (FEATURES.md G8).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from proxy.chat.message import Call, Message
from proxy.context.evidence import facts

_PATHS = ("file_path", "path", "filename", "file", "notebook_path", "target_file")
_COMMANDS = ("command", "cmd", "script")
_READS = frozenset({"read", "view", "open", "cat"})
_CREATES = frozenset({"write", "create"})
_EDITS = frozenset({"edit", "replace", "insert", "patch", "str", "update", "apply"})
_SHELL = frozenset({"bash", "sh", "shell", "terminal", "command", "exec", "run"})
_EXIT = re.compile(r"(?:exit code|returncode>?|exit status)[:=\s]*(\d+)", re.IGNORECASE)
_ERROR = re.compile(r"\b[A-Za-z]*(?:Error|Exception)\b|\bFAILED\b|\bfatal\b|\bpanic\b")
_WORDS = ("rror", "xception", "FAIL", "fatal", "panic")
"""Of `facts.TROUBLES`, those that stand in these error lines."""
_SHORT = 80
"""Characters of a command or an error line that are told."""


class End(NamedTuple):
    """How a call ended. outcome: ok, or how it failed. errors: the last error lines of its result."""

    outcome: str
    errors: tuple[str, ...] = ()


@dataclass(slots=True)
class Ledger:
    """Each list in the order of the last touch, oldest first; what was touched again moves to the end."""

    read: dict[str, None] = field(default_factory=dict)
    edited: dict[str, None] = field(default_factory=dict)
    created: dict[str, None] = field(default_factory=dict)
    commands: dict[str, str] = field(default_factory=dict)
    errors: dict[str, None] = field(default_factory=dict)
    items: tuple[str, ...] = ()

    def note(self, call: Call, result: str | None) -> None:
        """One call and what came back, None where nothing has."""
        self.add(call, End("no answer") if result is None else _end(result))

    def add(self, call: Call, end: End) -> None:
        """One call and how it ended."""
        arguments = _object(call.arguments)
        words = facts.words_of(call.name)
        path = _first(arguments, _PATHS)
        command = _first(arguments, _COMMANDS) if words & _SHELL or not path else None
        if "todo" in words or "plan" in words:
            self.items = _open_items(arguments) or self.items
        elif path:
            self._file(words, path)
        elif command:
            said = _shown(command)
            self.commands.pop(said, None)
            self.commands[said] = end.outcome
        for line in end.errors:
            self.errors.pop(line, None)
            self.errors[line] = None

    def _file(self, words: set[str], path: str) -> None:
        for kinds, files in ((_CREATES, self.created), (_EDITS, self.edited), (_READS, self.read)):
            if words & kinds:
                files.pop(path, None)
                files[path] = None
                return

    def lines(self) -> list[str]:
        """What there is to tell, the newest of each kind first, one line a kind."""
        kinds = (
            ("Edited", list(self.edited)[-12:]),
            ("Created", list(self.created)[-8:]),
            ("Read", [path for path in self.read if path not in self.edited][-12:]),
            ("Commands", [f"`{said}` {outcome}" for said, outcome in list(self.commands.items())[-6:]]),
            ("Last errors", list(self.errors)[-3:]),
            ("Open", list(self.items)[:8]),
        )
        return [f"{name}: " + "; ".join(reversed(entries)) for name, entries in kinds if entries]


def record(messages: Sequence[Message], left: Sequence[bool]) -> Ledger:
    """The ledger of those calls whose result has left the prompt, as `left` says of each message."""
    found = Ledger()
    calls: dict[str, Call] = {}
    for message, gone in zip(messages, left, strict=True):
        if message.calls:
            calls = {call.id: call for call in message.calls}
        elif gone and message.call_id in calls:
            found.add(calls[message.call_id], message.derive(_ended))
    return found


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


def _ended(message: Message) -> End:
    return _end(message.text, facts.troubles(message))


def _end(result: str, troubles: Sequence[str] = _WORDS) -> End:
    """ok, or how it failed: by the exit code where one is told, else by an error line. troubles: see `facts`."""
    errors: list[str] = []
    words = [word for word in troubles if word in _WORDS and word in result]
    if words:
        for line in reversed(result.split("\n")):
            if any(word in line for word in words) and _ERROR.search(line):
                errors.insert(0, _shown(line))
                if len(errors) == 2:
                    break
    code = _exit_code(result)
    if code is not None:
        return End("ok" if code == "0" else f"failed ({code})", tuple(errors))
    return End("failed" if errors else "ok", tuple(errors))


def _exit_code(result: str) -> str | None:
    small = result.lower()
    # Looked for first, since the search costs fifty times as much; the long s is one to it.
    if "t code" in small or "returncode" in small or "t status" in small or "\u017f" in small:
        found = _EXIT.search(result)
        return found[1] if found is not None else None
    return None


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
