"""Make a plan of a request, off the event loop where it takes long, and the bytes that go upstream."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from time import monotonic

import msgspec

from proxy.chat.group import ends_on_prompt
from proxy.chat.message import cancellation_check
from proxy.context.apply_decisions import rewrite_remaining
from proxy.context.branch_state import BranchState
from proxy.context.fit import compute_token_budget
from proxy.context.pipeline import rewrite
from proxy.context.plan import Plan, RewriteInputs
from proxy.context.view import compute_unmarked_form
from proxy.dialects.base import NO_BREAKPOINTS
from proxy.dialects.completions.request import write_request
from proxy.errors import NotManaged
from proxy.exchange import (
    bound_reasoning,
    cache_breakpoints,
    cost,
    learned_windows,
    lookups,
    prefix_bindings,
    splice_rounds,
)
from proxy.exchange.dialect import count_sent_messages
from proxy.exchange.fallback import FallbackReason, count_fallback
from proxy.exchange.gateway_rows import add_unseen_context
from proxy.exchange.plan_timer import PlanTimer
from proxy.exchange.services import Services
from proxy.exchange.turn import UNPLANNED, Prompt, Turn
from proxy.sessions.branch import find_simulated_state

log = logging.getLogger(__name__)

MAX_PLANNED_BYTES = 384 * 1024
"""Bytes in which edits can be made that are planned on the event loop. They are the bytes that went out last time and
the new ones. An old edit is only repeated, which takes a microsecond a message."""
MAX_NEW_BYTES = 64 * 1024
"""Bytes that no plan has read yet that are read and planned on the event loop: dense text takes 0.2 ms a KB."""
MAX_UNCHECKED_BYTES = 4 * 1024
"""Such bytes up to which no plan on the event loop looks at the clock."""
MAX_LOOP_S = 0.02
"""Seconds after which a plan on the event loop goes to a worker thread. Text that is made for it takes up to 3 ms a
KB."""
MAX_NEW_MESSAGES = 200
"""Messages that no plan has read yet that are planned on the event loop."""


async def plan_request(services: Services, turn: Turn, *, frozen: bool = False) -> Turn:
    """Return the turn with a plan and the bytes to send, in which no reasoning is broken by the proxy (rule W15)."""
    if not frozen and _may_leave_out_reasoning(turn):
        shorter = await _plan_without_reasoning(services, turn)
        if shorter is not None:
            return shorter
    turn = await _plan_once(services, turn, frozen=frozen)
    if turn.has_bound_answers:
        judged = await prefix_bindings.judge_prompt(services, turn)
        if judged.broken and prefix_bindings.costs_less_without_edits(turn, judged):
            turn = await _plan_once(services, prefix_bindings.withdraw_edits(services, turn), frozen=frozen)
            judged = await prefix_bindings.judge_prompt(services, turn)
        if judged.broken:
            turn = prefix_bindings.leave_out_broken(services, turn, judged)
    return _mark_prompt(services, turn)


def _mark_prompt(services: Services, turn: Turn) -> Turn:
    """Return the turn with the breakpoints of its plan."""
    return turn if turn.prompt.plan.breakpoints == NO_BREAKPOINTS else cache_breakpoints.mark_prompt(services, turn)


def _may_leave_out_reasoning(turn: Turn) -> bool:
    """True if bound reasoning may leave for edits: the policy says so, and the user begins something new.

    The reasoning of earlier work is worth least then. Within a tool loop a provider may refuse an answer without it."""
    policy = turn.enriched.policy
    if policy.bound_reasoning == "keep" or policy.schedule != "append_only" or turn.is_preview:
        return False
    return turn.has_bound_answers and not turn.is_kept_by_provider and ends_on_prompt(turn.request.messages)


async def _plan_without_reasoning(services: Services, turn: Turn) -> Turn | None:
    """Return the turn with edits of messages that reasoning is bound to, and without this reasoning. None if there are
    none that pay, or if they save fewer tokens than the reasoning has."""
    planned = await _plan_once(services, turn, frozen=False, guards_sent=False)
    if planned.prompt.fallback is not None or not planned.prompt.plan.new_edits:
        return None
    judged = await prefix_bindings.judge_prompt(services, planned)
    shorter = prefix_bindings.leave_out_for_edits(services, planned, judged) if judged.broken else planned
    return _mark_prompt(services, shorter) if shorter is not None else None


async def _plan_once(services: Services, turn: Turn, *, frozen: bool, guards_sent: bool = True) -> Turn:
    """Return the turn with a plan and the bytes to send, without breakpoints of the proxy's. If planning fails, the
    body goes out as received, and the turn is stored like any other. If it only takes too long, no new edits are made.

    frozen: no new edits are made, whether they would pay or not. guards_sent: `append_only` edits no message that was
    sent before."""
    state = find_current_state(services, turn)
    # A stopped branch goes out as received while it fits its window: edits or `include_usage` may have been refused.
    is_stopped = state.stopped is not None
    fallback: str | None = None
    plan: Plan | None = None
    try:
        if turn.enriched.policy.mode != "passthrough":
            plan = await make_plan(services, turn, state, frozen=frozen, guards_sent=guards_sent)
            if turn.enriched.policy.mode == "rewrite" and not (is_stopped and plan.messages is None):
                return _repair_outgoing(_write_prompt(services, turn, plan, is_stopped=is_stopped))
    except Exception as problem:  # promise P4: a stage may be third-party code. Counted; the original goes out
        fallback, plan = FallbackReason(problem.reason if isinstance(problem, NotManaged) else "error"), None
        if fallback == FallbackReason.TIMEOUT and not frozen and _may_repeat_edits(turn, state):
            log.info("the edits of earlier requests are repeated: %s", problem)
            return await _repeat_edits(services, turn)
        if isinstance(problem, NotManaged):
            log.info("the request goes on as received: %s", problem)  # the header has one word of it
        else:
            services.metrics.internal_errors_total.labels(where="plan").inc()
            log.exception("planning failed; the request goes on as received")
    if plan is None:
        plan = _make_passthrough_plan(turn, state)
    if turn.chain is not None and turn.chain.unchanged_reason and fallback is None:
        fallback = FallbackReason(turn.chain.unchanged_reason)
    if fallback is not None and not turn.is_preview:  # nothing of a preview goes out
        count_fallback(services, fallback)
    token_budget = compute_token_budget(turn.request, turn.enriched.policy, turn.model, state.learned_window)
    prompt = Prompt(
        plan=msgspec.structs.replace(plan, limit=token_budget.limit if token_budget is not None else None),
        chat_body=turn.request.body,
        outgoing=turn.original,
        fallback=fallback,
        observed=True,
        is_simulated=turn.enriched.policy.mode == "observe" and fallback is None and not plan.refusal,
    )
    return _repair_outgoing(turn.with_values(prompt=prompt).without_tools())


def _may_repeat_edits(turn: Turn, state: BranchState) -> bool:
    """True if earlier requests of the branch went out with edits that do not have to be decided again."""
    policy = turn.enriched.policy
    return bool(state.edits) and policy.mode == "rewrite" and not policy.literal


async def _repeat_edits(services: Services, turn: Turn) -> Turn:
    """Return the turn with the edits of earlier requests and no others.

    To repeat an edit takes a microsecond. Without them the whole prompt would be written to the provider's cache again,
    and once more with the next request."""
    turn = await _plan_once(services, turn, frozen=True)
    if turn.prompt.fallback is not None:
        return turn
    if not turn.is_preview:
        count_fallback(services, FallbackReason.TIMEOUT)
    return turn.with_prompt(fallback=FallbackReason.TIMEOUT)


def _repair_outgoing(turn: Turn) -> Turn:
    """Return the turn with bytes that the provider accepts. Cut answers are repaired, and reasoning that the provider
    has refused is left out, byte for byte as in the request that it accepted."""
    outgoing = turn.repair_answers(turn.prompt.outgoing)
    if turn.located.branch.refused_reasoning:
        outgoing = bound_reasoning.leave_out_refused(turn, outgoing)
    return turn if outgoing is turn.prompt.outgoing else turn.with_prompt(outgoing=outgoing)


def _write_prompt(services: Services, turn: Turn, plan: Plan, *, is_stopped: bool) -> Turn:
    """Return the turn with the prompt of a plan. Raises NotManaged if the dialect does not allow its changes."""
    fallback = None
    if plan.refusal:
        fallback = f"rule {plan.refusal}"
        services.metrics.refusals_total.labels(rule=plan.refusal).inc()
        turn = turn.without_tools()
    if plan.edits:
        turn = splice_rounds.offer_with_first_edit(services, turn, plan)
    usage_added = turn.request.stream and not (
        turn.request.usage_wanted or is_stopped or turn.model_key in services.usage_refused
    )
    try:
        body = write_request(turn.enriched.spliced.request, plan.messages, request_usage=usage_added)
    except ValueError:  # stream_options is no object: upstream will report it, in its own words
        usage_added = False
        body = write_request(turn.enriched.spliced.request, plan.messages)
    prompt = Prompt(plan, body, body, usage_added=usage_added, fallback=fallback)
    turn = turn.with_values(prompt=prompt)
    if turn.wire_request is None:
        return turn
    if body == turn.request.body:
        return turn.with_prompt(outgoing=turn.original)
    try:
        outgoing = turn.write_body()
        violations = turn.dialect.find_added_violations(outgoing, turn.wire_request)
    except (ValueError, TypeError) as problem:  # the client's values may have types that no provider takes
        raise NotManaged("dialect", f"the dialect does not allow this prompt: {problem}") from problem
    if violations:
        raise NotManaged("dialect", f"the dialect does not allow this prompt: {violations[0]}")
    return turn.with_prompt(outgoing=outgoing)


def find_current_state(services: Services, turn: Turn) -> BranchState:
    """The state of the turn's branch, with the operator's decisions and the window that its upstream has named."""
    branch, tip_key = turn.located.branch, turn.tip_key
    state = find_simulated_state(branch) if turn.enriched.policy.mode == "observe" else branch.state
    state = state.for_policy(literal=turn.enriched.policy.literal).rewind(tip_key)
    decisions = branch.live_session.stored_decisions
    if decisions is not None and not decisions.is_empty and state.stopped is None:
        state = decisions.apply_to(state, side=branch.kind == "side")
    # Few upstreams have named a window.
    if services.learned_windows and (limit := learned_windows.find_window(services, turn.model_key)) is not None:
        state = msgspec.structs.replace(state, learned_window=limit)
    return add_unseen_context(turn, state) if turn.dialect.returns_rows else state


async def make_plan(
    services: Services, turn: Turn, state: BranchState, *, frozen: bool, guards_sent: bool = True
) -> Plan:
    """Return the plan of a turn at its time; the state is not changed. frozen, guards_sent: as `_plan_once`. Raises
    NotManaged if it takes too long."""
    spliced = turn.enriched.spliced
    late_offer = turn.enriched.first_edit_offer
    offer = late_offer or turn.enriched.tool_offer
    late_tokens = turn.token_counter.count_tools(offer.definitions) if late_offer is not None and offer.names else 0
    times, strategies = lookups.find_origins(turn)
    dropped = state.decisions.dropped if state.decisions is not None else {}
    search_hits = turn.located.branch.lookups.search_hits
    retrieved = tuple(hit for hit in search_hits.texts if hit.key not in dropped) if search_hits is not None else ()
    notes = lookups.find_prompt_notes(turn)
    agent = services.known_agents.find(turn.tenant, turn.request)
    agent_faults = agent.sum_other_faults(turn.located.branch.live_session.session)
    lengths = agent.list_lengths() if turn.enriched.policy.predicted_rent else ()
    inputs = RewriteInputs(
        token_counter=turn.token_counter, keys=spliced.keys, strategy=turn.strategy, strategies=strategies,
        times=times, frozen=frozen, offered_tools=frozenset(offer.names), tool_tokens=late_tokens,
        sent_count=_count_sent(turn) if guards_sent else 0, hidden_keys=spliced.hidden_at,
        guarded_keys=splice_rounds.find_guarded_results(turn) if spliced.hidden_at else frozenset(),
        options=turn.options, retrieved_texts=retrieved, relevance=turn.enriched.relevance,
        agent_faults=agent_faults, conversation_lengths=lengths, **notes,
    )  # fmt: skip
    conversation = (spliced.request, state, turn.enriched.policy, turn.model, turn.started_at, inputs)

    def compute() -> Plan:
        plan = rewrite_remaining(*conversation) if dropped else rewrite(*conversation)
        if not spliced.added_tools and not spliced.hidden_at:
            return plan
        own_tokens = cost.count_own_tokens(turn)
        return msgspec.structs.replace(plan, before=own_tokens, after=own_tokens if plan.refusal else plan.after)

    if not _takes_long(turn):
        try:
            return _plan_on_loop(compute, is_short=_count_new_bytes(turn) <= MAX_UNCHECKED_BYTES)
        except _TakesLong:
            pass  # the facts that it has found are remembered with the messages
    return await _plan_in_time(services, compute, is_preview=turn.is_preview)


class _TakesLong(Exception):
    """A plan on the event loop takes longer than `MAX_LOOP_S`."""


def _plan_on_loop(compute: Callable[[], Plan], *, is_short: bool) -> Plan:
    """Make the plan on the event loop. Raises _TakesLong where it holds the loop for too long; is_short: it cannot."""
    if is_short:
        return compute()
    until = monotonic() + MAX_LOOP_S

    def check() -> None:
        if monotonic() > until:
            raise _TakesLong

    with cancellation_check(check):
        return compute()


def _count_sent(turn: Turn) -> int:
    """Number of the planned messages that were sent before, hidden ones included."""
    count = count_sent_messages(turn.request, turn.located.known_until)
    if not turn.enriched.spliced.hidden_at or count == 0:
        return count
    last_key = turn.keys[count - 1]
    return max(n for n, key in enumerate(turn.enriched.spliced.keys) if key == last_key) + 1


async def _plan_in_time(services: Services, compute: Callable[[], Plan], *, is_preview: bool) -> Plan:
    """Make the plan in a worker thread. Raises NotManaged if it takes too long: then the thread stops at its next
    checkpoint, since others wait for it. Facts that it has found until then are remembered with the messages.
    is_preview: a person looks at the plan, so it pauses from its beginning, and may take twice the time."""
    timer = PlanTimer(services.settings.limits.plan_ms / 1000 * (2 if is_preview else 1), pauses_at_once=is_preview)

    def work() -> Plan:
        timer.start()
        try:
            with cancellation_check(timer.check):
                return compute()
        except NotManaged:
            services.metrics.plans_stopped_total.inc()
            raise

    loop = asyncio.get_running_loop()
    try:
        return await asyncio.wait_for(loop.run_in_executor(services.workers, work), timer.allowed_s)
    except TimeoutError as problem:
        raise NotManaged("timeout", "planning took longer than limits.plan_ms") from problem
    finally:
        timer.stop()  # the client may have left, too


def _takes_long(turn: Turn) -> bool:
    """True if planning might hold the loop for longer than 20 ms."""
    sent_bytes, new_bytes = turn.located.branch.unstored.sent_bytes, _count_new_bytes(turn)
    new_messages = len(turn.keys) - turn.located.known_until
    is_large = sent_bytes + new_bytes > MAX_PLANNED_BYTES or new_bytes > MAX_NEW_BYTES
    return is_large or new_messages > MAX_NEW_MESSAGES


def _count_new_bytes(turn: Turn) -> int:
    return max(len(turn.request.body) - turn.located.branch.unstored.received_bytes, 0)


def _make_passthrough_plan(turn: Turn, state: BranchState) -> Plan:
    """Return the plan of `passthrough`: nothing changes, all sizes are known."""
    sizes = tuple(turn.token_counter.count_each(turn.request.messages))
    total = turn.token_counter.count_tools(turn.request.tools) + sum(sizes)
    marks = tuple(map(compute_unmarked_form, turn.request.messages))
    return msgspec.structs.replace(
        UNPLANNED, edits=state.edits, marks=marks, sizes=sizes, keys=turn.keys, before=total, after=total
    )
