"""Publish the events of an exchange, with their data (FEATURES.md D6).

The data are numbers, ids, names of ours and the text of a summary, and no other text of a conversation. An error here
is counted and logged, and no request notices it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from proxy.chat.chain import public_id
from proxy.context.plan_events import make_events
from proxy.dialects.completions.stream import Usage
from proxy.events import bus
from proxy.exchange import cost
from proxy.exchange.services import Incoming, Services
from proxy.exchange.turn import Turn
from proxy.sessions import locate

log = logging.getLogger(__name__)

MAX_LISTED: Final = 200
"""Limit on the messages that an event names; `removed` and the other counts include all of them."""
MAX_TEXT: Final = 4000
"""Limit in characters on a text that an event repeats, for example a summary."""
LOOP_SOURCE: Final = "warn_of_loops"
RECOVERY: Final = "recovery"
"""Inserts that report a loop: those of the source `LOOP_SOURCE`, and the `reflect` insert for a model that itself sees
that it is stuck."""


@contextmanager
def _safe(services: Services) -> Iterator[None]:
    try:
        yield
    except Exception:  # the answer goes out even if an event cannot be published
        services.metrics.internal_errors_total.labels(where="events").inc()
        log.exception("an event could not be told")


def publish_plan(services: Services, turn: Turn) -> None:
    """Publish the events of a plan, once its prompt has been sent upstream."""
    with _safe(services):
        _publish_client_change(services, turn)
        if turn.observed or turn.fallback is not None or turn.policy.mode != "rewrite":
            return
        if turn.plan.new_edits:
            _publish_edits(services, turn)
        for _, insert in turn.plan.placed_inserts:
            if insert.note_count is not None and (insert.source == LOOP_SOURCE or insert.note_count[0] == RECOVERY):
                _publish(services, turn, bus.LOOP, {"loop": insert.note_count[0], "count": insert.note_count[1]})


def _publish_client_change(services: Services, turn: Turn) -> None:
    """Publish an event if the client has changed the part of its conversation that the provider's cache holds."""
    thread = turn.located.thread
    digest, tools = turn.located.system_digest, hash(turn.request.tools)
    before, thread.last_beginning = thread.last_beginning, (digest, tools, turn.started_at)
    what = "history" if turn.located.relation == "fork" else ""
    if before is not None and turn.started_at - before[2] <= turn.model.ttl_s:
        what = "system" if before[0] != digest else "tools" if before[1] != tools else what
    if what:
        _publish(services, turn, bus.CACHE, {"by": "client", "changed": what, "predicted": turn.plan.predicted})


def _publish_edits(services: Services, turn: Turn) -> None:
    for event in make_events(turn.plan):
        _publish(services, turn, event.name, _bounded(event.payload))
    short = [edit for edit in turn.plan.new_edits if edit.action in ("text", "text_only")]
    if short:
        data = {
            "action": "shorten", "by": "policy", "messages": [public_id(edit.key) for edit in short[:MAX_LISTED]],
            "count": len(short), "tokens": sum(edit.before - edit.after for edit in short),
        }  # fmt: skip
        _publish(services, turn, bus.EDITED, data)


def publish_answer(services: Services, turn: Turn, usage: Usage | None, state: tuple[bytes, str] | None) -> None:
    """Publish the events of an answer. usage: that of the first round, None where the answer is not whole. state: the
    state block that the answer had, as (key, text)."""
    with _safe(services):
        if turn.fallback is not None:
            _publish(services, turn, bus.FALLBACK, {"reason": turn.fallback})
        if state is not None:
            _publish(services, turn, bus.STATE, {"by": "model", "characters": len(state[1])})
        predicted, cached = cost.count_expected_cached(turn), usage.cached if usage is not None else None
        if cached is not None and turn.fallback is None and cached < predicted // 2:
            data = {"by": "upstream", "predicted": predicted, "reported": cached}
            _publish(services, turn, bus.CACHE, {**data, "in_a_row": turn.located.thread.state.cache_miss_streak})


def publish_fallback(services: Services, incoming: Incoming, reason: str) -> None:
    """Publish that a request without a known session went out as it came."""
    with _safe(services):
        tenant, session = locate.find_owner(
            incoming.headers, incoming.tenant, incoming.session, services.settings.identity
        )
        services.event_bus.publish(bus.FALLBACK, tenant, {"reason": reason}, session=session)


def publish_decision(
    services: Services, tenant: str, session: str, action: str, *, branch: str = "", **data: object
) -> None:
    """Publish a decision of the operator."""
    with _safe(services):
        made = {"action": action, "by": "operator", **data}
        services.event_bus.publish(bus.EDITED, tenant, _bounded(made), session=session, branch=branch)


def publish_state(services: Services, tenant: str, session: str, branch: str, text: str) -> None:
    """Publish a state that no answer had: the operator's, or one that was rebuilt for the operator."""
    with _safe(services):
        data = {"by": "operator", "characters": len(text)}
        services.event_bus.publish(bus.STATE, tenant, data, session=session, branch=branch)


def publish_memo_saved(services: Services, turn: Turn, name: str, *, merged: bool) -> None:
    """Publish a memo that the model saved. merged: it replaced a memo that said nearly the same."""
    with _safe(services):
        _publish(services, turn, bus.MEMO, {"by": "model", "memo": name, "merged": merged})


def publish_memo_changed(services: Services, tenant: str, name: str) -> None:
    """Publish that the operator changed a memo."""
    with _safe(services):
        services.event_bus.publish(bus.MEMO, tenant, {"by": "operator", "memo": name, "merged": False})


def _publish(services: Services, turn: Turn, kind: str, data: Mapping[str, Any]) -> None:
    thread = turn.located.thread
    services.event_bus.publish(kind, turn.tenant, data, session=thread.session, branch=thread.name, exchange=turn.id)


def _bounded(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return the payload with long lists and long texts cut to their first NAMED items and SAID characters."""
    return {name: _cut(value) for name, value in payload.items()}


def _cut(value: Any) -> Any:
    if isinstance(value, str):
        return value if len(value) <= MAX_TEXT else value[:MAX_TEXT] + "…"
    return list(value[:MAX_LISTED]) if isinstance(value, Sequence) else value
