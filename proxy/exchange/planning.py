"""Make a plan of a request, off the event loop where it takes long. New edits are on disk before they are used."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from proxy.chat import key
from proxy.chat.checkpoint import checked
from proxy.chat.dialects.completions import write_request
from proxy.chat.message import Front, Request
from proxy.chat.tokens import Weigh
from proxy.context.pipeline import rewrite
from proxy.context.plan import Edit, Plan
from proxy.context.policy import Policy
from proxy.context.prices import Model, find_model
from proxy.context.room import room_for
from proxy.context.session import Session
from proxy.context.steered import kept
from proxy.errors import NotManaged, StoreUnavailable
from proxy.exchange import (
    background,
    finish,
    header_warnings,
    identify,
    money,
    opening,
    recollect,
    record,
    weaving,
    windows,
)
from proxy.exchange.finish import lost, stored
from proxy.exchange.inherit import inherit
from proxy.exchange.parts import Headers, Incoming, Parts
from proxy.exchange.record import Forms
from proxy.exchange.steering import blanking, keeping
from proxy.exchange.thread import Thread, adopt
from proxy.exchange.turn import EMPTY, Turn
from proxy.upstream.client import Target

log = logging.getLogger(__name__)

LARGE = 256 * 1024
"""Bytes of a body from which it is read in a worker thread: the loop must not be held for 20 ms."""
UNCOUNTED = 16 * 1024
"""Characters not counted yet from which counting goes to a worker thread."""
UNREAD = 384 * 1024
"""Bytes of a prompt in which edits can be made, from which planning goes to a worker thread. They are the bytes that
went out last time and the new ones. An old edit is only repeated, which takes a microsecond a message."""
NEW = 64 * 1024
"""Bytes that no plan has read yet, from which planning goes to a worker thread: dense text takes 0.2 ms a KB, once."""
MANY = 1000
"""New messages from which a body is read in a worker thread, however short they are."""
NEW_MESSAGES = 200
"""Messages that no plan has read yet, from which planning goes to a worker thread."""

NAMES = 1000
"""Model names whose entry is remembered."""


async def prepare(parts: Parts, incoming: Incoming) -> tuple[Turn, Target]:
    """Prepare everything up to the bytes that go upstream, stored as far as it must be.

    Raises NotManaged if the request has to go on as it came, StoreUnavailable if the store cannot tell its session.
    """
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in incoming.headers}
    tenant = incoming.tenant or identify.tenant_of(headers, parts.settings.identity.salt.get_secret_value())
    request, front, keys = await _read(parts, incoming.body, tenant)
    target = parts.client.route(request.model)
    model = model_of(parts, request.model)
    named = identify.session_name(incoming.session, headers, request, parts.settings.identity)
    weigh = parts.weigh(model)
    await _count(parts, weigh, request, keys, tenant, named)
    retry = headers.get("x-stainless-retry-count", "0") not in ("", "0")
    place = await identify.identify(parts.threads, tenant, named, request, keys, retry=retry)
    asked = options(headers)
    warnings = header_warnings.find_warnings(asked, parts.policies)
    header_warnings.log_once(warnings, parts.told)
    turn = Turn(
        id=identify.new_id(),
        tenant=tenant,
        place=place,
        request=request,
        keys=keys,
        policy=policy_of(parts, headers, target),
        model=model,
        upstream=target.name,
        strategy=target.strategy,
        weigh=weigh,
        began=parts.now(),
        front=front,
        facts=incoming.facts,
        warnings=warnings,
        options=asked,
    )
    try:
        turn.resent = money.resent(turn)
        new = not place.thread.stored
        forms = record.ingest(parts.threads, turn, turn.began)
        steered = await keeping.refresh(parts, place.thread.memory)
        blanking.silence(turn, steered.removed)
        turn.policy = keeping.policy_for(parts, turn.policy, steered, headers.get("x-context-policy", ""))
        await inherit(parts, turn, steered.dropped, first=new)
        background.pin(turn)
        await background.search(parts, turn)
        turn.relevance = background.relevance(parts, turn, incoming.headers)
        await weaving.dress(parts, turn, first=new and place.kind == "main")
        await recollect.recollect(parts, turn, recollect.project_of(parts.settings, headers))
        await decide(parts, turn)
        await _consult(parts, turn, incoming.headers)
        turn.rows += keeping.used(turn)
        await _commit(parts, turn, forms)
        background.measure(parts.metrics, turn.plan)
    except BaseException:
        # Memory has moved on, and may count rows as stored that are not: the next request reads it back.
        parts.threads.forget(place.thread.memory)
        raise
    return turn, target


def options(headers: Mapping[str, str]) -> dict[str, str]:
    """The x-context-* headers of a request, by the rest of their names; without those that name its key, session or
    user."""
    start = "x-context-"
    own = {name.removeprefix(start): value.strip() for name, value in headers.items() if name.startswith(start)}
    return {name: value for name, value in own.items() if name not in ("key", "session", "user")}


async def _read(parts: Parts, body: bytes, tenant: str) -> tuple[Request, Front | None, Sequence[bytes]]:
    """Read the request, its remembered beginning, and the chain keys of its messages. Keys that are known from an
    earlier request are reused."""

    def read() -> tuple[Request, Front | None, Sequence[bytes]]:
        request, front = parts.messages.request(body)
        if front is None:
            return request, None, key.chain(tenant, request.messages)
        keys = key.chain(tenant, request.messages, front.keys if front.chain == tenant else ())
        front.chain, front.keys = tenant, tuple(keys)
        return request, front, front.keys

    new = parts.messages.unknown(body)
    if new < NEW or (new < LARGE and body.count(b'"role"', -new) < MANY):
        return read()
    return await asyncio.get_running_loop().run_in_executor(parts.workers, read)


async def _count(
    parts: Parts, weigh: Weigh, request: Request, keys: Sequence[bytes], tenant: str, named: str | None
) -> None:
    """Count the tokens of every message, in a worker thread where there is much to count, or a vocabulary to be read
    first. A count that the session has is reused, even if the messages were dropped from the cache meanwhile."""
    begin, _ = request.noted("counted", id(weigh))
    new = [n for n in range(begin, len(keys)) if not weigh.known(request.messages[n])]
    memory = identify.remembered(parts.threads, tenant, named, request, keys) if new else None
    if memory is not None:
        new = [n for n in new if not memory.tell(keys[n], request.messages[n], weigh)]
    uncounted = [request.messages[n] for n in new]
    if uncounted and (id(weigh) not in parts.warm or sum(len(m.raw) for m in uncounted) > UNCOUNTED):
        await asyncio.to_thread(lambda: [weigh(m) for m in uncounted])
        parts.warm.add(id(weigh))
    request.grown("counted", lambda *_: True, id(weigh))  # now, since others begin with the same messages meanwhile


def policy_of(parts: Parts, headers: Mapping[str, str], target: Target) -> Policy:
    """The policy that the request names, else its upstream's, else the one of the settings."""
    wanted = headers.get("x-context-policy", "")
    if wanted and wanted not in parts.policies:
        parts.metrics.swallowed_total.labels(where="unknown_policy").inc()
    return parts.policies.get(wanted) or parts.policies[target.policy or parts.settings.policy]


def model_of(parts: Parts, name: str) -> Model:
    """The entry of the model. Patterns are tried once for each name; clients choose the names, so 1,000 are
    remembered."""
    found = parts.found.get(name)
    if found is None:
        if len(parts.found) >= NAMES:
            parts.found.clear()
        found = parts.found[name] = find_model(parts.models, name)
    return found


async def decide(parts: Parts, turn: Turn, *, frozen: bool = False) -> None:
    """Plan the turn and make the body to send. If planning fails, the turn goes on with the body as it came, and is
    stored as any other."""
    state = standing(parts, turn)
    # A stopped thread goes on as it comes while it fits its window. The upstream may have refused its old edits, or the
    # request for usage.
    stopped = state.stopped is not None
    rewriting = turn.policy.mode == "rewrite"
    try:
        if turn.policy.mode == "passthrough":
            turn.plan = _measured(turn, state)
        else:
            turn.plan = await planned(parts, turn, state, frozen=frozen)
            rewriting = rewriting and not (stopped and turn.plan.messages is None)
    except Exception as problem:  # P4: a stage may be third-party code; counted and logged, and the original goes out
        turn.fallback = problem.reason if isinstance(problem, NotManaged) else "error"
        parts.metrics.bypasses_total.labels(reason=turn.fallback).inc()
        if not isinstance(problem, NotManaged):
            parts.metrics.swallowed_total.labels(where="plan").inc()
            log.exception("planning failed; the request goes on as it came")
        turn.plan, rewriting = _measured(turn, state), False
    if not rewriting:
        room = room_for(turn.request, turn.policy, turn.model, state.limit)
        turn.plan = replace(turn.plan, limit=room.limit if room is not None else None)
        turn.observed, turn.body = True, turn.request.body
        turn.rehearsed = turn.policy.mode == "observe" and turn.fallback is None and not turn.plan.refused
        weaving.bare(turn)
        return
    plan = turn.plan
    if plan.refused:
        turn.fallback = f"rule {plan.refused}"
        parts.metrics.refusals_total.labels(rule=plan.refused).inc()
        weaving.bare(turn)
    weaving.settle(parts, turn)
    turn.observed = False
    turn.usage_added = turn.request.stream and not (turn.request.usage_wanted or stopped)
    try:
        turn.body = write_request(turn.woven.request, plan.messages, ask_usage=turn.usage_added)
    except ValueError:  # stream_options is no object: upstream will report it, in its own words
        turn.usage_added = False
        turn.body = write_request(turn.woven.request, plan.messages)


def standing(parts: Parts, turn: Turn) -> Session:
    """The state of the turn's thread, with the operator's decisions and the window that its upstream has named."""
    thread = turn.place.thread
    state = rehearsal(thread) if turn.policy.mode == "observe" else thread.state
    state = state.under(literal=turn.policy.literal).before(turn.head)
    if thread.memory.steered is not None and state.stopped is None:
        state = thread.memory.steered.put_into(state, side=thread.kind == "side")
    if (limit := windows.named(parts, turn.upstream, turn.request.model)) is not None:
        state = replace(state, limit=limit)
    return state


def rehearsal(thread: Thread) -> Session:
    """A thread's state as it would be if the prompts that were only planned had gone out."""
    state, played = thread.state, thread.rehearsal
    if played is None or state.stopped is not None:
        return state
    return replace(
        played, pins=state.pins, states=state.states, answers=state.answers, drift=state.drift, served=state.served
    )


async def _consult(parts: Parts, turn: Turn, headers: Headers) -> None:
    """Ask the plan's questions in the background. If an answer is needed now, wait as long as the settings allow, and
    plan again with it."""
    asking = parts.asking
    if asking is None or not turn.plan.asks or turn.policy.mode != "rewrite":
        return
    thread = turn.place.thread
    waiting = asking.take(thread, turn.plan.asks, headers)
    if not waiting or not parts.settings.helper.wait_ms:
        return
    if turn.rows and parts.settings.store.persist != "required":
        _put(parts, turn)  # stored even if the client leaves meanwhile: a later request takes them for stored
    if await asking.answered(waiting):
        await decide(parts, turn)
        asking.take(thread, turn.plan.asks, headers)


async def planned(parts: Parts, turn: Turn, state: Session, *, frozen: bool) -> Plan:
    """Return the plan of a turn at its time; the state is not changed. Raises NotManaged if it takes too long."""
    woven = turn.woven
    coming = turn.pending or turn.offer
    toll = turn.weigh.head(coming.definitions) if turn.pending else 0
    (times, strategies), found = background.origins(turn), turn.place.thread.found
    dropped = state.steering.dropped if state.steering is not None else {}
    hits = tuple(one for one in found[1] if one.key not in dropped) if found is not None else ()
    told = recollect.told(turn)
    question = opening.asked(turn, state, hits, told) if not frozen else None
    known = opening.known(turn, question)
    if known is not None:
        return known

    def plan() -> Plan:
        left = kept(
            woven.request, woven.keys, state, turn.policy, turn.model, turn.weigh, turn.strategy, hidden=woven.hidden
        )
        made = rewrite(
            left.request, left.session, turn.policy, turn.model, turn.began,
            weigh=turn.weigh, keys=left.keys, strategy=turn.strategy, strategies=left.pick(strategies), frozen=frozen,
            offered=frozenset(coming.names), guarded=weaving.guarded(turn), toll=toll,
            options=turn.options, times=left.pick(times), found=hits, relevance=turn.relevance,
            elsewhere=parts.faults.elsewhere(turn.tenant, state),
            **told,
        )  # fmt: skip
        return left.completed(made)

    made = await _in_time(parts, plan) if _takes_long(turn) else plan()
    opening.note(turn, question, made)
    return made


def _is_as_it_came(turn: Turn) -> bool:
    return turn.observed or turn.fallback is not None


async def replan(parts: Parts, turn: Turn) -> bool:
    """Plan a refused turn once more, as an exchange of its own: more is known of its window now. True if there is
    another body to send; else nothing has changed."""
    thread = turn.place.thread
    before = turn.plan, turn.body, turn.fallback, turn.observed, turn.usage_added, turn.woven, turn.offer
    state, sent = thread.state, turn.body
    # The provider caches nothing of a prompt that it refuses.
    thread.state = replace(state, sent=(), sizes=(), sent_at=None)
    turn.fallback = None
    await decide(parts, turn)
    if turn.body == sent or _is_as_it_came(turn):
        turn.plan, turn.body, turn.fallback, turn.observed, turn.usage_added, turn.woven, turn.offer = before
        thread.state = state
        return False
    finish.later(parts, turn, [finish.refused(parts, turn, "the prompt was too long; planned once more")])
    turn.id = identify.new_id()
    forms = record.ingest(parts.threads, turn, parts.now())
    await _commit(parts, turn, forms)
    return True


async def _in_time(parts: Parts, plan: Callable[[], Plan]) -> Plan:
    """Make the plan in a worker thread. Raises NotManaged if it takes too long: then the thread stops at its next
    checkpoint, since others wait for it. Facts that it has found until then are remembered with the messages."""
    allowed = parts.settings.limits.plan_ms / 1000
    stop = threading.Event()
    until = time.monotonic() + allowed

    def check() -> None:
        if stop.is_set() or time.monotonic() > until:
            raise NotManaged("timeout", "planning took longer than limits.plan_ms")

    def work() -> Plan:
        try:
            with checked(check):
                return plan()
        except NotManaged:
            parts.metrics.plans_stopped_total.inc()
            raise

    try:
        return await asyncio.wait_for(asyncio.get_running_loop().run_in_executor(parts.workers, work), allowed)
    except TimeoutError as problem:
        raise NotManaged("timeout", "planning took longer than limits.plan_ms") from problem
    finally:
        stop.set()  # the client may have left, too


def _takes_long(turn: Turn) -> bool:
    """True if planning might hold the loop for longer than 20 ms."""
    came, went = turn.place.thread.sizes
    new = max(len(turn.request.body) - came, 0)
    return went + new > UNREAD or new > NEW or len(turn.keys) - turn.place.at > NEW_MESSAGES


def _measured(turn: Turn, state: Session) -> Plan:
    """Return the plan of `passthrough`: nothing changes, all sizes are known."""
    sizes = tuple(turn.weigh(m) for m in turn.request.messages)
    total = turn.weigh.head(turn.request.tools) + sum(sizes)
    marks = tuple(m.form for m in turn.request.messages)
    return replace(EMPTY, edits=state.edits, marks=marks, sizes=sizes, keys=turn.keys, before=total, after=total)


async def _commit(parts: Parts, turn: Turn, forms: Forms) -> None:
    """Store the known rows before upstream is asked.

    New edits wait to be durable, for `limits.commit_wait_ms` at most (250 ms by default). So they are repeated after a
    crash, or by another replica, and never decided again. If the store does not answer, the request goes out without
    them. Literal policies are an exception: they decide again with every request. Their edits are stored with the
    exchange, which marks them as its own.

    Raises StoreUnavailable if storing is required and does not succeed.
    """
    required = parts.settings.store.persist == "required"
    new = turn.plan.new if turn.policy.mode == "rewrite" else ()
    if turn.policy.mode == "rewrite":
        record.edited(turn, turn.began)
    if not (required or (new and (parts.store.shared or not turn.policy.literal))):
        _edited(parts, turn, new)
        record.exchanged(turn, forms, turn.began)
        _put(parts, turn)
        return
    # The exchange's row follows by itself: it has to say with which edits the request went out.
    written = _put(parts, turn, waited=True)
    if not await stored(parts, written):
        if required:
            raise StoreUnavailable("what the request needs could not be stored in time")
        if not turn.policy.literal:
            parts.metrics.bypasses_total.labels(reason="edits_not_stored").inc()
            turn.fallback = "store"
            await decide(parts, turn, frozen=True)
            record.undone(turn, new, turn.began)
            record.exchanged(turn, forms, turn.began)
            _put(parts, turn)
            return
    _edited(parts, turn, new)
    if new:
        await _agree(parts, turn, new)
    record.exchanged(turn, forms, turn.began)
    _put(parts, turn)


def _edited(parts: Parts, turn: Turn, new: Sequence[Edit]) -> None:
    """Put the plan's edits in force: they are stored, or on their way."""
    for stage, count in Counter(edit.stage for edit in new).items():
        parts.metrics.edits_total.labels(stage=stage).inc(count)
    if new:
        turn.place.thread.state = turn.place.thread.state.with_edits(turn.plan)


async def _agree(parts: Parts, turn: Turn, new: Sequence[Edit]) -> None:
    """Use the edits that the store has, where other processes write to it too. Of two decisions on the same message at
    once, the first one counts."""
    if not parts.store.shared:
        return
    thread = turn.place.thread
    try:
        async with asyncio.timeout(parts.settings.limits.commit_wait_ms / 1000):
            stored = await parts.store.edits(*thread.id)
    except (TimeoutError, StoreUnavailable):
        parts.metrics.swallowed_total.labels(where="edits").inc()
        return  # they are stored, and two replicas are hardly ever at the same message at once
    mine = {edit.key: turn.plan.edits[edit.key] for edit in new if edit.key in turn.plan.edits}
    if adopt(thread, stored, mine) and not turn.policy.literal:
        parts.metrics.bypasses_total.labels(reason="edited_elsewhere").inc()
        await decide(parts, turn, frozen=True)
        thread.state = thread.state.with_edits(turn.plan)


def _put(parts: Parts, turn: Turn, *, waited: bool = False) -> asyncio.Future[None]:
    """Give the turn's rows to the store; if they are lost, the session is forgotten and read back. waited: the caller
    waits for the rows. Others are on disk with the answer, or a moment later if the answer is late."""
    rows, turn.rows = turn.rows, []
    written = turn.written = parts.store.put(rows) if waited else parts.store.later(rows)
    written.add_done_callback(lambda done: lost(parts, turn, done))
    return written
