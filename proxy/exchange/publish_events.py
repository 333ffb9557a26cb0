"""Publish the events of an exchange and of an operator's decisions, with their data.

The data are numbers, ids, names of the proxy and the text of a summary, and no other text of a conversation. An error
here is counted and logged, and no request notices it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from proxy.chat.chain import public_id
from proxy.context.plan import SHORTENING_ACTIONS
from proxy.context.plan_events import make_events
from proxy.dialects.usage import Usage
from proxy.events import bus
from proxy.exchange import cost
from proxy.exchange.services import Incoming, Services
from proxy.exchange.turn import Turn
from proxy.sessions import locate
from proxy.sessions.branch import Beginning

log = logging.getLogger(__name__)

MAX_LISTED: Final = 200
"""Limit on the messages that an event names; `removed` and the other counts include all of them."""
MAX_TEXT: Final = 4000
"""Limit in characters on a text that an event repeats, for example a summary."""
LOOP_SOURCE: Final = "warn_of_loops"
RECOVERY: Final = "recovery"
"""Inserts that report a loop: of `LOOP_SOURCE`, and `reflect` for a model that sees that it is stuck."""


class _GuardEvents:
    """A block whose errors are counted and logged: the answer goes out even if an event cannot be published."""

    __slots__ = ("_services",)

    def __init__(self, services: Services) -> None:
        self._services = services

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, _trace: object) -> bool:
        if not isinstance(error, Exception):
            return False
        self._services.metrics.internal_errors_total.labels(where="events").inc()
        log.error("an event could not be published", exc_info=error)
        return True


def publish_plan(services: Services, turn: Turn) -> None:
    """Publish the events of a plan, once its prompt has been sent upstream."""
    with _GuardEvents(services):
        if not turn.dialect.returns_rows:  # a gateway withholds rows, so a missing row proves nothing
            _publish_client_change(services, turn)
        if turn.prompt.observed or turn.prompt.fallback is not None or turn.enriched.policy.mode != "rewrite":
            return
        if turn.prompt.plan.new_edits:
            _publish_edits(services, turn)
        for _, insert in turn.prompt.plan.placed_inserts:
            if insert.note_count is not None and (insert.source == LOOP_SOURCE or insert.note_count[0] == RECOVERY):
                _publish(services, turn, bus.LOOP, {"loop": insert.note_count[0], "count": insert.note_count[1]})


def _publish_client_change(services: Services, turn: Turn) -> None:
    """Publish an event if the client has changed the part of its conversation that the provider's cache holds."""
    branch = turn.located.branch
    traits = turn.located.traits
    now = Beginning(traits.system_digest, hash(turn.request.tools), turn.started_at, traits.caller)
    before, branch.unstored = branch.unstored.beginning, replace(branch.unstored, beginning=now)
    what = "history" if turn.located.relation == "fork" else ""
    if before is not None and now.came_at - before.came_at <= turn.model.ttl_s:
        is_same_system, is_same_tools = before.system_digest == now.system_digest, before.tools_hash == now.tools_hash
        what = "system" if not is_same_system else "tools" if not is_same_tools else what
    if what:
        _publish(services, turn, bus.CACHE, {"by": "client", "changed": what, "predicted": turn.prompt.plan.predicted})


def _publish_edits(services: Services, turn: Turn) -> None:
    for event in make_events(turn.prompt.plan):
        _publish(services, turn, event.name, _shorten_payload(event.payload))
    short = [edit for edit in turn.prompt.plan.new_edits if edit.action in SHORTENING_ACTIONS]
    if short:
        data = {
            "action": "shorten", "by": "policy", "messages": [public_id(edit.key) for edit in short[:MAX_LISTED]],
            "count": len(short), "tokens": sum(edit.before - edit.after for edit in short),
        }  # fmt: skip
        _publish(services, turn, bus.EDITED, data)


def publish_answer(services: Services, turn: Turn, usage: Usage | None, state: tuple[bytes, str] | None) -> None:
    """Publish the events of an answer. usage: that of the first round, None where the answer is not whole. state: the
    state block that the answer had, as (key, text)."""
    with _GuardEvents(services):
        if turn.prompt.fallback is not None:
            _publish(services, turn, bus.FALLBACK, {"reason": turn.prompt.fallback})
        if state is not None:
            _publish(services, turn, bus.STATE, {"by": "model", "characters": len(state[1])})
        predicted, cached = cost.count_expected_cached(turn), usage.cached if usage is not None else None
        if cached is not None and turn.prompt.fallback is None and cached < predicted // 2:
            data = {"by": "upstream", "predicted": predicted, "reported": cached}
            _publish(services, turn, bus.CACHE, {**data, "in_a_row": turn.located.branch.state.cache_miss_streak})


def publish_fallback(services: Services, incoming: Incoming, reason: str) -> None:
    """Publish that a request without a known session went out as received."""
    with _GuardEvents(services):
        tenant, session = locate.find_owner(
            incoming.headers, incoming.tenant, incoming.session, services.settings.identity
        )
        services.event_bus.publish(bus.FALLBACK, tenant, {"reason": reason}, session=session)


def publish_decision(
    services: Services, tenant: str, session: str, action: str, *, branch: str = "", **data: object
) -> None:
    """Publish a decision of the operator."""
    with _GuardEvents(services):
        made = {"action": action, "by": "operator", **data}
        services.event_bus.publish(bus.EDITED, tenant, _shorten_payload(made), session=session, branch=branch)


def publish_state(services: Services, tenant: str, session: str, branch: str, text: str) -> None:
    """Publish a state that no answer had: a state that the operator wrote, or that was rebuilt for the operator."""
    with _GuardEvents(services):
        data = {"by": "operator", "characters": len(text)}
        services.event_bus.publish(bus.STATE, tenant, data, session=session, branch=branch)


def publish_memo_saved(services: Services, turn: Turn, name: str, *, merged: bool) -> None:
    """Publish a memo that the model saved. merged: it replaced a memo with nearly the same text."""
    with _GuardEvents(services):
        _publish(services, turn, bus.MEMO, {"by": "model", "memo": name, "merged": merged})


def publish_memo_changed(services: Services, tenant: str, name: str, *, merged: bool = False) -> None:
    """Publish that the operator saved or changed a memo. merged: as in `publish_memo_saved`."""
    with _GuardEvents(services):
        services.event_bus.publish(bus.MEMO, tenant, {"by": "operator", "memo": name, "merged": merged})


def _publish(services: Services, turn: Turn, kind: str, data: Mapping[str, Any]) -> None:
    branch = turn.located.branch
    services.event_bus.publish(kind, turn.tenant, data, session=branch.session, branch=branch.name, exchange=turn.id)


def _shorten_payload(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return the payload with lists cut to their first MAX_LISTED items and texts to MAX_TEXT characters."""
    return {name: _shorten_value(value) for name, value in payload.items()}


def _shorten_value(value: Any) -> Any:
    if isinstance(value, str):
        return value if len(value) <= MAX_TEXT else value[:MAX_TEXT] + "…"
    return list(value[:MAX_LISTED]) if isinstance(value, Sequence) else value
