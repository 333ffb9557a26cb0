"""Chart of a thread's next prompt: each group is a bar of its messages, with the tokens and the edit of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct

from proxy.chat.key import public_id
from proxy.chat.message import Message
from proxy.chat.tokens import Weigh
from proxy.context.plan import Edit
from proxy.exchange.parts import Parts
from proxy.exchange.steering import showing
from proxy.exchange.steering.foreseeing import Foreseen, foresee
from proxy.exchange.steering.place import Here, aside, find
from proxy.exchange.steering.shapes import GroupLine, Status

NEWEST = 1000
"""Limit on the groups that are drawn, the newest."""
SHOWN = 4000
"""Characters of an inserted text that are shown."""


class Piece(Struct, frozen=True, omit_defaults=True):
    """A message as a piece of a bar. kind: system, user, thinking (the model's text), tool, or tools for the
    definitions. tokens: as it came. sent: tokens as it would go out. stage, reason: why these differ."""

    kind: str
    tokens: int
    sent: int
    id: str = ""
    status: Status = "in"
    pinned: bool = False
    stage: str = ""
    reason: str = ""


class Bar(Struct, frozen=True):
    """A group and its messages, in order."""

    group: GroupLine
    pieces: list[Piece]


class Inserted(Struct, frozen=True):
    """A text of ours in the next prompt. after: the id of the message that the text stands in or behind, "" for
    none."""

    source: str
    tokens: int
    text: str
    after: str


class Picture(Struct, frozen=True):
    """The next prompt as a chart. head: tools and system messages. earlier: number of groups before the first bar.
    limit: tokens that the model takes. budget: the share of the limit, 0 to 1, that the policy fills. waits: the model
    waits for results, not for the user."""

    session: str
    thread: str
    policy: str
    model: str
    limit: int | None
    budget: float
    tokens: int
    sent: int
    head: list[Piece]
    bars: list[Bar]
    earlier: int
    inserts: list[Inserted]
    refused: str
    waits: bool


async def picture(parts: Parts, tenant: str, session: str, *, thread: str | None = None) -> Picture:
    """Return the chart of the prompt that would go out if the client sent its history now. Raises NotFound;
    StoreUnavailable passes through."""
    here = await find(parts, tenant, session, thread)
    seen = await foresee(parts, here)
    reported = await showing.snapshots(parts, here)
    return await aside(len(here.keys), lambda: _drawn(here, seen, reported))


def _drawn(here: Here, seen: Foreseen, reported: Mapping[bytes, int]) -> Picture:
    turn, plan = seen.turn, seen.turn.plan
    edits = {} if turn.observed else seen.edits
    pieces = [_piece(here, turn.weigh, edits, n) for n in range(len(here.keys))]
    head = [piece for piece in pieces if piece.kind == "system"]
    tools = turn.weigh.head(here.request.tools)
    if tools:
        head.insert(0, Piece("tools", tools, tools))
    bars = [
        Bar(line, [piece for piece in pieces[one.start : one.end] if piece.kind != "system"])
        for one, line in zip(here.groups, showing.lines(here, seen, reported), strict=True)
    ]
    # The plan's indices are those of the messages that upstream sees, including hidden rounds that are put back.
    names = ["" if m.is_system else public_id(k) for m, k in zip(*_sent(seen), strict=True)]
    inserts = [
        Inserted(
            source=one.source,
            tokens=turn.weigh.count(one.text),
            text=one.text if len(one.text) <= SHOWN else one.text[: SHOWN - 1] + "…",
            after=names[index] if 0 <= index < len(names) else "",
        )
        for index, one in ([] if turn.observed else plan.placed)
    ]
    return Picture(
        session=here.record.session,
        thread=here.thread.name,
        policy=turn.policy.name,
        model=turn.request.model,
        limit=turn.policy.window_of(turn.model),
        budget=turn.policy.budget,
        tokens=plan.before,
        sent=plan.before if turn.observed else plan.after,
        head=head,
        bars=bars[-NEWEST:],
        earlier=max(0, len(bars) - NEWEST),
        inserts=inserts,
        refused=plan.refused or turn.fallback or "",
        waits=bool(here.request.messages[-1].calls),
    )


def _sent(seen: Foreseen) -> tuple[Sequence[Message], Sequence[bytes]]:
    return seen.turn.woven.request.messages, seen.turn.woven.keys


def _piece(here: Here, weigh: Weigh, edits: Mapping[bytes, Edit], index: int) -> Piece:
    message, chain_key = here.request.messages[index], here.keys[index]
    size = weigh(message)
    if message.is_system:
        return Piece("system", size, size)
    edit = edits.get(chain_key)
    made = Piece(
        kind=_kind(message),
        tokens=size,
        sent=size if edit is None else edit.after,
        id=public_id(chain_key),
        status=showing.status_of(edit, chain_key, here.steered),
        pinned=chain_key in here.steered.pins(here.thread.state.pins),
    )
    if edit is None:
        return made
    return msgspec.structs.replace(made, stage=edit.stage, reason=edit.reason)


def _kind(message: Message) -> str:
    return {"assistant": "thinking", "tool": "tool", "function": "tool"}.get(message.role, "user")
