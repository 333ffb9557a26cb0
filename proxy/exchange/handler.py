"""One request from end to end: plan, send, relay, store.

The promise that shapes this file: a request never fails because of the proxy (P4 in docs/development/promises.md). If
anything goes wrong before the first byte has reached the client, its original bytes go upstream. A header and a counter
give the reason.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

from msgspec.structs import replace

from proxy.context.injections.reflect import Reflect
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
from proxy.exchange import (
    cache_keep_alive,
    chains,
    fallback,
    idle,
    inband,
    iteration_records,
    lookups,
    publish_events,
    record_outcome,
    result_clearing,
)
from proxy.exchange.client_stream import keep_alive, relay_to_client
from proxy.exchange.dialect import DIALECTS
from proxy.exchange.fallback import FallbackReason
from proxy.exchange.prepare_request import prepare_request
from proxy.exchange.record_outcome import Outcome
from proxy.exchange.send_prompt import send_prompt
from proxy.exchange.services import Headers, Incoming, ResponseWriter, Services
from proxy.exchange.tool_loop import MAX_NOTE_ERROR_CHARS, ToolLoop
from proxy.exchange.turn import Turn
from proxy.notes import state_block
from proxy.notes.state_block import NoteBlock
from proxy.sessions import locate
from proxy.store.base import ExchangeStatus, GapRow, Row
from proxy.stream.answer_relay import AnswerRelay, ClientEcho, RelayOptions
from proxy.stream.completions_answer import AssembledAnswer
from proxy.stream.sse import begins_stream
from proxy.upstream.client import BODILESS_STATUSES, Reply, Target

log = logging.getLogger(__name__)

COMPACTION_PATHS: Final = ("/responses/compact",)
"""Ends of the paths that compact a history."""


async def handle_chat(services: Services, incoming: Incoming, out: ResponseWriter) -> None:
    """Answer one chat request. Raises UpstreamError while nothing has been sent to the client yet; after that the
    answer is ended here. Cancelled when the client leaves."""
    services.open_requests += 1
    try:
        await _handle_chat(services, incoming, out)
    finally:
        services.open_requests -= 1


async def _handle_chat(services: Services, incoming: Incoming, out: ResponseWriter) -> None:
    began = services.now()
    if incoming.unmanaged_reason:
        await fallback.forward_original(services, incoming, out, FallbackReason(incoming.unmanaged_reason))
        return
    if incoming.dialect == chains.DIALECT:
        # A request of Responses may name an earlier response in place of its history: the store may know that history.
        incoming = await chains.follow(services, incoming, may_take_over=may_take_over(services, incoming))
        out = chains.wrap_writer(incoming, out)
    if is_off(incoming):
        await _forward(services, incoming, out, FallbackReason.OFF)
        return
    if services.settings.commands.in_band:
        extracted = await inband.extract_command(services, incoming)
        if extracted.command_line is not None:
            await inband.answer_command(services, extracted, out)
            return
        incoming = extracted.incoming
    prepared = await _prepare(services, incoming)
    if isinstance(prepared, FallbackReason):
        await _forward(services, incoming, out, prepared)
        return
    turn, target = prepared
    preparation_s = services.now() - began
    if services.cache_pings.waiting:
        services.cache_pings.end([turn.located.branch.id])
    turn = await _send_and_relay(services, turn, target, incoming, out)
    services.metrics.request_seconds.labels(route="chat").observe(preparation_s)
    if services.settings.cache.keep_alive_pings:
        cache_keep_alive.schedule_pings(services, turn, target, incoming)
    if turn.enriched.policy.idle_ages or services.idle_compressions:
        idle.schedule_compression(services, turn, incoming.headers)


async def _prepare(services: Services, incoming: Incoming) -> tuple[Turn, Target] | FallbackReason:
    """Return the turn that is to be sent, with its target; or the reason for which the request goes on without a plan.
    Raises Unavailable if storing is required and the store is not there."""
    try:
        return await prepare_request(services, incoming)
    except NotManaged as reason:
        return FallbackReason(reason.reason)
    except StoreUnavailable as problem:
        record_gap(services, incoming, problem)
        return FallbackReason.STORE
    except Exception:  # promise P4: no fault of the proxy may fail a request; counted and logged
        services.metrics.internal_errors_total.labels(where="prepare").inc()
        log.exception("planning failed; the request goes on as received")
        return FallbackReason.ERROR


async def _forward(services: Services, incoming: Incoming, out: ResponseWriter, reason: FallbackReason) -> None:
    """Send a request on without a plan."""
    identity = chains.repeats_other_values(incoming)
    incoming = chains.return_unplanned(incoming)
    if reason is FallbackReason.COMPACTION:
        incoming = await repair_compaction(services, incoming)
    await fallback.forward_original(services, incoming, out, reason, identity=identity)


def may_take_over(services: Services, incoming: Incoming) -> bool:
    """True if the proxy may complete a request from its store: the settings allow it, and the policy that the request
    names, or else the usual one, changes prompts."""
    if not services.settings.responses.takeover or is_off(incoming):
        return False
    headers = locate.decode_headers(incoming.headers)
    target = services.client.select_target(chains.read_model_name(incoming.body) or None)
    return lookups.find_policy(services, headers, target, DIALECTS[incoming.dialect]).mode == "rewrite"


async def handle_compaction(services: Services, incoming: Incoming, out: ResponseWriter) -> None:
    """Pass on a compaction of a history, whose answer begins a new one: as received, except for reasoning that led to a
    withheld call, which would be refused."""
    if not (is_off(incoming) or incoming.unmanaged_reason):
        incoming = await chains.follow(
            services, incoming, may_take_over=may_take_over(services, incoming), has_answer=False
        )
        incoming = await repair_compaction(services, incoming)
    reason = FallbackReason.OFF if is_off(incoming) else FallbackReason.COMPACTION
    await fallback.forward_original(services, incoming, out, reason)


async def repair_compaction(services: Services, incoming: Incoming) -> Incoming:
    """A request for a compaction without reasoning that led to a withheld call: upstream would refuse it."""
    body = await fallback.repair_answers(services, incoming)
    return incoming if body == incoming.body else replace(incoming, body=body, encoded=None)


def record_gap(services: Services, incoming: Incoming, problem: StoreUnavailable) -> None:
    """Record and count that nothing of this request will be stored; the row is written as soon as the store can be
    reached. Raises Unavailable if storing is required: then the request is refused."""
    if services.settings.store.persist == "required":
        raise Unavailable("the store is not available", hint="Try again later.") from problem
    services.metrics.persist_dropped_total.inc()
    tenant, session = locate.find_owner(incoming.headers, incoming.tenant, incoming.session, services.settings.identity)
    services.store.put_deferred([GapRow(tenant, session, "", len(incoming.body), "store not readable", services.now())])


def is_off(incoming: Incoming) -> bool:
    """True if the client asks that its request is passed on as received."""
    return any(name == b"x-context-off" and value.strip() not in (b"", b"0") for name, value in incoming.headers)


async def _send_and_relay(
    services: Services, turn: Turn, target: Target, incoming: Incoming, out: ResponseWriter
) -> Turn:
    """Send the plan, relay the answer, and record the end in every case. Return the turn as it was sent."""
    sent_at = services.now()
    with _record_no_reply(services, turn):
        turn, reply = await send_prompt(services, turn, target, incoming)
    first_byte_s = services.now() - sent_at
    publish_events.publish_plan(services, turn)
    upstream = services.metrics.limit_label("upstream", target.name)
    services.metrics.first_token_seconds.labels(upstream=upstream).observe(first_byte_s)
    first_byte_ms = 1000 * first_byte_s
    tool_loop = ToolLoop(services, turn, target, incoming) if turn.enriched.tool_offer.names else None
    try:
        if reply.encoding and reply.status < 400:
            await _relay_unread(services, turn, reply, out, f"compressed with {reply.encoding[:MAX_NOTE_ERROR_CHARS]}")
        elif not (reply.is_stream and reply.is_readable):
            await _relay_body(services, turn, reply, out, first_byte_ms, tool_loop)
        elif tool_loop is None:
            await _relay_stream(services, turn, reply, out, first_byte_ms)
        else:
            async with keep_alive(out, has_comments=turn.dialect.answers.has_comments) as writer:
                await _relay_stream(services, turn, reply, writer, first_byte_ms, tool_loop)
    finally:
        await reply.close()
    return turn


@contextmanager
def _record_no_reply(services: Services, turn: Turn) -> Iterator[None]:
    """Record the exchange if its request gets no reply: upstream cannot be asked, or the client leaves meanwhile."""
    try:
        yield
    except UpstreamError as problem:
        _record_unfinished(services, turn, Outcome("failed", problem.status, note=problem.code))
        raise
    except (asyncio.CancelledError, ClientGone):
        _record_client_gone(services, turn)
        raise


def _make_response_headers(turn: Turn, reply: Reply, *, changed: bool) -> Headers:
    kept = [(n, v) for n, v in reply.headers if not (changed and n in (b"content-length", b"content-encoding"))]
    return kept + record_outcome.make_context_headers(turn)


def _make_relay_factory(
    services: Services, turn: Turn, tool_loop: ToolLoop | None
) -> Callable[[AnswerRelay | None], AnswerRelay]:
    """Return the function that makes the relay of a round from the relay of the round before."""
    echo = _find_echo(turn) if turn.prompt.outgoing != turn.original else ClientEcho()

    def make(after: AnswerRelay | None) -> AnswerRelay:
        round_turn = turn if tool_loop is None else tool_loop.turn
        options = RelayOptions(
            withheld=record_outcome.find_withheld_headings(services, round_turn),
            drop_usage=round_turn.prompt.usage_added,
            limit=services.settings.limits.capture_mb << 20,
            hidden_tools=tool_loop.tool_names if tool_loop is not None else frozenset(),
            hold_text=services.settings.tools.hold_text,
            echo=echo,
        )
        return turn.dialect.answers.make_relay(options, after)

    return make


async def _relay_stream(
    services: Services,
    turn: Turn,
    reply: Reply,
    out: ResponseWriter,
    first_byte_ms: float,
    tool_loop: ToolLoop | None = None,
) -> None:
    """Relay a stream as it comes, with the streams of later rounds where the answer calls tools of the proxy. The
    terminal frame waits for the store."""
    make = _make_relay_factory(services, turn, tool_loop)
    relay = make(None)
    try:
        # Its length may change in any case: an error or a comment of the proxy may follow.
        await out.start(reply.status, _make_response_headers(turn, reply, changed=True))
        broken = await relay_to_client(reply, relay, out)
        if tool_loop is not None and broken is None:
            relay, broken = await tool_loop.run_stream(relay, out, make)
            turn = tool_loop.turn
    except (asyncio.CancelledError, ClientGone):
        newest_turn = turn if tool_loop is None else tool_loop.turn
        _record_client_gone(services, newest_turn, relay.answer, relay.blocks)
        raise
    answer, blocks = relay.answer, relay.blocks
    if _shows_state(services, turn):
        blocks = [block.body for block in state_block.find_blocks(answer.text)]
    if broken is not None or answer.error is not None or answer.is_truncated:
        await _end_broken_stream(services, turn, relay, Outcome("partial", reply.status, answer, blocks), broken, out)
        return
    outcome = Outcome("complete", reply.status, answer, blocks, relay.other_blocks, first_byte_ms)
    rows = record_outcome.record_outcome(services, turn, outcome)
    rows += _make_iteration_rows(services, turn, relay.other_blocks)
    stored = await record_outcome.store_and_wait(services, turn, rows)
    comment = b"" if stored or not turn.dialect.answers.has_comments else b": persist deferred\n\n"
    await out.end(comment + relay.terminal)


async def _end_broken_stream(
    services: Services,
    turn: Turn,
    relay: AnswerRelay,
    outcome: Outcome,
    broken: UpstreamError | None,
    out: ResponseWriter,
) -> None:
    """Record a stream whose answer is not whole, and end it: with the provider's own error, else with one of ours.
    broken: the reason why the stream broke; None where the provider ended it."""
    provider_error = relay.answer.error
    if broken is None and provider_error is not None:
        note = f"upstream error: {provider_error[:MAX_NOTE_ERROR_CHARS]}"
        _record_unfinished(services, turn, outcome._replace(note=note))
        await out.end(relay.terminal)  # the client has the provider's own error
        return
    code = broken.code if broken is not None else "upstream_broken"
    _record_unfinished(services, turn, outcome._replace(note=code))
    fallback.record_truncated(services, turn.upstream, code)
    message = broken.message if broken is not None else "the upstream ended its answer before it was complete"
    error = turn.dialect.answers.make_error_event(message, code)
    await out.write((b"\n\n" if relay.is_unfinished else b"") + error)
    await out.abort()


def _make_iteration_rows(services: Services, turn: Turn, reflections: list[str]) -> list[Row]:
    """Return the rows of the iteration that this exchange ends; none for policies that do not reflect."""
    reflect = next((each for each in turn.enriched.policy.injections if isinstance(each, Reflect)), None)
    return iteration_records.make_iteration_rows(services, turn, reflect, reflections) if reflect is not None else []


def _record_unfinished(services: Services, turn: Turn, outcome: Outcome) -> None:
    """Record an exchange whose answer did not come whole, or was not read. The caller does not wait for the write."""
    record_outcome.store_in_background(services, turn, record_outcome.record_outcome(services, turn, outcome))


async def _read_body(services: Services, turn: Turn, reply: Reply) -> bytes:
    """Return the whole body; the end of an exchange whose body does not come is recorded. Raises AnswerTooLong."""
    try:
        return await reply.read_answer(services.settings.limits.body_mb << 20, services.settings.limits.values)
    except UpstreamTimeout as problem:
        _record_unfinished(services, turn, Outcome("failed", problem.status, note=problem.code))
        raise
    except UpstreamBroken as problem:
        _record_unfinished(services, turn, Outcome("partial", reply.status, note=problem.code))
        raise
    except (asyncio.CancelledError, ClientGone):
        _record_client_gone(services, turn)
        raise


async def _relay_body(
    services: Services,
    turn: Turn,
    reply: Reply,
    out: ResponseWriter,
    first_byte_ms: float,
    tool_loop: ToolLoop | None = None,
) -> None:
    """Relay an answer in one body, after the store: its headers report whether the exchange is stored."""
    try:
        body = await _read_body(services, turn, reply)
    except AnswerTooLong:
        await _relay_unread(services, turn, reply, out, "too long to be stored")
        return
    if not reply.is_readable:
        client_body: _ClientBody | None = _ClientBody(turn, body)
    elif turn.request.stream and begins_stream(body):
        reply.give_again(body)  # a stream under another media type
        await _relay_stream(services, turn, reply, out, first_byte_ms, tool_loop)
        return
    else:
        client_body = await _make_client_body(services, turn, body, tool_loop)
    if client_body is not None:
        await _record_and_respond(services, client_body, reply, out, first_byte_ms, changed=client_body.visible != body)
    elif tool_loop is not None:
        await _answer_with_original(services, tool_loop.turn, tool_loop, out, first_byte_ms)


class _ClientBody(NamedTuple):
    """An answer in one body, as the client gets it."""

    turn: Turn
    """The turn with the rounds of the answer."""
    visible: bytes
    answer: AssembledAnswer | None = None
    """None for a body that is not read."""
    blocks: Sequence[NoteBlock] = ()
    """The blocks that the model was asked for."""


async def _make_client_body(
    services: Services, turn: Turn, body: bytes, tool_loop: ToolLoop | None
) -> _ClientBody | None:
    """Run the rounds of an answer, and take out what the client must not see. None where a round has failed."""
    visible = body
    blocks: list[NoteBlock] = []
    withheld = record_outcome.find_withheld_headings(services, turn)
    if tool_loop is not None:
        joined = await _join_rounds(services, tool_loop, body, withheld)
        if joined is None:
            return None
        turn, (visible, blocks) = tool_loop.turn, joined
    elif withheld:
        visible, blocks = turn.dialect.answers.remove_blocks(body, withheld)
    if _shows_state(services, turn):
        blocks = [*blocks, *turn.dialect.answers.remove_blocks(visible, (state_block.HEADING,))[1]]
    if turn.prompt.outgoing != turn.original:
        visible = _restore_echo(turn, visible)
    answer = turn.dialect.answers.read(visible)
    if visible != body:  # the report of cleared results was taken out of it
        answer.cleared_results = turn.dialect.answers.read(body).cleared_results
    return _ClientBody(turn, visible, answer, blocks)


async def _record_and_respond(
    services: Services,
    client_body: _ClientBody,
    reply: Reply,
    out: ResponseWriter,
    first_byte_ms: float,
    *,
    changed: bool,
) -> None:
    """Store the exchange and send its body. changed: the body differs from the one that came."""
    turn, answer = client_body.turn, client_body.answer
    complete = answer is not None and answer.error is None and bool(answer.finish_reasons)
    reflections = [block.body for block in client_body.blocks if block.heading != state_block.HEADING]
    outcome = Outcome(
        "complete" if complete else _find_status_without_answer(reply.status),
        reply.status,
        answer,
        [block.body for block in client_body.blocks if block.heading == state_block.HEADING],
        reflections,
        first_byte_ms,
        None if complete else f"http {reply.status}",
    )
    rows = record_outcome.record_outcome(services, turn, outcome)
    if complete:
        rows += _make_iteration_rows(services, turn, reflections)
    headers = _make_response_headers(turn, reply, changed=changed)
    if changed:
        headers.append((b"content-length", b"%d" % len(client_body.visible)))
    if not await record_outcome.store_and_wait(services, turn, rows):
        headers.append((b"x-context-persist", b"deferred"))
    await out.respond(reply.status, headers, client_body.visible)


def _shows_state(services: Services, turn: Turn) -> bool:
    """True if the client gets the STATE block that the prompt asks for."""
    return turn.prompt.asks_for_state and not services.settings.state.withhold


def _find_status_without_answer(http_status: int) -> ExchangeStatus:
    """The status of an exchange whose body is no whole answer."""
    if http_status in BODILESS_STATUSES or 300 <= http_status < 400:
        return "complete"  # no answer is due
    return "rejected" if http_status >= 400 else "partial"


def _restore_echo(turn: Turn, body: bytes) -> bytes:
    """Return an answer that repeats the request as the client knows it."""
    return turn.dialect.answers.restore_echo(body, frozenset(turn.enriched.tool_offer.names), _find_echo(turn))


def _find_echo(turn: Turn) -> ClientEcho:
    """The values of an answer that the client does not know, where its prompt was changed."""
    instructions = turn.dialect.answers.find_changed_instructions(turn.wire_request, turn.prompt.outgoing)
    return ClientEcho(instructions, result_clearing.find_hidden_member(turn))


async def _join_rounds(
    services: Services, tool_loop: ToolLoop, body: bytes, withheld: tuple[str, ...]
) -> tuple[bytes, list[NoteBlock]] | None:
    """Return (all rounds as one body, the blocks that were taken out of them); None where the rounds failed."""
    try:
        return await tool_loop.run_body(body, withheld)
    except (asyncio.CancelledError, ClientGone):
        _record_client_gone(services, tool_loop.turn)
        raise


async def _answer_with_original(
    services: Services, turn: Turn, tool_loop: ToolLoop, out: ResponseWriter, first_byte_ms: float
) -> None:
    """Send the client's own request again and relay its answer, where a round of the proxy failed."""
    with _record_no_reply(services, turn):
        reply = await tool_loop.send_original()
    try:
        await _relay_body(services, turn, reply, out, first_byte_ms)
    finally:
        await reply.close()


async def _relay_unread(services: Services, turn: Turn, reply: Reply, out: ResponseWriter, note: str) -> None:
    """Pass on an answer that is too large, or cannot be decoded: as it comes, without reading it."""
    _record_unfinished(services, turn, Outcome("partial", reply.status, note=note))
    headers = _make_response_headers(turn, reply, changed=False)
    await fallback.relay_unread(services, turn.upstream, reply, out, headers)


def _record_client_gone(
    services: Services, turn: Turn, answer: AssembledAnswer | None = None, blocks: Sequence[str] = ()
) -> None:
    """Record the exchange of a client that left. The caller does not wait for the write."""
    _record_unfinished(services, turn, Outcome("client_gone", 499, answer, blocks))
