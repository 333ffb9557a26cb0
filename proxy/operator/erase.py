"""Remove messages permanently, or a whole session. The text of messages leaves the store, the record of their position
stays.

Their calls keep their ids, so that upstreams still accept a history with them. Every past prompt can still be shown,
with a remark in their place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from proxy.dialects.completions.request import erase_content
from proxy.exchange.exchange_rows import MessageForms, erase_in_array
from proxy.exchange.services import Services
from proxy.operator.find_session import SelectedBranch, iter_exchanges
from proxy.operator.response_models import RemovalResult
from proxy.sessions.hidden_rounds import decode_round, encode_round
from proxy.store.base import Row
from proxy.store.erasure import EraseFormRow, EraseMessageRow, EraseRoundRow


async def erase_messages(services: Services, selected: SelectedBranch, chosen: Sequence[int]) -> None:
    """Blank the text of these messages of the history in the store, in every form. StoreUnavailable passes through."""
    place = (selected.record.tenant, selected.record.session)
    messages = selected.request.messages
    rows: list[Row] = [EraseMessageRow(*place, selected.keys[n], erase_content(messages[n].raw)) for n in chosen]
    keys = {selected.keys[n] for n in chosen}
    for row in await services.store.read_hidden_rounds(*place, sorted(keys)):
        if row.key in keys:
            hidden_round = decode_round(row.key, row.tip, row.body, row.created_at)
            silent = replace(
                hidden_round,
                replaces=tuple(erase_content(raw) for raw in hidden_round.replaces),
                results=tuple(erase_content(raw) for raw in hidden_round.results),
            )
            rows.append(EraseRoundRow(*place, row.key, encode_round(silent)))
    positions = {sum(not m.is_system for m in messages[:n]): messages[n].raw for n in chosen}
    rows += await _erase_forms(services, selected, positions)
    await services.store.put(rows)
    services.histories.remove_session(*place)
    services.items.remove_session(*place)
    services.cache_pings.end_session(*place)  # they hold the prompt with the text
    live = services.live_sessions.find_session(*place)
    if live is not None:
        live.forget_rounds()  # they are read back as they are now


async def delete_session(services: Services, tenant: str, session: str) -> RemovalResult:
    """Delete all that is stored of a session. Memos that were written in it stay, without its name."""
    removed = await services.store.delete_session(tenant, session)
    services.forget_session(tenant, session)
    return RemovalResult(removed, await services.store.read_session(tenant, session) is None)


async def _erase_forms(services: Services, selected: SelectedBranch, positions: dict[int, bytes]) -> list[Row]:
    """Return the rows that blank these positions in the other forms that the branch's exchanges have."""
    place = (selected.record.tenant, selected.record.session)
    rows_by_form: dict[str, Row] = {}
    async for exchange in iter_exchanges(services.store, *place):
        if exchange.branch != selected.branch.name:
            continue
        forms = msgspec.json.decode(exchange.forms, type=MessageForms)
        for at, form in forms.other:
            if form and at in positions:
                rows_by_form[form] = EraseFormRow(*place, bytes.fromhex(form), erase_content(positions[at]))
        if forms.whole and forms.whole not in rows_by_form:
            array = await services.store.read_form(*place, bytes.fromhex(forms.whole))
            if array is not None:
                rows_by_form[forms.whole] = EraseFormRow(
                    *place, bytes.fromhex(forms.whole), erase_in_array(array, positions)
                )
    return list(rows_by_form.values())
