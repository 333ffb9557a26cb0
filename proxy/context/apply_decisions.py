"""Plan a conversation as if the messages that the operator has taken out had never been there.

A policy must not see these messages. Its summaries, rankings and counts would bring their content back. So the messages
leave before the planning, and are in the plan as edits like any other. The record names the removed messages, the
person and the reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeVar

import msgspec

from proxy.chat import chain, group
from proxy.chat.message import Message, Request
from proxy.context import repair
from proxy.context.branch_state import BranchState
from proxy.context.build_view import build_view
from proxy.context.models import Model
from proxy.context.operator_edits import NAME, OperatorDecisions
from proxy.context.pipeline import rewrite
from proxy.context.plan import Edit, Note, Plan, RewriteInputs
from proxy.context.policy import Policy

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RemainingMessages:
    """The messages that are left to plan for."""

    request: Request
    """The request without the messages that are out."""
    keys: Sequence[bytes]
    """The chain keys of the messages that are left."""
    state: BranchState
    removed_edits: dict[int, Edit]
    """The edits of the messages that are out, by their index in the original request."""
    _keys: Sequence[bytes]
    """The chain keys of all original messages."""
    _edits: dict[bytes, Edit]
    """The branch's edits before this request."""

    def select_values(self, values: Sequence[T]) -> Sequence[T]:
        """The values of the messages that are left, from one value for each original message."""
        return (
            [value for n, value in enumerate(values) if n not in self.removed_edits] if self.removed_edits else values
        )

    def complete_plan(self, plan: Plan) -> Plan:
        """The plan for all original messages."""
        if not self.removed_edits:
            return plan
        gone = {edit.key: edit for edit in self.removed_edits.values()}
        sources = range(len(self.request.messages)) if plan.messages is None else plan.sources
        places = [n for n in range(len(self._keys)) if n not in self.removed_edits]
        notes = plan.notes
        if plan.refusal:  # then the rest goes out as received; dropped messages must not
            notes = (*notes, Note("unmanaged", f"the policy's plan was refused ({plan.refusal})"))
        return msgspec.structs.replace(
            plan,
            messages=plan.messages or tuple(m.raw for m in self.request.messages),
            new_edits=(
                *(edit for edit in plan.new_edits if edit.key not in gone),
                *(edit for k, edit in gone.items() if self._edits.get(k) != edit),
            ),
            edits={**plan.edits, **gone},
            placed_inserts=tuple((places[n] if n >= 0 else n, insert) for n, insert in plan.placed_inserts),
            notes=notes,
            sources=tuple(places[n] if n < len(places) else len(self._keys) for n in sources),
            keys=self._keys,
            before=plan.before + sum(edit.before for edit in gone.values()),
            refusal=None,
        )


def rewrite_remaining(
    request: Request,
    state: BranchState,
    policy: Policy,
    model: Model,
    now: float,
    inputs: RewriteInputs,
) -> Plan:
    """`rewrite` of a conversation without the messages that the operator has taken out. inputs: of all its messages."""
    remaining = remove_dropped_messages(request, state, policy, model, inputs)
    remaining_inputs = msgspec.structs.replace(
        inputs,
        keys=remaining.keys,
        strategies=remaining.select_values(inputs.strategies),
        sent_count=sum(n not in remaining.removed_edits for n in range(inputs.sent_count)),
        times=remaining.select_values(inputs.times),
    )
    return remaining.complete_plan(rewrite(remaining.request, remaining.state, policy, model, now, remaining_inputs))


def remove_dropped_messages(
    request: Request,
    state: BranchState,
    policy: Policy,
    model: Model,
    inputs: RewriteInputs,
) -> RemainingMessages:
    """The rest of the request without the messages that the operator has taken out.

    inputs: as those of `rewrite`; the keys, the counter, the strategy and the hidden messages count. A hidden message
    belongs to the client's next message.
    """
    keys = chain.compute_keys("", request.messages) if inputs.keys is None else inputs.keys
    decisions = state.decisions
    out: dict[int, Edit] = {}
    edits = dict(state.edits)
    if decisions is not None and decisions.dropped:
        out = _find_removed_edits(request, keys, decisions, policy, model, inputs)
        lost = frozenset(chain.public_id(k) for k in decisions.dropped)
        state = msgspec.structs.replace(state, decisions=replace(decisions, dropped={}, dropped_ids=lost))
    if not out:
        return RemainingMessages(request, keys, state, {}, keys, edits)
    stay = [n for n in range(len(keys)) if n not in out]
    left = msgspec.structs.replace(request, messages=tuple(request.messages[n] for n in stay))
    return RemainingMessages(left, [keys[n] for n in stay], state, out, keys, edits)


def _find_removed_edits(
    request: Request,
    keys: Sequence[bytes],
    decisions: OperatorDecisions,
    policy: Policy,
    model: Model,
    inputs: RewriteInputs,
) -> dict[int, Edit]:
    """The edits of the messages that leave: whole steps.

    A system message, the last message and the last user message never leave. A message also stays where two messages
    that may not follow each other would otherwise meet.
    """
    messages = request.messages
    last_user = group.find_last_user(messages)
    edits: dict[bytes, Edit] = {}
    reason = ""
    for step in reversed(group.join_steps(request, group.split_steps(messages))):
        places = range(step.start, step.end)
        mine = [n for n in places if keys[n] not in inputs.hidden_keys]
        if mine:
            wanted = all(keys[n] in decisions.dropped for n in mine)
            reason = decisions.dropped[keys[mine[0]]] if wanted else ""
        if not reason or messages[step.start].is_system or step.end == len(messages) or last_user in places:
            reason = reason if not mine else ""
            continue
        for n in places:
            size = inputs.token_counter(messages[n])
            edits[keys[n]] = Edit(keys[n], "gone", None, NAME, reason, size, 0)
    lenient = _as_lenient(messages, model)
    plain = RewriteInputs(inputs.token_counter, keys, inputs.strategy, [inputs.strategy] * len(keys))
    view = build_view(request, BranchState(), policy, lenient, 0.0, plain)
    edits = repair.repair_order(view, edits, {})
    return {n: edits[k] for n, k in enumerate(keys) if k in edits and not messages[n].is_system}


def _as_lenient(messages: Sequence[Message], model: Model) -> Model:
    """The model without the order rules that the client's own history breaks: its upstream accepts it."""
    pairs = list(pairwise(m.role for m in messages if not m.is_system))
    if ("tool", "user") in pairs:
        model = replace(model, after_tool="user")
    if model.alternate and any(one == other and one in ("user", "assistant") for one, other in pairs):
        model = replace(model, alternate=False)
    return model
