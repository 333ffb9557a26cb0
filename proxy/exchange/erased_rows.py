"""Rows of messages that an operator has removed for good: the client resends the text, and the rows do not store it."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from proxy.chat import chain, json_spans
from proxy.dialects.completions.request import erase_content, read_message
from proxy.exchange.turn import Turn
from proxy.store.base import FormRow

ERASED_TEXT = "[removed by the operator]"


def erase_resent(turn: Turn, removed: Collection[bytes]) -> None:
    """Blank the forms of removed messages in the turn's rows, so that a client that resends the messages in other bytes
    does not restore them."""
    if not removed or not any(k in removed for k in turn.keys):
        return
    messages = turn.request.messages
    raws = {m.form: m.raw for m, k in zip(messages, turn.keys, strict=True) if k in removed and not m.is_system}
    start, end = turn.request.spans["messages"]
    whole = chain.compute_form(turn.request.body[start:end])
    open_ = [m for m in messages if not m.is_system]
    positions = {at: m.raw for at, m in enumerate(open_) if m.form in raws}
    for n, row in enumerate(turn.rows):
        if isinstance(row, FormRow) and row.form in raws:
            turn.rows[n] = msgspec.structs.replace(row, body=erase_content(raws[row.form], ERASED_TEXT))
        elif isinstance(row, FormRow) and row.form == whole:
            turn.rows[n] = msgspec.structs.replace(row, body=erase_in_array(row.body, positions))


def erase_in_array(array: bytes, positions: dict[int, bytes]) -> bytes:
    """Return an array of messages with these positions blanked; system messages are not counted."""
    raws: list[bytes] = []
    at = 0
    for start, end in json_spans.find_elements(array) or []:
        raw = array[start:end]
        if read_message(raw).is_system:
            raws.append(raw)
            continue
        raws.append(erase_content(raw, ERASED_TEXT) if at in positions else raw)
        at += 1
    return b"[" + b",".join(raws) + b"]"
