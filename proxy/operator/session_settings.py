"""Settings of a session by the operator: policy, window, limits of its stages, and one-time settings for the next
request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import get_args

import msgspec

from proxy.context.analysis.iteration import Urgency
from proxy.context.policy import ScheduleName
from proxy.errors import Conflict, Unprocessable
from proxy.exchange import publish_events
from proxy.exchange.services import Services
from proxy.operator import find_session
from proxy.sessions import load_sessions
from proxy.sessions.operator_decisions import SessionSettings, make_settings_row, parse_settings

MAX_SETTING = 100_000
"""Limit on numbers of groups and iterations: above any real number."""


async def load_settings(services: Services, tenant: str, session: str) -> SessionSettings:
    """Return the settings of a session. Raises NotFound; StoreUnavailable passes through, here and below."""
    return parse_settings((await find_session.read_session(services, tenant, session)).settings)


async def change_settings(services: Services, tenant: str, session: str, **changes: object) -> SessionSettings:
    """Set policy, schedule, window, max_iterations or urgency; None takes a setting back. Raises NotFound, and
    Unprocessable for an unknown setting or value."""
    known = await load_settings(services, tenant, session)
    new_values: dict[str, object] = {}
    for name, value in changes.items():
        allowed = _list_allowed_values(services).get(name)
        if allowed is None:
            raise Unprocessable(
                f"{name!r} cannot be set for a session", hint="One of " + ", ".join(_list_allowed_values(services))
            )
        fits, words = allowed
        if value is not None and not fits(value):
            raise Unprocessable(f"{name} = {value!r} is not usable", hint=f"Allowed: {words}")
        new_values[name] = value if value is not None else _make_unset_value(name, known)
    return await _store_settings(services, tenant, session, known, msgspec.structs.replace(known, **new_values))


async def replace_settings(services: Services, tenant: str, session: str, **settings: object) -> SessionSettings:
    """Set all settings: one that is left out is taken back. Raises what `change_settings` raises."""
    return await change_settings(
        services, tenant, session, **{**dict.fromkeys(_list_allowed_values(services)), **settings}
    )


def _make_unset_value(name: str, known: SessionSettings) -> object:
    # Messages that a window has left out come back only while a window is planned: -1 means that the policy's own
    # counts.
    if name == "window":
        return None if known.window is None else -1
    return None if name == "max_iterations" else ""


def _list_allowed_values(services: Services) -> dict[str, tuple[Callable[[object], bool], str]]:
    """The allowed values of each setting, as a check and in words."""
    schedules, levels = get_args(ScheduleName), get_args(Urgency)

    def number(least: int) -> Callable[[object], bool]:
        return lambda v: isinstance(v, int) and not isinstance(v, bool) and least <= v <= MAX_SETTING

    return {
        "policy": (
            lambda v: isinstance(v, str) and v in services.policies,
            "one of " + ", ".join(sorted(services.policies)),
        ),
        "schedule": (lambda v: v in schedules, "one of " + ", ".join(schedules)),
        "window": (number(0), f"a number of groups from 0 (all) to {MAX_SETTING}"),
        "max_iterations": (number(1), f"a number from 1 to {MAX_SETTING}"),
        "urgency": (lambda v: v in levels, "one of " + ", ".join(levels)),
    }


async def set_window(services: Services, tenant: str, session: str, groups: int) -> SessionSettings:
    """Keep only the last groups in the prompt, including the active group; 0: all."""
    return await change_settings(services, tenant, session, window=groups)


async def request_prune(services: Services, tenant: str, session: str) -> SessionSettings:
    """Plan the next request as if its budget were smaller. Raises Conflict where the policy changes nothing."""
    return await _set_one_time_action(services, tenant, session, {"force": "prune"})


async def request_compress(services: Services, tenant: str, session: str) -> SessionSettings:
    """Have the next request make every edit that its policy proposes, even if it does not pay. Raises Conflict where
    the policy changes nothing."""
    return await _set_one_time_action(services, tenant, session, {"force": "compress"})


async def request_state(services: Services, tenant: str, session: str) -> SessionSettings:
    """Have the next request ask its model for a STATE block, whatever its policy does."""
    known = await load_settings(services, tenant, session)
    return await _store_settings(services, tenant, session, known, msgspec.structs.replace(known, ask=True))


async def _set_one_time_action(
    services: Services, tenant: str, session: str, changes: Mapping[str, str]
) -> SessionSettings:
    record = await find_session.read_session(services, tenant, session)
    known = parse_settings(record.settings)
    exchange = await find_session.find_last_exchange(services, record, None)
    policy = services.policies.get(known.policy or exchange.policy)
    if policy is not None and policy.mode != "rewrite":
        raise Conflict(
            f"the policy {policy.name} changes nothing", hint="Set another policy for the session, or drop groups."
        )
    return await _store_settings(services, tenant, session, known, msgspec.structs.replace(known, **changes))


async def _store_settings(
    services: Services, tenant: str, session: str, known: SessionSettings, new_settings: SessionSettings
) -> SessionSettings:
    await services.store.put([make_settings_row(tenant, session, new_settings)])
    await load_sessions.reload_decisions(services.live_sessions, tenant, session)
    before, after = msgspec.structs.asdict(known), msgspec.structs.asdict(new_settings)
    changes = {name: value for name, value in after.items() if value != before[name]}
    publish_events.publish_decision(services, tenant, session, "settings", settings=changes)
    return new_settings
