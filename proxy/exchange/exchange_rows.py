"""Rows to store of an exchange: every message once, and of every exchange enough to rebuild it.

Rows are made here, with the ids and times that the caller gave; the store inserts them as they are.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import msgspec

from proxy.chat import chain, json_spans
from proxy.chat.group import ends_on_prompt, list_group_ids
from proxy.chat.message import Message
from proxy.context.plan import Edit
from proxy.dialects.completions.request import erase_content, read_message
from proxy.exchange import cost
from proxy.exchange.turn import Turn
from proxy.sessions import side_calls
from proxy.sessions import tool_offer as offers
from proxy.sessions.branch import LastRequest
from proxy.sessions.hidden_rounds import encode_round
from proxy.sessions.live import LiveSessions
from proxy.sessions.operator_decisions import make_settings_row
from proxy.sessions.packing import Node
from proxy.sessions.tool_offer import ToolOffer
from proxy.store.base import BranchRow, EditRow, ExchangeRow, FormRow, MessageRow, Row, SessionRow, StateRow
from proxy.store.session_notes import HiddenRoundRow, ToolOfferRow


class MessageForms(msgspec.Struct, frozen=True, omit_defaults=True):
    """Data that rebuild the client's messages of an exchange from the chain, as JSON in its row."""

    system: list[tuple[int, str]] = []
    """[index, form] of each system message."""
    other: list[tuple[int, str]] = []
    """[position, form] of messages received in another form than the first stored one; "" for the first stored one."""
    gap: str = ","
    """The text between two messages."""
    whole: str = ""
    """The form of the messages array where it cannot be rebuilt from these fields."""
    base: str = ""
    """The exchange before it in its branch, whose forms hold for all messages that are not listed here. An agent
    rewords each answer of the proxy in its own way. Listing all of them with every request would grow with the square
    of their number."""


class SentTexts(msgspec.Struct, frozen=True, omit_defaults=True):
    """Texts of the proxy in the prompt of an exchange, as JSON in its row."""

    inserts: list[tuple[int, str, str]] = []
    """[index or -1, place, form of the text]."""
    usage: bool = False
    """Upstream was asked for usage."""
    original: bool = False
    """The messages went out as received."""
    rounds: int = 0
    """Number of hidden rounds that were put back first."""
    tools: str = ""
    """The form of the definitions that were added, "" for none."""
    limit: int = 0
    """Tokens above which the prompt is over its budget, 0 for no budget."""
    refetched: dict[str, int] = {}
    """Cut results that the request shows to have been fetched again, by kind."""
    arm: str = ""
    """The arm of the experiment, "" for none."""
    prompted: bool = False
    """The request ends on a message of the user."""

    @property
    def is_unchanged(self) -> bool:
        """True if nothing of the proxy was in the prompt, and nothing of the client's was changed."""
        return self.original and not (self.tools or self.rounds)


def add_request_rows(live_sessions: LiveSessions, turn: Turn, now: float) -> MessageForms:
    """Put the rows of the new parts of a request on the turn, and note them in memory.

    Memory is updated before the store has answered, and before any wait. So a second request that arrives meanwhile
    does not store the same rows again. If storing fails, the session is forgotten and read back.
    """
    branch, live_session = turn.located.branch, turn.located.branch.live_session
    rows = turn.pending.rows
    if not live_session.has_row:
        rows.append(SessionRow(turn.tenant, live_session.session, live_session.explicit, now))
        live_session.stored = live_session.has_row = True
    if not branch.stored:
        rows.append(
            BranchRow(
                turn.tenant,
                live_session.session,
                branch.name,
                *branch.fork_point,
                branch.kind,
                branch.system,
                now,
            )
        )
        rows += _make_inherited_rows(turn, now)
        branch.stored = True
        if branch.tool_offer is not None:
            add_offer_row(turn, branch.tool_offer)
    elif turn.located.relation == "continuation" and not branch.has_worked:
        rows += side_calls.mark_continued(turn.request, branch)
    untailed = _find_untailed_key(turn)
    if branch.last_request.tip_key is None and not live_session.explicit:
        live_sessions.record_first_tip(branch, turn.tip_key)
        if untailed is not None:
            live_sessions.record_first_tip(branch, untailed)
    return _add_new_messages(live_sessions, turn, now, untailed)


def add_edit_rows(turn: Turn, now: float) -> None:
    """Put edits on the turn: new ones, ones that come back after a literal policy's, and withdrawn ones."""
    new = {edit.key: edit for edit in turn.prompt.plan.new_edits}
    turn.pending.rows += make_edit_rows(turn, [*turn.prompt.plan.new_edits, *_find_returning_edits(turn, new)], now)
    turn.pending.rows += _make_reverted_rows(turn, now)


def add_offer_row(turn: Turn, offer: ToolOffer) -> None:
    """Put the row on the turn that says which tools its branch offers from now on; memory is updated."""
    branch, array = turn.located.branch, offers.encode_offer(offer)
    branch.tool_offer = offer
    name = _add_body(turn, array) if array else ""
    turn.pending.rows.append(ToolOfferRow(turn.tenant, branch.session, branch.name, name))


def record_hidden_round(turn: Turn, tip_key: bytes, answer_key: bytes, now: float) -> list[Row]:
    """Return the row of the answer's hidden round, and note it for the next request. tip_key: the chain key of the
    message before the answer."""
    branch = turn.located.branch
    if branch.tool_offer is None or not branch.tool_offer.names:
        return []
    known = branch.live_session.hidden_rounds.setdefault(tip_key, ())
    if turn.rounds.hidden is None or any(one.answer_key == answer_key for one in known):
        return []
    made = replace(turn.rounds.hidden, answer_key=answer_key, request_tip=tip_key, stored_at=now)
    branch.live_session.put_rounds(tip_key, (*known, made))
    return [HiddenRoundRow(turn.tenant, branch.session, answer_key, tip_key, turn.id, encode_round(made), now)]


def add_undone_rows(turn: Turn, edits: Sequence[Edit], now: float) -> None:
    """Put rows on the turn that take back the edits that were stored too late to be used."""
    before = turn.located.branch.state.edits
    for edit in edits:
        if turn.prompt.plan.edits.get(edit.key) == edit:
            continue
        old = before.get(edit.key)
        row = make_edit_rows(turn, [old or edit], now)[0]
        turn.pending.rows.append(row if old else msgspec.structs.replace(row, action="withdrawn", text=None))


def add_exchange_rows(turn: Turn, forms: MessageForms, now: float) -> None:
    """Put two rows on the turn: the exchange, and the new position of its branch."""
    row = _make_exchange_row(turn, forms, now)
    turn.pending.rows += (row, turn.located.branch.record_move(row.tip, None, now))


def _make_inherited_rows(turn: Turn, now: float) -> list[Row]:
    """Return copies of the edits and states that a fork inherits: the branches are independent from here."""
    branch, live_session = turn.located.branch, turn.located.branch.live_session
    state = branch.state
    lasting = state.edits if state.lasting_edits is None else state.lasting_edits
    versions = branch.store_position.edit_versions
    rows: list[Row] = [_make_edit_row(turn, e, versions.setdefault(k, 1), now) for k, e in lasting.items()]
    if turn.enriched.policy.literal:
        # No exchange under a literal policy has made an edit that lasts. The edits that do not last are copied as its
        # own.
        rows = [msgspec.structs.replace(row, exchange="") for row in rows if isinstance(row, EditRow)]
        rows += make_edit_rows(turn, [e for k, e in state.edits.items() if lasting.get(k) != e], now)
        rows += _make_withdrawals(turn, [e for k, e in lasting.items() if k not in state.edits], now)
    branch.store_position.edit_number = len(rows)
    rows += [StateRow(turn.tenant, live_session.session, branch.name, k, text, now) for k, text in branch.state.states]
    for k in sorted(branch.state.pins):
        rows += _make_pin_rows(turn, k, 0, now)
    rows += make_strip_rows(turn, branch.refused_reasoning, now)
    return rows


def clear_one_time_settings(turn: Turn) -> None:
    """Take back the session's one-time settings, once the request that uses them is planned; memory is updated."""
    live_session, plan = turn.located.branch.live_session, turn.prompt.plan
    known = live_session.stored_decisions
    if known is None or turn.located.branch.kind == "side" or plan.refusal is not None or turn.prompt.observed:
        return
    remaining = msgspec.structs.replace(known.settings, force="", ask=known.settings.ask and not plan.asks_for_state)
    if remaining != known.settings:
        live_session.stored_decisions = replace(known, settings=remaining)
        turn.pending.rows.append(make_settings_row(turn.tenant, live_session.session, remaining))


def add_pin_row(turn: Turn, chain_key: bytes, size: int, now: float) -> None:
    """Put the row on the turn that pins a message. size: its tokens."""
    turn.pending.rows += _make_pin_rows(turn, chain_key, size, now)


def _make_pin_rows(turn: Turn, chain_key: bytes, size: int, now: float) -> list[EditRow]:
    edit = Edit(chain_key, "append", None, "pin", "asked for by the client", size, size)
    return [msgspec.structs.replace(row, action="pin") for row in make_edit_rows(turn, [edit], now)]


def make_strip_rows(turn: Turn, tokens: Iterable[bytes], now: float) -> list[Row]:
    """Return rows that say that reasoning stays out of the branch. tokens: their hashes."""
    edits = [Edit(name, "append", None, "bound", "bound to another prompt", 0, 0) for name in sorted(tokens)]
    return [msgspec.structs.replace(row, action="strip") for row in make_edit_rows(turn, edits, now)]


class ChainPlace(msgspec.Struct, frozen=True):
    """The place of a message in the chain of its conversation."""

    key: bytes
    """The chain key of the message."""
    parent: bytes
    """The chain key of the message before it."""
    position: int
    """The number of messages before it."""
    group_id: str
    """The group that it belongs to (`list_group_ids`)."""


class _StoredPrefix(NamedTuple):
    """Facts about the prefix of a request that has been stored."""

    system: list[tuple[int, str]]
    """The system messages of the request as [index, form]."""
    other: dict[int, bytes]
    """The messages received in another form than the first stored one, by position."""
    parent: bytes
    """The chain key of the last message in the chain."""
    position: int
    """The number of messages in the chain, which is the position of the next one."""
    reached: bool
    """An answer of the proxy is among the messages."""


def _add_new_messages(live_sessions: LiveSessions, turn: Turn, now: float, untailed: bytes | None) -> MessageForms:
    """Add the rows of new messages. The request is its branch's last one from here. untailed: its
    `LastRequest.untailed_tip_key`."""
    branch, live_session = turn.located.branch, turn.located.branch.live_session
    before = branch.last_request
    added = turn.request.memo("stored", partial(_add_message_rows, live_sessions, turn, now), live_session.serial)
    other = added.other
    gap, array_form = _find_gap(turn)
    changed = [(n, form.hex()) for n, form in other.items() if before.other_forms.get(n) != form]
    changed += [(n, "") for n in before.other_forms if n not in other]
    branch.last_request = LastRequest(turn.tip_key, exchange=turn.id, other_forms=other, untailed_tip_key=untailed)
    return MessageForms(added.system, changed, gap, array_form, before.exchange)


def _find_untailed_key(turn: Turn) -> bytes | None:
    """Return the chain key of the message before the last one, if the client may replace the last one in each request.

    Such a message tells the state of the present moment. It follows a result or another message of the user, and is
    not among the messages of the next request. Nothing in one request tells it from a message that stays.
    """
    messages = turn.request.messages
    if len(messages) < 2 or messages[-1].role != "user" or messages[-2].role not in ("tool", "user"):
        return None
    return turn.keys[-2]


def _add_message_rows(
    live_sessions: LiveSessions, turn: Turn, now: float, begin: int, known: _StoredPrefix | None
) -> _StoredPrefix:
    """Put the rows of messages that are not stored yet on the turn, from index `begin` on."""
    live_session = turn.located.branch.live_session
    messages, keys = turn.request.messages, turn.keys
    known = known or _StoredPrefix([], {}, chain.derive_root_key(turn.tenant), position=0, reached=False)
    system, other, parent, position, reached = known
    system, other = list(system), dict(other)
    group_ids = list_group_ids(turn.request, keys, turn.enriched.policy.observation, begin)
    for n, group_id in enumerate(group_ids, begin):
        message = messages[n]
        if message.is_system:
            system.append((n, _add_form(turn, message.form, message.raw)))
            continue
        node = live_session.nodes.get(keys[n])
        # Rows that a gateway gets back are answers of the proxy: by them the conversation is recognised without a name.
        is_said = message.role == "assistant"
        given = turn.dialect.returns_rows and (reached or is_said)
        if node is None:
            # An answer in the client's own words: later requests have no other by which their session is found, also
            # once this process has forgotten it.
            given = given or (is_said and turn.located.branch.has_given(messages, n, parent))
            reached = reached or given
            place = ChainPlace(keys[n], parent, position, group_id)
            row = make_message_row(turn, message, place, now, answer=given, reached=reached)
            turn.pending.rows.append(row)
            live_sessions.add_node(live_session, keys[n], make_node(turn, row))
        else:
            reached = reached or given or node.reached
            if node.form != message.form:
                other[position] = message.form
                _add_form(turn, message.form, message.raw)
        parent, position = keys[n], position + 1
    return _StoredPrefix(system, other, parent, position, reached)


def make_node(turn: Turn, row: MessageRow) -> Node:
    """Return the memory node of a message that is stored now."""
    branch, live_session = turn.located.branch, turn.located.branch.live_session
    live_session.token_counter = live_session.token_counter or turn.token_counter
    tokens = row.tokens if live_session.token_counter is turn.token_counter else 0
    return Node(row.form, branch.name, row.reached, turn.strategy, row.created_at, tokens)


def make_message_row(
    turn: Turn, message: Message, place: ChainPlace, now: float, *, answer: bool, reached: bool
) -> MessageRow:
    """Return the row of one message. answer, reached: as in `MessageRow`."""
    return MessageRow(
        tenant=turn.tenant,
        session=turn.located.branch.session,
        key=place.key,
        parent=place.parent,
        position=place.position,
        branch=turn.located.branch.name,
        role=message.role,
        group_id=place.group_id,
        body=message.raw,
        form=message.form,
        call_id=message.call_id,
        status="tool_call" if message.calls else "completed",
        strategy=turn.strategy,
        tokens=turn.token_counter(message),
        answer=answer,
        reached=reached,
        created_at=now,
    )


def _find_gap(turn: Turn) -> tuple[str, str]:
    """Return (the text between two messages, the form of the whole array where that text does not rebuild it)."""
    request, prefix_cache = turn.request, turn.prefix_cache
    start, end = request.spans["messages"]
    gap = prefix_cache.separator if prefix_cache is not None and request.known_messages else None
    if gap is not None:
        rest = request.messages[len(request.known_messages) :]
        fits = request.body[request.prefix_bytes : end] == b"".join([gap + m.raw for m in rest]) + b"]"
    else:
        raws = [m.raw for m in request.messages]
        blank = end - start - 2 - sum(map(len, raws))
        gap = b"," if blank < len(raws) else b", "
        fits = request.body[start:end] == b"[" + gap.join(raws) + b"]"
    if prefix_cache is not None:
        prefix_cache.separator = gap if fits else None
    return (gap.decode(), "") if fits else (",", _add_body(turn, request.body[start:end]))


def _add_form(turn: Turn, form: bytes, body: bytes) -> str:
    """Return the form's name in hex; its row is added where the form is not known to be stored."""
    forms = turn.located.branch.live_session.forms
    if form not in forms:
        forms.add(form)
        turn.pending.rows.append(FormRow(turn.tenant, turn.located.branch.session, form, body))
    return form.hex()


def _add_body(turn: Turn, body: bytes) -> str:
    """Add bytes as `_add_form` does, whose form is not known yet."""
    return _add_form(turn, chain.compute_form(body), body)


def _make_exchange_row(turn: Turn, forms: MessageForms, now: float) -> ExchangeRow:
    plan, branch = turn.prompt.plan, turn.located.branch
    start, end = turn.request.spans["messages"]
    envelope = turn.request.body[:start] + b"[]" + turn.request.body[end:]
    added_tools, arm = turn.enriched.spliced.added_tools, turn.enriched.arm
    sent_texts = SentTexts(
        inserts=[(at, i.place, _add_body(turn, i.text.encode())) for at, i in plan.placed_inserts],
        usage=turn.prompt.usage_added,
        original=plan.messages is None or turn.prompt.observed,
        rounds=turn.enriched.spliced.round_count,
        tools=_add_body(turn, added_tools) if added_tools else "",
        limit=max(0, plan.limit or 0),
        refetched={kind: int(n) for note in plan.notes if note.kind == "refetch" for kind, n in note.figures.items()},
        arm=arm,
        prompted=bool(arm) and ends_on_prompt(turn.request.messages),
    )
    return ExchangeRow(
        tenant=turn.tenant,
        session=branch.session,
        exchange=turn.id,
        branch=branch.name,
        tip=turn.tip_key,
        messages=len(turn.keys),
        envelope=bytes.fromhex(_add_body(turn, envelope)),
        forms=msgspec.json.encode(forms),
        edits=branch.store_position.edit_number,
        inserts=msgspec.json.encode(sent_texts),
        policy=turn.enriched.policy.name,
        schedule=turn.enriched.policy.schedule,
        model=turn.request.model,
        upstream=turn.upstream,
        strategy=turn.strategy,
        tokens_before=plan.before,
        tokens_after=plan.after,
        predicted=cost.count_expected_cached(turn),
        started_at=now,
    )


def make_edit_rows(turn: Turn, edits: Sequence[Edit], now: float) -> list[EditRow]:
    """Return rows of new edits, each with the next version of its message."""
    position = turn.located.branch.store_position
    return [_make_edit_row(turn, edit, position.number_edit(edit.key), now) for edit in edits]


def _find_returning_edits(turn: Turn, new: Container[bytes]) -> list[Edit]:
    """Return the lasting edits that are in force again, and were not while a literal policy planned."""
    state, edits = turn.located.branch.state, turn.prompt.plan.edits
    if state.lasting_edits is None or turn.prompt.plan.literal:
        return []
    return [
        e
        for k in turn.enriched.spliced.keys
        if k not in new and (e := edits.get(k)) is not None and state.edits.get(k) != e
    ]


def _make_reverted_rows(turn: Turn, now: float) -> list[EditRow]:
    """Return rows that take edits back, where a message comes back into the prompt. Literal policies do that; all
    others do it where the message had been kept from another upstream."""
    before, after = turn.located.branch.state.edits, turn.prompt.plan.edits
    if before.keys() <= after.keys():
        return []
    present = set(turn.enriched.spliced.keys)
    return _make_withdrawals(turn, [e for k, e in before.items() if k not in after and e.key in present], now)


def make_withdrawn_rows(turn: Turn, now: float) -> list[EditRow]:
    """Return rows that take back all edits of the turn's branch."""
    state = turn.located.branch.state
    return _make_withdrawals(turn, list({**(state.lasting_edits or {}), **state.edits}.values()), now)


def _make_withdrawals(turn: Turn, edits: Sequence[Edit], now: float) -> list[EditRow]:
    return [msgspec.structs.replace(row, action="withdrawn", text=None) for row in make_edit_rows(turn, edits, now)]


def _make_edit_row(turn: Turn, edit: Edit, version: int, now: float) -> EditRow:
    branch = turn.located.branch
    return EditRow(
        tenant=turn.tenant,
        session=branch.session,
        branch=branch.name,
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


# Rows of messages that an operator has removed permanently: the client resends the text, and the rows do not store it.


def erase_resent(turn: Turn, removed: Collection[bytes]) -> None:
    """Blank removed messages in the turn's rows, so that a client that resends them does not restore them."""
    if not removed or not any(k in removed for k in turn.keys):
        return
    messages = turn.request.messages
    raws = {m.form: m.raw for m, k in zip(messages, turn.keys, strict=True) if k in removed and not m.is_system}
    start, end = turn.request.spans["messages"]
    all_messages_form = chain.compute_form(turn.request.body[start:end])
    positions = {at for at, n in enumerate(turn.request.find_chained_indices()) if messages[n].form in raws}
    for n, row in enumerate(turn.pending.rows):
        if isinstance(row, FormRow) and row.form in raws:
            turn.pending.rows[n] = msgspec.structs.replace(row, body=erase_content(raws[row.form]))
        elif isinstance(row, FormRow) and row.form == all_messages_form:
            turn.pending.rows[n] = msgspec.structs.replace(row, body=erase_in_array(row.body, positions))


def erase_in_array(array: bytes, positions: Container[int]) -> bytes:
    """Return an array of messages with these positions blanked; system messages are not counted."""
    raws: list[bytes] = []
    at = 0
    for start, end in json_spans.find_elements(array) or []:
        raw = array[start:end]
        if read_message(raw).is_system:
            raws.append(raw)
            continue
        raws.append(erase_content(raw) if at in positions else raw)
        at += 1
    return b"[" + b",".join(raws) + b"]"
