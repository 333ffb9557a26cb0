"""Events of a plan: `context:pruned` and `context:summarized`, with their payloads.

Only a new edit is an event. An edit that is repeated with every request is none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from proxy.chat.chain import public_id
from proxy.context.plan import Plan

PRUNED = "context:pruned"
SUMMARIZED = "context:summarized"
SUMMARY_STAGE = "summarize_old"
"""The stage whose edits are summaries."""


@dataclass(frozen=True, slots=True)
class PlanEvent:
    name: str
    """The name of the event."""
    payload: Mapping[str, object]
    """The content of the event as it goes out as JSON."""


def make_events(plan: Plan) -> list[PlanEvent]:
    """The events of a plan that is sent. A plan that was refused changes nothing and has none."""
    if plan.refusal:
        return []
    fresh = {edit.key for edit in plan.new_edits if edit.action == "gone"}
    pruned: list[bytes] = []
    summarized: list[bytes] = []
    for k in dict.fromkeys(plan.keys):  # a system message shares its neighbour's key
        edit = plan.edits.get(k)
        if edit is not None and edit.action == "gone":
            (summarized if edit.stage == SUMMARY_STAGE else pruned).append(k)
    events = []
    if not fresh.isdisjoint(pruned):
        payload = {
            "original": plan.before,
            "final": plan.after,
            "removed": len(pruned),
            "tokenReduction": plan.before - plan.after,
            "removed_ids": [public_id(k) for k in pruned],
        }
        events.append(PlanEvent(PRUNED, payload))
    if not fresh.isdisjoint(summarized):
        kept = len(plan.keys) - len(pruned) - len(summarized)
        events.append(
            PlanEvent(SUMMARIZED, {"summarized": len(summarized), "kept": kept, "summary": _find_summary(plan)}),
        )
    return events


def _find_summary(plan: Plan) -> str:
    """The summary in the newest message that bears one."""
    in_force = [plan.edits[k] for k in plan.keys if k in plan.edits]
    texts = [edit.text for edit in in_force if edit.stage == SUMMARY_STAGE and edit.action == "append" and edit.text]
    return texts[-1].strip() if texts else ""
