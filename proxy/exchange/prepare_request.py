"""Prepare a request: find its conversation, look up what its plan may use, plan it, and store what must be stored.

New edits are on disk before they are used.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import msgspec

from proxy.chat import chain
from proxy.chat.message import PrefixCache, Request
from proxy.chat.tokens import TokenCounter
from proxy.context.models import Model, with_long_cache, with_user_first
from proxy.context.plan import Edit
from proxy.context.policy import Policy
from proxy.dialects.base import LONG_LIFETIME, NO_MARKS, WireRequest
from proxy.dialects.cloud_paths import add_path_values
from proxy.errors import StoreUnavailable
from proxy.exchange import (
    cost,
    exchange_rows,
    header_warnings,
    lookups,
    record_outcome,
    result_clearing,
    splice_rounds,
)
from proxy.exchange.dialect import DIALECTS, Dialect
from proxy.exchange.exchange_rows import MessageForms, erase_resent
from proxy.exchange.fallback import FallbackReason, count_fallback
from proxy.exchange.gateway_rows import choose_row_policy
from proxy.exchange.holdout import CONTROL_POLICY, Arm, find_arm
from proxy.exchange.inherit_state import inherit_state
from proxy.exchange.plan_request import MAX_NEW_BYTES, plan_request
from proxy.exchange.record_outcome import handle_lost_write, wait_until_stored
from proxy.exchange.services import LARGE_BODY_BYTES, Headers, Incoming, Services
from proxy.exchange.turn import Enriched, Turn
from proxy.helper.helper_client import lend_credential
from proxy.sessions import load_sessions, locate
from proxy.sessions.hidden_rounds import SplicedRequest
from proxy.sessions.stored_branch import adopt_stored_edits
from proxy.telemetry import CURRENT_TRACE
from proxy.upstream.client import Target

PLACE_S = 1.0
"""Seconds for which a request may keep others from being prepared. Some wait for a store or a helper that hangs."""
MAX_UNCOUNTED_CHARS = 32 * 1024
"""Characters that are counted on the event loop, not in a thread: 0.2 ms of most texts, 10 ms of the worst."""
MAX_NEW_OBJECTS = 1000
"""New objects or roles of a body that are read on the event loop, however short they are."""


class _Place:
    """A place among the requests that are prepared. It is given on once, by its holder or after PLACE_S.

    Only the last free place is given on by a timer, as every place is while others wait. To remove a timer takes a turn
    of the event loop."""

    __slots__ = ("_is_held", "_places", "_timer")

    def __init__(self, places: asyncio.Semaphore) -> None:
        self._places = places
        self._is_held = True
        is_last = places.locked()
        self._timer = asyncio.get_running_loop().call_later(PLACE_S, self.give_on) if is_last else None

    def give_on(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._is_held:
            self._is_held = False
            self._places.release()


async def prepare_request(services: Services, incoming: Incoming) -> tuple[Turn, Target]:
    """Prepare everything up to the bytes that go upstream, and store what has to be on disk before.

    A few requests are prepared at once, and others wait for their turn. Where hundreds come together, each would else
    wait for all others in every step of its way. Its reads of the store, or its plan, would take longer than they may,
    and nearly all requests would go out as received. Large bodies have places of their own: they wait for the worker
    threads, and others do not wait for them.

    Raises NotManaged if the request has to be passed on as received, and StoreUnavailable if the store cannot be asked
    for its session.
    """
    is_large = len(incoming.body) >= LARGE_BODY_BYTES
    places = services.preparing_large if is_large else services.preparing
    await places.acquire()
    place = _Place(places)
    try:
        return await _prepare(services, incoming)
    finally:
        place.give_on()


async def _prepare(services: Services, incoming: Incoming) -> tuple[Turn, Target]:
    """Do the work of `prepare_request` once the request has its place."""
    headers = locate.decode_headers(incoming.headers)
    turn, target = await _locate(services, incoming, headers)
    is_new_branch = not turn.located.branch.stored
    if not is_new_branch and turn.prefix_cache is not None and not turn.request.known_messages:
        services.metrics.message_cache_misses_total.inc()
    try:
        cached_without_proxy = cost.count_cached_without_proxy(turn)  # before the branch moves on to this request
        forms = exchange_rows.add_request_rows(services.live_sessions, turn, turn.started_at)
        async with turn.located.branch.planning:  # a retry gets the edits of the attempt before it
            turn = await _enrich(services, turn, incoming, headers, cached_without_proxy, is_new_branch=is_new_branch)
            turn = await plan_request(services, turn)
            turn = await _ask_helper(services, turn, incoming.headers)
            exchange_rows.clear_one_time_settings(turn)
            turn = await _commit(services, turn, forms)
        if turn.prompt.plan.notes:
            record_outcome.record_plan_metrics(services.metrics, turn.prompt.plan)
    except BaseException:
        # Memory has moved on, and may count rows as stored that are not: the next request reads it back.
        services.live_sessions.forget_session(turn.located.branch.live_session)
        raise
    return turn, target


async def _locate(services: Services, incoming: Incoming, headers: Mapping[str, str]) -> tuple[Turn, Target]:
    """Read the request, find its session and branch, and choose its upstream. headers: with lower-case names."""
    tenant = locate.find_tenant(headers, incoming.tenant, services.settings.identity)
    dialect, options = DIALECTS[incoming.dialect], read_options(headers)
    wire_request = await read_wire_request(services, dialect, incoming)
    request, prefix_cache, keys = await _read_request(
        services,
        incoming.body if wire_request is None else wire_request.chat_body,
        tenant,
        wire_request.canonical if wire_request is not None else (),
    )
    if not request.model:
        request = add_path_values(request, incoming.path)
    if (trace := CURRENT_TRACE.get()) is not None:
        trace.model = request.model
    target = services.client.route_request(incoming.path, request.model)
    model = _look_up_model(services, dialect, request.model)
    session_name = find_session_name(services, incoming, headers, request, wire_request)
    token_counter = services.find_token_counter(model)
    is_chosen = locate.is_chosen_name(incoming.session, headers)
    query = locate.SessionQuery(tenant, session_name, request, keys, may_be_fork=not is_chosen)
    await _count_tokens(services, token_counter, query)
    policy = lookups.find_policy(services, headers, target, dialect)
    warnings = _report_warnings(services, options) if options else ()
    located = await locate.locate_request(
        services.live_sessions,
        query,
        retry=headers.get("x-stainless-retry-count", "0") not in ("", "0"),
        known_session=(incoming.chain.history.session or None) if incoming.chain is not None else None,
        notes=lookups.expect_notes(services, policy, headers, is_named=bool(session_name)),
    )
    turn = Turn(
        id=locate.make_id(),
        tenant=tenant,
        located=located,
        request=request,
        keys=keys,
        model=model,
        upstream=target.name,
        strategy=target.strategy,
        token_counter=token_counter,
        started_at=services.now(),
        enriched=Enriched(policy, SplicedRequest(request, keys)),
        prefix_cache=prefix_cache,
        log_fields=incoming.log_fields,
        warnings=warnings,
        options=options,
        dialect=dialect,
        wire_request=wire_request,
        chain=incoming.chain,
        client_marks=dialect.breakpoints.read_client_marks(wire_request)
        if dialect.breakpoints is not None
        else NO_MARKS,
    )
    if _has_long_cache(turn):
        turn = turn.with_values(model=with_long_cache(model))
    return turn, target


def _look_up_model(services: Services, dialect: Dialect, name: str) -> Model:
    """The entry of the model, with the order of messages that the wire format demands."""
    model = lookups.look_up_model(services, name)
    return with_user_first(model, system_between=dialect.is_system_between) if dialect.is_user_first else model


def _report_warnings(services: Services, options: Mapping[str, str]) -> tuple[str, ...]:
    """Count and log the faults of a request's x-context-* headers. Return them."""
    warnings = header_warnings.find_warnings(options, services.policies)
    if warnings:
        header_warnings.report(warnings, services.logged_warnings, services.metrics)
    return warnings


async def read_wire_request(services: Services, dialect: Dialect, incoming: Incoming) -> WireRequest | None:
    """Read a request in its wire format; None for chat completions. Raises NotManaged."""
    reader = dialect.reader
    if reader is None:
        return None
    place_in_chain, body, cache = incoming.chain, incoming.body, services.message_cache
    read: Callable[[], WireRequest]
    new_bytes = len(body)
    if place_in_chain is not None and place_in_chain.is_held and reader.read_held is not None:
        read = partial(reader.read_held, body, cache.limits, place_in_chain.history.messages)
    elif reader.takes_path:
        address = f"{incoming.path}?{incoming.query.decode('latin-1')}"
        read = partial(reader.read, body, cache.limits, address)
    elif reader.continues_earlier:
        old = cache.find_prefix(body, dialect.name)
        read = partial(cache.read_wire_with_prefix, dialect.name, body, old, reader.read)
        new_bytes -= len(old or ())
    else:
        read = partial(reader.read, body, cache.limits)
    if new_bytes < MAX_NEW_BYTES:
        return read()
    return await asyncio.get_running_loop().run_in_executor(services.workers, read)


async def _read_request(
    services: Services, body: bytes, tenant: str, canonical: Sequence[bytes]
) -> tuple[Request, PrefixCache | None, Sequence[bytes]]:
    """Read the request, its remembered beginning, and its messages' chain keys, which are reused if they are known.
    canonical: the messages of a body that was written from another wire format."""
    old = services.message_cache.find_prefix(body)

    def read() -> tuple[Request, PrefixCache | None, Sequence[bytes]]:
        request, prefix_cache = services.message_cache.read_with_prefix(body, old, canonical)
        if prefix_cache is None:
            return request, None, chain.compute_keys(tenant, request.messages)
        keys_tenant, known_keys = prefix_cache.tenant_keys
        keys = tuple(chain.compute_keys(tenant, request.messages, known_keys if keys_tenant == tenant else ()))
        prefix_cache.tenant_keys = tenant, keys
        return request, prefix_cache, keys

    new_bytes = len(body) - len(old or ())
    # Each message has a bracket, and one character is counted in a third of the time of a word.
    if new_bytes < MAX_NEW_BYTES or (
        new_bytes < LARGE_BODY_BYTES
        and (body.count(b"{", -new_bytes) < MAX_NEW_OBJECTS or body.count(b'"role"', -new_bytes) < MAX_NEW_OBJECTS)
    ):
        return read()
    return await asyncio.get_running_loop().run_in_executor(services.workers, read)


async def _count_tokens(services: Services, token_counter: TokenCounter, query: locate.SessionQuery) -> None:
    """Count the tokens of every message, in a worker thread where there is much to count, or a vocabulary to be read
    first. A count that the session has is reused, even if the messages were dropped from the cache meanwhile."""
    request, keys = query.request, query.keys
    begin, _ = request.read_memo("counted", id(token_counter))
    indexes = token_counter.find_uncounted(request.messages, begin)
    live_session = locate.find_live_session(services.live_sessions, query) if indexes else None
    if live_session is not None:
        restore = live_session.restore_token_count
        indexes = [n for n in indexes if not restore(keys[n], request.messages[n], token_counter)]
    uncounted = [request.messages[n] for n in indexes]
    if uncounted and (
        id(token_counter) not in services.warm_counters or sum(len(m.raw) for m in uncounted) > MAX_UNCOUNTED_CHARS
    ):
        await asyncio.get_running_loop().run_in_executor(services.workers, token_counter.count_each, uncounted)
        services.warm_counters.add(id(token_counter))
    # Noted now, since others begin with the same messages meanwhile.
    request.memo_values["counted"] = request.messages, id(token_counter), True


def find_session_name(
    services: Services,
    incoming: Incoming,
    headers: Mapping[str, str],
    request: Request,
    wire_request: WireRequest | None,
) -> str | None:
    """The session that the client names: as all clients may name it, else as clients of its wire format do."""
    name = locate.find_session_name(incoming.session, headers, request, services.settings.identity)
    if name is None and wire_request is not None:
        candidates = DIALECTS[incoming.dialect].find_session_names(headers, wire_request)
        name = next(filter(None, map(locate.clean_session_name, candidates)), None)
    return name


def read_options(headers: Mapping[str, str]) -> dict[str, str]:
    """The x-context-* headers by the rest of their names, without those of the key, session and user."""
    prefix = "x-context-"
    options = {name.removeprefix(prefix): value.strip() for name, value in headers.items() if name.startswith(prefix)}
    return {name: value for name, value in options.items() if name not in ("key", "session", "user")}


def _has_long_cache(turn: Turn) -> bool:
    """True if the client pays for the longer lifetime of the provider's cache.

    Its last mark says so, unless the provider has reported a write for the shorter one. Without a mark in the request,
    the last reported write counts.
    """
    last_write_was_long = turn.located.branch.unstored.has_long_cache
    if not turn.client_marks.lifetime:
        return last_write_was_long is True
    return turn.client_marks.lifetime == LONG_LIFETIME and last_write_was_long is not False


async def _enrich(
    services: Services,
    turn: Turn,
    incoming: Incoming,
    headers: Mapping[str, str],
    cached_without_proxy: int,
    *,
    is_new_branch: bool,
) -> Turn:
    """Look up everything that the plan may use in addition to the request: decisions, state, search, hidden rounds,
    notes. cached_without_proxy: tokens that the provider's cache would hold without the proxy."""
    live_session = turn.located.branch.live_session
    decisions = services.live_sessions.find_decisions(live_session, is_new=turn.located.is_new)
    if decisions is None:
        decisions = await load_sessions.refresh_decisions(services.live_sessions, live_session)
    if decisions.removed:
        erase_resent(turn, decisions.removed)
    requested = headers.get("x-context-policy", "")
    policy = lookups.choose_policy(services, turn.enriched.policy, decisions, requested)
    policy, arm, warning = _adapt_policy(services, turn, policy, requested)
    turn = turn.with_lookups(
        policy=policy,
        arm=arm,
        cached_without_proxy=cached_without_proxy,
        is_kept_warm=turn.located.branch.unstored.pinged_at is not None and cost.is_kept_warm(turn),
    )
    if warning:
        turn = turn.with_values(warnings=(*turn.warnings, warning))
    if is_new_branch:
        await inherit_state(services, turn, decisions.dropped)
    task = lookups.find_task(turn)
    lookups.pin_task(turn, task)
    await lookups.search_store(services, turn, task)
    relevance = lookups.find_relevance(services, turn, task, incoming.headers)
    if relevance is not None:
        turn = turn.with_lookups(relevance=relevance)
    is_first = is_new_branch and turn.located.relation == "main"
    if turn.request.tools is not None or turn.located.branch.tool_offer is not None:
        turn = await splice_rounds.add_rounds_and_tools(services, turn, first=is_first)
    await lookups.load_notes(services, turn, task, lookups.find_project(services.settings, headers))
    return turn


def _adapt_policy(services: Services, turn: Turn, policy: Policy, requested: str) -> tuple[Policy, Arm, str]:
    """Return (the policy that the chain, the experiment, the provider and the wire format allow; the arm; a warning or
    ""). requested: the policy that the request names."""
    arm: Arm = ""
    warning = ""
    if turn.chain is not None and turn.chain.unchanged_reason:
        policy = services.policies[CONTROL_POLICY]
    if services.settings.experiment.control:
        arm = find_arm(services, turn, policy, requested)
    if arm == "control":
        policy = services.policies[CONTROL_POLICY]
    if policy.schedule == "provider":
        policy, warning = result_clearing.choose_provider_policy(services, turn, policy)
    policy = _choose_bound_policy(services, turn, policy)
    if turn.dialect.returns_rows:
        policy = choose_row_policy(services, policy)
    return policy, arm, warning


def _choose_bound_policy(services: Services, turn: Turn, policy: Policy) -> Policy:
    """The policy of a request whose model binds its reasoning to the prompt: nothing that was sent once may change.

    A literal policy changes old messages with every request. `thrifty` takes its place.
    """
    if policy.mode != "rewrite" or not turn.is_bound or policy.schedule == "provider":
        return policy
    if policy.literal:
        thrifty = services.policies.get("thrifty", replace(policy, stages=(), injections=()))
        policy = replace(thrifty, stands_for=policy.name)
    return replace(policy, schedule="append_only")


async def _ask_helper(services: Services, turn: Turn, headers: Headers) -> Turn:
    """Ask the plan's questions. Wait for an answer that is needed now as long as allowed, and plan again."""
    helper_queue = services.helper_queue
    if helper_queue is None or not turn.prompt.plan.asks or turn.enriched.policy.mode != "rewrite":
        return turn
    branch = turn.located.branch
    headers = lend_credential(services.client, turn.upstream, services.settings.helper.upstream, headers)
    waiting = helper_queue.submit_asks(branch, turn.prompt.plan.asks, headers)
    if not waiting or not services.settings.helper.wait_ms:
        return turn
    if turn.pending.rows and services.settings.store.persist != "required":
        _store_rows(services, turn)  # stored even if the client leaves meanwhile: a later request takes them for stored
    if await helper_queue.wait_for_answer(waiting):
        turn = await plan_request(services, turn)
        helper_queue.submit_asks(branch, turn.prompt.plan.asks, headers)
    return turn


async def _commit(services: Services, turn: Turn, forms: MessageForms) -> Turn:
    """Store the known rows before upstream is asked. Return the turn as it is to be sent.

    New edits wait to be durable, for `limits.commit_wait_ms` at most (250 ms by default). So they are repeated after a
    crash, or by another replica, and never decided again. If the store does not answer, the request goes out without
    them. Literal policies are an exception: they decide again with every request. Their edits are stored with the
    exchange, which marks them as its own.

    Raises StoreUnavailable if storing is required and does not succeed.
    """
    policy = turn.enriched.policy
    new_edits: tuple[Edit, ...] = ()
    if policy.mode == "rewrite":
        new_edits = turn.prompt.plan.new_edits
        exchange_rows.add_edit_rows(turn, turn.started_at)
    required = services.settings.store.persist == "required"
    waits = required or (new_edits and (services.store.shared or not policy.literal))
    if waits and not await _store_edits(services, turn, new_edits):
        if required:
            raise StoreUnavailable("what the request needs could not be stored in time")
        if not policy.literal:
            turn = await _plan_without_edits(services, turn, new_edits)
            new_edits = ()
    if new_edits:
        _apply_edits(services, turn, new_edits)
        turn = await _adopt_stored_edits(services, turn, new_edits)
    # A row by itself: it has to say with which edits the request went out.
    exchange_rows.add_exchange_rows(turn, forms, turn.started_at)
    _store_rows(services, turn)
    return turn


async def _store_edits(services: Services, turn: Turn, new_edits: Sequence[Edit]) -> bool:
    """Store the known rows. Return True if they are durable in time."""
    written = _store_rows(services, turn, waited=True)
    try:
        return await wait_until_stored(services, written)
    except asyncio.CancelledError:
        _apply_edits(services, turn, new_edits)  # they are on their way to the store: a retry that waits has them too
        raise


async def _plan_without_edits(services: Services, turn: Turn, new_edits: Sequence[Edit]) -> Turn:
    """Plan the turn without these new edits, which the store did not take in time."""
    services.metrics.replans_total.labels(reason="edits_not_stored").inc()
    turn = await plan_request(services, turn, frozen=True)
    if turn.prompt.fallback is None:
        count_fallback(services, FallbackReason.STORE)
        turn = turn.with_prompt(fallback=FallbackReason.STORE)
    exchange_rows.add_undone_rows(turn, new_edits, turn.started_at)
    return turn


def _apply_edits(services: Services, turn: Turn, new_edits: Sequence[Edit]) -> None:
    """Put the plan's edits in force: they are stored, or on their way."""
    if not new_edits:
        return
    for stage, count in Counter(edit.stage for edit in new_edits).items():
        services.metrics.edits_total.labels(stage=stage).inc(count)
    turn.located.branch.state = turn.located.branch.state.with_edits(turn.prompt.plan)


async def _adopt_stored_edits(services: Services, turn: Turn, new_edits: Sequence[Edit]) -> Turn:
    """Use the edits that the store has, where other processes write to it too. Of two decisions on the same message at
    once, the first one counts."""
    if not services.store.shared:
        return turn
    branch = turn.located.branch
    try:
        async with asyncio.timeout(services.settings.limits.commit_wait_ms / 1000):
            stored = await services.store.read_edits(*branch.id)
    except (TimeoutError, StoreUnavailable):
        services.metrics.internal_errors_total.labels(where="edits").inc()
        return turn  # they are stored, and two replicas are hardly ever at the same message at once
    own = {edit.key: turn.prompt.plan.edits[edit.key] for edit in new_edits if edit.key in turn.prompt.plan.edits}
    if adopt_stored_edits(branch, stored, own) and not turn.enriched.policy.literal:
        services.metrics.replans_total.labels(reason="edited_elsewhere").inc()
        turn = await plan_request(services, turn, frozen=True)
        branch.state = branch.state.with_edits(turn.prompt.plan)
    return turn


def _store_rows(services: Services, turn: Turn, *, waited: bool = False) -> asyncio.Future[None]:
    """Give the turn's rows to the store; if they are lost, the session is forgotten and read back. waited: the caller
    waits for the rows. Others are on disk with the answer, or a moment later if the answer is late."""
    rows = turn.pending.take()
    written = turn.pending.write = services.store.put(rows) if waited else services.store.put_deferred(rows)
    written.add_done_callback(lambda done: handle_lost_write(services, turn, done))
    return written


async def replan_refused(services: Services, turn: Turn) -> Turn | None:
    """Plan a refused turn once more, as its own exchange: more is known of its window now. None if there is no
    other body to send; then nothing has changed."""
    branch = turn.located.branch
    state = branch.state
    # The provider caches nothing of a prompt that it refuses.
    branch.state = msgspec.structs.replace(state, sent_marks=(), sent_sizes=(), sent_at=None)
    replanned = await plan_request(services, turn)
    prompt = replanned.prompt
    if prompt.outgoing == turn.prompt.outgoing or prompt.observed or prompt.fallback is not None:
        branch.state = state
        return None
    services.metrics.replans_total.labels(reason="too_long").inc()
    record_outcome.store_in_background(services, turn, [record_outcome.make_refused_row(services, turn)])
    replanned = replanned.with_values(id=locate.make_id())
    forms = exchange_rows.add_request_rows(services.live_sessions, replanned, services.now())
    return await _commit(services, replanned, forms)
