"""Operator's decisions of a running session: read when a request comes, and again when a decision was made."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import msgspec

from proxy.context import operator
from proxy.context.policy import Policy, ScheduleName
from proxy.errors import StoreUnavailable
from proxy.exchange.parts import Parts
from proxy.exchange.steering.inforce import InForce, read
from proxy.exchange.steering.shapes import SessionSettings
from proxy.exchange.thread import SessionMemory
from proxy.exchange.turn import Turn
from proxy.store.base import Row
from proxy.store.written import SettingsRow


async def refresh(parts: Parts, memory: SessionMemory) -> InForce:
    """Return the decisions in force for a request of this session. If other processes write to the same store, they are
    read again; if that takes too long, the known ones count. Raises StoreUnavailable if none are known."""
    if memory.steered is None:
        known = memory.explicit or memory.stored
        memory.steered = await read(parts.store, memory.tenant, memory.session) if known else InForce()
    elif parts.store.shared:
        try:
            async with asyncio.timeout(parts.settings.limits.commit_wait_ms / 1000):
                memory.steered = await read(parts.store, memory.tenant, memory.session)
        except (TimeoutError, StoreUnavailable):
            parts.metrics.swallowed_total.labels(where="steering").inc()
    return memory.steered


async def reload(parts: Parts, tenant: str, session: str) -> InForce:
    """Read the decisions again after one was made; the session's next requests have them."""
    found = await read(parts.store, tenant, session)
    memory = parts.threads.session(tenant, session)
    if memory is not None:
        memory.steered = found
    return found


def policy_for(parts: Parts, policy: Policy, known: InForce, named: str = "") -> Policy:
    """Return the session's policy, with its settings and decisions. policy: used where the session names none. named:
    the request's policy, which has priority over the session's."""
    if known.is_empty:
        return policy
    if named not in parts.policies:
        policy = parts.policies.get(known.settings.policy, policy)
    schedules: dict[str, ScheduleName] = {name: name for name in ("always", "over_budget", "when_it_pays")}
    wanted = schedules.get(known.settings.schedule)
    if wanted is not None and policy.mode == "rewrite":
        policy = replace(policy, schedule=wanted)
    return operator.opened(policy, known.steering)


def used(turn: Turn) -> list[Row]:
    """Return the row that takes back one-time settings, once the request that uses them is planned; memory is
    updated."""
    memory = turn.place.thread.memory
    known = memory.steered
    if known is None or turn.place.thread.kind == "side" or turn.plan.refused is not None or turn.observed:
        return []
    left = msgspec.structs.replace(known.settings, force="", ask=known.settings.ask and not turn.plan.asked)
    if left == known.settings:
        return []
    memory.steered = replace(known, settings=left)
    return [settings_row(turn.tenant, memory.session, left)]


def settings_row(tenant: str, session: str, settings: SessionSettings) -> SettingsRow:
    """Return the row that stores a session's settings."""
    return SettingsRow(tenant, session, msgspec.json.encode(settings).decode())
