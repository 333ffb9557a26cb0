"""The conversation as it would go out now: old edits repeated, sizes known, the cache predicted.

The request and the memory of its thread are joined here. All later code only reads the View.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict, Unpack

from proxy.chat.message import Message, Request
from proxy.chat.tokens import PER_MESSAGE, Weigh
from proxy.context import ground
from proxy.context.front import system_texts
from proxy.context.plan import Applied, Edit, Found, Ground, View
from proxy.context.policy import Policy
from proxy.context.prices import Model
from proxy.context.room import room_for
from proxy.context.session import Session
from proxy.memory.memos import Memo

_NONE: Mapping[bytes, Edit] = {}


class Beside(TypedDict, total=False):
    """Fields of a View that are neither in the request nor in the memory of the thread: see `View`."""

    times: Sequence[float]
    found: Sequence[Found]
    relevance: Mapping[bytes, float]
    options: Mapping[str, str]
    offered: frozenset[str]
    guarded: frozenset[bytes]
    toll: int
    scratchpad: str
    memos: Sequence[Memo]
    elsewhere: Mapping[str, tuple[int, int]]


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
    known = ground.of(request, keys, weigh, policy.observation)
    applied = ground.applied(known, _NONE if policy.literal else session.edits)
    front = system_texts(request, session, policy)
    head = weigh.head(request.tools)
    room = room_for(request, policy, model, session.limit)
    warm = _cached(known, applied, head, session, model, front)
    return View(
        request=request,
        messages=messages,
        keys=keys,
        tokens=applied.tokens,
        whole=known.whole,
        edits=applied.edits,
        steps=known.steps,
        groups=known.groups,
        active=known.groups[-1].start if known.groups else 0,
        head=head,
        cached=0 if _is_cold(session, model, now) else warm,
        warm=warm,
        requests=known.requests,
        model=model,
        budget=room.budget if room is not None else None,
        limit=room.limit if room is not None else None,
        weigh=weigh,
        strategies=strategies,
        strategy=strategy,
        is_result=known.is_result,
        literal=policy.literal,
        ground=known,
        applied=applied,
        now=now,
        state=session.state,
        answers=session.answers,
        said=session.said,
        pins=session.pins,
        refetched=session.refetched,
        exposed=session.exposed,
        **beside,
    )


def edited_size(seen: View, index: int, text: str) -> int:
    """Tokens of messages[index] with another text; its calls, reasoning and media stay.

    The tokens are counted once for a text, because literal policies make the same edits with every request.
    """
    message = seen.messages[index]
    size = PER_MESSAGE + counted(seen, message, text)
    if message.calls or message.reasoning or message.media:
        size += seen.whole[index] - PER_MESSAGE - counted(seen, message, message.text)
    return size


def counted(seen: View, message: Message, text: str) -> int:
    """Tokens of a text that goes into a message, remembered with the message."""
    return message.derive(lambda _: seen.weigh.count(text), ("count", seen.weigh, text))


def _is_cold(session: Session, model: Model, now: float) -> bool:
    """True if nothing was sent yet, or if the last prompt is older than the provider's cache lasts."""
    return session.sent_at is None or now - session.sent_at > model.ttl_s


def _cached(known: Ground, applied: Applied, head: int, session: Session, model: Model, front: Sequence[str]) -> int:
    """Tokens at the front that the provider's cache should hold if it has not expired, for the prompt as the View has
    it.

    This is the longest common prefix with the last prompt, or nothing if the model caches nothing. After a restart the
    last prompt is unknown. Then all messages before the last answer count as cached: taking a warm cache for a cold one
    is the dearer mistake.
    """
    if model.cache == "none":
        return 0
    same = found = head
    whole = not session.sent
    if session.sent:
        marks = tuple(applied.marks)
        if front:  # our texts stand behind the system prompt, which no edit removes
            marks = (ground.with_texts(marks[0], front), *marks[1:])
        count = ground.alike(marks, session.sent)
        whole = count == len(session.sent) < len(marks)
        same += sum(applied.sizes[:count])
        if known.marked:
            found = _marked(known, applied, head, count)
    else:
        last = known.answers[-1] if known.answers else 0
        same += sum(applied.tokens[:last])
    if model.cache == "breakpoint" and not whole:
        same = found  # a shorter prefix is found again only where the client has set a breakpoint
    return same if same >= model.min else 0


def _marked(known: Ground, applied: Applied, head: int, count: int) -> int:
    """Tokens up to the last of the client's marks among the first `count` messages that go out."""
    found = same = head
    out = 0
    for n, message in enumerate(known.messages):
        edit = None if message.is_system else applied.edits.get(known.keys[n])
        if edit is not None and edit.action == "gone":
            continue
        if out == count:
            break
        out += 1
        same += applied.tokens[n]
        if message.marked:
            found = same
    return found
