"""Plan a conversation as if the messages that the operator has taken out had never been there.

A policy must not see these messages. Its summaries, rankings and counts would bring their content back. So the messages
leave before the planning, and stand in the plan as edits like any other. The record says what is out, by whom and why.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeVar

from proxy.chat import group, key
from proxy.chat.message import Message, Request
from proxy.chat.tokens import Weigh
from proxy.context import turns, view
from proxy.context.operator import NAME, Steering
from proxy.context.plan import Edit, Note, Plan
from proxy.context.policy import Policy
from proxy.context.prices import Model
from proxy.context.session import Session

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Kept:
    """The messages that are left to plan for."""

    request: Request
    """The request without the messages that are out."""
    keys: Sequence[bytes]
    """The chain keys of the messages that are left."""
    session: Session
    out: dict[int, Edit]
    """The edits of the messages that are out, by their index in the original request."""
    _came: Request
    _keys: Sequence[bytes]
    _edits: dict[bytes, Edit]

    def pick(self, values: Sequence[T]) -> Sequence[T]:
        """The values of the messages that are left, from one value for each original message."""
        return [value for n, value in enumerate(values) if n not in self.out] if self.out else values

    def completed(self, plan: Plan) -> Plan:
        """The plan for all original messages."""
        if not self.out:
            return plan
        gone = {edit.key: edit for edit in self.out.values()}
        places = [n for n in range(len(self._keys)) if n not in self.out]
        notes = plan.notes
        if plan.refused:  # then the rest goes out as it came; dropped messages must not
            notes = (*notes, Note("unmanaged", f"the policy's plan was refused ({plan.refused})"))
        return replace(
            plan,
            messages=plan.messages or tuple(m.raw for m in self.request.messages),
            new=(
                *(edit for edit in plan.new if edit.key not in gone),
                *(edit for k, edit in gone.items() if self._edits.get(k) != edit),
            ),
            edits={**plan.edits, **gone},
            placed=tuple((places[n] if n >= 0 else n, insert) for n, insert in plan.placed),
            notes=notes,
            keys=self._keys,
            before=plan.before + sum(edit.before for edit in gone.values()),
            refused=None,
        )


def kept(
    request: Request,
    keys: Sequence[bytes],
    session: Session,
    policy: Policy,
    model: Model,
    weigh: Weigh,
    strategy: str = "openai",
    hidden: Collection[bytes] = (),
) -> Kept:
    """The rest of the request without the messages that the operator has taken out.

    hidden: the keys of messages that the client does not have. A hidden message belongs to the client's next message.
    """
    steering = session.steering
    out: dict[int, Edit] = {}
    edits = dict(session.edits)
    if steering is not None and steering.dropped:
        out = _out(request, keys, steering, policy, model, weigh, strategy, hidden)
        lost = frozenset(key.public_id(k) for k in steering.dropped)
        session = replace(session, steering=replace(steering, dropped={}, lost=lost))
    if not out:
        return Kept(request, keys, session, {}, request, keys, edits)
    stay = [n for n in range(len(keys)) if n not in out]
    left = replace(request, messages=tuple(request.messages[n] for n in stay))
    return Kept(left, [keys[n] for n in stay], session, out, request, keys, edits)


def _out(
    request: Request,
    keys: Sequence[bytes],
    steering: Steering,
    policy: Policy,
    model: Model,
    weigh: Weigh,
    strategy: str,
    hidden: Collection[bytes],
) -> dict[int, Edit]:
    """The edits of the messages that leave: whole steps.

    A system message, the last message and the last user message never leave. A message also stays where two messages
    that may not follow each other would otherwise meet.
    """
    messages = request.messages
    last_user = max((n for n, m in enumerate(messages) if m.role == "user"), default=-1)
    edits: dict[bytes, Edit] = {}
    reason = ""
    for step in reversed(group.steps(messages)):
        places = range(step.start, step.end)
        mine = [n for n in places if keys[n] not in hidden]
        if mine:
            wanted = all(keys[n] in steering.dropped for n in mine)
            reason = steering.dropped[keys[mine[0]]] if wanted else ""
        if not reason or messages[step.start].is_system or step.end == len(messages) or last_user in places:
            reason = reason if not mine else ""
            continue
        for n in places:
            size = weigh(messages[n])
            edits[keys[n]] = Edit(keys[n], "gone", None, NAME, reason, size, 0)
    lenient = _as_lenient(messages, model)
    seen = view.build(request, keys, Session(), policy, lenient, 0.0, weigh, strategy, [strategy] * len(keys))
    edits = turns.mended(seen, edits, {})
    return {n: edits[k] for n, k in enumerate(keys) if k in edits and not messages[n].is_system}


def _as_lenient(messages: Sequence[Message], model: Model) -> Model:
    """The model without those order rules that the client's own history breaks already: its upstream accepts such a
    history."""
    pairs = list(pairwise(m.role for m in messages if not m.is_system))
    if ("tool", "user") in pairs:
        model = replace(model, after_tool="user")
    if model.alternate and any(one == other and one in ("user", "assistant") for one, other in pairs):
        model = replace(model, alternate=False)
    return model
