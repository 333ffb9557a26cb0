"""Keep the turns of a conversation in order when messages leave it.

Schedules take only some of the proposals, and stages look at one message at a time. So an answer may leave from between
a tool result and a prompt. Then a user message follows a tool result, which strict upstreams refuse (W6 in
`context.validate`; W5 if roles have to alternate). The message that separated the two comes back. System messages
never leave, and in Messages they are refused apart from their prompt and an answer (M6). Then such messages come back.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import pairwise
from operator import attrgetter

from proxy.chat.group import Step, join_steps
from proxy.chat.message import Message
from proxy.context.plan import Edit
from proxy.context.view import View

USER_FIRST_STRATEGIES = ("anthropic", "gemini", "gemini_gca")
"""Strategies whose upstreams refuse an assistant's message at the front, and a call without a prompt."""


def are_steps_whole(view: View, begin: int, known: bool | None) -> bool:
    """True if the edits in force leave no half step. The last known step may have grown, so it is checked again."""
    if known is False:
        return False
    steps = join_steps(view.request, view.steps)
    first = bisect_left(steps, begin, key=attrgetter("end")) if begin else 0
    return not any(_is_half(view, step, view.edits) for step in steps[first:])


def _is_half(view: View, step: Step, edits: Mapping[bytes, Edit]) -> bool:
    """True if a part of the step leaves.

    A step may leave as a whole, or keep the assistant message's text alone.
    """
    actions = [e.action if (e := edits.get(k)) else "" for k in view.keys[step.start : step.end]]
    if len(actions) == 1 or (actions[0] in ("gone", "text_only") and all(action == "gone" for action in actions[1:])):
        return False
    return any(action in ("gone", "text_only") for action in actions)


def restore_whole_steps(view: View, edits: dict[bytes, Edit], old: Mapping[bytes, Edit]) -> dict[bytes, Edit]:
    """Withdraw edits that would leave half a step, which every strict upstream refuses. An earlier cut stays."""
    for step in join_steps(view.request, view.steps):
        if step.end - step.start > 1 and _is_half(view, step, edits):
            for k in view.keys[step.start : step.end]:
                if k in edits and edits[k].action in ("gone", "text_only"):
                    del edits[k]
                    if k in old and old[k].action not in ("gone", "text_only"):
                        edits[k] = old[k]
    return edits


def repair_order(view: View, edits: dict[bytes, Edit], edits_in_force: Mapping[bytes, Edit]) -> dict[bytes, Edit]:
    """The edits without edits that would join two messages that may not follow each other.

    edits_in_force: edits that are in force already; none of these is withdrawn.
    """
    stay = [n for n in range(len(view.messages)) if not view.leaves_out(n, edits)]
    if len(stay) == len(view.messages):
        return edits
    joined = join_steps(view.request, view.steps)
    steps = {n for step in joined if step.end - step.start > 1 for n in range(step.start, step.end)}
    for before, after in pairwise(stay):
        if after - before > 1 and _may_not_follow(view, before, after):
            _bring_back(view, edits, edits_in_force, _find_separators(view, before, after, steps, edits_in_force))
    model = view.model
    is_user_first = model.alternate or model.user_first or view.inputs.strategy in USER_FIRST_STRATEGIES
    if is_user_first or not view.messages[0].is_system:
        _bring_back(view, edits, edits_in_force, _find_opening_prompt(view, edits, edits_in_force))
    return edits


def _may_not_follow(view: View, before: int, after: int) -> bool:
    """True if messages[after] may not follow messages[before]."""
    first, second = view.messages[before], view.messages[after]
    if view.model.system_between and second.is_system:
        return first.role not in ("user", "tool")
    if view.model.system_between and first.is_system and before:
        return second.role != "assistant"
    if first.role == "tool" and second.role == "user":
        return view.model.after_tool != "user"
    return view.model.alternate and first.role == second.role and first.role in ("user", "assistant")


def _find_separators(
    view: View, before: int, after: int, steps: set[int], force: Mapping[bytes, Edit]
) -> Sequence[int]:
    """The indexes that come back between two messages: one message that may be there alone, else an answer and a
    prompt, else all that was there."""
    between = [n for n in range(before + 1, after) if _may_return(view, n, force)]
    alone = [n for n in between if n not in steps and _has_content(view.messages[n])]
    behind = [n for n in alone if not _may_not_follow(view, before, n)]
    ahead = [n for n in alone if not _may_not_follow(view, n, after)]
    if either := sorted({*behind}.intersection(ahead)):
        return either[-1:] if view.messages[after].is_system else either[:1]
    ends = [*behind[:1], *ahead[-1:]]
    if len(ends) == 2 and ends[0] < ends[1] and not _may_not_follow(view, *ends):  # between two system messages
        return ends
    return between


def _may_return(view: View, n: int, force: Mapping[bytes, Edit]) -> bool:
    return not view.messages[n].is_system and not view.leaves_out(n, force)


def _has_content(message: Message) -> bool:
    return bool(message.text or message.media_count)


def _find_opening_prompt(view: View, edits: Mapping[bytes, Edit], force: Mapping[bytes, Edit]) -> Sequence[int]:
    """The index of the prompt that belongs to the first remaining messages, if these do not begin with a prompt."""
    first = next((n for n, m in enumerate(view.messages) if not m.is_system and not view.leaves_out(n, edits)), None)
    if first is None or view.messages[first].role == "user":
        return ()
    prompts = [n for n in range(first) if view.messages[n].role == "user" and _may_return(view, n, force)]
    return prompts[-1:]


def _bring_back(view: View, edits: dict[bytes, Edit], force: Mapping[bytes, Edit], positions: Sequence[int]) -> None:
    for n in positions:
        k = view.keys[n]
        if k in force:
            edits[k] = force[k]
        else:
            edits.pop(k, None)
