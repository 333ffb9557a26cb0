"""Rows to store of an exchange: every message once, and of every exchange enough to rebuild it.

Rows are made here, with the ids and times that the caller gave; the store inserts them as they are.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import msgspec

from proxy.chat import key
from proxy.chat.message import Message
from proxy.context.plan import Edit
from proxy.exchange import money, side_calls
from proxy.exchange import offer as offers
from proxy.exchange.offer import Offer
from proxy.exchange.thread import Node
from proxy.exchange.threads import Threads
from proxy.exchange.turn import Turn
from proxy.exchange.weave import write_round
from proxy.store.base import EditRow, ExchangeRow, FormRow, MessageRow, Row, SessionRow, StateRow, ThreadRow
from proxy.store.written import OfferRow, RoundRow


class Forms(msgspec.Struct, frozen=True, omit_defaults=True):
    """Data that rebuild the client's messages of an exchange from the chain, as JSON in its row.

    system: [index, form] of each system message. other: [position, form] of messages that came in another form than the
    first stored one; "" for the first stored one. base: the exchange before it in its thread, whose forms hold for all
    messages that are not listed here. An agent rewords each answer of ours in its own way. Listing all of them with
    every request would grow with the square of their number. gap: the text between two messages. whole: the form of the
    messages array where it cannot be rebuilt from these fields.
    """

    system: list[tuple[int, str]] = []
    other: list[tuple[int, str]] = []
    gap: str = ","
    whole: str = ""
    base: str = ""


class Sent(msgspec.Struct, frozen=True, omit_defaults=True):
    """Texts of ours in the prompt of an exchange, as JSON in its row.

    inserts: [index or -1, place, form of the text]. usage: upstream was asked for usage. original: the messages went
    out as they came. rounds: number of hidden rounds that were put back first. tools: the form of the definitions that
    were added, "" for none. limit: tokens above which the prompt is over its budget, 0 for no budget. refetched: cut
    results that the request shows to have been fetched again, by kind.
    """

    inserts: list[tuple[int, str, str]] = []
    usage: bool = False
    original: bool = False
    rounds: int = 0
    tools: str = ""
    limit: int = 0
    refetched: dict[str, int] = {}


def ingest(threads: Threads, turn: Turn, now: float) -> Forms:
    """Put the rows of the new parts of a request on the turn, and note them in memory.

    Memory is updated before the store has answered, and before any wait. So a second request that arrives meanwhile
    does not store the same rows again. If storing fails, the session is forgotten and read back.
    """
    thread, memory = turn.place.thread, turn.place.thread.memory
    rows = turn.rows
    if not memory.stored:
        rows.append(SessionRow(turn.tenant, memory.session, memory.explicit, now))
        memory.stored = True
    if not thread.stored:
        rows.append(
            ThreadRow(
                turn.tenant,
                memory.session,
                thread.name,
                thread.parent,
                thread.fork_key,
                thread.kind,
                thread.system,
                now,
            )
        )
        rows += _inherited(turn, now)
        thread.stored = True
        if thread.offer is not None:
            offered(turn, thread.offer)
    elif turn.place.kind == "continuation" and side_calls.goes_on(turn.request, thread):
        rows += side_calls.works(thread)
    if thread.head is None and not memory.explicit:
        threads.begun(thread, turn.head)
    thread.head = turn.head
    thread.answer = None
    thread.calls = frozenset()
    thread.failed = thread.read_back = False
    return _ingest_messages(threads, turn, now)


def edited(turn: Turn, now: float) -> None:
    """Put three kinds of rows on the turn: new edits, edits that come back behind a literal policy's, and withdrawn
    edits."""
    new = {edit.key: edit for edit in turn.plan.new}
    turn.rows += edit_rows(turn, [*turn.plan.new, *_returning(turn, new)], now)
    turn.rows += _withdrawn(turn, now)


def offered(turn: Turn, offer: Offer) -> None:
    """Put the row on the turn that says which tools its thread offers from now on; memory is updated."""
    thread, array = turn.place.thread, offers.write(offer)
    thread.offer = offer
    name = _form(turn, key.form(array), array) if array else ""
    turn.rows.append(OfferRow(turn.tenant, thread.session, thread.name, name))


def hidden(turn: Turn, answer_key: bytes, now: float) -> list[Row]:
    """Return the row of the hidden round behind the answer; memory is updated, so that the next request has the
    round."""
    thread = turn.place.thread
    if thread.offer is None or not thread.offer.names:
        return []
    known = thread.memory.rounds.setdefault(turn.head, ())
    if turn.hidden is None or any(one.key == answer_key for one in known):
        return []
    made = replace(turn.hidden, key=answer_key, head=turn.head, at=now)
    thread.memory.put_behind(turn.head, (*known, made))
    return [RoundRow(turn.tenant, thread.session, answer_key, turn.head, turn.id, write_round(made), now)]


def undone(turn: Turn, edits: Sequence[Edit], now: float) -> None:
    """Put rows on the turn that take back the edits that were stored too late to be used."""
    before = turn.place.thread.state.edits
    for edit in edits:
        if turn.plan.edits.get(edit.key) == edit:
            continue
        old = before.get(edit.key)
        row = edit_rows(turn, [old or edit], now)[0]
        turn.rows.append(row if old else msgspec.structs.replace(row, action="withdrawn", text=None))


def exchanged(turn: Turn, forms: Forms, now: float) -> None:
    """Put two rows on the turn: the exchange, and the new position of its thread."""
    thread = turn.place.thread
    turn.rows.append(_exchange_row(turn, forms, now))
    turn.rows.append(thread.moved(turn.head, None, now))


def _inherited(turn: Turn, now: float) -> list[Row]:
    """Return copies of the edits and states that a fork inherits: the old branch and the new one are independent from
    here."""
    thread, memory = turn.place.thread, turn.place.thread.memory
    state = thread.state
    lasting = state.edits if state.lasting is None else state.lasting
    rows: list[Row] = [_edit_row(turn, e, thread.versions.setdefault(k, 1), now) for k, e in lasting.items()]
    if turn.policy.literal:
        # No exchange under a literal policy has made an edit that lasts. The edits that do not last are copied as its
        # own.
        rows = [msgspec.structs.replace(row, exchange="") for row in rows if isinstance(row, EditRow)]
        rows += edit_rows(turn, [e for k, e in state.edits.items() if lasting.get(k) != e], now)
        rows += _taken_back(turn, [e for k, e in lasting.items() if k not in state.edits], now)
    thread.number = len(rows)
    rows += [StateRow(turn.tenant, memory.session, thread.name, k, text, now) for k, text in thread.state.states]
    mine, turn.rows = turn.rows, []
    for k in sorted(thread.state.pins):
        pinned(turn, k, 0, now)
    rows += turn.rows
    turn.rows = mine
    return rows


def pinned(turn: Turn, chain_key: bytes, size: int, now: float) -> None:
    """Put the row on the turn that pins a message. size: its tokens."""
    edit = Edit(chain_key, "append", None, "pin", "asked for by the client", size, size)
    turn.rows += [msgspec.structs.replace(row, action="pin") for row in edit_rows(turn, [edit], now)]


class _Ingested(NamedTuple):
    """Facts about the prefix of a request that has been stored.

    system: its system messages as [index, form]. other: by position, the messages that came in another form than the
    first stored one. parent, position: the key and number of the last message in the chain. reached: an answer of ours
    is among the messages.
    """

    system: list[tuple[int, str]]
    other: dict[int, bytes]
    parent: bytes
    position: int
    reached: bool


def _ingest_messages(threads: Threads, turn: Turn, now: float) -> Forms:
    thread, memory = turn.place.thread, turn.place.thread.memory
    found = turn.request.grown("stored", partial(_stored, threads, turn, now), memory.serial)
    turn.length, other = found.position, found.other
    gap, whole = _between(turn)
    changed = [(n, form.hex()) for n, form in other.items() if thread.shown.get(n) != form]
    changed += [(n, "") for n in thread.shown if n not in other]
    base, thread.exchange, thread.shown = thread.exchange, turn.id, other
    return Forms(found.system, changed, gap, whole, base)


def _stored(threads: Threads, turn: Turn, now: float, begin: int, known: _Ingested | None) -> _Ingested:
    """Put the rows of messages that are not stored yet on the turn, from index `begin` on."""
    memory = turn.place.thread.memory
    messages, keys = turn.request.messages, turn.keys
    system, other, parent, position, reached = known or _Ingested([], {}, key.origin(turn.tenant), 0, False)
    system, other = list(system), dict(other)
    for n in range(begin, len(messages)):
        message = messages[n]
        if message.is_system:
            system.append((n, _form(turn, message.form, message.raw)))
            continue
        node = memory.nodes.get(keys[n])
        if node is None:
            group_id = turn.group_id(n)
            turn.rows.append(message_row(turn, message, keys[n], parent, position, group_id, now, reached=reached))
            threads.note(memory, keys[n], node_of(turn, message, now, reached=reached))
        else:
            reached = reached or node.reached
            if node.form != message.form:
                other[position] = message.form
                _form(turn, message.form, message.raw)
        parent, position = keys[n], position + 1
    return _Ingested(system, other, parent, position, reached)


def node_of(turn: Turn, message: Message, now: float, *, reached: bool) -> Node:
    """Return the memory node of a message that is stored now."""
    thread, memory = turn.place.thread, turn.place.thread.memory
    memory.counter = memory.counter or turn.weigh
    tokens = turn.weigh(message) if memory.counter is turn.weigh else 0
    return Node(message.form, thread.name, reached, turn.strategy, now, tokens)


def message_row(
    turn: Turn,
    message: Message,
    chain_key: bytes,
    parent: bytes,
    position: int,
    group_id: str,
    now: float,
    *,
    answer: bool = False,
    reached: bool = False,
) -> MessageRow:
    """Return the row of one message."""
    return MessageRow(
        tenant=turn.tenant,
        session=turn.place.thread.session,
        key=chain_key,
        parent=parent,
        position=position,
        thread=turn.place.thread.name,
        role=message.role,
        group_id=group_id,
        body=message.raw,
        form=message.form,
        call_id=message.call_id,
        status="tool_call" if message.calls else "completed",
        strategy=turn.strategy,
        tokens=turn.weigh(message),
        answer=answer,
        reached=reached,
        created_at=now,
    )


def _between(turn: Turn) -> tuple[str, str]:
    """Return (the text between two messages, the form of the whole array where that text does not rebuild it)."""
    request, front = turn.request, turn.front
    start, end = request.spans["messages"]
    gap = front.gap if front is not None and request.shared else None
    if gap is not None:
        rest = request.messages[request.shared :]
        fits = request.body[request.rest : end] == b"".join([gap + m.raw for m in rest]) + b"]"
    else:
        raws = [m.raw for m in request.messages]
        blank = end - start - 2 - sum(map(len, raws))
        gap = b"," if blank < len(raws) else b", "
        fits = request.body[start:end] == b"[" + gap.join(raws) + b"]"
    if front is not None:
        front.gap = gap if fits else None
    return (
        (gap.decode(), "") if fits else (",", _form(turn, key.form(request.body[start:end]), request.body[start:end]))
    )


def _form(turn: Turn, form: bytes, body: bytes) -> str:
    """Return the form's name in hex; its row is added where the form is not known to be stored."""
    forms = turn.place.thread.memory.forms
    if form not in forms:
        forms.add(form)
        turn.rows.append(FormRow(turn.tenant, turn.place.thread.session, form, body))
    return form.hex()


def _exchange_row(turn: Turn, forms: Forms, now: float) -> ExchangeRow:
    plan, thread = turn.plan, turn.place.thread
    start, end = turn.request.spans["messages"]
    envelope = turn.request.body[:start] + b"[]" + turn.request.body[end:]
    inserts: list[tuple[int, str, str]] = [
        (at, i.place, _form(turn, key.form(i.text.encode()), i.text.encode())) for at, i in plan.placed
    ]
    tools = _form(turn, key.form(turn.woven.tools), turn.woven.tools) if turn.woven.tools else ""
    return ExchangeRow(
        tenant=turn.tenant,
        session=thread.session,
        exchange=turn.id,
        thread=thread.name,
        head=turn.head,
        messages=len(turn.keys),
        envelope=bytes.fromhex(_form(turn, key.form(envelope), envelope)),
        forms=msgspec.json.encode(forms),
        edits=thread.number,
        inserts=msgspec.json.encode(
            Sent(
                inserts,
                turn.usage_added,
                plan.messages is None or turn.observed,
                turn.woven.rounds,
                tools,
                max(0, plan.limit or 0),
                {kind: int(n) for note in plan.notes if note.kind == "refetch" for kind, n in note.figures.items()},
            )
        ),
        policy=turn.policy.name,
        schedule=turn.policy.schedule,
        model=turn.request.model,
        upstream=turn.upstream,
        strategy=turn.strategy,
        tokens_before=plan.before,
        tokens_after=plan.after,
        predicted=money.expected(turn),
        started_at=now,
    )


def edit_rows(turn: Turn, edits: Sequence[Edit], now: float) -> list[EditRow]:
    """Return rows of new edits, each with the next version of its message."""
    thread = turn.place.thread
    rows = []
    for edit in edits:
        version = thread.versions.get(edit.key, 0) + 1
        thread.versions[edit.key] = version
        rows.append(_edit_row(turn, edit, version, now))
    thread.number += len(rows)
    return rows


def _returning(turn: Turn, new: Container[bytes]) -> list[Edit]:
    """Return the lasting edits that are in force again, and were not while a literal policy planned."""
    state, edits = turn.place.thread.state, turn.plan.edits
    if state.lasting is None or turn.plan.literal:
        return []
    return [e for k in turn.woven.keys if k not in new and (e := edits.get(k)) is not None and state.edits.get(k) != e]


def _withdrawn(turn: Turn, now: float) -> list[EditRow]:
    """Return rows that take edits back, where a message comes back into the prompt. Literal policies do that; all
    others do it where the message had been kept from another upstream."""
    thread = turn.place.thread
    gone = [e for k, e in thread.state.edits.items() if k not in turn.plan.edits]
    if not gone:
        return []
    here = set(turn.woven.keys)
    return _taken_back(turn, [e for e in gone if e.key in here], now)


def withdrawn(turn: Turn, now: float) -> list[EditRow]:
    """Return rows that take back all edits of the turn's thread."""
    state = turn.place.thread.state
    return _taken_back(turn, list({**(state.lasting or {}), **state.edits}.values()), now)


def _taken_back(turn: Turn, edits: Sequence[Edit], now: float) -> list[EditRow]:
    return [msgspec.structs.replace(row, action="withdrawn", text=None) for row in edit_rows(turn, edits, now)]


def _edit_row(turn: Turn, edit: Edit, version: int, now: float) -> EditRow:
    thread = turn.place.thread
    return EditRow(
        tenant=turn.tenant,
        session=thread.session,
        thread=thread.name,
        key=edit.key,
        version=version,
        stage=edit.stage,
        reason=edit.reason,
        action=edit.action,
        text=edit.text,
        before=edit.before,
        after=edit.after,
        exchange=turn.id,
        created_at=now,
    )
