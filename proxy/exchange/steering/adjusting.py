"""Settings of a session by the operator: policy, window, limits of its stages, and one-time settings for the next
request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import get_args

import msgspec

from proxy.context.evidence.iteration import Urgency
from proxy.context.policy import ScheduleName
from proxy.errors import Conflict, Unprocessable
from proxy.exchange import announcing
from proxy.exchange.parts import Parts
from proxy.exchange.steering import keeping, place
from proxy.exchange.steering.inforce import read_settings
from proxy.exchange.steering.shapes import SessionSettings

MOST = 100_000
"""Limit on numbers of groups and iterations: above any real number."""


async def settings(parts: Parts, tenant: str, session: str) -> SessionSettings:
    """Return the settings of a session. Raises NotFound; StoreUnavailable passes through, here and below."""
    return read_settings((await place.session(parts, tenant, session)).settings)


async def configure(parts: Parts, tenant: str, session: str, changes: Mapping[str, object]) -> SessionSettings:
    """Set policy, schedule, window, max_iterations or urgency; None takes a setting back. Raises NotFound, and
    Unprocessable for an unknown setting or value."""
    known = await settings(parts, tenant, session)
    made: dict[str, object] = {}
    for name, value in changes.items():
        allowed = _allowed(parts).get(name)
        if allowed is None:
            raise Unprocessable(f"{name!r} cannot be set for a session", hint="One of " + ", ".join(_allowed(parts)))
        fits, words = allowed
        if value is not None and not fits(value):
            raise Unprocessable(f"{name} = {value!r} is not usable", hint=f"Allowed: {words}")
        made[name] = value if value is not None else _unset(name, known)
    return await _put(parts, tenant, session, known, msgspec.structs.replace(known, **made))


def _unset(name: str, known: SessionSettings) -> object:
    # Messages that a window has left out come back only while a window is planned: -1 means that the policy's own
    # counts.
    if name == "window":
        return None if known.window is None else -1
    return None if name == "max_iterations" else ""


def _allowed(parts: Parts) -> dict[str, tuple[Callable[[object], bool], str]]:
    """The allowed values of each setting, as a check and in words."""
    schedules, levels = get_args(ScheduleName), get_args(Urgency)

    def number(least: int) -> Callable[[object], bool]:
        return lambda v: isinstance(v, int) and not isinstance(v, bool) and least <= v <= MOST

    return {
        "policy": (lambda v: isinstance(v, str) and v in parts.policies, "one of " + ", ".join(sorted(parts.policies))),
        "schedule": (lambda v: v in schedules, "one of " + ", ".join(schedules)),
        "window": (number(0), f"a number of groups from 0 (all) to {MOST}"),
        "max_iterations": (number(1), f"a number from 1 to {MOST}"),
        "urgency": (lambda v: v in levels, "one of " + ", ".join(levels)),
    }


async def window(parts: Parts, tenant: str, session: str, groups: int) -> SessionSettings:
    """Keep only the last groups in the prompt, including the active group; 0: all."""
    return await configure(parts, tenant, session, {"window": groups})


async def prune(parts: Parts, tenant: str, session: str) -> SessionSettings:
    """Plan the next request as if its budget were smaller than its prompt. Raises Conflict where the policy changes
    nothing."""
    return await _force(parts, tenant, session, {"force": "prune"})


async def compress(parts: Parts, tenant: str, session: str) -> SessionSettings:
    """Have the next request make every edit that its policy proposes, even if it does not pay. Raises Conflict where
    the policy changes nothing."""
    return await _force(parts, tenant, session, {"force": "compress"})


async def ask_state(parts: Parts, tenant: str, session: str) -> SessionSettings:
    """Have the next request ask its model for a STATE block, whatever its policy does."""
    known = await settings(parts, tenant, session)
    return await _put(parts, tenant, session, known, msgspec.structs.replace(known, ask=True))


async def _force(parts: Parts, tenant: str, session: str, made: Mapping[str, str]) -> SessionSettings:
    record = await place.session(parts, tenant, session)
    known = read_settings(record.settings)
    exchange = await place.last_exchange(parts, record, None)
    policy = parts.policies.get(known.policy or exchange.policy)
    if policy is not None and policy.mode != "rewrite":
        raise Conflict(
            f"the policy {policy.name} changes nothing", hint="Set another policy for the session, or drop groups."
        )
    return await _put(parts, tenant, session, known, msgspec.structs.replace(known, **made))


async def _put(
    parts: Parts, tenant: str, session: str, known: SessionSettings, made: SessionSettings
) -> SessionSettings:
    await parts.store.put([keeping.settings_row(tenant, session, made)])
    await keeping.reload(parts, tenant, session)
    before, after = msgspec.structs.asdict(known), msgspec.structs.asdict(made)
    changes = {name: value for name, value in after.items() if value != before[name]}
    announcing.decided(parts, tenant, session, "settings", settings=changes)
    return made
