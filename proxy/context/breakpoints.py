"""Places at which the proxy wants the provider's cache to end an entry, for models that cache at breakpoints only.

After an edit, only a prefix is served that ended at a breakpoint of an earlier prompt. Three places are worth one.

- The end of the prompt, so that the next request is served all of it. A write costs more than plain input, so it is
  wanted only where a next request is likely: the request has tools, or follows another one within the cache's lifetime.
- The system prompt, which the first batch of edits leaves as it is. It is written with the end of the prompt.
- The end of the newest batch of edits. Everything up to there has its final form as a rule, and the next batch begins
  after it. The place moves with a batch alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from proxy.context.branch_state import BranchState
from proxy.context.plan import Edit
from proxy.context.render import Rendering
from proxy.context.view import View
from proxy.dialects.base import NO_BREAKPOINTS, Breakpoints


def find_boundary(view: View, state: BranchState, new: Sequence[Edit]) -> bytes:
    """The chain key of the last message that the newest batch of edits has changed; b"" if there was no batch.

    Only messages count that had been sent before. A result that is shortened before it is first sent is no batch.
    """
    cut = {edit.key for edit in new if edit.action != "append"}
    sent = min(state.counted_messages, len(view.keys))
    if not cut:
        return state.boundary
    return next((view.keys[n] for n in range(sent - 1, -1, -1) if view.keys[n] in cut), state.boundary)


def choose_breakpoints(
    view: View, state: BranchState, rendering: Rendering, new: Sequence[Edit], boundary: bytes, tokens: int
) -> Breakpoints:
    """The places for breakpoints in this prompt. tokens: of the whole prompt."""
    model = view.model
    if model.cache != "breakpoint" or not model.breakpoint_field or tokens < model.min:
        return NO_BREAKPOINTS
    follows = state.sent_at is not None and view.now - state.sent_at <= model.ttl_s
    places = {key: n for n, key in enumerate(view.keys)} if boundary or state.boundary else {}
    changed = min((places[edit.key] for edit in new if edit.key in places), default=len(view.keys))
    counts = []
    for key in dict.fromkeys((state.boundary, boundary)):
        index = places.get(key)
        # Nothing is found any more of an entry that the new edits have changed.
        if index is not None and (key == boundary or index < changed):
            counts.append(_count_answers(rendering, index))
    return Breakpoints(follows or view.request.tools is not None, tuple(dict.fromkeys(counts)))


def _count_answers(rendering: Rendering, index: int) -> int:
    """Number of answers that go out up to messages[index]."""
    count = 0
    for out, place in zip(rendering.outs, rendering.places, strict=True):
        if place > index:
            break
        count += out.message is not None and out.message.role == "assistant"
    return count


def find_positions(rendering: Rendering, chosen: Breakpoints) -> frozenset[int]:
    """The positions among the outgoing messages at which a prefix ends that is likely to be found again."""
    if chosen == NO_BREAKPOINTS:
        return frozenset()
    answers = [n for n, out in enumerate(rendering.outs) if out.message is not None and out.message.role == "assistant"]
    ends = [answers[count] - 1 for count in chosen.answers if count < len(answers)]
    has_system = rendering.outs[0].message is not None and rendering.outs[0].message.is_system
    return frozenset([*([0] if has_system else []), *(end for end in ends if end >= 0)])
