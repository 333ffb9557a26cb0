"""Operator's decisions of a running session: read when a request comes, and again when a decision was made."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import msgspec

from proxy.context import operator_edits
from proxy.context.policy import Policy, ScheduleName
from proxy.errors import StoreUnavailable
from proxy.exchange.services import Services
from proxy.exchange.turn import Turn
from proxy.sessions.branch import LiveSession
from proxy.sessions.operator_decisions import SessionSettings, StoredDecisions, read_decisions
from proxy.store.base import Row
from proxy.store.session_notes import SettingsRow


async def refresh(services: Services, live_session: LiveSession) -> StoredDecisions:
    """Return the decisions in force for a request of this session. If other processes write to the same store, they are
    read again; if that takes too long, the known ones count. Raises StoreUnavailable if none are known."""
    if live_session.stored_decisions is None:
        known = live_session.explicit or live_session.stored
        live_session.stored_decisions = (
            await read_decisions(services.store, live_session.tenant, live_session.session)
            if known
            else StoredDecisions()
        )
    elif services.store.shared:
        try:
            async with asyncio.timeout(services.settings.limits.commit_wait_ms / 1000):
                live_session.stored_decisions = await read_decisions(
                    services.store, live_session.tenant, live_session.session
                )
        except (TimeoutError, StoreUnavailable):
            services.metrics.internal_errors_total.labels(where="operator_decisions").inc()
    return live_session.stored_decisions


async def reload(services: Services, tenant: str, session: str) -> StoredDecisions:
    """Read the decisions again after one was made; the session's next requests have them."""
    found = await read_decisions(services.store, tenant, session)
    memory = services.live_sessions.find_session(tenant, session)
    if memory is not None:
        memory.stored_decisions = found
    return found


def choose_policy(services: Services, policy: Policy, decisions: StoredDecisions, requested: str = "") -> Policy:
    """Return the session's policy, with its settings and decisions. policy: used where the session names none. named:
    the request's policy, which has priority over the session's."""
    if decisions.is_empty:
        return policy
    if requested not in services.policies:
        policy = services.policies.get(decisions.settings.policy, policy)
    schedules: dict[str, ScheduleName] = {name: name for name in ("always", "over_budget", "when_it_pays")}
    wanted = schedules.get(decisions.settings.schedule)
    if wanted is not None and policy.mode == "rewrite":
        policy = replace(policy, schedule=wanted)
    return operator_edits.allow_rewrite(policy, decisions.planning_decisions)


def clear_one_time_settings(turn: Turn) -> list[Row]:
    """Return the row that takes back one-time settings, once the request that uses them is planned; memory is
    updated."""
    memory = turn.located.thread.live_session
    known = memory.stored_decisions
    if known is None or turn.located.thread.kind == "side" or turn.plan.refusal is not None or turn.observed:
        return []
    left = msgspec.structs.replace(known.settings, force="", ask=known.settings.ask and not turn.plan.asks_for_state)
    if left == known.settings:
        return []
    memory.stored_decisions = replace(known, settings=left)
    return [make_settings_row(turn.tenant, memory.session, left)]


def make_settings_row(tenant: str, session: str, settings: SessionSettings) -> SettingsRow:
    """Return the row that stores a session's settings."""
    return SettingsRow(tenant, session, msgspec.json.encode(settings).decode())
