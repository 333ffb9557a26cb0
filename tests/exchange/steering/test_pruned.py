from __future__ import annotations

from proxy.exchange.steering import place
from proxy.exchange.steering.foreseeing import foresee
from proxy.exchange.steering.pruned import foresee_pruned, is_prunable
from tests.exchange.steering.agent import talking


async def test_a_pruned_prompt_is_tried_and_nothing_is_kept_of_it() -> None:
    async with talking("rolling") as talk:
        here = await place.find(talk.parts, talk.tenant, "s")
        plain, pruned = await foresee(talk.parts, here), await foresee_pruned(talk.parts, here)
        assert pruned.turn.plan.after < plain.turn.plan.after
        assert await is_prunable(talk.parts, here, plain)
        again = await foresee(talk.parts, await place.find(talk.parts, talk.tenant, "s"))
        assert again.turn.plan.after == plain.turn.plan.after
