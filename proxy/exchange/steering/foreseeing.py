"""Preview of the prompt that would go out if the client sent its history now. It is planned like a request, and neither
sent nor stored."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import msgspec

from proxy.chat import key
from proxy.chat.dialects.completions import user_message, write_request
from proxy.chat.message import Request
from proxy.context.plan import Edit
from proxy.exchange import background, planning, recollect, weaving
from proxy.exchange.identify import Place
from proxy.exchange.parts import Parts
from proxy.exchange.steering import keeping, place
from proxy.exchange.steering.inforce import InForce
from proxy.exchange.steering.place import Here
from proxy.exchange.turn import Turn

PROMPT = "(the client's next message)"
RESULT = "(the result that the client will bring)"


@dataclass(frozen=True, slots=True, eq=False)
class Foreseen:
    """A planned turn. stand_ins: number of messages at the end that stand for the client's next messages."""

    turn: Turn
    stand_ins: int

    @property
    def edits(self) -> dict[bytes, Edit]:
        """The plan's edits of the client's messages, by chain key."""
        here = set(self.turn.woven.keys)
        return {k: edit for k, edit in self.turn.plan.edits.items() if k in here}


async def foresee(parts: Parts, here: Here, steered: InForce | None = None, *, prompted: bool = False) -> Foreseen:
    """Plan the next request of a thread. steered: decisions to try, in place of those in force. prompted: the user
    speaks next, even where results are awaited."""
    steered = steered if steered is not None else here.steered
    raws = _next(here.request, prompted=prompted)
    count = len(here.keys)
    whole = [*(m.raw for m in here.request.messages), *raws]
    request = await place.read(parts, await place.aside(count, partial(write_request, here.request, whole)))
    keys = tuple(await place.aside(count, partial(key.chain, here.record.tenant, request.messages, here.keys)))
    # Facts that were found for the thread's last request are not available here: to the planner the whole history is
    # new.
    thread = replace(here.thread, memory=replace(here.thread.memory, steered=steered), sizes=(0, 0))
    target = parts.client.route(request.model)
    model = planning.model_of(parts, request.model)
    usual = parts.policies.get(here.exchange.policy) or planning.policy_of(parts, {}, target)
    turn = Turn(
        id="",
        tenant=here.record.tenant,
        place=Place(thread, "continuation", len(here.keys) - 1, here.record.explicit),
        request=request,
        keys=keys,
        policy=keeping.policy_for(parts, usual, steered),
        model=model,
        upstream=target.name,
        strategy=target.strategy,
        weigh=parts.weigh(model),
        began=parts.now(),
    )
    if count >= place.MANY or any(not turn.weigh.known(m) for m in request.messages):
        await asyncio.to_thread(lambda: [turn.weigh(m) for m in request.messages])
    await background.search(parts, turn)
    if thread.offer is not None:
        await weaving.dress(parts, turn, first=False)
    await recollect.recollect(parts, turn, "")
    await planning.decide(parts, turn)
    return Foreseen(turn, len(raws))


def _next(request: Request, *, prompted: bool) -> Sequence[bytes]:
    """Return stand-ins for the messages that the client will send next."""
    last = request.messages[-1]
    if last.role != "assistant":
        return [user_message(PROMPT)] if prompted else []
    if last.calls and not prompted:
        return [
            msgspec.json.encode({"role": "tool", "tool_call_id": call.id, "content": RESULT}) for call in last.calls
        ]
    return [user_message(PROMPT)]
