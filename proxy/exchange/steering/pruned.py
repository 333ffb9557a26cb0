"""Preview of a thread's next prompt after pruning, for comparison with the prompt that would go out."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from proxy.exchange.parts import Parts
from proxy.exchange.steering.foreseeing import Foreseen, foresee
from proxy.exchange.steering.place import Here


async def foresee_pruned(parts: Parts, here: Here) -> Foreseen:
    """The next request of a thread, planned with the budget of a pruned one."""
    settings = msgspec.structs.replace(here.steered.settings, force="prune")
    return await foresee(parts, here, replace(here.steered, settings=settings))


async def is_prunable(parts: Parts, here: Here, plain: Foreseen) -> bool:
    """True where pruning would make the next prompt smaller. plain: the next prompt as it is."""
    turn = plain.turn
    if turn.policy.mode != "rewrite" or here.thread.state.stopped is not None or turn.plan.refused:
        return False
    pruned = await foresee_pruned(parts, here)
    return not pruned.turn.plan.refused and pruned.turn.plan.after < turn.plan.after
