"""The schedule `provider`: old tool results are cleared by the provider itself, when rent-or-buy says so.

Anthropic clears the oldest results of a prompt if a request asks for it (`clear_tool_uses_20250919`), and keeps as many
of the newest tool uses as the request says. Reasoning after a cleared result stays valid, which no edit of ours can
give. A fixed number of kept uses would clear one more result with every request, and each time the cached prefix would
move. So the number grows with the prompt: the same results are cleared until the next batch.

A cleared result is an edit like any other: stored, explained and counted. Only its bytes differ: the dialect sends the
original, and asks the provider to clear it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from proxy.chat.message import Message
from proxy.context import schedule
from proxy.context.page_faults import make_fault_cost
from proxy.context.pins import is_pinned
from proxy.context.plan import Edit, Proposal
from proxy.context.policy import Policy
from proxy.context.view import View, count_edited_tokens

STAGE = "provider_clearing"
PLACEHOLDER = "[cleared by the provider]"
"""Text of a cleared result in the records. The provider's own text has about as many tokens."""
KEPT_RESULTS = 3
"""Results at the end of a prompt that are never cleared, as many as the provider keeps by default."""


def clear_results(view: View, policy: Policy, edits: Mapping[bytes, Edit]) -> Mapping[bytes, Edit]:
    """The edits, with those of results that the provider clears from this request on.

    All results but the newest are cleared together: the provider begins at the oldest. A pinned result ends the run.
    """
    proposals = _list_candidates(view, edits)
    if not proposals:
        return edits
    is_full = view.limit is not None and view.total > policy.budget * view.limit
    if not is_full and not schedule.is_batch_paid(view, proposals, policy.rent, policy.payback, make_fault_cost(view)):
        return edits
    reason = "the prompt is over its budget" if is_full else "clearing has paid for itself"
    with_cleared = dict(edits)
    for proposal in proposals:
        key = view.keys[proposal.index]
        size = view.original_tokens[proposal.index]
        with_cleared[key] = Edit(key, "text", PLACEHOLDER, STAGE, reason, size, proposal.after)
    return with_cleared


def _list_candidates(view: View, edits: Mapping[bytes, Edit]) -> list[Proposal]:
    """The results that could be cleared now, oldest first; none if they are no run from the oldest on."""
    results = [n for n, message in enumerate(view.messages) if message.is_result and not view.leaves_out(n, edits)]
    cleared = count_cleared(view.messages, view.keys, edits)
    if cleared is None:
        return []
    candidates = []
    for place, index in enumerate(results[: max(len(results) - KEPT_RESULTS, 0)]):
        if place < cleared:
            continue
        if is_pinned(view, index):
            break
        candidates.append(
            Proposal(
                index=index,
                action="text",
                after=count_edited_tokens(view, index, PLACEHOLDER),
                stage=STAGE,
                reason="",
                since=results[place + KEPT_RESULTS],
                text=PLACEHOLDER,
                content="unknown",
            )
        )
    return candidates


def count_cleared(messages: Sequence[Message], keys: Sequence[bytes], edits: Mapping[bytes, Edit]) -> int | None:
    """Number of results that the provider clears, which are the oldest ones. None if others stand between them, so that
    the provider cannot clear these alone."""
    kinds = []
    for message, key in zip(messages, keys, strict=True):
        edit = edits.get(key)
        if message.is_result and (edit is None or edit.action != "gone"):
            kinds.append(edit is not None and edit.stage == STAGE)
    count = sum(kinds)
    return count if all(kinds[:count]) else None
