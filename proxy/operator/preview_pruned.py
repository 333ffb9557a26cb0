"""Preview of a thread's next prompt after pruning, for comparison with the prompt that would go out."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from proxy.exchange.services import Services
from proxy.operator.find_session import SelectedBranch
from proxy.operator.preview import Preview, preview_prompt


async def preview_pruned_prompt(services: Services, selected: SelectedBranch) -> Preview:
    """The next request of a thread, planned with the budget of a pruned one."""
    settings = msgspec.structs.replace(selected.operator_decisions.settings, force="prune")
    return await preview_prompt(services, selected, replace(selected.operator_decisions, settings=settings))


async def is_prunable(services: Services, selected: SelectedBranch, preview: Preview) -> bool:
    """True where pruning would make the next prompt smaller. preview: the next prompt as it is."""
    turn = preview.turn
    if turn.policy.mode != "rewrite" or selected.branch.state.stopped is not None or turn.plan.refusal:
        return False
    pruned = await preview_pruned_prompt(services, selected)
    return not pruned.turn.plan.refusal and pruned.turn.plan.after < turn.plan.after
