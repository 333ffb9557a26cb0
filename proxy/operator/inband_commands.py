"""In-band commands: lines that a user types into the conversation, read by the table of actions, run and answered."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from proxy.errors import Conflict, ProxyError
from proxy.exchange.inband import COMMAND_WORDS, REPLY_MARK, is_command_line
from proxy.exchange.services import Services
from proxy.operator.actions import ACTIONS, ACTIONS_BY_NAME, Action
from proxy.operator.response_models import (
    DecisionResult,
    GroupListItem,
    PromptDetails,
    PromptInsert,
    PromptMessage,
    RebuildResult,
    ScratchpadDetails,
)
from proxy.sessions.operator_decisions import SessionSettings

MAX_REPLY_CHARS = 200_000
"""Limit in characters on a reply."""
DEFAULT_GROUPS: Final = 10
"""Number that stands for [N] where none is given."""
ALIASES: Final = {"/message": "/message list", "/messages": "/message list"}
"""Lines that stand for others. In each other line, `/messages` stands for `/message`."""

_HELP_LINES: Final = [
    *((one.inband.words, one.inband.help) for one in ACTIONS if one.inband is not None),
    ("/messages", "the same as /message"),
]
_HELP_LINES.sort(key=lambda line: COMMAND_WORDS.index(line[0].split()[0]))
HELP: Final = "\n".join(["Commands:", *(f"{words:<22} {text}" for words, text in _HELP_LINES)])


@dataclass(frozen=True, slots=True)
class InbandCommand:
    """A parsed command. name: the action, or `help`. group, number: a group's id and a count, if it has them."""

    name: str
    group: str = ""
    number: int = 0


def parse_command(text: str) -> InbandCommand | None:
    """Return the command that a message is, None where it is none."""
    if not is_command_line(text):
        return None
    words = ALIASES.get(text.strip(), text).split()
    words[0] = "/message" if words[0] == "/messages" else words[0]
    found = (_match_words(one.name, one.inband.words.split(), words) for one in ACTIONS if one.inband is not None)
    return next((command for command in found if command is not None), InbandCommand("help"))


def _match_words(name: str, form: Sequence[str], words: Sequence[str]) -> InbandCommand | None:
    """Return the command where the words have this form."""
    if form[-1] == "[N]" and len(words) == len(form) - 1:
        words = [*words, str(DEFAULT_GROUPS)]
    if len(words) != len(form):
        return None
    group, number = "", 0
    for expected, word in zip(form, words, strict=True):
        if expected == "GID":
            group = word
        elif expected in ("N", "[N]"):
            if not re.fullmatch("[0-9]{1,5}", word) or (expected == "[N]" and not int(word)):
                return None
            number = int(word)
        elif expected != word:
            return None
    return InbandCommand(name, group, number)


async def run_command(
    services: Services, tenant: str, session: str, line: str, *, branch: str | None = None, is_shared: bool = False
) -> str:
    """Return the reply to a command; the help where the line is no command. Raises nothing of the proxy: the reply says
    why a command failed. is_shared: other conversations may be in the session, so only what is about the branch
    runs."""
    command = parse_command(line) or InbandCommand("help")
    action = ACTIONS_BY_NAME.get(command.name)
    try:
        if is_shared and action is not None and "branch" not in action.arguments:
            raise Conflict(
                "this is about a whole session, which other conversations share that began alike",
                hint="Give each conversation a name of its own: x-context-session, or a path /s/NAME/v1.",
            )
        text = HELP if action is None else await _run(services, (tenant, session), action, command, branch)
    except ProxyError as problem:
        text = str(problem)
    if len(text) > MAX_REPLY_CHARS:
        text = text[:MAX_REPLY_CHARS] + "\n[cut here: the admin API and the command line show all of it]"
    return f"{REPLY_MARK} {text}"


async def _run(
    services: Services, place: tuple[str, str], action: Action, command: InbandCommand, branch: str | None
) -> str:
    typed = {"ids": [command.group], "group": command.group, "groups": command.number, "last": command.number,
             "branch": branch}  # fmt: skip
    given = {name: typed[name] for name in action.arguments if name in typed}
    async with action.take_turn(services, place[0]):
        return REPLIES[action.result](await action.function(services, *place, **given))


def _render_window(settings: SessionSettings) -> str:
    return f"The last {settings.window} groups stay." if settings.window else "The whole history stays."


def _render_rebuild(rebuilt: RebuildResult) -> str:
    return rebuilt.text or f"The next answer is asked for a new state ({rebuilt.outcome})."


def _render_change(changed: DecisionResult) -> str:
    what = {"undo": "Undone", "drop": "Dropped", "restore": "Restored", "remove": "Removed for good"}[changed.action]
    note = f" ({changed.note})" if changed.note else ""
    messages = "1 message" if len(changed.messages) == 1 else f"{len(changed.messages)} messages"
    return f"{what}: group {', '.join(changed.groups)}, {messages}, {changed.tokens} tokens{note}"


def _render_list(lines: Sequence[GroupListItem]) -> str:
    rows = [
        f"{line.id}  {line.status:<8} {line.sent:>7} of {line.tokens:>7} tokens"
        f"  {line.snapshot if line.snapshot is not None else '-':>8}  {line.title}"
        for line in lines
    ]
    return "\n".join(["group       status      prompt    whole           reported  prompt", *rows])


def _render_prompt(shown: PromptDetails) -> str:
    """Return the prompt with each text of the proxy after the message that it is appended to, as it goes out."""
    behind = {
        n: [_render_insert(one) for one in shown.inserts if one.index == n] for n in {i.index for i in shown.inserts}
    }
    indexes = range(len(shown.messages))
    made = [text for n in indexes for text in (_render_message(shown.messages[n]), *behind.get(n, ()))]
    head = f"{shown.tokens_after} of {shown.tokens_before} tokens"
    return "\n\n".join(
        [head, *made, *(text for n, texts in sorted(behind.items()) if n not in indexes for text in texts)]
    )


def _render_insert(insert: PromptInsert) -> str:
    return f"[+ {insert.source}, from the proxy]\n{_quote_lines(insert.text.strip())}"


def _render_messages(messages: Sequence[PromptMessage]) -> str:
    return "\n\n".join(_render_message(message) for message in messages)


def _render_message(message: PromptMessage) -> str:
    why = f" ({message.why.stage}: {message.why.reason})" if message.why is not None else ""
    head = f"[{message.role} {message.id or '-'} {message.status}{why}]"
    if not isinstance(message.content, dict):
        return head
    content = message.content.get("content")
    text = content if isinstance(content, str) else "" if content is None else msgspec.json.encode(content).decode()
    called = message.content.get("tool_calls")
    calls = [msgspec.json.encode(call).decode() for call in called] if isinstance(called, list) else []
    return "".join((f"{head}\n{_quote_lines(text)}", *(f"\n-> {call}" for call in calls)))


def _quote_lines(text: str) -> str:
    """Return a text with a mark before each line: none passes for the head of another message."""
    return "\n".join(f"> {line}" for line in text.splitlines())


REPLIES: Final[Mapping[Any, Callable[[Any], str]]] = {
    SessionSettings: _render_window,
    PromptDetails: _render_prompt,
    RebuildResult: _render_rebuild,
    DecisionResult: _render_change,
    list[GroupListItem]: _render_list,
    list[PromptMessage]: _render_messages,
    ScratchpadDetails: lambda pad: pad.text or "The scratchpad is empty.",
}
"""Writers of the replies, by the type of an action's result."""
