"""`POST /api/sessions/{session}/replay`: the cost of the session under other policies."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Final

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from proxy.context.models import Model, find_model
from proxy.context.policy import ScheduleName, with_schedule
from proxy.errors import Conflict, TooMany, Unavailable, Unprocessable
from proxy.exchange.services import Services
from proxy.replay import stored
from proxy.replay.baselines import BASELINES
from proxy.replay.play import Contender, ReplaySettings, play_conversation
from proxy.replay.read import RecordedConversation
from proxy.replay.report import NOTHING, ReplayReport, ReportBuilder
from proxy.replay.work import create_pool
from proxy.web.api import json_answers
from proxy.web.api.admin_context import SessionContext, SessionContextDep
from proxy.web.api.json_answers import ERROR_RESPONSES

router = APIRouter(prefix="/api/sessions/{session}", tags=["replay"], responses=ERROR_RESPONSES)

MAX_SECONDS: Final = 60.0
"""Seconds after which a replay is given up."""
MAX_BYTES: Final = 64 << 20
"""Bytes of messages that are replayed at once."""


class ReplayContender(BaseModel):
    """A policy (`/api/policies` names them) or a baseline that takes part, under a schedule."""

    model_config = ConfigDict(extra="forbid")

    policy: Annotated[str, Field(max_length=64, examples=["thrifty"])]
    schedule: ScheduleName | None = None


class ReplayBody(BaseModel):
    """The policies to compare; none: every policy that rewrites. model: the model whose prices and window count;
    without it, that of the session's newest request. window: tokens, instead of the model's."""

    model_config = ConfigDict(extra="forbid")

    policies: Annotated[list[ReplayContender], Field(max_length=20)] = []
    model: Annotated[str | None, Field(max_length=256)] = None
    window: Annotated[int | None, Field(ge=1, le=1 << 40)] = None


@router.post("/replay", response_model=json_answers.describe(ReplayReport))
async def replay(context: SessionContextDep, body: ReplayBody, request: Request) -> Response:
    """Replay the session under other policies, offline. The result shows the cost and the kept content of each. Takes
    seconds; one replay runs at a time."""
    busy: asyncio.Lock = request.app.state.replaying
    if busy.locked():
        raise TooMany("a replay is running", hint="Try again in a few seconds.")
    async with busy:
        newest = await context.services.store.read_exchanges(context.tenant, context.session, 1)
        if not newest:
            raise Conflict("the session has no request yet that could be played")
        model = find_model(context.services.models, body.model or newest[0].model)
        if body.window is not None:
            model = replace(model, window=body.window)
        match = _make_replay_settings(context.services, body.policies, model)
        conversations = await _read_conversations(context)
        sums = ReportBuilder(match)
        for played in await _play_conversations(conversations, match):
            sums.add_result(played)
    if not sums.request_count:
        raise Conflict("nothing in the session could be played")
    return json_answers.render(sums.build_report())


async def _read_conversations(context: SessionContext) -> list[RecordedConversation]:
    """Return the session's branches. Raises Unprocessable for too many bytes, and reads no further: each branch has its
    whole history."""
    conversations: list[RecordedConversation] = []
    size = 0
    async for conversation in stored.read_branches(context.services.store, (context.tenant, context.session), "store"):
        size += sum(map(len, conversation.messages))
        if size > MAX_BYTES:
            raise Unprocessable("the session is too long to be played here", hint="Use `context-proxy replay`.")
        conversations.append(conversation)
    return conversations


def _make_replay_settings(services: Services, wanted: Sequence[ReplayContender], model: Model) -> ReplaySettings:
    contenders = {NOTHING: Contender(NOTHING)}
    chosen = wanted or [ReplayContender(policy=name) for name, p in services.policies.items() if p.mode == "rewrite"]
    for requested in chosen:
        policy = services.policies.get(requested.policy)
        if policy is None and requested.policy not in BASELINES:
            raise Unprocessable(f"there is no policy {requested.policy!r}", hint="GET /api/policies lists them.")
        if policy is None:
            contenders[requested.policy] = Contender(requested.policy, None, requested.policy)
            continue
        schedule = requested.schedule or policy.schedule
        label = requested.policy if schedule == policy.schedule else f"{requested.policy}:{schedule}"
        contenders[label] = Contender(label, with_schedule(policy, schedule))
    return ReplaySettings(tuple(contenders.values()), model, ((model.w, model.r),))


async def _play_conversations(conversations: list[RecordedConversation], match: ReplaySettings) -> list[Any]:
    """Play in a separate process: the replay computes for seconds, and chat continues meanwhile."""
    pool = create_pool(1, match)
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(MAX_SECONDS):
            return [await loop.run_in_executor(pool, play_conversation, one, match) for one in conversations]
    except TimeoutError:
        raise Unavailable("the replay took too long", hint="Use `context-proxy replay`, or fewer policies.") from None
    finally:
        for worker in list((pool._processes or {}).values()):
            worker.kill()  # no code waits for its work any more
        pool.shutdown(wait=False, cancel_futures=True)
