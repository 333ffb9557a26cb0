"""Steps and groups: messages that can only be kept or removed together; and user messages in which no user speaks.

A step is an assistant message with the results of its calls, and with what a client adds to them. Every strict upstream
refuses half a step (W1 and W2 in `context.validate`). A group is a user prompt with all that it caused (after
std::slop's `group_id`). Call ids are reused within recorded runs. So results are paired by position, never by looking
an id up in the whole history.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from operator import attrgetter

import msgspec

from proxy.chat.chain import public_id
from proxy.chat.message import Message, Request

_ACTS = re.compile(
    r"^[ \t*#]*(?:action(?: input)?|tool(?: call)?|function call|calling tools?|code|execute)[ \t*]*:"
    r"|<(?:function|tool_call|tool_use|invoke|execute|action|code|bash|run_command|read_file|write_to_file"
    r"|execute_command)\b|<execute_\w+>"
    r"|</[a-z]{2,20}(?:_[a-z]{2,20}){1,5}>\s{0,8}\Z"
    r'|^[^\S\n]*+\{\s*+"(?:action|tool|tool_name|function|command|name)"\s*:',
    re.IGNORECASE | re.MULTILINE,
)
"""Pattern of an action in the words of a framework."""
_CODE = "```"
"""Mark of a block of code: an action to some frameworks, and an answer to many people."""

_OBSERVES = re.compile(
    r"\s*+(?:call id:[^\n]{0,200}\n\s*+)?(?:"
    r"[\[#* \t]*+(?:observation|execution (?:logs?|results?)|tool (?:results?|outputs?|responses?)|command output)\b"
    r"|<(?:observation|returncode|exit_code|tool_response|tool_result|function_results?|execution_results?)\b"
    r"|\[[\w.-]{2,40}(?: for [^\n\]]{0,200})?\] results?:"
    r"|<system>\s*+(?:ran (?:allowlisted )?command: `|executed code block\b)"
    r")",
    re.IGNORECASE,
)
"""Pattern of the beginning of an outcome that only a framework writes. Its repetitions give nothing back: a message of
blanks would take quadratic time."""
_ENDS_IN_PROMPT = re.compile(
    r"\n\((?:Open file|Current directory|Interactive session): [^\n]{0,1000}\)\s{0,8}bash-\$\s{0,8}\Z"
)
"""Pattern of the end of an outcome that is the prompt of SWE-agent's shell."""
_PROMPT_CHARS = 1_100
"""Characters at the end of a message in which that prompt stands."""
_MAY_OBSERVE = re.compile(
    r"\s*+(?:<(?:output|result|stdout|stderr|error)>"
    r"|(?:outputs?|results?|stdout|stderr|errors?|exit code)\b[^\n:]{0,40}:)",
    re.IGNORECASE,
)
"""Pattern of the beginning of an outcome in words that people use too."""
_ADDED = re.compile(
    r"\s*+<(?P<tag>system[-_]reminder|environment_(?:details|context)|ide_\w{1,40}|new-diagnostics|[\w-]{1,40}-hook)\b[^<>]*>"
)
"""Pattern of the beginning of a text that a client adds by itself."""
_QUOTES_USER = re.compile(r"\buser (?:has )?(?:just )?sent\b", re.IGNORECASE)
"""Pattern of such a text with a message of the user in it (Claude Code, OpenCode)."""
_QUOTES_USER_WITHIN = 300
"""Characters at the beginning of such a text in which it says so."""
MAX_SEARCHED_CHARS = 20_000
"""Characters of an answer, from its end, that are searched for an action."""


class Step(msgspec.Struct, frozen=True):
    """messages[start:end]: one message, or an assistant message with calls and the results after it. What a client adds
    to the results belongs to the step (see `is_beside_results`)."""

    start: int
    end: int


class Group(msgspec.Struct, frozen=True):
    """messages[start:end]: user messages in a row and everything up to the next one, system messages included."""

    id: str
    """The public id of the first message."""
    start: int
    prompt_end: int
    """The end of the user messages that open the group."""
    end: int


def split_steps(messages: Sequence[Message], known: Sequence[Step] = ()) -> list[Step]:
    """The steps of a conversation, each message in one. known: the steps of a prefix of the conversation."""
    steps = list(known[:-1])  # the last known step may continue
    at = known[-1].start if known else 0
    while at < len(messages):
        end = at + 1
        if messages[at].calls:
            while end < len(messages) and (messages[end].is_result or (end > at + 1 and _is_added(messages[end]))):
                end += 1
        steps.append(Step(at, end))
        at = end
    return steps


def join_steps(request: Request, steps: Sequence[Step]) -> Sequence[Step]:
    """The steps of a request, each with those that its answer goes on in (`Message.continues`): an upstream refuses a
    part of them as it refuses half a step."""
    messages = request.messages
    if not request.find_indices("continued", _is_continued):
        return steps
    joined: list[Step] = []
    for step in steps:
        before = len(joined) - 1
        while before > 0 and messages[joined[before].start].is_system:
            before -= 1
        if messages[step.start].continues and before >= 0 and messages[joined[before].start].role == "assistant":
            joined[before:] = [Step(joined[before].start, step.end)]
        else:
            joined.append(step)
    return joined


def _is_continued(message: Message) -> bool:
    return message.continues


GROUPS_MEMO = "groups"
"""Key of the groups in `Request.memo_values`."""


def split_request_groups(
    request: Request, keys: Sequence[bytes], observation: re.Pattern[str] | None = None
) -> list[Group]:
    """The groups of a request, computed incrementally from the groups of its known prefix."""
    return request.memo(
        GROUPS_MEMO,
        lambda _, known: split_groups(request.messages, keys, observation, known or ()),
        (keys[0], observation),  # the first key depends on the tenant, and the groups' ids on the keys
    )


def list_group_ids(
    request: Request, keys: Sequence[bytes], observation: re.Pattern[str] | None, begin: int
) -> list[str]:
    """The id of the group that each of the request's messages belongs to, from index `begin` on."""
    groups = split_request_groups(request, keys, observation)
    at = bisect_right(groups, begin, key=attrgetter("start")) - 1
    return [one.id for one in groups[max(at, 0) :] for _ in range(max(one.start, begin), one.end)]


def split_groups(
    messages: Sequence[Message],
    keys: Sequence[bytes],
    observation: re.Pattern[str] | None = None,
    known: Sequence[Group] = (),
) -> list[Group]:
    """The groups of a conversation, in order, covering every message once.

    Messages before the first user message (system prompt, a greeting) belong to the first group. A user message that is
    really tool output opens no group, for agents without tool calls (see `is_observation`, which gets `observation`).
    Nor does one that only goes with results (`is_beside_results`). known: the groups of a prefix of these messages.
    """
    if not messages:
        return []
    begin = known[-1].end if known else 0
    opened = len(known) > 1 or any(is_prompt(messages, n, observation) for n in range(begin))
    starts = [known[-1].start if known else 0]
    previous = next((n for n in range(begin - 1, -1, -1) if not messages[n].is_system), -1)
    previous_user = previous >= 0 and is_prompt(messages, previous, observation)
    for n in range(begin, len(messages)):
        message = messages[n]
        is_user_prompt = is_prompt(messages, n, observation)
        if is_user_prompt and not previous_user:
            if opened:
                starts.append(n)
            opened = True
        if not message.is_system:  # a system message between two user messages does not part them
            previous_user = is_user_prompt
    groups = list(known[:-1])
    for start, end in zip(starts, [*starts[1:], len(messages)], strict=True):
        first = next((n for n in range(start, end) if messages[n].role == "user"), start)
        prompt_end = first
        while prompt_end < end and (messages[prompt_end].role == "user" or messages[prompt_end].is_system):
            prompt_end += 1
        same = known and start == known[-1].start and first < known[-1].end
        groups.append(Group(known[-1].id if same else public_id(keys[first]), start, prompt_end, end))
    return groups


def is_prompt(messages: Sequence[Message], n: int, observation: re.Pattern[str] | None) -> bool:
    """True if a user speaks in messages[n]: it is no tool output, and does not only go with results."""
    return (
        messages[n].role == "user"
        and not is_beside_results(messages, n)
        and not is_observation(messages, n, observation)
    )


def find_last_user(messages: Sequence[Message], is_result: Sequence[bool] | None = None) -> int:
    """The index of the last message in which a user speaks, -1 if there is none. is_result: the messages that are tool
    output, which then do not count."""
    for n in range(len(messages) - 1, -1, -1):
        if messages[n].role == "user" and not (is_result and is_result[n]) and not is_beside_results(messages, n):
            return n
    return -1


def ends_on_prompt(messages: Sequence[Message]) -> bool:
    """True if the last message is a new prompt of the user, and not a result or a text that goes with one."""
    return messages[-1].role == "user" and not is_beside_results(messages, len(messages) - 1)


def is_beside_results(messages: Sequence[Message], n: int) -> bool:
    """True if messages[n] is a user message that only goes with the tool results before it.

    A client puts two things beside results. One is a picture or a document, where a result can have none. The other is
    a text that it adds by itself, such as a `<system-reminder>`. A reminder that holds a message of the user does not
    count.
    """
    for at in range(n - 1, -1, -1):
        before = messages[at]
        if before.is_result:
            return _is_added(messages[n])
        if not (before.is_system or (before.role == "user" and _is_added(before))):
            return False
    return False


def _is_added(message: Message) -> bool:
    return message.role == "user" and message.derive(_has_only_added_content)


def _has_only_added_content(message: Message) -> bool:
    text, end = message.text, 0
    while (found := _ADDED.match(text, end)) is not None:
        closing = f"</{found['tag']}>"
        closed = text.find(closing, found.end())
        if closed < 0 or _QUOTES_USER.search(text, found.end(), min(closed, found.end() + _QUOTES_USER_WITHIN)):
            return False
        end = closed + len(closing)
    return bool(end or message.media_count) and not text[end:].strip()


def is_observation(messages: Sequence[Message], n: int, patterns: re.Pattern[str] | None = None) -> bool:
    """True if messages[n] is a user message that is really the output of a tool, as agents without tool calls write it.
    patterns: patterns of observations that a user has configured.

    Such an agent acts in plain text (`Action: search[x]`, a code block, `<execute_bash>`). Its framework sends the
    outcome as the user's next message: `Observation: ...` (ReAct, smolagents), `<returncode>0</returncode>`
    (mini-swe-agent), `EXECUTION RESULT of [...]:` (OpenHands), `[read_file for 'x'] Result:` (Cline), `<system> Ran
    command:` (gptme). Others end with a prompt of their shell: `(Current directory: /x)`, `bash-$` (SWE-agent). Both
    the action and the outcome are required, since people begin a message with "Result:" as well. Some outcomes begin
    with a word that people use too. Such a message is an observation only after an action in the words of a framework.
    """
    message = messages[n]
    if message.role != "user":
        return False
    if patterns is not None and patterns.search(message.text):
        return True
    score = _read_observation_score(message)
    if not score:
        return False
    for at in range(n - 1, -1, -1):
        before = messages[at]
        if before.role == "assistant":
            return not before.calls and before.derive(_rate_action) + score > 2
        if before.role == "user" and not _read_observation_score(before):
            return False
    return False


def follows_action(messages: Sequence[Message], n: int) -> bool:
    """True if messages[n] stands where a tool's output comes: the message before it makes a call, or acts in the words
    of a framework. Some agents send the output as a user message with nothing around it."""
    before = next((messages[at] for at in range(n - 1, -1, -1) if not messages[at].is_system), None)
    if before is None or before.role != "assistant":
        return False
    return bool(before.calls) or before.derive(_rate_action) == _SURE_ACTION


def _read_observation_score(message: Message) -> int:
    found: int | None = message.derived_values.get(_rate_outcome)
    if found is None:
        found = message.derived_values[_rate_outcome] = _rate_outcome(message)
    return found


def _rate_outcome(message: Message) -> int:
    """2 if the message has the form of an observation, 1 if it may be one or a person's message, else 0."""
    text = message.text
    if _OBSERVES.match(text) or _ENDS_IN_PROMPT.search(text, max(0, len(text) - _PROMPT_CHARS)):
        return 2
    return 1 if _MAY_OBSERVE.match(text) else 0


_SURE_ACTION = 2


def _rate_action(message: Message) -> int:
    """Return _SURE_ACTION if the end of the message holds an action, 1 if it holds a block of code, 0 if neither."""
    text = message.text[-MAX_SEARCHED_CHARS:]
    return _SURE_ACTION if _ACTS.search(text) else 1 if _CODE in text else 0
