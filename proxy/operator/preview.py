"""Preview of the prompt that would go out if the client sent its history now. It is planned like a request, and neither
sent nor stored."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import msgspec

from proxy.chat import chain
from proxy.chat.message import Request
from proxy.context.plan import Edit
from proxy.dialects.completions.request import make_user_message, write_request
from proxy.exchange import lookups, plan_request, splice_rounds
from proxy.exchange.services import Services
from proxy.exchange.turn import Enriched, Turn
from proxy.operator import find_session
from proxy.operator.find_session import SelectedBranch
from proxy.sessions.hidden_rounds import SplicedRequest
from proxy.sessions.locate import Located
from proxy.sessions.operator_decisions import StoredDecisions

NEXT_MESSAGE_TEXT = "(the client's next message)"
NEXT_RESULT_TEXT = "(the result that the client will bring)"


@dataclass(frozen=True, slots=True, eq=False)
class Preview:
    """A planned turn. stand_ins: number of messages at the end that stand for the client's next messages."""

    turn: Turn
    stand_ins: int

    @property
    def edits(self) -> dict[bytes, Edit]:
        """The plan's edits of the client's messages, by chain key."""
        present = set(self.turn.enriched.spliced.keys)
        return {k: edit for k, edit in self.turn.prompt.plan.edits.items() if k in present}


async def preview_prompt(
    services: Services, selected: SelectedBranch, decisions: StoredDecisions | None = None, *, prompted: bool = False
) -> Preview:
    """Plan the next request of a branch. decisions: decisions to try, in place of those in force. prompted: the user
    speaks next, even where results are awaited."""
    decisions = decisions if decisions is not None else selected.operator_decisions
    raws = _make_stand_ins(selected.request, prompted=prompted)
    count = len(selected.keys)
    whole = [*(m.raw for m in selected.request.messages), *raws]
    request = await find_session.parse_request(
        services, await find_session.run_off_loop(count, partial(write_request, selected.request, whole))
    )
    keys = tuple(
        await find_session.run_off_loop(
            count, partial(chain.compute_keys, selected.record.tenant, request.messages, selected.keys)
        )
    )
    # Facts that were found for the branch's last request are not available here: to the planner the whole history is
    # new.
    branch = replace(
        selected.branch,
        live_session=replace(selected.branch.live_session, stored_decisions=decisions),
        unstored=msgspec.structs.replace(selected.branch.unstored, received_bytes=0, sent_bytes=0),
    )
    target = services.client.select_target(request.model)
    model = lookups.look_up_model(services, request.model)
    usual = services.policies.get(selected.exchange.policy) or lookups.find_policy(services, {}, target)
    turn = Turn(
        id="",
        tenant=selected.record.tenant,
        located=Located(branch, "continuation", len(selected.keys) - 1, selected.record.explicit),
        request=request,
        keys=keys,
        model=model,
        upstream=target.name,
        strategy=target.strategy,
        token_counter=services.find_token_counter(model),
        started_at=services.now(),
        enriched=Enriched(lookups.choose_policy(services, usual, decisions), SplicedRequest(request, keys)),
    )
    if count >= find_session.OFF_LOOP_MESSAGES or any(not turn.token_counter.has_count(m) for m in request.messages):
        await asyncio.get_running_loop().run_in_executor(
            services.workers, turn.token_counter.count_each, request.messages
        )
    task = lookups.find_task(turn)
    await lookups.search_store(services, turn, task)
    if branch.tool_offer is not None:
        turn = await splice_rounds.add_rounds_and_tools(services, turn, first=False)
    await lookups.load_notes(services, turn, task, "")
    turn = await plan_request.plan_request(services, turn)
    return Preview(turn, len(raws))


def _make_stand_ins(request: Request, *, prompted: bool) -> Sequence[bytes]:
    """Return stand-ins for the messages that the client will send next."""
    last = request.messages[-1]
    if last.role != "assistant":
        return [make_user_message(NEXT_MESSAGE_TEXT)] if prompted else []
    if last.calls and not prompted:
        return [
            msgspec.json.encode({"role": "tool", "tool_call_id": call.id, "content": NEXT_RESULT_TEXT})
            for call in last.calls
        ]
    return [make_user_message(NEXT_MESSAGE_TEXT)]
