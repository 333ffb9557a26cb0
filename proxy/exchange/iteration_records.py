"""Record of an iteration when its answer has come, with the model's own reflection on it.

A reflection that the model wrote is stored like a helper's answer, under the name of the question that it answers. So
planning finds both in one place. Nothing here can fail an exchange: a fault in recording is counted.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import msgspec

from proxy.chat import group
from proxy.chat.chain import public_id
from proxy.chat.group import Step
from proxy.context.analysis import call_batches
from proxy.context.analysis.call_batches import REFLECTION_KIND
from proxy.context.injections.reflect import ASK_SOURCE, Reflect
from proxy.context.plan import Ask
from proxy.exchange.record_outcome import find_reflected_keys
from proxy.exchange.services import Services
from proxy.exchange.turn import Turn
from proxy.helper.queue import remember_answer
from proxy.notes import reflection
from proxy.notes.reflection import FinishedCall, IterationReport, Relevance
from proxy.sessions.branch import BranchId
from proxy.sessions.locate import make_id
from proxy.store.base import Row
from proxy.store.derived import HelperAnswerRow, IterationRow
from proxy.store.reads import Store
from proxy.store.session_notes import NoteRow

log = logging.getLogger(__name__)

MAX_RANKED_STEPS = 200
"""Steps with which the newest one is ranked: a record does not justify a pass over a long history."""


def make_iteration_rows(services: Services, turn: Turn, injection: Reflect, reflections: list[str]) -> list[Row]:
    """Return the rows of the iteration whose results this exchange has brought upstream, and of the reflection on it;
    memory is updated. injection: the policy's. reflections: the REFLECTION blocks of the answer."""
    try:
        rows = _make_reflection_rows(services, turn, reflections)
        # The results that a worker thread could not read in time are not read again here, on the event loop.
        return rows if turn.prompt.fallback == "timeout" else [*rows, *_make_record_rows(turn, injection)]
    except Exception:  # promise P4: the answer is there, and a fault in its record must not lose it
        services.metrics.internal_errors_total.labels(where="reflection").inc()
        log.exception("an iteration cannot be recorded")
        return []


async def store_feedback(services: Services, branch_id: BranchId, text: str) -> NoteRow:
    """Store the user's feedback on the iterations so far, beside the user's messages in the conversation itself. Raises
    ValueError for an empty text, StoreUnavailable if it cannot be stored."""
    feedback = text.strip()[: reflection.MAX_RESULT_CHARS]
    if not feedback:
        raise ValueError("feedback without a text")
    row = NoteRow(*branch_id, make_id(), "feedback", feedback, services.now())
    await services.store.put([row])
    return row


async def read_iterations(store: Store, branch_id: BranchId) -> list[IterationReport]:
    """Return the whole records of a branch's iterations, oldest first. Each has its reflection, and the feedback that
    came after it and before the next. StoreUnavailable passes through."""
    rows = await store.read_iterations(*branch_id)
    notes = [note for note in await store.read_notes(*branch_id) if note.kind == "feedback"]
    reports = []
    for n, row in enumerate(rows):
        report = msgspec.json.decode(row.body, type=IterationReport)
        if row.reflection is not None:
            report = reflection.add_reflection(report, row.reflection)
        until = rows[n + 1].created_at if n + 1 < len(rows) else float("inf")
        since = row.created_at if n else 0.0
        texts = [note.text for note in notes if since <= note.created_at < until]
        if texts:
            texts = [report.user_feedback, *texts] if report.user_feedback else texts
            report = msgspec.structs.replace(report, user_feedback="\n".join(texts))
        reports.append(report)
    return reports


def _make_reflection_rows(services: Services, turn: Turn, written: list[str]) -> list[Row]:
    about = find_reflected_keys(turn)
    if not about:
        return []
    tokens = services.metrics.reflection_tokens_total
    tokens.labels(kind="asked").inc(
        sum(
            turn.token_counter.count_text(insert.text)
            for _, insert in turn.prompt.plan.placed_inserts
            if insert.source == ASK_SOURCE
        )
    )
    text = written[-1][: reflection.MAX_CHARS].strip() if written else ""
    outcome = "missing" if not text else "text" if reflection.parse_reflection(text) is None else "json"
    services.metrics.reflections_total.labels(outcome=outcome).inc()
    if not text:
        return []
    size = turn.token_counter.count_text(written[-1])
    tokens.labels(kind="written").inc(size)
    branch, name = turn.located.branch, Ask(REFLECTION_KIND, "", about).id
    remember_answer(branch, name, text)
    return [
        HelperAnswerRow(
            turn.tenant, branch.session, name, REFLECTION_KIND, turn.request.model, 0, size, 0.0, services.now(), text
        )
    ]


def _make_record_rows(turn: Turn, injection: Reflect) -> list[Row]:
    """Return the record of the newest step, where only the user has spoken since. The steps that were reflected on
    together with it are recorded again: only now the name of their reflection is known."""
    messages, keys = turn.request.messages, turn.keys
    steps = group.split_steps(messages)
    step = next((s for s in reversed(steps) if messages[s.start].role == "assistant"), None)
    if step is None or step.end - step.start == 1:
        return []
    ranks = _rank_results(turn, [s for s in steps if s.end - s.start > 1][-MAX_RANKED_STEPS:])
    if injection.read_mode(turn.options) == "off":
        return [_make_row(turn, step, "", {}, ranks)]
    batches = call_batches.find_batches(messages, keys, steps, injection)
    batch = batches[-1] if batches and batches[-1].calls[-1].call_index == step.start else None
    batch_calls = {one.call_index for one in batch.calls} if batch is not None else set()
    places = call_batches.number_newest_calls(messages, steps, injection)
    name = batch.ask_id if batch is not None else ""
    mine = [s for s in steps if s is step or s.start in batch_calls]
    return [_make_row(turn, s, name if s.start in batch_calls else "", places, ranks) for s in mine]


def _rank_results(turn: Turn, steps: Sequence[Step]) -> dict[int, Relevance]:
    """Rank the results of these steps by their relevance to the goal, by words and compared with each other."""
    messages = turn.request.messages
    answered_calls = [answered for step in steps for answered in call_batches.find_answered_calls(messages, step)]
    goal = call_batches.find_goal(turn.located.branch.state.state, messages)
    return {
        answered.result_index: rank
        for answered, rank in zip(answered_calls, call_batches.rank_calls(goal, messages, answered_calls), strict=True)
    }


def _make_row(
    turn: Turn, step: Step, name: str, places: Mapping[int, int], ranks: Mapping[int, Relevance]
) -> IterationRow:
    messages, keys, branch = turn.request.messages, turn.keys, turn.located.branch
    node = branch.live_session.nodes.get(keys[step.start])
    asked_at = node.seen_at if node is not None else 0.0
    prompt = group.find_last_user(messages[: step.start])
    number = sum(messages[n].role == "assistant" for n in range(prompt + 1, step.start + 1))
    finished_calls = []
    for answered in call_batches.find_answered_calls(messages, step):
        n, result = answered.result_index, messages[answered.result_index]
        outcome = call_batches.read_call_outcome(answered.call, result)
        finished_calls.append(
            FinishedCall(answered.call, result, public_id(keys[n]), ranks.get(n), places.get(n, 0), outcome)
        )
    record = reflection.build_report(
        number,
        turn.started_at,
        turn.request.reasoning_effort,
        messages[step.start],
        finished_calls,
        seconds=turn.started_at - asked_at if 0 < asked_at < turn.started_at else None,
        token_counter=turn.token_counter.count_text,
        feedback="\n".join(m.text for m in messages[step.end :] if m.role == "user"),
    )
    body = msgspec.json.encode(record)
    return IterationRow(turn.tenant, branch.session, branch.name, keys[step.start], number, name, turn.started_at, body)
