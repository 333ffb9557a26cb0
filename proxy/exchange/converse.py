"""One request from end to end: plan, send, relay, store.

The promise that shapes this file: a request never fails because of the proxy. If anything goes wrong before the first
byte has reached the client, its original bytes go upstream. A header and a counter give the reason.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import msgspec

from proxy.chat.size_limits import find_model
from proxy.errors import (
    AnswerTooLong,
    ClientGone,
    NotManaged,
    StoreUnavailable,
    Unavailable,
    UpstreamBroken,
    UpstreamError,
    UpstreamTimeout,
)
from proxy.exchange import ahead, announcing, finish, identify, reflecting, weaving, windows
from proxy.exchange.parts import Headers, Incoming, Outgoing, Parts
from proxy.exchange.planning import LARGE, prepare, rehearsal, replan
from proxy.exchange.rounds import Rounds, beating, pump
from proxy.exchange.steering import inband
from proxy.exchange.turn import Turn
from proxy.memory import state as grammar
from proxy.memory.state import Block
from proxy.store.base import GapRow, Outcome
from proxy.stream.assemble import Answer
from proxy.stream.relay import Relay
from proxy.stream.withhold import without_blocks
from proxy.upstream.client import Reply, Target

log = logging.getLogger(__name__)

ERROR_BODY = 1 << 20
"""Bytes of an upstream's error that are read, so that the error can still be passed on."""
TOO_LONG = (400, 413, 422)
"""Statuses with which upstreams refuse a prompt that does not fit."""


class _Model(msgspec.Struct):
    model: str = ""


async def converse(parts: Parts, incoming: Incoming, out: Outgoing) -> None:
    """Answer one chat request. Raises UpstreamError while nothing has been sent to the client yet; after that the
    answer is ended here. Cancelled when the client leaves."""
    parts.open += 1
    try:
        await _converse(parts, incoming, out)
    finally:
        parts.open -= 1


async def _converse(parts: Parts, incoming: Incoming, out: Outgoing) -> None:
    began = parts.now()
    if _is_off(incoming):
        await forward(parts, incoming, out, "off")
        return
    if incoming.unmanaged:
        await forward(parts, incoming, out, incoming.unmanaged)
        return
    if parts.settings.commands.in_band:
        taken = await inband.take(parts, incoming)
        if taken.line is not None:
            await inband.answer(parts, taken, out)
            return
        incoming = taken.incoming
    try:
        turn, target = await prepare(parts, incoming)
    except NotManaged as reason:
        await forward(parts, incoming, out, reason.reason)
        return
    except StoreUnavailable as problem:
        if parts.settings.store.persist == "required":
            raise Unavailable("the store is not available", hint="Try again later.") from problem
        _unstored(parts, incoming)
        await forward(parts, incoming, out, "store")
        return
    except Exception:  # P4: no fault of ours may fail a request that would have worked without us; counted and logged
        parts.metrics.swallowed_total.labels(where="prepare").inc()
        log.exception("planning failed; the request goes on as it came")
        await forward(parts, incoming, out, "error")
        return
    own = parts.now() - began
    await _answer(parts, turn, target, incoming, out)
    parts.metrics.request_seconds.labels(route="chat").observe(own)
    ahead.later(parts, turn, incoming.headers)


def _unstored(parts: Parts, incoming: Incoming) -> None:
    """Record that nothing of this request will be stored; the row is written as soon as the store can be reached."""
    tenant, session = identify.owner(incoming.headers, incoming.tenant, incoming.session, parts.settings.identity)
    parts.store.later([GapRow(tenant, session, "", len(incoming.body), "store not readable", parts.now())])


def _is_off(incoming: Incoming) -> bool:
    return any(name == b"x-context-off" and value.strip() not in (b"", b"0") for name, value in incoming.headers)


async def forward(parts: Parts, incoming: Incoming, out: Outgoing, reason: str) -> None:
    """Send the client's bytes upstream and upstream's bytes back, with the reason in a header."""
    parts.metrics.bypasses_total.labels(reason=reason).inc()
    incoming.facts["fallback"] = reason
    announcing.passed(parts, incoming, reason)
    target = parts.client.route(await _model(parts, incoming.body) or None)
    headers, body = incoming.encoded or (incoming.headers, incoming.body)
    reply = await parts.client.send(
        target, incoming.method, incoming.path, incoming.query, headers, body, identity=False
    )
    try:
        await out.start(reply.status, [*reply.headers, (b"x-context-fallback", reason.encode())])
        async for data in reply.chunks():
            await out.write(data)
        await out.end()
    except (UpstreamBroken, UpstreamTimeout) as problem:
        _truncated(parts, target.name, problem.code)
        await out.abort()
    finally:
        await reply.close()


def _truncated(parts: Parts, upstream: str, code: str) -> None:
    """Count and log that an upstream's answer ended before it was complete."""
    parts.metrics.upstream_truncated_total.inc()
    log.warning("upstream %s broke off its answer: %s", upstream, code)


async def _model(parts: Parts, body: bytes) -> str:
    """Return the model by which a body is routed; "" where the body names none, or there is only one upstream."""
    if len(parts.client.targets) == 1:
        return ""
    if len(body) >= LARGE:  # decoding it may take 200 ms, in which no other thread can run
        found = await asyncio.get_running_loop().run_in_executor(parts.workers, find_model, body)
        body = b'{"model":%b}' % (found or b"null")
    try:
        return msgspec.json.decode(body, type=_Model).model
    except (ValueError, RecursionError):
        return ""  # no model can be read: the first upstream, as for any other path


async def _answer(parts: Parts, turn: Turn, target: Target, incoming: Incoming, out: Outgoing) -> None:
    """Send the plan and relay the answer; the end of the exchange is recorded in every case."""
    sent_at = parts.now()
    try:
        reply = await _send(parts, turn, target, incoming)
    except UpstreamError as problem:
        finish.later(parts, turn, finish.learnt(parts, turn, None, (), "failed", problem.status, note=problem.code))
        raise
    except (asyncio.CancelledError, ClientGone):
        _gone(parts, turn, None, ())
        raise
    waited = parts.now() - sent_at
    announcing.sent(parts, turn)
    parts.metrics.first_token_seconds.labels(upstream=parts.metrics.label("upstream", target.name)).observe(waited)
    rounds = Rounds(parts, turn, target, incoming) if turn.offer.names else None
    try:
        if not (reply.content_type.startswith("text/event-stream") and not reply.encoding and reply.status == 200):
            await _whole(parts, turn, reply, out, waited * 1000, rounds)
        elif rounds is None:
            await _stream(parts, turn, reply, out, waited * 1000)
        else:
            async with beating(out) as heard:
                await _stream(parts, turn, reply, heard, waited * 1000, rounds)
    finally:
        await reply.close()


async def _send(parts: Parts, turn: Turn, target: Target, incoming: Incoming) -> Reply:
    """Send the plan's bytes upstream. A 400 to rewritten bytes is answered with one resend of the original."""

    async def ask(body: bytes) -> Reply:
        return await parts.client.send(target, incoming.method, incoming.path, incoming.query, incoming.headers, body)

    reply = await ask(turn.body)
    _sent(parts, turn, incoming)
    if reply.status in TOO_LONG and await _is_too_long(parts, turn, incoming, reply) and await _replanned(parts, turn):
        await reply.close()
        reply = await ask(turn.body)
        _sent(parts, turn, incoming)
    if reply.status == 400 and turn.body != incoming.body:
        await reply.close()
        turn.usage_added = False
        weaving.bare(turn)
        reply = await ask(incoming.body)
        turn.fallback = "upstream_reject"
        parts.metrics.bypasses_total.labels(reason="upstream_reject").inc()
        if reply.status < 400:
            finish.stop_rewriting(parts, turn, "upstream_reject")
    return reply


def _sent(parts: Parts, turn: Turn, incoming: Incoming) -> None:
    """Update the thread's state once the plan's bytes have gone out."""
    thread = turn.place.thread
    thread.sizes = len(incoming.body), len(turn.body)
    if turn.policy.mode == "rewrite":
        before = thread.state
        thread.state = before.after_sending(turn.plan, parts.now())
        parts.faults.note(turn.tenant, before, thread.state)
    if turn.rehearsed:
        thread.rehearsal = rehearsal(thread).after_sending(turn.plan, parts.now())


async def _is_too_long(parts: Parts, turn: Turn, incoming: Incoming, reply: Reply) -> bool:
    """True if an error says that the prompt does not fit its window; the window is remembered. The error can still be
    passed on."""
    if reply.encoding:
        return False
    try:
        body = await reply.peek(ERROR_BODY)
    except AnswerTooLong:
        return False
    except UpstreamError:
        if turn.body == incoming.body:
            raise
        return False  # the status alone decides what is done next
    return windows.learn(parts, turn, body)


async def _replanned(parts: Parts, turn: Turn) -> bool:
    """True if there is a shorter prompt to send, now that the window is known."""
    if turn.policy.mode != "rewrite":
        return False
    try:
        return await replan(parts, turn)
    except StoreUnavailable:
        return False  # storing is required and fails: the client gets the upstream's error
    except Exception:  # P4: as for any other plan
        parts.metrics.swallowed_total.labels(where="replan").inc()
        log.exception("planning once more failed; the client gets the upstream's error")
        return False


def _headers(turn: Turn, reply: Reply, *, changed: bool) -> Headers:
    kept = [(n, v) for n, v in reply.headers if not (changed and n in (b"content-length", b"content-encoding"))]
    return kept + finish.context_headers(turn)


async def _stream(
    parts: Parts, turn: Turn, reply: Reply, out: Outgoing, first_byte_ms: float, rounds: Rounds | None = None
) -> None:
    """Relay a stream as it comes, with the streams of later rounds where the answer calls tools of ours. The terminal
    frame waits for the store."""
    kept = reflecting.headings(parts, turn)

    def make(after: Relay | None) -> Relay:
        limit, names = parts.settings.limits.capture_mb << 20, rounds.names if rounds is not None else frozenset()
        return Relay(
            withhold_state=bool(kept),
            drop_usage=turn.usage_added,
            limit=limit,
            headings=kept,
            hidden=names,
            after=after,
            hold=parts.settings.tools.hold_text,
        )

    relay = make(None)
    try:
        await out.start(reply.status, _headers(turn, reply, changed=bool(kept or rounds) or turn.usage_added))
        broken = await pump(reply, relay, out)
        if rounds is not None and broken is None:
            relay, broken = await rounds.stream(relay, out, make)
    except (asyncio.CancelledError, ClientGone):
        _gone(parts, turn, relay.answer, relay.blocks)
        raise
    answer = relay.answer
    blocks = relay.blocks
    if turn.plan.asked and grammar.HEADING not in kept:  # the block is shown to the client then
        blocks = [block.body for block in grammar.find(answer.text)]
    if broken is not None or answer.truncated:
        code = broken.code if broken is not None else "upstream_broken"
        finish.later(parts, turn, finish.learnt(parts, turn, answer, blocks, "partial", reply.status, note=code))
        _truncated(parts, turn.upstream, code)
        message = broken.message if broken is not None else "the upstream ended its answer before it was complete"
        await out.write((b"\n\n" if relay.unfinished else b"") + finish.error_event(message, code))
        await out.abort()
        return
    rows = finish.learnt(parts, turn, answer, blocks, "complete", reply.status, first_byte_ms=first_byte_ms)
    rows += reflecting.rows(parts, turn, relay.others)
    stored = await finish.durable(parts, turn, rows)
    await out.end((b"" if stored else b": persist deferred\n\n") + relay.terminal)


async def _whole(
    parts: Parts, turn: Turn, reply: Reply, out: Outgoing, first_byte_ms: float, rounds: Rounds | None = None
) -> None:
    """Bring back an answer that is one body. The whole body waits for the store, so that its headers can report the
    outcome."""
    try:
        body = await reply.read(parts.settings.limits.body_mb << 20)
    except UpstreamTimeout:
        finish.later(parts, turn, finish.learnt(parts, turn, None, (), "failed", 504, note="upstream_timeout"))
        raise
    except AnswerTooLong:
        await _too_long(parts, turn, reply, out)
        return
    except UpstreamBroken as problem:
        finish.later(parts, turn, finish.learnt(parts, turn, None, (), "partial", reply.status, note=problem.code))
        raise
    except (asyncio.CancelledError, ClientGone):
        _gone(parts, turn, None, ())
        raise
    readable = reply.status == 200 and not reply.encoding
    kept = reflecting.headings(parts, turn) if readable else ()
    visible, found = without_blocks(body, kept)
    if rounds is not None and readable:
        joined = await _joined(parts, turn, rounds, visible, kept)
        if joined is None:
            await _instead(parts, turn, rounds, out, first_byte_ms)
            return
        visible, found = joined[0], [*found, *joined[1]]
    blocks = [block.body for block in found if block.heading == grammar.HEADING]
    if readable and turn.plan.asked and turn.fallback != "upstream_reject" and not parts.settings.state.withhold:
        blocks = [block.body for block in without_blocks(visible)[1]]
    changed = visible != body
    answer = Answer.from_body(visible) if readable else None
    complete = answer is not None and answer.error is None and bool(answer.finish)
    status: Outcome = "complete" if complete else "rejected" if reply.status >= 400 else "partial"
    note = None if complete else f"http {reply.status}"
    rows = finish.learnt(parts, turn, answer, blocks, status, reply.status, first_byte_ms=first_byte_ms, note=note)
    if complete:
        rows += reflecting.rows(parts, turn, [b.body for b in found if b.heading != grammar.HEADING])
    stored = await finish.durable(parts, turn, rows)
    headers = _headers(turn, reply, changed=changed)
    if changed:
        headers.append((b"content-length", b"%d" % len(visible)))
    if not stored:
        headers.append((b"x-context-persist", b"deferred"))
    await out.start(reply.status, headers)
    await out.end(visible)


async def _joined(
    parts: Parts, turn: Turn, rounds: Rounds, body: bytes, kept: tuple[str, ...]
) -> tuple[bytes, list[Block]] | None:
    """Return (all rounds as one body, the blocks that were taken out of the later rounds); None where the rounds
    failed."""
    found: list[Block] = []

    def clean(one: bytes) -> bytes:
        visible, blocks = without_blocks(one, kept)
        found.extend(blocks)
        return visible

    try:
        joined = await rounds.whole(body, clean)
    except (asyncio.CancelledError, ClientGone):
        _gone(parts, turn, None, ())
        raise
    return None if joined is None else (joined, found)


async def _instead(parts: Parts, turn: Turn, rounds: Rounds, out: Outgoing, first_byte_ms: float) -> None:
    """Send the client's own request again and relay its answer, where a round of ours failed."""
    try:
        reply = await rounds.original()
    except UpstreamError as problem:
        finish.later(parts, turn, finish.learnt(parts, turn, None, (), "failed", problem.status, note=problem.code))
        raise
    except (asyncio.CancelledError, ClientGone):
        _gone(parts, turn, None, ())
        raise
    try:
        await _whole(parts, turn, reply, out, first_byte_ms)
    finally:
        await reply.close()


async def _too_long(parts: Parts, turn: Turn, reply: Reply, out: Outgoing) -> None:
    """Pass on an answer that is larger than the proxy holds: as it comes, without reading it."""
    finish.later(
        parts, turn, finish.learnt(parts, turn, None, (), "partial", reply.status, note="too long to be stored")
    )
    await out.start(reply.status, _headers(turn, reply, changed=False))
    try:
        async for data in reply.chunks():
            await out.write(data)
        await out.end()
    except (UpstreamBroken, UpstreamTimeout) as problem:
        _truncated(parts, turn.upstream, problem.code)
        await out.abort()


def _gone(parts: Parts, turn: Turn, answer: Answer | None, blocks: Sequence[str]) -> None:
    """Record the exchange of a client that left, with nobody waiting for the write."""
    finish.later(parts, turn, finish.learnt(parts, turn, answer, blocks, "client_gone", 499))
