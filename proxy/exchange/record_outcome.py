"""The end of an exchange: state learned from the answer, rows to store, metrics, and the client's wait for the store.

The client sees the end of an answer when it is on disk. After `limits.commit_wait_ms` the client gets it with a note
that it is not on disk yet. So an acknowledged turn survives a crash (docs/concepts/durability.md).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace

from proxy.chat import chain
from proxy.chat.group import list_group_ids
from proxy.chat.message import Message
from proxy.context.injections.reflect import ASK_SOURCE
from proxy.context.plan import Plan
from proxy.dialects.completions.request import read_message
from proxy.dialects.usage import Usage
from proxy.errors import NotManaged
from proxy.exchange import (
    bound_reasoning,
    chains,
    cost,
    exchange_rows,
    prefix_bindings,
    publish_events,
    result_clearing,
)
from proxy.exchange.cost import Meter
from proxy.exchange.dialect import is_bound_answer
from proxy.exchange.services import Headers, Services
from proxy.exchange.turn import Turn
from proxy.metrics import Metrics
from proxy.notes import reflection, state_block
from proxy.sessions import side_calls
from proxy.sessions.given_answer import GivenAnswer
from proxy.store.base import ExchangeStatus, OutcomeRow, Row, StateRow
from proxy.store.session_lists import REPLANNED_NOTE
from proxy.stream.block_filter import CUT_REASONS
from proxy.stream.completions_answer import AssembledAnswer
from proxy.telemetry import CURRENT_TRACE

log = logging.getLogger(__name__)


def find_reflected_keys(turn: Turn) -> tuple[bytes, ...]:
    """The keys of the results that the sent prompt asked the model to reflect on; () where it did not ask."""
    if turn.prompt.is_original:
        return ()
    return next(
        (insert.quoted_keys for _, insert in turn.prompt.plan.placed_inserts if insert.source == ASK_SOURCE), ()
    )


def find_withheld_headings(services: Services, turn: Turn) -> tuple[str, ...]:
    """Headings of the blocks that are withheld from the client."""
    withholds_state = turn.prompt.asks_for_state and services.settings.state.withhold
    headings = (state_block.HEADING,) if withholds_state else ()
    return (*headings, reflection.HEADING) if find_reflected_keys(turn) else headings


def make_context_headers(turn: Turn) -> Headers:
    """The x-context-* headers that report on the request to the client."""
    plan = turn.prompt.plan
    headers: Headers = [
        (b"x-context-session", turn.located.branch.session.encode("utf-8", "replace")),
        (b"x-context-tokens", b"%d, %d" % (plan.before, turn.prompt.sent_tokens)),
    ]
    if turn.enriched.arm:
        headers.append((b"x-context-arm", turn.enriched.arm.encode()))
    if turn.prompt.over_budget:
        headers.append((b"x-context-over-budget", b"%d" % turn.prompt.over_budget))
    if turn.warnings:
        headers.append((b"x-context-warning", "; ".join(turn.warnings).encode("ascii", "replace")))
    if turn.enriched.policy.stands_for:
        headers.append(
            (b"x-context-policy-used", f"{turn.enriched.policy.name}, {turn.enriched.policy.schedule}".encode())
        )
    if turn.chain is not None and turn.chain.word:
        headers.append((b"x-context-chain", turn.chain.word.encode()))
    if turn.prompt.fallback:
        headers.append((b"x-context-fallback", turn.prompt.fallback.encode()))
    return headers


class Outcome(NamedTuple):
    """The end of an exchange, as it is recorded."""

    status: ExchangeStatus
    http_status: int
    answer: AssembledAnswer | None = None
    """The answer as the client got it; None if none was read."""
    blocks: Sequence[str] = ()
    """The bodies of the STATE blocks that the model was asked for."""
    reflections: Sequence[str] = ()
    """The bodies of the REFLECTION blocks that the model was asked for."""
    first_byte_ms: float | None = None
    """As in `OutcomeRow`."""
    note: str | None = None
    """The cause of this end, if it needs one."""

    @property
    def is_complete(self) -> bool:
        """True if the client got a whole answer that is no error."""
        return self.status == "complete" and 200 <= self.http_status < 300


def record_outcome(services: Services, turn: Turn, outcome: Outcome) -> list[Row]:
    """Return the rows of an exchange's end; update memory and metrics."""
    branch, tip_key, now = turn.located.branch, turn.tip_key, services.now()
    answer, complete = outcome.answer, outcome.is_complete
    rows: list[Row] = []
    answer_key = _record_answer(services, turn, outcome, rows, now)
    # An answer of nothing but a withheld block leaves the client nothing to send back: the request is its place then.
    state_key = tip_key if answer_key is None and complete and outcome.blocks else answer_key
    branch.last_request = replace(branch.last_request, failed=state_key is None or not complete)
    usage = _read_usage(turn, answer)
    meter = _make_meter(services, turn, usage, outcome)
    first_usage = turn.rounds.usage[0] if turn.rounds.usage else usage  # the prediction is for the first round's prompt
    state = None
    if answer is not None and state_key is not None and complete:
        state = _learn_from_answer(services, turn, answer, outcome.blocks, state_key, first_usage)
        rows += [StateRow(turn.tenant, branch.session, branch.name, *state, now)] if state is not None else []
    turn.pending.outcome = _make_outcome_row(turn, outcome, answer_key, usage, meter, now)
    rows.append(turn.pending.outcome)
    if branch.last_request.tip_key == tip_key:
        rows.append(branch.record_move(tip_key, answer_key, now))
    services.live_sessions.end_exchange(branch.live_session)
    _record_metrics(services, turn, answer, meter)
    publish_events.publish_answer(services, turn, first_usage if complete else None, state)
    return rows


def _record_answer(services: Services, turn: Turn, outcome: Outcome, rows: list[Row], now: float) -> bytes | None:
    """Add the rows of an answer's messages and of its hidden round; memory is updated. Return the answer's key, None
    for an answer that is no node of the chain.

    An answer that was not captured whole is none: its key is not the client's. Of a broken answer the part that the
    client got is a node: some clients send it back and continue from there.
    """
    answer, complete = outcome.answer, outcome.is_complete
    if answer is None or answer.is_capped or not (complete or outcome.status in ("partial", "client_gone")):
        return None
    answer_key = _record_choices(services, turn, answer, rows, now, is_complete=complete)
    if answer_key is not None and complete:
        branch = turn.located.branch
        rows += side_calls.mark_side_call(branch) if branch.may_become_side_call else []
        rows += exchange_rows.record_hidden_round(turn, turn.tip_key, answer_key, now)
        before, untailed = branch.last_request.untailed_tip_key, branch.last_request.untailed_answer_key
        if turn.rounds.hidden is not None and before is not None and untailed is not None:
            rows += exchange_rows.record_hidden_round(turn, before, untailed, now)
    return answer_key


def _learn_from_answer(
    services: Services,
    turn: Turn,
    answer: AssembledAnswer,
    blocks: Sequence[str],
    state_key: bytes,
    first_usage: Usage | None,
) -> tuple[bytes, str] | None:
    """Update the branch's state by a whole answer. Return its state block as (key, text), None where it has none.
    first_usage: the usage of the first round."""
    branch, state = turn.located.branch, _read_state(services, turn, answer, state_key, blocks)
    answered = state is not None or (_asked_for_state(turn, answer) and answer.text.strip())
    branch.state = branch.state.after_answer(
        predicted=0 if turn.prompt.observed else turn.prompt.plan.predicted,
        cached=first_usage.cached if first_usage is not None else None,
        state=state,
        answered_tip=turn.tip_key if answered else None,
    )
    return state


def _make_outcome_row(
    turn: Turn, outcome: Outcome, answer_key: bytes | None, usage: Usage | None, meter: Meter | None, now: float
) -> OutcomeRow:
    answer = outcome.answer
    return OutcomeRow(
        tenant=turn.tenant, session=turn.located.branch.session, exchange=turn.id, status=outcome.status,
        http_status=outcome.http_status, finish=answer.finish_reasons.get(0) if answer is not None else None,
        prompt_tokens=usage.prompt if usage is not None else None,
        completion_tokens=usage.completion if usage is not None else None,
        cached_tokens=usage.cached if usage is not None else None,
        answer=answer_key, fallback=str(turn.prompt.fallback or "") or None,  # the store takes no member of an enum
        first_byte_ms=outcome.first_byte_ms, ended_at=now, note=_make_note(turn, outcome.note, usage, answer),
        meter=cost.write_meter(meter) if meter is not None else None,
    )  # fmt: skip


def _read_usage(turn: Turn, answer: AssembledAnswer | None) -> Usage | None:
    """The usage of an answer. Until its end, Messages reports one or a few tokens of it, and Gemini those so far. So an
    answer without an end has at least the tokens of what came, by our own count.

    vLLM and Gemini leave out a count of zero cached tokens. Where a count has come before, none is zero. Gemini's
    stream has the count at its end only."""
    usage = answer.usage if answer is not None else None
    if answer is None or usage is None:
        return usage
    if answer.finish_reasons:
        is_zero = usage.cached is None and turn.located.branch.state.cache_hit_seen
        return replace(usage, cached=0) if is_zero else usage
    if not usage.cached and usage.cache_write is None:
        usage = replace(usage, cached=None)
    count_text = turn.token_counter.count_text
    counted = count_text(answer.text) + sum(count_text(call.name) + count_text(call.arguments) for call in answer.calls)
    completion = max(usage.completion, counted)
    return replace(usage, completion=completion, total=usage.prompt + completion)


def _describe_rounds(turn: Turn, usage: Usage | None) -> str | None:
    """The usage of all rounds in words, where there were several: the client gets the last round's prompt only."""
    if not turn.rounds.usage:
        return None
    usages = [*turn.rounds.usage, usage] if usage is not None else [*turn.rounds.usage]
    prompt, cached = sum(each.prompt for each in usages), sum(each.cached or 0 for each in usages)
    return f"{len(turn.rounds.usage) + 1} rounds, {prompt} prompt tokens in all, {cached} of them cached"


def _make_note(turn: Turn, end: str | None, usage: Usage | None, answer: AssembledAnswer | None) -> str | None:
    """The note of the exchange: its end, the parts that upstream left out, and the reason for a prompt over its
    budget. end: how the exchange ended, if that needs a note."""
    over = [note.text for note in turn.prompt.plan.notes if note.kind in ("over_level", "inserts_left_out")]
    if turn.prompt.over_budget:
        over.insert(0, f"{turn.prompt.over_budget} tokens over the budget of {turn.prompt.plan.limit}")
    dropped, cleared = None, None
    if turn.prompt.left_out or (answer is not None and answer.dropped_reasoning):
        dropped = bound_reasoning.describe_dropped(turn, answer)
    if answer is not None and answer.cleared_results is not None:
        cleared = result_clearing.describe_cleared(answer.cleared_results)
    parts = [end or _describe_rounds(turn, usage), turn.rounds.refusal, dropped, cleared, *over]
    return "; ".join(part for part in parts if part) or None


def _record_choices(
    services: Services, turn: Turn, answer: AssembledAnswer, rows: list[Row], now: float, *, is_complete: bool
) -> bytes | None:
    """Add the rows of each choice's message as the client will send it back; memory is updated. Return the key of the
    first. is_complete: they came whole."""
    branch, live_session, tip_key = turn.located.branch, turn.located.branch.live_session, turn.tip_key
    first_key, may_leave = None, branch.last_request.untailed_tip_key is not None
    position = len(turn.request.find_chained_indices())
    (group_id,) = list_group_ids(turn.request, turn.keys, turn.enriched.policy.observation, len(turn.keys) - 1)
    for index in sorted(answer.finish_reasons) or [0]:
        message = _read_choice(services, turn, answer, index, rows)
        if message is None or not (is_complete or message.text or message.calls):
            continue  # it cannot be read, or nothing of it had come yet
        if message.calls:
            rows += side_calls.mark_working(branch)
        chain_key = chain.derive_next_key(tip_key, message.digest)
        if chain_key not in live_session.nodes:
            place = exchange_rows.ChainPlace(chain_key, tip_key, position, group_id)
            row = exchange_rows.make_message_row(turn, message, place, now, answer=True, reached=True)
            rows.append(row)
            services.live_sessions.add_node(live_session, chain_key, exchange_rows.make_node(turn, row))
        if first_key is None:
            first_key = chain_key
            if branch.last_request.tip_key == tip_key:
                untailed = _add_untailed_answer(services, turn, message, group_id, rows, now) if may_leave else None
                given = GivenAnswer.remember(message)
                branch.last_request = replace(
                    branch.last_request, answer_key=chain_key, untailed_answer_key=untailed, given_answer=given
                )
    if turn.chain is not None:
        rows += chains.record_names(services, turn, answer, first_key, is_complete=is_complete)
    return first_key


def _add_untailed_answer(
    services: Services, turn: Turn, message: Message, group_id: str, rows: list[Row], now: float
) -> bytes | None:
    """Add the row of an answer behind the messages without the last one, which the client may take out of the next
    request. Return its chain key. None where no message may leave, or the answer is one that others may have."""
    branch = turn.located.branch
    before = branch.last_request.untailed_tip_key
    if before is None or not (message.calls or GivenAnswer.remember(message).head):
        return None
    chain_key, position = chain.derive_next_key(before, message.digest), len(turn.request.find_chained_indices()) - 1
    if chain_key not in branch.live_session.nodes:
        place = exchange_rows.ChainPlace(chain_key, before, position, group_id)
        row = exchange_rows.make_message_row(turn, message, place, now, answer=True, reached=True)
        rows.append(row)
        services.live_sessions.add_node(branch.live_session, chain_key, exchange_rows.make_node(turn, row))
    return chain_key


def _read_choice(
    services: Services, turn: Turn, answer: AssembledAnswer, index: int, rows: list[Row]
) -> Message | None:
    """Return the message of a choice as the client will send it back; None if there is none, or it cannot be read. The
    rows of its bound reasoning are added to `rows`."""
    try:
        raw = answer.build_message(index)
        if raw is None:
            return None
        if turn.rounds.bindings or is_bound_answer(raw):
            rows += prefix_bindings.record_answer(services, turn, raw)
        return read_message(raw)
    except NotManaged:
        pass
    except Exception:  # promise P4: the client gets the answer, whatever an upstream has put into it
        log.exception("an answer cannot be read; it is not stored")
    services.metrics.internal_errors_total.labels(where="answer_unread").inc()
    return None


def _read_state(
    services: Services, turn: Turn, answer: AssembledAnswer, key: bytes, blocks: Sequence[str]
) -> tuple[bytes, str] | None:
    """Return (key, the last state block of an answer that was asked for one, cut to its limit). An answer that was cut
    off gives none: half a block would replace a whole one."""
    if not blocks or not _asked_for_state(turn, answer):
        return None
    return key, state_block.shorten_body(blocks[-1], services.settings.state.max_chars)


def _add_log_fields(turn: Turn, meter: Meter | None, status: ExchangeStatus) -> None:
    """Add the figures of an exchange to the request log."""
    fields: dict[str, object] = {
        "session": turn.located.branch.session,
        "policy": turn.enriched.policy.name,
        "upstream": turn.upstream,
        "tokens_before": turn.prompt.plan.before,
        "tokens_after": turn.prompt.sent_tokens,
    }
    if meter is not None and any(cached >= 0 for _, cached in meter.rounds):
        fields["cached"] = sum(max(cached, 0) for _, cached in meter.rounds)
    if turn.chain is not None and turn.chain.word:
        fields["chain"] = turn.chain.word
    if turn.prompt.fallback is not None:
        fields["fallback"] = turn.prompt.fallback
    if status != "complete":
        fields["outcome"] = status
    turn.log_fields.update(fields)


def _asked_for_state(turn: Turn, answer: AssembledAnswer) -> bool:
    """True for the whole answer to a request that asked for the state: the client's own bytes ask for none."""
    return turn.prompt.asks_for_state and answer.finish_reasons.get(0) not in CUT_REASONS


def _make_meter(services: Services, turn: Turn, usage: Usage | None, outcome: Outcome) -> Meter | None:
    """Return the meter of the exchange, None if it cannot be metered; the request log gets its figures."""
    meter = None
    asked_texts = [f"{state_block.HEADING}\n{body}" for body in outcome.blocks]
    asked_texts += [f"{reflection.HEADING}\n{body}" for body in outcome.reflections]
    if usage is not None and usage.cache_write:
        branch = turn.located.branch
        branch.unstored = replace(branch.unstored, has_long_cache=usage.cache_write_long > 0)
    first_usage = turn.rounds.usage[0] if turn.rounds.usage else usage
    try:
        if first_usage is not None and first_usage.prompt:
            branch = turn.located.branch
            branch.unstored = replace(branch.unstored, counted=cost.count_own_prompt(turn, first_usage.prompt))
        meter = cost.make_meter(turn, usage, sum(map(turn.token_counter.count_text, asked_texts)))
    except Exception:  # the answer is there and paid for: a fault in counting must not hold it back
        services.metrics.internal_errors_total.labels(where="counting").inc()
        log.exception("an exchange could not be metered")
    _add_log_fields(turn, meter, outcome.status)
    return meter


def _record_metrics(services: Services, turn: Turn, answer: AssembledAnswer | None, meter: Meter | None) -> None:
    """Record the exchange in the metrics and in its trace."""
    try:
        _count_exchange(services, turn, answer, meter)
    except Exception:  # as above: a fault in counting must not hold back an answer
        services.metrics.internal_errors_total.labels(where="counting").inc()
        log.exception("an exchange could not be counted")


def _count_exchange(services: Services, turn: Turn, answer: AssembledAnswer | None, meter: Meter | None) -> None:
    if (trace := CURRENT_TRACE.get()) is not None and meter is not None:
        outputs = meter.outputs or [meter.completion]
        usages = [(prompt, cached, output) for (prompt, cached), output in zip(meter.rounds, outputs, strict=False)]
        trace.record_usage(usages, [*answer.finish_reasons.values()] if answer is not None else [])
    metrics = services.metrics
    metrics.tokens_before.observe(turn.prompt.plan.before)
    metrics.tokens_after.observe(turn.prompt.sent_tokens)
    if turn.prompt.over_budget:
        metrics.over_budget_total.labels(kind="prompt").inc()
    if answer is not None and answer.dropped_reasoning:
        bound_reasoning.count_dropped(services, turn, answer)
    if answer is not None and answer.cleared_results is not None:
        result_clearing.count_cleared_results(services, answer.cleared_results)
    labels = metrics.limit_usage_labels(turn.request.model, turn.enriched.policy.name, turn.upstream)
    metrics.context_tokens_total.labels(*labels, "before").inc(turn.prompt.plan.before)
    metrics.context_tokens_total.labels(*labels, "sent").inc(turn.prompt.sent_tokens)
    if meter is None:
        return
    metrics.prompt_tokens_total.labels(*labels).inc(meter.prompt)
    metrics.completion_tokens_total.labels(*labels).inc(meter.completion)
    if (cached := meter.cached) is not None:
        metrics.cached_tokens_total.labels(*labels, "predicted").inc(meter.predicted)
        metrics.cached_tokens_total.labels(*labels, "reported").inc(cached)
    # The turn's model may have the prices of the cache's longer lifetime; bills tell both apart.
    bill = cost.compute_bill(services.models_by_name.get(turn.request.model, turn.model), meter)
    if bill is not None:
        metrics.cost_dollars_total.labels(*labels, "paid").inc(bill.paid)
        metrics.cost_dollars_total.labels(*labels, "without").inc(bill.without_proxy)
        if bill.planned is not None:
            metrics.cost_dollars_total.labels(*labels, "planned").inc(bill.planned)


def record_plan_metrics(metrics: Metrics, plan: Plan) -> None:
    """Record the figures of the plan's notes in the metrics."""
    for note in plan.notes:
        if note.kind == "levels":
            for level, tokens in note.figures.items():
                metrics.level_tokens.labels(level=metrics.limit_label("level", level)).observe(tokens)
        elif note.kind == "compressed":
            metrics.compressed_tokens_total.labels(kind="before").inc(note.figures["before"])
            metrics.compressed_tokens_total.labels(kind="after").inc(note.figures["after"])
            metrics.compression_ratio.observe(note.figures["ratio"])
        elif note.kind == "over_level":
            metrics.over_budget_total.labels(kind="level").inc()
        elif note.kind == "refetch":
            for kind, count in note.figures.items():
                metrics.refetch_total.labels(kind=kind).inc(count)
        elif note.kind == "low_ratio":
            metrics.low_ratio_total.inc()
        elif note.kind == "retrieve":
            metrics.retrieved_items_total.inc(note.figures["items"])


async def wait_until_stored(services: Services, written: asyncio.Future[None]) -> bool:
    """True if the write is on disk before `commit_wait_ms` is over, or by now if the event loop itself was late. A
    store that has not written anything for seconds is not waited for."""
    if not written.done() and not services.store.stalled:
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        wake = partial(_wake_waiter, waiter)
        written.add_done_callback(wake)
        timer = loop.call_later(services.settings.limits.commit_wait_ms / 1000, wake)
        try:
            await waiter
        finally:
            timer.cancel()
            written.remove_done_callback(wake)
    if not written.done():
        await asyncio.sleep(0)
    return written.done() and written.exception() is None


def _wake_waiter(waiter: asyncio.Future[None], _: asyncio.Future[None] | None = None) -> None:
    if not waiter.done():
        waiter.set_result(None)


async def store_and_wait(services: Services, turn: Turn, rows: Sequence[Row]) -> bool:
    """True if the rows are on disk before `commit_wait_ms` is over. The write continues in any case."""
    written = services.store.put(rows)
    await wait_until_stored(services, written)
    # If the answer was stored and its request was not, half of the exchange is missing.
    if written.done() and written.exception() is None and not turn.pending.is_lost:
        turn.located.branch.is_confirmed = True  # rows are written in the order in which they were put
        return True
    services.metrics.persist_deferred_total.inc()
    if not written.done():
        written.add_done_callback(lambda done: handle_lost_write(services, turn, done))
    elif written.exception() is not None:
        services.metrics.persist_dropped_total.inc()
        services.live_sessions.forget_session(turn.located.branch.live_session)
    return False


def store_in_background(services: Services, turn: Turn, rows: Sequence[Row]) -> None:
    """Store rows without waiting, for ends that no client sees."""
    services.store.put(rows).add_done_callback(lambda done: handle_lost_write(services, turn, done))


def handle_lost_write(services: Services, turn: Turn, done: asyncio.Future[None]) -> None:
    """Handle a write that failed: forget the session, so that the next request reads it back from the store."""
    if not done.cancelled() and done.exception() is not None:
        turn.pending.is_lost = True
        services.metrics.persist_dropped_total.inc()
        services.live_sessions.forget_session(turn.located.branch.live_session)


def stop_rewriting(services: Services, turn: Turn) -> None:
    """Stop rewriting this branch, and drop its edits: the upstream took the original where it had refused our prompt.
    Later edits are made only because the prompt would not fit the window."""
    branch = turn.located.branch
    rows = exchange_rows.make_withdrawn_rows(turn, services.now())
    branch.state = replace(branch.state, stopped="upstream_reject", edits={}, lasting_edits=None)
    if rows:
        store_in_background(services, turn, rows)


def make_refused_row(services: Services, turn: Turn) -> OutcomeRow:
    """Return the row of an exchange whose prompt was refused and is planned once more as another exchange."""
    return OutcomeRow(
        tenant=turn.tenant,
        session=turn.located.branch.session,
        exchange=turn.id,
        status="rejected",
        http_status=400,
        finish=None,
        prompt_tokens=None,
        completion_tokens=None,
        cached_tokens=None,
        answer=None,
        fallback=None,
        first_byte_ms=None,
        ended_at=services.now(),
        note=REPLANNED_NOTE,
    )
