"""Facts about a conversation, kept from its last request and extended by the new messages of this one.

An agent sends its whole history again, with two messages more. The work of a request must not grow with the history. So
the facts of the last request are kept with it (`Request.memo_values`, which the next request of the history carries)
and are extended. A value is copied before it is extended. So two requests that continue the same prefix do not disturb
each other, even in two threads."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from proxy.chat import chain, group
from proxy.chat.group import Group, is_observation
from proxy.chat.message import Message, Request
from proxy.chat.tokens import TokenCounter
from proxy.context.plan import Edit, EditedHistory, History

_NOTE = "ground"


def build(request: Request, keys: Sequence[bytes], weigh: TokenCounter, observation: re.Pattern[str] | None) -> History:
    """The facts that the request's messages give by themselves. observation: see `Policy`."""
    messages, keys = request.messages, tuple(keys)
    known: History | None = request.memo_values.get(_NOTE)
    if known is None or not (
        known.weigh is weigh
        and known.observation is observation
        and messages[: len(known.messages)] == known.messages
        and keys[: len(known.keys)] == known.keys
    ):
        known = None
    elif len(messages) == len(known.messages):
        return known
    grown = request.memo_values[_NOTE] = _extend_history(request, keys, weigh, observation, known)
    return grown


def _extend_history(
    request: Request,
    keys: tuple[bytes, ...],
    weigh: TokenCounter,
    observation: re.Pattern[str] | None,
    known: History | None,
) -> History:
    messages = request.messages
    begin = len(known.messages) if known else 0
    new = messages[begin:]
    requests = [*known.request_counts] if known else []
    answers = [*known.assistant_indexes] if known else []
    marked = [*known.marked_indexes] if known else []
    prompt = known.last_user_index if known else -1
    count = len(answers)
    for n, message in enumerate(new, begin):
        if message.role == "assistant":
            count += 1
            answers.append(n)
        elif message.role == "user":
            prompt = n
        if message.has_cache_mark:
            marked.append(n)
        requests.append(count)
    results = [m.is_result or is_observation(messages, n, observation) for n, m in enumerate(new, begin)]
    return History(
        messages=messages,
        keys=keys,
        weigh=weigh,
        observation=observation,
        original_tokens=[*(known.original_tokens if known else ()), *map(weigh, new)],
        request_counts=requests,
        is_result=[*(known.is_result if known else ()), *results],
        assistant_indexes=answers,
        marked_indexes=marked,
        last_user_index=prompt,
        steps=group.split_steps(messages, known.steps if known else ()),
        groups=_groups(request, keys, observation, known),
        memo_values=dict(known.memo_values) if known else {},
        edited_history=known.edited_history if known else None,
    )


def _groups(
    request: Request, keys: tuple[bytes, ...], observation: re.Pattern[str] | None, known: History | None
) -> list[Group]:
    """The groups of the client's request if no message was added or left out. Its own note of groups is not changed."""
    count, found = request.read_memo(group.GROUPS_MEMO, (keys[0], observation))
    if found is not None and count == len(request.messages):
        groups: list[Group] = found
        return groups
    return group.split_groups(request.messages, keys, observation, known.groups if known else ())


def apply_edits(history: History, edits: Mapping[bytes, Edit]) -> EditedHistory:
    """The messages with those of the thread's edits that concern them."""
    known = history.edited_history
    if known is not None and not (
        (known.branch_edits is edits or not (known.branch_edits or edits)) and known.branch_edit_count == len(edits)
    ):
        known = None
    if known is not None and known.message_count == len(history.messages):
        return known
    grown = history.edited_history = _extend_edited_history(history, edits, known)
    return grown


def _extend_edited_history(ground: History, given: Mapping[bytes, Edit], known: EditedHistory | None) -> EditedHistory:
    begin = known.message_count if known else 0
    tokens = [*known.tokens] if known else []
    marks = [*known.marks] if known else []
    sizes = [*known.sizes] if known else []
    new: dict[bytes, Edit] = {}
    messages, keys, whole = ground.messages, ground.keys, ground.original_tokens
    for n in range(begin, len(messages)):
        message, size = messages[n], whole[n]
        edit = given.get(keys[n]) if given and not message.is_system else None
        if edit is not None:
            new[keys[n]] = edit
            size = edit.after
        tokens.append(size)
        if edit is None or edit.action != "gone":
            marks.append(compute_mark(message, edit))
            sizes.append(size)
    stages = known.stages if known else frozenset()
    return EditedHistory(
        message_count=len(messages),
        branch_edits=given,
        branch_edit_count=len(given),
        edits={**known.edits, **new} if known and new else known.edits if known else new,
        tokens=tokens,
        marks=marks,
        sizes=sizes,
        lossy_edit_count=(known.lossy_edit_count if known else 0) + sum(edit.is_lossy for edit in new.values()),
        is_complete=(not known or known.is_complete)
        and not any(e.action in ("gone", "text_only") for e in new.values()),
        stages=stages.union(edit.stage for edit in new.values()) if new else stages,
        memo_values=dict(known.memo_values) if known and not new else {},
    )


def compute_mark(message: Message, edit: Edit | None) -> bytes:
    """16 bytes that change whenever the message's outgoing bytes change."""
    if edit is None:
        return message.form
    return message.derive(
        lambda m: chain.compute_form(
            m.form + edit.action.encode() + (edit.text or "").encode("utf-8", "surrogatepass")
        ),
        ("mark", edit),
    )


def add_texts_to_mark(mark: bytes, texts: Sequence[str]) -> bytes:
    """The mark of a message that has these texts behind it. The system prompt of literal policies has such texts."""
    for text in texts:
        mark = chain.compute_form(mark + text.encode("utf-8", "surrogatepass"))
    return mark


def count_common_marks(marks: tuple[bytes, ...], other_marks: tuple[bytes, ...]) -> int:
    """Number of marks at the front that are the same in both."""
    low, high = 0, min(len(marks), len(other_marks))
    if marks[:high] == other_marks[:high]:
        return high
    while high - low > 1:  # one[:low] is the same, one[:high] is not
        middle = (low + high) // 2
        if marks[low:middle] == other_marks[low:middle]:
            low = middle
        else:
            high = middle
    return low
