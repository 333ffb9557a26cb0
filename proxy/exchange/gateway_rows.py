"""Planning of the rows of a gateway, which sends some messages of a conversation and gets them back shortened.

The gateway withholds the newest messages and sends them with a later request. It puts our rows between messages that
the proxy never sees.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec

from proxy.context.branch_state import BranchState
from proxy.context.policy import Policy
from proxy.context.view import compute_mark
from proxy.exchange.services import Services
from proxy.exchange.turn import Turn


def choose_row_policy(services: Services, policy: Policy) -> Policy:
    """The policy for the rows of a gateway: it edits texts and adds none. A literal policy changes old rows with every
    request. `thrifty` takes its place."""
    if policy.literal:
        policy = services.policies.get("thrifty", replace(policy, schedule="when_it_pays"))
    return replace(policy, injections=(), ask="never", tools=(), offer="never")


def add_unseen_context(turn: Turn, state: BranchState) -> BranchState:
    """The state with the context rows that a gateway withheld from the last request: the provider has had them.

    The newest user message of one request stands between the older rows of the next one. Without this the prefix would
    seem to have moved, and every edit would seem to be free.
    """
    marks, sizes = list(state.sent_marks), list(state.sent_sizes)
    at = 0
    for message, key in zip(turn.request.messages, turn.keys, strict=True):
        if at >= len(marks):
            break
        edit = None if message.is_system else state.edits.get(key)
        if edit is not None and edit.action == "gone":
            continue
        if marks[at] != compute_mark(message, edit):
            if not message.is_system:
                break
            marks.insert(at, compute_mark(message, None))
            sizes.insert(at, turn.token_counter(message))
        at += 1
    return msgspec.structs.replace(state, sent_marks=tuple(marks), sent_sizes=tuple(sizes))
