from __future__ import annotations

from proxy.operator import find_session
from proxy.operator.preview import preview_prompt
from proxy.operator.prune import is_prunable, preview_pruned_prompt
from tests.operator.agent import talking


async def test_a_pruned_prompt_is_tried_and_nothing_is_kept_of_it() -> None:
    async with talking("rolling") as talk:
        here = await find_session.find_branch(talk.parts, talk.tenant, "s")
        plain, pruned = await preview_prompt(talk.parts, here), await preview_pruned_prompt(talk.parts, here)
        assert pruned.turn.plan.after < plain.turn.plan.after
        assert await is_prunable(talk.parts, here, plain)
        again = await preview_prompt(talk.parts, await find_session.find_branch(talk.parts, talk.tenant, "s"))
        assert again.turn.plan.after == plain.turn.plan.after
