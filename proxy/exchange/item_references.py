"""References to items: a client that lets the provider store its answers may send the id of an item in its place.

An edit of such a prompt would be lost, and its history cannot be recognised by its text. Where the proxy may complete a
request (`responses.takeover`), it puts the items of its own answers back. The ids are names in the store, beside those
of the responses.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from proxy.dialects.responses import chained
from proxy.dialects.responses import items as responses_items
from proxy.errors import StoreUnavailable
from proxy.exchange.services import Services
from proxy.store.response_names import is_storable

ITEM_PREFIX: Final = "item:"
"""Beginning of the name of an item in the store: a response may have the same id."""
_OBJECT = msgspec.json.Decoder(dict[str, Any])


def remember_items(services: Services, tenant: str, session: str, answers: Iterable[bytes]) -> list[str]:
    """Remember the items of these answers, and return their ids. answers: their canonical messages."""
    names = []
    for raw in answers:
        for item in responses_items.make_items(raw, {}):
            name = _OBJECT.decode(item).get("id")
            if isinstance(name, str) and name and is_storable(ITEM_PREFIX + name):
                services.items.put(tenant, session, name, item)
                names.append(name)
    return names


async def resolve_references(services: Services, tenant: str, body: bytes) -> bytes | None:
    """Return the request with the items in the place of the references to them; None if one of them is not known.
    Raises ValueError if the body cannot be changed."""
    items: dict[str, bytes] = {}
    for name in reversed(chained.list_references(body)):  # with the newest one, the store gives all before it
        if services.items.get(tenant, name) is None:
            await _load_items(services, tenant, name)
        item = services.items.get(tenant, name)
        if item is None:
            return None
        items[name] = item
    return chained.replace_references(body, items)


async def _load_items(services: Services, tenant: str, name: str) -> None:
    """Remember the items of this answer and of all before it. A store that is away has none, and is counted."""
    try:
        row = await services.store.read_response_name(tenant, ITEM_PREFIX + name)
        exchange = await services.store.read_exchange(tenant, row.session, row.exchange) if row is not None else None
        if exchange is None or exchange.answer is None:
            return
        messages = await services.store.read_chain(tenant, exchange.session, exchange.answer)
    except StoreUnavailable:
        services.metrics.internal_errors_total.labels(where="chain").inc()
        return
    remember_items(services, tenant, exchange.session, [one.body for one in messages if one.role == "assistant"])
