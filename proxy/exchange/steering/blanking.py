"""Remove messages for good: their text leaves the store, and the record of their position stays.

Their calls keep their ids, so that upstreams still accept a history with them. Every past prompt can still be shown,
with a remark in their place.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import msgspec

from proxy.chat import key, slices
from proxy.chat.dialects.completions import blanked, read_message
from proxy.exchange.parts import Parts
from proxy.exchange.record import Forms
from proxy.exchange.steering.place import PAGE, Here
from proxy.exchange.turn import Turn
from proxy.exchange.weave import read_round, write_round
from proxy.store.base import FormRow, Row
from proxy.store.blanking import BlankFormRow, BlankRoundRow, BlankRow

TEXT = "[removed by the operator]"


async def blank(parts: Parts, here: Here, chosen: Sequence[int]) -> None:
    """Blank the text of these messages of the history in the store, in every form. StoreUnavailable passes through."""
    place = (here.record.tenant, here.record.session)
    messages = here.request.messages
    rows: list[Row] = [BlankRow(*place, here.keys[n], blanked(messages[n].raw, TEXT)) for n in chosen]
    keys = {here.keys[n] for n in chosen}
    for row in await parts.store.rounds(*place, sorted(keys)):
        if row.key in keys:
            one = read_round(row.key, row.head, row.body, row.created_at)
            silent = replace(
                one,
                replaces=tuple(blanked(raw, TEXT) for raw in one.replaces),
                results=tuple(blanked(raw, TEXT) for raw in one.results),
            )
            rows.append(BlankRoundRow(*place, row.key, write_round(silent)))
    positions = {sum(not m.is_system for m in messages[:n]): messages[n].raw for n in chosen}
    rows += await _forms(parts, here, positions)
    await parts.store.put(rows)
    live = parts.threads.session(*place)
    if live is not None:
        live.forget_rounds()  # they are read back as they are now


async def _forms(parts: Parts, here: Here, positions: dict[int, bytes]) -> list[Row]:
    """Return the rows that blank these positions of the conversation in the other forms that the thread's exchanges
    have."""
    place = (here.record.tenant, here.record.session)
    made: dict[str, Row] = {}
    before: float | None = None
    while page := await parts.store.exchanges(*place, PAGE, before):
        for one in page:
            forms = msgspec.json.decode(one.forms, type=Forms)
            for at, form in forms.other:
                if form and at in positions and one.thread == here.thread.name:
                    made[form] = BlankFormRow(*place, bytes.fromhex(form), blanked(positions[at], TEXT))
            if forms.whole and forms.whole not in made and one.thread == here.thread.name:
                array = await parts.store.form(*place, bytes.fromhex(forms.whole))
                if array is not None:
                    made[forms.whole] = BlankFormRow(*place, bytes.fromhex(forms.whole), _array(array, positions))
        before = page[-1].started_at
    return list(made.values())


def silence(turn: Turn, removed: Collection[bytes]) -> None:
    """Blank the forms of removed messages in the turn's rows, so that a client that resends the messages in other bytes
    does not restore them."""
    if not removed or not any(k in removed for k in turn.keys):
        return
    messages = turn.request.messages
    raws = {m.form: m.raw for m, k in zip(messages, turn.keys, strict=True) if k in removed and not m.is_system}
    start, end = turn.request.spans["messages"]
    whole = key.form(turn.request.body[start:end])
    open_ = [m for m in messages if not m.is_system]
    positions = {at: m.raw for at, m in enumerate(open_) if m.form in raws}
    for n, row in enumerate(turn.rows):
        if isinstance(row, FormRow) and row.form in raws:
            turn.rows[n] = msgspec.structs.replace(row, body=blanked(raws[row.form], TEXT))
        elif isinstance(row, FormRow) and row.form == whole:
            turn.rows[n] = msgspec.structs.replace(row, body=_array(row.body, positions))


def _array(array: bytes, positions: dict[int, bytes]) -> bytes:
    """Return an array of messages with these positions blanked; system messages are not counted."""
    raws: list[bytes] = []
    at = 0
    for start, end in slices.elements(array) or []:
        raw = array[start:end]
        if read_message(raw).is_system:
            raws.append(raw)
            continue
        raws.append(blanked(raw, TEXT) if at in positions else raw)
        at += 1
    return b"[" + b",".join(raws) + b"]"
