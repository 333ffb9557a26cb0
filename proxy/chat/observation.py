"""User messages that are really the output of a tool, as agents without tool calls write it.

Such an agent acts in plain text (`Action: search[x]`, a code block, `<execute_bash>`). Its framework sends the outcome
as the user's next message: `Observation: ...` (ReAct, smolagents), `<returncode>0</returncode>` (mini-swe-agent),
`EXECUTION RESULT of [...]:` (OpenHands), `[read_file for 'x'] Result:` (Cline). Both the action and the outcome are
required, since people begin a message with "Result:" as well. Some outcomes begin with a word that people use too. Such
a message is an observation only after an action in the words of a framework.
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
"""Pattern of an action in the words of a framework."""
_CODE = "```"
"""Mark of a block of code: an action to some frameworks, and an answer to many people."""

_OBSERVES = re.compile(
    r"\s*(?:call id:[^\n]{0,200}\n\s*)?(?:"
    r"[\[#* \t]*(?:observation|execution (?:logs?|results?)|tool (?:results?|outputs?|responses?)|command output)\b"
    r"|<(?:observation|returncode|exit_code|tool_response|tool_result|function_results?|execution_results?)\b"
    r"|\[[\w.-]{2,40}(?: for [^\n\]]{0,200})?\] results?:"
    r")",
    re.IGNORECASE,
)
"""Pattern of the beginning of an outcome that only a framework writes."""
_MAY_OBSERVE = re.compile(
    r"\s*(?:<(?:output|result|stdout|stderr|error)>"
    r"|(?:outputs?|results?|stdout|stderr|errors?|exit code)\b[^\n:]{0,40}:)",
    re.IGNORECASE,
)
"""Pattern of the beginning of an outcome in words that people use too."""
MAX_SEARCHED_CHARS = 20_000
"""Characters of an answer, from its end, that are searched for an action."""


def is_observation(messages: Sequence[Message], n: int, patterns: re.Pattern[str] | None = None) -> bool:
    """True if messages[n] is a user message that is really tool output. patterns: patterns of observations that a user
    has configured."""
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
    """Return 2 if the message begins like an observation, 1 if it may be an observation or a person's message, 0 if
    neither."""
    return 2 if _OBSERVES.match(message.text) else 1 if _MAY_OBSERVE.match(message.text) else 0


def _acts(message: Message) -> int:
    """Return 2 if the end of the message holds an action, 1 if it holds a block of code, 0 if neither."""
    text = message.text[-MAX_SEARCHED_CHARS:]
    return 2 if _ACTS.search(text) else 1 if _CODE in text else 0
