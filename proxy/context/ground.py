"""Facts about a conversation, kept from its last request and extended by the new messages of this one.

An agent sends its whole history again, with two messages more. The work of a request must not grow with the history. So
the facts of the last request are kept with it (`Request.notes`, which the next request of the history carries) and are
extended. A value is copied before it is extended. So two requests that continue the same prefix do not disturb each
other, even in two threads.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from proxy.chat import group, key
from proxy.chat.group import Group
from proxy.chat.message import Message, Request
from proxy.chat.observation import is_observation
from proxy.chat.tokens import Weigh
from proxy.context.plan import Applied, Edit, Ground

_NOTE = "ground"


def of(request: Request, keys: Sequence[bytes], weigh: Weigh, observation: re.Pattern[str] | None) -> Ground:
    """The facts that the request's messages give by themselves. observation: see `Policy`."""
    messages, keys = request.messages, tuple(keys)
    known: Ground | None = request.notes.get(_NOTE)
    if known is None or not (
        known.weigh is weigh
        and known.observation is observation
        and messages[: len(known.messages)] == known.messages
        and keys[: len(known.keys)] == known.keys
    ):
        known = None
    elif len(messages) == len(known.messages):
        return known
    grown = request.notes[_NOTE] = _grown(request, keys, weigh, observation, known)
    return grown


def _grown(
    request: Request,
    keys: tuple[bytes, ...],
    weigh: Weigh,
    observation: re.Pattern[str] | None,
    known: Ground | None,
) -> Ground:
    messages = request.messages
    begin = len(known.messages) if known else 0
    new = messages[begin:]
    requests = [*known.requests] if known else []
    answers = [*known.answers] if known else []
    marked = [*known.marked] if known else []
    prompt = known.prompt if known else -1
    count = len(answers)
    for n, message in enumerate(new, begin):
        if message.role == "assistant":
            count += 1
            answers.append(n)
        elif message.role == "user":
            prompt = n
        if message.marked:
            marked.append(n)
        requests.append(count)
    results = [m.is_result or is_observation(messages, n, observation) for n, m in enumerate(new, begin)]
    return Ground(
        messages=messages,
        keys=keys,
        weigh=weigh,
        observation=observation,
        whole=[*(known.whole if known else ()), *map(weigh, new)],
        requests=requests,
        is_result=[*(known.is_result if known else ()), *results],
        answers=answers,
        marked=marked,
        prompt=prompt,
        steps=group.steps(messages, known.steps if known else ()),
        groups=_groups(request, keys, observation, known),
        facts=dict(known.facts) if known else {},
        applied=known.applied if known else None,
    )


def _groups(
    request: Request, keys: tuple[bytes, ...], observation: re.Pattern[str] | None, known: Ground | None
) -> list[Group]:
    """The groups of the client's request if no message was added or left out. Its own note of groups is not changed."""
    count, found = request.noted(group.NOTE, (keys[0], observation))
    if found is not None and count == len(request.messages):
        groups: list[Group] = found
        return groups
    return group.groups(request.messages, keys, observation, known.groups if known else ())


def applied(ground: Ground, given: Mapping[bytes, Edit]) -> Applied:
    """The messages with those of the thread's edits that concern them."""
    known = ground.applied
    if known is not None and not ((known.given is given or not (known.given or given)) and known.number == len(given)):
        known = None
    if known is not None and known.count == len(ground.messages):
        return known
    grown = ground.applied = _applied(ground, given, known)
    return grown


def _applied(ground: Ground, given: Mapping[bytes, Edit], known: Applied | None) -> Applied:
    begin = known.count if known else 0
    tokens = [*known.tokens] if known else []
    marks = [*known.marks] if known else []
    sizes = [*known.sizes] if known else []
    new: dict[bytes, Edit] = {}
    messages, keys, whole = ground.messages, ground.keys, ground.whole
    for n in range(begin, len(messages)):
        message, size = messages[n], whole[n]
        edit = given.get(keys[n]) if given and not message.is_system else None
        if edit is not None:
            new[keys[n]] = edit
            size = edit.after
        tokens.append(size)
        if edit is None or edit.action != "gone":
            marks.append(mark(message, edit))
            sizes.append(size)
    stages = known.stages if known else frozenset()
    return Applied(
        count=len(messages),
        given=given,
        number=len(given),
        edits={**known.edits, **new} if known and new else known.edits if known else new,
        tokens=tokens,
        marks=marks,
        sizes=sizes,
        losses=(known.losses if known else 0) + sum(edit.loses for edit in new.values()),
        whole=(not known or known.whole) and not any(e.action in ("gone", "text_only") for e in new.values()),
        stages=stages.union(edit.stage for edit in new.values()) if new else stages,
        facts=dict(known.facts) if known and not new else {},
    )


def mark(message: Message, edit: Edit | None) -> bytes:
    """16 bytes that change whenever the message's outgoing bytes change."""
    if edit is None:
        return message.form
    return message.derive(
        lambda m: key.form(m.form + edit.action.encode() + (edit.text or "").encode("utf-8", "surrogatepass")),
        ("mark", edit),
    )


def with_texts(mark: bytes, texts: Sequence[str]) -> bytes:
    """The mark of a message that has these texts behind it. The system prompt of literal policies has such texts."""
    for text in texts:
        mark = key.form(mark + text.encode("utf-8", "surrogatepass"))
    return mark


def alike(one: tuple[bytes, ...], other: tuple[bytes, ...]) -> int:
    """Number of marks at the front that are the same in both."""
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while high - low > 1:  # one[:low] is the same, one[:high] is not
        middle = (low + high) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle
    return low
