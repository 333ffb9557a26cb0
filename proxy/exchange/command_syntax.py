"""Parser of the commands that a user may type into the conversation itself (FEATURES.md A16).

A message is a command only if it is nothing else: one line that begins with one of `COMMAND_WORDS`. An unknown command
after such a word is answered with help, and never goes upstream, since no other party knows its meaning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

COMMAND_WORDS = ("/context", "/undo", "/message", "/messages", "/session")
REPLY_MARK = "[context-proxy]"
"""First characters of every reply, by which a reply is known when the client resends it."""
MAX_COMMAND_CHARS = 200
"""Limit in characters on a command: a longer line is no command."""
DEFAULT_GROUPS = 10
"""Groups that are listed where no number is given."""

CommandName = Literal[
    "window", "show", "rebuild", "drop", "restore", "undo", "list", "show_group", "remove", "scratchpad", "help"
]

HELP = """Commands:
/context window N      keep the last N groups in the prompt; 0: all
/context show          the prompt as it would go out now
/context rebuild       have the state written anew
/context drop GID      a group leaves the prompt; it stays in the store
/context restore GID   what was dropped or left out comes back
/undo                  take back the last group
/message list [N]      the last N groups, with their tokens
/message show GID      a group in full
/message remove GID    remove a group for good
/messages              the same as /message
/session scratchpad    the scratchpad"""


@dataclass(frozen=True, slots=True)
class InbandCommand:
    """A parsed command. name: the command. group: the id of a group, number: a count, where the command has one."""

    name: CommandName
    group: str = ""
    number: int = 0


def parse_command(text: str) -> InbandCommand | None:
    """Return the command that a message is, None where it is none."""
    line = text.strip()
    words = line.split()
    if not words or words[0] not in COMMAND_WORDS or "\n" in line or len(line) > MAX_COMMAND_CHARS:
        return None
    head, rest = words[0], words[1:]
    if head == "/undo":
        return InbandCommand("undo") if not rest else InbandCommand("help")
    if head == "/session":
        return InbandCommand("scratchpad") if rest == ["scratchpad"] else InbandCommand("help")
    found = _context(rest) if head == "/context" else _message(rest)
    return found or InbandCommand("help")


def _context(words: list[str]) -> InbandCommand | None:
    match words:
        case ["window", number] if _is_number(number):
            return InbandCommand("window", number=int(number))
        case ["show"]:
            return InbandCommand("show")
        case ["rebuild"]:
            return InbandCommand("rebuild")
        case ["drop", group]:
            return InbandCommand("drop", group)
        case ["restore", group]:
            return InbandCommand("restore", group)
    return None


def _message(words: list[str]) -> InbandCommand | None:
    match words:
        case [] | ["list"]:
            return InbandCommand("list", number=DEFAULT_GROUPS)
        case ["list", number] if _is_number(number) and int(number):
            return InbandCommand("list", number=int(number))
        case ["show", group]:
            return InbandCommand("show_group", group)
        case ["remove", group]:
            return InbandCommand("remove", group)
    return None


def _is_number(word: str) -> bool:
    return word.isascii() and word.isdigit() and len(word) <= 5


def is_reply(text: str) -> bool:
    """True if an assistant message is a reply of ours."""
    return text.startswith(REPLY_MARK)
