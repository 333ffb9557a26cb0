"""Actions in text: what an agent without tool calls asks its framework to do, read as a call.

Such an agent writes a block of shell code (mini-swe-agent, SWE-agent), `<function=bash>` with parameters (OpenHands),
`<execute_bash>`, or an element with arguments (`<read_file><path>`, Cline). Its framework sends the outcome as a user
message. The call says whether that outcome is the text of a file, a search, or the output of a program.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from proxy.chat.message import Call, Message

MAX_ACTION_CHARS = 20_000
"""Characters of an answer, from its end, that are searched for an action."""
_FENCED = re.compile(
    r"^[^\S\n]{0,8}```(?P<language>[\w-]{0,40})[^\S\n]*\n(?P<code>.*?)^[^\S\n]{0,8}```", re.MULTILINE | re.DOTALL
)
_SHELLS = frozenset(("", "bash", "sh", "shell", "console", "zsh", "powershell", "mswea_bash_command"))
"""Languages of a block that is run by a shell. SWE-agent's blocks have none."""
_FUNCTION = re.compile(r"<function=([\w.-]{1,64})>")
_PARAMETER = re.compile(r"<(parameter)=([\w.-]{1,64})>")
_MEMBER = re.compile(r"<(([a-z]\w{0,40}))>")
_ELEMENT_END = re.compile(r"</([a-z]{2,20}(?:_[a-z]{2,20}){1,5})>")
_EXECUTES = "execute_"
_OF_FILES = frozenset(
    ("open", "goto", "scroll_up", "scroll_down", "edit", "create", "insert", "find_file", "search_dir")
)
"""Commands of SWE-agent that are tools of its own."""


def find_text_call(messages: Sequence[Message], n: int) -> Call | None:
    """Return the call whose outcome the user message messages[n] is; None if the answer before it shows none."""
    for at in range(n - 1, -1, -1):
        if messages[at].role == "assistant":
            return messages[at].derive(read_text_call)
    return None


def read_text_call(message: Message) -> Call | None:
    """Return the last action in the text of an answer as a call; None if there is none that says what it does."""
    text = message.text[-MAX_ACTION_CHARS:]
    function = _FUNCTION.match(text, max(0, text.rfind("<function=")))
    if function is not None:
        return _make_call(function[1], _read_members(_PARAMETER, text[function.end() :]))
    elements = [*_ELEMENT_END.finditer(text)] if "</" in text else []
    begin = text.rfind(f"<{elements[-1][1]}>", 0, elements[-1].start()) if elements else -1
    if begin >= 0:
        name, inner = elements[-1][1], text[begin + len(elements[-1][1]) + 2 : elements[-1].start()]
        if name.startswith(_EXECUTES) and "<command>" not in inner:
            return _make_call(name.removeprefix(_EXECUTES), {"command": inner.strip()})
        return _make_call(name, _read_members(_MEMBER, inner))
    blocks = [*_FENCED.finditer(text)] if "```" in text else []
    if blocks and blocks[-1]["language"].lower() in _SHELLS:
        return _read_shell_block(blocks[-1]["code"].strip())
    return None


def _read_members(begin: re.Pattern[str], text: str) -> dict[str, str]:
    """Return the values by their names. begin: the pattern of an opening tag, with the names of element and value."""
    values: dict[str, str] = {}
    found = begin.search(text)
    while found is not None:
        end = text.find(f"</{found[1]}>", found.end())
        if end >= 0:
            values[found[2]] = text[found.end() : end].strip()
        found = begin.search(text, max(end, found.end()))
    return values


def _read_shell_block(code: str) -> Call:
    """Return the call of a block of shell code, or of a command that is a tool of SWE-agent's."""
    first, _, rest = code.partition("\n")[0].partition(" ")
    if first in _OF_FILES:
        return _make_call(first, {"path": rest.split(" ")[0]} if first in ("open", "create") else {})
    return _make_call("bash", {"command": code})


def _make_call(name: str, arguments: dict[str, str]) -> Call:
    return Call("", name, msgspec.json.encode(arguments).decode())
