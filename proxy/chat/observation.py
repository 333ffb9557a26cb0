"""User messages that are really the output of a tool, as agents without tool calls write it.

Such an agent acts in plain text (`Action: search[x]`, a code block, `<execute_bash>`), and its framework brings the
outcome as the user's next message: `Observation: ...` (ReAct, smolagents), `<returncode>0</returncode>`
(mini-swe-agent), `EXECUTION RESULT of [...]:` (OpenHands), `[read_file for 'x'] Result:` (Cline). Both have to be
there, since people begin a message with "Result:" as well. What begins with a word that people use too is taken for an
observation only behind an action that no person is answered with.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from proxy.chat.message import Message

_ACTS = re.compile(
    r"^[ \t*#]*(?:action(?: input)?|tool(?: call)?|function call|calling tools?|code|execute)[ \t*]*:"
    r"|<(?:function|tool_call|tool_use|invoke|execute|action|code|bash|run_command|read_file|write_to_file"
    r"|execute_command)\b|<execute_\w+>"
    r'|^\s*\{\s*"(?:action|tool|tool_name|function|command|name)"\s*:',
    re.IGNORECASE | re.MULTILINE,
)
"""An action in the words of a framework."""
_CODE = "```"
"""A block of code: an action to some frameworks, and an answer to many people."""

_OBSERVES = re.compile(
    r"\s*(?:call id:[^\n]{0,200}\n\s*)?(?:"
    r"[\[#* \t]*(?:observation|execution (?:logs?|results?)|tool (?:results?|outputs?|responses?)|command output)\b"
    r"|<(?:observation|returncode|exit_code|tool_response|tool_result|function_results?|execution_results?)\b"
    r"|\[[\w.-]{2,40}(?: for [^\n\]]{0,200})?\] results?:"
    r")",
    re.IGNORECASE,
)
"""How what a framework brings begins."""
_MAY_OBSERVE = re.compile(
    r"\s*(?:<(?:output|result|stdout|stderr|error)>"
    r"|(?:outputs?|results?|stdout|stderr|errors?|exit code)\b[^\n:]{0,40}:)",
    re.IGNORECASE,
)
"""The same in words that people use too."""
LOOK = 20_000
"""Characters of an answer that are looked at, from its end."""


def is_observation(messages: Sequence[Message], n: int, patterns: re.Pattern[str] | None = None) -> bool:
    """Whether messages[n] is a user message that is really tool output. patterns: for those that a user has named."""
    message = messages[n]
    if message.role != "user":
        return False
    if patterns is not None and patterns.search(message.text):
        return True
    likeness = message.derive(_begins)
    if not likeness:
        return False
    for at in range(n - 1, -1, -1):
        before = messages[at]
        if before.role == "assistant":
            return not before.calls and before.derive(_acts) + likeness > 2
        if before.role == "user" and not before.derive(_begins):
            return False
    return False


def _begins(message: Message) -> int:
    """2: like an observation. 1: as one may, or a person's message. 0: like none."""
    return 2 if _OBSERVES.match(message.text) else 1 if _MAY_OBSERVE.match(message.text) else 0


def _acts(message: Message) -> int:
    """2: it holds an action. 1: code. 0: neither."""
    text = message.text[-LOOK:]
    return 2 if _ACTS.search(text) else 1 if _CODE in text else 0
