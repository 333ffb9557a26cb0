"""The conversation as it would go out now: old edits repeated, sizes known, the cache predicted.

This is where a request and what is remembered of its thread meet; everything after it only looks at the View.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict, Unpack

from proxy.chat import group, key
from proxy.chat.message import Message, Request
from proxy.chat.tokens import PER_MESSAGE, Weigh
from proxy.context.front import system_texts
from proxy.context.plan import Edit, Found, View
from proxy.context.policy import Policy
from proxy.context.prices import Model
from proxy.context.session import Session
from proxy.memory.memos import Memo


class Beside(TypedDict, total=False):
    """What a View has that is neither in the request nor remembered of the thread: see `View`."""

    times: Sequence[float]
    found: Sequence[Found]
    relevance: Mapping[bytes, float]
    options: Mapping[str, str]
    offered: frozenset[str]
    guarded: frozenset[bytes]
    toll: int
    scratchpad: str
    memos: Sequence[Memo]


def build(
    request: Request,
    keys: Sequence[bytes],
    session: Session,
    policy: Policy,
    model: Model,
    now: float,
    weigh: Weigh,
    strategy: str,
    strategies: Sequence[str],
    **beside: Unpack[Beside],
) -> View:
    """The View of a request. Literal policies begin from the client's own history, all others from their old edits."""
    messages = request.messages
    edits, whole, tokens, requests = _counted(messages, keys, {} if policy.literal else session.edits, weigh)
    groups = group.groups(messages, keys, policy.observation)
    front = system_texts(request, session, policy)
    head = weigh.head(request.tools)
    window = session.limit or policy.window_of(model)
    return View(
        request=request,
        messages=messages,
        keys=keys,
        tokens=tokens,
        whole=whole,
        edits=edits,
        steps=group.steps(messages),
        groups=groups,
        active=groups[-1].start if groups else 0,
        head=head,
        cached=_cached(messages, keys, edits, tokens, head, session, model, now, front),
        requests=requests,
        model=model,
        budget=int(window * policy.budget) if window else None,
        weigh=weigh,
        strategies=strategies,
        strategy=strategy,
        is_result=[m.is_result or _observed(m, policy) for m in messages]
        if policy.observation
        else [m.is_result for m in messages],
        literal=policy.literal,
        now=now,
        state=session.state,
        answers=session.answers,
        said=session.said,
        pins=session.pins,
        **beside,
    )


def _counted(
    messages: Sequence[Message], keys: Sequence[bytes], old: Mapping[bytes, Edit], weigh: Weigh
) -> tuple[dict[bytes, Edit], list[int], list[int], list[int]]:
    """(edits in force here; tokens of each message as it came, and as it goes out; answers up to each).

    One pass: this runs over the whole history with every request.
    """
    edits: dict[bytes, Edit] = {}
    whole: list[int] = []
    tokens: list[int] = []
    requests: list[int] = []
    count = 0
    for message, k in zip(messages, keys, strict=True):
        size = weigh(message)
        whole.append(size)
        edit = old.get(k) if old and not message.is_system else None
        if edit is not None:
            edits[k] = edit
            size = edit.after
        tokens.append(size)
        if message.role == "assistant":
            count += 1
        requests.append(count)
    return edits, whole, tokens, requests


def edited_size(seen: View, index: int, text: str) -> int:
    """Tokens of messages[index] with another text: its calls, reasoning and media stay. Counted once a text, since
    literal policies make the same edits with every request."""
    message = seen.messages[index]
    size = PER_MESSAGE + counted(seen, message, text)
    if message.calls or message.reasoning or message.media:
        size += seen.whole[index] - PER_MESSAGE - counted(seen, message, message.text)
    return size


def counted(seen: View, message: Message, text: str) -> int:
    """Tokens of a text that goes into a message, remembered with it."""
    return message.derive(lambda _: seen.weigh.count(text), ("count", seen.weigh, text))


def _observed(message: Message, policy: Policy) -> bool:
    return bool(policy.observation and message.role == "user" and policy.observation.search(message.text))


def mark(message: Message, edit: Edit | None) -> bytes:
    """16 bytes that change whenever the message's outgoing bytes do."""
    if edit is None:
        return message.form
    return message.derive(
        lambda m: key.form(m.form + edit.action.encode() + (edit.text or "").encode("utf-8", "surrogatepass")),
        ("mark", edit),
    )


def with_texts(mark: bytes, texts: Sequence[str]) -> bytes:
    """The mark of a message that has these texts behind it, as the system prompt of literal policies has."""
    for text in texts:
        mark = key.form(mark + text.encode("utf-8", "surrogatepass"))
    return mark


def _cached(
    messages: Sequence[Message],
    keys: Sequence[bytes],
    edits: Mapping[bytes, Edit],
    tokens: Sequence[int],
    head: int,
    session: Session,
    model: Model,
    now: float,
    front: Sequence[str],
) -> int:
    """Tokens at the front that the provider's cache should hold, if the prompt went out as the View has it.

    The longest common prefix with the last prompt; nothing when that is longer ago than the provider keeps it, or
    the model caches nothing. After a restart the last prompt is unknown: then all up to the last answer counts as
    cached, since taking a warm cache for a cold one is the dearer mistake.
    """
    if model.cache == "none" or session.sent_at is None or now - session.sent_at > model.ttl_s:
        return 0
    same = found = head
    whole = not session.sent
    if session.sent:
        sent = iter(session.sent)
        for message, k, size in zip(messages, keys, tokens, strict=True):
            edit = None if message.is_system else edits.get(k)
            if edit is not None and edit.action == "gone":
                continue
            mine = mark(message, edit)
            if front and message is messages[0]:
                mine = with_texts(mine, front)
            theirs = next(sent, None)
            if theirs != mine:
                whole = theirs is None
                break
            same += size
            if message.marked:
                found = same
    else:
        last = max((n for n, m in enumerate(messages) if m.role == "assistant"), default=0)
        same += sum(tokens[:last])
    if model.cache == "breakpoint" and not whole:
        same = found  # a shorter prefix is found again only where the client has set a breakpoint
    return same if same >= model.min else 0
