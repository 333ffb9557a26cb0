"""Views of any past prompt and of the next one, with a reason for each message that is left out or shortened."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial

import msgspec

from proxy.chat.group import Group, groups
from proxy.chat.key import public_id
from proxy.chat.message import Message, Request
from proxy.chat.tokens import Weigh
from proxy.context.operator import NAME
from proxy.context.pins import marked
from proxy.context.plan import Edit
from proxy.context.policy import Policy
from proxy.context.render import edited
from proxy.errors import NotFound
from proxy.exchange import planning, rebuild, reflecting
from proxy.exchange.parts import Parts
from proxy.exchange.record import Sent
from proxy.exchange.steering import place
from proxy.exchange.steering.foreseeing import Foreseen, foresee
from proxy.exchange.steering.inforce import WIDE, InForce, read
from proxy.exchange.steering.place import Here, find
from proxy.exchange.steering.shapes import GroupLine, ShownInsert, ShownMessage, ShownPrompt, Status, Why
from proxy.exchange.turn import Turn
from proxy.memory.reflection import Iteration
from proxy.store.base import EditRow

TITLE = 100
"""Characters of a group's prompt that form its title in a list."""
Since = Mapping[bytes, EditRow]
"""The stored row of each edit, by chain key."""


async def prompt(parts: Parts, tenant: str, session: str, exchange: str) -> ShownPrompt:
    """Return a past exchange's prompt, exact to the byte. Raises NotFound; StoreUnavailable passes through, here and
    below."""
    await place.session(parts, tenant, session)
    found = await rebuild.prompt(parts.store, tenant, session, exchange)
    if found is None:
        raise NotFound(f"session {session!r} has no exchange {exchange!r}")
    row = found.exchange
    request = await place.read(parts, found.original)
    weigh = parts.weigh(planning.model_of(parts, row.model))
    since = {edit.key: edit for edit, _ in await parts.store.edits(tenant, session, row.thread, row.edits)}
    known = await read(parts.store, tenant, session)
    sent = msgspec.json.decode(row.inserts, type=Sent)
    went_as_it_came = sent.original or row.fallback == "upstream_reject"
    edits = {} if went_as_it_came else dict(found.edits)
    inserts = []
    for index, source, form in sent.inserts:
        text = await parts.store.form(tenant, session, bytes.fromhex(form)) or b""
        inserts.append(ShownInsert(index, source, text.decode("utf-8", "replace")))
    messages = await _messages(request, found.keys, edits, weigh, known, since, parts.policies.get(row.policy))
    return ShownPrompt(
        session=session,
        thread=row.thread,
        exchange=exchange,
        policy=row.policy,
        model=row.model,
        tokens_before=row.tokens_before,
        tokens_after=row.tokens_before if went_as_it_came else row.tokens_after,
        messages=messages,
        inserts=inserts,
        body=found.sent.decode("utf-8", "replace"),
        original=found.original.decode("utf-8", "replace"),
        refused=row.fallback or "",
    )


async def next_prompt(parts: Parts, tenant: str, session: str, *, thread: str | None = None) -> ShownPrompt:
    """Return the prompt that would go out if the client sent its history now. The client's next messages are not known:
    messages of source `next` stand for them."""
    here = await find(parts, tenant, session, thread)
    seen = await foresee(parts, here)
    turn, plan = seen.turn, seen.turn.plan
    edits = {} if turn.observed else seen.edits
    since = await _since(parts, here)
    messages = await _messages(turn.request, turn.keys, edits, turn.weigh, here.steered, since, turn.policy)
    first = len(messages) - seen.stand_ins
    messages[first:] = [msgspec.structs.replace(m, id="", source="next") for m in messages[first:]]
    return ShownPrompt(
        session=session,
        thread=here.thread.name,
        exchange="",
        policy=turn.policy.name,
        model=turn.request.model,
        tokens_before=plan.before,
        tokens_after=plan.before if turn.observed else plan.after,
        messages=messages,
        inserts=_placed(turn),
        body=turn.body.decode("utf-8", "replace"),
        original=turn.request.body.decode("utf-8", "replace"),
        refused=plan.refused or turn.fallback or "",
    )


def _placed(turn: Turn) -> list[ShownInsert]:
    """Return the texts of ours in a plan. Each has the index of the client's message that it stands in, -1 for none."""
    places: dict[bytes, int] = {}
    for n, k in enumerate(turn.keys):
        places.setdefault(k, n)
    woven = turn.woven.keys
    return [
        ShownInsert(places.get(woven[index], -1) if 0 <= index < len(woven) else -1, insert.source, insert.text)
        for index, insert in ([] if turn.observed else turn.plan.placed)
    ]


async def listing(parts: Parts, tenant: str, session: str, *, thread: str | None = None) -> list[GroupLine]:
    """Return the groups of a thread, oldest first, as they stand in the next prompt."""
    here = await find(parts, tenant, session, thread)
    seen, reported = await foresee(parts, here), await snapshots(parts, here)
    return await place.aside(len(here.keys), lambda: lines(here, seen, reported))


async def group(parts: Parts, tenant: str, session: str, name: str, *, thread: str | None = None) -> list[ShownMessage]:
    """Return a group's messages in full. Raises NotFound."""
    here = await find(parts, tenant, session, thread)
    found = next((one for one in here.groups if one.id == name), None)
    if found is None:
        raise NotFound(f"this thread has no group {name!r}", hint="List its groups.")
    return await _between(parts, here, found.start, found.end)


async def message(parts: Parts, tenant: str, session: str, name: str, *, thread: str | None = None) -> ShownMessage:
    """Return a message in full. Raises NotFound."""
    here = await find(parts, tenant, session, thread)
    index = here.index_of(name)
    if index is None:
        raise NotFound(f"this thread has no message {name!r}", hint="List its groups.")
    return (await _between(parts, here, index, index + 1))[0]


async def iterations(parts: Parts, tenant: str, session: str, *, thread: str | None = None) -> list[Iteration]:
    """Return the records of a thread's iterations, oldest first."""
    record = await place.session(parts, tenant, session)
    exchange = await place.last_exchange(parts, record, thread)
    return await reflecting.records(parts.store, (tenant, session, exchange.thread))


async def _between(parts: Parts, here: Here, start: int, end: int) -> list[ShownMessage]:
    seen = await foresee(parts, here)
    since = await _since(parts, here)
    edits = {} if seen.turn.observed else seen.edits
    made = await _messages(here.request, here.keys, edits, seen.turn.weigh, here.steered, since, seen.turn.policy)
    return made[start:end]


async def _since(parts: Parts, here: Here) -> Since:
    """Return the rows of the edits in force; the operator's row where there is one."""
    tenant, session = here.record.tenant, here.record.session
    found = {row.key: row for row, _ in await parts.store.edits(tenant, session, here.thread.name)}
    for row, _ in await parts.store.edits(tenant, session, WIDE):
        if row.action == "gone" and (row.key not in found or found[row.key].action != "gone"):
            found[row.key] = row
    return found


async def _messages(
    request: Request,
    keys: Sequence[bytes],
    edits: Mapping[bytes, Edit],
    weigh: Weigh,
    known: InForce,
    since: Since,
    policy: Policy | None = None,
) -> list[ShownMessage]:
    """Return one item for each message of the request. edits: those in force in the prompt."""
    return await place.aside(len(keys), partial(_made, request, keys, edits, weigh, known, since, policy))


def _made(
    request: Request,
    keys: Sequence[bytes],
    edits: Mapping[bytes, Edit],
    weigh: Weigh,
    known: InForce,
    since: Since,
    policy: Policy | None,
) -> list[ShownMessage]:
    names = _group_names(request, keys, policy)
    pins = known.pins(frozenset())
    made = []
    for n, (m, k) in enumerate(zip(request.messages, keys, strict=True)):
        edit = None if m.is_system else edits.get(k)
        status = status_of(edit, k, known)
        raw = edited(m, edit)
        made.append(
            ShownMessage(
                index=n,
                id="" if m.is_system else public_id(k),
                group=names[n],
                role=m.role,
                status=status,
                tokens=weigh(m) if edit is None else edit.after,
                pinned=not m.is_system and (k in pins or marked(m)),
                why=_why(edit, k, since.get(k), status),
                content=None if raw is None else _json(raw),
                whole=None if edit is None else _json(m.raw),
            )
        )
    return made


def _json(raw: bytes) -> object:
    """Return a message's JSON. A text that only a lenient reader takes (NaN, half a surrogate pair) is read by such a
    reader; any other is returned as text."""
    try:
        return msgspec.json.decode(raw)
    except (ValueError, RecursionError):
        pass
    try:
        found: object = json.loads(raw)
    except (ValueError, RecursionError):
        return raw.decode("utf-8", "replace")
    return found


def _group_names(request: Request, keys: Sequence[bytes], policy: Policy | None) -> list[str]:
    names = [""] * len(keys)
    for one in groups(request.messages, keys, policy.observation if policy is not None else None):
        for n in range(one.start, one.end):
            names[n] = one.id
    return names


def status_of(edit: Edit | None, chain_key: bytes, known: InForce) -> Status:
    """Return the status of a message in a prompt."""
    if edit is None:
        return "in"
    if edit.action != "gone":
        return "changed"
    if chain_key in known.removed:
        return "removed"
    return "dropped" if edit.stage == NAME and chain_key in known.dropped else "out"


def _why(edit: Edit | None, chain_key: bytes, row: EditRow | None, status: Status) -> Why | None:
    if edit is None:
        return None
    stored = row if row is not None and row.action == edit.action else None
    return Why(
        stage=edit.stage,
        reason=edit.reason,
        action=edit.action,
        tokens_before=edit.before,
        tokens_after=edit.after,
        exchange=stored.exchange if stored is not None else "",
        since=stored.created_at if stored is not None else None,
        find="" if status == "removed" else f'recall(id="{public_id(chain_key)}")',
    )


async def snapshots(parts: Parts, here: Here) -> dict[bytes, int]:
    """Return tokens of prompt and answer as the provider reported them, by the key of the answer (FEATURES.md A15)."""
    found: dict[bytes, int] = {}
    before: float | None = None
    while page := await parts.store.exchanges(here.record.tenant, here.record.session, place.PAGE, before):
        for one in page:
            if one.answer and one.prompt_tokens is not None:
                found.setdefault(one.answer, one.prompt_tokens + (one.completion_tokens or 0))
        before = page[-1].started_at
    return found


def lines(here: Here, seen: Foreseen, reported: Mapping[bytes, int]) -> list[GroupLine]:
    """Return the groups of a thread as they stand in a planned prompt."""
    turn = seen.turn
    edits = {} if turn.observed else seen.edits
    return [_line(here, one, edits, turn.weigh, reported) for one in here.groups]


def _line(
    here: Here, one: Group, edits: Mapping[bytes, Edit], weigh: Weigh, reported: Mapping[bytes, int]
) -> GroupLine:
    open_ = [n for n in range(one.start, one.end) if not here.request.messages[n].is_system]
    found = [edits.get(here.keys[n]) for n in open_]
    states = [status_of(edit, here.keys[n], here.steered) for edit, n in zip(found, open_, strict=True)]
    same = set(states)
    whole = [weigh(here.request.messages[n]) for n in open_]
    told = [reported[here.keys[n]] for n in open_ if here.keys[n] in reported]
    pins = here.steered.pins(here.thread.state.pins)
    prompts = [here.request.messages[n] for n in open_ if here.request.messages[n].role == "user"]
    return GroupLine(
        id=one.id,
        first=one.start,
        messages=len(open_),
        tokens=sum(whole),
        sent=sum(size if edit is None else edit.after for size, edit in zip(whole, found, strict=True)),
        status=states[0] if len(same) == 1 else "changed" if same else "in",
        pinned=bool(open_) and all(here.keys[n] in pins for n in open_),
        snapshot=told[-1] if told else None,
        title=_title(prompts),
    )


def _title(prompts: Sequence[Message]) -> str:
    text = " ".join(prompts[0].text.split()) if prompts else ""
    return text if len(text) <= TITLE else text[: TITLE - 1] + "…"
