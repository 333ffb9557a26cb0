"""Prune the next prompt on demand, so that the pruning lasts.

Under a schedule that keeps its edits, the next request is planned with a smaller budget, and its edits stay. A literal
policy plans every request from the start, so a smaller budget for one request would not last. There the messages that
the smaller budget would leave out are dropped as the operator's own decision, which `restore` takes back. If it leaves
out no message, or none that may leave alone, only the next prompt is pruned.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec

from proxy.chat.chain import public_id
from proxy.errors import Conflict
from proxy.exchange.services import Services
from proxy.operator import edit_messages, session_settings
from proxy.operator.find_session import SelectedBranch, find_branch
from proxy.operator.preview import Preview, preview_prompt
from proxy.sessions.operator_decisions import SessionSettings


async def prune_next_prompt(services: Services, tenant: str, session: str) -> SessionSettings:
    """Prune the next prompt, so that it lasts. Raises Conflict where the policy changes nothing."""
    selected = await find_branch(services, tenant, session)
    plain = await preview_prompt(services, selected)
    if plain.turn.enriched.policy.mode == "rewrite" and plain.turn.enriched.policy.literal:
        leaving = _find_leaving(selected, plain, await preview_pruned_prompt(services, selected))
        if leaving:
            try:
                await edit_messages.drop(
                    services, tenant, session, leaving, branch=selected.branch.name, id_kind="message"
                )
            except Conflict:  # without the plan's other changes the drop would leave turns out of order
                return await session_settings.request_prune(services, tenant, session)
            return await session_settings.load_settings(services, tenant, session)
    return await session_settings.request_prune(services, tenant, session)


def _find_leaving(selected: SelectedBranch, plain: Preview, pruned: Preview) -> list[str]:
    """Return public ids of the messages that are in the next prompt and that pruning would take out."""
    gone = {k for k, edit in pruned.edits.items() if edit.action == "gone"}
    gone -= {k for k, edit in plain.edits.items() if edit.action == "gone"}
    messages = selected.request.messages
    return [public_id(k) for n, k in enumerate(selected.keys) if k in gone and not messages[n].is_system][
        : edit_messages.MAX_IDS
    ]


# Preview of a branch's next prompt after pruning, for comparison with the prompt that would go out.


async def preview_pruned_prompt(services: Services, selected: SelectedBranch) -> Preview:
    """The next request of a branch, planned with the budget of a pruned one."""
    settings = msgspec.structs.replace(selected.operator_decisions.settings, force="prune")
    return await preview_prompt(services, selected, replace(selected.operator_decisions, settings=settings))


async def is_prunable(services: Services, selected: SelectedBranch, preview: Preview) -> bool:
    """True where pruning would make the next prompt smaller. preview: the next prompt as it is."""
    turn = preview.turn
    if turn.enriched.policy.mode != "rewrite" or selected.branch.state.stopped is not None or turn.prompt.plan.refusal:
        return False
    pruned = await preview_pruned_prompt(services, selected)
    return not pruned.turn.prompt.plan.refusal and pruned.turn.prompt.plan.after < turn.prompt.plan.after
