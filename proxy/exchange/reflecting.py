"""Record of an iteration when its answer has come, with the model's own reflection on it.

A reflection that the model wrote is stored like a helper's answer, under the name of the question that it answers. So
planning finds both in one place. Nothing here can fail an exchange: a fault in recording is counted.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import msgspec

from proxy.chat import group
from proxy.chat.group import Step
from proxy.chat.key import public_id
from proxy.context.evidence import reflecting
from proxy.context.evidence.reflecting import KIND
from proxy.context.plan import Ask
from proxy.context.voices.reflect import ASK, Reflect
from proxy.exchange.asking import remember
from proxy.exchange.identify import new_id
from proxy.exchange.parts import Parts
from proxy.exchange.thread import Name
from proxy.exchange.turn import Turn
from proxy.memory import reflection, state
from proxy.memory.reflection import Iteration, Relevance
from proxy.store.base import Row, Store
from proxy.store.derived import AnswerRow, IterationRow
from proxy.store.written import NoteRow

log = logging.getLogger(__name__)

RANKED = 200
"""Limit on the steps with which the newest step is ranked: a record does not justify another pass over a long
history."""


def asked(turn: Turn) -> tuple[bytes, ...]:
    """The keys of the results that the sent prompt asked the model to reflect on; () where it did not ask."""
    if turn.observed or turn.fallback == "upstream_reject":
        return ()
    return next((insert.about for _, insert in turn.plan.placed if insert.source == ASK), ())


def headings(parts: Parts, turn: Turn) -> tuple[str, ...]:
    """Headings of the blocks that are withheld from the client."""
    if turn.fallback == "upstream_reject":
        return ()
    mine = (state.HEADING,) if turn.plan.asked and parts.settings.state.withhold else ()
    return (*mine, reflection.HEADING) if asked(turn) else mine


def rows(parts: Parts, turn: Turn, written: list[str]) -> list[Row]:
    """Return the rows of the iteration whose results this exchange has brought upstream, and of the reflection on it;
    memory is updated. written: the REFLECTION blocks of the answer. Empty for policies that do not reflect."""
    voice = next((one for one in turn.policy.voices if isinstance(one, Reflect)), None)
    if voice is None:
        return []
    try:
        return [*_reflection(parts, turn, written), *_iteration(turn, voice)]
    except Exception:  # P4: the answer is there, and a fault in its record must not lose it
        parts.metrics.swallowed_total.labels(where="reflection").inc()
        log.exception("an iteration cannot be recorded")
        return []


async def feedback(parts: Parts, place: Name, text: str) -> NoteRow:
    """Store the user's feedback on the iterations so far, beside the user's messages in the conversation itself. Raises
    ValueError for an empty text, StoreUnavailable if it cannot be stored."""
    said = text.strip()[: reflection.RAW]
    if not said:
        raise ValueError("feedback without a text")
    row = NoteRow(*place, new_id(), "feedback", said, parts.now())
    await parts.store.put([row])
    return row


async def records(store: Store, place: Name) -> list[Iteration]:
    """Return the whole records of a thread's iterations, oldest first. Each has its reflection, and the feedback that
    came after it and before the next. StoreUnavailable passes through."""
    rows = await store.iterations(*place)
    notes = [note for note in await store.notes(*place) if note.kind == "feedback"]
    made = []
    for n, row in enumerate(rows):
        one = msgspec.json.decode(row.body, type=Iteration)
        if row.reflection is not None:
            one = reflection.reflected(one, row.reflection)
        until = rows[n + 1].created_at if n + 1 < len(rows) else float("inf")
        since = row.created_at if n else 0.0
        said = [note.text for note in notes if since <= note.created_at < until]
        if said:
            said = [one.user_feedback, *said] if one.user_feedback else said
            one = msgspec.structs.replace(one, user_feedback="\n".join(said))
        made.append(one)
    return made


def _reflection(parts: Parts, turn: Turn, written: list[str]) -> list[Row]:
    about = asked(turn)
    if not about:
        return []
    tokens = parts.metrics.reflection_tokens_total
    tokens.labels(kind="asked").inc(
        sum(turn.weigh.count(insert.text) for _, insert in turn.plan.placed if insert.source == ASK)
    )
    text = written[-1][: reflection.MAX].strip() if written else ""
    outcome = "missing" if not text else "text" if reflection.parse(text) is None else "json"
    parts.metrics.reflections_total.labels(outcome=outcome).inc()
    if not text:
        return []
    size = turn.weigh.count(written[-1])
    tokens.labels(kind="written").inc(size)
    thread, name = turn.place.thread, Ask(KIND, "", about).id
    remember(thread, name, text)
    return [AnswerRow(turn.tenant, thread.session, name, KIND, turn.request.model, 0, size, 0.0, parts.now(), text)]


def _iteration(turn: Turn, voice: Reflect) -> list[Row]:
    """Return the record of the newest step, where only the user has spoken since. The steps that were reflected on
    together with it are recorded again: only now the name of their reflection is known."""
    messages, keys = turn.request.messages, turn.keys
    steps = group.steps(messages)
    step = next((s for s in reversed(steps) if messages[s.start].role == "assistant"), None)
    if step is None or step.end - step.start == 1:
        return []
    ranks = _ranks(turn, [s for s in steps if s.end - s.start > 1][-RANKED:])
    if voice.mode(turn.options) == "off":
        return [_row(turn, step, "", {}, ranks)]
    batches = reflecting.batches(messages, keys, steps, voice)
    batch = batches[-1] if batches and batches[-1].done[-1].source == step.start else None
    told = {one.source for one in batch.done} if batch is not None else set()
    places = reflecting.place(messages, steps, voice)
    name = batch.ask if batch is not None else ""
    mine = [s for s in steps if s is step or s.start in told]
    return [_row(turn, s, name if s.start in told else "", places, ranks) for s in mine]


def _ranks(turn: Turn, steps: Sequence[Step]) -> dict[int, Relevance]:
    """Rank the results of these steps by their relevance to the goal, by words and compared with each other."""
    messages = turn.request.messages
    found = [one for step in steps for one in reflecting.done(messages, step)]
    wanted = reflecting.goal(turn.place.thread.state.state, messages)
    return {one.result: rank for one, rank in zip(found, reflecting.ranks(wanted, messages, found), strict=True)}


def _row(turn: Turn, step: Step, name: str, places: Mapping[int, int], ranks: Mapping[int, Relevance]) -> IterationRow:
    messages, keys, thread = turn.request.messages, turn.keys, turn.place.thread
    node = thread.memory.nodes.get(keys[step.start])
    came = node.seen if node is not None else 0.0
    prompt = max((n for n in range(step.start) if messages[n].role == "user"), default=-1)
    number = sum(messages[n].role == "assistant" for n in range(prompt + 1, step.start + 1))
    record = reflection.record(
        number,
        turn.began,
        turn.request.effort,
        messages[step.start],
        [
            (one.call, m, public_id(keys[n]), ranks.get(n), places.get(n, 0), reflecting.reading(one.call, m))
            for one in reflecting.done(messages, step)
            for n, m in ((one.result, messages[one.result]),)
        ],
        seconds=turn.began - came if 0 < came < turn.began else None,
        weigh=turn.weigh.count,
        feedback="\n".join(m.text for m in messages[step.end :] if m.role == "user"),
    )
    body = msgspec.json.encode(record)
    return IterationRow(turn.tenant, thread.session, thread.name, keys[step.start], number, name, turn.began, body)
