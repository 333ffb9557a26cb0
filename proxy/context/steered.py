"""A conversation without what the operator has taken out of it: planned as if that had never been said.

A policy must not see it: what it summarises, distils, ranks or counts would bring back what was to be gone. So the
messages leave before planning, and stand in the plan as edits like any other: the record says what is out, by whom
and why.
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
    """What is left to plan for. out: the edits of what is not, by its index in the request that came."""

    request: Request
    keys: Sequence[bytes]
    session: Session
    out: dict[int, Edit]
    _came: Request
    _keys: Sequence[bytes]
    _edits: dict[bytes, Edit]

    def pick(self, values: Sequence[T]) -> Sequence[T]:
        """One value a message that came, for those that are left."""
        return [value for n, value in enumerate(values) if n not in self.out] if self.out else values

    def completed(self, plan: Plan) -> Plan:
        """The plan for all that came."""
        if not self.out:
            return plan
        gone = {edit.key: edit for edit in self.out.values()}
        places = [n for n in range(len(self._keys)) if n not in self.out]
        notes = plan.notes
        if plan.refused:  # then what is left goes out as it came, since the rest must not
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
    """What is left of the request. hidden: the keys of messages that the client does not have: they belong to the next
    of its own."""
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
    """The edits of what leaves: whole steps, never a system message, the last one or the last of the user's, and
    nothing without which two messages would follow each other that may not."""
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
    """The model without the rules of order that the client's own history breaks already: its upstream takes that."""
    pairs = list(pairwise(m.role for m in messages if not m.is_system))
    if ("tool", "user") in pairs:
        model = replace(model, after_tool="user")
    if model.alternate and any(one == other and one in ("user", "assistant") for one, other in pairs):
        model = replace(model, alternate=False)
    return model
