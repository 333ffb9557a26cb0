"""Rebuild the exact prompt of a past exchange from the store: the client's request, and the body of the plan.

Nothing is stored twice for this: messages stand once in their chain, other forms and the envelope by hash, edits by
number. A plan of chat completions is equal to the bytes that were sent, byte for byte. Requests of other formats are
stored, and built, as chat completions. Changes after the plan are not in it: an option or reasoning that an upstream
has refused, and answers that were repaired.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from proxy.chat import json_spans
from proxy.chat.chain import compute_keys
from proxy.chat.message import Request
from proxy.context.plan import Edit, Insert
from proxy.context.render import add_inserts, render_plain
from proxy.dialects.completions.request import MessageReader, read_message, read_request, write_request
from proxy.errors import StoredPartMissing
from proxy.exchange.exchange_rows import MessageForms, SentTexts
from proxy.exchange.services import LARGE_BODY_BYTES
from proxy.sessions.hidden_rounds import (
    HiddenRound,
    SplicedRequest,
    decode_round,
    splice_hidden_rounds,
)
from proxy.sessions.stored_branch import read_edit
from proxy.store.base import ExchangeRecord, MessageRecord
from proxy.store.reads import Store


@dataclass(frozen=True, slots=True)
class RebuiltPrompt:
    """A past request."""

    exchange: ExchangeRecord
    original_body: bytes
    """The body that the client sent, as chat completions."""
    sent_body: bytes
    """The body that was planned for upstream, as chat completions."""
    edits: Mapping[bytes, Edit]
    """The edits in force, by chain key."""
    keys: tuple[bytes, ...]
    """The chain key of each message of the original."""


async def rebuild_prompt(store: Store, tenant: str, session: str, exchange: str) -> RebuiltPrompt | None:
    """Return an exchange's prompt, None if there is none. Raises StoredPartMissing if a part is missing."""
    row = await store.read_exchange(tenant, session, exchange)
    if row is None:
        return None
    request, keys = await rebuild_request(store, row)
    original = request.body
    sent = msgspec.json.decode(row.inserts, type=SentTexts)
    spliced = await _splice_stored_rounds(store, row, request, keys, sent)
    edits = await _load_edits(store, row, spliced.keys)
    if row.fallback == "upstream_reject":
        body = original
    elif sent.original:
        body = write_request(spliced.request, request_usage=sent.usage)
    else:
        body = await _render_sent_body(store, row, spliced.request, spliced.keys, edits, sent)
    return RebuiltPrompt(row, original, body, edits, keys)


async def rebuild_request(
    store: Store, row: ExchangeRecord, message_reader: MessageReader = read_message
) -> tuple[Request, tuple[bytes, ...]]:
    """Return (the request that the client sent, the chain key of each message). message_reader: finds messages that
    were read before. Raises StoredPartMissing if a part of it is missing."""
    chain = await store.read_chain(row.tenant, row.session, row.tip)
    body = await _rebuild_original(store, row, chain)
    request = (
        read_request(body, message_reader)
        if len(body) < LARGE_BODY_BYTES
        else await asyncio.to_thread(read_request, body, message_reader)
    )
    return request, _find_stored_keys(request, chain) or tuple(compute_keys(row.tenant, request.messages))


async def _splice_stored_rounds(
    store: Store, row: ExchangeRecord, request: Request, keys: Sequence[bytes], sent: SentTexts
) -> SplicedRequest:
    """Return the request as it was planned: with its hidden rounds and added tools."""
    tools = await _load_form(store, row, bytes.fromhex(sent.tools)) if sent.tools else b""
    rounds: dict[bytes, list[HiddenRound]] = {}
    if sent.rounds:
        for found in await store.read_hidden_rounds(row.tenant, row.session, keys):
            if found.created_at <= row.started_at:  # a later round was not there to be put back
                one = decode_round(found.key, found.tip, found.body, found.created_at)
                rounds.setdefault(found.tip, []).append(one)
    has_wire = any(m.role == "assistant" and b'"wire"' in m.raw for m in request.messages)
    spliced = splice_hidden_rounds(request, keys, rounds, tools, is_plain=not has_wire)
    if spliced.round_count != sent.rounds:
        raise StoredPartMissing("hidden rounds of a stored exchange are missing")
    return spliced


def _find_stored_keys(request: Request, chain: Sequence[MessageRecord]) -> tuple[bytes, ...]:
    """The messages' chain keys as they are stored: a message that was removed permanently has another digest now. ()
    where the chain is not that of the request."""
    if not chain or len(chain) != sum(not m.is_system for m in request.messages):
        return ()
    names = [record.key for record in chain]
    keys, at, done = [], chain[0].parent, 0
    for message in request.messages:
        if not message.is_system:
            at, done = names[done], done + 1
        keys.append(at)
    return tuple(keys)


async def _rebuild_original(store: Store, row: ExchangeRecord, records: Sequence[MessageRecord]) -> bytes:
    forms = msgspec.json.decode(row.forms, type=MessageForms)
    envelope = await _load_form(store, row, row.envelope)
    if forms.whole:
        array = await _load_form(store, row, bytes.fromhex(forms.whole))
    else:
        chain = [record.body for record in records]
        raws = {n: await _load_form(store, row, bytes.fromhex(form)) for n, form in forms.system}
        others = await _find_other_forms(store, row, forms)
        if len(chain) != row.messages - len(raws):
            raise StoredPartMissing("messages of a stored exchange are missing")
        array_of = []
        position = 0
        for n in range(row.messages):
            if n in raws:
                array_of.append(raws[n])
                continue
            form = others.get(position)
            array_of.append(await _load_form(store, row, bytes.fromhex(form)) if form else chain[position])
            position += 1
        array = b"[" + forms.gap.encode().join(array_of) + b"]"
    return insert_messages(envelope, array)


def insert_messages(envelope: bytes, array: bytes) -> bytes:
    """Return a request's body. envelope: the body with an empty array in the place of its messages. array: the JSON of
    the messages. Raises StoredPartMissing if the envelope has no place for them."""
    at = _find_messages_array(envelope)
    return envelope[:at] + array + envelope[at + 2 :]


async def _find_other_forms(store: Store, row: ExchangeRecord, forms: MessageForms) -> dict[int, str]:
    """Return the forms of messages received in another form than the first stored one, by position. A position that
    this exchange does not list has the form of the exchange before it."""
    other_forms: dict[int, str] = {}
    while True:
        for position, form in forms.other:
            other_forms.setdefault(position, form)
        if not forms.base:
            return other_forms
        base = await store.read_exchange(row.tenant, row.session, forms.base)
        if base is None:
            raise StoredPartMissing(f"the exchange {forms.base}, on which another one builds, is missing")
        forms = msgspec.json.decode(base.forms, type=MessageForms)


def _find_messages_array(envelope: bytes) -> int:
    found = json_spans.find_member(envelope, "messages")
    if found is None:
        raise StoredPartMissing("an envelope without a place for its messages")
    return found.start


async def _load_edits(store: Store, row: ExchangeRecord, keys: Sequence[bytes]) -> dict[bytes, Edit]:
    present = set(keys)
    rows = await store.read_edits(row.tenant, row.session, row.branch, row.edits)
    return {one.key: edit for one, _ in rows if one.key in present and (edit := read_edit(one)) is not None}


async def _render_sent_body(
    store: Store,
    row: ExchangeRecord,
    request: Request,
    keys: Sequence[bytes],
    edits: Mapping[bytes, Edit],
    sent: SentTexts,
) -> bytes:
    by_index: dict[int, list[Insert]] = {}
    after: list[Insert] = []
    for index, place, form in sent.inserts:
        text = (await _load_form(store, row, bytes.fromhex(form))).decode()
        insert = Insert("system" if place == "system" else "tail", "stored", text)
        if index < 0:
            after.append(insert)
        else:
            by_index.setdefault(index, []).append(insert)
    plain = render_plain(request.messages, keys, edits, [0] * len(keys))
    made = add_inserts(plain, len(request.messages), by_index, after)
    return write_request(request, made.raws, request_usage=sent.usage)


async def _load_form(store: Store, row: ExchangeRecord, form: bytes) -> bytes:
    form_body = await store.read_form(row.tenant, row.session, form)
    if form_body is None:
        raise StoredPartMissing(f"the form {form.hex()} of a stored exchange is missing")
    return form_body
