"""Publish the events of an exchange, with their data (FEATURES.md D6).

The data are numbers, ids, names of ours and the text of a summary, and no other text of a conversation. An error here
is counted and logged, and no request notices it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from proxy.chat.key import public_id
from proxy.context.events import events
from proxy.exchange import identify, money, news
from proxy.exchange.parts import Incoming, Parts
from proxy.exchange.turn import Turn
from proxy.stream.chunk import Usage

log = logging.getLogger(__name__)

NAMED: Final = 200
"""Limit on the messages that an event names; `removed` and the other counts include all of them."""
SAID: Final = 4000
"""Limit in characters on a text that an event repeats, for example a summary."""
TOLD: Final = "warn_of_loops"
RECOVERY: Final = "recovery"
"""Inserts that report a loop: those of the source `TOLD`, and the `reflect` insert for a model that itself sees that it
is stuck."""


@contextmanager
def _safe(parts: Parts) -> Iterator[None]:
    try:
        yield
    except Exception:  # the answer goes out even if an event cannot be published
        parts.metrics.swallowed_total.labels(where="events").inc()
        log.exception("an event could not be told")


def sent(parts: Parts, turn: Turn) -> None:
    """Publish the events of a plan, once its prompt has been sent upstream."""
    with _safe(parts):
        _client(parts, turn)
        if turn.observed or turn.fallback is not None or turn.policy.mode != "rewrite":
            return
        if turn.plan.new:
            _edited(parts, turn)
        for _, insert in turn.plan.placed:
            if insert.said is not None and (insert.source == TOLD or insert.said[0] == RECOVERY):
                _tell(parts, turn, news.LOOP, {"loop": insert.said[0], "count": insert.said[1]})


def _client(parts: Parts, turn: Turn) -> None:
    """Publish an event if the client has changed the part of its conversation that the provider's cache holds."""
    thread = turn.place.thread
    digest, tools = turn.place.system, hash(turn.request.tools)
    before, thread.opening = thread.opening, (digest, tools, turn.began)
    what = "history" if turn.place.kind == "fork" else ""
    if before is not None and turn.began - before[2] <= turn.model.ttl_s:
        what = "system" if before[0] != digest else "tools" if before[1] != tools else what
    if what:
        _tell(parts, turn, news.CACHE, {"by": "client", "changed": what, "predicted": turn.plan.predicted})


def _edited(parts: Parts, turn: Turn) -> None:
    for event in events(turn.plan):
        _tell(parts, turn, event.name, _bounded(event.payload))
    short = [edit for edit in turn.plan.new if edit.action in ("text", "text_only")]
    if short:
        data = {
            "action": "shorten", "by": "policy", "messages": [public_id(edit.key) for edit in short[:NAMED]],
            "count": len(short), "tokens": sum(edit.before - edit.after for edit in short),
        }  # fmt: skip
        _tell(parts, turn, news.EDITED, data)


def ended(parts: Parts, turn: Turn, usage: Usage | None, state: tuple[bytes, str] | None) -> None:
    """Publish the events of an answer. usage: that of the first round, None where the answer is not whole. state: the
    state block that the answer had, as (key, text)."""
    with _safe(parts):
        if turn.fallback is not None:
            _tell(parts, turn, news.FALLBACK, {"reason": turn.fallback})
        if state is not None:
            _tell(parts, turn, news.STATE, {"by": "model", "characters": len(state[1])})
        predicted, cached = money.expected(turn), usage.cached if usage is not None else None
        if cached is not None and turn.fallback is None and cached < predicted // 2:
            data = {"by": "upstream", "predicted": predicted, "reported": cached}
            _tell(parts, turn, news.CACHE, {**data, "in_a_row": turn.place.thread.state.drift})


def passed(parts: Parts, incoming: Incoming, reason: str) -> None:
    """Publish that a request without a known session went out as it came."""
    with _safe(parts):
        tenant, session = identify.owner(incoming.headers, incoming.tenant, incoming.session, parts.settings.identity)
        parts.news.tell(news.FALLBACK, tenant, {"reason": reason}, session=session)


def decided(parts: Parts, tenant: str, session: str, action: str, *, thread: str = "", **data: object) -> None:
    """Publish a decision of the operator."""
    with _safe(parts):
        made = {"action": action, "by": "operator", **data}
        parts.news.tell(news.EDITED, tenant, _bounded(made), session=session, thread=thread)


def stated(parts: Parts, tenant: str, session: str, thread: str, text: str) -> None:
    """Publish a state that no answer had: the operator's, or one that was rebuilt for the operator."""
    with _safe(parts):
        data = {"by": "operator", "characters": len(text)}
        parts.news.tell(news.STATE, tenant, data, session=session, thread=thread)


def memo(parts: Parts, turn: Turn, name: str, *, merged: bool) -> None:
    """Publish a memo that the model saved. merged: it replaced a memo that said nearly the same."""
    with _safe(parts):
        _tell(parts, turn, news.MEMO, {"by": "model", "memo": name, "merged": merged})


def mended(parts: Parts, tenant: str, name: str) -> None:
    """Publish that the operator changed a memo."""
    with _safe(parts):
        parts.news.tell(news.MEMO, tenant, {"by": "operator", "memo": name, "merged": False})


def _tell(parts: Parts, turn: Turn, kind: str, data: Mapping[str, Any]) -> None:
    thread = turn.place.thread
    parts.news.tell(kind, turn.tenant, data, session=thread.session, thread=thread.name, exchange=turn.id)


def _bounded(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return the payload with long lists and long texts cut to their first NAMED items and SAID characters."""
    return {name: _cut(value) for name, value in payload.items()}


def _cut(value: Any) -> Any:
    if isinstance(value, str):
        return value if len(value) <= SAID else value[:SAID] + "…"
    return list(value[:NAMED]) if isinstance(value, Sequence) else value
