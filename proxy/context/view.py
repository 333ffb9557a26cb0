"""The conversation as it would go out now: old edits repeated, sizes known, the cache predicted.

The request and the memory of its thread are joined here. All later code only reads the View.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from proxy.chat import chain
from proxy.chat.message import Message, Request
from proxy.chat.tokens import PER_MESSAGE
from proxy.context import history
from proxy.context.branch_state import BranchState
from proxy.context.models import Model
from proxy.context.plan import Edit, EditedHistory, History, RewriteInputs, View
from proxy.context.policy import Policy
from proxy.context.system_texts import make_system_texts
from proxy.context.token_budget import compute_token_budget

_NONE: Mapping[bytes, Edit] = {}


def build(
    request: Request, session: BranchState, policy: Policy, model: Model, now: float, inputs: RewriteInputs
) -> View:
    """The View of a request. Literal policies begin from the client's own history, all others from their old edits."""
    keys = chain.compute_keys("", request.messages) if inputs.keys is None else inputs.keys
    weigh = inputs.weigh
    messages = request.messages
    known = history.build(request, keys, weigh, policy.observation)
    applied = history.apply_edits(known, _NONE if policy.literal else session.edits)
    front = make_system_texts(request, session, policy)
    head = weigh.count_tools(request.tools)
    room = compute_token_budget(request, policy, model, session.learned_window)
    warm = _count_cached_tokens(known, applied, head, session, model, front)
    return View(
        request=request,
        messages=messages,
        keys=keys,
        tokens=applied.tokens,
        original_tokens=known.original_tokens,
        edits=applied.edits,
        steps=known.steps,
        groups=known.groups,
        active_start=known.groups[-1].start if known.groups else 0,
        prefix_tokens=head,
        cached_tokens=0 if _is_cold(session, model, now) else warm,
        warm_tokens=warm,
        request_counts=known.request_counts,
        model=model,
        budget=room.budget if room is not None else None,
        limit=room.limit if room is not None else None,
        weigh=weigh,
        strategies=inputs.strategies,
        strategy=inputs.strategy,
        is_result=known.is_result,
        literal=policy.literal,
        history=known,
        edited_history=applied,
        now=now,
        state=session.state,
        helper_answers=session.helper_answers,
        note_counts=session.note_counts,
        pins=session.pins,
        refetched=session.refetched,
        exposed=session.exposed,
        times=inputs.times,
        retrieved_texts=inputs.retrieved_texts,
        relevance=inputs.relevance,
        options=inputs.options,
        offered_tools=inputs.offered_tools,
        guarded_keys=inputs.guarded_keys,
        tool_tokens=inputs.tool_tokens,
        scratchpad=inputs.scratchpad,
        memos=inputs.memos,
        tenant_faults=inputs.tenant_faults,
    )


def count_edited_tokens(seen: View, index: int, text: str) -> int:
    """Tokens of messages[index] with another text; its calls, reasoning and media stay.

    The tokens are counted once for a text, because literal policies make the same edits with every request.
    """
    message = seen.messages[index]
    size = PER_MESSAGE + count_text_tokens(seen, message, text)
    if message.calls or message.reasoning or message.media_count:
        size += seen.original_tokens[index] - PER_MESSAGE - count_text_tokens(seen, message, message.text)
    return size


def count_text_tokens(seen: View, message: Message, text: str) -> int:
    """Tokens of a text that goes into a message, remembered with the message."""
    return message.derive(lambda _: seen.weigh.count_text(text), ("count", seen.weigh, text))


def _is_cold(session: BranchState, model: Model, now: float) -> bool:
    """True if nothing was sent yet, or if the last prompt is older than the provider's cache lasts."""
    return session.sent_at is None or now - session.sent_at > model.ttl_s


def _count_cached_tokens(
    known: History, applied: EditedHistory, head: int, session: BranchState, model: Model, front: Sequence[str]
) -> int:
    """Tokens at the front that the provider's cache should hold if it has not expired, for the prompt as the View has
    it.

    This is the longest common prefix with the last prompt, or nothing if the model caches nothing. After a restart the
    last prompt is unknown. Then all messages before the last answer count as cached: taking a warm cache for a cold one
    is the dearer mistake.
    """
    if model.cache == "none":
        return 0
    same = found = head
    whole = not session.sent_marks
    if session.sent_marks:
        marks = tuple(applied.marks)
        if front:  # our texts stand behind the system prompt, which no edit removes
            marks = (history.add_texts_to_mark(marks[0], front), *marks[1:])
        count = history.count_common_marks(marks, session.sent_marks)
        whole = count == len(session.sent_marks) < len(marks)
        same += sum(applied.sizes[:count])
        if known.marked_indexes:
            found = _count_marked_tokens(known, applied, head, count)
    else:
        last = known.assistant_indexes[-1] if known.assistant_indexes else 0
        same += sum(applied.tokens[:last])
    if model.cache == "breakpoint" and not whole:
        same = found  # a shorter prefix is found again only where the client has set a breakpoint
    return same if same >= model.min else 0


def _count_marked_tokens(known: History, applied: EditedHistory, head: int, count: int) -> int:
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
        if message.has_cache_mark:
            found = same
    return found
