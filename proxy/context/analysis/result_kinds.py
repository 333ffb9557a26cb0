"""The results of tools in a prompt, each with its kind of content and the command of its call.

The tool's name and the command decide. Where they do not, the text does: one with line numbers is that of a file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from proxy.chat.message import Message
from proxy.context.analysis import identifiers, shell_commands, text_actions
from proxy.context.analysis.shell_commands import PLAIN_CALL, SHELL_WORDS, ShellCommand
from proxy.context.plan import ContentKind
from proxy.context.view import View

ClassifiedResult = tuple[int, ContentKind, ShellCommand]
"""(index, content, command of the call) of a result"""

_FILE_WORDS = frozenset(
    ("read", "view", "open", "cat", "file", "edit", "write", "create", "insert", "replace", "str", "patch", "notebook")
)
_SEARCH_WORDS = frozenset(("grep", "rg", "search", "glob", "find", "list", "ls", "todo"))
"""Words in the names of tools whose result is a view, and of those whose result is a search or a list."""
_SHOWING_COMMAND = re.compile(
    r"\s*(?:cd [^&;]*(?:&&|;)\s*)?(?:\$\w+\s*=[^;|\n]*[;\n]\s*)?"
    r"(?:cat|sed -n|head|tail|nl|less|more|awk|bat|git (?:show|diff)|diff|(?i:get-content|gc|type))\b(?!.*<<)"
)
_LS_ENTRY = re.compile(r"[-dlbcps][-rwxsStT]{9}[.+@]?\s")
"""The beginning of a line of `ls -l`."""


def find_results(view: View, files: frozenset[str] = frozenset(), begin: int = 0) -> Iterator[ClassifiedResult]:
    """Yield (index, content, command) of each result from `begin` on: what it has, and the command of its call. User
    messages that contain tool output are included. files: names of further tools that show files."""
    contents: dict[str, ContentKind] = {}
    ran: Mapping[str, ShellCommand] = {}
    calling = begin - 1
    while calling > 0 and not view.messages[calling].calls:
        calling -= 1
    for n in range(max(0, calling), len(view.messages)):
        message = view.messages[n]
        if message.calls:
            contents = message.derive(
                lambda m: {c.id: classify_call(c.name, c.arguments, files) for c in m.calls}, ("kinds", files)
            )
            ran = shell_commands.parse_calls(message)
        elif view.is_result[n] and n >= begin:
            content: ContentKind = contents.get(message.call_id or "", "unknown")
            command = ran.get(message.call_id or "", PLAIN_CALL)
            if not message.is_result and (call := text_actions.find_text_call(view.messages, n)) is not None:
                content = classify_call(call.name, call.arguments, files)
                command = shell_commands.parse_call(call)
            if content == "unknown" and message.derive(has_line_numbers):
                content = "view"
            yield n, content, command


def classify_call(name: str, arguments: str, files: frozenset[str] = frozenset()) -> ContentKind:
    """Return the content of a call's result, by the words of the tool's name and, for a shell, by the command."""
    if name in files:
        return "view"
    words = identifiers.split_tool_name(name)
    if words & SHELL_WORDS:
        command = shell_commands.read_inner_command(identifiers.parse_arguments(arguments))
        return "view" if _SHOWING_COMMAND.match(command or identifiers.read_argument_texts(arguments)) else "other"
    return "other" if words & _SEARCH_WORDS else "view" if words & _FILE_WORDS else "unknown"


def has_line_numbers(message: Message) -> bool:
    """True if a text of 10 or more lines has line numbers on 70 % of them.

    A tool of an unknown name returns such a text when it reads a file.
    """
    lines = message.text.splitlines()
    left, least = len(lines), 0.7 * len(lines)
    for line in lines:
        if not identifiers.is_numbered(line):
            left -= 1
            if left < least:
                return False
    return len(lines) >= 10


def is_path_listing(message: Message) -> bool:
    """True if a text of 5 or more lines has nothing but a path, or an entry of `ls -l`, on 80 % of them."""
    lines = [line for line in map(str.strip, message.text.splitlines()) if line]
    left, least = len(lines), 0.8 * len(lines)
    for line in lines:
        is_path = ("/" in line or "." in line) and len(line.split(None, 1)) == 1
        if not is_path and _LS_ENTRY.match(line) is None:
            left -= 1
            if left < least:
                return False
    return len(lines) >= 5
